//! Where a value of a document stands in its file: the text is read once more, as only who asks for it needs it.

use std::fmt;
use std::io::{BufReader, Read, Seek};

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A step of a path such as `requests[3].model`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step<'a> {
    Field(&'a str),
    Item(usize),
}

/// Line of the value that `what` speaks of, which begins with its path, in document number `document` of a file, or of the
/// innermost value around it that is there. `None`: the path or the document is none.
pub(super) fn line_of<R: Read + Seek>(file: &mut R, document: u64, what: &str) -> Option<u64> {
    let path = what.split([' ', ':']).next()?;
    let mut steps = steps(path)?;
    // Of a field that is there twice the second one is too many.
    let ordinal = usize::from(what.ends_with("is given twice"));
    while !steps.is_empty() {
        if let Some(line) = find(file, document, &steps, ordinal) {
            return Some(line);
        }
        steps.pop();
    }
    None
}

fn find<R: Read + Seek>(file: &mut R, document: u64, steps: &[Step<'_>], ordinal: usize) -> Option<u64> {
    file.rewind().ok()?;
    let mut json = serde_json::Deserializer::from_reader(BufReader::new(file));
    for _ in 0..document {
        IgnoredAny::deserialize(&mut json).ok()?;
    }
    let error = Way { steps, ordinal }.deserialize(&mut json).err()?;
    // Where the value begins the search ends with an error, which knows the line.
    error.is_data().then_some(error.line() as u64)
}

fn steps(path: &str) -> Option<Vec<Step<'_>>> {
    let mut steps = Vec::new();
    for part in path.split('.') {
        let (name, items) = part.split_once('[').map_or((part, ""), |(name, items)| (name, items));
        if !name.is_empty() {
            steps.push(Step::Field(name));
        }
        for item in items.split('[').filter(|item| !item.is_empty()) {
            steps.push(Step::Item(item.strip_suffix(']')?.parse().ok()?));
        }
    }
    (!steps.is_empty()).then_some(steps)
}

/// The rest of the way to a value.
struct Way<'a> {
    steps: &'a [Step<'a>],
    ordinal: usize,
}

impl<'de> DeserializeSeed<'de> for Way<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.steps.is_empty() {
            return Err(D::Error::custom("here"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Way<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let (Some(Step::Field(name)), rest) = (self.steps.first(), &self.steps[1..]) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let last = rest.is_empty();
            if key != *name || (last && self.ordinal > 0) {
                self.ordinal -= usize::from(key == *name);
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let ordinal = self.ordinal;
            map.next_value_seed(Way { steps: rest, ordinal })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut at = 0;
        loop {
            let here = self.steps.first() == Some(&Step::Item(at));
            at += 1;
            let found = if here {
                let way = Way {
                    steps: &self.steps[1..],
                    ordinal: self.ordinal,
                };
                items.next_element_seed(way)?
            } else {
                items.next_element::<IgnoredAny>()?.map(|_| ())
            };
            if found.is_none() {
                return Ok(());
            }
        }
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    const TEXT: &str = "{\"a\":\n 1,\n\"b\": [\n  {\"c\": 2\n},\n  {\"d\":\n3}]}\n{\"a\": {\n\"x\": 5,\n\"x\": 6\n}}";

    #[test]
    fn a_value_is_found_by_its_path_and_else_what_is_around_it() {
        let line = |document, what| line_of(&mut Cursor::new(TEXT), document, what);
        assert_eq!(line(0, "a is 1"), Some(2));
        assert_eq!(line(0, "b[0].c is 2, expected another"), Some(4));
        assert_eq!(line(0, "b[1].d: no"), Some(7));
        assert_eq!(line(0, "b[0].missing is missing"), Some(4));
        assert_eq!(line(0, "b has 2 entries"), Some(3));
        assert_eq!(line(1, "a.x is 5"), Some(9));
        assert_eq!(line(1, "a.x is given twice"), Some(10));
        assert_eq!(line(0, "missing is missing"), None);
        assert_eq!(line(2, "a is 1"), None);
        assert_eq!(line(0, "b[x] is wrong"), None);
    }
}
