//! The ids of instances and of holds: random letters, of which the last part is a secret.

use rand::RngExt;
use subtle::ConstantTimeEq;

/// Base32 in lower case.
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// What an instance is called by.
const SHORT: usize = 8;
/// What its holds are called by within it: so long that no two of them ever have one name.
const HANDLE: usize = 16;
/// 130 random bits.
const SECRET: usize = 26;

/// So many random letters.
pub(crate) fn letters(count: usize) -> String {
    let mut rng = rand::rng();
    let letter = |_| char::from(LETTERS[usize::from(rng.random::<u8>() & 31)]);
    (0..count).map(letter).collect()
}

/// What an instance is called by.
pub(crate) fn tag() -> String {
    letters(SHORT)
}

/// What only the one knows to whom it was granted. It has no `Debug`: it is to be in no log.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new() -> Self {
        Self(letters(SECRET))
    }

    /// Whether it is this one; how long that takes does not tell how much of it is right.
    pub(crate) fn is(&self, other: &str) -> bool {
        self.0.as_bytes().ct_eq(other.as_bytes()).into()
    }

    /// The whole id, for the answer to who was granted it.
    pub(crate) fn id(&self, handle: &str) -> String {
        format!("{handle}.{}", self.0)
    }
}

/// A new handle: an instance's tag, and a name within that.
pub(crate) fn handle(tag: &str) -> String {
    format!("{tag}.{}", letters(HANDLE))
}

/// A hold's id, taken apart: tag, handle and secret.
pub(crate) fn parse(id: &str) -> Option<(&str, &str, &str)> {
    let (handle, secret) = id.rsplit_once('.')?;
    let (tag, rest) = handle.split_once('.')?;
    let is_good = |text: &str, length| {
        text.len() == length && text.bytes().all(|byte| LETTERS.contains(&byte))
    };
    let known = is_good(tag, SHORT) && is_good(rest, HANDLE) && is_good(secret, SECRET);
    known.then_some((tag, handle, secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_made() {
        let tag = tag();
        let (handle, secret) = (handle(&tag), Secret::new());
        let id = secret.id(&handle);
        let (of, named, hidden) = parse(&id).expect("it is one");
        assert_eq!((of, named), (tag.as_str(), handle.as_str()));
        assert!(secret.is(hidden) && !secret.is(&hidden[1..]) && !Secret::new().is(hidden));
        for wrong in ["", "a.b.c", &id[1..], &id.to_uppercase(), &format!("{id}x")] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }
}
