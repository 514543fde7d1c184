//! Checks that a guard reports its loss even if notifications fail, and that errors say why the store does not reply.
#![cfg(coordination_internals)]

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use coordination::simulation::{Client, Clocks, Link, Run, Weather, World};
use coordination::{
    Admission, Coordinator, Effect, ErrorKind, LockGuard, LossReason, Refusal, blocking,
};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(500);
/// How long a call that may wait for ever is waited for, by a real clock.
const REAL: Duration = Duration::from_secs(60);

fn in_a_world(ttl: Duration, work: impl AsyncFnOnce(&World, Coordinator)) {
    with_a_client(ttl, async |world, _, coordinator| work(world, coordinator).await);
}

fn with_a_client(ttl: Duration, work: impl AsyncFnOnce(&World, &Client, Coordinator)) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime can be made").block_on(async {
        let _run = Run::begin(1);
        let connected = World::with_one_client(ttl).await;
        let (world, client, coordinator) = connected.expect("the store is there");
        work(&world, &client, coordinator).await;
    });
}

/// All watches break and all notifications are lost, but entries can be read. So the removal can be noticed only by
/// reading the entry.
#[test]
fn an_entry_that_is_removed_while_watches_fail_is_noticed() {
    in_a_world(TTL, async |world, coordinator| {
        world.set_weather(Weather {
            broken_watch: 1_000_000,
            lost_notification: 1_000_000,
            ..Weather::calm()
        });
        let lock = coordinator.lock("a").expect("a good name");
        let held = lock.acquire(None).await.expect("it is free");
        sleep(TTL / 2).await;
        assert!(held.is_held(), "nobody has touched it");
        lock.break_lock().await.expect("the store is there");
        let told = timeout(2 * TTL, held.lost()).await;
        assert_eq!(told, Ok(LossReason::EntryDeleted));
    });
}

/// So many locks of one client, held for a while.
async fn hold(coordinator: &Coordinator, count: usize) -> Vec<LockGuard> {
    let mut held = Vec::new();
    for number in 0..count {
        let lock = coordinator.lock(number.to_string()).expect("a good name");
        held.push(lock.acquire(None).await.expect("it is free"));
    }
    sleep(MOMENT).await;
    held
}

/// T3: no notification arrives. The removal of one of several entries is noticed as soon as a single one's would be, whether the store
/// lists all of them, too few, or none; and also if its lists say of every entry that it is gone. All others stay held.
#[test]
fn t3_one_of_many_that_is_removed_unnoticed_is_told() {
    for longest in [None, Some(1), Some(usize::MAX)] {
        for older_answer in [0, 1_000_000] {
            in_a_world(TTL, async |world, coordinator| {
                world.set_longest_list(longest);
                world.set_weather(Weather {
                    lost_notification: 1_000_000,
                    older_answer,
                    ..Weather::calm()
                });
                let mut held = hold(&coordinator, 20).await;
                let taken = held.swap_remove(7);
                let broken = coordinator.lock("7").expect("a good name").break_lock().await;
                assert!(broken.expect("the store is there").is_some());
                // A look comes within the lease, and its answer a moment later.
                let told = timeout(TTL + TTL / 10, taken.lost()).await;
                assert_eq!(told, Ok(LossReason::EntryDeleted), "{longest:?} {older_answer}");
                sleep(10 * TTL).await;
                assert!(held.iter().all(|guard| guard.is_held()), "{longest:?} {older_answer}");
            });
        }
    }
}

/// If the store stops answering with lists, each holder looks for its own entry, and no later than before.
#[test]
fn t3_lists_that_end_are_missed_by_nobody() {
    in_a_world(TTL, async |world, coordinator| {
        world.set_weather(Weather { lost_notification: 1_000_000, ..Weather::calm() });
        let mut held = hold(&coordinator, 20).await;
        sleep(10 * TTL).await;
        world.set_longest_list(Some(1));
        let taken = held.swap_remove(7);
        let broken = coordinator.lock("7").expect("a good name").break_lock().await;
        assert!(broken.expect("the store is there").is_some());
        let told = timeout(TTL + TTL / 10, taken.lost()).await;
        assert_eq!(told, Ok(LossReason::EntryDeleted));
        sleep(10 * TTL).await;
        assert!(held.iter().all(|guard| guard.is_held()), "nobody has touched them");
    });
}

