//! Checks what is told of calls that the end of a session, a stop or a time limit cuts short: never that they had no effect, if they
//! may have had one.
#![cfg(coordination_internals)]

mod two_clients;

use std::sync::Arc;
use std::time::Duration;

use coordination::simulation::{Client, Link, Room, World};
use coordination::{
    ClaimOptions, Coordinator, Effect, Election, Error, ErrorKind, LockGuard, LossReason, NewItem,
    Presence,
};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use two_clients::{CUT, TTL, WAY, in_a_world};

const HOUR: Duration = Duration::from_secs(3_600);
/// The store carries out what it is asked, and no answer arrives.
const NOT_HEARD: Link = Link { requests_cut: false, replies_cut: true, heartbeats_cut: false };

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn election(coordinator: &Coordinator) -> Election {
    coordinator.election("chief").expect("a good name")
}

fn told(error: &Error) -> (ErrorKind, Effect) {
    (error.kind(), error.effect())
}

/// Does `work`, which lets something fail at a moment, with one moment after the other, each time in a world of its own. It returns
/// whether what failed had an effect; that it had none at any moment is a fault of the check, which `never` describes.
fn at_each_moment(
    never: &str,
    work: impl AsyncFn(Duration, &World, &Arc<Client>, Coordinator, Coordinator) -> bool,
) {
    let mut had_an_effect = false;
    for moment in (0..30 * WAY).step_by(5) {
        in_a_world(async |world, client, one, other| {
            had_an_effect |= work(ms(moment), world, client, one, other).await;
        });
    }
    assert!(had_an_effect, "{never}");
}

/// The first client acquires the lock "a".
fn acquires(
    client: &Arc<Client>,
    one: &Coordinator,
) -> JoinHandle<coordination::Result<LockGuard>> {
    let lock = one.lock("a").expect("a good name");
    client.spawn(async move { lock.acquire(None).await })
}

async fn assert_stopped(acquiring: JoinHandle<coordination::Result<LockGuard>>, effect: Effect) {
    let stopped = acquiring.await.expect("no panic").expect_err("nothing is given out");
    assert_eq!(told(&stopped), (ErrorKind::Closed, effect), "{stopped}");
}

/// The store makes an update, is not heard of any more, and the session is lost. Others have seen what was updated before that.
#[test]
fn x1_an_update_that_ends_with_a_loss_may_have_been_made() {
    in_a_world(async |_, client, one, other| {
        let leads = election(&one).campaign("old", None).await.expect("nobody leads");
        let group = one.group("backups").expect("a good name");
        let member = group.join_or_create("old").await.expect("nobody has the id");
        let lock = one.lock("a").expect("a good name");
        let guard = lock.acquire(None).await.expect("it is free");
        client.set_link(NOT_HEARD);
        let seen = async {
            sleep(TTL / 2).await;
            let term = election(&other).leader().await.expect("the store is there");
            term.expect("somebody leads").value::<String>().expect("a text")
        };
        let updates =
            async { tokio::join!(leads.proclaim("new"), member.update("new"), guard.share()) };
        let ((proclaimed, updated, shared), seen) = tokio::join!(updates, seen);
        assert_eq!(seen, "new", "it was made");
        for lost in [proclaimed, updated, shared] {
            let lost = lost.expect_err("nothing is heard");
            assert_eq!(told(&lost), (ErrorKind::Lost, Effect::Unknown), "{lost}");
        }
        assert!(guard.is_shared(), "others may have shared it");
        // What was lost before the call is not even asked for.
        let again =
            [leads.proclaim("newer").await, member.update("newer").await, guard.share().await];
        for lost in again {
            let lost = lost.expect_err("it is lost");
            assert_eq!(told(&lost), (ErrorKind::Lost, Effect::None), "{lost}");
        }
        assert!(guard.is_shared(), "one call was in doubt");
    });
}

