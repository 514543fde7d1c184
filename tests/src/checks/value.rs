//! VA1–VA3: of several writers that replace the same version, one succeeds; each addition is counted once; and
//! watchers reach the last value.

mod counter;
mod watching;

use std::time::Duration;

use coordination::{
    Coordinator, Counter, Effect, ErrorKind, Result, SharedValue, ValueEvent, ValueWatch, Version,
    Versioned,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::TestStore;
use super::interruption::{FRAMES, Pair, at_every_cut, least_cuts};
use super::tools::PATIENCE;

pub use counter::*;
pub use watching::*;

/// The name of the value and of the counter in these checks.
const NAME: &str = "limit";

fn value(coordinator: &Coordinator) -> SharedValue<u64> {
    coordinator.value(NAME).expect("a valid name")
}

fn counter(coordinator: &Coordinator) -> Counter {
    coordinator.counter(NAME).expect("a valid name")
}

/// A client with a long heartbeat interval, so that a call has much time: on a busy machine an answer may take longer
/// than the interval of the tests, and would then count as lost.
async fn connect(store: &TestStore, member: &str) -> Result<Coordinator> {
    let settings = store.settings().ttl(Duration::from_secs(30)).heartbeat(Duration::from_secs(5));
    settings.member_id(member).connect(store.url()).await
}

/// The next value that a watch returns, within the timeout of the checks; `None` when there is none.
async fn told(changes: &mut ValueWatch<u64>) -> Result<Option<Versioned<u64>>> {
    let event = timeout(PATIENCE, changes.next()).await.expect("a watch tells");
    event.map(ValueEvent::into_value)
}

/// VA1: of many writers that replace the same version, exactly one succeeds.
pub async fn va1_of_many_writers_one_wins(store: &TestStore) -> Result<()> {
    let mut clients = Vec::new();
    for client in 0..3 {
        clients.push(connect(store, &format!("client-{client}")).await?);
    }
    let mut expected: Option<Version> = None;
    for round in 0..store.rounds(60, 10) {
        let mut writers = JoinSet::new();
        for writer in 0..9_u64 {
            let value = value(&clients[round % 3]);
            writers.spawn(async move {
                let wrote = value.compare_and_set(expected, &writer).await;
                wrote.map(|wrote| wrote.map(|version| (version, writer)))
            });
        }
        let outcomes = writers.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
        let winners: Vec<_> = outcomes.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1, "{winners:?}");
        let present = value(&clients[(round + 1) % 3]).read().await?.expect("one wrote");
        assert_eq!((present.version, present.value), winners[0]);
        assert!(Some(present.version) > expected);
        expected = Some(present.version);
    }
    Ok(())
}

/// VA1: versions rise, also over a deletion; a writer that expects an old version changes nothing.
pub async fn va1_versions_rise_over_deletion(store: &TestStore) -> Result<()> {
    let (one, other) = (connect(store, "one").await?, connect(store, "other").await?);
    let (one, other) = (value(&one), value(&other));
    assert!(!one.delete().await?, "there is nothing yet");
    let mut last: Option<Version> = None;
    for round in 0..store.rounds(20, 5) {
        assert_eq!(one.read().await?, None);
        if last.is_some() {
            assert_eq!(one.compare_and_set(last, &0).await?, None, "it was deleted");
        }
        let first = match round % 2 {
            0 => one.set(&1).await?,
            _ => one.compare_and_set(None, &1).await?.expect("there is no value"),
        };
        assert!(Some(first) > last, "{first} after {last:?}");
        assert_eq!(other.compare_and_set(None, &2).await?, None, "there is one");
        let second = other.set(&2).await?;
        let third = other.compare_and_set(Some(second), &3).await?.expect("nobody was faster");
        assert!(first < second && second < third);
        for old in [first, second] {
            assert_eq!(one.compare_and_set(Some(old), &9).await?, None);
            assert!(!one.compare_and_delete(old).await?);
        }
        let present = one.read().await?.expect("it was written");
        assert_eq!((present.version, present.value), (third, 3));
        match round % 2 {
            0 => assert!(one.compare_and_delete(third).await?),
            _ => assert!(other.delete().await?),
        }
        assert!(!other.compare_and_delete(third).await?, "it was deleted already");
        last = Some(third);
    }
    Ok(())
}