/// L2: many watches begin at once, as after a reconnect, and wait for a slot among the calls in flight. Meanwhile no list comes, and their
/// holders look for their entries, for which they need a slot as well. In the end each gets one, and so does who comes next.
#[test]
fn l2_holders_that_look_while_their_watches_begin_leave_slots_to_others() {
    in_a_world(TTL, async |world, coordinator| {
        world.set_weather(Weather { delay: 8..=8, ..Weather::calm() });
        let mut acquiring = JoinSet::new();
        for number in 0..150 {
            let lock = coordinator.lock(number.to_string()).expect("a good name");
            acquiring.spawn(async move { lock.acquire(None).await });
        }
        let mut held = Vec::new();
        while let Some(one) = acquiring.join_next().await {
            held.push(one.expect("no panic").expect("it is free"));
        }
        // The watches begin a moment after the grants. The last of them has its slot 1.2 s later, when each holder has begun to look.
        world.set_slots(2);
        sleep(2 * TTL).await;
        // There is room for all looks from now on, unless someone keeps a slot.
        world.set_weather(Weather { delay: 1..=1, ..Weather::calm() });
        let next = coordinator.lock("next").expect("a good name");
        let granted = timeout(20 * TTL, next.acquire(None)).await;
        drop(granted.expect("a slot becomes free").expect("the lock is free"));
        assert!(held.iter().all(|guard| guard.is_held()), "nobody has touched them");
    });
}

/// L7: what a thousand held entries ask in a minute is what one does: a list now and then, beside the heartbeats.
#[test]
fn l7_a_thousand_held_entries_ask_as_much_as_one() {
    let asked = |count: usize| {
        let mut asked = 0;
        in_a_world(10 * TTL, async |world, coordinator| {
            let _held = hold(&coordinator, count).await;
            sleep(10 * TTL).await;
            let before = world.calls();
            sleep(60 * TTL).await;
            asked = world.calls() - before;
        });
        asked
    };
    let (one, thousand) = (asked(1), asked(1_000));
    // A heartbeat each second, and a list every 3.5 to 4 s.
    assert!((70..=85).contains(&one), "{one}");
    assert!(one.abs_diff(thousand) <= 2, "{one} {thousand}");
}

/// L7: whoever may not read an entry any more asks no more often than whoever may.
#[test]
fn l7_holders_that_are_refused_do_not_ask_again_and_again() {
    const COUNT: u64 = 100;
    in_a_world(10 * TTL, async |world, coordinator| {
        let _held = hold(&coordinator, COUNT as usize).await;
        let before = world.calls();
        world.set_failing(Some(ErrorKind::Permission));
        // The session lasts longer than this.
        sleep(8 * TTL).await;
        let asked = world.calls() - before;
        // Two looks of each holder, and some tries of heartbeats and of lists.
        assert!(asked <= 2 * COUNT + 60, "{asked}");
    });
}

/// Kinds of errors that do not go away with time, because somebody has to change a setting first.
const LASTING: [ErrorKind; 4] =
    [ErrorKind::Auth, ErrorKind::Permission, ErrorKind::Tls, ErrorKind::Config];

#[test]
fn why_no_session_is_open_is_told_when_time_is_up() {
    for kind in LASTING {
        in_a_world(TTL, async |world, coordinator| {
            let lock = coordinator.lock("a").expect("a good name");
            let held = lock.acquire(None).await.expect("it is free");
            let barrier = coordinator.barrier("a").expect("a good name");
            world.set_failing(Some(kind));
            sleep(2 * TTL).await;
            assert_eq!(timeout(MOMENT, held.lost()).await, Ok(LossReason::DeadlinePassed));
            for error in [
                lock.acquire(Some(MOMENT)).await.expect_err("no session is open"),
                barrier.wait(Some(MOMENT)).await.expect_err("no session is open"),
            ] {
                assert_eq!(error.kind(), kind, "{error}");
                assert!(error.to_string().contains("the store is out of reach"), "{error}");
            }
            world.set_failing(None);
            drop(lock.acquire(Some(4 * TTL)).await.expect("the store is there again"));
        });
    }
}

