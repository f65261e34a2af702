//! What works but is likely not meant, or will not work for long: said when the fleet starts.

use std::time::SystemTime;

use crate::config::disaggregation;
use crate::config::{Brokers, Config, EventPlane, Group, RequestPlane};
use crate::transport::discovery::DiscoveryConfig;
use crate::transport::tls::Pem;

/// Every doubt about a configuration, in words for a log.
pub(super) fn of(config: &Config, now: SystemTime) -> Vec<String> {
    let mut doubts = config.doubts.clone();
    doubts.extend(config.tls.doubt().map(str::to_owned));
    doubts.extend(certificates(config).into_iter().flat_map(|pem| pem.doubts(now)));
    doubts.extend(disaggregation::doubts(&config.groups));
    doubts.extend(strangers(&config.groups));
    for group in config.groups.iter().filter(|group| group.durable_kv_events) {
        doubts.push(format!(
            "group {}: --durable-kv-events is deprecated: routers after Dynamo 1.3 do not read JetStream and will route \
             these workers without knowing their caches; drop it to publish live events with recovery",
            group.name
        ));
    }
    doubts
}

/// Every certificate that the fleet shows or trusts.
fn certificates(config: &Config) -> Vec<&Pem> {
    let mut all: Vec<&Pem> = config.tls.certificates().iter().collect();
    if let Some(tls) = config.nats.as_ref().and_then(|nats| nats.options.tls()) {
        all.extend(tls.certificates());
    }
    if let DiscoveryConfig::Etcd(etcd) = &config.discovery
        && let Some(tls) = &etcd.tls
    {
        all.extend(tls.certificates());
    }
    all
}

/// Groups of one namespace that no frontend reads together.
fn strangers(groups: &[Group]) -> Vec<String> {
    let mut doubts = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let namespace = group.endpoint.namespace();
        let Some(first) = groups[..index]
            .iter()
            .find(|other| other.endpoint.namespace() == namespace)
        else {
            continue;
        };
        let planes = |group: &Group| (group.request_plane, group.event_plane, group.durable_kv_events);
        let elsewhere = group.event_plane == EventPlane::Zmq && first.brokers != group.brokers;
        if planes(first) != planes(group) || elsewhere {
            doubts.push(format!(
                "groups {} and {} share the namespace {namespace} but not their planes ({} against {}): a frontend reads one \
                 request plane and one event plane and misses the others; give them the same planes, or namespaces of their \
                 own",
                first.name,
                group.name,
                words(first),
                words(group),
            ));
        }
    }
    doubts
}

fn words(group: &Group) -> String {
    let requests = match group.request_plane {
        RequestPlane::Tcp => "tcp",
        RequestPlane::Nats => "nats",
    };
    let events = match (group.event_plane, group.durable_kv_events, &group.brokers) {
        (EventPlane::Zmq, _, Brokers::None) => "zmq".to_owned(),
        (EventPlane::Zmq, _, Brokers::At { addresses, .. }) => {
            format!("zmq by brokers at {}", addresses.hosts().join(", "))
        }
        (EventPlane::Zmq, _, Brokers::Discovered) => "zmq by brokers in discovery".to_owned(),
        (EventPlane::Nats, false, _) => "nats".to_owned(),
        (EventPlane::Nats, true, _) => "nats, durable".to_owned(),
    };
    format!("requests {requests}, events {events}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn doubts(groups: &str) -> Vec<String> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), groups).expect("written");
        let path = file.path().display().to_string();
        let args = ["--model-path", "m", "--discovery-backend", "mem", "--config", &path];
        let config = crate::serve::config_from(args, &BTreeMap::new()).expect("a config");
        of(&config, SystemTime::now())
    }

    #[test]
    fn groups_that_no_frontend_reads_together_are_named() {
        let told = doubts(
            "[[group]]\nname = \"one\"\n\
             [[group]]\nname = \"elsewhere\"\nendpoint = \"dyn://other.backend.generate\"\nrequest_plane = \"nats\"\n\
             [[group]]\nname = \"two\"\nrequest_plane = \"nats\"\n",
        );
        assert_eq!(told.len(), 1, "{told:?}");
        for words in [
            "one and two",
            "namespace dynamo",
            "requests tcp, events zmq against requests nats",
        ] {
            assert!(told[0].contains(words), "{words:?} is missing in {told:?}");
        }
    }

    #[test]
    fn groups_whose_events_go_to_different_brokers_are_named() {
        let told = doubts(
            "zmq_broker_url = \"xsub=tcp://h:1,xpub=tcp://h:2\"\n\
             [[group]]\nname = \"one\"\n\
             [[group]]\nname = \"two\"\nzmq_broker_url = \"\"\n\
             [[group]]\nname = \"apart\"\nzmq_broker_url = \"\"\nendpoint = \"dyn://other.backend.generate\"\n",
        );
        assert_eq!(told.len(), 1, "{told:?}");
        for words in ["one and two", "zmq by brokers at h:1 against requests tcp, events zmq)"] {
            assert!(told[0].contains(words), "{words:?} is missing in {told:?}");
        }
    }

    #[test]
    fn what_nothing_reads_is_told_at_the_start() {
        let told = doubts("watermark = 0.1\nengine_type = \"sglang\"\n");
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("watermark = 0.1 has no effect here"), "{told:?}");
    }

    #[test]
    fn alike_groups_and_groups_of_their_own_namespaces_raise_no_doubt() {
        let told = doubts(
            "[[group]]\nname = \"one\"\n[[group]]\nname = \"two\"\nrequest_codec = \"json\"\n\
             [[group]]\nname = \"three\"\nendpoint = \"dyn://other.backend.generate\"\nevent_plane = \"nats\"\n",
        );
        assert_eq!(told, Vec::<String>::new());
    }
}
