//! Load on the workers of one endpoint, without a frontend in between; prints one JSON object with what was measured.
//!
//! ```console
//! $ cargo run --release --example loaddriver -- --workers 64 --requests 3000 --concurrency 64 --pid $(pidof ghostfleet)
//! ```
//!
//! Finds the workers in discovery, sends each request to one of them over the TCP request plane, and lets the worker
//! dial back as it would dial a frontend.

mod answer;
mod caller;
mod process;
mod prompt;
mod tally;
mod targets;

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use clap::Parser;
use ghostfleet::transport::discovery::EndpointName;
use serde_json::json;
use tokio::time::timeout;

use answer::Item;
use caller::Caller;
use process::Usage;
use prompt::Prompts;
use tally::Tally;
use targets::{Store, Target};

/// Load on the workers of one endpoint; the result is one JSON object on standard output.
#[derive(Debug, Parser)]
struct Args {
    /// Endpoint that the workers serve.
    #[arg(long, default_value = "dyn://dynamo.backend.generate")]
    endpoint: EndpointName,
    /// Where workers are registered: `etcd` (`ETCD_ENDPOINTS`) or `file` (`DYN_FILE_KV`).
    #[arg(long, default_value = "etcd")]
    discovery_backend: Store,
    /// Wait until this many workers are registered; more are used too.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Seconds to wait for them.
    #[arg(long, default_value_t = 60.0)]
    wait: f64,
    /// Requests to send in all.
    #[arg(long, default_value_t = 100)]
    requests: u64,
    /// Requests in flight.
    #[arg(long, default_value_t = 1)]
    concurrency: u64,
    /// Each of the requests in flight stays with one worker instead of going round.
    #[arg(long)]
    pin: bool,
    /// Prompt length in tokens.
    #[arg(long, default_value_t = 128)]
    input_tokens: u32,
    /// Tokens to generate for each request.
    #[arg(long, default_value_t = 64)]
    output_tokens: u32,
    /// Groups of requests whose prompts begin alike.
    #[arg(long, default_value_t = 1)]
    prefix_groups: u64,
    /// Tokens at the beginning that a group shares.
    #[arg(long, default_value_t = 0)]
    prefix_tokens: u32,
    /// Token ids are drawn below this one.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(11..))]
    vocabulary: u32,
    /// Seed of the prompts; a worker has the prompts of an earlier run in its cache.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Data-parallel ranks to go round; 0: the worker chooses.
    #[arg(long, default_value_t = 0)]
    dp_ranks: u32,
    /// Cancel each request after this many tokens; 0: never.
    #[arg(long, default_value_t = 0)]
    cancel_after: u64,
    /// Seconds after which a request counts as failed.
    #[arg(long, default_value_t = 120.0)]
    request_timeout: f64,
    /// Model name in the requests.
    #[arg(long, default_value = "model")]
    model: String,
    /// Process to account for; may be given several times.
    #[arg(long)]
    pid: Vec<u32>,
}

/// What all requests have in common.
struct Run {
    args: Args,
    targets: Vec<Target>,
    caller: Caller,
    prompts: Prompts,
    next: AtomicU64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let report = tokio::runtime::Runtime::new()?.block_on(drive(args))?;
    writeln!(std::io::stdout(), "{report}")?;
    Ok(())
}

async fn drive(args: Args) -> Result<serde_json::Value> {
    let patience = Duration::try_from_secs_f64(args.wait).context("--wait")?;
    let targets = targets::find(args.discovery_backend, &args.endpoint, args.workers, patience).await?;
    let prompts = Prompts {
        seed: args.seed,
        tokens: args.input_tokens,
        groups: args.prefix_groups.max(1),
        prefix_tokens: args.prefix_tokens,
        vocabulary: args.vocabulary,
    };
    let run = Arc::new(Run {
        caller: Caller::listen()?,
        prompts,
        targets,
        next: AtomicU64::new(0),
        args,
    });
    let own = Usage::start(std::process::id())?;
    let watched: Vec<Usage> = run
        .args
        .pid
        .iter()
        .map(|&pid| Usage::start(pid))
        .collect::<Result<_>>()?;
    let begin = Instant::now();
    let slots: Vec<_> = (0..run.args.concurrency)
        .map(|slot| tokio::spawn(Arc::clone(&run).keep_busy(slot)))
        .collect();
    let mut tally = Tally::default();
    for slot in slots {
        tally.merge(slot.await?);
    }
    let wall = begin.elapsed();
    let processes: Vec<_> = watched.into_iter().map(|usage| usage.finish(tally.tokens)).collect();
    let driver = own.finish(tally.tokens);
    Ok(json!({
        "workers": run.targets.len(),
        "load": tally.report(wall, run.targets.iter().map(|target| target.instance)),
        "processes": processes,
        "driver": driver,
    }))
}

