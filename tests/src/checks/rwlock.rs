//! W1: the read-write lock: readers share it, a writer has it alone, and they are served in the order in which they
//! asked.

mod downgrade;
mod ending;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use coordination::{Coordinator, ErrorKind, Lock, LockGuard, Result};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::cancellation::nothing_is_left;
use super::interruption::{Pair, at_every_poll};
use super::tools::{
    ANSWERED, MOMENT, NAME, PATIENCE, acquire, acquire_in_background, assert_out_of_time, lock,
    take_turn, until_contenders,
};
use crate::bounds;
use crate::must_hold;

pub use downgrade::*;
pub use ending::*;

/// How long a reader or writer holds the lock: long enough to meet others.
const VISIT: Duration = Duration::from_millis(1);

async fn share(coordinator: &Coordinator) -> Result<LockGuard> {
    lock(coordinator).acquire_shared(Some(PATIENCE)).await
}

fn share_in_background(coordinator: &Coordinator) -> JoinHandle<Result<LockGuard>> {
    let lock = lock(coordinator);
    tokio::spawn(async move { lock.acquire_shared(Some(PATIENCE)).await })
}

/// Waits until the waiter that is next in the queue has the lock, at most for the bound of L2. Returns its guard.
async fn served(store: &TestStore, waiting: JoinHandle<Result<LockGuard>>) -> Result<LockGuard> {
    store.within(bounds::served(), waiting).await.expect("no panic")
}

/// Counts readers and writers that hold the lock at the same time.
#[derive(Debug, Default)]
struct Hall {
    readers: AtomicUsize,
    writers: AtomicUsize,
    most_readers: AtomicUsize,
}

impl Hall {
    async fn read(&self) {
        let readers = self.readers.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_readers.fetch_max(readers, Ordering::SeqCst);
        must_hold!(self.writers.load(Ordering::SeqCst) == 0, "a reader beside a writer");
        tokio::time::sleep(VISIT).await;
        must_hold!(self.writers.load(Ordering::SeqCst) == 0, "a reader beside a writer");
        self.readers.fetch_sub(1, Ordering::SeqCst);
    }

