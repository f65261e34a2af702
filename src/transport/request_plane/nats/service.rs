//! What a worker says of itself to NATS tools: answers to `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`.
//!
//! Each worker is an instance of the service `<namespace>_<component>` with an id of its own; each of its endpoints is
//! an endpoint of it. Verbs also come as `$SRV.<verb>.<service>` and `$SRV.<verb>.<service>.<id>`.
//!
//! Source: NATS services API (`io.nats.micro.v1`), as Dynamo 1.4.2's workers answer it.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::QUEUE_GROUP;

/// Release that workers claim: the one whose wire they speak.
const VERSION: &str = "1.6.1";

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Who is there.
    Ping,
    /// With which endpoints.
    Info,
    /// And how much they have done.
    Stats,
}

/// A question, as its subject says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question<'a> {
    /// What is asked for.
    pub verb: Verb,
    /// Service asked; `None`: all.
    pub service: Option<&'a str>,
    /// Instance asked; `None`: all.
    pub instance: Option<&'a str>,
}

impl<'a> Question<'a> {
    /// Reads a subject; `None` for one that is no question.
    pub fn of(subject: &'a str) -> Option<Self> {
        let mut parts = subject.split('.');
        if parts.next()? != "$SRV" {
            return None;
        }
        let verb = match parts.next()? {
            "PING" => Verb::Ping,
            "INFO" => Verb::Info,
            "STATS" => Verb::Stats,
            _ => return None,
        };
        let question = Self {
            verb,
            service: parts.next(),
            instance: parts.next(),
        };
        parts.next().is_none().then_some(question)
    }

    /// Whether it is for this instance of this service.
    pub fn is_for(&self, service: &str, instance: &str) -> bool {
        self.service.is_none_or(|name| name == service) && self.instance.is_none_or(|id| id == instance)
    }
}

/// Counters of one endpoint.
#[derive(Debug, Default)]
pub struct EndpointStats {
    requests: AtomicU64,
    errors: AtomicU64,
    processing_ns: AtomicU64,
    last_error: Mutex<String>,
}

impl EndpointStats {
    /// Counts one request that took `ns` nanoseconds until its reply, and why it was refused if it was.
    pub fn count(&self, ns: u64, refusal: Option<&str>) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.processing_ns.fetch_add(ns, Ordering::Relaxed);
        if let Some(why) = refusal {
            self.errors.fetch_add(1, Ordering::Relaxed);
            why.clone_into(&mut self.last_error.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// One worker as an instance of its service.
#[derive(Debug)]
pub struct Instance<'a> {
    /// Namespace of the worker.
    pub namespace: &'a str,
    /// Its component.
    pub component: &'a str,
    /// Id of the instance.
    pub id: &'a str,
    /// When it came up, RFC 3339.
    pub started: &'a str,
    /// Subject and counters of each of its endpoints.
    pub endpoints: &'a [(&'a str, &'a EndpointStats)],
}

/// Name of the service of a component.
pub fn service_name(namespace: &str, component: &str) -> String {
    format!("{namespace}_{component}")
}

#[derive(Serialize)]
struct Answer<'a> {
    r#type: &'static str,
    name: &'a str,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Metadata>,
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoints: Option<Vec<EndpointAnswer<'a>>>,
}

#[derive(Serialize)]
struct Metadata {}

#[derive(Serialize)]
struct EndpointAnswer<'a> {
    /// The subject with a dash for the dot.
    name: String,
    subject: &'a str,
    queue_group: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Metadata>,
    #[serde(flatten)]
    figures: Option<Figures>,
}

#[derive(Serialize)]
struct Figures {
    num_requests: u64,
    num_errors: u64,
    processing_time: u64,
    average_processing_time: u64,
    last_error: String,
}

/// The JSON that this instance answers.
pub fn answer(verb: Verb, instance: &Instance<'_>) -> Vec<u8> {
    let name = service_name(instance.namespace, instance.component);
    let endpoints = || {
        instance
            .endpoints
            .iter()
            .map(|(subject, stats)| describe(verb, subject, stats))
    };
    let answer = Answer {
        r#type: match verb {
            Verb::Ping => "io.nats.micro.v1.ping_response",
            Verb::Info => "io.nats.micro.v1.info_response",
            Verb::Stats => "io.nats.micro.v1.stats_response",
        },
        name: &name,
        id: instance.id,
        description: (verb == Verb::Info).then(|| {
            format!(
                "Dynamo component {} in namespace {}",
                instance.component, instance.namespace
            )
        }),
        version: VERSION,
        metadata: (verb != Verb::Stats).then_some(Metadata {}),
        started: (verb == Verb::Stats).then_some(instance.started),
        endpoints: (verb != Verb::Ping).then(|| endpoints().collect()),
    };
    // Strings and integers only: there is nothing in it that JSON cannot hold.
    serde_json::to_vec(&answer).unwrap_or_default()
}

