//! Names with placeholders, and the values that are filled in.

use std::error::Error as _;

use coordination_fuzzing::{Mutants, as_literal, run};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use serde_json::{Value, json};

use crate::error::{Error, ErrorKind, NameError};
use crate::template::Template;

const TEMPLATES: [&str; 6] = [
    "share-<share.id>-{hosts[0]}",
    "100%-<<literal>>{{x}}",
    "<share.né_1><list.0.1>{map[a key]}",
    "{map[a>b:}]}<_x>",
    "plain",
    "<a>-<b>",
];

const TOKENS: [&str; 14] = [
    "<",
    ">",
    "{",
    "}",
    "<<",
    "}}",
    "[",
    "]",
    ".",
    ":",
    "()",
    "é",
    "[99999999999999999999]",
    "<a>",
];

const VALUES: &str = r#"{"share":{"id":7,"né_1":"x"},"hosts":["alpha",["b"]],"list":[[1,2.5,true]],
    "map":{"a key":-1,"a>b:}":null,"3":"three"},"_x":18446744073709551615,"a":1e300,"b":""}"#;

#[derive(Clone, Debug)]
enum Input {
    Any {
        template: String,
        values: String,
    },
    /// Parts whose meaning is known: text, or a path of these values.
    Known(Vec<Part>),
}

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    /// The index of a path in [`PATHS`], and whether it is written in `<>` or in `{}`.
    Path(usize, bool),
}

/// Paths into [`known_values`], and what is there.
const PATHS: [(&str, &str); 8] = [
    ("a", "x<y"),
    ("b.c", "7"),
    ("b.0", "zero"),
    ("l[0]", "0.5"),
    ("l.1", "true"),
    ("m[k>e}y]", "-9223372036854775808"),
    ("m[3]", "1"),
    ("é_9", "}"),
];

fn known_values() -> Value {
    json!({
        "a": "x<y", "b": { "c": 7, "0": "zero" }, "l": [0.5, true],
        "m": { "k>e}y": i64::MIN, "3": 1.0 }, "é_9": "}",
    })
}

fn inputs() -> impl Strategy<Value = Input> {
    let template = Mutants::of(TEMPLATES).with_tokens(&TOKENS).text();
    let values = prop_oneof![
        Just(VALUES.to_owned()),
        Mutants::of([VALUES]).with_tokens(&["{", "[", "null", "\"a\":"]).text(),
    ];
    let part = prop_oneof![
        any::<String>().prop_map(Part::Text),
        select(&TOKENS[..]).prop_map(|text| Part::Text(text.to_owned())),
        (0..PATHS.len(), any::<bool>()).prop_map(|(path, angled)| Part::Path(path, angled)),
    ];
    prop_oneof![
        3 => (template, values).prop_map(|(template, values)| Input::Any { template, values }),
        1 => vec(part, 0..6).prop_map(Input::Known),
    ]
}

#[test]
fn fuzz_template() {
    let known = known_values();
    run("fuzz_template", &inputs(), |input| match input {
        Input::Any { template, values } => {
            any_template(&template, &serde_json::from_str(&values).unwrap_or(Value::Null))
        }
        Input::Known(parts) => known_template(&parts, &known),
    });
}

fn any_template(source: &str, values: &Value) -> TestCaseResult {
    let template = match Template::parse(source) {
        Ok(template) => template,
        Err(error) => {
            let Some(NameError::Template { at, .. }) = cause(&error) else {
                return Err(TestCaseError::fail(format!("{error:?}")));
            };
            prop_assert!(source.is_char_boundary(*at), "{error}");
            return Ok(());
        }
    };
    prop_assert_eq!(template.to_string(), source);
    prop_assert_eq!(source.parse::<Template>().ok(), Some(template.clone()));
    match template.render(values) {
        Ok(name) => prop_assert!(!name.is_empty()),
        Err(error) => {
            let told = matches!(
                cause(&error),
                Some(
                    NameError::MissingField { .. } | NameError::NotScalar { .. } | NameError::Empty
                )
            );
            prop_assert!(told && error.kind() == ErrorKind::Name, "{error:?}");
            // The error lists the names that exist, and stays short.
            prop_assert!(error.to_string().len() <= 1024 + source.len() + values.to_string().len());
        }
    }
    Ok(())
}

fn cause(error: &Error) -> Option<&NameError> {
    error.source()?.downcast_ref()
}

fn known_template(parts: &[Part], values: &Value) -> TestCaseResult {
    let (mut source, mut expected) = (String::new(), String::new());
    for part in parts {
        match part {
            Part::Text(text) => {
                expected.push_str(text);
                source.push_str(&as_literal(text));
            }
            Part::Path(path, angled) => {
                let (path, value) = PATHS[*path];
                let (open, close) = if *angled { ('<', '>') } else { ('{', '}') };
                source.extend([open]);
                source.push_str(path);
                source.extend([close]);
                expected.push_str(value);
            }
        }
    }
    let name = Template::parse(&source).and_then(|template| template.render(values));
    match name {
        Ok(name) => prop_assert_eq!(name, expected, "{}", source),
        Err(error) => {
            prop_assert!(
                expected.is_empty() && cause(&error) == Some(&NameError::Empty),
                "{source}"
            );
        }
    }
    Ok(())
}