    async fn write(&self) {
        must_hold!(self.writers.fetch_add(1, Ordering::SeqCst) == 0, "two writers");
        must_hold!(self.readers.load(Ordering::SeqCst) == 0, "a writer beside a reader");
        tokio::time::sleep(VISIT).await;
        must_hold!(self.readers.load(Ordering::SeqCst) == 0, "a writer beside a reader");
        self.writers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// W1: many readers and writers of several clients use the lock, and some of them give up. Never does a writer have
/// it at the same time as anybody else.
pub async fn w1_never_a_writer_with_anybody(store: &TestStore) -> Result<()> {
    let hall = Arc::new(Hall::default());
    let mut tasks = JoinSet::new();
    let rounds = store.rounds(100, 8);
    for client in 0..3 {
        let coordinator = store.connect(&format!("client-{client}")).await?;
        for task in 0..5 {
            tasks.spawn(visit(lock(&coordinator), Arc::clone(&hall), rounds, task));
        }
    }
    let mut visits = 0;
    while let Some(outcome) = tasks.join_next().await {
        visits += outcome.expect("no panic in the hall")?;
    }
    assert!(visits >= 3 * 4 * rounds, "only the impatient may fail: {visits}");
    assert!(hall.most_readers.load(Ordering::SeqCst) > 1, "readers share");
    Ok(())
}

/// Acquires the lock `rounds` times. Each client has five tasks: tasks 0 and 1 are writers, and task 4 gives up
/// quickly.
async fn visit(lock: Lock, hall: Arc<Hall>, rounds: usize, task: usize) -> Result<usize> {
    let mut visits = 0;
    for round in 0..rounds {
        let patience = if task == 4 { Duration::from_millis(1) } else { PATIENCE };
        let writes = task < 2 || task == 4 && round % 2 == 0;
        let taken = match writes {
            true => lock.acquire(Some(patience)).await,
            false => lock.acquire_shared(Some(patience)).await,
        };
        let guard = match taken {
            Err(error) if task == 4 => {
                let kinds = [ErrorKind::Timeout, ErrorKind::Unavailable];
                assert!(kinds.contains(&error.kind()), "{error}");
                continue;
            }
            taken => taken?,
        };
        assert!(guard.is_held());
        assert_eq!(guard.is_shared(), !writes);
        match writes {
            true => hall.write().await,
            false => hall.read().await,
        }
        visits += 1;
        match round % 3 {
            // The writer downgrades its lock and goes on as a reader.
            0 if writes => {
                let guard = guard.downgrade().await?;
                hall.read().await;
                guard.release().await?;
            }
            1 => drop(guard),
            _ => guard.release().await?,
        }
    }
    Ok(visits)
}

/// W1: readers and writers of two processes use the lock. Never does a writer have it at the same time as anybody
/// else.
pub async fn w1_readers_and_writers_of_processes(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("here").await?;
    let worker = store.worker("there");
    for _ in 0..store.rounds(10, 3) {
        worker.call(json!({ "command": "acquire_shared", "lock": NAME }));
        let share = lock(&coordinator).try_acquire_shared().await?.expect("readers share");
        assert!(lock(&coordinator).try_acquire().await?.is_none());
        let refused = worker.call(json!({ "command": "try_acquire", "lock": NAME, "as": "w" }));
        assert!(refused.is_null(), "{refused}");
        worker.call(json!({ "command": "release", "handle": NAME }));
        share.release().await?;
        worker.call(json!({ "command": "acquire", "lock": NAME }));
        assert!(lock(&coordinator).try_acquire_shared().await?.is_none());
        worker.call(json!({ "command": "release", "handle": NAME }));
    }
    Ok(())
}

/// W1: one handle can hold two shared guards, each with a release of its own.
///
/// Tooz: corresponds to the test `test_get_shared_lock_locking_same_lock_twice` of the Python library Tooz.
pub async fn w1_one_handle_shares_twice(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let lock_one = lock(&one);
    let first = lock_one.acquire_shared(Some(PATIENCE)).await?;
    let second = lock_one.try_acquire_shared().await?.expect("readers share");
    first.release().await?;
    assert!(second.is_held());
    assert!(lock(&other).try_acquire().await?.is_none(), "one share is left");
    second.release().await?;
    take_turn(&other).await.map(drop)
}

/// W1: two handles can share the lock, of one client or of two.
///
/// Tooz: corresponds to these tests of the Python library Tooz: `test_get_shared_lock`,
/// `test_get_shared_lock_locking_two_lock`.
pub async fn w1_two_handles_share(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let shares = [
        lock(&one).try_acquire_shared().await?.expect("it is free"),
        lock(&one).try_acquire_shared().await?.expect("readers share"),
        lock(&other).try_acquire_shared().await?.expect("readers share"),
    ];
    assert!(shares.iter().all(|share| share.is_held() && share.is_shared()));
    let holders = lock(&one).holders().await?;
    assert_eq!(holders.len(), 3);
    assert!(holders.iter().all(|holder| holder.holding && holder.shared), "{holders:?}");
    for share in shares {
        assert!(lock(&other).try_acquire().await?.is_none());
        share.release().await?;
    }
    take_turn(&other).await.map(drop)
}

/// W1: a shared guard excludes writers.
///
/// Tooz: corresponds to the test `test_get_lock_locking_shared_and_exclusive` of the Python library Tooz.
pub async fn w1_a_share_keeps_writers_out(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = share(&one).await?;
    for client in [&one, &other] {
        assert!(lock(client).try_acquire().await?.is_none());
        let refused = lock(client).acquire(Some(ANSWERED)).await.expect_err("it is shared");
        assert_out_of_time(&refused, ANSWERED);
    }
    until_contenders(store, &lock(&one), 1).await;
    held.release().await?;
    take_turn(&other).await.map(drop)
}

/// W1: a writer excludes readers.
///
/// Tooz: corresponds to the test `test_get_lock_locking_exclusive_and_shared` of the Python library Tooz.
pub async fn w1_a_writer_keeps_readers_out(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = acquire(&one).await?;
    assert!(!held.is_shared());
    for client in [&one, &other] {
        assert!(lock(client).try_acquire_shared().await?.is_none());
        let refused = lock(client).acquire_shared(Some(ANSWERED)).await.expect_err("it is held");
        assert_out_of_time(&refused, ANSWERED);
    }
    until_contenders(store, &lock(&one), 1).await;
    held.release().await?;
    share(&other).await?.release().await
}

/// W1: a writer that waits is served before readers that come later.
pub async fn w1_a_waiting_writer_goes_first(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let reading = share(&one).await?;
    let writer = acquire_in_background(&other);
    until_contenders(store, &lock(&one), 2).await;
    for client in [&one, &other] {
        assert!(lock(client).try_acquire_shared().await?.is_none(), "the writer would starve");
    }
    let late = share_in_background(&one);
    until_contenders(store, &lock(&one), 3).await;
    reading.release().await?;
    let writer = served(store, writer).await?;
    sleep(MOMENT).await;
    assert!(!late.is_finished());
    writer.release().await?;
    served(store, late).await?.release().await
}

/// W1: a queue of readers and writers is served in its order. Readers that stand directly behind each other are
/// served together.
pub async fn w1_order_of_a_mixed_queue(store: &TestStore) -> Result<()> {
    const QUEUE: &str = "rrwrrrwwr";
    let groups = [vec![0, 1], vec![2], vec![3, 4, 5], vec![6], vec![7], vec![8]];
    let clients = [store.connect("one").await?, store.connect("other").await?];
    let held = acquire(&clients[0]).await?;
    let (entered, mut inside) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    let mut leave = Vec::new();
    for (place, kind) in QUEUE.chars().enumerate() {
        let (lock, entered) = (lock(&clients[place % 2]), entered.clone());
        let (go, gone) = oneshot::channel::<()>();
        leave.push(Some(go));
        tasks.spawn(async move {
            let guard = match kind {
                'r' => lock.acquire_shared(Some(PATIENCE)).await?,
                _ => lock.acquire(Some(PATIENCE)).await?,
            };
            entered.send((place, guard.token())).expect("somebody listens");
            let _ = gone.await;
            guard.release().await
        });
        until_contenders(store, &super::tools::lock(&clients[0]), place + 2).await;
    }
    let mut last = held.token();
    held.release().await?;
    for group in groups {
        let mut seen = Vec::new();
        for _ in &group {
            let came = store.within(bounds::served(), inside.recv()).await;
            seen.push(came.expect("there are more"));
        }
        assert!(timeout(MOMENT, inside.recv()).await.is_err(), "nobody else: {seen:?}");
        seen.sort_unstable();
        assert!(seen.iter().map(|(place, _)| *place).eq(group), "{seen:?}");
        for (place, token) in seen {
            must_hold!(token > last);
            last = token;
            drop(leave[place].take());
        }
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.expect("no panic")?;
    }
    Ok(())
}

/// W1: the token of a shared guard is larger than those of earlier writers and smaller than those of later writers.
pub async fn w1_tokens_of_shares_lie_between(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let mut last = take_turn(&one).await?;
    for round in 0..store.rounds(20, 4) {
        let shares = [share(&one).await?, share(&other).await?, share(&one).await?];
        let tokens: Vec<_> = shares.iter().map(|share| share.token()).collect();
        must_hold!(tokens.iter().all(|token| *token > last), "{last} → {tokens:?}");
        for share in shares {
            match round % 2 {
                0 => share.release().await?,
                _ => drop(share),
            }
        }
        last = take_turn(if round % 2 == 0 { &one } else { &other }).await?;
        must_hold!(tokens.iter().all(|token| *token < last), "{tokens:?} → {last}");
    }
    Ok(())
}

/// W1: there is no upgrade: a reader that asks for the exclusive lock waits for itself, and two such readers wait for
/// each other.
pub async fn w1_no_upgrade(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let shares = [share(&one).await?, share(&other).await?];
    for client in [&one, &other] {
        let refused = lock(client).acquire(Some(ANSWERED)).await.expect_err("it is shared");
        assert_out_of_time(&refused, ANSWERED);
    }
    assert!(shares.iter().all(|share| share.is_held()));
    drop(shares);
    take_turn(&one).await.map(drop)
}

/// W1, C1, C2: a shared acquire that is dropped at any poll leaves no entry.
pub async fn w1_a_dropped_share_leaves_nothing(store: &TestStore) -> Result<()> {
    let least = store.rounds(1, 2);
    at_every_poll(store, "acquire_shared beside a share", least, interrupted_share).await?;
    at_every_poll(store, "acquire_shared of a held lock", 2, interrupted_shared_wait).await
}

/// Case: a client acquires a shared lock while another client shares it.
pub async fn interrupted_share(pair: &Pair<'_>) -> Result<()> {
    let other = share(&pair.other).await?;
    let lock = lock(&pair.one);
    drop(pair.interrupt(lock.acquire_shared(pair.patience())).await?);
    assert!(other.is_held(), "{pair:?}");
    other.release().await?;
    nothing_is_left(pair.store, &pair.other, &format!("{pair:?}")).await
}

/// Case: a client waits for a shared lock while another client holds the lock exclusively and then releases it.
pub async fn interrupted_shared_wait(pair: &Pair<'_>) -> Result<()> {
    let releasing = pair.drop_later(acquire(&pair.other).await?);
    let lock = lock(&pair.one);
    drop(pair.interrupt(lock.acquire_shared(pair.patience())).await?);
    releasing.await.expect("no panic");
    nothing_is_left(pair.store, &pair.other, &format!("{pair:?}")).await
}
