//! Texts of others: names in paths, titles, queries; and times as people read them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use percent_encoding::percent_decode_str;

use crate::problem::{Code, Problem};

/// The longest name, in bytes.
const LONGEST: usize = 1_000;
/// The longest title.
pub(crate) const LONGEST_TITLE: usize = 255;
/// The longest wait, in milliseconds.
pub(crate) const LONGEST_WAIT: u64 = 3_600_000;
/// What we keep of our own at the store.
pub(crate) const OWN: &str = ".coordination/";

/// The name in the rest of a path.
pub(crate) fn name(path: &str) -> Result<String, Problem> {
    let name = percent_decode_str(path).decode_utf8().map_err(|_| refused("it is not UTF-8"))?;
    checked(&name)?;
    Ok(name.into_owned())
}

fn refused(why: &str) -> Problem {
    Problem::new(Code::Name, format!("this is no name: {why}"))
}

/// An error, unless this can be the name of something.
pub(crate) fn checked(name: &str) -> Result<(), Problem> {
    match name.len() {
        0 => return Err(refused("it is empty")),
        length if length > LONGEST => return Err(refused("it is longer than 1,000 bytes")),
        _ => {}
    }
    if name.chars().any(char::is_control) {
        return Err(refused("it has a control character"));
    }
    if name.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err(refused("clients rewrite paths with the segments `.` and `..`"));
    }
    if name.starts_with(OWN) {
        return Err(refused("names that begin with `.coordination/` are the service's own"));
    }
    Ok(())
}

/// What a query says, decoded; a `+` is a blank.
pub(crate) fn query(text: Option<&str>) -> Vec<(String, String)> {
    let decoded =
        |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let pairs = text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let split = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(key), decoded(value))
    };
    pairs.map(split).collect()
}

/// A duration in whole milliseconds, rounded down.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A duration in whole milliseconds, rounded up.
pub(crate) fn millis_up(duration: Duration) -> u64 {
    millis(duration.saturating_add(Duration::from_nanos(999_999)))
}

/// The parts of a time of day in UTC: year, month, day, hour, minute, second, microsecond.
fn parts(time: SystemTime) -> [u64; 7] {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Howard Hinnant's `civil_from_days`: years that begin in March, in eras of 400.
    let day_zero = days + 719_468;
    let (era, of_era) = (day_zero / 146_097, day_zero % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let micros = u64::from(since.subsec_micros());
    [year, month, day, second / 3_600, second / 60 % 60, second % 60, micros]
}

/// As RFC 3339 has it, in UTC, with milliseconds.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let [year, month, day, hour, minute, second, micros] = parts(time);
    let millis = micros / 1_000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// As rdlm's clients read it: in UTC, without a zone, with microseconds.
pub(crate) fn zoneless(time: SystemTime) -> String {
    let [year, month, day, hour, minute, second, micros] = parts(time);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_decoded_once_and_checked() {
        for (path, expected) in [
            ("backup", "backup"),
            ("a%2Fb/c", "a/b/c"),
            ("a%20b/%C3%BC", "a b/ü"),
            ("a+b", "a+b"),
            ("%252F", "%2F"),
            ("...", "..."),
        ] {
            assert_eq!(name(path).ok().as_deref(), Some(expected), "{path}");
        }
        let long = "x".repeat(1_001);
        for path in ["", "%00", "a%0Ab", "..", "a/../b", "%2e%2E", ".coordination/x", "%FF", &long]
        {
            assert!(name(path).is_err(), "{path}");
        }
        assert!(name(&long[1..]).is_ok());
    }

    #[test]
    fn queries_are_decoded() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(query(Some("a=1&b=%2F+x&c")), [pair("a", "1"), pair("b", "/ x"), pair("c", "")]);
        assert!(query(None).is_empty());
    }

    #[test]
    fn times_are_written_as_people_read_them() {
        let at = |seconds: u64| UNIX_EPOCH + Duration::from_millis(seconds * 1_000 + 123);
        // By `date -u -d @…`.
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.123Z"),
            (951_782_399, "2000-02-28T23:59:59.123Z"),
            (951_827_696, "2000-02-29T12:34:56.123Z"),
            (1_763_798_400, "2025-11-22T08:00:00.123Z"),
            (4_107_542_400, "2100-03-01T00:00:00.123Z"),
        ] {
            assert_eq!(rfc3339(at(seconds)), expected);
        }
        assert_eq!(zoneless(at(0)), "1970-01-01T00:00:00.123000");
    }
}
