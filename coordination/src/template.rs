//! Names with placeholders, for templates that are known only when the program runs.

use std::fmt;
use std::iter::Peekable;
use std::str::{CharIndices, FromStr};

use serde::Serialize;
use serde_json::{Number, Value};

use crate::error::{Error, ErrorKind, NameError};

/// How many existing names an error lists: enough to find a misspelt name by, in a message that stays readable.
const MAX_KNOWN: usize = 32;

const EMPTY: &str = "the placeholder is empty; it needs a field's name, as in `<share.id>`";
const STEPS: &str = "`.field`, `.0` or `[key]`";

/// Serde represents all of these in the same way.
const NOTHING: &str = "nothing (none, null or a float that is not finite)";

/// A name with placeholders that are filled in from a value: `share-<share.id>`.
///
/// For templates from a configuration file or a database; those known when the program is
/// compiled are checked then by `#[synchronized]`.
///
/// # Placeholders
///
/// `<path>` and `{path}` mean the same. A path is a field name followed by any number of
///
/// * `.field`,
/// * `.0`, an index into a list or tuple,
/// * `[key]`: a number is an index or the key of a map, other text is the key of a map.
///
/// `<<`, `>>`, `{{` and `}}` are the literal characters.
///
/// Text, numbers and booleans render as [`Display`](fmt::Display) writes them, and enum variants
/// without data as their name. All values are seen as serde serialises them: renamed fields have
/// their new name, a newtype is what it wraps, and an `f32` is the equal `f64`, with its digits.
///
/// # Different values, one name
///
/// `<a>-<b>` renders `("x-y", "z")` and `("x", "y-z")` to the same name, and so one lock. Where
/// that matters, separate placeholders by text that the values never contain, or use at most one
/// placeholder that can hold any text. The number `1`, the float `1.0` and the text `"1"` render
/// alike too.
///
/// # Examples
///
/// ```
/// use coordination::Template;
/// use serde_json::json;
///
/// let template = Template::parse("share-<share.id>-{hosts[0]}")?;
/// let name = template.render(&json!({ "share": { "id": 7 }, "hosts": ["alpha", "beta"] }))?;
/// assert_eq!(name, "share-7-alpha");
/// # Ok::<(), coordination::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Template {
    source: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Part {
    Literal(String),
    Placeholder(Path),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Path {
    /// The placeholder as written, for messages.
    text: String,
    steps: Vec<String>,
}

impl Template {
    /// Reads a template, so that its faults show before there are values.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`] with [`NameError::Template`] as its source: a bracket is not closed or
    /// not opened, or a placeholder is empty, has a format spec or a character that no path has.
    /// Correct the template at the byte given.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ErrorKind, Template};
    ///
    /// assert!(Template::parse("100%-<<literal>>").is_ok());
    /// let error = Template::parse("share-<id").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Name);
    /// ```
    pub fn parse(source: &str) -> Result<Self, Error> {
        let parts = Parser::new(source).parts()?;
        Ok(Self { source: source.to_owned(), parts })
    }

    /// Fills in the placeholders from a struct, a map or anything else that serialises with
    /// named fields.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`]: use other values or another template. Its source is
    ///
    /// * [`NameError::MissingField`]: the values have nothing at that path;
    /// * [`NameError::NotScalar`]: a list, a map, nothing, or a float that is not finite is there;
    /// * [`NameError::Empty`]: the whole name has no text;
    /// * the serialiser's error, where the values cannot be serialised.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::Template;
    ///
    /// #[derive(serde::Serialize)]
    /// struct Snapshot<'a> {
    ///     volume: &'a str,
    ///     number: u32,
    /// }
    ///
    /// let template = Template::parse("<volume>@<number>")?;
    /// assert_eq!(template.render(&Snapshot { volume: "home", number: 3 })?, "home@3");
    /// # Ok::<(), coordination::Error>(())
    /// ```
    pub fn render(&self, values: &impl Serialize) -> Result<String, Error> {
        let values = serde_json::to_value(values).map_err(not_serialisable)?;
        let mut name = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(text) => name.push_str(text),
                Part::Placeholder(path) => name.push_str(&path.text_in(&values)?),
            }
        }
        if name.is_empty() { Err(NameError::Empty.into()) } else { Ok(name) }
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

impl FromStr for Template {
    type Err = Error;

    fn from_str(source: &str) -> Result<Self, Error> {
        Self::parse(source)
    }
}

impl Path {
    fn text_in(&self, values: &Value) -> Result<String, NameError> {
        let mut value = values;
        for step in &self.steps {
            value = child(value, step).ok_or_else(|| self.missing_in(value))?;
        }
        match value {
            Value::String(text) => Ok(text.clone()),
            Value::Number(number) => Ok(number_text(number)),
            Value::Bool(flag) => Ok(flag.to_string()),
            Value::Null => Err(self.not_scalar(NOTHING)),
            Value::Array(_) => Err(self.not_scalar("a list")),
            Value::Object(_) => Err(self.not_scalar("a map")),
        }
    }

    fn missing_in(&self, value: &Value) -> NameError {
        NameError::MissingField { path: self.text.clone(), known: known_in(value) }
    }

    fn not_scalar(&self, found: &'static str) -> NameError {
        NameError::NotScalar { path: self.text.clone(), found }
    }
}

fn child<'v>(value: &'v Value, step: &str) -> Option<&'v Value> {
    match value {
        Value::Object(fields) => fields.get(step),
        Value::Array(items) => items.get(index(step)?),
        _ => None,
    }
}

