//! Checks of values, which are written once, by compare-and-set.

use std::sync::Arc;

use super::MOST_POLLS;
use super::test_store::{CALL, Client, TestStore, dropped_after, queue, retry_until_settled};
use crate::backend::{Beside, Data, MOST_BESIDE, Write};
use crate::error::Result;
use crate::key::QueueKey;

/// How often to read whether a call that was dropped has had an effect.
const LOOKS: u32 = 10;

pub(super) async fn write_once_by_compare_and_set(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
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

pub(super) async fn write_once_however_often_it_is_repeated(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let create = Write::new(&queue, None, Some("1".into()));
    let created = client.write(&create).await?;
    assert_eq!(client.write(&create).await?, created, "it answers what it answered");
    let change = Write::new(&queue, created, Some("2".into()));
    let changed = client.write(&change).await?;
    assert_eq!(client.write(&change).await?, changed, "it answers what it answered");
    // The other client has written since.
    let theirs = other.write(&Write::new(&queue, changed, Some("3".into()))).await?;
    for old in [&create, &change] {
        let answer = client.write(old).await?;
        assert!(answer.is_none() || answer < theirs, "{answer:?}");
        assert_eq!(client.value(&queue).await?.as_deref(), Some("3"));
    }
    Ok(())
}

pub(super) async fn write_once_if_there_is_no_entry(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
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

pub(super) async fn write_once_though_it_was_removed_since(tested: &TestStore<'_>) -> Result<()> {
    unanswered_and_repeated(tested, &[None]).await
}

pub(super) async fn write_once_though_it_was_written_over_since(
    tested: &TestStore<'_>,
) -> Result<()> {
    unanswered_and_repeated(tested, &[Some("2")]).await
}

pub(super) async fn write_once_though_it_was_written_over_and_removed_since(
    tested: &TestStore<'_>,
) -> Result<()> {
    unanswered_and_repeated(tested, &[Some("2"), None]).await
}

/// A value is created and the answer is lost, another client makes these changes, and the call is repeated.
async fn unanswered_and_repeated(tested: &TestStore<'_>, changes: &[Option<&str>]) -> Result<()> {
    let (client, other) = (tested.client("a").await?, tested.client("b").await?);
    // Another value is written first. So on a store that has to create something for all values together, that exists already.
    client.write(&Write::new(&queue("other"), None, Some("0".into()))).await?;
    for polls in 0..=MOST_POLLS {
        let queue = queue(&format!("{polls}"));
        let create = Write::new(&queue, None, Some("1".into()));
        if dropped_after(polls, client.store.write(&create)).await.is_some() {
            break;
        }
        // The call may have been dropped before anything was sent.
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

pub(super) async fn versions_rise_over_removals(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
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

pub(super) async fn cancel_safe_write(tested: &TestStore<'_>) -> Result<()> {
    let (client, queue) = (tested.client("a").await?, queue("q"));
    let mut version = None;
    for polls in 0..=MOST_POLLS {
        let write = Write::new(&queue, version, Some(format!("{polls}").into()));
        let dropped = dropped_after(polls, client.store.write(&write)).await;
        // Nobody else writes. So whether the dropped call or the repeated one was carried out, the repeated one reports the
        // version.
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

/// Changes of records that are written with a value: for each its name, its new data, and whether it is new.
pub(super) fn beside(records: &[(&str, Option<&str>, bool)]) -> Vec<Beside> {
    let record = |(name, data, is_new): &(&str, Option<&str>, bool)| Beside {
        name: (*name).into(),
        data: data.map(Data::from),
        is_new: *is_new,
    };
    records.iter().map(record).collect()
}

/// The data of the records with these names.
pub(super) async fn records(
    client: &Client,
    queue: &QueueKey,
    names: &[&str],
) -> Result<Vec<Option<String>>> {
    let names: Vec<Arc<str>> = names.iter().map(|name| (*name).into()).collect();
    let found = retry_until_settled(|| client.store.records(queue, &names)).await?;
    Ok(found.into_iter().map(|data| data.map(|data| data.to_string())).collect())
}

fn with(write: Write, records: &[(&str, Option<&str>, bool)]) -> Write {
    Write { beside: beside(records), ..write }
}

pub(super) async fn beside_is_written_with_the_value_or_not_at_all(
    tested: &TestStore<'_>,
) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let names = ["0p1-", "0p12-", "x"];
    assert_eq!(records(&client, &queue, &names).await?, [None, None, None]);
    let create = Write::new(&queue, None, Some("1".into()));
    let create = with(create, &[("0p1-", Some("one"), true), ("0p12-", Some("é \"\n"), true)]);
    let created = client.write(&create).await?;
    assert!(created.is_some());
    let there = [Some("one".to_owned()), Some("é \"\n".to_owned()), None];
    assert_eq!(records(&other, &queue, &names).await?, there);
    // The value is not as expected, so neither the value nor the record is written.
    let late = Write::new(&queue, None, Some("no".into()));
    assert_eq!(other.write(&with(late, &[("0p1-", Some("no"), false)])).await?, None);
    assert_eq!(records(&other, &queue, &names).await?, there);
    let change = Write::new(&queue, created, Some("2".into()));
    let change = with(change, &[("0p1-", None, false), ("x", Some("3"), true)]);
    let changed = other.write(&change).await?;
    assert!(changed > created);
    let there = [None, Some("é \"\n".to_owned()), Some("3".to_owned())];
    assert_eq!(records(&client, &queue, &names).await?, there);
    assert_eq!(client.value(&queue).await?.as_deref(), Some("2"));
    assert_eq!(client.names().await?, ["q"], "a record is no queue");
    assert!(client.is_empty(&queue).await?, "and no entry");
    // A new client finds all records.
    assert_eq!(records(&tested.client("c").await?, &queue, &names).await?, there);
    Ok(())
}

pub(super) async fn beside_as_much_as_is_allowed(tested: &TestStore<'_>) -> Result<()> {
    let (client, queue) = (tested.client("a").await?, queue("q"));
    let names: Vec<_> = (0..MOST_BESIDE).map(|number| format!("{number}-")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let text = "x".repeat(352 * 1024 / MOST_BESIDE);
    let mut expected = None;
    for data in [Some(&*text), Some("short"), None] {
        let all: Vec<_> = names.iter().map(|name| (*name, data, expected.is_none())).collect();
        let write = Write::new(&queue, expected, Some("1".into()));
        expected = client.write(&with(write, &all)).await?;
        assert!(expected.is_some());
        let found = records(&client, &queue, &names).await?;
        assert!(found.iter().all(|found| found.as_deref() == data));
    }
    Ok(())
}

pub(super) async fn beside_is_not_brought_back_by_a_repeated_write(
    tested: &TestStore<'_>,
) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let create = Write::new(&queue, None, Some("1".into()));
    let create = with(create, &[("x", Some("old"), true)]);
    let created = client.write(&create).await?;
    let change = Write::new(&queue, created, Some("2".into()));
    other.write(&with(change, &[("x", Some("new"), false)])).await?;
    client.write(&create).await?;
    assert_eq!(records(&client, &queue, &["x"]).await?, [Some("new".to_owned())]);
    Ok(())
}

pub(super) async fn beside_is_apart_by_queue(tested: &TestStore<'_>) -> Result<()> {
    let client = tested.client("a").await?;
    let long = "n".repeat(300);
    for name in ["q", "q/x", "q~records", &long] {
        let write = Write::new(&queue(name), None, Some("1".into()));
        client.write(&with(write, &[("x", Some(name), true)])).await?;
    }
    for name in ["q", "q/x", "q~records", &long] {
        assert_eq!(records(&client, &queue(name), &["x"]).await?, [Some(name.to_owned())]);
    }
    Ok(())
}
