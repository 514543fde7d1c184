//! The keys of a namespace: `<namespace>/<kind>/<queue>/<name>`, and `<namespace>/member/<member>`.

/// The keys of one queue.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    /// Those that begin with `prefix`, which ends with a slash.
    pub(crate) fn new(prefix: String) -> Self {
        Self { prefix }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key of this name.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The part after the prefix; `None`: it is the key of something else.
    pub(crate) fn name<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&self.prefix)
    }
}

/// The queue's part of a key under the prefix of its kind, if its name is one of these.
pub(crate) fn queue_of<'a>(
    key: &'a str,
    kind_prefix: &str,
    is_wanted: impl Fn(&str) -> bool,
) -> Option<&'a str> {
    let (queue, name) = key.strip_prefix(kind_prefix)?.split_once('/')?;
    is_wanted(name).then_some(queue)
}
