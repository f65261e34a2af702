//! Settings of a group's native event streams: one base port per worker, one port per rank.

use std::net::IpAddr;

use super::choices::NativeMode;
use super::implied::is_said;
use super::layers::{Layered, Merged, Origin};
use super::rules::refused;
use super::settings::Settings;
use super::{ConfigError, Group, host_of, text};
use crate::engine::{EngineConfig, EngineKind, Fidelity, WorkerRole};
use crate::transport::event_plane::native::Encoding;

const EVENTS: &str = "--zmq-kv-events-ports";
const REPLAY: &str = "--zmq-replay-ports";

/// Native event streams of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeEvents {
    /// First event port of each worker of the group.
    pub ports: Vec<u16>,
    /// First replay port of each worker; empty: no replay.
    pub replay_ports: Vec<u16>,
    /// Where sockets listen, or whom they connect to.
    pub host: IpAddr,
    /// Where replay sockets listen.
    pub replay_host: IpAddr,
    /// Connect instead of listening.
    pub connect: bool,
    /// Form of the events.
    pub encoding: Encoding,
    /// Topic with `{worker}`, `{rank}` and `{model}` in it.
    pub topic: String,
    /// Whether replayed messages have a topic frame.
    pub replay_topic: bool,
}

/// Form of the events of a worker with this engine. Dynamo's mocker speaks as vLLM does, whatever it emulates.
fn encoding_of(engine: &EngineConfig) -> Encoding {
    match (engine.kind, engine.fidelity) {
        (EngineKind::Sglang, Fidelity::Real) => Encoding::Sglang,
        (EngineKind::Sglang, Fidelity::Mocker) | (EngineKind::Vllm | EngineKind::Trtllm, _) => Encoding::Map,
    }
}

/// Checks the settings of a group's native streams. That lists fit the number of its workers has been checked.
///
/// # Errors
/// Names the flag, the numbers and the way out.
pub(super) fn resolve(
    layered: &Layered,
    s: &Settings,
    name: &str,
    engine: &EngineConfig,
    local_prefill: bool,
) -> Result<Option<NativeEvents>, ConfigError> {
    let invalid = |text: String| Err(ConfigError::Invalid(text));
    let ports = list(EVENTS, s.zmq_kv_events_ports.as_ref())?;
    let replay_ports = list(REPLAY, s.zmq_replay_ports.as_ref())?;
    if ports.is_empty() {
        return Ok(None);
    }
    if engine.role == WorkerRole::Decode && !local_prefill {
        return invalid(format!(
            "{EVENTS} for the decode workers of {name}: they publish no KV events; drop the flag there, or add \
             --decode-local-prefill, with which they do"
        ));
    }
    if !engine.enable_prefix_caching {
        return invalid(format!(
            "{EVENTS} with prefix caching off in {name}: there is no KV cache to tell of; enable it or drop the flag"
        ));
    }
    let connect = s.zmq_kv_events_mode == Some(NativeMode::Connect);
    if connect && ports.contains(&0) {
        return invalid(format!(
            "{EVENTS} 0 with --zmq-kv-events-mode connect: give the port where the reader listens"
        ));
    }
    let topic = text(s.zmq_kv_events_topic.as_ref()).to_owned();
    check_topic(&topic)?;
    Ok(Some(NativeEvents {
        ports,
        replay_ports,
        host: host(layered, s, connect)?,
        replay_host: if connect {
            // The other one is the reader's.
            host_of(layered, "event_host", s.event_host.as_ref())?.bind
        } else {
            host(layered, s, connect)?
        },
        connect,
        encoding: s.zmq_kv_events_format.unwrap_or_else(|| encoding_of(engine)),
        topic,
        replay_topic: match s.zmq_replay_frames.unwrap_or(5) {
            5 => true,
            4 => false,
            other => {
                return invalid(format!(
                    "--zmq-replay-frames {other} must be 5 (with the topic) or 4 (without)"
                ));
            }
        },
    }))
}

/// Refuses what is said of native events where there are none: for the fleet when no group has them, and for a group that
/// has none itself.
///
/// # Errors
/// Names the setting and the way out.
pub(super) fn check_said(merged: &Merged, groups: &[Group]) -> Result<(), ConfigError> {
    let refuse = |layered, key| {
        Err(refused(
            layered,
            key,
            "says how native events are published but not where: add --zmq-kv-events-ports",
        ))
    };
    if groups.iter().all(|group| group.native.is_none())
        && let Some(key) = DETAILS.into_iter().find(|key| is_said(&merged.fleet, key))
    {
        return refuse(&merged.fleet, key);
    }
    for (layered, _) in merged
        .groups
        .iter()
        .zip(groups)
        .filter(|(_, group)| group.native.is_none())
    {
        // A printed config repeats in every group what the fleet says.
        let own = |key: &str| {
            matches!(layered.origin(key), Some(Origin::Group { .. })) && layered.value(key) != merged.fleet.value(key)
        };
        if let Some(key) = DETAILS.into_iter().find(|key| own(key) && is_said(layered, key)) {
            return refuse(layered, key);
        }
    }
    Ok(())
}

