//! Lists of names: of queues that have a value, and of queues that have an entry.
//!
//! One part of a key stands for the queue. It is the queue's encoded name, or a hash if the name is too long. In the case of a
//! hash, the name is read from the text of an entry or of the value, which has it.

use super::stored::{name_in, queue_name};
use crate::error::Result;
use crate::key;

/// How many queues are read in one request. The number is small because a value may be large.
const BATCH: usize = 32;

/// How much of a queue is read to find the queue's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// One entry.
    One,
    /// All entries. This is used if the one entry did not give the name: that entry may have left since it was listed, or another
    /// library may have written it.
    All,
}

/// The sorted names of queues. `parts`: of each queue's key, the part that stands for the queue's name. If a name is long, this part
/// is only a hash of the name, and the name itself is in the text of the queue's value: `read` gets such parts, and returns the
/// texts of the values.
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
        // If a value was removed since its key was listed, `read` returns no text for it, and its queue has no name here.
        names.extend(read(batch.to_vec()).await?.iter().filter_map(|text| name_in(text)));
    }
    names.sort_unstable();
    Ok(names)
}

/// The sorted names of the queues whose keys have these parts. `read` gets some of these parts, and returns texts of entries of the
/// queues to which the parts belong. With each text, it returns the part for the entry's queue. If the part is a hash, the text has
/// the queue's name, unless another library wrote the text.
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
