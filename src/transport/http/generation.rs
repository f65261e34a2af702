//! One HTTP request while its answers are generated: tokens come in, text goes out, choice by choice.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::error::ApiError;
use super::mailbox::{Event, Mailbox};
use super::open::{Caller, OpenRequests, Outcome, Seat};
use super::plan::Plan;
use super::stop::StopMatcher;
use crate::model::detokenize::Detokenizer;
use crate::model::tokenizer::{ModelTokenizer, TokenizeError};
use crate::transport::intake::{Failure, Intake, Leg, Submission};
use crate::types::{DpRank, FinishReason, RequestId, Token};

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finish {
    /// `finish_reason` of the API.
    pub(super) reason: &'static str,
    /// `stop_reason`: what was met.
    pub(super) stop: StopReason,
}

/// What ended an answer with the reason `stop`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(untagged)]
pub(super) enum StopReason {
    /// The model's own end, or no stop at all.
    None,
    /// A stop id.
    Token(Token),
    /// A stop string.
    Text(String),
}

/// What a choice gained.
#[derive(Debug)]
pub(super) struct Delta {
    pub(super) choice: usize,
    pub(super) text: String,
    pub(super) token: Option<Token>,
    /// Characters of the answer before its token.
    pub(super) text_offset: usize,
    pub(super) finish: Option<Finish>,
}

/// Why there is no further answer.
#[derive(Debug)]
pub(super) enum Interrupted {
    /// To be told to the client.
    Failed(Failure),
    /// To be shown by a broken connection.
    Broken,
}

/// Token counts of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt: usize,
    pub(super) completion: usize,
    /// Prompt tokens that came from the prefix cache.
    pub(super) cached: usize,
}

/// The running answers of one request. Dropping it frees what still runs.
pub(super) struct Generation {
    tokenizer: Arc<ModelTokenizer>,
    mailbox: Arc<Mailbox>,
    running: Running,
    choices: Vec<Choice>,
    /// Answers per prompt.
    n: usize,
    prompt_tokens: usize,
    min_tokens: usize,
    include_stop: bool,
    events: Vec<(usize, Event)>,
}

struct Choice {
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    /// Characters so far, those held back included.
    characters: usize,
    completion_tokens: usize,
    cached_tokens: usize,
    ended: bool,
}

/// Requests that the worker still holds.
struct Running {
    intake: Arc<dyn Intake>,
    ids: Vec<Option<RequestId>>,
    seat: Seat,
}

impl Running {
    fn cancel(&mut self, choice: usize) {
        if let Some(id) = self.ids[choice].take() {
            self.intake.cancel(id);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for choice in 0..self.ids.len() {
            self.cancel(choice);
        }
    }
}

impl Generation {
    /// Submits every choice of a plan. `open` has the requests of the worker.
    ///
    /// # Errors
    /// The worker's refusal; choices that it had taken are cancelled.
    pub(super) fn start(
        plan: &Plan,
        caller: Caller,
        dp_rank: Option<DpRank>,
        intake: &Arc<dyn Intake>,
        tokenizer: &Arc<ModelTokenizer>,
        open: &Arc<OpenRequests>,
        max_pending: usize,
    ) -> Result<Self, ApiError> {
        let mailbox = Mailbox::new(max_pending);
        let planned = plan.wanted_answer.as_deref().and_then(|name| intake.recorded(name));
        let requests = plan.engine_requests(&caller.id, planned.as_ref());
        // The answers to one prompt share its blocks on one rank.
        let ranks = plan.prompts.iter().map(|_| match plan.n {
            1 => Ok(dp_rank),
            _ => intake.choose_rank(dp_rank).map(Some),
        });
        let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
        let choices = (0..requests.len()).map(|choice| Choice {
            detokenizer: Detokenizer::new(&plan.prompts[choice / plan.n].0, plan.skip_special_tokens),
            matcher: StopMatcher::new(Arc::clone(&plan.stop_strings), plan.include_stop),
            characters: 0,
            completion_tokens: 0,
            cached_tokens: 0,
            ended: false,
        });
        let ids = requests.iter().map(|request| request.id).collect();
        let seat = open.begin(caller, ids, &mailbox);
        let mut generation = Self {
            tokenizer: Arc::clone(tokenizer),
            mailbox: Arc::clone(&mailbox),
            choices: choices.collect(),
            running: Running {
                intake: Arc::clone(intake),
                ids: vec![None; requests.len()],
                seat,
            },
            n: plan.n,
            prompt_tokens: plan.prompts.iter().map(|(ids, _)| ids.len()).sum(),
            min_tokens: plan.stop.min_tokens as usize,
            include_stop: plan.include_stop,
            events: Vec::new(),
        };
        for (choice, request) in requests.into_iter().enumerate() {
            let id = request.id;
            let taken = intake.submit(Submission {
                request,
                dp_rank: ranks[choice / plan.n],
                leg: Leg::Whole,
                sink: mailbox.sink(choice),
            });
            if let Err(refusal) = taken {
                generation.running.seat.outcome = Outcome::Failed;
                return Err(refusal.into());
            }
            generation.running.ids[choice] = Some(id);
        }
        Ok(generation)
    }

    /// Number of choices.
    pub(super) fn choices(&self) -> usize {
        self.choices.len()
    }

