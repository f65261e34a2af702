//! What the decode side has cached need not travel.

use ghostfleet::transport::rendezvous::link::Link;
use ghostfleet::transport::rendezvous::wire::{Action, ActionAck, Command, Fact, Message, Outcome};
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::legs::{Handoff, INSTANT, Pair, end, prompt};
use crate::peers::{Source, hear, runtime};

/// Reserves, and says how many tokens would have to travel.
fn reserve(runtime: &Runtime, link: &mut Link, handoff_id: Uuid) -> u32 {
    let action = Action {
        id: 1,
        action: Command::ReserveDestination { handoff_id },
    };
    assert!(link.outbox.say(Message::Action(action)));
    let accepted = Message::ActionAck(ActionAck {
        action_id: 1,
        outcome: Outcome::Accepted,
    });
    assert_eq!(hear(runtime, link), Some(accepted));
    match hear(runtime, link) {
        Some(Message::Fact(Fact::DestinationReserved {
            handoff_id: about,
            transferable_prompt_tokens,
        })) if about == handoff_id => transferable_prompt_tokens,
        other => panic!("no reservation: {other:?}"),
    }
}

#[test]
fn a_prefix_that_the_decode_worker_has_does_not_travel_again() {
    let pair = Pair::start(INSTANT);
    let runtime = runtime();
    let source = Source::start(&runtime);
    let mut missing = Vec::new();
    for len in [30, 30, 40] {
        let handoff = Handoff::new();
        let answer = pair.decode_from(&source, &handoff, &prompt(1, len));
        let mut link = source.receive().link;
        missing.push(reserve(&runtime, &mut link, handoff.id));
        pair.scene.until("a reservation that waits for its KV", |scene| {
            scene.worker(1).ranks[0].load.waiting == 1
        });
        let action = Action {
            id: 3,
            action: Command::ActivateDestination { handoff_id: handoff.id },
        };
        assert!(link.outbox.say(Message::Action(action)));
        let applied = Message::ActionAck(ActionAck {
            action_id: 3,
            outcome: Outcome::Applied,
        });
        assert_eq!(hear(&runtime, &mut link), Some(applied));
        assert!(link.outbox.say(Message::Complete));
        let outcome = end(answer);
        assert_eq!((outcome.tokens.len(), outcome.error), (3, None));
        pair.scene.until_nothing_is_left();
    }
    // Blocks of four tokens: 8 of them hold 30 tokens, of which 7 are full and stay; 10 hold 40.
    assert_eq!(missing, [32, 4, 12]);
    let active = pair.scene.worker(1);
    assert_eq!(active.handoffs.completed_total, 3);
}

#[test]
fn a_cancelled_reservation_is_free_at_once() {
    let pair = Pair::start(INSTANT);
    let runtime = runtime();
    let source = Source::start(&runtime);
    let handoff = Handoff::new();
    let answer = pair.decode_from(&source, &handoff, &prompt(1, 30));
    let mut link = source.receive().link;
    reserve(&runtime, &mut link, handoff.id);
    let action = Action {
        id: 2,
        action: Command::CancelDestination { handoff_id: handoff.id },
    };
    assert!(link.outbox.say(Message::Action(action)));
    let error = crate::legs::error_of(&end(answer));
    assert!(error.contains("cancelled by the prefill worker"), "{error}");
    pair.scene.until_nothing_is_left();
}
