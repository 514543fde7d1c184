//! Names and the keys that they become; numbers that are stored beside them.

use coordination_fuzzing::{Mutants, run};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use crate::error::NameError;
use crate::key::{HARD_MAX_NAME_BYTES, QueueKey, encode, escape, is_hashed, unescape};
use crate::token::FencingToken;

const NAMES: [&str; 10] = [
    "vol-7_b",
    "a/b.c ~é",
    "..",
    "a%2Fb",
    "h~qsqgpdeqsn7v3t4zstkymzti3jvzsuijzcwyivaqkwnurjhmv7wq",
    "e\u{301}",
    "18446744073709551615",
    "%C3%A9",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\
     xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "",
];

const TOKENS: [&str; 9] = ["/", "%", "~", "h~", "%2F", "%2f", "\0", "\n", "."];

/// Two names, which often differ little.
fn inputs() -> impl Strategy<Value = (String, String)> {
    let name = Mutants::of(NAMES).with_tokens(&TOKENS).text();
    let near = name.clone().prop_flat_map(|name| {
        (Just(name.clone()), Mutants::of([name]).with_tokens(&TOKENS).text())
    });
    prop_oneof![(name.clone(), name), near]
}

#[test]
fn fuzz_name() {
    run("fuzz_name", &inputs(), |(one, other)| {
        let (left, right) = (a_segment(&one)?, a_segment(&other)?);
        prop_assert_eq!(one == other, left == right);
        a_key(&one)?;
        a_stored_key(&one)?;
        a_token(&other)
    });
}

/// The encoded name, which any store can have as a part of a path.
fn a_segment(name: &str) -> Result<String, TestCaseError> {
    let encoded = encode(name);
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-%".contains(&byte);
    let plain = encoded.strip_prefix("h~").unwrap_or(&encoded);
    prop_assert!(plain.bytes().all(allowed) && encoded.len() <= 200, "{encoded}");
    prop_assert_eq!(is_hashed(&encoded), encoded.contains('~'));
    prop_assert_eq!(unescape(&escape(name)), Some(name.to_owned()));
    if !is_hashed(&encoded) {
        prop_assert_eq!(unescape(&encoded), Some(name.to_owned()));
    }
    Ok(encoded)
}

fn a_key(name: &str) -> TestCaseResult {
    match QueueKey::new("lock", name, usize::MAX) {
        Ok(key) => {
            prop_assert_eq!((key.name(), key.encoded()), (name, &*encode(name)));
            prop_assert_eq!(&key, &key.clone());
        }
        Err(NameError::Empty) => prop_assert!(name.is_empty()),
        Err(NameError::TooLong { len, max }) => {
            prop_assert!(len == name.len() && len > max && max == HARD_MAX_NAME_BYTES);
        }
        Err(other) => prop_assert!(false, "{other:?}"),
    }
    Ok(())
}

/// A store may list keys that other programs have written.
fn a_stored_key(encoded: &str) -> TestCaseResult {
    let Some(name) = unescape(encoded) else { return Ok(()) };
    // A name that was decoded from such a key does not change if it is encoded and decoded.
    prop_assert_eq!(unescape(&escape(&name)), Some(name));
    Ok(())
}

fn a_token(text: &str) -> TestCaseResult {
    if let Ok(token) = serde_json::from_str::<FencingToken>(text) {
        prop_assert_eq!(FencingToken::new(token.value()), Some(token));
        prop_assert_eq!(serde_json::to_string(&token).ok(), Some(token.to_string()));
        prop_assert_eq!(text.trim().parse().ok(), Some(token.value()));
    }
    Ok(())
}
