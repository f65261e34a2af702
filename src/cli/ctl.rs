//! Arguments of `ctl`.

use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Look at a running fleet, break it, mend it.
///
/// The fleet has to run with --admin-port. Workers are named by position (w3, w0-w7, w1,w5), as *, `group:<name>`,
/// `label:<key>=<value>`, 25%, random(3), hottest or `most_cached`; children as w3/r0, w3/kv, w3/r0/native, w3/metrics,
/// w3/lease, w3/rendezvous.
/// Exit codes: 0 done, 1 the fleet said no, cannot be reached or does not answer, 2 bad input.
#[derive(Debug, Parser)]
pub struct CtlArgs {
    /// Admin address of the fleet. A token is taken from `GHOSTFLEET_ADMIN_TOKEN`.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "GHOSTFLEET_ADMIN_URL",
        default_value = "http://127.0.0.1:9180"
    )]
    pub url: String,
    /// Longest silence of the fleet, seconds, after which it is given up; of `live` and `top` at least 3. An order that
    /// takes its time, such as heal, is waited for as long as the fleet answers anything else.
    #[arg(long, global = true, value_name = "SECONDS", default_value = "10", value_parser = patience)]
    pub timeout: Duration,
    /// Print what the fleet answers, as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// Sums over the fleet: states, load, counters, latency, how patient its supervisors are.
    Fleet {
        /// With each worker, as rows or as columns of numbers by position.
        #[arg(long, value_enum, value_name = "HOW")]
        workers: Option<Each>,
    },
    /// Each worker in one line.
    List {
        /// Only these.
        #[arg(value_name = "WORKERS")]
        workers: Option<String>,
    },
    /// Everything about an actor.
    Show {
        /// Its path.
        #[arg(value_name = "ACTOR")]
        actor: String,
    },
    /// What is in the prefix caches of a worker or of one rank: how much, how deep, how many prefixes.
    Cache {
        /// Worker or rank.
        #[arg(value_name = "ACTOR")]
        actor: String,
        /// Every block instead: hash, hash of its tokens, parent.
        #[arg(long)]
        blocks: bool,
        /// Those instead that each rank of a worker, dead or alive, has announced and has no more.
        #[arg(long, conflicts_with = "blocks")]
        former: bool,
    },
    /// What is in the discovery store, whoever put it there: what routers see.
    Records {
        /// Beginning of the keys.
        #[arg(value_name = "PREFIX", default_value = "v1/instances/")]
        prefix: String,
    },
    /// Kill workers or one actor: no goodbye, sockets are reset, leases run out.
    Kill {
        /// Whom.
        #[arg(value_name = "WORKERS|ACTOR")]
        target: String,
        /// How a selector that picks at random picks.
        #[command(flatten)]
        dice: Dice,
        /// By a panic, after which its supervisor replaces it.
        #[arg(long)]
        panic: bool,
    },
    /// Let workers take requests and never answer.
    Hang {
        /// Whom.
        #[arg(value_name = "WORKERS")]
        target: String,
        /// How long.
        #[command(flatten)]
        window: Window,
    },
    /// Let forward passes take a multiple of their time.
    Slow {
        /// Whom.
        #[arg(value_name = "WORKERS")]
        target: String,
        /// Multiple.
        #[arg(value_name = "FACTOR")]
        factor: f64,
        /// How long.
        #[command(flatten)]
        window: Window,
    },
    /// Break answers off after some tokens.
    Cut {
        /// Whom.
        #[arg(value_name = "WORKERS")]
        target: String,
        /// Tokens that still go out.
        #[arg(long, value_name = "N", default_value_t = 0)]
        tokens: u32,
        /// How long.
        #[command(flatten)]
        window: Window,
    },
    /// Unlist workers, let them finish their streams and leave.
    Drain {
        /// Whom.
        #[arg(value_name = "WORKERS")]
        target: String,
        /// How a selector that picks at random picks.
        #[command(flatten)]
        dice: Dice,
    },
    /// Start workers again; those that are alive are crashed first.
    Restart {
        /// Whom.
        #[arg(value_name = "WORKERS")]
        target: String,
        /// How a selector that picks at random picks.
        #[command(flatten)]
        dice: Dice,
        /// Under their former instance ids.
        #[arg(long)]
        same_id: bool,
    },
    /// Take every fault off workers and start those again that are dead or have left; one that is leaving is waited for.
    Heal {
        /// Whom.
        #[arg(value_name = "WORKERS")]
        target: String,
        /// How a selector that picks at random picks.
        #[command(flatten)]
        dice: Dice,
        /// Under their former instance ids.
        #[arg(long)]
        same_id: bool,
    },
    /// Drop cached KV blocks that no request uses.
    ClearCache {
        /// Whom.
        #[arg(value_name = "WORKERS")]
        target: String,
        /// How a selector that picks at random picks.
        #[command(flatten)]
        dice: Dice,
        /// Whether routers are told.
        #[arg(long, value_enum, default_value_t = Told::With)]
        event: Told,
        /// How late, ms.
        #[arg(long, value_name = "MS", default_value_t = 0.0)]
        late_ms: f64,
    },
    /// List, add and remove faults.
    Faults {
        /// What to do with them; without: list.
        #[command(subcommand)]
        command: Option<FaultCommand>,
    },
    /// Who waits for what: a request by its id, or all that are under way.
    Why {
        /// Id of the request, as the router has it; of an HTTP request its x-request-id or the id of its answer.
        #[arg(value_name = "REQUEST")]
        request: Option<String>,
        /// Only requests of this worker.
        #[arg(long, value_name = "WORKER", conflicts_with = "request")]
        worker: Option<String>,
        /// At most so many.
        #[arg(long, value_name = "N", default_value_t = 1000, conflicts_with = "request")]
        limit: usize,
    },
    /// Blocks that ranks have and a router does not know, and blocks that it believes in and nobody has.
    ///
    /// The fleet's true caches are held against what the router says. Exit code 3 when the share of wrong blocks (with
    /// --frontend: of wrong choices) is above --max.
    Drift(DriftArgs),
    /// Streams, sequences, blocks and handoffs that are held: leaks, once no request is open any more. Exit code 3 when
    /// there are any.
    ///
    /// To be asked when no request is under way: what is held all the while counts.
    Leaks(LeaksArgs),
    /// Changes as they happen, one line each: entries of the journal, and the fleet's sums every so often.
    Live(LiveArgs),
    /// What the admin API can do, as an `OpenAPI` document.
    Openapi,
    /// A live view in the terminal.
    Top {
        /// Time between two looks, ms.
        #[arg(long, value_name = "MS", default_value_t = 1000)]
        every_ms: u64,
        /// Print one view as text and end.
        #[arg(long)]
        once: bool,
    },
}