/// What is told of native events besides their ports.
const DETAILS: [&str; 5] = [
    "zmq_kv_events_format",
    "zmq_kv_events_topic",
    "zmq_kv_events_mode",
    "zmq_kv_events_host",
    "zmq_replay_frames",
];

/// Where sockets listen; with `connect` the reader, who is somewhere else.
fn host(layered: &Layered, s: &Settings, connect: bool) -> Result<IpAddr, ConfigError> {
    const KEY: &str = "zmq_kv_events_host";
    if !connect {
        return Ok(host_of(layered, KEY, s.zmq_kv_events_host.as_ref())?.bind);
    }
    let said = text(s.zmq_kv_events_host.as_ref());
    match super::host::remote(said) {
        Some(reader) if !reader.is_unspecified() => Ok(reader),
        Some(_) | None => {
            let why =
                "is no address of a reader: with --zmq-kv-events-mode connect give the IP address where it listens";
            Err(refused(layered, KEY, why))
        }
    }
}

/// Ports; 0 is any free one, a new one at each start of a worker.
fn list(flag: &str, value: Option<&String>) -> Result<Vec<u16>, ConfigError> {
    let words = text(value).split(',').map(str::trim).filter(|word| !word.is_empty());
    let ports = words.map(|word| {
        word.parse().map_err(|_| {
            let why =
                format!("{flag}: {word:?} is no port; use 1 to 65535, or 0 for any that is free, comma separated");
            ConfigError::Invalid(why)
        })
    });
    ports.collect()
}

