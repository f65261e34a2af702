//! What the terminal view looks at: the fleet's live stream, one request for as long as it lasts.
//!
//! Names come once; a sample is columns of numbers. So a frame costs neither side a request, and about 80 bytes per worker.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use serde::Deserialize;
use serde_json::Value;

use super::super::client::{Client, ClientError};
use super::super::events::Events;
use crate::actors::row::Columns;

/// Wait before a stream that has ended is asked for again.
const RETRY: Duration = Duration::from_secs(1);

/// What columns mean.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Names {
    pub(super) workers: Vec<Name>,
    /// Words that `health` counts through.
    pub(super) health: Vec<String>,
}

/// One worker.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Name {
    pub(super) path: String,
    pub(super) group: String,
}

/// What one look at the fleet brought.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    pub(super) at_ms: f64,
    /// Sums.
    pub(super) fleet: Value,
    pub(super) columns: Columns,
    /// Bytes that it took.
    pub(super) bytes: usize,
}

/// News for the view.
#[derive(Debug)]
pub(super) enum News {
    Names(Names),
    Sample(Box<Sample>),
    /// The fleet does not answer, in words.
    Gone(String),
}

fn read(name: &str, data: &str) -> Result<Option<News>, serde_json::Error> {
    Ok(match name {
        "names" => Some(News::Names(serde_json::from_str(data)?)),
        "sample" => {
            let mut fleet: Value = serde_json::from_str(data)?;
            Some(News::Sample(Box::new(Sample {
                at_ms: fleet["at_ms"].as_f64().unwrap_or(0.0),
                columns: serde_json::from_value(fleet["columns"].take())?,
                bytes: data.len(),
                fleet,
            })))
        }
        // Entries of the journal and whatever a newer fleet tells.
        _ => None,
    })
}

/// Tells `news` until it has heard `limit` samples (`None`: until the stream ends).
pub(super) fn follow_once(
    client: &Client,
    every_ms: u64,
    limit: Option<usize>,
    mut news: impl FnMut(News) -> bool,
) -> Result<(), ClientError> {
    let not_a_fleet = |reason: String| client.not_a_fleet(reason);
    let query = [("workers", "columns".to_owned()), ("every_ms", every_ms.to_string())];
    let mut events = Events::new(client.stream("/v1/live", &query)?);
    let mut samples = 0;
    while let Some((name, data)) = events.next().map_err(|error| client.broken(error))? {
        let told = read(&name, &data).map_err(|error| not_a_fleet(error.to_string()))?;
        let Some(told) = told else { continue };
        samples += usize::from(matches!(told, News::Sample(_)));
        if !news(told) || limit.is_some_and(|limit| samples >= limit) {
            return Ok(());
        }
    }
    Ok(())
}

/// Follows the fleet again and again until nobody wants to know any more.
pub(super) fn follow(client: &Client, every_ms: u64, news: &Sender<News>, stop: &Receiver<()>) {
    loop {
        let ended = follow_once(client, every_ms, None, |told| news.send(told).is_ok());
        let why = match ended {
            Ok(()) => format!("the fleet at {} has ended the stream", client.url()),
            Err(error) => error.to_string(),
        };
        if news.send(News::Gone(why)).is_err() {
            return;
        }
        crossbeam_channel::select! {
            recv(crossbeam_channel::after(RETRY)) -> _ => {}
            recv(stop) -> _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn many_frames_of_many_workers_cost_one_request() {
        const WORKERS: usize = 1000;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Client::new(
            &format!("http://{}", listener.local_addr().unwrap()),
            Duration::from_secs(10),
        )
        .unwrap();
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut asked = 0;
            let mut reader = BufReader::new(socket.try_clone().unwrap());
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                asked += usize::from(line.starts_with("GET "));
                if line.trim().is_empty() {
                    break;
                }
            }
            let zeros = serde_json::to_string(&vec![0; WORKERS]).unwrap();
            let lists = [
                "health",
                "incarnation",
                "open_streams",
                "running",
                "waiting",
                "active_blocks",
                "cached_blocks",
                "total_blocks",
                "tokens_total",
                "prompt_tokens_total",
                "cached_tokens_total",
            ];
            let lists = lists.map(|name| format!("\"{name}\":{zeros}")).join(",");
            socket
                .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
                .unwrap();
            socket
                .write_all(b": hello\n\nevent: entry\ndata: {\"seq\":1}\n\n")
                .unwrap();
            for at in 1..=20 {
                let sample = format!(
                    "event: sample\ndata: {{\"at_ms\":{at},\"columns\":{{{lists},\"faults\":{{\"3\":[7]}}}}}}\n\n"
                );
                socket.write_all(sample.as_bytes()).unwrap();
            }
            drop((socket, reader));
            // Whoever asks again would be waiting here.
            listener.set_nonblocking(true).unwrap();
            (asked, listener.accept().is_err())
        });
        let mut seen = Vec::new();
        follow_once(&client, 100, None, |news| {
            if let News::Sample(sample) = news {
                assert_eq!(sample.columns.faults[&3].len(), 1);
                seen.push((sample.columns.health.len(), sample.at_ms));
            }
            true
        })
        .unwrap();
        assert_eq!(seen.len(), 20);
        assert!(seen.iter().all(|(workers, _)| *workers == WORKERS));
        assert_eq!(server.join().unwrap(), (1, true), "one request, and nobody asks again");
    }
}
