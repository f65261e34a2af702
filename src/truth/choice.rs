//! A router that only routes: what it believes is inferred from where it sends prompts, and from how much of them it says
//! is cached there.
//!
//! A probe is a prompt of which the truth is known. One whose beginning exactly one rank has must go there, other things
//! being equal; one that nobody has must be reported as a miss. Probes are best sent while the fleet is idle, as load
//! moves choices too, and one after the other.

use serde::Serialize;

use super::SAMPLES;
use super::cache::{Caches, RankId};
use crate::types::SequenceHash;

/// One probe and what the router did with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Name of the request.
    pub request: String,
    /// Full blocks of the prompt, root first.
    pub blocks: Vec<SequenceHash>,
    /// Where it went; `None`: the router does not say.
    pub chosen: Option<RankId>,
    /// Blocks of it that the router says are cached there; `None`: it does not say.
    pub reported: Option<u32>,
    /// Whether the probe itself brought the prompt to the fleet, so that only the truth from before it counts.
    pub is_first: bool,
}

/// What was wrong with a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Slip {
    /// One rank has the prompt's beginning, and another was chosen.
    Astray,
    /// The chosen rank has less than the router believes.
    Overstated,
    /// The chosen rank has more than the router believes.
    Understated,
    /// There is no such rank.
    Nobody,
}

/// A wrong choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WrongChoice {
    /// Name of the request.
    pub request: String,
    /// What was wrong.
    pub slip: Slip,
    /// Rank that was chosen, by path or by name.
    pub chosen: Option<String>,
    /// Rank that has the prompt, if exactly one has.
    pub holder: Option<String>,
    /// Blocks that the chosen rank has.
    pub true_blocks: u32,
    /// Blocks that the router believes are there.
    pub reported: Option<u32>,
}

/// What the choices of a router tell of its index.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Choices {
    /// Probes that say something: the router said where they went or what is cached.
    pub probes: u64,
    /// Those of which exactly one rank had the beginning.
    pub with_holder: u64,
    /// Blocks that the router does not know of: not reported, or on a holder that was passed over.
    pub missing: u64,
    /// Blocks that the router reported and the chosen rank did not have.
    pub phantom: u64,
    /// Wrong choices.
    pub wrong: u64,
    /// Wrong choices out of the probes; 0 to 1.
    pub share: f64,
    /// A few of them.
    pub samples: Vec<WrongChoice>,
}

/// Judges choices by the truth from before and after them; where the two differ the router may go by either.
#[allow(clippy::cast_precision_loss)]
pub fn judge(before: &Caches, probes: &[Probe], after: &Caches) -> Choices {
    let mut choices = Choices::default();
    for probe in probes {
        if probe.chosen.is_none() && probe.reported.is_none() {
            continue;
        }
        choices.probes += 1;
        let after = if probe.is_first { before } else { after };
        let alone = holder(before, &probe.blocks).filter(|held| Some(*held) == holder(after, &probe.blocks));
        choices.with_holder += u64::from(alone.is_some());
        let path = |id: RankId| {
            let cache = after.ranks.get(&id).or_else(|| before.ranks.get(&id));
            cache.map_or_else(|| id.to_string(), |cache| cache.path.clone())
        };
        let has = |caches: &Caches, id: RankId| {
            let blocks = caches.ranks.get(&id).map(|cache| cache.prefix(&probe.blocks));
            blocks.map(|blocks| u32::try_from(blocks).unwrap_or(u32::MAX))
        };
        let at_chosen = probe.chosen.map(|id| (has(before, id), has(after, id)));
        let (least, most) = match at_chosen {
            Some((Some(was), Some(is))) => (was.min(is), was.max(is)),
            Some((Some(blocks), None) | (None, Some(blocks))) => (0, blocks),
            Some((None, None)) | None => (0, 0),
        };
        let fault = match (probe.reported, alone, probe.chosen) {
            (_, _, Some(_)) if at_chosen == Some((None, None)) => {
                choices.phantom += u64::from(probe.reported.unwrap_or(0));
                Slip::Nobody
            }
            (Some(reported), _, Some(_)) if reported > most => {
                choices.phantom += u64::from(reported - most);
                Slip::Overstated
            }
            (Some(reported), _, Some(_)) if reported < least => {
                choices.missing += u64::from(least - reported);
                Slip::Understated
            }
            (_, Some((held, blocks)), Some(chosen)) if held != chosen => {
                choices.missing += u64::from(blocks);
                Slip::Astray
            }
            (_, _, Some(_) | None) => continue,
        };
        choices.wrong += 1;
        if choices.samples.len() < SAMPLES {
            choices.samples.push(WrongChoice {
                request: probe.request.clone(),
                slip: fault,
                chosen: probe.chosen.map(path),
                holder: alone.map(|(id, _)| path(id)),
                true_blocks: least,
                reported: probe.reported,
            });
        }
    }
    if choices.probes > 0 {
        choices.share = choices.wrong as f64 / choices.probes as f64;
    }
    choices
}