impl Run {
    /// Sends one request after the other until all are taken.
    async fn keep_busy(self: Arc<Self>, slot: u64) -> Tally {
        let mut tally = Tally::default();
        let targets = self.targets.len() as u64;
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.args.requests {
                return tally;
            }
            let turn = if self.args.pin { slot } else { number };
            let index = usize::try_from(turn % targets).expect("an index into a vector");
            let rank = u64::from(self.args.dp_ranks)
                .ne(&0)
                .then(|| number / targets % u64::from(self.args.dp_ranks));
            self.ask(number, &self.targets[index], rank, &mut tally).await;
        }
    }

    async fn ask(&self, number: u64, target: &Target, rank: Option<u64>, tally: &mut Tally) {
        let body = self
            .prompts
            .request(number, &self.args.model, self.args.output_tokens, rank, target.codec);
        let mut watch = Watch::start();
        let limit = Duration::try_from_secs_f64(self.args.request_timeout).unwrap_or(Duration::MAX);
        let ended = match timeout(limit, self.listen(target, body, &mut watch, tally)).await {
            Ok(ended) => ended,
            Err(_) => Err(anyhow!("no end within {limit:?}")),
        };
        tally.requests_of(target.instance, watch.tokens);
        match ended {
            Ok(end) => {
                let wanted = u64::from(self.args.output_tokens);
                tally.ended(&end, end != CANCELLED && watch.tokens < wanted, watch.begin.elapsed());
                if let (Some(first), 2..) = (watch.first, watch.tokens) {
                    tally.request_itl(watch.last - first, watch.tokens - 1);
                }
            }
            Err(error) => tally.failed(&error),
        }
    }

    /// Reads an answer to its end; returns how it ended.
    async fn listen(&self, target: &Target, body: Vec<u8>, watch: &mut Watch, tally: &mut Tally) -> Result<String> {
        let mut answer = self.caller.call(target, &body).await?;
        let mut finish = None;
        while let Some(item) = answer.next().await? {
            let Item { tokens, finish_reason } = item;
            watch.heard(tokens, tally);
            if finish_reason.is_some() {
                finish = finish_reason;
            }
            if self.args.cancel_after > 0 && watch.tokens >= self.args.cancel_after && finish.is_none() {
                answer.stop().await?;
                // The worker may send what is on its way and then closes, in whatever manner.
                while let Ok(Some(item)) = answer.next().await {
                    watch.heard(item.tokens, tally);
                }
                return Ok(CANCELLED.to_owned());
            }
        }
        finish.context("stream ended without a finish reason")
    }
}

/// How a request counts that we cut short.
const CANCELLED: &str = "cancelled by us";

/// Times of one request.
struct Watch {
    begin: Instant,
    first: Option<Instant>,
    last: Instant,
    tokens: u64,
}

impl Watch {
    fn start() -> Self {
        let begin = Instant::now();
        Self {
            begin,
            first: None,
            last: begin,
            tokens: 0,
        }
    }

    fn heard(&mut self, tokens: u64, tally: &mut Tally) {
        if tokens == 0 {
            return;
        }
        let now = Instant::now();
        if self.first.is_none() {
            self.first = Some(now);
            tally.ttft(now - self.begin);
        } else {
            tally.itl(now - self.last, tokens);
        }
        self.last = now;
        self.tokens += tokens;
        tally.tokens += tokens;
    }
}
