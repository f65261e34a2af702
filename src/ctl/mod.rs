//! The `ctl` command: one call of the admin API each, and its answer for people or as JSON.

mod client;
mod events;
mod live;
mod print;
mod top;
mod truth;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::{Value, json};

use self::client::Client;
pub use self::client::ClientError;
use crate::cli::ctl::{CtlArgs, CtlCommand, Dice, FaultCommand, Told, Window};
use crate::faults::{Fault, FaultError, Selector, SelectorError};
use crate::witness::WitnessError;

/// Entries of the journal that are read at a time.
const JOURNAL_PAGE: usize = 10_000;

/// How a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// Bad input, seen here. Exit code 2.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// Bad input, seen here. Exit code 2.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// The fleet cannot be reached or says no.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A router cannot be asked. Exit code 1, for a bad address 2.
    #[error(transparent)]
    Witness(#[from] WitnessError),
    /// Everything was looked at, and it is not as it should be. Exit code 3.
    #[error("{0}")]
    Verdict(String),
    /// Well-formed, but no worker of this fleet is meant. Exit code 2.
    #[error("{0}")]
    Nobody(String),
    /// Some of the workers could not be served.
    #[error("{0}")]
    Partly(String),
    /// Standard output or the terminal.
    #[error("cannot write to the terminal: {0}")]
    Io(#[from] std::io::Error),
}

impl CtlError {
    /// Process exit code: 1 it was not done, 2 bad input, 3 the verdict is bad.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Fault(_) | Self::Selector(_) | Self::Nobody(_) | Self::Witness(WitnessError::Url(_)) => 2,
            Self::Verdict(_) => 3,
            Self::Client(error) if error.is_bad_input() => 2,
            Self::Client(_) | Self::Witness(_) | Self::Partly(_) | Self::Io(_) => 1,
        }
    }
}

/// Runs a command.
///
/// # Errors
/// [`CtlError`].
pub fn run(args: &CtlArgs) -> Result<(), CtlError> {
    let client = Client::new(&args.url, args.timeout)?;
    let show = |value: &Value, text| show(args, value, text);
    match &args.command {
        CtlCommand::Fleet { workers } => {
            let query: Vec<_> = workers.iter().map(|each| ("workers", each.word().to_owned())).collect();
            show(&client.get("/v1/fleet", &query)?, print::outline)
        }
        CtlCommand::Records { prefix } => {
            let query = [("prefix", prefix.clone())];
            show(&client.get("/v1/records", &query)?, print::outline)
        }
        CtlCommand::Cache {
            actor, former: true, ..
        } => show(
            &client.get(&format!("/v1/former/{}", escaped(actor)), &[])?,
            print::former,
        ),
        CtlCommand::Cache { actor, blocks, .. } => {
            let what = if *blocks { "cache" } else { "blocks" };
            let answer = client.get(&format!("/v1/{what}/{}", escaped(actor)), &[])?;
            show(&answer, if *blocks { print::cache } else { print::outline })
        }
        CtlCommand::List { workers } => {
            let query = workers
                .iter()
                .map(|select| ("select", select.clone()))
                .collect::<Vec<_>>();
            let rows = client.get("/v1/workers", &query).map_err(names_nobody)?;
            show(&rows, print::workers)
        }
        CtlCommand::Show { actor } => show(
            &client.get(&format!("/v1/actors/{}", escaped(actor)), &[])?,
            print::outline,
        ),
        CtlCommand::Kill { target, panic, dice } => {
            let word = if *panic { "panic" } else { "crash" };
            outcome(args, &client, &order(word, target, dice, false)?)
        }
        CtlCommand::Drain { target, dice } => outcome(args, &client, &order("drain", target, dice, false)?),
        CtlCommand::Restart { target, dice, same_id } => {
            outcome(args, &client, &order("restart", target, dice, *same_id)?)
        }
        CtlCommand::Heal { target, dice, same_id } => outcome(args, &client, &order("heal", target, dice, *same_id)?),
        CtlCommand::Hang { target, window } => add(args, &client, &[windowed(format!("{target} hang"), window)]),
        CtlCommand::Slow { target, factor, window } => {
            let line = windowed(format!("{target} slow factor={factor}"), window);
            add(args, &client, &[line])
        }
        CtlCommand::Cut { target, tokens, window } => {
            let line = windowed(format!("{target} response.cut tokens={tokens}"), window);
            add(args, &client, &[line])
        }
        CtlCommand::ClearCache {
            target,
            dice,
            event,
            late_ms,
        } => {
            let line = |rest: &str| format!("{target} clear_cache event={rest} seed={}", dice.seed);
            match event {
                Told::With => outcome(args, &client, &order("clear_cache", target, dice, false)?),
                Told::Without => add(args, &client, &[line("without")]),
                Told::Late => add(args, &client, &[line(&format!("late late_ms={late_ms}"))]),
            }
        }
        CtlCommand::Faults { command } => faults(args, &client, command.as_ref().unwrap_or(&FaultCommand::List)),
        CtlCommand::Why {
            request: Some(request), ..
        } => show(&client.get(&format!("/v1/why/{}", escaped(request)), &[])?, print::why),
        CtlCommand::Why {
            request: None,
            worker,
            limit,
        } => {
            let mut query = vec![("limit", limit.to_string())];
            query.extend(worker.iter().map(|worker| ("worker", worker.clone())));
            let requests = client.get("/v1/requests", &query).map_err(names_nobody)?;
            show(&requests, print::requests)
        }
        CtlCommand::Drift(drift) => truth::drift(&client, drift, args.json),
        CtlCommand::Leaks(leaks) => truth::leaks(&client, leaks, args.json),
        CtlCommand::Live(wanted) => live::follow(&client, wanted, args.json),
        CtlCommand::Openapi => say(&pretty(&client.get("/openapi.json", &[])?)),
        CtlCommand::Top { every_ms, once } => top::run(client, (*every_ms).clamp(100, 60_000), *once, args.json),
    }
}

