//! F-70: in each kind of background work for which callers wait, causes one panic. All calls have to succeed
//! nevertheless.
#![cfg(coordination_internals)]

use std::sync::Arc;
use std::time::Duration;

use coordination::panics::{arm, armed};
use coordination::simulation::{Client, Clocks, Run, Traits, World};
use coordination::{Coordinator, ErrorKind, Result, State};
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(1);
/// The time limit of all the work; the work with its retries takes less.
const LIMIT: Duration = Duration::from_secs(30);

/// The kinds of background work of a session. Each is named after the store's call that it makes, or after what it
/// waits for.
const WORKS: [&str; 10] = [
    "open", "acquire", "gone", "watch", "observe", "changed", "proclaim", "renew", "release",
    "stop",
];

async fn connect(client: &Arc<Client>) -> Result<Coordinator> {
    client.connect(Coordinator::builder().ttl(TTL).into()).await
}

/// Makes calls that use each kind of background work.
async fn work(client: &Arc<Client>) -> Result<()> {
    let (one, other) = (connect(client).await?, connect(client).await?);
    let mut state = one.state();
    let (held, waits) = (one.lock("a")?.acquire(None).await?, other.lock("a")?);
    let waiting = client.spawn(async move { waits.acquire(None).await });
    let (barrier, passes) = (one.barrier("a")?, other.barrier("a")?);
    barrier.close().await?;
    let passing = client.spawn(async move { passes.wait(None).await });
    let leadership = one.election("a")?.campaign("us", None).await?;
    leadership.proclaim("still us").await?;
    sleep(2 * TTL).await;
    assert!(held.is_held() && leadership.is_leader());
    held.release().await?;
    waiting.await.expect("no panic")?.release().await?;
    barrier.open().await?;
    passing.await.expect("no panic")?;
    leadership.resign().await?;
    while let Ok(Some(state)) = timeout(Duration::ZERO, state.changed()).await {
        assert!(!matches!(state, State::Lost(_)), "{state:?}");
    }
    one.stop().await?;
    other.stop().await
}

fn in_a_world<T>(seed: u64, watches: bool, work: impl AsyncFnOnce(&Arc<Client>) -> T) -> T {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime can be made").block_on(async {
        let _run = Run::begin(seed);
        let traits = Traits { is_remote: true, has_clock: true, watches, renews_on_restart: false };
        let world = World::new(seed, traits);
        let client = world.client(Clocks::default());
        timeout(LIMIT, work(&client)).await.expect("it goes on")
    })
}

#[test]
fn f70_each_work_panics_once_and_all_go_on() {
    for (seed, panics) in WORKS.into_iter().enumerate() {
        let worked = in_a_world(seed as u64, true, async |client| {
            arm(panics);
            work(client).await
        });
        worked.unwrap_or_else(|error| panic!("{panics}: {error}"));
        assert_eq!(armed(), [""; 0], "that was not done at all");
    }
}

#[test]
fn f70_a_call_whose_own_work_panics_says_so() {
    let outcomes = in_a_world(1, false, async |client| {
        arm("connect");
        let connected = connect(client).await.map(drop);
        let coordinator = connect(client).await.expect("the store is there");
        arm("turn");
        let lock = coordinator.lock("a").expect("a good name");
        let acquired = lock.acquire(None).await.map(drop);
        lock.acquire(None)
            .await
            .expect("the next one is granted")
            .release()
            .await
            .expect("it is there");
        arm("cohort");
        let cohort = lock.cohort();
        let had_turn = cohort.acquire(None).await.map(drop);
        let next = cohort.acquire(None).await.expect("the next one is granted");
        next.release().await.expect("it is there");
        [connected, acquired, had_turn]
    });
    for error in outcomes.map(|outcome| outcome.expect_err("it panics")) {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("a panic: "), "{error}");
    }
}