/// VA1: updates that several clients make at the same time all take effect.
pub async fn va1_updates_are_not_lost(store: &TestStore) -> Result<()> {
    let list = connect(store, "reader").await?.value::<Vec<(usize, usize)>>("list")?;
    let rounds = store.rounds(20, 4);
    let mut tasks = JoinSet::new();
    for client in 0..3_usize {
        let coordinator = connect(store, &format!("client-{client}")).await?;
        for task in 0..2_usize {
            let list = coordinator.value::<Vec<(usize, usize)>>("list")?;
            tasks.spawn(async move {
                for round in 0..rounds {
                    let changed = list.update(|list| {
                        let mut list = list.unwrap_or_default();
                        list.push((2 * client + task, round));
                        list
                    });
                    assert!(changed.await?.value.contains(&(2 * client + task, round)));
                }
                Ok::<_, coordination::Error>(())
            });
        }
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.expect("no panic")?;
    }
    let list = list.read().await?.expect("it was written").value;
    assert_eq!(list.len(), 6 * rounds, "each once");
    for writer in 0..6 {
        let of_writer: Vec<_> = list.iter().filter(|(by, _)| *by == writer).collect();
        assert!(of_writer.is_sorted(), "{of_writer:?}");
    }
    Ok(())
}

/// VA1: a value that is too large, is no JSON or has another type is refused with its kind of error, and changes
/// nothing.
pub async fn va1_what_cannot_be_stored_is_refused(store: &TestStore) -> Result<()> {
    const MOST: usize = 256 * 1024;
    let one = store.connect("one").await?;
    let text = one.value::<String>(NAME)?;
    let fit = "x".repeat(MOST - 2);
    let version = text.set(&fit).await?;
    let refused = text.set(&format!("{fit}x")).await.expect_err("it is too large");
    assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Value, Effect::None));
    assert!(refused.to_string().contains(&MOST.to_string()), "{refused}");
    let no_json = one.value::<std::collections::BTreeMap<Vec<u8>, u8>>(NAME)?;
    let refused = no_json.set(&[(vec![1], 1)].into()).await.expect_err("a key is no text");
    assert_eq!(refused.kind(), ErrorKind::Value);
    let number = one.value::<u64>(NAME)?;
    let refused = number.read().await.expect_err("it is a text");
    assert_eq!((refused.kind(), refused.key()), (ErrorKind::Corrupt, Some(NAME)));
    assert_eq!(number.update(|_| 1).await.expect_err("a text").kind(), ErrorKind::Corrupt);
    let present = text.read().await?.expect("it was written");
    assert_eq!((present.version, present.value), (version, fit));
    // A watch reports once that it cannot read the value, and goes on.
    let mut changes = number.watch();
    assert_eq!(told(&mut changes).await.expect_err("a text").kind(), ErrorKind::Corrupt);
    let version = number.set(&7).await?;
    let change = told(&mut changes).await?.expect("it was written");
    assert_eq!((change.version, change.value), (version, 7));
    // A value, a counter and a lock with one name are independent.
    assert_eq!(one.counter(NAME)?.add(1).await?, 1);
    assert!(one.lock(NAME)?.try_acquire().await?.is_some());
    assert_eq!(number.read().await?.map(|present| present.value), Some(7));
    assert_eq!(one.value::<u64>("").expect_err("it is empty").kind(), ErrorKind::Name);
    Ok(())
}

