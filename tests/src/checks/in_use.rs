//! IU1: `in_use` lists the names that somebody holds or waits for.

use std::time::{Duration, Instant};

use coordination::{Admission, Coordinator, ErrorKind, Recipe, Result, Usage};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::tools::{NAME, PATIENCE, acquire, lock, until_contenders};
use super::{Backend, TestStore};
use crate::faults::identity::odd_names;

const RECIPES: [Recipe; 5] =
    [Recipe::Lock, Recipe::Semaphore, Recipe::Limiter, Recipe::Election, Recipe::Group];

/// The names in use, for each recipe.
async fn all(coordinator: &Coordinator) -> Result<Vec<Vec<String>>> {
    let mut all = Vec::new();
    for recipe in RECIPES {
        all.push(coordinator.in_use(recipe).await?);
    }
    Ok(all)
}

/// Waits until exactly these names are in use; returns how long that took.
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

/// IU1: a name that is held is listed for its recipe and no other, from the grant to the release.
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
    // A group without a member is not in use, and neither is a name that only has a value.
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

/// IU1: names that clients wait for are listed once, and no longer when the clients have gone.
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

/// IU1: names are listed byte for byte as they were given, however the store encodes them.
pub async fn iu1_names_in_full(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let mut names = odd_names();
    // So many names that the library needs several requests to list them.
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

/// IU1: names of other namespaces and other prefixes are not listed.
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
    // A name that equals the prefix, so that nothing is left of it without the prefix.
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

/// IU1: an overview tells of all names of a recipe what is told of each, and of none that has become free.
pub async fn iu1_an_overview_tells_who_has_each(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let mut held = Vec::new();
    // More than are read at a time.
    for number in 0..40 {
        held.push(one.lock(format!("lock-{number:02}"))?.acquire(Some(PATIENCE)).await?);
    }
    let permit = one.semaphore("uploads", 2)?.acquire(Some(PATIENCE)).await?;
    let Admission::Working(slot) = one.limiter("nightly")?.enter().await? else {
        panic!("nobody else is there");
    };
    let leadership = one.election("scheduler")?.campaign(&7, Some(PATIENCE)).await?;
    let membership = one.group("workers")?.join_or_create(&()).await?;

    let mut overview = other.overview(Recipe::Lock).await?;
    held.remove(0).release().await?;
    let mut names = Vec::new();
    while let Some(used) = overview.next().await {
        let Usage::Lock(contenders) = used.usage? else { panic!("it is of locks") };
        assert_eq!(contenders, other.lock(&used.name)?.holders().await?);
        names.push(used.name);
    }
    assert_eq!((names.len(), &names), (39, &other.in_use(Recipe::Lock).await?));
    let mut few = other.overview(Recipe::Lock).await?.of_names(|name| name == "lock-07");
    assert_eq!(few.next().await.map(|used| used.name).as_deref(), Some("lock-07"));
    assert!(few.next().await.is_none());

    let usage = async |recipe| {
        let mut overview = other.overview(recipe).await?;
        overview.next().await.expect("it is in use").usage
    };
    let Usage::Semaphore { occupants, permits } = usage(Recipe::Semaphore).await? else {
        panic!("it is of a semaphore");
    };
    assert_eq!((occupants, permits), (other.semaphore("uploads", 2)?.holders().await?, Some(2)));
    let Usage::Limiter { occupants, slots } = usage(Recipe::Limiter).await? else {
        panic!("it is of a limiter");
    };
    assert_eq!((occupants, slots), (other.limiter("nightly")?.inspect().await?, Some(1)));
    let Usage::Election(candidates) = usage(Recipe::Election).await? else {
        panic!("it is of an election");
    };
    assert_eq!(candidates, other.election("scheduler")?.candidates().await?);
    let Usage::Group(members) = usage(Recipe::Group).await? else { panic!("it is of a group") };
    assert_eq!(members, other.group("workers")?.members().await?);

    permit.release().await?;
    slot.release().await?;
    leadership.resign().await?;
    membership.leave().await
}

/// IU1: values, counters and jobs, which nobody holds, are listed as long as they are stored.
pub async fn iu1_what_nobody_holds_is_listed(store: &TestStore) -> Result<()> {
    const HOUR: Duration = Duration::from_secs(3_600);
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let listed = async || -> Result<[Vec<String>; 3]> {
        Ok([other.values().await?, other.counters().await?, other.once_jobs().await?])
    };
    assert!(listed().await?.iter().all(Vec::is_empty));
    let (limit, job) = (one.value::<u8>("limit")?, one.once_per("backup", HOUR)?);
    limit.set(&7).await?;
    one.counter("hits")?.add(1).await?;
    assert_eq!(job.last_claim().await?, None);
    let claim = job.try_claim().await?.expect("nobody has claimed it");
    assert_eq!(listed().await?, [["limit"], ["hits"], ["backup"]]);

    let looks = other.once_per("backup", Duration::from_secs(1))?;
    let last = looks.last_claim().await?.expect("it was claimed");
    assert_eq!((last.token, last.at, last.next), (claim.token(), claim.at(), claim.next()));
    assert!(!last.is_open && !last.due.is_zero() && last.due <= HOUR, "{last:?}");
    assert!(claim.give_back().await?);
    assert!(looks.last_claim().await?.expect("it was claimed").due.is_zero());
    assert!(job.reset().await?);
    assert_eq!(looks.last_claim().await?, None);

    let guard = lock(&one).acquire(Some(PATIENCE)).await?;
    let claim = job.try_claim_under(&guard).await?.expect("it was given back");
    assert!(looks.last_claim().await?.is_some_and(|last| last.is_open));
    assert!(claim.done().await?);
    assert!(looks.last_claim().await?.is_some_and(|last| !last.is_open));
    guard.release().await?;
    assert!(limit.delete().await?);
    assert!(other.values().await?.is_empty());
    Ok(())
}

/// IU1: the names of a session that has ended are not listed.
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

/// IU1: the names of a killed process are not listed any more once the crash bound has passed.
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

/// IU1: every entry in a queue makes the name count as in use, also an entry of another program; other keys do not.
pub async fn iu1_strangers_count_if_they_contend(store: &TestStore) -> Result<()> {
    let one = store.connect("one").await?;
    let group = one.group("workers")?;
    group.create().await?;
    let mut strangers = store.put_strangers();
    let expected: &[&str] = if strangers.is_empty() { &[] } else { &["workers"] };
    assert_eq!(one.in_use(Recipe::Group).await?, expected);
    // On Consul the last of these keys is locked by a session, so it counts as an entry until it is deleted. The other
    // keys do not count.
    if store.backend() == Backend::Consul {
        let locked = strangers.pop().expect("there are some");
        assert!(store.server().delete_entry(&locked));
        assert!(one.in_use(Recipe::Group).await?.is_empty());
    }
    assert!(strangers.iter().all(|stranger| store.server().delete_entry(stranger)));
    assert!(one.in_use(Recipe::Group).await?.is_empty());
    Ok(())
}
