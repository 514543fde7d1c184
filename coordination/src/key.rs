//! Names as users write them, and the one way they become keys of a store.
//!
//! Every store gets the same encoding, made of letters, digits, `_`, `-`, `%` and `~`: safe as
//! a file name, a path segment of etcd or ZooKeeper, and a value in SQL or Redis. Different
//! names have different encodings, and no encoding contains a `/`, so that none is a path
//! prefix of another.
//!
//! Names are compared byte for byte: `A` and `a` differ, and so do an `é` in one character and
//! an `e` with a combining accent.

use std::borrow::Cow;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, OnceLock};

use data_encoding::BASE32_NOPAD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest, Sha256};

use crate::error::NameError;

/// The longest name in bytes, unless the configuration says otherwise.
pub(crate) const DEFAULT_MAX_NAME_BYTES: usize = 1024;

/// The longest name that a configuration can allow, because a name is stored with every entry and sent with every call.
pub(crate) const HARD_MAX_NAME_BYTES: usize = 65_536;

/// Leaves room in the 255 bytes of a file name for what a store adds to it.
const MAX_ENCODED_BYTES: usize = 200;

/// The encoding escapes `~`, so a hashed form never equals the encoding of another name.
const HASH_PREFIX: &str = "h~";

const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'-');

/// What is escaped where letters are not distinguished by their case.
#[cfg(any(feature = "file", test))]
const ESCAPED_CAPITALS: &AsciiSet = &{
    let (mut escaped, mut letter) = (NON_ALPHANUMERIC.remove(b'_').remove(b'-'), b'A');
    while letter <= b'Z' {
        escaped = escaped.add(letter);
        letter += 1;
    }
    escaped
};

/// One hasher for the whole process, so that equal names have equal hashes. It is random, so that nobody outside can choose names
/// whose hashes are equal.
static HASHER: OnceLock<RandomState> = OnceLock::new();

/// Identifies the queue of the contenders for one name: equal for equal names, on every store.
///
/// Cheap to clone. Equality is that of the full names, not of their hashes.
#[derive(Clone)]
pub(crate) struct QueueKey(Arc<Inner>);

struct Inner {
    kind: &'static str,
    name: String,
    /// The template that the name was made of, for the log. It does not belong to the key's identity.
    template: Option<Cow<'static, str>>,
    /// The hash of kind and name, computed once for all the maps that are keyed by this.
    hash: u64,
    #[cfg_attr(
        not(any(feature = "_network", feature = "file", test)),
        expect(dead_code, reason = "memory goes by the name itself")
    )]
    encoded: String,
}

impl Ord for QueueKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0.kind, &self.0.name).cmp(&(other.0.kind, &other.0.name))
    }
}

impl PartialOrd for QueueKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl QueueKey {
    /// Checks the name, prefix included, once; what holds a key needs no further check.
    ///
    /// `max_bytes` above [`HARD_MAX_NAME_BYTES`] counts as that.
    pub(crate) fn new(kind: &'static str, name: &str, max_bytes: usize) -> Result<Self, NameError> {
        let max = max_bytes.min(HARD_MAX_NAME_BYTES);
        match name.len() {
            0 => return Err(NameError::Empty),
            len if len > max => return Err(NameError::TooLong { len, max }),
            _ => {}
        }
        let encoded = encode(name);
        let hash = HASHER.get_or_init(RandomState::new).hash_one((kind, name));
        Ok(Self(Arc::new(Inner { kind, name: name.to_owned(), template: None, hash, encoded })))
    }