/// Stricter than `usize::from_str`, which takes a sign.
fn index(step: &str) -> Option<usize> {
    step.parse().ok().filter(|_| all_digits(step))
}

fn all_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn known_in(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => fields.keys().take(MAX_KNOWN).cloned().collect(),
        Value::Array(items) if !items.is_empty() => {
            vec![format!("0 to {}", items.len().saturating_sub(1))]
        }
        _ => Vec::new(),
    }
}

/// Floats as `format!` writes them, and so `#[synchronized]`: `1`, where JSON has `1.0`.
fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => float.to_string(),
        _ => number.to_string(),
    }
}

fn not_serialisable(error: serde_json::Error) -> Error {
    let message = format!("the values for the name cannot be serialised: {error}");
    Error::new(ErrorKind::Name, "render", message).with_source(error)
}

struct Parser<'t> {
    text: &'t str,
    chars: Peekable<CharIndices<'t>>,
}

impl<'t> Parser<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, chars: text.char_indices().peekable() }
    }

    fn parts(mut self) -> Result<Vec<Part>, NameError> {
        let mut parts = Vec::new();
        while let Some((at, c)) = self.chars.next() {
            match c {
                '<' | '>' | '{' | '}' if self.skip(c) => push_literal(&mut parts, c),
                '<' => parts.push(self.placeholder(at, '>')?),
                '{' => parts.push(self.placeholder(at, '}')?),
                '>' | '}' => return Err(unopened(at, c)),
                _ => push_literal(&mut parts, c),
            }
        }
        Ok(parts)
    }

    /// What follows an opening bracket, up to and with the closing one.
    fn placeholder(&mut self, opened: usize, close: char) -> Result<Part, NameError> {
        let start = self.at();
        let mut steps = vec![self.name(opened, close)?];
        loop {
            let at = self.at();
            match self.chars.next() {
                Some((_, c)) if c == close => {
                    let text = self.text.get(start..at).unwrap_or_default().to_owned();
                    return Ok(Part::Placeholder(Path { text, steps }));
                }
                Some((_, '.')) => steps.push(self.field()?),
                Some((_, '[')) => steps.push(self.key(at)?),
                Some((_, c)) => return Err(unexpected(at, c)),
                None => return Err(unclosed(opened, close)),
            }
        }
    }

    /// The first step of a path.
    fn name(&mut self, opened: usize, close: char) -> Result<String, NameError> {
        let at = self.at();
        let word = self.word();
        match self.peek() {
            _ if starts_name(&word) => Ok(word),
            _ if !word.is_empty() => Err(fault(at, "a path starts with a letter or `_`")),
            Some(c) if c == close => Err(fault(opened, EMPTY)),
            Some(c) => Err(unexpected(at, c)),
            None => Err(unclosed(opened, close)),
        }
    }

    /// What follows a `.`.
    fn field(&mut self) -> Result<String, NameError> {
        let at = self.at();
        let word = self.word();
        if starts_name(&word) || !word.is_empty() && all_digits(&word) {
            return Ok(word);
        }
        Err(fault(at, "after `.` comes a field name or an index; all else is written `[key]`"))
    }

    /// What follows a `[`, up to and with the `]`.
    fn key(&mut self, opened: usize) -> Result<String, NameError> {
        let key = self.take_while(|c| c != ']');
        if !self.skip(']') {
            return Err(fault(opened, "`[` is not closed by `]`"));
        }
        if key.is_empty() {
            return Err(fault(opened, "`[]` is empty; it needs an index or the key of a map"));
        }
        Ok(key)
    }

    fn word(&mut self) -> String {
        self.take_while(|c| c == '_' || c.is_alphanumeric())
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> String {
        std::iter::from_fn(|| self.chars.next_if(|&(_, c)| wanted(c))).map(|(_, c)| c).collect()
    }

    fn skip(&mut self, wanted: char) -> bool {
        self.chars.next_if(|&(_, c)| c == wanted).is_some()
    }

    fn peek(&mut self) -> Option<char> {
        self.chars.peek().map(|&(_, c)| c)
    }

    fn at(&mut self) -> usize {
        self.chars.peek().map_or(self.text.len(), |&(at, _)| at)
    }
}