/// The store makes an update whose answer is lost, and an operator removes the entry before the update is repeated.
#[test]
fn x1_an_update_of_an_entry_that_is_gone_since_may_have_been_made() {
    in_a_world(async |_, client, one, other| {
        let leads = election(&one).campaign("old", None).await.expect("nobody leads");
        client.set_link(NOT_HEARD);
        let breaks = async {
            sleep(ms(5 * WAY)).await;
            let broken = election(&other).break_grant(leads.term()).await;
            assert!(broken.expect("the store is there").is_some());
            client.set_link(Link::default());
        };
        let (proclaimed, ()) = tokio::join!(leads.proclaim("new"), breaks);
        let lost = proclaimed.expect_err("the entry is gone");
        assert_eq!(lost.loss_reason(), Some(LossReason::EntryDeleted));
        assert_eq!(told(&lost), (ErrorKind::Lost, Effect::Unknown), "{lost}");
    });
}

/// The coordinator is stopped while an update is on its way: a membership that comes back after a loss does not come back.
#[test]
fn x1_an_update_that_a_stop_cuts_short_is_not_told_to_be_done() {
    in_a_world(async |_, client, one, _| {
        let group = one.group("backups").expect("a good name");
        let member = group.join_or_create("old").await.expect("nobody has the id").rejoining();
        client.set_link(NOT_HEARD);
        let stops = async {
            sleep(ms(5 * WAY)).await;
            one.stop().await.expect_err("nothing is heard");
        };
        let (updated, ()) = tokio::join!(member.update("new"), stops);
        let stopped = updated.expect_err("it was stopped");
        assert_eq!(told(&stopped), (ErrorKind::Closed, Effect::Unknown), "{stopped}");
    });
}

/// What others may have seen of a member, its next incarnation says, too.
#[test]
fn x1_an_update_in_doubt_is_that_of_the_next_incarnation() {
    in_a_world(async |world, _, one, other| {
        let group = one.group("backups").expect("a good name");
        let mut member = group.join_or_create("old").await.expect("nobody has the id").rejoining();
        world.set_room(Room::NoneInDoubt);
        let refused = member.update("new").await.expect_err("there is no room");
        assert_eq!(told(&refused), (ErrorKind::Quota, Effect::Unknown), "{refused}");
        world.set_room(Room::Enough);
        let theirs = other.group("backups").expect("a good name");
        theirs.remove(member.member_id()).await.expect("it is a member");
        let mut now = member.changed().await;
        while let Some(Presence::Away(_)) = now {
            now = member.changed().await;
        }
        assert!(matches!(now, Some(Presence::Member(_))), "{now:?}");
        let next = theirs.member(member.member_id()).await.expect("it is a member");
        assert_eq!(next.capabilities.parse::<String>().expect("a text"), "new");
    });
}

/// The store removes the entry, its answer is lost, and the next one says that the session is over.
#[test]
fn x1_a_release_whose_answer_was_lost_may_have_been_made() {
    in_a_world(async |world, client, one, _| {
        let lock = one.lock("a").expect("a good name");
        let guard = lock.acquire(None).await.expect("it is free");
        sleep(ms(100)).await;
        client.set_link(NOT_HEARD);
        let ends = async {
            // The first try is given up after half a second, and the second one comes before the next heartbeat.
            sleep(ms(550)).await;
            world.set_failing(Some(ErrorKind::Lost));
        };
        let (released, ()) = tokio::join!(guard.release(), ends);
        let lost = released.expect_err("the session is over");
        assert_eq!(lost.loss_reason(), Some(LossReason::ExpiredByServer));
        assert_eq!(told(&lost), (ErrorKind::Lost, Effect::Unknown), "{lost}");
        assert_eq!(world.entries(), 0, "it was made");
    });
}

/// A lock is granted on its way to a caller who gets nothing more, because a stop has begun.
#[test]
fn x1_a_grant_that_a_stop_gives_back_is_told_of() {
    in_a_world(async |_, client, one, _| {
        let held = one.lock("b").expect("a good name").acquire(None).await.expect("it is free");
        let acquiring = acquires(client, &one);
        sleep(ms(WAY + WAY / 2)).await;
        let stopping = client.spawn(async move { one.stop_within(HOUR).await });
        assert_stopped(acquiring, Effect::Unknown).await;
        held.release().await.expect("it is held");
        stopping.await.expect("no panic").confirmed.expect("the store is there");
    });
}

