//! Renews all leases of the fleet over one keep-alive stream.
//!
//! etcd answers the requests of a stream one after the other and in order, whatever leases they name. So one task and
//! one stream serve any number of leases at two small messages each, many of them in one packet, where a stream per lease would hold buffers and a
//! task for each, and a stream per renewal would open and close one every time.

use std::collections::VecDeque;
use std::time::Duration;

use etcd_client::{LeaseClient, LeaseKeepAliveStream, LeaseKeeper};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::status::Fault;
use crate::transport::discovery::GATHER_RENEWALS;

/// Requests on the wire without an answer. The client queues 100 before a send waits.
const MAX_UNANSWERED: usize = 64;

/// Requests that wait for the renewer; further callers wait to queue.
const QUEUE: usize = 1024;

/// What became of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Its time starts anew.
    Alive,
    /// It does not exist.
    Gone,
}

/// Handle of the renewing task, which ends with the last handle.
#[derive(Debug, Clone)]
pub(super) struct Renewer(mpsc::Sender<Request>);

#[derive(Debug)]
struct Request {
    lease: i64,
    answer: oneshot::Sender<Result<Outcome, Fault>>,
}

impl Renewer {
    pub(super) fn spawn(leases: LeaseClient, answer_limit: Duration) -> Self {
        let (sender, requests) = mpsc::channel(QUEUE);
        tokio::spawn(run(leases, requests, answer_limit));
        Self(sender)
    }

    pub(super) async fn renew(&self, lease: i64) -> Result<Outcome, Fault> {
        let (answer, answered) = oneshot::channel();
        let ended = || Fault::NoAnswer("the renewing task has ended".into());
        self.0.send(Request { lease, answer }).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?
    }
}

async fn run(mut leases: LeaseClient, mut requests: mpsc::Receiver<Request>, answer_limit: Duration) {
    while let Some(first) = requests.recv().await {
        match timeout(answer_limit, open(&mut leases, first.lease)).await {
            Ok(Ok(Some((keeper, answers)))) => {
                first.reply(Ok(Outcome::Alive));
                serve(keeper, answers, &mut requests, answer_limit).await;
            }
            Ok(Ok(None)) => first.reply(Ok(Outcome::Gone)),
            Ok(Err(fault)) => first.reply(Err(fault)),
            Err(_) => first.reply(Err(no_answer())),
        }
    }
}

/// Opens a stream, which takes a first lease to renew; `None`: that lease does not exist.
async fn open(leases: &mut LeaseClient, lease: i64) -> Result<Option<(LeaseKeeper, LeaseKeepAliveStream)>, Fault> {
    match leases.keep_alive(lease).await {
        Ok(stream) => Ok(Some(stream)),
        // Said of a lease that does not exist, but of a failed send as well.
        Err(etcd_client::Error::LeaseKeepAliveError(reason)) => {
            let status = leases.time_to_live(lease, None).await?;
            if status.ttl() <= 0 {
                Ok(None)
            } else {
                Err(Fault::NoAnswer(reason))
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Passes requests to a stream and its answers back, until the stream breaks or no more requests can come.
async fn serve(
    mut keeper: LeaseKeeper,
    mut answers: LeaseKeepAliveStream,
    requests: &mut mpsc::Receiver<Request>,
    answer_limit: Duration,
) {
    let mut unanswered: VecDeque<(Request, Instant)> = VecDeque::new();
    let mut batch = Vec::new();
    let fault = loop {
        let oldest_due = unanswered.front().map(|(_, due)| *due);
        tokio::select! {
            received = requests.recv_many(&mut batch, MAX_UNANSWERED - unanswered.len()),
                if unanswered.len() < MAX_UNANSWERED =>
            {
                if received == 0 {
                    return;
                }
                if batch.len() + unanswered.len() < MAX_UNANSWERED {
                    sleep(GATHER_RENEWALS).await;
                }
                while batch.len() + unanswered.len() < MAX_UNANSWERED && let Ok(request) = requests.try_recv() {
                    batch.push(request);
                }
                let due = Instant::now() + answer_limit;
                let mut sent = Ok(());
                for request in batch.drain(..) {
                    keeper.id = request.lease;
                    if sent.is_ok() {
                        sent = keeper.keep_alive().await;
                    }
                    unanswered.push_back((request, due));
                }
                if let Err(error) = sent {
                    break Fault::from(error);
                }
            }
            answer = answers.message() => match answer {
                Ok(Some(answer)) => {
                    let Some((request, _)) = unanswered.pop_front() else {
                        break Fault::NoAnswer("an answer to nothing".into());
                    };
                    if answer.id() != request.lease {
                        unanswered.push_front((request, Instant::now()));
                        break Fault::NoAnswer("an answer for another lease".into());
                    }
                    request.reply(Ok(if answer.ttl() > 0 { Outcome::Alive } else { Outcome::Gone }));
                }
                Ok(None) => break Fault::NoAnswer("the server ended the stream".into()),
                Err(error) => break Fault::from(error),
            },
            () = passed(oldest_due) => break no_answer(),
        }
    };
    for (request, _) in unanswered {
        request.reply(Err(fault.clone()));
    }
}

impl Request {
    fn reply(self, outcome: Result<Outcome, Fault>) {
        // The caller may have stopped waiting.
        let _ = self.answer.send(outcome);
    }
}

/// Waits for an instant, for ever if there is none.
async fn passed(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

fn no_answer() -> Fault {
    Fault::NoAnswer("no answer in time".into())
}
