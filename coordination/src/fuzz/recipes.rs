//! What recipes keep with entries and as values, read back after somebody else has written there.
//!
//! The queue of each recipe gets hostile entries and a hostile value. Then the recipe is used as by a program
//! that knows nothing of that: each call answers, with an error if need be.

use std::collections::BTreeMap;
use std::time::Duration;

use coordination_fuzzing::{Mutants, run};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;
use proptest::test_runner::TestCaseResult;
use serde_json::Value as Json;

use crate::backend::{EntryId, EntryRef, Mode, NewEntry, Room, Write};
use crate::coordinator::Coordinator;
use crate::error::{ErrorKind, Result};
use crate::recipe::election::ElectionEvent;
use crate::recipe::engine::queue::Queue;
use crate::recipe::limiter::Patience;
use crate::recipe::partition::ring::HashRing;

/// The number of permits, parties and so on that the program asks for.
const COUNT: u32 = 2;
const NAME: &str = "x";
const NOW: Option<Duration> = Some(Duration::ZERO);

/// A kind of queue, and what its recipe writes there.
struct Kind {
    name: &'static str,
    values: &'static [&'static str],
    entries: &'static [&'static str],
}

const fn kind(
    name: &'static str,
    values: &'static [&'static str],
    entries: &'static [&'static str],
) -> Kind {
    Kind { name, values, entries }
}