/// An entry was entered, the answer and the session were lost, and the coordinator is stopped before there is another session.
#[test]
fn x1_an_acquire_that_is_stopped_without_a_session_may_have_left_an_entry() {
    in_a_world(async |_, client, one, _| {
        client.set_link(NOT_HEARD);
        let acquiring = acquires(client, &one);
        sleep(2 * TTL).await;
        one.stop().await.expect_err("nothing is heard");
        assert_stopped(acquiring, Effect::Unknown).await;
    });
}

/// A caller waits behind a holder, its session is lost, and the coordinator is stopped before there is another session. By then the
/// holder may be gone, and the caller's entry the first.
#[test]
fn x1_an_acquire_that_has_waited_before_a_loss_may_have_left_an_entry() {
    in_a_world(async |_, client, one, other| {
        let held = other.lock("a").expect("a good name").acquire(None).await.expect("it is free");
        let acquiring = acquires(client, &one);
        sleep(ms(10 * WAY)).await;
        client.set_link(NOT_HEARD);
        held.release().await.expect("the store is there");
        sleep(2 * TTL).await;
        one.stop().await.expect_err("nothing is heard");
        assert_stopped(acquiring, Effect::Unknown).await;
    });
}

/// A caller that waits behind a holder is stopped while its session lives: it was never granted anything.
#[test]
fn x1_an_acquire_that_is_stopped_while_it_waits_has_done_nothing() {
    in_a_world(async |_, client, one, other| {
        let held = other.lock("a").expect("a good name").acquire(None).await;
        let acquiring = acquires(client, &one);
        sleep(ms(10 * WAY)).await;
        one.stop().await.expect("the store is there");
        assert_stopped(acquiring, Effect::None).await;
        drop(held);
    });
}

/// The permits are refused, and the store does not hear that the entry is to be removed.
#[test]
fn x1_an_acquire_that_is_refused_may_have_left_an_entry() {
    in_a_world(async |_, client, one, other| {
        let permit = other.semaphore("s", 2).expect("a good name").acquire(None).await;
        let wanted = one.semaphore("s", 1).expect("a good name");
        let acquiring = client.spawn(async move { wanted.acquire(None).await });
        // The entry is entered after two ways, and what is stored is read after four. The removal arrives after five.
        sleep(ms(4 * WAY + WAY / 2)).await;
        client.set_link(CUT);
        let refused = acquiring.await.expect("no panic").expect_err("there are two");
        assert_eq!(told(&refused), (ErrorKind::Mismatch, Effect::Unknown), "{refused}");
        drop(permit);
    });
}

/// The answer to a read is lost, and then the login is refused. All that was done is undone by then: the entry is removed.
#[test]
fn x1_an_acquire_whose_reads_fail_has_done_nothing() {
    in_a_world(async |world, client, one, other| {
        let permit = other.semaphore("s", 1).expect("a good name").acquire(None).await;
        permit.expect("it is free").release().await.expect("it is held");
        let wanted = one.semaphore("s", 1).expect("a good name");
        let acquiring = client.spawn(async move { wanted.acquire(None).await });
        // The entry is entered after two ways, and what is stored is read after four.
        sleep(ms(2 * WAY + WAY / 2)).await;
        client.set_link(NOT_HEARD);
        sleep(ms(100)).await;
        world.set_failing(Some(ErrorKind::Auth));
        // The read is given up after half a second, and is made again before a whole one has passed.
        sleep(ms(900)).await;
        client.set_link(Link::default());
        world.set_failing(None);
        let refused = acquiring.await.expect("no panic").expect_err("the login was refused");
        assert_eq!(told(&refused), (ErrorKind::Auth, Effect::None), "{refused}");
        assert_eq!(world.entries(), 0, "nothing is left");
    });
}

