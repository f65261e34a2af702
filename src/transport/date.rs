//! Dates of the Gregorian calendar in UTC. Years are counted from March, so that the leap day is the last of its year.

use std::time::{SystemTime, UNIX_EPOCH};

/// Days from 0000-03-01 to 1970-01-01.
const EPOCH: u64 = 719_468;

/// An instant as RFC 3339 text with nanoseconds. Instants before 1970 count as its beginning.
pub(super) fn rfc3339(at: SystemTime) -> String {
    let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let rest = at.as_secs() % 86_400;
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    let nanos = at.subsec_nanos();
    format!(
        "{}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z",
        day(at.as_secs() / 86_400)
    )
}

/// The date of an instant, such as 2026-11-30.
pub(super) fn date(at: SystemTime) -> String {
    day(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400)
}

fn day(days: u64) -> String {
    // Eras have 400 years.
    let shifted = days + EPOCH;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Days from 1970-01-01 to a date; `None` for what is no date. Earlier dates count as that one.
pub(super) fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    if year > 9999 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = if month < 3 { year.checked_sub(1)? } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some((year * 365 + year / 4 - year / 100 + year / 400 + day_of_year).saturating_sub(EPOCH))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn instants_are_written_as_dates_and_dates_are_days() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000007Z"),
            (951_782_400, "2000-02-29T00:00:00.000000007Z"),
            (951_868_799, "2000-02-29T23:59:59.000000007Z"),
            (1_796_026_011, "2026-11-30T08:06:51.000000007Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000000007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000007Z"),
        ] {
            let at = UNIX_EPOCH + Duration::new(seconds, 7);
            assert_eq!(rfc3339(at), text);
            assert_eq!(date(at), text[..10]);
            let number = |range: std::ops::Range<usize>| text[range].parse::<u64>().expect("digits");
            let days = days_since_1970(number(0..4), number(5..7), number(8..10));
            assert_eq!(days, Some(seconds / 86_400), "{text}");
        }
        for (year, month, day) in [(2026, 13, 1), (2026, 0, 1), (2026, 1, 0), (0, 1, 1), (u64::MAX, 3, 1)] {
            assert_eq!(days_since_1970(year, month, day), None);
        }
        assert_eq!(days_since_1970(1950, 1, 1), Some(0), "long ago");
    }
}
