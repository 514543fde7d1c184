//! Bodies: one JSON object, read strictly. All that is wrong with one is told at once.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Value, json};

use crate::problem::{Code, Problem};
use crate::text::LONGEST_TITLE;

/// The most fields of a body: more than any request has.
const MOST: usize = 64;
/// So many levels a value of a client's own may have.
const DEEPEST: usize = 32;

/// Whether a value has no more levels than this.
fn is_within(value: &Value, levels: usize) -> bool {
    let mut inner: Box<dyn Iterator<Item = &Value>> = match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => return true,
    };
    levels > 0 && inner.all(|value| is_within(value, levels - 1))
}

/// Whether a JSON text has no more levels than a value may have.
pub(crate) fn is_shallow(json: &str) -> bool {
    let (mut levels, mut is_text, mut bytes) = (0_usize, false, json.bytes());
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => is_text = !is_text,
            b'\\' => drop(bytes.next()),
            b'[' | b'{' if !is_text => levels += 1,
            b']' | b'}' if !is_text => levels -= 1,
            _ => {}
        }
        if levels > DEEPEST {
            return false;
        }
    }
    true
}

/// The fields of a request, each to be taken once.
#[derive(Debug)]
pub(crate) struct Fields {
    fields: Vec<(String, Value)>,
    errors: Vec<Value>,
}

