//! What probes and Prometheus see of a fleet.

use std::net::TcpListener;

use ghostfleet::actors::death::Death;
use serde_json::Value;

use crate::caller::{call, chat};
use crate::native::free_ports;
use crate::scene::Scene;

/// Status and body of `GET path`.
fn get(scene: &Scene, path: &str) -> (u16, String) {
    let address = scene.cluster.facts().status.expect("a status server");
    fetch(&format!("http://{address}{path}"))
}

fn fetch(url: &str) -> (u16, String) {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut answer = agent.get(url).call().unwrap();
    (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
}

fn ask(scene: &Scene, worker: usize) {
    let request = chat(&(0..10).collect::<Vec<u32>>(), 3);
    call(&scene.address(worker), "a", &request).unwrap().finish().unwrap();
}

#[test]
fn readiness_is_told_per_worker_and_a_dead_one_does_not_end_the_fleet() {
    let scene = Scene::start(&["--speedup-ratio", "0", "--num-workers", "2", "--system-port", "0"]);
    let (code, body) = get(&scene, "/health");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &body["status"]), (200, &Value::from("ready")));
    assert_eq!(body["endpoints"]["generate"], "ready");
    assert_eq!(body["workers"], serde_json::json!({"w0": "ready", "w1": "ready"}));
    assert!(body["uptime"]["secs"].is_u64() && body["uptime"]["nanos"].is_u64());
    scene.cluster.kill("w1", Death::Crash).unwrap();
    scene.until("the death is told", |scene| get(scene, "/health/w1").0 == 503);
    let (code, body) = get(&scene, "/health");
    assert_eq!(code, 200, "w0 serves");
    assert!(body.contains("\"w1\":\"dead\""), "{body}");
    scene.cluster.kill("w0", Death::Crash).unwrap();
    scene.until("nobody serves", |scene| get(scene, "/health").0 == 503);
    assert_eq!(get(&scene, "/live").0, 200, "the process itself is well");
    assert_eq!(
        get(&scene, "/health/w7"),
        (404, "no worker \"w7\" in this fleet".to_owned())
    );
    assert_eq!(
        get(&scene, "/metadata"),
        (404, "Discovery metadata not available".to_owned())
    );
    assert_eq!(get(&scene, "/nowhere"), (404, "Route not found".to_owned()));
}

#[test]
fn metrics_tell_the_fleet_and_each_rank_that_has_served() {
    let http = free_ports().to_string();
    let flags = [
        "--speedup-ratio",
        "0",
        "--num-workers",
        "2",
        "--system-port",
        "0",
        "--http-port",
        &http,
    ];
    let scene = Scene::start(&flags);
    let (code, page) = get(&scene, "/metrics");
    assert_eq!(code, 200);
    assert!(page.contains("ghostfleet_workers{state=\"ready\"} 2\n"), "{page}");
    assert!(!page.contains("vllm:"), "no rank has served yet");
    ask(&scene, 1);
    ask(&scene, 1);
    let labels = "engine=\"0\",model_name=\"tiny\"";
    let on_fleet = |name: &str, value: &str| format!("vllm:{name}{{{labels},worker=\"w1\"}} {value}\n");
    scene.until("both requests are counted", |scene| {
        get(scene, "/metrics")
            .1
            .contains(&on_fleet("e2e_request_latency_seconds_count", "2.0"))
    });
    let page = get(&scene, "/metrics").1;
    for line in [
        on_fleet("prompt_tokens_total", "20.0"),
        on_fleet("prefix_cache_hits_total", "8.0"),
        on_fleet("generation_tokens_total", "6.0"),
        on_fleet("inter_token_latency_seconds_count", "4.0"),
        on_fleet("num_requests_running", "0.0"),
    ] {
        assert!(page.contains(&line), "{line} is not on\n{page}");
    }
    assert!(!page.contains("worker=\"w0\""), "w0 has not served");
    assert!(page.contains("ghostfleet_tokens_total 6\n"), "{page}");
    let instance = scene.worker(1).instance_id;
    let endpoint = "dynamo_namespace=\"dynamo\",dynamo_component=\"backend\",dynamo_endpoint=\"generate\"";
    let requests = format!("dynamo_component_requests_total{{{endpoint},worker_id=\"{instance:x}\"}} 2\n");
    assert!(page.contains(&requests), "{requests} is not on\n{page}");
    let row =
        |name: &str, value: &str| format!("dynamo_component_{name}{{{endpoint},worker_id=\"{instance:x}\"}} {value}\n");
    scene.until("both calls are over", |scene| {
        get(scene, "/metrics")
            .1
            .contains(&row("request_duration_seconds_count", "2"))
    });
    let page = get(&scene, "/metrics").1;
    for line in [row("inflight_requests", "0"), row("cancellation_total", "0")] {
        assert!(page.contains(&line), "{line} is not on\n{page}");
    }
    let own_labels = format!("{endpoint},worker_id=\"{instance:x}\"");
    let errors = format!("dynamo_component_errors_total{{{own_labels},error_type=\"generate\"}} 0\n");
    let buckets = format!("dynamo_component_request_duration_seconds_bucket{{{own_labels},le=\"600\"}} 2\n");
    assert!(page.contains(&errors) && page.contains(&buckets), "{page}");
    for name in ["request_bytes_total", "response_bytes_total"] {
        let begin = format!("dynamo_component_{name}{{{own_labels}}} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&begin)).unwrap();
        assert!(value.parse::<u64>().unwrap() > 100, "{name} {value}");
    }
    assert!(page.contains(&format!(
        "dynamo_component_uptime_seconds{{worker_id=\"{instance:x}\"}} "
    )));
    assert!(
        page.contains("dynamo_component_kv_publisher_engines_dropped_events_total{dynamo_namespace="),
        "{page}"
    );
    assert!(page.contains("dynamo_endpoint=\"worker_kv_query_source_"), "{page}");
    let first: u16 = http.parse().unwrap();
    let own = |worker: u16| fetch(&format!("http://127.0.0.1:{}/metrics", first + worker)).1;
    assert!(own(1).contains(&format!("vllm:prompt_tokens_total{{{labels}}} 20.0\n")));
    // A server shows its metrics before its first request.
    assert!(own(0).contains(&format!("vllm:prompt_tokens_total{{{labels}}} 0.0\n")));
}

#[test]
fn a_taken_port_is_named() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = taken.local_addr().unwrap();
    let store = tempfile::TempDir::new().unwrap();
    let model = format!("{}/config/tiny-model", env!("CARGO_MANIFEST_DIR"));
    let (store, port) = (store.path().display().to_string(), address.port().to_string());
    let args = [
        "--model-path",
        &model,
        "--discovery-backend",
        "file",
        "--file-kv",
        &store,
        "--system-port",
        &port,
    ];
    let config = ghostfleet::serve::config_from(args.map(str::to_owned), &std::collections::BTreeMap::new()).unwrap();
    let error = ghostfleet::cluster::Cluster::start(&config)
        .err()
        .expect("the port is taken")
        .to_string();
    assert!(
        error.contains(&address.to_string()) && error.contains("DYN_SYSTEM_PORT"),
        "{error}"
    );
}