/// What a router believes of prompts, whatever has moved its choices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Beliefs {
    /// Probes that say it.
    pub probes: u64,
    /// Blocks that the chosen ranks have.
    pub true_blocks: u64,
    /// Those of them that the router does not know.
    pub missing: u64,
    /// Blocks that it believes in and that the chosen ranks do not have.
    pub phantom: u64,
}

/// Holds what a router says of the ranks that it has chosen against two pictures of the truth from before it was asked;
/// where they differ it may go by either. Other than [`judge`] this says nothing of the choices themselves, and so holds
/// under load too.
pub fn beliefs(earlier: &Caches, probes: &[Probe], now: &Caches) -> Beliefs {
    let mut beliefs = Beliefs::default();
    for probe in probes {
        let (Some(chosen), Some(reported)) = (probe.chosen, probe.reported) else {
            continue;
        };
        let has = |caches: &Caches| {
            let blocks = caches.ranks.get(&chosen).map_or(0, |cache| cache.prefix(&probe.blocks));
            u64::try_from(blocks).unwrap_or(u64::MAX)
        };
        let (was, is, reported) = (has(earlier), has(now), u64::from(reported));
        beliefs.probes += 1;
        beliefs.true_blocks += was.min(is);
        beliefs.missing += was.min(is).saturating_sub(reported);
        beliefs.phantom += reported.saturating_sub(was.max(is));
    }
    beliefs
}

