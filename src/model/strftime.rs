//! Dates for chat templates.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

/// `strftime` in UTC for the letters that templates use; others stay as they are.
pub(super) fn format_date(format: &str, unix_seconds: u64) -> String {
    let days = unix_seconds / 86_400;
    let second_of_day = unix_seconds % 86_400;
    let (year, month, day) = civil(days);
    let month_name = MONTHS[month - 1];
    let day_name = DAYS[usize::try_from(days % 7).unwrap_or(0)];
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        match letters.next() {
            Some('Y') => out += &year.to_string(),
            Some('y') => out += &two_digits(year % 100),
            Some('m') => out += &two_digits(month as u64),
            Some('d') => out += &two_digits(day),
            Some('B') => out += month_name,
            Some('b') => out += &month_name[..3],
            Some('A') => out += day_name,
            Some('a') => out += &day_name[..3],
            Some('H') => out += &two_digits(second_of_day / 3600),
            Some('M') => out += &two_digits(second_of_day / 60 % 60),
            Some('S') => out += &two_digits(second_of_day % 60),
            Some('%') | None => out.push('%'),
            Some(other) => out.extend(['%', other]),
        }
    }
    out
}

fn two_digits(number: u64) -> String {
    format!("{number:02}")
}

/// Year, month (1..) and day (1..) of a day number since 1970-01-01.
fn civil(days: u64) -> (u64, usize, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // 400 years are 146,097 days, whatever year they begin with.
    let mut year = 1970 + 400 * (days / 146_097);
    let mut left = days % 146_097;
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_formatted_as_by_python() {
        assert_eq!(
            format_date("%d %b %Y, %A %H:%M:%S 100%%", 1_709_210_096),
            "29 Feb 2024, Thursday 12:34:56 100%"
        );
        assert_eq!(format_date("%Y-%m-%d", 0), "1970-01-01");
        assert_eq!(format_date("%Y-%m-%d", 4_102_444_799), "2099-12-31");
        assert_eq!(format_date("%Y-%m-%d", 16_725_225_600), "2500-01-01");
    }
}