const CLAIMS: &[&str] =
    &[r#"{"wants":1,"slots":[0]}"#, r#"{"wants":2}"#, r#"{"wants":1,"standby":true}"#];

const KINDS: [Kind; 12] = [
    kind("semaphore", &[r#"{"permits":2}"#], CLAIMS),
    kind(
        "limiter",
        &[
            r#"{"slots":2,"standby":1,"latest_wins":false}"#,
            r#"{"slots":1,"standby":1,"latest_wins":true}"#,
        ],
        CLAIMS,
    ),
    kind(
        "rate",
        &[
            r#"{"rules":{"limits":[[2,1000000]],"margin":0,"paced":false},"id":7,"epoch":1,"now":9,"given":2,"slots":[5,3]}"#,
            r#"{"rules":{"limits":[[2,1000000]],"margin":5,"paced":true},"id":7,"epoch":0,"now":0,"given":0,"slots":[]}"#,
        ],
        &[""],
    ),
    kind("once", &[r#"{"number":3,"at":1795171200000000,"next":1795174800000000}"#], &[""]),
    kind("latch", &[r#"{"count":2,"remaining":1}"#], &[""]),
    kind("barrier", &["\"by somebody\""], &[""]),
    kind("double-barrier", &[r#"{"parties":2,"through":[3,9]}"#], &["2"]),
    kind("election", &[""], &["\"host-1\"", r#"{"any":["thing",null]}"#]),
    kind("group", &["", "{}"], &[r#"{"weight":3}"#, r#"{"weight":-1.5}"#, "null", ""]),
    kind("value", &[r#"{"any":["thing",null,-17,1e300]}"#], &[""]),
    kind("counter", &["-17", "9223372036854775807"], &[""]),
    kind("lock", &[""], &["", "x"]),
];

const TOKENS: [&str; 8] =
    ["{", "[", "null", "\"slots\":", ",", "4294967295", "[[[[[[[[", "\\u0000"];

#[derive(Clone, Debug)]
struct Hostile {
    value: Option<String>,
    entries: Vec<Contender>,
}

#[derive(Clone, Debug)]
struct Contender {
    member: String,
    shared: bool,
    data: String,
}

fn inputs() -> impl Strategy<Value = (&'static str, Hostile)> {
    Union::new(KINDS.iter().map(hostile))
}

fn hostile(kind: &Kind) -> BoxedStrategy<(&'static str, Hostile)> {
    let stored = |seeds: &'static [&'static str]| {
        let spoiled = Mutants::of(seeds).with_tokens(&TOKENS).text();
        prop_oneof![2 => select(seeds).prop_map(str::to_owned), 3 => spoiled]
    };
    let member = prop_oneof![select(&["", "m", "own", "é\n"][..]).prop_map(str::to_owned), ".*"];
    let contender = (member, any::<bool>(), stored(kind.entries))
        .prop_map(|(member, shared, data)| Contender { member, shared, data });
    let name = kind.name;
    (option::weighted(0.9, stored(kind.values)), vec(contender, 0..4))
        .prop_map(move |(value, entries)| (name, Hostile { value, entries }))
        .boxed()
}

#[test]
fn fuzz_recipes() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
    run("fuzz_recipes", &inputs(), |(kind, hostile)| {
        runtime.block_on(async {
            // Each input has a store of its own.
            let url = format!("memory://{:032x}", rand::random::<u128>());
            let coordinator = Coordinator::connect(&url).await.expect("memory is there");
            hostile.plant(&coordinator.queue_of(kind, NAME).expect("a name")).await;
            let visit = visit(kind, &coordinator);
            let outcome = tokio::time::timeout(PATIENCE, visit).await;
            outcome.unwrap_or_else(|_| Err(TestCaseError::fail("a call does not answer")))?;
            coordinator.stop().await.map_err(|error| TestCaseError::fail(error.to_string()))?;
            Ok(())
        })
    });
}

/// The timeout of calls. It takes no real time, because tokio's paused clock goes on when everything waits.
const PATIENCE: Duration = Duration::from_secs(3_600);

impl Hostile {
    /// Writes the entries and the value to the store without using the recipe.
    async fn plant(&self, queue: &Queue) {
        let backend = &queue.session.backend;
        let session = queue.session.lease_now().expect("it is open").id;
        for Contender { member, shared, data } in &self.entries {
            let entry_ref = EntryRef { queue: queue.key.clone(), id: EntryId::random(session) };
            let mode = if *shared { Mode::Shared } else { Mode::Exclusive };
            let (member, data) = (member.as_str().into(), data.as_str().into());
            let (label, room) = (None, Room::default());
            let entry = NewEntry { entry_ref, session, member, label, mode, data, room };
            backend.enter(&entry).await.expect("memory takes anything");
        }
        if let Some(value) = &self.value {
            let write = Write::new(&queue.key, None, Some(value.as_str().into()));
            backend.write(&write).await.expect("memory takes anything");
        }
    }
}

/// Fails if the error is of a kind for which a program cannot be prepared.
fn told<T>(outcome: Result<T>) -> std::result::Result<Option<T>, TestCaseError> {
    use ErrorKind::{
        AlreadyJoined, Corrupt, GroupMissing, GroupNotEmpty, Input, MemberExists, Mismatch,
        NotJoined, Timeout, Value,
    };
    match outcome {
        Ok(answer) => Ok(Some(answer)),
        Err(error) => match error.kind() {
            Corrupt | Mismatch | Timeout => Ok(None),
            // A number of permits that the stored limit has no room for; a sum that is too large.
            Input | Value => Ok(None),
            GroupMissing | GroupNotEmpty | MemberExists | AlreadyJoined | NotJoined => Ok(None),
            // A task that panicked looks like a session that was closed.
            _ => Err(TestCaseError::fail(format!("{error:?}"))),
        },
    }
}

async fn visit(kind: &str, coordinator: &Coordinator) -> TestCaseResult {
    match kind {
        "semaphore" => semaphore(coordinator).await,
        "limiter" => limiter(coordinator).await,
        "rate" => rate_limiter(coordinator).await,
        "once" => once(coordinator).await,
        "latch" => latch(coordinator).await,
        "barrier" => barrier(coordinator).await,
        "double-barrier" => double_barrier(coordinator).await,
        "election" => election(coordinator).await,
        "group" => group(coordinator).await,
        "value" => value(coordinator).await,
        "counter" => counter(coordinator).await,
        _ => lock(coordinator).await,
    }
}

async fn semaphore(coordinator: &Coordinator) -> TestCaseResult {
    let mut semaphore = coordinator.semaphore(NAME, COUNT).expect("a name");
    told(semaphore.holders().await)?;
    let one = told(semaphore.try_acquire().await)?.flatten();
    let two = told(semaphore.acquire_many(COUNT, NOW).await)?;
    prop_assert!(one.is_none() || two.is_none(), "three of two");
    prop_assert!(one.is_none_or(|permit| permit.slots().len() == 1));
    told(semaphore.resize(1).await)?;
    told(semaphore.try_acquire().await)?;
    told(semaphore.holders().await)?;
    Ok(())
}

async fn limiter(coordinator: &Coordinator) -> TestCaseResult {
    let limiter = coordinator.limiter(NAME).expect("a name").patience(Patience::Never);
    let patient = limiter.clone().patience(Patience::Timeout(Duration::from_millis(1)));
    let mut limiters = [limiter.clone().slots(COUNT).standby(1), patient.latest_wins()];
    for limiter in &mut limiters {
        told(limiter.inspect().await)?;
        let first = told(limiter.enter().await)?;
        told(limiter.enter().await)?;
        drop(first);
    }
    told(limiters[0].resize(3).await)?;
    told(limiters[0].enter().await)?;
    told(limiters[0].inspect().await)?;
    Ok(())
}

async fn rate_limiter(coordinator: &Coordinator) -> TestCaseResult {
    let limiter = coordinator.rate_limiter(NAME, COUNT, Duration::from_secs(1)).expect("a name");
    for limiter in [limiter.clone(), limiter.clone().paced()] {
        told(limiter.try_acquire(1).await)?;
        told(limiter.acquire(1, NOW).await)?;
    }
    told(limiter.try_acquire(COUNT).await)?;
    told(limiter.reconfigure().await)?;
    told(limiter.try_acquire(1).await)?;
    Ok(())
}

async fn once(coordinator: &Coordinator) -> TestCaseResult {
    let once = coordinator.once_per(NAME, Duration::from_secs(3_600)).expect("a name");
    told(once.due().await)?;
    let claim = told(once.try_claim().await)?.flatten();
    prop_assert!(claim.is_none() || told(once.try_claim().await)?.flatten().is_none());
    if let Some(claim) = claim {
        prop_assert!(claim.at() <= claim.next());
        told(claim.give_back().await)?;
        told(once.clone().aligned().try_claim().await)?;
    }
    Ok(())
}

async fn latch(coordinator: &Coordinator) -> TestCaseResult {
    let latch = coordinator.latch(NAME, COUNT).expect("a name");
    for _ in 0..=COUNT {
        let remaining = told(latch.remaining().await)?;
        prop_assert!(remaining.is_none_or(|remaining| remaining <= COUNT));
        told(latch.count_down().await)?;
    }
    told(latch.wait(NOW).await)?;
    told(latch.reset().await)?;
    Ok(())
}

async fn barrier(coordinator: &Coordinator) -> TestCaseResult {
    let barrier = coordinator.barrier(NAME).expect("a name");
    told(barrier.is_open().await)?;
    told(barrier.close().await)?;
    told(barrier.wait(NOW).await)?;
    told(barrier.open().await)?;
    Ok(())
}

async fn double_barrier(coordinator: &Coordinator) -> TestCaseResult {
    let barrier = coordinator.double_barrier(NAME, COUNT).expect("a name");
    told(barrier.waiting().await)?;
    let (one, other) = tokio::join!(barrier.enter(NOW), barrier.enter(NOW));
    for inside in [told(one)?, told(other)?].into_iter().flatten() {
        told(inside.leave(NOW).await)?;
    }
    told(barrier.waiting().await)?;
    Ok(())
}

async fn election(coordinator: &Coordinator) -> TestCaseResult {
    let election = coordinator.election(NAME).expect("a name");
    for candidate in told(election.candidates().await)?.unwrap_or_default() {
        told(candidate.value::<Json>())?;
    }
    let leadership = told(election.try_campaign("me").await)?.flatten();
    told(election.campaign("me", NOW).await)?;
    let term = told(election.leader().await)?.flatten();
    if let Some(ElectionEvent::Leader(term)) = told(election.observe().next().await)? {
        told(term.value::<Json>())?;
    }
    prop_assert!(leadership.is_none() || term.is_some());
    Ok(())
}

async fn group(coordinator: &Coordinator) -> TestCaseResult {
    let group = coordinator.group(NAME).expect("a name");
    told(coordinator.groups().await)?;
    told(group.exists().await)?;
    for member in &told(group.members().await)?.unwrap_or_default() {
        told(member.capabilities.parse::<Json>())?;
    }
    told(group.member("m").await)?;
    let joined = told(group.join_or_create(&serde_json::json!({ "weight": 2 })).await)?;
    let mut watch = told(group.watch().await)?;
    if let Some(partitioner) = told(group.partitioner(2).await)? {
        let ring = told(partitioner.ring())?;
        let is_bounded = |ring: HashRing| ring.weights().all(|(_, weight)| weight <= 1_000);
        prop_assert!(ring.is_none_or(is_bounded));
        told(partitioner.is_mine("key"))?;
    }
    told(group.remove("m").await)?;
    if let Some(watch) = &mut watch {
        told(watch.try_next())?;
    }
    if let Some(membership) = joined {
        told(membership.update(&Json::Null).await)?;
        told(membership.leave().await)?;
    }
    told(group.delete().await)?;
    Ok(())
}

async fn value(coordinator: &Coordinator) -> TestCaseResult {
    let value = coordinator.value::<BTreeMap<String, Json>>(NAME).expect("a name");
    let read = told(value.read().await)?;
    told(value.watch().next().await)?;
    let updated = told(value.update(Option::unwrap_or_default).await)?;
    // A value that was read can be written, and is then read unchanged.
    if let (Some(Some(read)), Some(updated)) = (read, updated) {
        prop_assert_eq!(&updated.value, &read.value);
        prop_assert_eq!(told(value.read().await)?.flatten(), Some(updated));
    }
    told(value.set(&BTreeMap::new()).await)?;
    told(value.delete().await)?;
    Ok(())
}

async fn counter(coordinator: &Coordinator) -> TestCaseResult {
    let counter = coordinator.counter(NAME).expect("a name");
    let before = told(counter.read().await)?;
    let sum = told(counter.add(1).await)?;
    if let (Some(before), Some(sum)) = (before, sum) {
        prop_assert_eq!(before.checked_add(1), Some(sum));
    }
    told(counter.add(i64::MAX).await)?;
    Ok(())
}

async fn lock(coordinator: &Coordinator) -> TestCaseResult {
    let lock = coordinator.lock(NAME).expect("a name");
    told(lock.holders().await)?;
    let guard = told(lock.try_acquire().await)?.flatten();
    told(lock.acquire_shared(NOW).await)?;
    drop(guard);
    told(lock.break_lock().await)?;
    Ok(())
}
