//! Durations as people write them in URLs and configuration files.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};

use crate::error::{Error, ErrorKind};

const ALLOWED: &str = "a duration is a number of seconds, or numbers with units out of `d`, `h`, `m`, `s` and \
                       `ms`, the largest first, as in `0.5`, `500ms`, `2m` or `1h30m`; it is not negative";

const TOO_LONG: &str = "the duration is longer than any that can be counted";

/// Reads a duration as the options of URLs and the fields of [`Config`](crate::Config) have it: `500ms`, `5s`,
/// `2m`, `1h`, `7d`, `0.5s`, `1h30m`, or a bare number of seconds. A day (`d`) is 24 hours.
///
/// Of several parts each has a unit, the largest comes first, and each unit comes once.
///
/// # Errors
///
/// [`ErrorKind::Input`]: it is something else, or too long. The message says what is allowed, and does not
/// repeat the text.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(coordination::parse_duration("1.5s").ok(), Some(Duration::from_millis(1_500)));
/// assert_eq!(coordination::parse_duration("1h30m").ok(), Some(Duration::from_secs(5_400)));
/// assert!(coordination::parse_duration("soon").is_err());
/// ```
pub fn parse_duration(text: &str) -> crate::Result<Duration> {
    parse(text).map_err(|problem| Error::new(ErrorKind::Input, "parse", problem))
}

/// A unit's name, and how many seconds a number of it is.
type Unit = (&'static str, fn(f64) -> f64);

/// The largest first.
const UNITS: [Unit; 5] = [
    ("d", |number| number * 86_400.0),
    ("h", |number| number * 3600.0),
    ("m", |number| number * 60.0),
    ("s", |number| number),
    ("ms", |number| number / 1000.0),
];

/// Reads `500ms`, `5s`, `2m`, `1h`, `7d`, `0.5s`, `1h30m`, or a bare number of seconds.
///
/// The message for anything else says what is allowed and does not repeat the text.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    if let Some(seconds) = decimal(text) {
        return from_seconds(seconds).map_err(str::to_owned);
    }
    let (mut sum, mut rest, mut units) = (None::<Duration>, text, &UNITS[..]);
    while !rest.is_empty() {
        let (seconds, smaller, after) = part(rest, units).ok_or(ALLOWED)?;
        let sum_before = sum.unwrap_or_default();
        sum = Some(sum_before.checked_add(from_seconds(seconds)?).ok_or(TOO_LONG)?);
        (rest, units) = (after, smaller);
    }
    sum.ok_or_else(|| ALLOWED.to_owned())
}

/// A number and one of these units, in seconds, with the smaller units and the text that are left.
fn part<'t>(text: &'t str, units: &'static [Unit]) -> Option<(f64, &'static [Unit], &'t str)> {
    let (number, rest) = text.split_at(text.find(|c: char| c.is_ascii_lowercase())?);
    let end = rest.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(rest.len());
    let (unit, after) = rest.split_at(end);
    let place = units.iter().position(|(name, _)| *name == unit)?;
    let (_, in_seconds) = units.get(place)?;
    Some((in_seconds(decimal(number)?), units.get(place + 1..)?, after))
}

/// For `#[serde(default, with = "…")]` on an `Option<Duration>`; without `default`, serde asks
/// for the field to be there.
pub(crate) mod option {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes the number of seconds or nothing.
    pub(crate) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            // A float cannot represent every whole number of seconds that can be read, so whole seconds are written as an integer.
            Some(duration) if duration.subsec_nanos() == 0 => {
                Some(duration.as_secs()).serialize(to)
            }
            Some(duration) => Some(duration.as_secs_f64()).serialize(to),
            None => to.serialize_none(),
        }
    }

    /// Takes text, a number or nothing.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<super::Given>::deserialize(from)?.map(|given| given.0))
    }
}

/// A duration in any of the forms that a configuration file may give.
struct Given(Duration);

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(GivenVisitor)
    }
}

struct GivenVisitor;

impl Visitor<'_> for GivenVisitor {
    type Value = Given;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ALLOWED)
    }

    fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Given, E> {
        Ok(Given(Duration::from_secs(seconds)))
    }

    fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Given, E> {
        let seconds = u64::try_from(seconds).map_err(|_| E::custom(ALLOWED))?;
        self.visit_u64(seconds)
    }

    fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Given, E> {
        from_seconds(seconds).map(Given).map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Given, E> {
        parse(text).map(Given).map_err(E::custom)
    }
}