#[test]
fn why_a_release_is_not_confirmed_is_told_when_time_is_up() {
    for kind in LASTING {
        in_a_world(30 * TTL, async |world, coordinator| {
            let lock = coordinator.lock("a").expect("a good name");
            let held = lock.acquire(None).await.expect("it is free");
            world.set_failing(Some(kind));
            let error = held.release().await.expect_err("the store does not confirm");
            assert_eq!((error.kind(), error.effect()), (kind, Effect::Unknown), "{error}");
            assert!(error.to_string().contains("the store is out of reach"), "{error}");
            let error = coordinator.stop().await.expect_err("the store does not confirm");
            assert_eq!(error.kind(), kind, "{error}");
            // Whoever stops it again is told the same.
            let first = (error.kind(), error.effect());
            let error = coordinator.stop().await.expect_err("the store has not confirmed");
            assert_eq!((error.kind(), error.effect()), first, "{error}");
            let stopped = coordinator.stop_within(Duration::ZERO).await;
            assert_eq!(stopped.confirmed.map_err(|error| error.kind()), Err(kind));
        });
    }
}

/// A blocking release, on the only thread of the session's runtime.
#[test]
fn a_release_that_would_wait_for_itself_goes_on_in_the_background() {
    let (told, is_told) = channel();
    thread::spawn(move || {
        in_a_world(TTL, async |world, coordinator| {
            let lock = coordinator.lock("a").expect("a good name");
            let held = lock.acquire(None).await.expect("it is free");
            let error = blocking::release(held).expect_err("it would wait for itself");
            let _ = told.send((error.kind(), error.effect()));
            sleep(MOMENT).await;
            assert_eq!(world.entries(), 0, "it is released in the background");
            let _ = told.send((error.kind(), error.effect()));
        });
    });
    for _ in 0..2 {
        let error = is_told.recv_timeout(REAL);
        assert_eq!(error, Ok((ErrorKind::Unsupported, Effect::Unknown)));
    }
}

/// Who gives up before the store has answered is not told that others were there first: an entry may have been left.
#[test]
fn an_outage_is_no_refusal_for_who_gives_up() {
    with_a_client(TTL, async |_, client, coordinator| {
        let limiter = coordinator.limiter("a").expect("a good name").standby(1);
        client.set_link(Link { replies_cut: true, ..Link::default() });
        let interval = Duration::from_millis(10);
        // The session notices the outage between the first and the second.
        for patience in [20, 200] {
            let error = limiter.enter_while(interval, |count, _| count < patience).await;
            let error = error.expect_err("the store does not answer");
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
        }
        client.set_link(Link::default());
        sleep(4 * TTL).await;
        let Admission::Working(slot) = limiter.enter().await.expect("the store answers") else {
            panic!("nobody else is there");
        };
        // Who gives up on standby is told so, whatever the store does.
        let giving_up = limiter.enter_while(interval, |count, _| {
            client.set_link(Link { replies_cut: count > 20, ..Link::default() });
            count < 200
        });
        let gave_up = giving_up.await.expect("he was on standby");
        assert!(matches!(gave_up, Admission::Refused(Refusal::GaveUp { .. })), "{gave_up:?}");
        drop(slot);
    });
}

/// A party whose place was lost has left: it is told so once, and waits for the others when it leaves again.
#[test]
fn a_party_that_lost_its_place_waits_for_the_others() {
    with_a_client(TTL, async |world, client, coordinator| {
        let theirs = world.client(Clocks::default());
        let settings = Coordinator::builder().ttl(TTL);
        let theirs = theirs.connect(settings.into()).await.expect("the store is there");
        let [ours, theirs] = [&coordinator, &theirs]
            .map(|client| client.double_barrier("a", 2).expect("a good name"));
        let (ours, theirs) = tokio::join!(ours.enter(None), theirs.enter(None));
        let (ours, theirs) = (ours.expect("both are there"), theirs.expect("both are there"));
        client.set_link(Link { replies_cut: true, ..Link::default() });
        ours.lost().await;
        client.set_link(Link::default());
        sleep(4 * TTL).await;
        let told = |left: coordination::Result<()>| left.map_err(|error| error.kind());
        assert_eq!(told(ours.leave(None).await), Err(ErrorKind::Lost));
        assert_eq!(told(ours.leave(Some(MOMENT)).await), Err(ErrorKind::Timeout));
        assert_eq!(told(theirs.leave(None).await), Ok(()));
        assert_eq!(told(ours.leave(Some(MOMENT)).await), Ok(()));
    });
}