/// Whenever an acquire fails after it has stored the number of permits, which stays, the number is told of.
#[test]
fn x1_a_number_that_was_stored_for_an_acquire_is_told_of() {
    at_each_moment("it was stored in no run", async |moment, world, client, one, other| {
        let wanted = one.semaphore("s", 2).expect("a good name");
        let acquiring = client.spawn(async move { wanted.acquire(None).await.map(drop) });
        sleep(moment).await;
        world.set_room(Room::None);
        let Err(refused) = acquiring.await.expect("no panic") else { return false };
        let looks = other.semaphore("s", 1).expect("a good name");
        let is_stored = looks.stored_permits().await.expect("the store is there").is_some();
        let effect = if is_stored { Effect::Unknown } else { Effect::None };
        assert_eq!(told(&refused), (ErrorKind::Quota, effect), "{moment:?}: {refused}");
        assert_eq!(world.entries(), 0, "{moment:?}: no entry is left");
        is_stored
    });
}

/// The answer to the write of the number is lost, and somebody changes the number before the write is repeated.
#[test]
fn x1_a_number_that_was_changed_since_it_was_stored_is_told_of() {
    at_each_moment("it was stored in no run", async |moment, _, client, one, other| {
        let wanted = one.semaphore("s", 2).expect("a good name");
        let acquiring = client.spawn(async move { wanted.acquire(None).await.map(drop) });
        sleep(moment).await;
        client.set_link(NOT_HEARD);
        sleep(ms(5 * WAY)).await;
        let mut theirs = other.semaphore("s", 2).expect("a good name");
        if theirs.stored_permits().await.expect("the store is there").is_none() {
            return false;
        }
        theirs.resize(3).await.expect("the store is there");
        client.set_link(Link::default());
        let Err(refused) = acquiring.await.expect("no panic") else { return false };
        assert_eq!(told(&refused), (ErrorKind::Mismatch, Effect::Unknown), "{moment:?}: {refused}");
        true
    });
}

/// Whoever claims a job under a guard looks whether the guard of the last claim is gone, and is not answered.
#[test]
fn x1_a_look_that_is_not_answered_claims_no_job() {
    in_a_world(async |_, client, one, other| {
        let share = async |client: &Coordinator| {
            let lock = client.lock("b").expect("a good name");
            lock.acquire_shared(None).await.expect("they share it")
        };
        let (theirs, ours) = (share(&other).await, share(&one).await);
        let job = |client: &Coordinator| client.once_per("job", HOUR).expect("a good name");
        let claimed = job(&other).try_claim_under(&theirs).await.expect("the store is there");
        let wanted = job(&one);
        let claiming = client.spawn(async move { wanted.try_claim_under(&ours).await.map(drop) });
        // The last claim is read after two ways, and the queue of the guards after four.
        sleep(ms(2 * WAY + WAY / 2)).await;
        client.set_link(NOT_HEARD);
        let late = claiming.await.expect("no panic").expect_err("nothing is heard");
        assert_eq!(told(&late), (ErrorKind::Unavailable, Effect::None), "{late}");
        drop((claimed, theirs));
    });
}

/// Whenever a join fails after it has created the group, the group is told of.
#[test]
fn x1_a_group_that_was_created_for_a_join_is_told_of() {
    at_each_moment("it was created in no run", async |moment, world, client, one, other| {
        let group = one.group("backups").expect("a good name");
        let joining = client.spawn(async move { group.join_or_create(&()).await });
        sleep(moment).await;
        world.set_quarantined(true);
        let Err(refused) = joining.await.expect("no panic") else { return false };
        let group = other.group("backups").expect("a good name");
        let exists = group.exists().await.expect("the store is there");
        assert!(!exists || refused.effect() == Effect::Unknown, "{moment:?}: {refused}");
        exists
    });
}

/// Whenever a watch fails after it has created the group, the group is told of.
#[test]
fn x1_a_group_that_was_created_for_a_watch_is_told_of() {
    at_each_moment("it was created in no run", async |moment, world, client, one, other| {
        let group = one.group("backups").expect("a good name");
        let watching = client.spawn(async move { group.watch_or_create().await.map(drop) });
        sleep(moment).await;
        world.set_failing(Some(ErrorKind::Auth));
        let Err(refused) = watching.await.expect("no panic") else { return false };
        world.set_failing(None);
        let group = other.group("backups").expect("a good name");
        let exists = group.exists().await.expect("the store is there");
        let effect = if exists { Effect::Unknown } else { Effect::None };
        assert_eq!(told(&refused), (ErrorKind::Auth, effect), "{moment:?}");
        exists
    });
}