fn check_topic(topic: &str) -> Result<(), ConfigError> {
    let mut rest = topic;
    while let Some(at) = rest.find('{') {
        let known = ["{worker}", "{rank}", "{model}"];
        let Some(name) = known.into_iter().find(|name| rest[at..].starts_with(name)) else {
            return Err(ConfigError::Invalid(format!(
                "--zmq-kv-events-topic {topic:?}: {:?} is no placeholder; use {{worker}}, {{rank}} or {{model}}",
                &rest[at..]
            )));
        };
        rest = &rest[at + name.len()..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn resolved(flags: &[&str]) -> Result<NativeEvents, String> {
        let base = ["--model-path", "m", "--discovery-backend", "file"];
        let args = base.iter().chain(flags).map(|flag| (*flag).to_owned());
        let config = crate::serve::config_from(args, &BTreeMap::new()).map_err(|error| error.to_string())?;
        let native = config.groups.into_iter().next().expect("a group").native;
        Ok(native.expect("native events are asked for"))
    }

    #[test]
    fn the_list_has_one_port_per_worker_and_the_error_names_both_numbers() {
        let two = ["--num-workers", "2", "--zmq-kv-events-ports", "5000, 5010"];
        assert_eq!(resolved(&two).unwrap().ports, [5000, 5010]);
        let three = resolved(&["--num-workers", "3", "--zmq-kv-events-ports", "5000,5010"]).unwrap_err();
        assert!(three.contains("2 ports for the 3 workers"), "{three}");
        let replay = [&two[..], &["--zmq-replay-ports", "6000"]].concat();
        let replay = resolved(&replay).unwrap_err();
        assert!(replay.contains("1 port for the 2 workers"), "{replay}");
    }

    #[test]
    fn replay_needs_events_and_ports_are_used_once() {
        let alone = resolved(&["--zmq-replay-ports", "6000"]).unwrap_err();
        assert!(alone.contains("requires --zmq-kv-events-ports"), "{alone}");
        let ranks = [
            "--num-workers",
            "2",
            "--data-parallel-size",
            "2",
            "--zmq-kv-events-ports",
        ];
        let clash = resolved(&[&ranks[..], &["5000,5001"]].concat()).unwrap_err();
        assert!(
            clash.contains("port 5001") && clash.contains("w0/r1") && clash.contains("w1/r0"),
            "{clash}"
        );
        let same = resolved(&["--zmq-kv-events-ports", "5000", "--zmq-replay-ports", "5000"]).unwrap_err();
        assert!(same.contains("port 5000 is wanted twice"), "{same}");
        let any = [&ranks[..], &["0,0", "--zmq-replay-ports", "0,0"]].concat();
        assert_eq!(
            resolved(&any).unwrap().ports,
            [0, 0],
            "any free port clashes with nothing"
        );
        let nowhere = resolved(&["--zmq-kv-events-ports", "0", "--zmq-kv-events-mode", "connect"]).unwrap_err();
        assert!(nowhere.contains("where the reader listens"), "{nowhere}");
        let last = resolved(&["--data-parallel-size", "2", "--zmq-kv-events-ports", "65535"]).unwrap_err();
        assert!(last.contains("no port for rank 1"), "{last}");
    }

    #[test]
    fn how_without_where_is_refused() {
        for (flag, value) in [
            ("--zmq-kv-events-format", "array"),
            ("--zmq-kv-events-topic", "kv"),
            ("--zmq-kv-events-mode", "connect"),
            ("--zmq-kv-events-host", "127.0.0.2"),
            ("--zmq-replay-frames", "4"),
        ] {
            let error = resolved(&[flag, value]).expect_err("refused");
            assert!(
                error.contains(flag) && error.contains("add --zmq-kv-events-ports"),
                "{error}"
            );
        }
    }

    #[test]
    fn decode_workers_have_native_events_only_when_they_publish_any() {
        let decode = ["--zmq-kv-events-ports", "5000", "--disaggregation-mode", "decode"];
        let error = resolved(&decode).expect_err("refused");
        assert!(
            error.contains("group-0") && error.contains("--decode-local-prefill"),
            "{error}"
        );
        assert!(resolved(&[&decode[..], &["--decode-local-prefill"]].concat()).is_ok());
    }

    #[test]
    fn the_reader_that_is_connected_to_has_an_address() {
        let connect = ["--zmq-kv-events-ports", "5000", "--zmq-kv-events-mode", "connect"];
        let to = |host| resolved(&[&connect[..], &["--zmq-kv-events-host", host]].concat());
        assert_eq!(to("192.0.2.7").unwrap().host.to_string(), "192.0.2.7");
        assert!(to("localhost").unwrap().host.is_loopback());
        for host in ["reader.example", "0.0.0.0", "lo"] {
            let error = to(host).expect_err("refused");
            assert!(error.contains(host) && error.contains("reader"), "{error}");
        }
    }

    #[test]
    fn topics_have_known_placeholders_and_replays_four_or_five_frames() {
        let ports = ["--zmq-kv-events-ports", "5000"];
        let with = |more: [&str; 2]| resolved(&[&ports[..], &more].concat());
        assert_eq!(
            with(["--zmq-kv-events-topic", "kv@{worker}@{model}"]).unwrap().topic,
            "kv@{worker}@{model}"
        );
        let unknown = with(["--zmq-kv-events-topic", "kv@{pod}"]).unwrap_err();
        assert!(unknown.contains("{pod}"), "{unknown}");
        assert!(!with(["--zmq-replay-frames", "4"]).unwrap().replay_topic);
        assert!(with(["--zmq-replay-frames", "3"]).is_err());
        assert_eq!(
            with(["--zmq-kv-events-format", "array"]).unwrap().encoding,
            Encoding::Array
        );
    }

    fn grouped(text: &str) -> Result<Vec<Group>, String> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        let path = file.path().display().to_string();
        let args = ["--model-path", "m", "--discovery-backend", "file", "--config", &path];
        let config = crate::serve::config_from(args, &BTreeMap::new()).map_err(|error| error.to_string())?;
        Ok(config.groups)
    }

    #[test]
    fn groups_publish_native_events_each_in_their_own_way() {
        let groups = grouped(
            "block_size = 64\nzmq_kv_events_topic = \"kv\"\n\
             [[group]]\nzmq_kv_events_ports = [5000, 5010]\nnum_workers = 2\nzmq_kv_events_format = \"array\"\n\
             zmq_replay_ports = [6000, 6010]\nzmq_replay_frames = 4\n\
             [[group]]\n\
             [[group]]\nzmq_kv_events_ports = 7000\nzmq_kv_events_topic = \"{worker}\"\nzmq_kv_events_mode = \"connect\"\n\
             zmq_kv_events_host = \"192.0.2.7\"\n\
             [[group]]\nzmq_kv_events_ports = 7000\nengine_type = \"sglang\"\n",
        );
        let native: Vec<_> = groups
            .expect("a config")
            .into_iter()
            .map(|group| group.native)
            .collect();
        let [Some(old), None, Some(away), Some(sglang)] = &native[..] else {
            panic!("{native:?}")
        };
        assert_eq!(
            (&old.ports[..], &old.replay_ports[..]),
            (&[5000, 5010][..], &[6000, 6010][..])
        );
        assert_eq!(
            (old.encoding, &*old.topic, old.replay_topic),
            (Encoding::Array, "kv", false)
        );
        assert_eq!(
            (away.encoding, &*away.topic, away.replay_topic),
            (Encoding::Map, "{worker}", true)
        );
        assert_eq!((away.connect, away.host.to_string()), (true, "192.0.2.7".to_owned()));
        assert_eq!((sglang.encoding, sglang.connect), (Encoding::Sglang, false));
    }

    #[test]
    fn a_group_without_native_events_cannot_say_how_they_are_published() {
        let text =
            "[[group]]\nzmq_kv_events_ports = 5000\n[[group]]\nname = \"mute\"\nzmq_kv_events_format = \"array\"\n";
        let error = grouped(text).expect_err("refused");
        for words in [
            "group mute",
            "zmq_kv_events_format = \"array\"",
            "add --zmq-kv-events-ports",
        ] {
            assert!(error.contains(words), "{words:?} is missing in {error}");
        }
        // As `--print-config` writes what the fleet says.
        let printed = text
            .replace("[[group]]", "[[group]]\n\n")
            .replace("name = \"mute\"\n", "");
        let printed = format!("zmq_kv_events_format = \"array\"\n{printed}");
        assert!(grouped(&printed).is_ok());
    }
}
