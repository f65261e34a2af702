//! The little of X.509 that the TLS library does not tell: a certificate's version and when it is valid.
//!
//! A certificate is `SEQUENCE { SEQUENCE { [0] version, serial, algorithm, issuer, validity { from, until }, ... }, ... }`
//! in DER. Source: RFC 5280, section 4.1.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::transport::date::days_since_1970;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// What is known of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    /// 1 or 3.
    pub(super) version: u8,
    /// First second of its life.
    pub(super) from: SystemTime,
    /// Last second of its life.
    pub(super) until: SystemTime,
}

/// Reads a certificate; `None` for what has another form.
pub(super) fn facts(der: &[u8]) -> Option<Facts> {
    let (certificate, _) = inside(der, SEQUENCE)?;
    let (mut fields, _) = inside(certificate, SEQUENCE)?;
    let mut version = 1;
    if fields.first() == Some(&VERSION) {
        let (number, rest) = inside(fields, VERSION)?;
        version = number.last()?.checked_add(1)?;
        fields = rest;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        fields = element(fields)?.2;
    }
    let (validity, _) = inside(fields, SEQUENCE)?;
    let (tag, from, rest) = element(validity)?;
    let from = time(tag, from)?;
    let (tag, until, _) = element(rest)?;
    Some(Facts {
        version,
        from,
        until: time(tag, until)?,
    })
}

/// Tag and content of the first element, and what comes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], mut rest) = bytes.split_first_chunk::<2>()?;
    let length = match first {
        0..=0x7f => usize::from(first),
        0x81..=0x84 => {
            let digits = rest.get(..usize::from(first - 0x80))?;
            rest = &rest[digits.len()..];
            digits.iter().fold(0, |sum, &digit| (sum << 8) | usize::from(digit))
        }
        _ => return None,
    };
    Some((tag, rest.get(..length)?, rest.get(length..)?))
}

fn inside(bytes: &[u8], wanted: u8) -> Option<(&[u8], &[u8])> {
    let (tag, content, rest) = element(bytes)?;
    (tag == wanted).then_some((content, rest))
}

/// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`.
fn time(tag: u8, text: &[u8]) -> Option<SystemTime> {
    let digits = text.strip_suffix(b"Z")?;
    let number = |digits: &[u8]| -> Option<u64> {
        digits.iter().try_fold(0u64, |sum, digit| {
            let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
            Some(sum * 10 + digit)
        })
    };
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year = number(&digits[..2])?;
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (number(&digits[..4])?, &digits[4..]),
        _ => return None,
    };
    let part = |index: usize| number(&rest[index * 2..index * 2 + 2]);
    let days = days_since_1970(year, part(0)?, part(1)?)?;
    let seconds = days * 86_400 + part(2)? * 3600 + part(3)? * 60 + part(4)?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(tag: u8, text: &str) -> Option<u64> {
        let time = time(tag, text.as_bytes())?;
        Some(time.duration_since(UNIX_EPOCH).expect("after 1970").as_secs())
    }

    #[test]
    fn dates_are_read_in_both_forms() {
        assert_eq!(seconds(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(seconds(UTC_TIME, "000229235959Z"), Some(951_868_799));
        assert_eq!(seconds(GENERALIZED_TIME, "20000301000000Z"), Some(951_868_800));
        assert_eq!(seconds(UTC_TIME, "261130080651Z"), Some(1_796_026_011));
        assert_eq!(seconds(GENERALIZED_TIME, "19500101000000Z"), Some(0), "long ago");
        for text in [
            "",
            "Z",
            "2611300806Z",
            "26113008065xZ",
            "261330080651Z",
            "261130080651+0100",
        ] {
            assert_eq!(seconds(UTC_TIME, text), None, "{text}");
        }
    }

    #[test]
    fn certificates_tell_version_and_life_and_anything_else_is_no_certificate() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.not_before = rcgen::date_time_ymd(2001, 2, 3);
        params.not_after = rcgen::date_time_ymd(2100, 4, 5);
        let certificate = params.self_signed(&key).expect("a certificate");
        let facts = facts(certificate.der()).expect("read");
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(facts.version, 3);
        assert_eq!((facts.from, facts.until), (at(981_158_400), at(4_110_566_400)));
        for length in 0..certificate.der().len() {
            super::facts(&certificate.der()[..length]);
        }
        assert_eq!(super::facts(b"\x30\x84\xff\xff\xff\xff"), None);
        assert_eq!(super::facts(b"no certificate"), None);
    }
}