/// Stricter than `f64::from_str`, which takes signs, exponents, `inf` and `nan`.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.parse().ok().filter(|_| plain)
}

fn from_seconds(seconds: f64) -> Result<Duration, &'static str> {
    let problem = if seconds >= 0.0 { TOO_LONG } else { ALLOWED };
    Duration::try_from_secs_f64(seconds).map_err(|_| problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Settings {
        #[serde(default, with = "option")]
        ttl: Option<Duration>,
    }

    fn settings(json: &str) -> Result<Option<Duration>, String> {
        serde_json::from_str(json)
            .map(|settings: Settings| settings.ttl)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn reads_numbers_with_and_without_units() {
        let millis = |text| parse(text).map(|duration| duration.as_millis());
        for (text, expected) in [
            ("500ms", 500),
            ("5s", 5000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("2d", 172_800_000),
            ("0.5s", 500),
            ("1.5h", 5_400_000),
            ("10", 10_000),
            ("0.25", 250),
            ("0", 0),
        ] {
            assert_eq!(millis(text), Ok(expected), "{text}");
        }
        assert_eq!(parse("0.1ms"), Ok(Duration::from_micros(100)));
    }

    #[test]
    fn reads_several_parts_the_largest_first() {
        let millis = |text| parse(text).map(|duration| duration.as_millis());
        for (text, expected) in [
            ("1h30m", 5_400_000),
            ("1d12h", 129_600_000),
            ("1h0.5s", 3_600_500),
            ("2m3s4ms", 123_004),
            ("90m1s", 5_401_000),
            ("0h0m", 0),
        ] {
            assert_eq!(millis(text), Ok(expected), "{text}");
        }
        for text in
            ["30m1h", "1h1d", "1h2h", "1h30", "30 1h", "1h 30m", "1h-30m", "1hm", "h1m", "1ms2s"]
        {
            assert_eq!(parse(text), Err(ALLOWED.to_owned()), "{text:?}");
        }
        // Each part can be counted.
        assert_eq!(parse("1h18446744073709549568s"), Err(TOO_LONG.to_owned()));
    }

    #[test]
    fn says_what_is_allowed() {
        for text in [
            "", "s", ".", "-1", "-1s", "+1s", "NaN", "inf", "1e3", "5 s", " 5s", "5S", "5w", "5sm",
            "1.2.3", "0x10", "٣s", "5s\n",
        ] {
            assert_eq!(parse(text), Err(ALLOWED.to_owned()), "{text:?}");
        }
        for text in ["2".repeat(20), "9".repeat(400), format!("{}h", "9".repeat(17))] {
            assert_eq!(parse(&text), Err(TOO_LONG.to_owned()), "{text}");
        }
    }

    #[test]
    fn settings_take_text_and_numbers() {
        let half = Ok(Some(Duration::from_millis(500)));
        for json in [r#"{"ttl": 0.5}"#, r#"{"ttl": "500ms"}"#, r#"{"ttl": "0.5"}"#] {
            assert_eq!(settings(json), half, "{json}");
        }
        assert_eq!(settings(r#"{"ttl": 3}"#), Ok(Some(Duration::from_secs(3))));
        assert_eq!((settings("{}"), settings(r#"{"ttl": null}"#)), (Ok(None), Ok(None)));
    }

    #[test]
    fn the_longest_settings_come_back() {
        let longest = Settings { ttl: Some(Duration::from_secs(u64::MAX)) };
        let json = serde_json::to_string(&longest).expect("plain data");
        assert_eq!(settings(&json), Ok(longest.ttl));
    }

    #[test]
    fn settings_refuse_the_rest() {
        for ttl in ["-1", "-0.5", "\"fast\"", "1e30", "true", "[]"] {
            let error = settings(&format!(r#"{{"ttl": {ttl}}}"#)).expect_err(ttl);
            assert!(error.contains("duration"), "{ttl}: {error}");
        }
    }

    proptest! {
        #[test]
        fn whole_milliseconds_are_exact(millis in 0..=u64::from(u32::MAX)) {
            prop_assert_eq!(parse(&format!("{millis}ms")), Ok(Duration::from_millis(millis)));
        }

        #[test]
        fn settings_come_back(millis in any::<Option<u32>>()) {
            let ttl = millis.map(|millis| Duration::from_millis(millis.into()));
            let json = serde_json::to_string(&Settings { ttl }).map_err(|_| TestCaseError::fail("unwritable"))?;
            prop_assert_eq!(settings(&json), Ok(ttl));
        }
    }
}
