//! HR1: every process places keys on the members of a group in the same way, which is also the way of the Python
//! library Tooz.

use std::collections::BTreeSet;

use coordination::{Coordinator, ErrorKind, HashRing, Membership, Partitioner, Result, State};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::TestStore;
use super::group::until_members;
use super::interruption::{Pair, at_every_poll};
use super::tools::{PATIENCE, until_state};
use crate::harness::Mode;

/// The group that the checks use.
const NAME: &str = "pollers";

fn keys() -> impl Iterator<Item = String> {
    // Tooz's own test has a key that is an arbitrary object. Here keys are texts, so one key has Polish letters
    // instead.
    (0..300).map(|key| format!("vol-{key}")).chain(["łódź".to_owned(), String::new()])
}

/// Waits until the ring has exactly these members and weights.
async fn until_ring(partitioner: &mut Partitioner, expected: &[(&str, u32)]) -> Result<()> {
    let come = async {
        while !partitioner.ring()?.weights().eq(expected.iter().copied()) {
            partitioner.changed().await?;
        }
        Ok(())
    };
    let outcome = timeout(PATIENCE, come).await;
    assert!(outcome.is_ok(), "{expected:?} expected, and it is {:?}", partitioner.ring()?);
    outcome.expect("in time")
}

async fn join(coordinator: &Coordinator, weight: u32) -> Result<(Membership, Partitioner)> {
    coordinator.group(NAME)?.join_partitioned(weight).await
}

/// HR1: all processes agree, and each key belongs to the one member that Tooz would choose.
///
/// Tooz: corresponds to these tests of the Python library Tooz: `test_join_partitioned_group`, `test_hashring_size`,
/// `test_hashring_weight`, `test_members_of_object_and_others`.
pub async fn hr1_all_place_alike(store: &TestStore) -> Result<()> {
    let members = [("bar", 1), ("baz", 10), ("foo", 1)];
    let (mut partitioners, mut memberships, mut clients) = (Vec::new(), Vec::new(), Vec::new());
    for (member, weight) in members {
        let client = store.connect(member).await?;
        let (membership, partitioner) = join(&client, weight).await?;
        assert!(partitioner.ring()?.contains(member), "on return the ring has the member");
        partitioners.push(partitioner);
        memberships.push(membership);
        clients.push(client);
    }
    for partitioner in &mut partitioners {
        until_ring(partitioner, &members).await?;
        let ring = partitioner.ring()?;
        assert_eq!((ring.len(), ring.points()), (3, 12 * 32), "nodes, and points");
        // This is the result that a test of Tooz expects for these weights.
        assert_eq!(partitioner.members_for("fake", 1, &[])?, ["baz"]);
    }
    let mut ring = HashRing::default();
    ring.extend(members);
    for key in keys() {
        let owner = ring.node(&key).expect("there are three");
        let all = ring.nodes(&key, 3, &["foo"]);
        for (partitioner, (member, _)) in partitioners.iter().zip(members) {
            assert_eq!(partitioner.members_for(&key, 3, &["foo"])?, all);
            assert_eq!(partitioner.is_mine(&key)?, owner == member, "{key} at {member}");
            assert!(partitioner.belongs_to(owner, &key)?);
            assert!(!partitioner.belongs_to("nobody", &key)?);
        }
    }
    // Another weight changes the placement.
    memberships[1].update(&json!({ "weight": 1, "zone": "b" })).await?;
    let equal = [("bar", 1), ("baz", 1), ("foo", 1)];
    for partitioner in &mut partitioners {
        until_ring(partitioner, &equal).await?;
        let placed: Vec<_> = ["fake", "fake-again", "vol-1", "vol-2", ""]
            .into_iter()
            .flat_map(|key| partitioner.members_for(key, 1, &[]).expect("the group is there"))
            .collect();
        assert_eq!(placed, ["foo", "bar", "baz", "baz", "bar"]);
    }
    Ok(())
}

