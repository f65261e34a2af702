//! A handoff from the source's side, step by step: given what has happened, what is to be done next. Decides and never
//! acts.
//!
//! | Step | Source first (vLLM) | Destination first (SGLang) |
//! |---|---|---|
//! | 0 | compute the prompt | reserve |
//! | 1 | reserve | compute the prompt |
//! | 2 | transfer | transfer |
//! | 3 | activate | activate |
//! | 4, 5 | release the source, complete | release the source, complete |
//!
//! Steps are numbered on the wire, the source's own included. Source: Dynamo 1.6.1.

use std::time::Duration;

use uuid::Uuid;

use crate::engine::KvTransfer;
use crate::transport::rendezvous::wire::{
    Action, ActionAck, Command, Fact, Message, Order, Outcome, TimingMode, TransferTiming,
};
use crate::types::SimTime;

/// How long a worker's transfers take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TransferModel {
    /// Bytes and bandwidth.
    pub link: KvTransfer,
    /// Which tokens count.
    pub mode: TimingMode,
}

impl TransferModel {
    /// Time for a prompt of which the destination misses `missing` tokens.
    fn duration(&self, prompt_tokens: u32, missing: u32) -> Duration {
        self.link.duration(match self.mode {
            TimingMode::FullPrompt => prompt_tokens,
            TimingMode::DestinationMissing => missing,
        })
    }

    /// What the destination is told.
    fn timing(&self, prompt_tokens: u32) -> TransferTiming {
        TransferTiming {
            mode: self.mode,
            full_prompt_tokens: prompt_tokens,
            kv_bytes_per_token: self.link.bytes_per_token,
            bandwidth_gb_s: self.link.bandwidth_gb_s,
        }
    }
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Let the engine compute the prompt.
    SubmitSource,
    /// Tell the destination.
    Say(Message),
    /// The KV travels until then.
    TransferUntil(SimTime),
    /// Free the source's blocks and end its answer.
    ReleaseSource,
    /// The handoff is over.
    End,
}

/// The handoff cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    /// The destination says something that makes no sense now.
    #[error("destination broke the handoff protocol: {0}")]
    Protocol(&'static str),
    /// The destination cannot do its part.
    #[error("destination failed: {0}")]
    Destination(String),
}

/// Where the handoff stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The prompt is being computed; in the order of SGLang the destination has its blocks.
    Computing,
    /// The destination was asked for blocks under this number.
    Reserving { action: u32, accepted: bool },
    /// The KV is on its way.
    Transferring,
    /// The destination was told that the KV is there, under this number.
    Activating { action: u32 },
}

/// Largest block of any engine, tokens: a destination's figure is rounded up to its own blocks.
const LARGEST_BLOCK: u32 = 1024;

/// One handoff.
#[derive(Debug)]
pub(super) struct Session {
    handoff_id: Uuid,
    order: Order,
    transfer: TransferModel,
    next_action: u32,
    stage: Stage,
    /// When the prompt was computed, and its length.
    held: Option<(SimTime, u32)>,
    /// When blocks were set aside, and the tokens to fill.
    reserved: Option<(SimTime, u32)>,
}

impl Session {
    /// A handoff whose two sides have met, and its first steps.
    pub(super) fn begin(handoff_id: Uuid, order: Order, transfer: TransferModel) -> (Self, Vec<Step>) {
        let mut session = Self {
            handoff_id,
            order,
            transfer,
            next_action: 0,
            stage: Stage::Computing,
            held: None,
            reserved: None,
        };
        let steps = match order {
            Order::SourceFirst => vec![session.submit()],
            Order::DestinationFirst => vec![session.reserve()],
        };
        (session, steps)
    }

    /// The prompt is computed.
    pub(super) fn held(&mut self, at: SimTime, prompt_tokens: u32) -> Vec<Step> {
        self.held = Some((at, prompt_tokens));
        let mut steps = vec![Step::Say(Message::Fact(Fact::SourceHeld {
            handoff_id: self.handoff_id,
            transfer_timing: self.transfer.timing(prompt_tokens),
        }))];
        match self.order {
            Order::SourceFirst => steps.push(self.reserve()),
            Order::DestinationFirst => steps.extend(self.transfer()),
        }
        steps
    }

    /// The KV has arrived.
    pub(super) fn transferred(&mut self) -> Vec<Step> {
        let action = self.number();
        self.stage = Stage::Activating { action };
        vec![self.command(
            action,
            Command::ActivateDestination {
                handoff_id: self.handoff_id,
            },
        )]
    }

