//! Gaps between tokens without a step per token.
//!
//! While a request decodes it gets one token at the end of every pass of its rank, so the gaps between its tokens are the
//! distances between the ends of those passes. The timeline keeps the ends of passes as long as a request whose tokens
//! began there is in flight; when a request completes it adds itself to the passes it spans by two marks, and a pass that
//! nobody can refer to any more is handed on once, with the number of requests it counts for.

use std::collections::VecDeque;

use crate::types::SimTime;

#[derive(Debug, Clone, Copy)]
struct Entry {
    end: SimTime,
    /// Change of the number of counted requests from this pass on.
    change: i32,
    /// Requests in flight with a stretch of tokens that begins here.
    open: u32,
}

/// Ends of the passes of one rank.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    entries: VecDeque<Entry>,
    /// Number of the first entry.
    base: u64,
    before: SimTime,
    counted: i64,
    /// Change that belongs to the pass after the last one.
    next_change: i32,
}

impl Timeline {
    /// Notes the end of a pass and hands on, as (gap in ns, requests), what is settled.
    pub(crate) fn push(&mut self, end: SimTime, settled: impl FnMut(u64, u64)) {
        self.entries.push_back(Entry {
            end,
            change: std::mem::take(&mut self.next_change),
            open: 0,
        });
        if self.entries.len() > 1 {
            self.settle(1, settled);
        }
    }

    /// Hands on everything; nobody may be in flight who still counts.
    pub(crate) fn finish(&mut self, settled: impl FnMut(u64, u64)) {
        for entry in &mut self.entries {
            entry.open = 0;
        }
        self.settle(0, settled);
    }

    fn settle(&mut self, keep: usize, mut settled: impl FnMut(u64, u64)) {
        while self.entries.len() > keep
            && let Some(entry) = self.entries.front()
            && entry.open == 0
        {
            self.counted += i64::from(entry.change);
            let requests = u64::try_from(self.counted).unwrap_or(0);
            if requests > 0 {
                settled(entry.end.nanos_since(self.before), requests);
            }
            self.before = entry.end;
            self.base += 1;
            self.entries.pop_front();
        }
    }

    /// Number of the last pass.
    pub(crate) fn last(&self) -> u64 {
        (self.base + self.entries.len() as u64).saturating_sub(1)
    }

    fn entry(&mut self, pass: u64) -> Option<&mut Entry> {
        let at = usize::try_from(pass.checked_sub(self.base)?).ok()?;
        self.entries.get_mut(at)
    }

    /// End of a pass that is kept.
    pub(crate) fn end(&self, pass: u64) -> Option<SimTime> {
        let at = usize::try_from(pass.checked_sub(self.base)?).ok()?;
        self.entries.get(at).map(|entry| entry.end)
    }

    /// A stretch of tokens begins at the end of the last pass; returns its number.
    pub(crate) fn open(&mut self) -> u64 {
        let pass = self.last();
        if let Some(entry) = self.entry(pass) {
            entry.open += 1;
        }
        pass
    }

    /// A stretch that began at pass `first` is over and done with.
    pub(crate) fn close(&mut self, first: u64) {
        if let Some(entry) = self.entry(first) {
            entry.open -= 1;
        }
    }

    /// Counts one gap at the end of each pass after `first` up to `last`; call before [`Self::close`].
    pub(crate) fn count(&mut self, first: u64, last: u64) {
        if last <= first {
            return;
        }
        if let Some(entry) = self.entry(first + 1) {
            entry.change += 1;
        }
        match self.entry(last + 1) {
            Some(entry) => entry.change -= 1,
            None => self.next_change -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_counted_once_per_completed_request_that_spans_them() {
        let mut gaps = Vec::new();
        let mut line = Timeline::default();
        let mut push =
            |line: &mut Timeline, end| line.push(SimTime::of_nanos(end), |gap, requests| gaps.push((gap, requests)));
        push(&mut line, 10);
        let a = line.open();
        push(&mut line, 15);
        let b = line.open();
        push(&mut line, 22);
        line.count(a, line.last());
        line.close(a);
        push(&mut line, 30);
        line.close(b);
        push(&mut line, 100);
        line.finish(|gap, requests| gaps.push((gap, requests)));
        assert_eq!(gaps, [(5, 1), (7, 1)]);
    }

    #[test]
    fn only_passes_that_someone_may_refer_to_are_kept() {
        let mut line = Timeline::default();
        for end in 1..1000 {
            line.push(SimTime::of_nanos(end), |_, _| {});
            assert_eq!(line.entries.len(), 1);
        }
        let first = line.open();
        (1000..1010).for_each(|end| line.push(SimTime::of_nanos(end), |_, _| {}));
        assert_eq!(
            (line.entries.len(), line.end(first)),
            (11, Some(SimTime::of_nanos(999)))
        );
    }
}