/// HR1: the order of joining does not matter, and a member that has left gets no keys.
///
/// Tooz: corresponds to the test `test_stop` of the Python library Tooz.
pub async fn hr1_whoever_leaves_has_no_keys(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (first, mut here) = join(&one, 1).await?;
    let (second, mut there) = join(&other, 1).await?;
    let before: Vec<_> = keys().map(|key| there.members_for(key, 1, &[])).collect::<Result<_>>()?;
    until_ring(&mut here, &[("one", 1), ("other", 1)]).await?;
    first.leave().await?;
    for partitioner in [&mut here, &mut there] {
        until_ring(partitioner, &[("other", 1)]).await?;
    }
    assert!(!here.is_mine("vol-7")? && there.is_mine("vol-7")?);
    // The member joins again, now after the other one.
    let (first, mut again) = join(&one, 1).await?;
    until_ring(&mut again, &[("one", 1), ("other", 1)]).await?;
    for (key, before) in keys().zip(before) {
        assert_eq!(again.members_for(&key, 1, &[])?, before, "{key}");
    }
    first.leave().await?;
    second.leave().await?;
    until_ring(&mut there, &[]).await?;
    assert!(there.members_for("vol-7", 1, &[])?.is_empty());
    one.group(NAME)?.delete().await?;
    let gone = timeout(PATIENCE, there.changed()).await.expect("it is told");
    assert_eq!(gone.map_err(|error| error.kind()), Err(ErrorKind::GroupMissing));
    let refused = there.is_mine("vol-7").map_err(|error| error.kind());
    assert_eq!(refused, Err(ErrorKind::GroupMissing));
    Ok(())
}

/// HR1: many members that join at the same time agree in the end.
pub async fn hr1_many_agree(store: &TestStore) -> Result<()> {
    let mut clients = Vec::new();
    for client in 0..8 {
        clients.push(store.connect(&format!("client-{client}")).await?);
    }
    let mut tasks = JoinSet::new();
    for (weight, client) in (1..).zip(clients.clone()) {
        tasks.spawn(async move { join(&client, weight).await });
    }
    let joined: Vec<_> = tasks.join_all().await.into_iter().collect::<Result<_>>()?;
    let names: Vec<_> = clients.iter().map(|client| client.member_id().to_owned()).collect();
    let expected: Vec<_> = names.iter().map(String::as_str).zip(1..).collect();
    let mut placements = BTreeSet::new();
    let (_memberships, partitioners): (Vec<_>, Vec<_>) = joined.into_iter().unzip();
    for mut partitioner in partitioners {
        until_ring(&mut partitioner, &expected).await?;
        let placed: Vec<_> =
            keys().map(|key| partitioner.members_for(key, 2, &[])).collect::<Result<_>>()?;
        placements.insert(placed);
    }
    assert_eq!(placements.len(), 1, "they place alike");
    Ok(())
}

/// HR1: a join that is dropped at any poll leaves no member on the ring.
pub async fn hr1_dropped_join_gets_no_keys(store: &TestStore) -> Result<()> {
    let watching = store.connect("watching").await?;
    let (_membership, mut partitioner) = join(&watching, 1).await?;
    at_every_poll(store, "join_partitioned", store.rounds(1, 2), async |pair: &Pair<'_>| {
        drop(pair.interrupt(join(&pair.one, 1)).await?);
        until_members(&pair.other.group(NAME)?, &["watching"]).await;
        until_ring(&mut partitioner, &[("watching", 1)]).await
    })
    .await
}