/// The only rank that has the beginning of a prompt, and how much of it.
fn holder(caches: &Caches, blocks: &[SequenceHash]) -> Option<(RankId, u32)> {
    let first = blocks.first()?;
    let mut holders = caches.ranks.iter().filter(|(_, cache)| cache.get(*first).is_some());
    let (id, cache) = holders.next()?;
    let blocks = u32::try_from(cache.prefix(blocks)).unwrap_or(u32::MAX);
    holders.next().is_none().then_some((*id, blocks))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caches(ranks: &[&[u64]]) -> Caches {
        let ranks: Vec<_> = (0..).zip(ranks.iter().copied()).collect();
        Caches::sample(&ranks)
    }

    fn probe(blocks: &[u64], chosen: u32, reported: Option<u32>) -> Probe {
        Probe {
            request: "p".to_owned(),
            blocks: blocks.iter().copied().map(SequenceHash).collect(),
            chosen: Some(RankId::new(7, chosen)),
            reported,
            is_first: false,
        }
    }

    fn fault(truth: &Caches, probe: Probe) -> Option<Slip> {
        judge(truth, &[probe], truth).samples.first().map(|wrong| wrong.slip)
    }

    #[test]
    fn a_prompt_that_one_rank_has_must_go_there() {
        let truth = caches(&[&[1, 2, 3], &[8]]);
        assert_eq!(fault(&truth, probe(&[1, 2, 3], 0, None)), None);
        assert_eq!(fault(&truth, probe(&[1, 2, 3], 1, None)), Some(Slip::Astray));
        assert_eq!(
            fault(&truth, probe(&[5, 6], 1, None)),
            None,
            "nobody has it: any choice is good"
        );
        let both = caches(&[&[1, 2], &[1]]);
        assert_eq!(
            fault(&both, probe(&[1, 2], 1, None)),
            None,
            "load may speak for the other"
        );
        let judged = judge(&truth, &[probe(&[1, 2, 3], 1, Some(0))], &truth);
        assert_eq!((judged.with_holder, judged.missing, judged.wrong), (1, 3, 1));
    }

    #[test]
    fn what_a_router_reports_must_be_there() {
        let truth = caches(&[&[1, 2, 3], &[8]]);
        assert_eq!(fault(&truth, probe(&[1, 2, 3, 4], 0, Some(3))), None);
        assert_eq!(fault(&truth, probe(&[1, 2, 3, 4], 0, Some(4))), Some(Slip::Overstated));
        assert_eq!(fault(&truth, probe(&[1, 2, 3, 4], 0, Some(1))), Some(Slip::Understated));
        assert_eq!(
            fault(&truth, probe(&[5, 6], 1, Some(2))),
            Some(Slip::Overstated),
            "cached nowhere"
        );
        assert_eq!(fault(&truth, probe(&[5, 6], 4, Some(2))), Some(Slip::Nobody));
        let judged = judge(&truth, &[probe(&[5, 6], 1, Some(2)), probe(&[8], 1, Some(1))], &truth);
        assert_eq!((judged.probes, judged.phantom, judged.wrong), (2, 2, 1));
        assert!((judged.share - 0.5).abs() < f64::EPSILON);
    }

    #[test]
    fn beliefs_are_held_against_what_the_chosen_rank_had() {
        let truth = caches(&[&[1, 2, 3], &[8]]);
        let silent = Probe {
            reported: None,
            ..probe(&[1, 2, 3], 0, None)
        };
        // The choice itself does not matter.
        let probes = [
            probe(&[1, 2, 3, 4], 0, Some(2)),
            probe(&[1, 2], 1, Some(2)),
            probe(&[8], 1, Some(1)),
            probe(&[8], 7, Some(1)),
            silent,
        ];
        let found = beliefs(&truth, &probes, &truth);
        let expected = Beliefs {
            probes: 4,
            true_blocks: 4,
            missing: 1,
            phantom: 3,
        };
        assert_eq!(found, expected);
        let cleared = caches(&[&[], &[]]);
        let found = beliefs(&truth, &[probe(&[1, 2, 3], 0, Some(2))], &cleared);
        assert_eq!(
            (found.missing, found.phantom, found.true_blocks),
            (0, 0, 0),
            "it has just gone"
        );
    }

    #[test]
    fn what_changed_meanwhile_may_be_either_way() {
        let (before, after) = (caches(&[&[1, 2, 3], &[]]), caches(&[&[], &[]]));
        for reported in 0..=3 {
            let judged = judge(&before, &[probe(&[1, 2, 3], 0, Some(reported))], &after);
            assert_eq!(judged.wrong, 0, "{reported}");
        }
        assert_eq!(judge(&before, &[probe(&[1, 2, 3], 1, None)], &after).wrong, 0);
        let first = Probe {
            is_first: true,
            ..probe(&[1, 2, 3], 0, Some(3))
        };
        assert_eq!(
            judge(&after, &[first], &before).wrong,
            1,
            "it brought the blocks itself"
        );
        let silent = Probe {
            chosen: None,
            ..probe(&[1], 0, None)
        };
        assert_eq!(judge(&before, &[silent], &before).probes, 0, "it says nothing");
    }
}
