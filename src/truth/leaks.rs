//! What is still held although nobody should hold anything any more.
//!
//! One look is not enough: a stream may be closing just then. So the fleet is looked at several times after the last
//! request has ended, and what is there every time has leaked.

use std::collections::BTreeMap;

use serde::Serialize;

/// What was held at one moment, by whom. Holders are actor paths, or names of others that hold things on behalf of
/// requests (a router's slots, say).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held(BTreeMap<(String, &'static str), u64>);

impl Held {
    /// Notes that `holder` holds `count` of `what`: `streams`, `sequences`, `blocks`, `rooms`, `slots`.
    pub fn note(&mut self, holder: &str, what: &'static str, count: u64) {
        if count > 0 {
            *self.0.entry((holder.to_owned(), what)).or_default() += count;
        }
    }
}

/// Something that has leaked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leak {
    /// Who holds it.
    pub holder: String,
    /// What it is.
    pub what: &'static str,
    /// How many, at least.
    pub count: u64,
}

/// Everything that has leaked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Leaks {
    /// All of it.
    pub total: u64,
    /// By what it is.
    pub by_kind: BTreeMap<&'static str, u64>,
    /// By holder.
    pub leaks: Vec<Leak>,
}

/// What is held in each of the looks. Without any look nothing is known, which counts as nothing.
pub fn leaked(looks: &[Held]) -> Leaks {
    let Some((first, rest)) = looks.split_first() else {
        return Leaks::default();
    };
    let mut leaks = Leaks::default();
    for (key, count) in &first.0 {
        let least = rest
            .iter()
            .map(|look| look.0.get(key).copied().unwrap_or(0))
            .fold(*count, u64::min);
        if least > 0 {
            let (holder, what) = key;
            leaks.total += least;
            *leaks.by_kind.entry(what).or_default() += least;
            leaks.leaks.push(Leak {
                holder: holder.clone(),
                what,
                count: least,
            });
        }
    }
    leaks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_every_time_has_leaked_and_what_passes_by_has_not() {
        let mut looks = vec![Held::default(); 3];
        for (look, blocks) in looks.iter_mut().zip([5, 3, 4]) {
            look.note("w1/r0", "blocks", blocks);
            look.note("w0", "streams", 0);
        }
        looks[0].note("w0", "streams", 2);
        looks[2].note("router", "slots", 1);
        let leaks = leaked(&looks);
        assert_eq!((leaks.total, leaks.leaks.len()), (3, 1));
        assert_eq!(leaks.by_kind, BTreeMap::from([("blocks", 3)]));
        assert_eq!((leaks.leaks[0].holder.as_str(), leaks.leaks[0].count), ("w1/r0", 3));
        assert_eq!(leaked(&looks[1..2]).total, 3);
        assert_eq!(leaked(&[]), Leaks::default());
    }
}
