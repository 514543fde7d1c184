//! Checks of calls that reach the store after later ones. Their clients have given them up, and made the calls again on another
//! connection.

use std::future::Future;

use super::test_store::{CALL, Client, TestStore, queue};
use super::values::{beside, records};
use crate::backend::{Mode, NewEntry, Write};
use crate::error::{Effect, Result};

/// Makes a call whose request is kept back, and whose client gives it up.
async fn kept_back<T: std::fmt::Debug>(
    tested: &TestStore<'_>,
    call: impl Future<Output = Result<T>>,
) -> Option<Result<T>> {
    tested.proxy().hold();
    let mut call = Box::pin(call);
    let early = tokio::time::timeout(CALL, call.as_mut()).await;
    assert!(!matches!(early, Ok(Ok(_))), "it was answered, though its request was kept back");
    tested.proxy().part();
    let answer = match early {
        Ok(answer) => Some(answer),
        // The call's connection has broken. The call may fail because of that; otherwise it is given up.
        Err(_) => tokio::time::timeout(CALL, call).await.ok(),
    };
    assert!(!matches!(answer, Some(Ok(_))), "it was answered, though its request was kept back");
    answer
}

/// Lets what was kept back arrive.
async fn arrive(tested: &TestStore<'_>) {
    tested.proxy().let_go();
    tokio::time::sleep(tested.proxy().arrival()).await;
}

/// A client that the proxy disturbs, another one, and an entry of the first.
async fn entered(tested: &TestStore<'_>) -> Result<(Client, Client, NewEntry, u64)> {
    let (client, other) = (tested.client_by_proxy("a").await?, tested.client("b").await?);
    let (entry, position) = client.enter(&queue("q")).await?;
    Ok((client, other, entry, position.seq))
}

pub(super) async fn late_open_after_close(tested: &TestStore<'_>) -> Result<()> {
    let (client, other) = (tested.client_by_proxy("a").await?, tested.client("b").await?);
    kept_back(tested, client.store.open(&client.session)).await;
    client.open_again().await?;
    client.close().await?;
    arrive(tested).await;
    Client::open(other.store.clone(), "a").await?;
    Ok(())
}

pub(super) async fn late_open_after_the_next_session(tested: &TestStore<'_>) -> Result<()> {
    let (client, other) = (tested.client_by_proxy("a").await?, tested.client("b").await?);
    kept_back(tested, client.store.open(&client.session)).await;
    client.close().await?;
    let next = Client::open(client.store.clone(), "a").await?;
    let (_, position) = next.enter(&queue("q")).await?;
    arrive(tested).await;
    assert_eq!(other.numbers(&queue("q")).await?, [position.seq], "it has ended the next one");
    next.close().await?;
    Client::open(other.store.clone(), "a").await?;
    Ok(())
}

pub(super) async fn late_enter_after_leave(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, before, seq) = entered(tested).await?;
    client.leave(&before, Some(seq)).await?;
    let entry = client.entry(&queue("q"), Mode::Exclusive, "");
    kept_back(tested, client.store.enter(&entry)).await;
    client.leave(&entry, None).await?;
    arrive(tested).await;
    assert!(other.is_empty(&queue("q")).await?, "the entry that was left has come back");
    Ok(())
}

pub(super) async fn late_enter_of_a_shared_entry_after_leave(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, _, seq) = entered(tested).await?;
    let entry = client.entry(&queue("q"), Mode::Shared, "");
    kept_back(tested, client.store.enter(&entry)).await;
    client.leave(&entry, None).await?;
    arrive(tested).await;
    assert_eq!(other.numbers(&queue("q")).await?, [seq], "the entry that was left has come back");
    Ok(())
}

pub(super) async fn late_enter_after_it_was_entered_and_left(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, _, seq) = entered(tested).await?;
    let entry = client.entry(&queue("q"), Mode::Exclusive, "");
    kept_back(tested, client.store.enter(&entry)).await;
    let position = client.enter_this(&entry).await?;
    client.leave(&entry, Some(position.seq)).await?;
    arrive(tested).await;
    assert_eq!(other.numbers(&queue("q")).await?, [seq], "the entry that was left has come back");
    Ok(())
}

pub(super) async fn repeat_enter_while_the_first_is_late(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, _, seq) = entered(tested).await?;
    let entry = client.entry(&queue("q"), Mode::Exclusive, "");
    kept_back(tested, client.store.enter(&entry)).await;
    let position = client.enter_this(&entry).await?;
    arrive(tested).await;
    assert_eq!(other.numbers(&queue("q")).await?, [seq, position.seq]);
    let now = client.position(&entry, position.seq).await?.expect("it was entered");
    assert_eq!(now.seq, position.seq);
    Ok(())
}