/// Whenever a join fails after others have seen the member, because its partitioner cannot be made, it is told of.
#[test]
fn x1_a_join_whose_partitioner_fails_is_told_of() {
    at_each_moment("it was seen in no run", async |moment, world, client, one, other| {
        let theirs = other.group("backups").expect("a good name");
        theirs.create().await.expect("there is none");
        let group = one.group("backups").expect("a good name");
        let joining = client.spawn(async move { group.join_partitioned(1).await.map(drop) });
        sleep(moment).await;
        let members = theirs.members().await.expect("the store is there");
        world.set_failing(Some(ErrorKind::Auth));
        let Err(refused) = joining.await.expect("no panic") else { return false };
        let is_seen = members.get(one.member_id()).is_some();
        assert!(!is_seen || refused.effect() != Effect::None, "{moment:?}: {refused}");
        assert!(!refused.body_ran(), "{moment:?}: {refused}");
        is_seen
    });
}

/// Whenever a claim that was made is taken back because of a stop, it is told of.
#[test]
fn x1_a_claim_that_a_stop_takes_back_is_told_of() {
    at_each_moment("it was made in no run", async |moment, _, client, one, other| {
        let theirs = other.queue("jobs").expect("a good name");
        theirs.post(&[NewItem::new("vol-7")]).await.expect("the store is there");
        let held = one.lock("b").expect("a good name").acquire(None).await;
        let jobs = one.queue("jobs").expect("a good name");
        let claiming =
            client.spawn(async move { jobs.claim(ClaimOptions::default()).await.map(drop) });
        sleep(moment).await;
        let stops = one.clone();
        let stopping = client.spawn(async move { stops.stop_within(HOUR).await });
        let claimed = claiming.await.expect("no panic");
        // This look arrives before the claim is taken back, which takes a look of its own.
        let is_made = theirs.stats().await.expect("the store is there").claimed > 0;
        let is_refused = claimed.is_err();
        if let Err(stopped) = claimed {
            assert!(!is_made || stopped.effect() == Effect::Unknown, "{moment:?}: {stopped}");
        }
        drop(held);
        stopping.await.expect("no panic").confirmed.expect("the store is there");
        is_refused && is_made
    });
}

/// The answer to a claim is lost, and every later try is refused before it is sent, until the time is over.
#[test]
fn x1_a_wait_for_an_item_that_may_have_claimed_one_says_so() {
    at_each_moment("it was made in no run", async |moment, world, client, one, other| {
        let theirs = other.queue("jobs").expect("a good name");
        theirs.post(&[NewItem::new("vol-7")]).await.expect("the store is there");
        let jobs = one.queue("jobs").expect("a good name");
        let claiming = client.spawn(async move {
            jobs.claim_wait(ClaimOptions::default(), Some(3 * TTL)).await.map(drop)
        });
        sleep(moment).await;
        client.set_link(NOT_HEARD);
        sleep(TTL / 3).await;
        world.set_failing(Some(ErrorKind::Unavailable));
        let claimed = claiming.await.expect("no panic");
        world.set_failing(None);
        let is_made = theirs.stats().await.expect("the store is there").claimed > 0;
        let Err(refused) = claimed else { return false };
        assert!(!is_made || refused.effect() == Effect::Unknown, "{moment:?}: {refused}");
        is_made
    });
}

/// The store ends the session, its answer is lost, and then it refuses the login.
#[test]
fn x1_a_stop_whose_answer_was_lost_may_have_been_made() {
    in_a_world(async |world, client, one, _| {
        client.set_link(NOT_HEARD);
        let fails = async {
            sleep(ms(100)).await;
            world.set_failing(Some(ErrorKind::Auth));
        };
        let (stopped, ()) = tokio::join!(one.stop(), fails);
        let refused = stopped.expect_err("the login is refused");
        assert_eq!(told(&refused), (ErrorKind::Auth, Effect::Unknown), "{refused}");
    });
}