/// Whom to ask, and how good is good enough.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("whom").required(true)))]
pub struct DriftArgs {
    /// Ask Dynamo's standalone indexer, which shows everything that it believes in.
    #[arg(long, value_name = "URL", group = "whom")]
    pub indexer: Option<String>,
    /// Ask the index that a frontend started with --serve-indexer shares with others; it is found through discovery. It
    /// answers questions, and is asked for the prompts that ranks have and for those that they had: each rank, dead or alive,
    /// remembers the last 2048 blocks that it has announced and has no more.
    #[arg(long, group = "whom")]
    pub served: bool,
    /// Infer it from the choices of any frontend: prompts are planted, one at each rank in turn, and asked for again.
    #[arg(long, value_name = "URL", group = "whom")]
    pub frontend: Option<String>,
    /// Only this model; a frontend is asked for the first one that it serves.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Highest share of errors that is no failure, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub max: f64,
    /// Look again until it is at most --max, for so long, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub within: f64,
    /// Most questions to a served index for what ranks have, and as many for what they had; prompts for a frontend, half of
    /// them planted.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub probes: usize,
    /// Length of a planted prompt, blocks.
    #[arg(long, value_name = "BLOCKS", default_value_t = 4)]
    pub prompt_blocks: usize,
    /// Tokens per block of planted prompts; the fleet's own unless it has several.
    #[arg(long, value_name = "TOKENS")]
    pub block_size: Option<usize>,
    /// Seed of planted prompts; one that was used before finds its prompts cached.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Reads a time to wait: from a millisecond to a day.
fn patience(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        Ok(_) | Err(_) => Err("a time-out is a number of seconds from 0.001 to 86400".to_owned()),
    }
}

