//! Checks what calls tell if one of their requests or answers was lost, and how long they wait for it.
#![cfg(coordination_internals)]

mod two_clients;

use std::time::Duration;

use coordination::simulation::Link;
use coordination::{Coordinator, Effect, ErrorKind};
use tokio::time::{Instant, sleep};
use two_clients::{CUT, TTL, WAY, in_a_world};

/// The first request that deletes a group is lost, a member joins, and the second request is refused because the group is not
/// empty: the group stands, so the call must not say that the group was deleted.
#[test]
fn a_group_that_stands_is_not_told_to_be_deleted() {
    in_a_world(async |_, client, one, other| {
        let group = one.group("a").expect("a good name");
        group.create().await.expect("there is none");
        let deleting = client.spawn({
            let group = group.clone();
            async move { group.delete().await }
        });
        // The request that reads the group arrives after one way, and the one that deletes it after three.
        sleep(Duration::from_millis(2 * WAY)).await;
        client.set_link(CUT);
        let joined = other.group("a").expect("a good name").join(&()).await.expect("it stands");
        client.set_link(Link::default());
        let error = deleting.await.expect("no panic").expect_err("a member is in the group");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::GroupNotEmpty, Effect::Unknown));
        assert_eq!(group.members().await.expect("it stands").len(), 1);
        joined.leave().await.expect("the store is there");
        group.delete().await.expect("the group is empty");
    });
}

/// A party that leaves waits no longer than it is allowed to, also for the store.
#[test]
fn who_leaves_a_double_barrier_waits_for_the_store_no_longer_than_allowed() {
    in_a_world(async |_, client, one, other| {
        let barrier = |client: &Coordinator| client.double_barrier("a", 2).expect("a good name");
        let (ours, theirs) = (barrier(&one), barrier(&other));
        let (ours, theirs) = tokio::join!(ours.enter(None), theirs.enter(None));
        let (ours, theirs) = (ours.expect("both have come"), theirs.expect("both have come"));
        client.set_link(CUT);
        let begun = Instant::now();
        let error = ours.leave(Some(Duration::from_millis(10))).await.expect_err("it is cut off");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
        assert!(begun.elapsed() < Duration::from_millis(200), "{:?}", begun.elapsed());
        assert!(!ours.is_held());
        // The release goes on in the background.
        client.set_link(Link::default());
        theirs.leave(Some(2 * TTL)).await.expect("both have left");
        ours.leave(Some(2 * TTL)).await.expect("both have left");
    });
}
