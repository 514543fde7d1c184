//! IU1: under which names somebody holds or waits.

use std::time::{Duration, Instant};

use coordination::{Admission, Coordinator, ErrorKind, Recipe, Result};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::tools::{NAME, PATIENCE, acquire, lock, until_contenders};
use super::{Backend, TestStore};
use crate::faults::identity::odd_names;

const RECIPES: [Recipe; 5] =
    [Recipe::Lock, Recipe::Semaphore, Recipe::Limiter, Recipe::Election, Recipe::Group];

/// What is in use, recipe by recipe.
async fn all(coordinator: &Coordinator) -> Result<Vec<Vec<String>>> {
    let mut all = Vec::new();
    for recipe in RECIPES {
        all.push(coordinator.in_use(recipe).await?);
    }
    Ok(all)
}

/// Waits until these are in use; how long that took.
async fn until_in_use(coordinator: &Coordinator, recipe: Recipe, expected: &[&str]) -> Duration {
    let (begun, mut seen) = (Instant::now(), Vec::new());
    let come = async {
        loop {
            seen = coordinator.in_use(recipe).await.expect("the store is in reach");
            if seen == expected {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    let outcome = timeout(PATIENCE, come).await;
    assert!(outcome.is_ok(), "{recipe}: {expected:?} expected, and there are {seen:?}");
    begun.elapsed()
}

/// IU1: what is held is listed under its recipe and under no other, from the grant to the release.
pub async fn iu1_each_recipe_lists_its_own(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let nothing: [&[&str]; 5] = [&[]; 5];
    assert_eq!(all(&other).await?, nothing);

    let first = one.lock("b")?.acquire(Some(PATIENCE)).await?;
    let second = other.lock("a")?.acquire_shared(Some(PATIENCE)).await?;
    let permit = one.semaphore("uploads", 2)?.acquire(Some(PATIENCE)).await?;
    let Admission::Working(slot) = one.limiter("nightly")?.enter().await? else {
        panic!("nobody else is there");
    };
    let leadership = one.election("scheduler")?.campaign(&(), Some(PATIENCE)).await?;
    let membership = one.group("workers")?.join_or_create(&()).await?;
    // It has no member, and so it is not in use; nor has what only has a value.
    one.group("empty")?.create().await?;
    one.counter("lock")?.add(1).await?;
    let used: [&[&str]; 5] =
        [&["a", "b"], &["uploads"], &["nightly"], &["scheduler"], &["workers"]];
    assert_eq!(all(&one).await?, used);
    assert_eq!(all(&other).await?, used);

    first.release().await?;
    assert_eq!(other.in_use(Recipe::Lock).await?, ["a"]);
    second.release().await?;
    permit.release().await?;
    slot.release().await?;
    leadership.resign().await?;
    membership.leave().await?;
    assert_eq!(all(&other).await?, nothing);

    one.stop().await?;
    let refused = one.in_use(Recipe::Lock).await.expect_err("it was stopped");
    assert_eq!(refused.kind(), ErrorKind::Closed);
    Ok(())
}

/// IU1: who waits counts, and nobody who has gone; each name is there once.
pub async fn iu1_who_waits_counts(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let guard = acquire(&one).await?;
    let mut waiters = JoinSet::new();
    for _ in 0..3 {
        let other = other.clone();
        waiters.spawn(async move { acquire(&other).await });
    }
    until_contenders(store, &lock(&one), 4).await;
    assert_eq!(one.in_use(Recipe::Lock).await?, [NAME]);
    guard.release().await?;
    while let Some(served) = waiters.join_next().await {
        let served = served.expect("no panic")?;
        assert_eq!(one.in_use(Recipe::Lock).await?, [NAME]);
        served.release().await?;
    }
    assert!(one.in_use(Recipe::Lock).await?.is_empty());
    Ok(())
}

/// IU1: names come back as they were given, byte for byte, however they are stored.
pub async fn iu1_names_in_full(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let mut names = odd_names();
    // More than are read at once.
    names.extend((0..70).map(|number| format!("{}{number}", "é/".repeat(100))));
    let mut held = Vec::new();
    for name in &names {
        held.push(one.lock(name)?.acquire(Some(PATIENCE)).await?);
    }
    names.sort_unstable();
    assert_eq!(other.in_use(Recipe::Lock).await?, names);
    for guard in held {
        guard.release().await?;
    }
    assert!(other.in_use(Recipe::Lock).await?.is_empty());
    Ok(())
}

/// IU1: nothing is listed of other namespaces, and of other prefixes neither.
pub async fn iu1_namespaces_and_prefixes_are_apart(store: &TestStore) -> Result<()> {
    let connect = async |namespace: &str, prefix: &str| {
        let settings = store.settings().namespace(namespace).prefix(prefix);
        settings.connect(&store.url_of_all()).await
    };
    let (plain, prefixed) = (connect("iu", "").await?, connect("iu", "manila-").await?);
    let others = [connect("iu.b", "").await?, connect("iub", "").await?, connect("i", "").await?];
    let mut held = Vec::new();
    held.push(plain.lock("vol-7")?.acquire(Some(PATIENCE)).await?);
    held.push(prefixed.lock("share")?.acquire(Some(PATIENCE)).await?);
    // Nothing is left of it without the prefix.
    held.push(plain.lock("manila-")?.acquire(Some(PATIENCE)).await?);
    for other in &others {
        assert!(other.in_use(Recipe::Lock).await?.is_empty());
        held.push(other.lock("elsewhere")?.acquire(Some(PATIENCE)).await?);
    }
    assert_eq!(plain.in_use(Recipe::Lock).await?, ["manila-", "manila-share", "vol-7"]);
    assert_eq!(prefixed.in_use(Recipe::Lock).await?, ["share"]);
    assert_eq!(others[0].in_use(Recipe::Lock).await?, ["elsewhere"]);
    Ok(())
}

/// IU1: what a session had is not in use any more when the session is over.
pub async fn iu1_a_lost_session_uses_nothing(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let _guard = acquire(&one).await?;
    let _membership = one.group("workers")?.join_or_create(&()).await?;
    assert_eq!(other.in_use(Recipe::Lock).await?, [NAME]);
    let losing = store.lose(&one, "one");
    losing.await?;
    let took = until_in_use(&other, Recipe::Lock, &[]).await;
    assert!(took <= store.crash_bound(), "listed for {took:?}");
    until_in_use(&other, Recipe::Group, &[]).await;
    Ok(())
}

/// IU1: nor what a killed process had, once the next one could have it.
pub async fn iu1_a_killed_process_uses_nothing(store: &TestStore) -> Result<()> {
    let other = store.connect("other").await?;
    let worker = store.worker("killed");
    worker.call(json!({ "command": "acquire", "lock": NAME }));
    assert_eq!(other.in_use(Recipe::Lock).await?, [NAME]);
    worker.kill();
    let took = until_in_use(&other, Recipe::Lock, &[]).await;
    assert!(took <= store.crash_bound(), "listed for {took:?}");
    Ok(())
}

/// IU1: an entry counts, whoever has made it, and nothing that is none.
pub async fn iu1_strangers_count_if_they_contend(store: &TestStore) -> Result<()> {
    let one = store.connect("one").await?;
    let group = one.group("workers")?;
    group.create().await?;
    let mut strangers = store.put_strangers();
    let expected: &[&str] = if strangers.is_empty() { &[] } else { &["workers"] };
    assert_eq!(one.in_use(Recipe::Group).await?, expected);
    // Of those that stay nobody has come with a session.
    if store.backend() == Backend::Consul {
        let locked = strangers.pop().expect("there are some");
        assert!(store.server().delete_entry(&locked));
        assert!(one.in_use(Recipe::Group).await?.is_empty());
    }
    assert!(strangers.iter().all(|stranger| store.server().delete_entry(stranger)));
    assert!(one.in_use(Recipe::Group).await?.is_empty());
    Ok(())
}
