//! Waits for a turn, in a simulated world.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::simulation::{Clocks, Link, Run, Traits, Weather, World};
use crate::{Config, Coordinator, Effect, ErrorKind, FencingToken, Result};

const TTL: Duration = Duration::from_secs(1);

/// A world, and two clients of it with this lease.
async fn two(ttl: Duration) -> (World, [Coordinator; 2]) {
    let world = World::new(1, Traits::SERVER);
    let connect = async || {
        let config = Config { ttl: Some(ttl), ..Config::default() };
        let client = world.client(Clocks::default());
        client.connect(config).await.expect("the store is there")
    };
    let clients = [connect().await, connect().await];
    (world, clients)
}

/// So many tasks of one client that want the lock `a`, each for a moment. Each notes its token when it has the lock.
struct Crowd {
    tasks: JoinSet<Result<()>>,
    granted: Arc<Mutex<Vec<FencingToken>>>,
}

impl Crowd {
    fn begin(client: &Coordinator, size: usize) -> Self {
        let (mut tasks, granted) = (JoinSet::new(), Arc::<Mutex<Vec<_>>>::default());
        for _ in 0..size {
            let lock = client.lock("a").expect("a good name");
            let granted = Arc::clone(&granted);
            tasks.spawn(async move {
                let guard = lock.acquire(None).await?;
                granted.lock().expect("nobody panicked").push(guard.token());
                guard.release().await
            });
        }
        Self { tasks, granted }
    }

    /// Waits until all have had the lock. Returns their tokens in the order in which they had it.
    async fn end(mut self) -> Vec<FencingToken> {
        while let Some(one) = self.tasks.join_next().await {
            one.expect("no panic").expect("it is granted in the end");
        }
        std::mem::take(&mut *self.granted.lock().expect("nobody panicked"))
    }
}

/// L7: of those of one process that wait for one lock, two look again now and then, and the others rest.
#[tokio::test(start_paused = true)]
async fn l7_a_thousand_that_wait_ask_as_much_as_two() {
    let _run = Run::begin(1);
    let (world, [holder, other]) = two(10 * TTL).await;
    let held = holder.lock("a").expect("a good name").acquire(None).await.expect("free");
    let calls_of_a_minute = async || {
        sleep(10 * TTL).await;
        let before = world.calls();
        sleep(60 * TTL).await;
        world.calls() - before
    };
    let heartbeats = calls_of_a_minute().await;
    let waiting = Crowd::begin(&other, 1_000);
    let all = calls_of_a_minute().await - heartbeats;
    // A re-check comes every 3.5 to 5 s, and is two calls here.
    assert!((40..=80).contains(&all), "{all} beside {heartbeats}");
    held.release().await.expect("the store confirms");
    let tokens = waiting.end().await;
    assert!(tokens.len() == 1_000 && tokens.is_sorted(), "first come, first served");
}

/// L2: nobody hears of anything, some waiters are taken out of the queue, and what they all wait for is released, or broken
/// although it is of their own session.
#[tokio::test(start_paused = true)]
async fn l2_who_rests_is_served_though_nothing_is_told() {
    const CROWD: usize = 10;
    for is_broken in [false, true] {
        for removed in 0..CROWD {
            let _run = Run::begin(removed as u64);
            let (world, [holder, other]) = two(TTL).await;
            world.set_weather(Weather { lost_notification: 1_000_000, ..Weather::calm() });
            let first = if is_broken { &other } else { &holder };
            let lock = first.lock("a").expect("a good name");
            let held = lock.acquire(None).await.expect("free");
            let waiting = Crowd::begin(&other, CROWD);
            sleep(TTL).await;
            for _ in 0..removed {
                assert!(world.remove_some_waiter("lock"));
            }
            sleep(TTL).await;
            match is_broken {
                true => drop(lock.break_lock().await.expect("the store answers")),
                false => held.release().await.expect("the store confirms"),
            }
            // A re-check finds each turn, and before that each two that were removed.
            let tokens = timeout(2 * CROWD as u32 * TTL, waiting.end()).await;
            let tokens = tokens.unwrap_or_else(|_| panic!("{removed} were removed"));
            assert!(tokens.len() == CROWD && tokens.is_sorted());
            for client in [holder, other] {
                client.stop().await.expect("the store confirms");
            }
        }
    }
}

/// If a caller had to wait for another entry first, and then for the store, its error says that the store did not answer.
#[tokio::test(start_paused = true)]
async fn what_was_in_the_way_before_a_loss_is_not_in_the_way_after_it() {
    let _run = Run::begin(1);
    let (world, [holder, other]) = two(TTL).await;
    let limiter = |client: &Coordinator| client.limiter("a").expect("a good name").standby(1);
    let (first, second) = (limiter(&holder), limiter(&other));
    let lock = other.lock("a").expect("a good name");
    let _held = holder.lock("a").expect("a good name").acquire(None).await.expect("free");
    let _working = first.enter().await.expect("free");
    let forgets = async {
        sleep(TTL).await;
        world.set_quarantined(true);
        world.wipe();
    };
    let (locked, limited, ()) = tokio::join!(lock.acquire(Some(10 * TTL)), second.enter(), forgets);
    let locked = locked.expect_err("nobody is let in");
    let limited = limited.expect_err("nobody is let in, and nobody works");
    for error in [locked, limited] {
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
        assert!(error.to_string().contains("in quarantine"), "{error}");
    }
}

/// Whenever the time ends, a caller that the store refused all the time gets the store's refusal as its error.
#[tokio::test(start_paused = true)]
async fn the_end_of_the_time_takes_nothing_from_what_the_store_said() {
    let _run = Run::begin(1);
    let world = World::new(1, Traits::SERVER);
    world.set_quarantined(true);
    let client = world.client(Clocks::default());
    let config = Config { ttl: Some(TTL), ..Config::default() };
    let client = client.connect(config).await.expect("the store is there");
    let lock = client.lock("a").expect("a good name");
    for millis in 500..600 {
        let waited = lock.acquire(Some(Duration::from_millis(millis))).await;
        let error = waited.expect_err("nobody is let in");
        assert!(error.to_string().contains("in quarantine"), "{millis} ms: {error}");
    }
}

/// An entry whose answer was lost exists until its session is over at the store, which is later than in this process.
#[tokio::test(start_paused = true)]
async fn what_may_stand_after_a_loss_is_told() {
    let _run = Run::begin(1);
    let connected = World::with_one_client(TTL).await;
    let (_world, client, coordinator) = connected.expect("the store is there");
    let lock = coordinator.lock("a").expect("a good name");
    client.set_link(Link { replies_cut: true, ..Link::default() });
    let error = lock.acquire(Some(TTL + TTL / 5)).await.expect_err("nothing is heard");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
}