/// Reads a share.
fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        Ok(_) | Err(_) => Err("a share is a number from 0 to 1".to_owned()),
    }
}

/// How long to look.
#[derive(Debug, Args)]
pub struct LeaksArgs {
    /// Time from the first look to the last, seconds.
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 1.0)]
    pub lasting: f64,
}

/// What to follow.
#[derive(Debug, Args)]
pub struct LiveArgs {
    /// From this position of the journal on; without: what comes from now on.
    #[arg(long, value_name = "N")]
    pub after: Option<u64>,
    /// Time between two samples of the sums, ms, at least 100; 0: none.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub every_ms: u64,
    /// Samples have each worker, as rows or as columns of numbers by position, and are JSON then.
    #[arg(long, value_enum, value_name = "HOW")]
    pub workers: Option<Each>,
    /// With the dice of every gate.
    #[arg(long)]
    pub draws: bool,
    /// End after so many lines.
    #[arg(long, value_name = "N")]
    pub events: Option<u64>,
}

/// How workers are told beside the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Each {
    /// A row each, with names.
    Rows,
    /// A list per figure.
    Columns,
}

impl Each {
    /// As the API has it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Columns => "columns",
        }
    }
}

/// How a selector that picks at random picks.
#[derive(Debug, Args)]
pub struct Dice {
    /// Seed of a selector that picks at random: the same seed picks the same workers.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// How long and how often.
#[derive(Debug, Args)]
pub struct Window {
    /// For so long, as 30s or 500ms; without: until it is removed or healed.
    #[arg(long = "for", value_name = "TIME")]
    pub lasts: Option<String>,
    /// Chance, from 0 to 1.
    #[arg(long, value_name = "P")]
    pub probability: Option<f64>,
    /// Seed of its dice, and of a selector that picks at random.
    #[command(flatten)]
    pub dice: Dice,
}

/// Whether a cleared cache is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Told {
    /// At once.
    With,
    /// Never.
    Without,
    /// Later.
    Late,
}

/// What to do with faults.
#[derive(Debug, Subcommand)]
pub enum FaultCommand {
    /// All faults.
    List,
    /// Add faults, all of them or none; each is one argument, as "w3 slow factor=4 to=30s".
    Add {
        /// `<workers> [<layer>.]<kind> [<parameter>=<value> ..] [p=..] [from=..] [to=..|for=..] [seed=..]`
        #[arg(value_name = "FAULT", required = true)]
        faults: Vec<String>,
        /// Remove these in the same change, as f3,f4.
        #[arg(long, value_name = "IDS", value_delimiter = ',')]
        remove: Vec<String>,
    },
    /// Remove all faults and add these in one change, all of them or none.
    Replace {
        /// As for add.
        #[arg(value_name = "FAULT", required = true)]
        faults: Vec<String>,
    },
    /// Remove faults by number, all of them or none.
    Remove {
        /// Numbers, as f3.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Remove all faults.
    Clear,
    /// What kinds there are.
    Kinds {
        /// Only this one, with all that its parameters may be; all: every one so.
        #[arg(value_name = "KIND")]
        kind: Option<String>,
    },
    /// What has happened.
    Journal {
        /// From this position on.
        #[arg(long, value_name = "N", default_value_t = 0)]
        after: u64,
        /// At most the newest so many.
        #[arg(long, value_name = "N", default_value_t = 1000)]
        last: usize,
        /// With the dice of every gate.
        #[arg(long)]
        draws: bool,
    },
}