/// VA1: a value stays when the session that wrote it ends.
pub async fn va1_outlives_its_writer(store: &TestStore) -> Result<()> {
    let reader = store.connect("reader").await?;
    let writer = store.connect("writer").await?;
    let mut changes = value(&reader).watch();
    assert_eq!(told(&mut changes).await?, None);
    let old = value(&writer);
    let version = old.set(&7).await?;
    assert_eq!(counter(&writer).add(3).await?, 3);
    writer.stop().await?;
    assert_eq!(old.set(&8).await.expect_err("it was stopped").kind(), ErrorKind::Closed);
    let present = value(&reader).read().await?.expect("it stays");
    assert_eq!((present.version, present.value), (version, 7));
    assert_eq!(told(&mut changes).await?, Some(present));
    let quiet = timeout(3 * store.heartbeat(), changes.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    assert_eq!(counter(&reader).read().await?, 3);
    reader.stop().await?;
    let ended = told(&mut changes).await.expect_err("the client was stopped");
    assert_eq!(ended.kind(), ErrorKind::Closed);
    Ok(())
}

/// VA1: values survive the absence of all clients and a restart of the server; versions go on rising, even if there was
/// no value meanwhile.
pub async fn va1_values_survive(store: &TestStore) -> Result<()> {
    let mut last: Option<Version> = None;
    for round in 0..3 {
        let coordinator = store.connect("one").await?;
        let value = value(&coordinator);
        let present = value.read().await?;
        assert_eq!(present.is_some(), round == 1, "{present:?}");
        assert!(present.is_none_or(|present| Some(present.version) == last && present.value == 2));
        assert_eq!(counter(&coordinator).add(1).await?, round + 1);
        for number in 1..=2 {
            let version = value.set(&number).await?;
            assert!(Some(version) > last, "{version} after {last:?}");
            last = Some(version);
        }
        if round == 1 {
            assert!(value.delete().await?);
        }
        coordinator.stop().await?;
        store.restart();
    }
    Ok(())
}

/// VA1: if the answer to a write is lost, and nobody else writes, the library finds out that the write took effect.
pub async fn va1_a_lost_answer_is_found_or_told(store: &TestStore) -> Result<()> {
    let mut expected = None;
    let mut number = 0;
    let cuts = at_every_cut(store, "compare_and_set", FRAMES, async |pair: &Pair<'_>| {
        number += 1;
        let writing = value(&pair.one);
        let wrote = pair.attempt(writing.compare_and_set(expected, &number)).await;
        let wrote = wrote.expect("it is not dropped")?;
        let version = wrote.unwrap_or_else(|| panic!("{pair:?}: nobody else writes"));
        let present = value(&pair.other).read().await?.expect("it was written");
        assert_eq!((present.version, present.value), (version, number), "{pair:?}");
        assert!(Some(version) > expected, "{pair:?}");
        expected = Some(version);
        Ok(())
    });
    assert!(cuts.await? >= least_cuts(store), "the cuts are to hit");
    Ok(())
}

/// Case: a client replaces the current version of a value.
pub async fn interrupted_write(pair: &Pair<'_>) -> Result<()> {
    let (mine, theirs) = (value(&pair.one), value(&pair.other));
    let before = theirs.read().await?;
    let next = before.as_ref().map_or(1, |before| before.value + 2);
    let version = before.as_ref().map(|before| before.version);
    let wrote = pair.interrupt(mine.compare_and_set(version, &next)).await?;
    let certain = wrote.map(|wrote| wrote.expect("nobody else writes"));
    // The interrupted write has taken effect before this update, or it never will.
    let present = theirs.update(|present| present.unwrap_or_default() + 2).await?;
    let without = before.map_or(2, |before| before.value + 2);
    assert!(
        present.value == next + 2 || (certain.is_none() && present.value == without),
        "{pair:?}"
    );
    assert!(Some(present.version) > certain.max(version), "{pair:?}");
    Ok(())
}
