//! Stop strings in a stream of text.

/// Looks for stop strings and holds back text that may turn out to be the beginning of one.
#[derive(Debug, Clone)]
pub(super) struct StopMatcher {
    stops: std::sync::Arc<[String]>,
    include_stop: bool,
    held: String,
}

impl StopMatcher {
    /// `stops` are not empty strings. `include_stop`: the stop string itself belongs to the answer.
    pub(super) fn new(stops: std::sync::Arc<[String]>, include_stop: bool) -> Self {
        Self {
            stops,
            include_stop,
            held: String::new(),
        }
    }

    /// Takes text; returns what may be told, and the stop string that ended the answer.
    pub(super) fn push(&mut self, text: &str) -> (String, Option<String>) {
        if self.stops.is_empty() {
            return (text.to_owned(), None);
        }
        self.held.push_str(text);
        let found = self
            .stops
            .iter()
            .filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        if let Some((at, stop)) = found.min_by_key(|(at, _)| *at) {
            let stop = stop.clone();
            let end = if self.include_stop { at + stop.len() } else { at };
            let mut told = std::mem::take(&mut self.held);
            told.truncate(end);
            return (told, Some(stop));
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| overlap(&self.held, stop))
            .max()
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), None)
    }

    /// The answer ended another way: what was held back belongs to it.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length of the longest end of `text` that is a proper beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    let fits = |len: &usize| stop.is_char_boundary(*len) && text.as_bytes().ends_with(&stop.as_bytes()[..*len]);
    (1..=longest).rev().find(fits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], include: bool, pieces: &[&str]) -> (Vec<String>, Option<String>, String) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut matcher = StopMatcher::new(stops.into(), include);
        let mut told = Vec::new();
        for piece in pieces {
            let (text, stop) = matcher.push(piece);
            told.push(text);
            if stop.is_some() {
                return (told, stop, String::new());
            }
        }
        let rest = matcher.finish();
        (told, None, rest)
    }

    #[test]
    fn a_stop_string_over_several_pieces_is_cut_off() {
        let (told, stop, _) = run(&["END"], false, &["one E", "N", "D two"]);
        assert_eq!((told.concat().as_str(), stop.as_deref()), ("one ", Some("END")));
        let (told, stop, _) = run(&["END"], true, &["one E", "N", "D two"]);
        assert_eq!((told.concat().as_str(), stop.as_deref()), ("one END", Some("END")));
    }

    #[test]
    fn only_a_possible_beginning_is_held_back() {
        let (told, stop, rest) = run(&["END", "\n\n"], false, &["an E", "gg\n", "x", "E"]);
        assert_eq!(told, ["an ", "Egg", "\nx", ""]);
        assert_eq!((stop, rest.as_str()), (None, "E"));
    }

    #[test]
    fn the_earliest_stop_string_wins() {
        let (told, stop, _) = run(&["later", "so"], false, &["abc so and later"]);
        assert_eq!((told.concat().as_str(), stop.as_deref()), ("abc ", Some("so")));
    }

    #[test]
    fn characters_are_not_split() {
        let (told, stop, rest) = run(
            &["\u{6771}\u{4eac}"],
            false,
            &["a\u{6771}", "b", "\u{6771}", "\u{4eac}c"],
        );
        assert_eq!(
            (told.concat().as_str(), stop.is_some(), rest.as_str()),
            ("a\u{6771}b", true, "")
        );
        // The first two bytes are the same as those of the stop string.
        let (told, ..) = run(&["\u{6771}"], false, &["\u{6770}"]);
        assert_eq!(told.concat(), "\u{6770}");
    }
}
