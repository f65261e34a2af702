//! `ctl` against a fleet that does not answer, not yet, or not any more.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use crate::admin::Admin;

fn start(url: &str, args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_ghostfleet"))
        .args(["ctl", "--timeout", "0.3", "--url", url])
        .args(args)
        .env_remove("GHOSTFLEET_ADMIN_TOKEN")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn is_told(output: &Output, seconds: &str) -> bool {
    let words = String::from_utf8_lossy(&output.stderr);
    output.status.code() == Some(1)
        && words.contains(&format!("does not answer within {seconds} s"))
        && words.contains("--timeout")
}

/// Somebody who listens where a fleet would.
fn somebody() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// Reads a request; its first line.
fn asked(socket: &TcpStream) -> String {
    let mut reader = BufReader::new(socket);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim().to_lowercase();
        if let Some(bytes) = line.strip_prefix("content-length:") {
            length = bytes.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    reader.read_exact(&mut vec![0; length]).unwrap();
    first
}

fn answer(mut socket: TcpStream, json: &str) {
    let length = json.len();
    let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    socket.write_all((head + json).as_bytes()).unwrap();
}

#[test]
fn a_fleet_that_takes_connections_and_never_answers_is_given_up_by_every_command() {
    // Its kernel takes connections, as that of a stopped process does.
    let (_listener, url) = somebody();
    let commands: &[(&[&str], &str)] = &[
        (&["list"], "0.3"),
        (&["show", "w0/r0"], "0.3"),
        (&["kill", "w1"], "0.3"),
        (&["heal", "w1"], "0.3"),
        (&["hang", "w1"], "0.3"),
        (&["faults", "replace", "w1 hang"], "0.3"),
        (&["faults", "remove", "f1"], "0.3"),
        (&["leaks"], "0.3"),
        (&["drift", "--served"], "0.3"),
        (&["top", "--once", "--json"], "0.3"),
        (&["top", "--once"], "3"),
        (&["live"], "3"),
    ];
    let running: Vec<Child> = commands.iter().map(|(args, _)| start(&url, args)).collect();
    for ((args, seconds), child) in commands.iter().zip(running) {
        let output = child.wait_with_output().unwrap();
        assert!(is_told(&output, seconds), "{args:?}: {output:?}");
    }
}

#[test]
fn a_stream_that_falls_silent_is_given_up() {
    let (listener, url) = somebody();
    let running = start(&url, &["live"]);
    let (mut socket, _) = listener.accept().unwrap();
    assert!(asked(&socket).starts_with("GET /v1/live"));
    socket
        .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nevent: news\ndata: {\"word\":\"last\"}\n\n")
        .unwrap();
    let output = running.wait_with_output().unwrap();
    assert!(is_told(&output, "3"), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("last"));
}

#[test]
fn a_stream_on_which_nothing_happens_is_followed_on() {
    let admin = Admin::start(&[]);
    // Between the two samples there is more time than a silent stream is given.
    let running = start(&admin.url, &["live", "--every-ms", "5000", "--events", "2"]);
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 2);
}

#[test]
fn an_order_that_takes_its_time_is_waited_for_while_the_fleet_answers_anything_else() {
    let (listener, url) = somebody();
    let fleet = thread::spawn(move || {
        let (order, _) = listener.accept().unwrap();
        assert!(asked(&order).starts_with("POST /v1/commands"));
        for _ in 0..3 {
            let (other, _) = listener.accept().unwrap();
            assert!(asked(&other).starts_with("GET /v1/fleet"));
            answer(other, "{}");
        }
        answer(order, r#"{"results":[{"path":"w1","ok":true}]}"#);
        listener
    });
    let output = start(&url, &["heal", "w1"]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("heal: w1"));
    drop(fleet.join().unwrap());
}