pub(super) async fn late_update_after_update(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, entry, seq) = entered(tested).await?;
    let old = NewEntry { data: "old".into(), ..entry.clone() };
    let new = NewEntry { data: "new".into(), ..entry };
    kept_back(tested, client.store.update(&old, seq)).await;
    assert!(client.update(&new, seq).await?);
    arrive(tested).await;
    let listing = other.read(&queue("q")).await?;
    assert_eq!(listing.entry(seq).map(|entry| &*entry.data), Some("new"));
    Ok(())
}

pub(super) async fn late_update_after_leave(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, entry, seq) = entered(tested).await?;
    let old = NewEntry { data: "old".into(), ..entry.clone() };
    kept_back(tested, client.store.update(&old, seq)).await;
    client.leave(&entry, Some(seq)).await?;
    let (_, position) = client.enter(&queue("q")).await?;
    arrive(tested).await;
    let listing = other.read(&queue("q")).await?;
    let said: Vec<_> = listing.entries.iter().map(|entry| (entry.seq, &*entry.data)).collect();
    assert_eq!(said, [(position.seq, "")], "it is not about the next entry");
    Ok(())
}

pub(super) async fn exact_leave_that_is_late(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, entry, seq) = entered(tested).await?;
    kept_back(tested, client.store.leave(&entry.entry_ref, Some(seq))).await;
    client.leave(&entry, Some(seq)).await?;
    let (_, position) = client.enter(&queue("q")).await?;
    arrive(tested).await;
    assert_eq!(other.numbers(&queue("q")).await?, [position.seq], "the next one stays");
    Ok(())
}

pub(super) async fn late_write_after_a_removal(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, _, _) = entered(tested).await?;
    let create = Write::new(&queue("q"), None, Some("1".into()));
    kept_back(tested, client.store.write(&create)).await;
    let version = client.write(&create).await?;
    assert!(version.is_some(), "nobody else writes");
    let removed = other.write(&Write::new(&queue("q"), version, None)).await?;
    assert_eq!(removed, version);
    arrive(tested).await;
    assert_eq!(other.value(&queue("q")).await?, None, "the value that was removed has come back");
    Ok(())
}

pub(super) async fn late_write_after_another(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, _, _) = entered(tested).await?;
    let first = other.write(&Write::new(&queue("q"), None, Some("1".into()))).await?;
    let write = Write::new(&queue("q"), first, Some("late".into()));
    kept_back(tested, client.store.write(&write)).await;
    let second = other.write(&Write::new(&queue("q"), first, Some("2".into()))).await?;
    assert!(second.is_some());
    arrive(tested).await;
    assert_eq!(other.value(&queue("q")).await?.as_deref(), Some("2"));
    Ok(())
}

pub(super) async fn late_write_brings_nothing_beside_it(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, _, _) = entered(tested).await?;
    let first = other.write(&Write::new(&queue("q"), None, Some("1".into()))).await?;
    let write = Write::new(&queue("q"), first, Some("late".into()));
    let write = Write { beside: beside(&[("x", Some("late"), true)]), ..write };
    kept_back(tested, client.store.write(&write)).await;
    let next = Write::new(&queue("q"), first, Some("2".into()));
    let next = Write { beside: beside(&[("y", Some("2"), true)]), ..next };
    assert!(other.write(&next).await?.is_some());
    arrive(tested).await;
    let found = records(&other, &queue("q"), &["x", "y"]).await?;
    assert_eq!(found, [None, Some("2".to_owned())]);
    Ok(())
}

pub(super) async fn write_once_though_it_arrives_twice(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, _, _) = entered(tested).await?;
    let write = Write::new(&queue("q"), None, Some("1".into()));
    kept_back(tested, client.store.write(&write)).await;
    let version = client.write(&write).await?;
    arrive(tested).await;
    let value = other.read(&queue("q")).await?.value.expect("it was written");
    assert_eq!(Some(value.version), version, "it was written again");
    Ok(())
}

pub(super) async fn effect_without_an_answer_is_unknown(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, _, _) = entered(tested).await?;
    let write = Write::new(&queue("q"), None, Some("1".into()));
    if let Some(Err(error)) = kept_back(tested, client.store.write(&write)).await {
        assert_eq!(error.effect(), Effect::Unknown, "{error}: it is carried out yet");
    }
    arrive(tested).await;
    // A server may refuse a request that arrives on a connection which the session does not use any more.
    let value = other.value(&queue("q")).await?;
    assert!(value.as_deref().is_none_or(|value| value == "1"), "{value:?}");
    Ok(())
}
