//! G1–G4: who is a member of a group, and what watchers see.

mod dropped;
mod incarnations;
mod watching;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use coordination::{
    Coordinator, Error, ErrorKind, Group, GroupEvent, GroupWatch, LossReason, Member, Members,
    Membership, Presence, RejoiningMembership, Result, State,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::tools::{MOMENT, PATIENCE, until_state};
use crate::harness::Mode;
use crate::must_hold;

pub use dropped::*;
pub use incarnations::*;
pub use watching::*;

/// The group that most checks use.
const NAME: &str = "backups";

/// The group that most checks use, as this client's handle.
pub(super) fn group(coordinator: &Coordinator) -> Group {
    coordinator.group(NAME).expect("a valid name")
}

/// Connects a client with this member id, and lets it create the group. Returns the client and its handle of the
/// group.
async fn with_group(store: &TestStore, member: &str) -> Result<(Coordinator, Group)> {
    let coordinator = store.connect(member).await?;
    let group = group(&coordinator);
    group.create().await?;
    Ok((coordinator, group))
}

fn kind<T>(outcome: Result<T>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

fn ids(members: &Members) -> Vec<String> {
    members.iter().map(|member| member.id.to_string()).collect()
}

/// Waits until exactly these are the members, in this order.
pub(super) async fn until_members(group: &Group, expected: &[&str]) {
    let mut seen = Vec::new();
    let come = async {
        loop {
            seen = ids(&group.members().await.expect("the group is there"));
            if seen == expected {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    let outcome = timeout(PATIENCE, come).await;
    assert!(outcome.is_ok(), "members {expected:?} expected, and there are {seen:?}");
}

/// The next event, within the timeout of the checks.
async fn next(watch: &mut GroupWatch) -> Result<GroupEvent> {
    timeout(PATIENCE, watch.next()).await.expect("it is told")
}

/// An event as short text: `+a` joined, `-a` left, `!a` updated, or the name of the event.
fn short(event: &GroupEvent) -> String {
    match event {
        GroupEvent::Joined(member) => format!("+{}", member.id),
        GroupEvent::Left(member) => format!("-{}", member.id),
        GroupEvent::Updated(member) => format!("!{}", member.id),
        GroupEvent::Resync(members) => format!("resync {:?}", ids(members)),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// G1: a group can be created once, is listed, and can be deleted when it is empty.
///
/// Tooz: corresponds to these tests of the Python library Tooz: `test_create_group`, `test_create_group_already_exist`,
/// `test_get_groups`, `test_get_groups_str_group_id`, `test_delete_group`, `test_delete_group_non_existent`,
/// `test_delete_group_non_empty`.
pub async fn g1_groups_are_created_listed_and_deleted(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let backups = group(&one);
    assert!(!backups.exists().await?);
    assert!(one.groups().await?.is_empty());
    assert_eq!(kind(backups.delete().await), Some(ErrorKind::GroupMissing));

    backups.create().await?;
    assert_eq!(kind(group(&other).create().await), Some(ErrorKind::GroupExists));
    assert!(group(&other).exists().await?);
    let long = "é".repeat(300);
    for name in ["a/b", "été", &long] {
        one.group(name)?.create().await?;
    }
    // Neither a lock nor a group of another prefix is listed.
    let _lock = one.lock("no-group")?.acquire(Some(PATIENCE)).await?;
    let prefixed = store.settings().member_id("third").prefix("manila-").connect(store.url());
    let prefixed = prefixed.await?;
    prefixed.group("shares")?.create().await?;
    assert_eq!(prefixed.groups().await?, ["shares"]);
    let mut expected = vec!["a/b", "backups", "manila-shares", &long, "été"];
    expected.sort_unstable();
    assert_eq!(other.groups().await?, expected);

    let membership = backups.join(&()).await?;
    assert_eq!(kind(group(&other).delete().await), Some(ErrorKind::GroupNotEmpty));
    membership.leave().await?;
    group(&other).delete().await?;
    assert!(!backups.exists().await?);
    assert_eq!(kind(backups.join(&()).await), Some(ErrorKind::GroupMissing));
    assert_eq!(kind(backups.delete().await), Some(ErrorKind::GroupMissing));
    assert_eq!(one.groups().await?.len(), 4);
    // A group outlives the client that created it.
    one.stop().await?;
    assert_eq!(other.groups().await?.len(), 4);
    Ok(())
}

/// G1: a member is listed from the moment `join` returns until `leave` does.
///
/// Tooz: corresponds to these tests of the Python library Tooz: `test_join_group`, `test_join_nonexistent_group`,
/// `test_join_group_create`, `test_leave_group`, `test_leave_nonexistent_group`,
/// `test_leave_group_not_joined_by_member`, `test_get_members`, `test_get_members_str_member_id`.
pub async fn g1_listed_from_join_to_leave(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (here, there) = (group(&one), group(&other));
    assert_eq!(kind(here.join(&()).await), Some(ErrorKind::GroupMissing));
    assert_eq!(kind(here.members().await), Some(ErrorKind::GroupMissing));
    assert_eq!(kind(here.remove("one").await), Some(ErrorKind::GroupMissing));

    let first = here.join_or_create(&()).await?;
    assert_eq!(ids(&there.members().await?), ["one"]);
    assert_eq!(kind(there.remove("other").await), Some(ErrorKind::NotJoined));
    let second = there.join_or_create(&()).await?;
    assert_eq!(ids(&here.members().await?), ["one", "other"]);
    assert!(second.incarnation() > first.incarnation());
    assert_eq!((first.member_id(), first.name()), ("one", NAME));
    assert!(first.is_held() && second.is_held());

    let before = first.incarnation();
    first.leave().await?;
    assert_eq!(ids(&there.members().await?), ["other"]);
    drop(second);
    until_members(&here, &[]).await;
    let again = here.join(&()).await?;
    assert!(again.incarnation() > before, "each join is an incarnation of its own");
    Ok(())
}

/// G1: a member id is never listed twice; the error of a second join says whether the member is in the same session.
///
/// Tooz: corresponds to the test `test_join_group_with_member_id_already_exists` of the Python library Tooz.
pub async fn g1_one_member_of_one_id(store: &TestStore) -> Result<()> {
    let (one, here) = with_group(store, "one").await?;
    let there = group(&store.connect("other").await?);
    let membership = here.join(&()).await?;
    assert_eq!(kind(here.join(&()).await), Some(ErrorKind::AlreadyJoined));
    assert_eq!(kind(there.join_as("one", &()).await), Some(ErrorKind::MemberExists));
    // A refused join has left nothing when it returns.
    assert_eq!(ids(&there.members().await?), ["one"]);
    let disks = [here.join_as("disk-1", &()).await?, here.join_as("disk-2", &()).await?];
    assert_eq!(ids(&there.members().await?), ["one", "disk-1", "disk-2"]);
    assert_eq!(disks.map(|disk| disk.member_id().to_owned()), ["disk-1", "disk-2"]);
    for id in ["", &"x".repeat(256)] {
        assert_eq!(kind(here.join_as(id, &()).await), Some(ErrorKind::Name));
    }
    // If a membership is dropped and its member joins again at once, the join waits until the old membership is gone.
    let mut membership = membership;
    for _ in 0..store.rounds(50, 10) {
        let before = membership.incarnation();
        drop(membership);
        membership = here.join(&()).await?;
        assert!(membership.incarnation() > before);
    }
    membership.leave().await?;
    let membership = there.join_as("one", &()).await?;
    assert!(membership.is_held());
    one.stop().await
}

/// G1: many clients join at the same time with one member id. At no time do two of them have it.
pub async fn g1_contended_member_id(store: &TestStore) -> Result<()> {
    let (_keeper, watched) = with_group(store, "keeper").await?;
    let mut clients = Vec::new();
    for client in 0..4 {
        clients.push(store.connect(&format!("client-{client}")).await?);
    }
    let room = Arc::new(super::tools::Room::default());
    let mut tasks = JoinSet::new();
    for client in &clients {
        let (group, room, rounds) = (group(client), room.clone(), store.rounds(40, 8));
        tasks.spawn(async move {
            let (mut joined, mut refused) = (0, 0);
            while joined < rounds {
                match group.join_as("the-one", &()).await {
                    Ok(membership) => {
                        let inside = room.enter();
                        tokio::task::yield_now().await;
                        drop(inside);
                        membership.leave().await.expect("confirmed");
                        joined += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::MemberExists, "{error}");
                        refused += 1;
                    }
                }
            }
            refused
        });
    }
    let mut refused = 0;
    let mut ended = 0;
    while ended < clients.len() {
        tokio::select! {
            Some(task) = tasks.join_next() => {
                refused += task.expect("no panic");
                ended += 1;
            }
            members = watched.members() => assert!(members?.len() <= 1),
        }
    }
    eprintln!("G1: {refused} joins refused");
    until_members(&watched, &[]).await;
    Ok(())
}

/// G1: clients join a group while another client deletes it. Nobody is a member of a group that was deleted.
pub async fn g1_nobody_is_in_a_group_that_is_gone(store: &TestStore) -> Result<()> {
    let deleter = group(&store.connect("deleter").await?);
    let wanted = store.rounds(30, 3);
    let done = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for client in 0..2 {
        let coordinator = store.connect(&format!("client-{client}")).await?;
        let done = Arc::clone(&done);
        tasks.spawn(async move {
            let group = group(&coordinator);
            let mut joined = 0;
            while joined < wanted || !done.load(Ordering::SeqCst) {
                let membership = group.join_or_create(&()).await?;
                assert!(group.exists().await?, "deleted under a member");
                assert!(group.member(coordinator.member_id()).await.is_ok());
                membership.leave().await?;
                joined += 1;
                tokio::task::yield_now().await;
            }
            Ok::<_, Error>(joined)
        });
    }
    let (mut deleted, mut kept) = (0, 0);
    while deleted < wanted {
        match kind(deleter.delete().await) {
            None => deleted += 1,
            Some(ErrorKind::GroupMissing | ErrorKind::GroupNotEmpty) => kept += 1,
            Some(kind) => panic!("{kind:?}"),
        }
        tokio::task::yield_now().await;
    }
    done.store(true, Ordering::SeqCst);
    let joined: Vec<_> = tasks.join_all().await.into_iter().collect::<Result<_>>()?;
    eprintln!("G1: deleted {deleted} times, kept {kept} times, joined {joined:?} times");
    Ok(())
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Host {
    disks: Vec<u32>,
    zone: Option<String>,
}

/// G1: members are listed with their capabilities, in one read.
///
/// Tooz: corresponds to these tests of the Python library Tooz: `test_get_member_capabilities`,
/// `test_get_member_capabilities_complex`, `test_get_member_capabilities_nonexistent_group`,
/// `test_get_member_capabilities_nonjoined_member`, `test_get_members_with_capabilities` and those whose names go on
/// with `_multiple`, `_nonexistent_group`, `_empty_group` or `_no_caps`, `test_get_member_info`,
/// `test_get_member_info_complex`, `test_get_member_info_nonexistent_group`, `test_get_member_info_nonjoined_member`.
pub async fn g1_members_with_capabilities(store: &TestStore) -> Result<()> {
    let one = store.connect("one").await?;
    let here = group(&one);
    let there = group(&store.connect("other").await?);
    assert_eq!(kind(there.member("one").await), Some(ErrorKind::GroupMissing));
    here.create().await?;
    assert!(there.members().await?.is_empty());
    assert_eq!(kind(there.member("one").await), Some(ErrorKind::NotJoined));

    let host = Host { disks: vec![1, 2], zone: Some("ü\"\n".into()) };
    // Some stores keep the time of a join only in milliseconds, so the time that they return may be up to a millisecond
    // too early.
    let started = std::time::SystemTime::now() - Duration::from_millis(1);
    let first = here.join(&host).await?;
    let _plain = there.join(&()).await?;
    let _text = here.join_as("text", "ssd").await?;
    let member = there.member("one").await?;
    assert_eq!(member.capabilities.parse::<Host>()?, host);
    assert_eq!(member.incarnation, first.incarnation());
    let age = member.since.expect("ours say when").duration_since(started);
    assert!(age.is_ok_and(|age| age < PATIENCE), "{:?}", member.since);
    let said: Vec<_> = there
        .members()
        .await?
        .into_iter()
        .map(|member| (member.id.to_string(), member.capabilities.as_json().to_owned()))
        .collect();
    let expected =
        [("one", r#"{"disks":[1,2],"zone":"ü\"\n"}"#), ("other", "null"), ("text", r#""ssd""#)];
    assert_eq!(said, expected.map(|(id, json)| (id.to_owned(), json.to_owned())));
    let wrong = there.member("text").await?.capabilities.parse::<Host>();
    assert_eq!(kind(wrong), Some(ErrorKind::Corrupt));
    let large = "x".repeat(5_000);
    assert_eq!(kind(here.join_as("large", &large).await), Some(ErrorKind::Value));
    assert_eq!(kind(first.update(&large).await), Some(ErrorKind::Value));
    assert_eq!(there.members().await?.len(), 3);
    Ok(())
}

/// G1: keys that other programs put among the members' keys are not listed as members, and do no harm.
pub async fn g1_strangers_are_no_members(store: &TestStore) -> Result<()> {
    let (_one, here) = with_group(store, "one").await?;
    let mut watch = here.watch().await?;
    let mut partitioner = here.partitioner(4).await?;
    let strangers = store.put_strangers();
    let membership = here.join("ssd").await?;
    assert_eq!(ids(&here.members().await?), ["one"]);
    assert_eq!(short(&next(&mut watch).await?), "+one");
    partitioner.changed().await?;
    assert_eq!(partitioner.members_for("vol-7", 9, &[])?, ["one"]);
    membership.leave().await?;
    assert_eq!(short(&next(&mut watch).await?), "-one");
    if !strangers.is_empty() {
        assert_eq!(kind(here.delete().await), Some(ErrorKind::GroupNotEmpty));
    }
    assert!(strangers.iter().all(|stranger| store.server().delete_entry(stranger)));
    here.delete().await
}

/// G1: when a member's process is killed, the member is removed within the crash bound, and its id is free again.
pub async fn g1_a_killed_member_goes(store: &TestStore) -> Result<()> {
    let (_one, here) = with_group(store, "one").await?;
    let mut watch = here.watch().await?;
    let worker = store.worker("killed");
    worker.call(json!({ "command": "join_group", "group": NAME }));
    assert_eq!(short(&next(&mut watch).await?), "+killed");
    assert_eq!(kind(here.join_as("killed", &()).await), Some(ErrorKind::MemberExists));
    let killed = Instant::now();
    worker.kill();
    assert_eq!(short(&next(&mut watch).await?), "-killed");
    let took = killed.elapsed();
    eprintln!("G1: gone after {took:?}");
    assert!(took <= store.crash_bound(), "gone after {took:?}");
    here.join_as("killed", &()).await.map(drop)
}

/// G1: stopping a coordinator leaves its groups.
///
/// Tooz: corresponds to the test `test_disconnect_leave_group` of the Python library Tooz.
pub async fn g1_stop_leaves_the_groups(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let here = group(&one);
    let also = one.group("also")?;
    let memberships = [here.join_or_create(&()).await?, also.join_or_create(&()).await?];
    let mut rejoining = here.join_as("rejoining", &()).await?.rejoining();
    one.stop().await?;
    assert!(group(&other).members().await?.is_empty());
    assert!(other.group("also")?.members().await?.is_empty());
    for membership in memberships {
        assert_eq!(membership.lost().await, LossReason::Closed);
        assert_eq!(kind(membership.update("more").await), Some(ErrorKind::Closed));
        assert_eq!(kind(membership.leave().await), Some(ErrorKind::Closed));
    }
    assert_eq!(ended(&mut rejoining).await, ErrorKind::Closed);
    assert_eq!(kind(rejoining.update("more").await), Some(ErrorKind::Closed));
    rejoining.leave().await?;
    assert_eq!(kind(here.join(&()).await), Some(ErrorKind::Closed));
    assert_eq!(kind(here.watch().await), Some(ErrorKind::Closed));
    Ok(())
}

/// The reason why a rejoining membership ended for good.
async fn ended(membership: &mut RejoiningMembership) -> ErrorKind {
    let ending = async {
        loop {
            if let Presence::Ended(kind) = membership.changed().await.expect("not yet told") {
                assert_eq!(membership.changed().await, None);
                return kind;
            }
        }
    };
    timeout(PATIENCE, ending).await.expect("it ends")
}

/// G1, G2: when a member's session is ended, the member and the watchers learn of it.
pub async fn g1_a_lost_session_is_out(store: &TestStore) -> Result<()> {
    let (_one, here) = with_group(store, "one").await?;
    let mut watch = group(&store.connect("other").await?).watch().await?;
    let membership = here.join(&()).await?;
    assert_eq!(short(&next(&mut watch).await?), "+one");
    sleep(2 * MOMENT).await;
    store.end_session("one");
    let lost = timeout(PATIENCE, membership.lost()).await.expect("the loss is told");
    assert_ne!(lost, LossReason::Closed);
    assert_eq!(short(&next(&mut watch).await?), "-one");
    must_hold!(!membership.is_held());
    assert_eq!(kind(membership.update(&1).await), Some(ErrorKind::Lost));
    let before = membership.incarnation();
    assert_eq!(kind(membership.leave().await), Some(ErrorKind::Lost));
    // The client can join again, with its next session.
    let again = here.join(&()).await?;
    assert!(again.incarnation() > before);
    assert_eq!(short(&next(&mut watch).await?), "+one");
    Ok(())
}

/// G1: a member that is cut off is removed when its lease ends, and learns of it.
///
/// Tooz: corresponds to the test `test_timeout` of the Python library Tooz.
pub async fn g1_a_silent_member_is_dropped(store: &TestStore) -> Result<()> {
    let (_one, here) = with_group(store, "one").await?;
    let mut watch = here.watch().await?;
    let silent = store.connect_by_proxy("silent").await?;
    let membership = group(&silent).join(&()).await?;
    assert_eq!(short(&next(&mut watch).await?), "+silent");
    let cut = Instant::now();
    store.proxy().set_both(Mode::Blackhole);
    let told = timeout(PATIENCE, membership.lost()).await.expect("the loss is told");
    assert_eq!(told, LossReason::DeadlinePassed);
    assert_eq!(short(&next(&mut watch).await?), "-silent");
    let took = cut.elapsed();
    assert!(took <= store.crash_bound(), "dropped after {took:?}");
    must_hold!(!membership.is_held());
    Ok(())
}