    /// The destination said something.
    ///
    /// # Errors
    /// [`Broken`] ends the handoff.
    pub(super) fn heard(&mut self, message: Message, now: SimTime) -> Result<Vec<Step>, Broken> {
        match message {
            Message::ActionAck(ActionAck { action_id, outcome }) => self.acked(action_id, outcome),
            Message::Fact(Fact::DestinationReserved {
                handoff_id,
                transferable_prompt_tokens,
            }) => {
                if handoff_id != self.handoff_id {
                    return Err(Broken::Protocol("a fact of another handoff"));
                }
                let Stage::Reserving { accepted: true, .. } = self.stage else {
                    return Err(Broken::Protocol("blocks that nobody asked for"));
                };
                self.reserved = Some((now, transferable_prompt_tokens));
                Ok(match self.order {
                    Order::SourceFirst => self.transfer(),
                    Order::DestinationFirst => vec![self.submit()],
                })
            }
            Message::Abort { message } | Message::ProtocolError { message } => Err(Broken::Destination(message)),
            Message::Overloaded => Err(Broken::Destination("too many handoffs".to_owned())),
            Message::Register(_) | Message::Registered | Message::Action(_) | Message::Complete => {
                Err(Broken::Protocol("a message that only a source may send"))
            }
            Message::Fact(Fact::SourceHeld { .. }) => Err(Broken::Protocol("a fact that only a source may state")),
        }
    }

    fn acked(&mut self, id: u32, outcome: Outcome) -> Result<Vec<Step>, Broken> {
        match (&mut self.stage, outcome) {
            (Stage::Reserving { action, accepted }, Outcome::Accepted | Outcome::Applied)
                if *action == id && !*accepted =>
            {
                *accepted = true;
                Ok(Vec::new())
            }
            (Stage::Activating { action }, Outcome::Applied) if *action == id => {
                self.next_action += 2;
                Ok(vec![Step::ReleaseSource, Step::Say(Message::Complete), Step::End])
            }
            (Stage::Activating { action }, Outcome::Accepted) if *action == id => Ok(Vec::new()),
            (Stage::Reserving { action, .. } | Stage::Activating { action }, Outcome::Failed(why)) if *action == id => {
                Err(Broken::Destination(why))
            }
            (Stage::Reserving { action, .. } | Stage::Activating { action }, Outcome::Noop) if *action == id => {
                Err(Broken::Destination("the request is gone there".to_owned()))
            }
            _ => Err(Broken::Protocol("an answer to no question")),
        }
    }

    fn number(&mut self) -> u32 {
        let number = self.next_action;
        self.next_action += 1;
        number
    }

    fn submit(&mut self) -> Step {
        self.number();
        self.stage = Stage::Computing;
        Step::SubmitSource
    }

    fn reserve(&mut self) -> Step {
        let action = self.number();
        self.stage = Stage::Reserving {
            action,
            accepted: false,
        };
        let handoff_id = self.handoff_id;
        self.command(action, Command::ReserveDestination { handoff_id })
    }

    #[allow(clippy::unused_self)] // reads as what the source does
    fn command(&self, id: u32, action: Command) -> Step {
        Step::Say(Message::Action(Action { id, action }))
    }