    /// Notes the template that the name was made of. Does nothing if the key was cloned before.
    pub(crate) fn of_template(mut self, template: Cow<'static, str>) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.template = Some(template);
        }
        self
    }

    /// The template from which the name was made; `None` if the name was given in full.
    pub(crate) fn template(&self) -> Option<&str> {
        self.0.template.as_deref()
    }

    /// The kind of recipe. A lock and an election of one name have different keys.
    pub(crate) fn kind(&self) -> &'static str {
        self.0.kind
    }

    /// The name in full, to be stored beside a hashed form and compared.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// The name encoded as one segment of a path, for stores whose keys or files are paths.
    #[cfg(any(feature = "_network", feature = "file", test))]
    pub(crate) fn encoded(&self) -> &str {
        &self.0.encoded
    }

    /// Whether the name cannot be read back from the key, so that a collision has to be checked.
    #[cfg(any(feature = "_network", test))]
    pub(crate) fn is_hashed(&self) -> bool {
        is_hashed(&self.0.encoded)
    }
}

impl PartialEq for QueueKey {
    fn eq(&self, other: &Self) -> bool {
        // Most often one key is a clone of the other, so the pointers are compared first: every lock on `file://` compares keys.
        Arc::ptr_eq(&self.0, &other.0)
            || (self.0.kind == other.0.kind && self.0.name == other.0.name)
    }
}

impl Eq for QueueKey {}

impl Hash for QueueKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl fmt::Debug for QueueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueKey").field(&self.0.kind).field(&self.0.name).finish()
    }
}

/// The name as one path segment of at most 200 bytes, different for different names.
pub(crate) fn encode(name: &str) -> String {
    let escaped = escape(name);
    if escaped.len() <= MAX_ENCODED_BYTES { escaped } else { hashed(name) }
}

/// Like [`encode`], but capital letters are escaped, so that different names stay different where case does not count.
/// [`unescape`] reads this too.
#[cfg(any(feature = "file", test))]
pub(crate) fn encode_folded(name: &str) -> String {
    let escaped = utf8_percent_encode(name, ESCAPED_CAPITALS).to_string();
    if escaped.len() <= MAX_ENCODED_BYTES { escaped } else { hashed(name) }
}