struct Object(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut fields: Vec<(String, Value)> = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    if fields.iter().any(|(known, _)| *known == key) {
                        return Err(A::Error::custom("a field is there twice"));
                    }
                    // Each is compared with those before it, and told to who sent it.
                    if fields.len() >= MOST {
                        return Err(A::Error::custom("there are too many fields"));
                    }
                    fields.push((key, value));
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

impl Fields {
    /// What a body says; an empty one says nothing.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Problem> {
        let fields = match body.iter().all(u8::is_ascii_whitespace) {
            true => Vec::new(),
            false => {
                let parsed: Result<Object, _> = serde_json::from_slice(body);
                // Where it is, but not what: a body may have a secret in it.
                let refused = |error: serde_json::Error| {
                    let at = format!("line {}, column {}", error.line(), error.column());
                    Problem::new(
                        Code::Invalid,
                        format!("the body is not one JSON object with each field once: {at}"),
                    )
                };
                parsed.map_err(refused)?.0
            }
        };
        Ok(Self { fields, errors: Vec::new() })
    }

    fn take(&mut self, field: &str) -> Option<Value> {
        let at = self.fields.iter().position(|(name, _)| name == field)?;
        Some(self.fields.swap_remove(at).1)
    }

    fn wrong(&mut self, field: &str, problem: &str) {
        self.errors.push(json!({ "field": field, "problem": problem }));
    }

    /// A whole number, if there is one.
    pub(crate) fn whole(&mut self, field: &str, allowed: RangeInclusive<u64>) -> Option<u64> {
        let value = self.take(field)?;
        match value.as_u64().filter(|number| allowed.contains(number)) {
            Some(number) => Some(number),
            None => {
                self.errors.push(json!({
                    "field": field, "problem": "a whole number is wanted", "min": allowed.start(), "max": allowed.end(),
                }));
                None
            }
        }
    }

    /// A whole number that may be negative, if there is one.
    pub(crate) fn signed(&mut self, field: &str) -> Option<i64> {
        let value = self.take(field)?;
        if value.as_i64().is_none() {
            self.errors.push(json!({
                "field": field, "problem": "a whole number is wanted", "min": i64::MIN, "max": i64::MAX,
            }));
        }
        value.as_i64()
    }

    /// A list of objects, which has to be there. What is wrong with one of them is told with its place in the list.
    pub(crate) fn objects<T>(
        &mut self,
        field: &str,
        allowed: RangeInclusive<usize>,
        mut read: impl FnMut(&mut Self) -> T,
    ) -> Vec<T> {
        let list = match self.take(field) {
            Some(Value::Array(list)) if allowed.contains(&list.len()) => list,
            _ => {
                self.errors.push(json!({
                    "field": field, "problem": "a list of objects is wanted", "min": allowed.start(), "max": allowed.end(),
                }));
                return Vec::new();
            }
        };
        let mut object = |(nth, value)| {
            let at = format!("{field}[{nth}]");
            let Value::Object(fields) = value else {
                self.wrong(&at, "an object is wanted");
                return None;
            };
            let mut inner = Self { fields: fields.into_iter().collect(), errors: Vec::new() };
            let read = read(&mut inner);
            inner.refuse_the_rest();
            self.errors.extend(inner.errors.into_iter().map(|mut error| {
                error["field"] = format!("{at}.{}", error["field"].as_str().unwrap_or("")).into();
                error
            }));
            Some(read)
        };
        list.into_iter().enumerate().filter_map(&mut object).collect()
    }

    /// An error, unless this field is there.
    pub(crate) fn needs(&mut self, field: &str) {
        if !self.fields.iter().any(|(name, _)| name == field) {
            self.wrong(field, "this field has to be there");
        }
    }

    /// A count, if there is one.
    pub(crate) fn count(&mut self, field: &str, allowed: RangeInclusive<u32>) -> Option<u32> {
        let allowed = u64::from(*allowed.start())..=u64::from(*allowed.end());
        self.whole(field, allowed).and_then(|count| count.try_into().ok())
    }

    /// Any JSON of at most so many bytes and 32 levels, if there is some.
    pub(crate) fn json(&mut self, field: &str, most: usize) -> Option<Value> {
        let value = self.take(field)?;
        let is_good = is_within(&value, DEEPEST) && value.to_string().len() <= most;
        if !is_good {
            self.errors.push(json!({
                "field": field, "problem": "it is too large or too deep", "max": most, "levels": DEEPEST,
            }));
        }
        is_good.then_some(value)
    }

    /// A duration in milliseconds, if there is one.
    pub(crate) fn millis(&mut self, field: &str, allowed: RangeInclusive<u64>) -> Option<Duration> {
        self.whole(field, allowed).map(Duration::from_millis)
    }

    /// A duration in seconds with fractions, which has to be there; more than `above`, to `most`.
    pub(crate) fn seconds(&mut self, field: &str, least: f64, most: f64) -> Duration {
        let value = self.take(field).and_then(|value| value.as_f64());
        match value.filter(|seconds| (least..=most).contains(seconds)) {
            Some(seconds) => Duration::from_secs_f64(seconds),
            None => {
                self.errors.push(json!({
                    "field": field, "problem": "a number of seconds is wanted", "min": least, "max": most,
                }));
                Duration::ZERO
            }
        }
    }

    /// Yes or no, if it is said.
    pub(crate) fn flag(&mut self, field: &str) -> Option<bool> {
        let value = self.take(field)?;
        if !value.is_boolean() {
            self.wrong(field, "true or false is wanted");
        }
        value.as_bool()
    }

    /// Whether there is a flag that can only be set; `otherwise` says why.
    pub(crate) fn only_true(&mut self, field: &str, otherwise: &str) -> bool {
        let flag = self.flag(field);
        if flag == Some(false) {
            self.wrong(field, otherwise);
        }
        flag == Some(true)
    }

    /// A text for people, if there is one.
    pub(crate) fn title(&mut self, field: &str) -> Option<String> {
        let value = self.take(field)?;
        let is_good =
            |text: &str| text.len() <= LONGEST_TITLE && !text.chars().any(char::is_control);
        let text = value.as_str().filter(|text| is_good(text)).map(str::to_owned);
        if text.is_none() {
            self.wrong(field, "a text of at most 255 bytes without control characters is wanted");
        }
        text
    }

    /// A text of 1 to 255 bytes without control characters, if there is one.
    pub(crate) fn word(&mut self, field: &str) -> Option<String> {
        let value = self.take(field)?;
        let is_good = |text: &str| {
            (1..=LONGEST_TITLE).contains(&text.len()) && !text.chars().any(char::is_control)
        };
        let text = value.as_str().filter(|text| is_good(text)).map(str::to_owned);
        if text.is_none() {
            self.wrong(field, "a text of 1 to 255 bytes without control characters is wanted");
        }
        text
    }

    /// A list of texts, which has to be there.
    pub(crate) fn texts(&mut self, field: &str, allowed: RangeInclusive<usize>) -> Vec<String> {
        let list = self.take(field);
        let list =
            list.as_ref().and_then(Value::as_array).filter(|list| allowed.contains(&list.len()));
        let texts: Option<Vec<_>> = list
            .and_then(|list| list.iter().map(|item| item.as_str().map(str::to_owned)).collect());
        texts.unwrap_or_else(|| {
            self.errors.push(json!({
                "field": field, "problem": "a list of texts is wanted", "min": allowed.start(), "max": allowed.end(),
            }));
            Vec::new()
        })
    }

    /// The end: whatever was wrong, and what nobody asked for.
    pub(crate) fn done(mut self) -> Result<(), Problem> {
        self.refuse_the_rest();
        self.done_leniently()
    }

    fn refuse_the_rest(&mut self) {
        for (field, _) in std::mem::take(&mut self.fields) {
            let shown: String = field.chars().take(64).collect();
            self.wrong(&shown, "there is no such field here");
        }
    }

    /// The same, but fields that nobody asked for are ignored.
    pub(crate) fn done_leniently(self) -> Result<(), Problem> {
        if self.errors.is_empty() {
            return Ok(());
        }
        let problem = Problem::new(Code::Invalid, "some fields are not as they should be");
        Err(problem.with("errors", self.errors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(body: &str) -> Result<Option<Duration>, Code> {
        let mut fields = Fields::parse(body.as_bytes()).map_err(|problem| problem.code)?;
        let wait = fields.millis("wait_ms", 0..=3_600_000);
        fields.done().map(|()| wait).map_err(|problem| problem.code)
    }

    #[test]
    fn a_body_is_one_object_of_known_fields() {
        assert_eq!(wait(""), Ok(None));
        assert_eq!(wait(" {}\n"), Ok(None));
        assert_eq!(wait(r#"{"wait_ms":5000}"#), Ok(Some(Duration::from_secs(5))));
        let deep = format!("{{\"wait_ms\":{}{}}}", "[".repeat(200), "]".repeat(200));
        for wrong in [
            "[]",
            "null",
            "1",
            "{",
            "{}{}",
            r#"{"wait_ms":1,"wait_ms":2}"#,
            r#"{"wait":1}"#,
            r#"{"wait_ms":1.5}"#,
            r#"{"wait_ms":1e20}"#,
            r#"{"wait_ms":-1}"#,
            r#"{"wait_ms":"1"}"#,
            r#"{"wait_ms":null}"#,
            r#"{"wait_ms":3600001}"#,
            &deep,
        ] {
            assert_eq!(wait(wrong), Err(Code::Invalid), "{wrong}");
        }
    }

    #[test]
    fn a_body_has_no_more_fields_than_a_request_may_have() {
        let body = |count: usize| {
            let fields: Vec<_> = (0..count).map(|number| format!("\"{number}\":0")).collect();
            format!("{{{}}}", fields.join(","))
        };
        assert!(Fields::parse(body(MOST).as_bytes()).is_ok());
        assert!(Fields::parse(body(MOST + 1).as_bytes()).is_err());
    }

    #[test]
    fn a_value_has_a_size_and_a_depth() {
        let read = |value: &str| {
            let body = format!("{{\"value\":{value}}}");
            let mut fields = Fields::parse(body.as_bytes()).expect("an object");
            let value = fields.json("value", 100);
            fields.done().is_ok().then_some(value).flatten().map(|value| value.to_string())
        };
        let deep = |levels| "[".repeat(levels) + &"]".repeat(levels);
        for good in ["null", "1", "\"x\"", r#"{"a":[1,{"b":null}]}"#, &deep(32)] {
            assert_eq!(read(good).as_deref(), Some(good));
        }
        let long = format!("\"{}\"", "x".repeat(99));
        for wrong in [&deep(33), &long] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn objects_in_a_list_are_read_like_the_body() {
        let read = |list: &str| {
            let mut fields =
                Fields::parse(format!("{{\"limits\":{list}}}").as_bytes()).expect("an object");
            let read = fields.objects("limits", 1..=2, |limit| {
                limit.needs("n");
                limit.whole("n", 1..=9)
            });
            fields.done().map(|()| read).map_err(|problem| problem.text("1"))
        };
        assert_eq!(read("[{\"n\":1},{\"n\":2}]"), Ok(vec![Some(1), Some(2)]));
        for (wrong, at) in [
            ("[]", "\"limits\""),
            ("[{\"n\":1},{\"n\":1},{\"n\":1}]", "\"limits\""),
            ("{}", "\"limits\""),
            ("[1]", "\"limits[0]\""),
            ("[{\"n\":1},{\"n\":10}]", "\"limits[1].n\""),
            ("[{}]", "\"limits[0].n\""),
            ("[{\"n\":1,\"x\":1}]", "\"limits[0].x\""),
        ] {
            let refused = read(wrong).expect_err(wrong);
            assert!(refused.contains(at), "{wrong}: {refused}");
        }
    }

    #[test]
    fn levels_are_counted_outside_of_texts() {
        let deep = |levels| "[".repeat(levels) + &"]".repeat(levels);
        for (text, is_good) in [
            (deep(32), true),
            (deep(33), false),
            (format!("\"{}\"", deep(50)), true),
            (format!("[\"\\\"{}\"]", "[".repeat(50)), true),
            ("[[],[]]".repeat(20), true),
        ] {
            assert_eq!(is_shallow(&text), is_good, "{text}");
        }
    }

    #[test]
    fn all_errors_are_told_at_once() {
        let body = br#"{"lease_ms":1,"title":"a\nb","shared":1,"x":0}"#;
        let mut fields = Fields::parse(body).expect("an object");
        assert_eq!(fields.millis("lease_ms", 100..=200), None);
        assert_eq!((fields.title("title"), fields.flag("shared")), (None, None));
        let problem = fields.done().expect_err("all of it is wrong");
        let body: Value = serde_json::from_str(&problem.text("1")).expect("it is JSON");
        let told: Vec<_> =
            body["errors"].as_array().expect("a list").iter().map(|e| &e["field"]).collect();
        assert_eq!(told, ["lease_ms", "title", "shared", "x"]);
    }
}