fn describe<'a>(verb: Verb, subject: &'a str, stats: &EndpointStats) -> EndpointAnswer<'a> {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let figures = || {
        let (requests, time) = (count(&stats.requests), count(&stats.processing_ns));
        Figures {
            num_requests: requests,
            num_errors: count(&stats.errors),
            processing_time: time,
            average_processing_time: time.checked_div(requests).unwrap_or(0),
            last_error: stats.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    };
    EndpointAnswer {
        name: subject.replacen('.', "-", 1),
        subject,
        queue_group: QUEUE_GROUP,
        metadata: (verb == Verb::Info).then_some(Metadata {}),
        figures: (verb == Verb::Stats).then(figures),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// What Dynamo 1.4.2's mocker answered, but for the version.
    const PING: &str = r#"{"type":"io.nats.micro.v1.ping_response","name":"dynamo_backend","id":"Q9mnISouCDsND3oHTRdT6H","version":"1.6.1","metadata":{}}"#;
    const INFO: &str = r#"{"type":"io.nats.micro.v1.info_response","name":"dynamo_backend","id":"Q9mnISouCDsND3oHTRdT6H","description":"Dynamo component backend in namespace dynamo","version":"1.6.1","metadata":{},"endpoints":[{"name":"dynamo_backend-generate-28e0a22b7df66008","subject":"dynamo_backend.generate-28e0a22b7df66008","queue_group":"q","metadata":{}}]}"#;
    const STATS: &str = r#"{"type":"io.nats.micro.v1.stats_response","name":"dynamo_backend","id":"Q9mnISouCDsND3oHTRdT6H","version":"1.6.1","started":"2026-11-30T08:06:51.021972025Z","endpoints":[{"name":"dynamo_backend-generate-28e0a22b7df66008","subject":"dynamo_backend.generate-28e0a22b7df66008","num_requests":0,"num_errors":0,"processing_time":0,"average_processing_time":0,"last_error":"","queue_group":"q"}]}"#;

    fn answered(verb: Verb, stats: &EndpointStats) -> Value {
        let instance = Instance {
            namespace: "dynamo",
            component: "backend",
            id: "Q9mnISouCDsND3oHTRdT6H",
            started: "2026-11-30T08:06:51.021972025Z",
            endpoints: &[("dynamo_backend.generate-28e0a22b7df66008", stats)],
        };
        serde_json::from_slice(&answer(verb, &instance)).expect("JSON")
    }

    #[test]
    fn answers_equal_those_of_a_real_worker() {
        let stats = EndpointStats::default();
        for (verb, recorded) in [(Verb::Ping, PING), (Verb::Info, INFO), (Verb::Stats, STATS)] {
            let recorded: Value = serde_json::from_str(recorded).expect("JSON");
            assert_eq!(answered(verb, &stats), recorded, "{verb:?}");
        }
    }

    #[test]
    fn requests_and_refusals_are_counted() {
        let stats = EndpointStats::default();
        stats.count(10, None);
        stats.count(20, Some("no"));
        let endpoint = &answered(Verb::Stats, &stats)["endpoints"][0];
        assert_eq!(
            (
                &endpoint["num_requests"],
                &endpoint["num_errors"],
                &endpoint["average_processing_time"],
                &endpoint["last_error"]
            ),
            (&json!(2), &json!(1), &json!(15), &json!("no"))
        );
    }

    #[test]
    fn a_question_is_for_all_for_a_service_or_for_one_instance() {
        let question = |subject| Question::of(subject).expect(subject);
        assert!(question("$SRV.PING").is_for("a_b", "1"));
        assert!(question("$SRV.INFO.a_b").is_for("a_b", "1") && !question("$SRV.INFO.a_c").is_for("a_b", "1"));
        let one = question("$SRV.STATS.a_b.1");
        assert_eq!(one.verb, Verb::Stats);
        assert!(one.is_for("a_b", "1") && !one.is_for("a_b", "2"));
        for subject in ["$SRV", "$SRV.KILL", "$SRV.PING.a.b.c", "x.PING", ""] {
            assert_eq!(Question::of(subject), None, "{subject}");
        }
    }
}