/// The text in letters, digits, `_`, `-` and `%`, however long.
pub(crate) fn escape(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// The text that [`escape`] made this of; `None` where it is not UTF-8.
#[cfg(any(feature = "_network", feature = "file", test))]
pub(crate) fn unescape(escaped: &str) -> Option<String> {
    Some(percent_encoding::percent_decode_str(escaped).decode_utf8().ok()?.into_owned())
}

/// Whether this is the form that [`encode`] gives to names too long to be kept.
#[cfg(any(feature = "_network", test))]
pub(crate) fn is_hashed(encoded: &str) -> bool {
    encoded.starts_with(HASH_PREFIX)
}

fn hashed(name: &str) -> String {
    let digest = Sha256::digest(name.as_bytes());
    let text = BASE32_NOPAD.encode(&digest).to_ascii_lowercase();
    format!("{HASH_PREFIX}{text}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn odd_names() -> Vec<String> {
        let long = "é".repeat(500);
        let odd = [
            ".",
            "..",
            "/",
            "//",
            "\0",
            "\n",
            "\r\n",
            "%",
            "%25",
            "%2F",
            "%2f",
            "'",
            "\"",
            "`",
            "'; DROP TABLE locks; --",
            "🔒",
            "\u{e9}",
            "e\u{301}",
            "A",
            "a",
            "a ",
            " a",
            "-a",
            "--",
            "a/b",
            "a%2Fb",
            "ab",
            "a/",
            "a.b",
            "{hash tag}",
            "{a}b",
            "~",
            "h~",
            "_",
            "é",
            &encode(&long),
            &long,
            &format!("{long}x"),
            &"x".repeat(200),
            &"x".repeat(201),
        ];
        let mut names: Vec<_> = odd.into_iter().map(str::to_owned).collect();
        names.sort();
        names.dedup(); // "\u{e9}" is there twice, spelled in two ways.
        names
    }

    /// Names likely to collide, if any do: short, or made of what the encoding is made of.
    fn any_name() -> impl Strategy<Value = String> {
        prop_oneof![any::<String>(), "[a-zA-Z0-9_-]{0,4}", "[aA%/.~h2Ff5é_-]{0,6}", "[aé]{190,210}",]
    }

    #[test]
    fn odd_names_have_encodings_of_their_own() {
        let names = odd_names();
        let mut encodings: Vec<_> = names.iter().map(|name| encode(name)).collect();
        encodings.sort();
        encodings.dedup();
        assert_eq!(encodings.len(), names.len());
    }

    #[test]
    fn encodings_are_stable() {
        assert_eq!(encode("vol-7_b"), "vol-7_b");
        assert_eq!(encode("a/b.c ~é"), "a%2Fb%2Ec%20%7E%C3%A9");
        assert_eq!(encode(".."), "%2E%2E");
        assert_eq!(encode(&"x".repeat(200)), "x".repeat(200));
        // python3: base64.b32encode(hashlib.sha256(b'x' * 201).digest()).lower().rstrip(b'=')
        assert_eq!(
            encode(&"x".repeat(201)),
            "h~qsqgpdeqsn7v3t4zstkymzti3jvzsuijzcwyivaqkwnurjhmv7wq"
        );
    }

    #[test]
    fn names_that_differ_only_in_case_stay_apart_where_case_does_not_count() {
        assert_eq!(encode_folded("Vol-7_B"), "%56ol-7_%42");
        assert_eq!(unescape("%56ol-7_%42").as_deref(), Some("Vol-7_B"));
        assert_eq!(encode_folded("vol-7_b/é"), encode("vol-7_b/é"));
        let long = ["x", "X"].map(|letter| encode_folded(&letter.repeat(100)));
        assert_eq!(long[0], "x".repeat(100));
        assert!(is_hashed(&long[1]), "{}", long[1]);
    }

    #[test]
    fn a_key_has_a_name_of_allowed_length() {
        let key = |name: &str, max| QueueKey::new("lock", name, max);
        assert_eq!(key("", 10).err(), Some(NameError::Empty));
        assert_eq!(key("é", 1).err(), Some(NameError::TooLong { len: 2, max: 1 }));
        assert!(key(&"x".repeat(DEFAULT_MAX_NAME_BYTES), DEFAULT_MAX_NAME_BYTES).is_ok());
        let too_long = NameError::TooLong { len: 1 << 20, max: HARD_MAX_NAME_BYTES };
        assert_eq!(key(&"x".repeat(1 << 20), usize::MAX).err(), Some(too_long));
    }

    #[test]
    fn a_key_knows_its_parts() -> Result<(), NameError> {
        let key = QueueKey::new("lock", "a/b", 10)?;
        assert_eq!((key.kind(), key.name(), key.encoded()), ("lock", "a/b", "a%2Fb"));
        assert!(!key.is_hashed());
        assert_eq!(key, QueueKey::new("lock", "a/b", 20)?);
        assert_ne!(key, QueueKey::new("election", "a/b", 10)?);
        assert!(QueueKey::new("lock", &"/".repeat(100), 100)?.is_hashed());
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn distinct_names_stay_apart(a in any_name(), b in any_name()) {
            let (left, right) = (encode(&a), encode(&b));
            prop_assert_eq!(a == b, left == right);
            prop_assert!(!left.contains('/') && left.len() <= MAX_ENCODED_BYTES);
            if a != b {
                let (left, right) = (format!("{left}/"), format!("{right}/"));
                prop_assert!(!left.starts_with(&right) && !right.starts_with(&left));
            }
        }

        #[test]
        fn distinct_names_stay_apart_where_case_does_not_count(a in any_name(), b in any_name()) {
            let (left, right) = (encode_folded(&a), encode_folded(&b));
            prop_assert!(left.len() <= MAX_ENCODED_BYTES);
            let (left, right) = (left.to_ascii_lowercase(), right.to_ascii_lowercase());
            prop_assert_eq!(a == b, left == right);
        }

        #[test]
        fn escaped_text_comes_back(text in any_name()) {
            prop_assert_eq!(unescape(&escape(&text)), Some(text));
        }
    }
}