fn push_literal(parts: &mut Vec<Part>, c: char) {
    match parts.last_mut() {
        Some(Part::Literal(text)) => text.push(c),
        _ => parts.push(Part::Literal(c.into())),
    }
}

fn starts_name(word: &str) -> bool {
    word.starts_with(|c: char| c == '_' || c.is_alphabetic())
}

fn unopened(at: usize, close: char) -> NameError {
    fault(at, format!("`{close}` closes nothing; write `{close}{close}` for the character itself"))
}

fn unclosed(opened: usize, close: char) -> NameError {
    let open = if close == '>' { '<' } else { '{' };
    fault(
        opened,
        format!("the placeholder has no `{close}`; write `{open}{open}` for the character itself"),
    )
}

fn unexpected(at: usize, c: char) -> NameError {
    match c {
        ':' => fault(at, "format specs are for `#[synchronized]`; here, give the text to be used"),
        '(' => fault(at, "method calls are for `#[synchronized]`; here, give what they return"),
        _ => fault(at, format!("{c:?} is not allowed; a path is a field name and then {STEPS}")),
    }
}

fn fault(at: usize, problem: impl Into<String>) -> NameError {
    NameError::Template { at, problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use serde_json::json;

    use super::*;

    fn rendered(template: &str, values: &impl Serialize) -> Result<String, NameError> {
        Template::parse(template).and_then(|template| template.render(values)).map_err(cause)
    }

    fn cause(error: Error) -> NameError {
        assert_eq!(error.kind(), ErrorKind::Name);
        let source = error.source().and_then(|source| source.downcast_ref::<NameError>());
        source.cloned().expect("the source of a name error")
    }

    #[test]
    fn fills_in_paths_of_every_form() {
        let values = json!({
            "share": { "id": 7, "né_1": "x" },
            "list": ["a", ["b"]],
            "map": { "a key": 1, "3": "three", "a>b": true },
            "_x": "y",
        });
        for (template, expected) in [
            ("share-{share.id}", "share-7"),
            ("<share.né_1>", "x"),
            ("<list.0>{list[1][0]}<list.1.0>", "abb"),
            ("<map[a key]>-<map[3]>-<map.3>-<map[a>b]>", "1-three-three-true"),
            ("<_x>", "y"),
            ("no placeholder", "no placeholder"),
            ("<<a>>{{b}}<<<_x>>>", "<a>{b}<y>"),
        ] {
            assert_eq!(rendered(template, &values).as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn renders_scalars_as_display_does() {
        let values = (i64::MIN, u64::MAX, 1.0, 1e21, 0.1, true, 'c', Some("text"));
        let values = json!({ "v": values });
        let template = "<v.0> <v.1> <v.2> <v.3> <v.4> <v.5> <v.6> <v.7>";
        let expected =
            "-9223372036854775808 18446744073709551615 1 1000000000000000000000 0.1 true c text";
        assert_eq!(rendered(template, &values).as_deref(), Ok(expected));
    }

    #[test]
    fn sees_values_as_serde_does() {
        #[derive(Serialize)]
        enum Kind {
            Nightly,
        }
        #[derive(Serialize)]
        struct Id(u32);
        #[derive(Serialize)]
        struct Job {
            #[serde(rename = "type")]
            kind: Kind,
            id: Id,
        }
        let job = Job { kind: Kind::Nightly, id: Id(4) };
        assert_eq!(rendered("<type>-<id>", &job).as_deref(), Ok("Nightly-4"));
    }

    #[test]
    fn says_what_is_missing_and_what_is_there() {
        let values = json!({ "a": { "b": 1, "c": 2 }, "list": [1, 2, 3], "one": [1], "none": [] });
        for (path, known) in [
            ("x", &["a", "list", "none", "one"][..]),
            ("a.x", &["b", "c"]),
            ("a.b.x", &[]),
            ("list[3]", &["0 to 2"]),
            ("list[-1]", &["0 to 2"]),
            ("list[+1]", &["0 to 2"]),
            ("list[99999999999999999999]", &["0 to 2"]),
            ("one.x", &["0 to 0"]),
            ("none.0", &[]),
        ] {
            let known = known.iter().map(|&name| name.to_owned()).collect();
            let expected = NameError::MissingField { path: path.to_owned(), known };
            assert_eq!(rendered(&format!("<{path}>"), &values), Err(expected));
        }
    }

    #[test]
    fn refuses_what_is_no_text() {
        let values = json!({ "list": [1], "map": {}, "null": null, "nan": f64::NAN });
        for (path, found) in [("list", "list"), ("map", "map"), ("null", "none"), ("nan", "finite")]
        {
            match rendered(&format!("{{{path}}}"), &values) {
                Err(NameError::NotScalar { path: at, found: what }) => {
                    assert!(at == path && what.contains(found), "{path}: {at} {what}");
                }
                other => panic!("{path}: {other:?}"),
            }
        }
    }

    #[test]
    fn refuses_an_empty_name() {
        assert_eq!(rendered("", &()), Err(NameError::Empty));
        assert_eq!(rendered("<a><a>", &json!({ "a": "" })), Err(NameError::Empty));
    }

    #[test]
    fn refuses_values_that_do_not_serialise() -> Result<(), Error> {
        let template = Template::parse("<a>")?;
        let values = std::collections::BTreeMap::from([((1, 2), 3)]);
        let error = template.render(&values).expect_err("a map with tuples for keys");
        assert_eq!(error.kind(), ErrorKind::Name);
        assert!(error.to_string().contains("cannot be serialised"), "{error}");
        Ok(())
    }

    #[test]
    fn points_at_the_fault() {
        for (template, at, problem) in [
            ("é-<a", 3, "no `>`"),
            ("<a.b[c]", 0, "no `>`"),
            ("a>b", 1, "`>>`"),
            ("<a>>", 3, "`>>`"),
            ("}", 0, "`}}`"),
            ("a-<>", 2, "empty"),
            ("{}", 0, "empty"),
            ("<0>", 1, "letter"),
            ("< a>", 1, "' '"),
            ("<a }", 2, "' '"),
            ("<a}", 2, "'}'"),
            ("<a-b>", 2, "'-'"),
            ("<a\nb>", 2, "'\\n'"),
            ("<id:08x>", 3, "#[synchronized]"),
            ("<id()>", 3, "#[synchronized]"),
            ("<a.>", 3, "after `.`"),
            ("<a.1b>", 3, "after `.`"),
            ("<a[>", 2, "not closed"),
            ("<a[]>", 2, "empty"),
        ] {
            let found = rendered(template, &()).expect_err(template);
            assert!(matches!(found, NameError::Template { at: found, .. } if found == at));
            assert!(found.to_string().contains(problem), "{template}: {found}");
        }
    }
}