#[test]
fn a_draining_worker_and_one_whose_lease_has_gone_are_not_ready() {
    let flags = ["--speedup-ratio", "0", "--num-workers", "2", "--system-port", "0"];
    let scene = Scene::start(&flags);
    // It drains until its answer is over.
    let mut open = call(&scene.address(1), "a", &chat(&[1, 2, 3], 30_000)).unwrap();
    open.next().unwrap();
    scene.cluster.drain("w1").unwrap();
    scene.until("the drain is told", |scene| get(scene, "/health/w1").0 == 503);
    assert!(get(&scene, "/health").1.contains("\"w1\":\"draining\""));
    drop(open);
    scene.until("it has left", |scene| {
        get(scene, "/health").1.contains("\"w1\":\"left\"")
    });
    // A dead lease keeper leaves its records to run out; they are back when it is.
    let restarts = scene.worker(0).restarts;
    scene.cluster.kill("w0/lease", Death::Crash).unwrap();
    scene.until("w0 is listed again", |scene| {
        scene.worker(0).restarts > restarts && get(scene, "/health/w0").0 == 200
    });
}

#[test]
fn a_worker_that_still_loads_is_not_ready_and_says_so() {
    let flags = ["--speedup-ratio", "0", "--system-port", "0", "--startup-time", "100000"];
    let scene = Scene::start(&flags);
    let (code, body) = get(&scene, "/health");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &body["status"]), (503, &Value::from("notready")));
    assert_eq!(body["workers"], serde_json::json!({"w0": "loading"}));
    assert_eq!(body["reason"], "w0: its start-up time is not over");
    assert_eq!((get(&scene, "/health/w0").0, get(&scene, "/live").0), (503, 200));
    // One that is replaced does not load again.
    scene.cluster.kill("w0/r0", Death::Crash).unwrap();
    scene.until("it has loaded", |scene| get(scene, "/health").0 == 200);
    assert!(!get(&scene, "/health").1.contains("reason"));
    let eager = Scene::start(&[&flags[..], &["--system-starting-health-status", "ready"]].concat());
    assert_eq!(get(&eager, "/health").0, 200, "as it was asked to say");
}

#[test]
fn probes_have_the_paths_that_were_asked_for() {
    let paths = ["--system-health-path", "/ready", "--system-live-path", "/ready/or/not"];
    let scene = Scene::start(&[&["--speedup-ratio", "0", "--system-port", "0"][..], &paths].concat());
    for path in ["/ready", "/ready/w0", "/ready/or/not", "/metrics"] {
        assert_eq!(get(&scene, path).0, 200, "{path}");
    }
    assert_eq!(get(&scene, "/health").0, 404);
}

#[test]
fn counters_are_there_before_they_count() {
    let scene = Scene::start(&["--speedup-ratio", "0", "--system-port", "0"]);
    let page = get(&scene, "/metrics").1;
    for line in [
        "ghostfleet_event_messages_dropped_total{plane=\"nats\"} 0",
        "ghostfleet_event_messages_dropped_total{plane=\"zmq\"} 0",
        "ghostfleet_kv_event_batches_lost_total 0",
        "ghostfleet_nats_connections_lost_total 0",
    ] {
        assert!(page.lines().any(|text| text == line), "{line} is not on\n{page}");
    }
}

#[test]
fn sglang_workers_have_metrics_of_sglang() {
    let flags = ["--speedup-ratio", "0", "--system-port", "0", "--engine-type", "sglang"];
    let scene = Scene::start(&flags);
    ask(&scene, 0);
    let labels = "engine_type=\"sglang\",model_name=\"tiny\",worker=\"w0\"";
    let line = format!("sglang:num_requests_total{{{labels}}} 1.0\n");
    scene.until("the request is counted", |scene| {
        get(scene, "/metrics").1.contains(&line)
    });
    let page = get(&scene, "/metrics").1;
    assert!(
        page.contains(&format!("sglang:generation_tokens_total{{{labels}}} 3.0\n")),
        "{page}"
    );
    assert!(!page.contains("vllm:"), "{page}");
}
