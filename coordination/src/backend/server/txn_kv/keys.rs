//! The keys of a namespace: `<namespace>/<kind>/<queue>/<name>` for an entry, a value or a mark, and `<namespace>/member/<member>`
//! for a member id. The latter is called the member's key, and belongs to the session that has this member id.

/// The keys that belong to one queue, which begin with the same prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    /// The keys that begin with `prefix`, which ends with a slash.
    pub(crate) fn new(prefix: String) -> Self {
        Self { prefix }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key of the entry, value or mark with this name.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The part of a key after the prefix; `None`: the key does not have the prefix.
    pub(crate) fn name<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&self.prefix)
    }
}

/// The encoded name of the queue to which this key belongs. `None`: the key does not begin with `kind_prefix`, or `is_wanted` is
/// false for the last part of the key.
pub(crate) fn queue_of<'a>(
    key: &'a str,
    kind_prefix: &str,
    is_wanted: impl Fn(&str) -> bool,
) -> Option<&'a str> {
    let (queue, name) = key.strip_prefix(kind_prefix)?.split_once('/')?;
    is_wanted(name).then_some(queue)
}