fn show(args: &CtlArgs, value: &Value, text: fn(&Value) -> String) -> Result<(), CtlError> {
    say(&if args.json { pretty(value) } else { text(value) })
}

fn faults(args: &CtlArgs, client: &Client, command: &FaultCommand) -> Result<(), CtlError> {
    let removed = |_: &Value| "removed".to_owned();
    match command {
        FaultCommand::List => {
            show(args, &client.get("/v1/faults", &[])?, print::faults)?;
            if args.json {
                return Ok(());
            }
            let fleet = client.get("/v1/fleet", &[])?;
            print::forgotten_faults(&fleet["fault_sums"]).map_or(Ok(()), |line| say(&line))
        }
        FaultCommand::Add { faults, remove } if remove.is_empty() => add(args, client, faults),
        FaultCommand::Add { faults, remove } => {
            let change = json!({"add": parsed(faults)?, "remove": remove});
            let answer = client.post("/v1/faults", &change).map_err(names_nobody)?;
            show(args, &answer, print::faults)
        }
        FaultCommand::Replace { faults } => {
            let answer = client.put("/v1/faults", &json!({"add": parsed(faults)?}));
            show(args, &answer.map_err(names_nobody)?, print::faults)
        }
        FaultCommand::Remove { ids } => {
            let answer = match &ids[..] {
                [id] => client.delete(&format!("/v1/faults/{}", escaped(id)))?,
                ids => client.post("/v1/faults", &json!({"remove": ids}))?,
            };
            show(args, &answer, removed)
        }
        FaultCommand::Clear => show(args, &client.delete("/v1/faults")?, removed),
        FaultCommand::Kinds { kind } => {
            let mut kinds = client.get("/v1/kinds", &[])?;
            let Some(wanted) = kind.as_deref() else {
                return show(args, &kinds, print::kinds);
            };
            if let (Some(list), true) = (kinds.as_array_mut(), wanted != "all") {
                list.retain(|info| {
                    let (layer, kind) = (info["layer"].as_str(), info["kind"].as_str());
                    kind == Some(wanted)
                        || wanted
                            .split_once('.')
                            .is_some_and(|(l, k)| (layer, kind) == (Some(l), Some(k)))
                });
                if list.is_empty() {
                    let why = format!("there is no fault kind `{wanted}`; `ghostfleet ctl faults kinds` lists all");
                    return Err(CtlError::Nobody(why));
                }
            }
            show(args, &kinds, print::kinds_in_full)
        }
        FaultCommand::Journal { after, last, draws } => {
            show(args, &journal(client, *after, *last, *draws)?, print::journal)
        }
    }
}

