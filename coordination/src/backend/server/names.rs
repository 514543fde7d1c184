//! Lists of names: of queues that have a value, and of queues that have an entry.
//!
//! The queue's part of a key encodes the queue's name. If the name is too long, that part is a hash, and the name is read from an
//! entry or from the value.

use super::stored::{name_in, queue_name};
use crate::error::Result;
use crate::key;

/// How many queues are read in one request: a value may be large.
const BATCH: usize = 32;

/// How much of a queue is read for its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// One entry.
    One,
    /// All entries, because the one entry that was read first has left since, or was written by another library.
    All,
}

/// The sorted names of the queues whose keys have these parts. `read` returns the values of queues whose part is a hash.
pub(crate) async fn of_values<F>(
    parts: impl IntoIterator<Item = String>,
    read: impl Fn(Vec<String>) -> F,
) -> Result<Vec<String>>
where
    F: Future<Output = Result<Vec<Vec<u8>>>>,
{
    let (hashed, plain): (Vec<_>, Vec<_>) =
        parts.into_iter().partition(|part| key::is_hashed(part));
    let mut names: Vec<_> = plain.iter().filter_map(|part| key::unescape(part)).collect();
    for batch in hashed.chunks(BATCH) {
        // A value that was removed since the keys were listed is not among the texts.
        names.extend(read(batch.to_vec()).await?.iter().filter_map(|text| name_in(text)));
    }
    names.sort_unstable();
    Ok(names)
}

/// The sorted names of the queues whose keys have these parts. `read` returns the texts of entries, each with its queue's part of
/// the key: a text has the queue's name, unless another library wrote it.
pub(crate) async fn of_entries<F>(
    parts: impl IntoIterator<Item = String>,
    read: impl Fn(Vec<String>, Extent) -> F,
) -> Result<Vec<String>>
where
    F: Future<Output = Result<Vec<(String, Vec<u8>)>>>,
{
    let (mut parts, mut names): (Vec<_>, _) = (parts.into_iter().collect(), Vec::new());
    for extent in [Extent::One, Extent::All] {
        let mut unknown = Vec::new();
        for batch in parts.chunks(BATCH) {
            let texts = read(batch.to_vec(), extent).await?;
            for part in batch {
                let mut own = texts.iter().filter(|(of, _)| of == part);
                let name = own.find_map(|(_, text)| queue_name(part, text));
                unknown.extend(name.is_none().then(|| part.clone()));
                names.extend(name);
            }
        }
        parts = unknown;
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashed() -> (String, String, Vec<u8>) {
        let name = "é/".repeat(150);
        let text = serde_json::json!({ "member": "m", "since_ms": 1, "name": name });
        (key::encode(&name), name, text.to_string().into_bytes())
    }

    #[tokio::test]
    async fn only_hashed_names_are_asked_for() -> Result<()> {
        let (part, name, text) = hashed();
        let read = |batch: Vec<String>| {
            let text = text.clone();
            async move { Ok(batch.iter().map(|_| text.clone()).collect()) }
        };
        let names = of_values(["b".to_owned(), part, "a%2F".to_owned()], read).await?;
        assert_eq!(names, ["a/".to_owned(), "b".to_owned(), name]);
        Ok(())
    }

    #[tokio::test]
    async fn where_the_first_entry_says_nothing_all_are_read() -> Result<()> {
        let (part, name, text) = hashed();
        let read = |batch: Vec<String>, extent| {
            let text = if extent == Extent::One { b"of another".to_vec() } else { text.clone() };
            async move { Ok(batch.into_iter().map(|part| (part, text.clone())).collect()) }
        };
        assert_eq!(of_entries([part], read).await?, [name]);
        Ok(())
    }

    #[tokio::test]
    async fn a_queue_that_became_empty_has_no_name() -> Result<()> {
        let read = |_: Vec<String>, _| async { Ok(Vec::new()) };
        assert!(of_entries(["a".to_owned()], read).await?.is_empty());
        Ok(())
    }
}
