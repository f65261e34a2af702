//! Numbers as the peer's command line takes them: with spaces around them and `_` between digits.

/// The digits of a number, without what may stand around and between them; `None` where a `_` is out of place.
fn bare(text: &str) -> Option<String> {
    let text = text.trim();
    let digit = |at: Option<usize>| {
        at.and_then(|at| text.as_bytes().get(at))
            .is_some_and(u8::is_ascii_digit)
    };
    let in_place = |(at, _): (usize, &str)| digit(at.checked_sub(1)) && digit(Some(at + 1));
    text.match_indices('_').all(in_place).then(|| text.replace('_', ""))
}

/// A whole number from 0 on.
fn natural<T: TryFrom<u64>>(text: &str, most: u64) -> Result<T, String> {
    let number = bare(text).and_then(|text| match text.strip_prefix("-") {
        // Only 0 has a minus.
        Some(text) => text.parse().ok().filter(|number| *number == 0),
        None => text.parse::<u64>().ok(),
    });
    let fits = number.filter(|number| *number <= most).map(T::try_from);
    match fits {
        Some(Ok(number)) => Ok(number),
        Some(Err(_)) | None => Err(format!("expected a whole number from 0 to {most}")),
    }
}

/// A number of things.
pub(super) fn count(text: &str) -> Result<u32, String> {
    natural(text, u32::MAX.into())
}

/// A seed.
pub(super) fn whole(text: &str) -> Result<u64, String> {
    natural(text, u64::MAX)
}

/// How many at a time.
pub(super) fn places(text: &str) -> Result<usize, String> {
    natural(text, usize::MAX as u64)
}

/// Any number; what it may be is looked at with the other flags.
pub(super) fn real(text: &str) -> Result<f64, String> {
    let number = bare(text).and_then(|text| text.parse().ok());
    number.ok_or_else(|| "expected a number".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_be_written_as_the_peer_takes_them() {
        for (text, number) in [("5", 5), (" 5\n", 5), ("+5", 5), ("1_000", 1000), ("-0", 0), ("05", 5)] {
            assert_eq!(count(text), Ok(number), "{text:?}");
        }
        for text in ["", "-1", "5.0", "1e1", "1__0", "_1", "1_", "0x5", "4294967296", "many"] {
            let error = count(text).unwrap_err();
            assert_eq!(error, "expected a whole number from 0 to 4294967295", "{text:?}");
        }
        assert_eq!(whole("18446744073709551615"), Ok(u64::MAX));
        for (text, number) in [
            (" 5 ", 5.0),
            (".5", 0.5),
            ("1_000.5", 1000.5),
            ("-1e3", -1000.0),
            ("inf", f64::INFINITY),
        ] {
            assert_eq!(real(text), Ok(number), "{text:?}");
        }
        assert!(real("NaN").unwrap().is_nan());
        assert!(real("1_.5").is_err() && real("").is_err());
    }
}