    /// Whether every choice has ended.
    pub(super) fn is_done(&self) -> bool {
        self.choices.iter().all(|choice| choice.ended)
    }

    /// Counts so far.
    pub(super) fn usage(&self) -> Usage {
        Usage {
            prompt: self.prompt_tokens,
            completion: self.choices.iter().map(|choice| choice.completion_tokens).sum(),
            // The choices of one prompt share it: what the first found is the request's.
            cached: self
                .choices
                .iter()
                .step_by(self.n)
                .map(|choice| choice.cached_tokens)
                .sum(),
        }
    }

    /// The next gains, one per token; empty when only an admission was told.
    pub(super) fn poll_deltas(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Delta>, Interrupted>> {
        let mut events = std::mem::take(&mut self.events);
        let taken = self.mailbox.poll_take(cx, &mut events);
        let deltas = if taken.is_ready() {
            self.take(&mut events)
        } else {
            Ok(Vec::new())
        };
        events.clear();
        self.events = events;
        ready!(taken);
        if deltas.is_err() {
            self.running.seat.outcome = Outcome::Failed;
        } else if self.is_done() {
            self.running.seat.outcome = Outcome::Completed;
        }
        Poll::Ready(deltas)
    }

    fn take(&mut self, events: &mut Vec<(usize, Event)>) -> Result<Vec<Delta>, Interrupted> {
        let mut deltas = Vec::with_capacity(events.len());
        for (choice, event) in events.drain(..) {
            if self.choices[choice].ended && !matches!(event, Event::Broken) {
                continue;
            }
            match event {
                Event::Admitted(cached) => self.choices[choice].cached_tokens = cached as usize,
                Event::Token(token, finish) => deltas.push(self.token(choice, token, finish)?),
                Event::Finished(finish) => deltas.push(self.end(choice, None, finish)?),
                Event::Failed(failure) => {
                    self.running.ids[choice] = None;
                    return Err(Interrupted::Failed(failure));
                }
                Event::Broken => return Err(Interrupted::Broken),
            }
        }
        Ok(deltas)
    }

    fn token(&mut self, index: usize, token: Token, finish: Option<FinishReason>) -> Result<Delta, Interrupted> {
        self.choices[index].completion_tokens += 1;
        if let Some(finish) = finish {
            return self.end(index, Some(token), finish);
        }
        let choice = &mut self.choices[index];
        let text = choice
            .detokenizer
            .push(&self.tokenizer, token)
            .map_err(|error| broken_text(&error))?;
        let text_offset = choice.count(&text);
        // Text of the first `min_tokens` tokens is no place for a stop.
        if choice.completion_tokens <= self.min_tokens {
            return Ok(Delta {
                choice: index,
                text,
                token: Some(token),
                text_offset,
                finish: None,
            });
        }
        let (text, stop) = choice.matcher.push(&text);
        let finish = stop.map(|stop| Finish {
            reason: "stop",
            stop: StopReason::Text(stop),
        });
        if finish.is_some() {
            choice.ended = true;
            self.running.cancel(index);
        }
        Ok(Delta {
            choice: index,
            text,
            token: Some(token),
            text_offset,
            finish,
        })
    }

    /// The engine's end, with the last token if there is one. A stop string in the last text still wins.
    fn end(&mut self, index: usize, token: Option<Token>, finish: FinishReason) -> Result<Delta, Interrupted> {
        self.running.ids[index] = None;
        let choice = &mut self.choices[index];
        choice.ended = true;
        let told = match finish {
            FinishReason::Length => token,
            // The id that ends an answer is not part of it.
            FinishReason::Eos | FinishReason::Stop => token.filter(|_| self.include_stop),
        };
        let mut rest = match told {
            Some(token) => choice
                .detokenizer
                .push(&self.tokenizer, token)
                .map_err(|error| broken_text(&error))?,
            None => String::new(),
        };
        rest += &choice
            .detokenizer
            .finish(&self.tokenizer)
            .map_err(|error| broken_text(&error))?;
        let text_offset = choice.count(&rest);
        let searched = choice.completion_tokens > self.min_tokens;
        let (mut text, stop) = if searched {
            choice.matcher.push(&rest)
        } else {
            (rest, None)
        };
        let finish = match (stop, finish) {
            (Some(stop), _) => Finish {
                reason: "stop",
                stop: StopReason::Text(stop),
            },
            (None, FinishReason::Eos) => Finish {
                reason: "stop",
                stop: StopReason::None,
            },
            (None, FinishReason::Stop) => Finish {
                reason: "stop",
                stop: token.map_or(StopReason::None, StopReason::Token),
            },
            (None, FinishReason::Length) => Finish {
                reason: "length",
                stop: StopReason::None,
            },
        };
        if !matches!(finish.stop, StopReason::Text(_)) {
            text += &choice.matcher.finish();
        }
        Ok(Delta {
            choice: index,
            text,
            token,
            text_offset,
            finish: Some(finish),
        })
    }
}

impl Choice {
    /// Counts text of one token; returns where it begins.
    fn count(&mut self, text: &str) -> usize {
        let start = self.characters;
        self.characters += text.chars().count();
        start
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}

fn broken_text(error: &TokenizeError) -> Interrupted {
    Interrupted::Failed(Failure::Internal(error.to_string()))
}