/// The newest `most` entries after a position, and how many more there are before them.
fn journal(client: &Client, mut after: u64, most: usize, draws: bool) -> Result<Value, ClientError> {
    let (mut kept, mut earlier, mut lost) = (VecDeque::new(), 0_u64, false);
    loop {
        let query = [
            ("after", after.to_string()),
            ("limit", JOURNAL_PAGE.to_string()),
            ("draws", draws.to_string()),
        ];
        let mut page = client.get("/v1/journal", &query)?;
        lost |= page["lost"] == true;
        let next = page["next"].as_u64();
        if let Value::Array(entries) = page["entries"].take() {
            kept.extend(entries);
        }
        while kept.len() > most {
            kept.pop_front();
            earlier += 1;
        }
        match next.filter(|next| *next > after) {
            Some(next) if page["more"] == true => after = next,
            _ => {
                page["entries"] = Vec::from(kept).into();
                page["earlier"] = earlier.into();
                page["lost"] = lost.into();
                return Ok(page);
            }
        }
    }
}

fn say(text: &str) -> Result<(), CtlError> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        // A closed pipe (`| head`) is the reader's choice.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(CtlError::from),
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// A text as one segment of a path; slashes of actor paths stay.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// An order to an actor, or to the workers that a selector means.
fn order(command: &str, target: &str, dice: &Dice, same_id: bool) -> Result<Value, CtlError> {
    let whom = if target.contains('/') {
        ("path", target.to_owned())
    } else {
        ("select", target.parse::<Selector>()?.to_string())
    };
    Ok(json!({"command": command, whom.0: whom.1, "seed": dice.seed, "same_id": same_id}))
}

/// Input that names nobody is bad input.
fn names_nobody(error: ClientError) -> CtlError {
    match error {
        ClientError::Refused { status: 404, error } => CtlError::Nobody(error),
        error @ (ClientError::Url(_)
        | ClientError::Unreachable { .. }
        | ClientError::Silent { .. }
        | ClientError::Refused { .. }
        | ClientError::NotAFleet { .. }) => error.into(),
    }
}

/// Sends an order and tells what became of it for each worker.
fn outcome(args: &CtlArgs, client: &Client, order: &Value) -> Result<(), CtlError> {
    let (status, answer) = client.command(order).map_err(names_nobody)?;
    let results = answer["results"].as_array().cloned().unwrap_or_default();
    if args.json {
        say(&pretty(&answer))?;
    }
    let failed: Vec<&Value> = results.iter().filter(|result| result["ok"] != true).collect();
    if !args.json {
        let done = results.iter().filter(|result| result["ok"] == true);
        let paths: Vec<&str> = done.filter_map(|result| result["path"].as_str()).collect();
        if !paths.is_empty() {
            say(&format!(
                "{}: {}",
                order["command"].as_str().unwrap_or_default(),
                paths.join(" ")
            ))?;
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    let words = failed.iter().filter_map(|result| result["error"].as_str());
    let words = words.collect::<Vec<_>>().join("; ");
    let refused = ClientError::Refused { status, error: words };
    Err(if refused.is_bad_input() {
        refused.into()
    } else {
        CtlError::Partly(refused.to_string())
    })
}

fn windowed(mut line: String, window: &Window) -> String {
    if let Some(lasts) = &window.lasts {
        line.push_str(" for=");
        line.push_str(lasts);
    }
    if let Some(probability) = window.probability {
        // Writing into a String cannot fail.
        let _ = write!(line, " p={probability}");
    }
    let _ = write!(line, " seed={}", window.dice.seed);
    line
}

fn add(args: &CtlArgs, client: &Client, lines: &[String]) -> Result<(), CtlError> {
    let answer = client.post("/v1/faults", &json!({"add": parsed(lines)?}));
    show(args, &answer.map_err(names_nobody)?, print::faults)
}

fn parsed(lines: &[String]) -> Result<Vec<Fault>, FaultError> {
    lines.iter().map(|line| line.parse()).collect()
}
