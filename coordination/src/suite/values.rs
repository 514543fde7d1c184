//! Values: written by compare-and-set, once.

use super::MOST_POLLS;
use super::stage::{CALL, Client, Stage, dropped_after, queue};
use crate::backend::Write;
use crate::error::Result;
use crate::key::QueueKey;

/// How often to look whether a call that was dropped has had an effect.
const LOOKS: u32 = 10;

pub(super) async fn write_once_by_compare_and_set(stage: &Stage<'_>) -> Result<()> {
    let (client, other, queue) = (stage.client("a").await?, stage.client("b").await?, queue("q"));
    let created = client.write(&Write::new(&queue, None, Some("1".into()))).await?;
    assert!(created.is_some(), "there was none");
    let refused = other.write(&Write::new(&queue, None, Some("no".into()))).await?;
    assert_eq!(refused, None, "there is one");
    let other_version = created.map(|version| version + 1);
    let refused = other.write(&Write::new(&queue, other_version, Some("no".into()))).await?;
    assert_eq!(refused, None, "it has another version");
    let written = other.write(&Write::new(&queue, created, Some("2".into()))).await?;
    assert!(written > created);
    assert_eq!(client.write(&Write::new(&queue, created, None)).await?, None);
    assert_eq!(client.value(&queue).await?.as_deref(), Some("2"));
    let removed = client.write(&Write::new(&queue, written, None)).await?;
    assert_eq!(removed, written, "a removal answers the version that there was");
    assert_eq!(other.value(&queue).await?, None);
    Ok(())
}

pub(super) async fn write_once_however_often_it_is_repeated(stage: &Stage<'_>) -> Result<()> {
    let (client, other, queue) = (stage.client("a").await?, stage.client("b").await?, queue("q"));
    let create = Write::new(&queue, None, Some("1".into()));
    let created = client.write(&create).await?;
    assert_eq!(client.write(&create).await?, created, "it answers what it answered");
    let change = Write::new(&queue, created, Some("2".into()));
    let changed = client.write(&change).await?;
    assert_eq!(client.write(&change).await?, changed, "it answers what it answered");
    // Others have written since.
    let theirs = other.write(&Write::new(&queue, changed, Some("3".into()))).await?;
    for old in [&create, &change] {
        let answer = client.write(old).await?;
        assert!(answer.is_none() || answer < theirs, "{answer:?}");
        assert_eq!(client.value(&queue).await?.as_deref(), Some("3"));
    }
    Ok(())
}

pub(super) async fn write_once_if_there_is_no_entry(stage: &Stage<'_>) -> Result<()> {
    let (client, other, queue) = (stage.client("a").await?, stage.client("b").await?, queue("q"));
    let (entry, position) = other.enter(&queue).await?;
    let write =
        |data: &str| Write { if_empty: true, ..Write::new(&queue, None, Some(data.into())) };
    assert_eq!(client.write(&write("no")).await?, None);
    assert_eq!(client.value(&queue).await?, None);
    other.leave(&entry, Some(position.seq)).await?;
    assert!(client.write(&write("yes")).await?.is_some());
    assert_eq!(client.value(&queue).await?.as_deref(), Some("yes"));
    Ok(())
}

pub(super) async fn write_once_though_it_was_removed_since(stage: &Stage<'_>) -> Result<()> {
    unanswered_and_repeated(stage, &[None]).await
}

pub(super) async fn write_once_though_it_was_written_over_since(stage: &Stage<'_>) -> Result<()> {
    unanswered_and_repeated(stage, &[Some("2")]).await
}

pub(super) async fn write_once_though_it_was_written_over_and_removed_since(
    stage: &Stage<'_>,
) -> Result<()> {
    unanswered_and_repeated(stage, &[Some("2"), None]).await
}

/// A value is created and the answer is lost, another client makes these changes, and the call is repeated.
async fn unanswered_and_repeated(stage: &Stage<'_>, changes: &[Option<&str>]) -> Result<()> {
    let (client, other) = (stage.client("a").await?, stage.client("b").await?);
    // What stands above values is there already, on a store where that has to be made.
    client.write(&Write::new(&queue("other"), None, Some("0".into()))).await?;
    for polls in 0..=MOST_POLLS {
        let queue = queue(&format!("{polls}"));
        let create = Write::new(&queue, None, Some("1".into()));
        if dropped_after(polls, client.store.write(&create)).await.is_some() {
            break;
        }
        // It may have been dropped before anything was sent.
        let Some(made) = created(&other, &queue).await? else { continue };
        let mut version = made;
        for change in changes {
            let write = Write::new(&queue, Some(version), change.map(Into::into));
            version = other.write(&write).await?.expect("nobody else writes");
        }
        let now = other.read(&queue).await?.value;
        let answer = client.write(&create).await?;
        assert!(answer.is_none_or(|answer| answer == made), "{polls} polls: {answer:?}");
        assert_eq!(other.read(&queue).await?.value, now, "{polls} polls: it was written twice");
    }
    Ok(())
}

/// The version of a value that is perhaps being created.
async fn created(client: &Client, queue: &QueueKey) -> Result<Option<u64>> {
    for _ in 0..LOOKS {
        if let Some(value) = client.read(queue).await?.value {
            return Ok(Some(value.version));
        }
        tokio::time::sleep(CALL / LOOKS).await;
    }
    Ok(None)
}

pub(super) async fn versions_rise_over_removals(stage: &Stage<'_>) -> Result<()> {
    let (client, other, queue) = (stage.client("a").await?, stage.client("b").await?, queue("q"));
    let mut last = None;
    for client in [&client, &other, &client] {
        let created = client.write(&Write::new(&queue, None, Some("1".into()))).await?;
        let changed = client.write(&Write::new(&queue, created, Some("2".into()))).await?;
        assert!(last < created && created < changed, "{last:?}, {created:?}, {changed:?}");
        last = client.write(&Write::new(&queue, changed, None)).await?;
        assert_eq!(last, changed);
    }
    Ok(())
}

pub(super) async fn cancel_safe_write(stage: &Stage<'_>) -> Result<()> {
    let (client, queue) = (stage.client("a").await?, queue("q"));
    let mut version = None;
    for polls in 0..=MOST_POLLS {
        let write = Write::new(&queue, version, Some(format!("{polls}").into()));
        let dropped = dropped_after(polls, client.store.write(&write)).await;
        // Nobody else writes, so whichever of the two was carried out, the repeated one says so.
        let written = client.write(&write).await?;
        let listing = client.read(&queue).await?;
        let value = listing.value.expect("it was written");
        assert_eq!(
            (Some(value.version), &value.data),
            (written, write.data.as_ref().unwrap_or(&value.data))
        );
        version = written;
        if dropped.is_some() {
            break;
        }
    }
    Ok(())
}