    /// Starts once both facts are known.
    fn transfer(&mut self) -> Vec<Step> {
        let (Some((held_at, prompt)), Some((reserved_at, missing))) = (self.held, self.reserved) else {
            return Vec::new();
        };
        self.number();
        self.stage = Stage::Transferring;
        // A peer's figure does not hold the source's blocks for longer than its whole prompt would.
        let missing = missing.min(prompt.saturating_add(LARGEST_BLOCK));
        let ends_at = held_at.max(reserved_at) + self.transfer.duration(prompt, missing);
        vec![Step::TransferUntil(ends_at)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: Uuid = Uuid::from_u128(7);

    fn model(mode: TimingMode) -> TransferModel {
        TransferModel {
            link: KvTransfer {
                bytes_per_token: Some(1_000_000),
                bandwidth_gb_s: Some(1.0),
            },
            mode,
        }
    }

    fn ms(ms: u64) -> SimTime {
        SimTime::of_nanos(ms * 1_000_000)
    }

    fn ack(action_id: u32, outcome: Outcome) -> Message {
        Message::ActionAck(ActionAck { action_id, outcome })
    }

    fn reserved(tokens: u32) -> Message {
        Message::Fact(Fact::DestinationReserved {
            handoff_id: ID,
            transferable_prompt_tokens: tokens,
        })
    }

    fn action(id: u32, action: Command) -> Step {
        Step::Say(Message::Action(Action { id, action }))
    }

    fn reserve(id: u32) -> Step {
        action(id, Command::ReserveDestination { handoff_id: ID })
    }

    fn activate(id: u32) -> Step {
        action(id, Command::ActivateDestination { handoff_id: ID })
    }

    fn is_held_fact(step: &Step) -> bool {
        matches!(step, Step::Say(Message::Fact(Fact::SourceHeld { .. })))
    }

    #[test]
    fn vllm_computes_first_and_numbers_its_steps_as_recorded() {
        let (mut session, steps) = Session::begin(ID, Order::SourceFirst, model(TimingMode::FullPrompt));
        assert_eq!(steps, [Step::SubmitSource]);
        let steps = session.held(ms(20), 27);
        assert!(is_held_fact(&steps[0]));
        assert_eq!(steps[1..], [reserve(1)]);
        assert_eq!(session.heard(ack(1, Outcome::Accepted), ms(21)), Ok(vec![]));
        assert_eq!(
            session.heard(reserved(32), ms(30)),
            Ok(vec![Step::TransferUntil(ms(57))])
        );
        assert_eq!(session.transferred(), [activate(3)]);
        let end = [Step::ReleaseSource, Step::Say(Message::Complete), Step::End];
        assert_eq!(session.heard(ack(3, Outcome::Applied), ms(58)), Ok(end.to_vec()));
    }

    #[test]
    fn sglang_reserves_first_and_transfers_from_when_the_prompt_is_computed() {
        let (mut session, steps) = Session::begin(ID, Order::DestinationFirst, model(TimingMode::DestinationMissing));
        assert_eq!(steps, [reserve(0)]);
        assert_eq!(session.heard(ack(0, Outcome::Accepted), ms(1)), Ok(vec![]));
        assert_eq!(session.heard(reserved(16), ms(2)), Ok(vec![Step::SubmitSource]));
        let steps = session.held(ms(20), 27);
        assert!(is_held_fact(&steps[0]));
        assert_eq!(steps[1..], [Step::TransferUntil(ms(36))]);
        assert_eq!(session.transferred(), [activate(3)]);
    }

    #[test]
    fn a_destination_cannot_hold_the_source_for_ever() {
        let (mut session, _) = Session::begin(ID, Order::SourceFirst, model(TimingMode::DestinationMissing));
        session.held(ms(0), 10);
        session.heard(ack(1, Outcome::Accepted), ms(0)).unwrap();
        let longest = ms(10 + u64::from(LARGEST_BLOCK));
        assert_eq!(
            session.heard(reserved(u32::MAX), ms(0)),
            Ok(vec![Step::TransferUntil(longest)])
        );
    }

    #[test]
    fn what_makes_no_sense_or_says_no_ends_the_handoff() {
        let begun = || {
            let (mut session, _) = Session::begin(ID, Order::SourceFirst, model(TimingMode::FullPrompt));
            session.held(ms(0), 10);
            session
        };
        for message in [
            ack(2, Outcome::Accepted),
            reserved(16),
            Message::Complete,
            Message::Registered,
            Message::Fact(Fact::DestinationReserved {
                handoff_id: Uuid::nil(),
                transferable_prompt_tokens: 1,
            }),
        ] {
            let broken = begun().heard(message.clone(), ms(1));
            assert!(matches!(broken, Err(Broken::Protocol(_))), "{message:?}: {broken:?}");
        }
        for message in [
            ack(1, Outcome::Failed("full".to_owned())),
            ack(1, Outcome::Noop),
            Message::Abort {
                message: "no".to_owned(),
            },
            Message::Overloaded,
        ] {
            let broken = begun().heard(message.clone(), ms(1));
            assert!(matches!(broken, Err(Broken::Destination(_))), "{message:?}: {broken:?}");
        }
        let mut twice = begun();
        twice.heard(ack(1, Outcome::Accepted), ms(1)).unwrap();
        assert!(twice.heard(ack(1, Outcome::Accepted), ms(1)).is_err());
        assert!(twice.heard(ack(1, Outcome::Applied), ms(1)).is_err());
    }
}