/// HR1: whatever capabilities a member has, every process reads the same weight from them.
pub async fn hr1_odd_weights_count(store: &TestStore) -> Result<()> {
    let one = store.connect("one").await?;
    let group = one.group(NAME)?;
    group.create().await?;
    let mut partitioner = group.partitioner(2).await?;
    let said = [
        (json!(null), 1),
        (json!({ "weight": 3 }), 3),
        (json!({ "weight": 0 }), 0),
        (json!({ "weight": -1 }), 1),
        (json!({ "weight": "7" }), 1),
        (json!({ "weight": 2.5 }), 1),
        (json!({ "weight": u64::MAX }), 1_000),
        (json!([1, 2]), 1),
    ];
    let mut memberships = Vec::new();
    let names: Vec<_> = (0..said.len()).map(|member| format!("member-{member}")).collect();
    for (name, (capabilities, _)) in names.iter().zip(&said) {
        memberships.push(group.join_as(name, capabilities).await?);
    }
    let expected: Vec<_> =
        names.iter().zip(&said).map(|(name, (_, weight))| (name.as_str(), *weight)).collect();
    until_ring(&mut partitioner, &expected).await?;
    let points: u32 = said.iter().map(|(_, weight)| 2 * weight).sum();
    assert_eq!(u32::try_from(partitioner.ring()?.points()), Ok(points));
    Ok(())
}

/// HR1: the keys of a process that was killed belong to others within the crash bound.
pub async fn hr1_a_killed_process_loses_its_keys(store: &TestStore) -> Result<()> {
    let one = store.connect("one").await?;
    let (_membership, mut partitioner) = join(&one, 1).await?;
    let worker = store.worker("killed");
    worker.call(json!({
        "command": "join_group", "group": NAME, "capabilities": { "weight": 5 },
    }));
    until_ring(&mut partitioner, &[("killed", 5), ("one", 1)]).await?;
    assert!(keys().any(|key| !partitioner.is_mine(key).expect("the group is there")));
    let killed = std::time::Instant::now();
    worker.kill();
    until_ring(&mut partitioner, &[("one", 1)]).await?;
    assert!(killed.elapsed() <= store.crash_bound(), "{:?}", killed.elapsed());
    for key in keys() {
        assert!(partitioner.is_mine(key)?);
    }
    Ok(())
}

/// HR1: a stopped coordinator owns no keys, and its calls are refused.
pub async fn hr1_a_stopped_one_is_refused(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (_first, mut here) = join(&one, 1).await?;
    let (_second, mut there) = join(&other, 1).await?;
    until_ring(&mut there, &[("one", 1), ("other", 1)]).await?;
    one.stop().await?;
    let told = timeout(PATIENCE, async {
        while here.changed().await.is_ok() {}
        here.is_mine("vol-7").map_err(|error| error.kind())
    });
    assert_eq!(told.await.expect("it is told"), Err(ErrorKind::Closed));
    until_ring(&mut there, &[("other", 1)]).await?;
    assert!(there.is_mine("vol-7")?);
    Ok(())
}

/// HR1: a client that is cut off goes on using the members that it knows, and catches up afterwards.
pub async fn hr1_catches_up_after_an_outage(store: &TestStore) -> Result<()> {
    let one = store.connect("one").await?;
    let (_first, mut here) = join(&one, 1).await?;
    let cut_off = store.connect_by_proxy("cut-off").await?;
    let (membership, mut there) = join(&cut_off, 1).await?;
    let membership = membership.rejoining();
    until_ring(&mut here, &[("cut-off", 1), ("one", 1)]).await?;
    let mut state = cut_off.state();
    store.proxy().set_both(Mode::Blackhole);
    until_state(&mut state, |state| matches!(state, State::Lost(_))).await;
    until_ring(&mut here, &[("one", 1)]).await?;
    assert!(there.ring()?.contains("cut-off"), "it cannot know");
    let third = one.group(NAME)?.join_as("third", &json!({ "weight": 2 })).await?;
    store.proxy().heal();
    for partitioner in [&mut here, &mut there] {
        until_ring(partitioner, &[("cut-off", 1), ("one", 1), ("third", 2)]).await?;
    }
    for key in keys() {
        assert_eq!(here.members_for(&key, 3, &[])?, there.members_for(&key, 3, &[])?);
    }
    third.leave().await?;
    membership.leave().await
}
