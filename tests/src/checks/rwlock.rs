//! W1: the lock shared: readers beside each other, a writer alone, in the order of asking.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coordination::{BootInstant, Coordinator, ErrorKind, Lock, LockGuard, LossReason, Result};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::cancellation::nothing_is_left;
use super::grants::create_revision;
use super::interruption::{Scene, at_every_poll};
use super::timing::lease_of;
use super::tools::{
    MOMENT, NAME, PATIENCE, Probe, acquire, acquire_in_background, lock, take_turn,
    until_contenders,
};
use super::{Backend, Stage};
use crate::harness::Mode;

/// L2: how long whoever is next may wait.
const WAKING: Duration = Duration::from_secs(2);

async fn share(coordinator: &Coordinator) -> Result<LockGuard> {
    lock(coordinator).acquire_shared(Some(PATIENCE)).await
}

fn share_in_background(coordinator: &Coordinator) -> JoinHandle<Result<LockGuard>> {
    let lock = lock(coordinator);
    tokio::spawn(async move { lock.acquire_shared(Some(PATIENCE)).await })
}

/// The guard of a waiter who is next.
async fn served(stage: &Stage, waiting: JoinHandle<Result<LockGuard>>) -> Result<LockGuard> {
    let guard = timeout(WAKING + stage.scheduling(), waiting).await.expect("it is its turn");
    guard.expect("no panic")
}

/// Who is in a room with readers and writers.
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
        assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a reader beside a writer");
        tokio::task::yield_now().await;
        assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a reader beside a writer");
        self.readers.fetch_sub(1, Ordering::SeqCst);
    }

    async fn write(&self) {
        assert_eq!(self.writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a writer beside a reader");
        tokio::task::yield_now().await;
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a writer beside a reader");
        self.writers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// W1: many readers and writers of several clients, some of whom give up: never a writer with anybody.
pub async fn w1_never_a_writer_with_anybody(stage: &Stage) -> Result<()> {
    let hall = Arc::new(Hall::default());
    let mut tasks = JoinSet::new();
    let rounds = stage.rounds(100, 8);
    for client in 0..3 {
        let coordinator = stage.connect(&format!("client-{client}")).await?;
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

/// Visits the hall so many times: the first two of five tasks write, the last is impatient.
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
            // A writer who goes on as a reader.
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

/// W1: over processes.
pub async fn w1_readers_and_writers_of_processes(stage: &Stage) -> Result<()> {
    let coordinator = stage.connect("here").await?;
    let worker = stage.worker("there");
    for _ in 0..stage.rounds(10, 3) {
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

/// W1: two shares by one handle, each with its own release.
///
/// Tooz: test_get_shared_lock_locking_same_lock_twice.
pub async fn w1_one_handle_shares_twice(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    let lock_one = lock(&one);
    let first = lock_one.acquire_shared(Some(PATIENCE)).await?;
    let second = lock_one.try_acquire_shared().await?.expect("readers share");
    first.release().await?;
    assert!(second.is_held());
    assert!(lock(&other).try_acquire().await?.is_none(), "one share is left");
    second.release().await?;
    take_turn(&other).await.map(drop)
}

/// W1: shares of two handles, of one client and of two.
///
/// Tooz: test_get_shared_lock, test_get_shared_lock_locking_two_lock.
pub async fn w1_two_handles_share(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
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

/// W1: a share keeps writers out.
///
/// Tooz: test_get_lock_locking_shared_and_exclusive.
pub async fn w1_a_share_keeps_writers_out(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    let held = share(&one).await?;
    for client in [&one, &other] {
        assert!(lock(client).try_acquire().await?.is_none());
        let refused = lock(client).acquire(Some(6 * MOMENT)).await.expect_err("it is shared");
        assert_eq!(refused.kind(), ErrorKind::Timeout);
    }
    until_contenders(stage, &lock(&one), 1).await;
    held.release().await?;
    take_turn(&other).await.map(drop)
}

/// W1: a writer keeps readers out.
///
/// Tooz: test_get_lock_locking_exclusive_and_shared.
pub async fn w1_a_writer_keeps_readers_out(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    let held = acquire(&one).await?;
    assert!(!held.is_shared());
    for client in [&one, &other] {
        assert!(lock(client).try_acquire_shared().await?.is_none());
        let refused = lock(client).acquire_shared(Some(6 * MOMENT)).await.expect_err("it is held");
        assert_eq!(refused.kind(), ErrorKind::Timeout);
    }
    until_contenders(stage, &lock(&one), 1).await;
    held.release().await?;
    share(&other).await?.release().await
}

/// W1: a writer who waits goes before readers who come later.
pub async fn w1_a_waiting_writer_goes_first(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    let reading = share(&one).await?;
    let writer = acquire_in_background(&other);
    until_contenders(stage, &lock(&one), 2).await;
    for client in [&one, &other] {
        assert!(lock(client).try_acquire_shared().await?.is_none(), "the writer would starve");
    }
    let late = share_in_background(&one);
    until_contenders(stage, &lock(&one), 3).await;
    reading.release().await?;
    let writer = served(stage, writer).await?;
    sleep(MOMENT).await;
    assert!(!late.is_finished());
    writer.release().await?;
    served(stage, late).await?.release().await
}

/// W1: a mixed queue is served in its order, and neighbours who share are served together.
pub async fn w1_order_of_a_mixed_queue(stage: &Stage) -> Result<()> {
    const QUEUE: &str = "rrwrrrwwr";
    let groups = [vec![0, 1], vec![2], vec![3, 4, 5], vec![6], vec![7], vec![8]];
    let clients = [stage.connect("one").await?, stage.connect("other").await?];
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
        until_contenders(stage, &super::tools::lock(&clients[0]), place + 2).await;
    }
    let mut last = held.token();
    held.release().await?;
    for group in groups {
        let mut seen = Vec::new();
        for _ in &group {
            let came = timeout(WAKING + stage.scheduling(), inside.recv()).await;
            seen.push(came.expect("it is their turn").expect("there are more"));
        }
        assert!(timeout(MOMENT, inside.recv()).await.is_err(), "nobody else: {seen:?}");
        seen.sort_unstable();
        assert!(seen.iter().map(|(place, _)| *place).eq(group), "{seen:?}");
        for (place, token) in seen {
            assert!(token > last);
            last = token;
            drop(leave[place].take());
        }
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.expect("no panic")?;
    }
    Ok(())
}

/// W1, 2.5: a share's token is larger than those of the writers before, smaller than of those after.
pub async fn w1_tokens_of_shares_lie_between(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    let mut last = take_turn(&one).await?;
    for round in 0..stage.rounds(20, 4) {
        let shares = [share(&one).await?, share(&other).await?, share(&one).await?];
        let tokens: Vec<_> = shares.iter().map(|share| share.token()).collect();
        assert!(tokens.iter().all(|token| *token > last), "{last} → {tokens:?}");
        for share in shares {
            match round % 2 {
                0 => share.release().await?,
                _ => drop(share),
            }
        }
        last = take_turn(if round % 2 == 0 { &one } else { &other }).await?;
        assert!(tokens.iter().all(|token| *token < last), "{tokens:?} → {last}");
    }
    Ok(())
}

/// W1: downgrading keeps the token, lets in the readers who are next, and nobody behind a writer.
pub async fn w1_downgrade_lets_readers_in(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    let held = acquire(&one).await?;
    let first = share_in_background(&other);
    until_contenders(stage, &lock(&one), 2).await;
    let writer = acquire_in_background(&other);
    until_contenders(stage, &lock(&one), 3).await;
    let late = share_in_background(&one);
    until_contenders(stage, &lock(&one), 4).await;
    let token = held.token();
    let held = held.downgrade().await?;
    assert!(held.is_held() && held.is_shared() && held.token() == token);
    let first = served(stage, first).await?;
    // Long enough for a heartbeat, and for whoever watches the entry, to see the change.
    sleep(2 * stage.heartbeat() + MOMENT).await;
    assert!(held.is_held() && first.is_held());
    assert!(!writer.is_finished() && !late.is_finished());
    let holders = lock(&one).holders().await?;
    let seen: Vec<_> = holders.iter().map(|one| (one.holding, one.shared)).collect();
    assert_eq!(seen, [(true, true), (true, true), (false, false), (false, true)]);
    assert!(token < first.token());
    held.release().await?;
    first.release().await?;
    let writer = served(stage, writer).await?;
    assert!(!late.is_finished());
    writer.release().await?;
    served(stage, late).await?.release().await
}

/// W1: when nobody waits, downgrading opens the lock for readers who come later.
pub async fn w1_downgrade_opens_the_lock(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    let held = acquire(&one).await?.downgrade().await?;
    let beside = lock(&other).try_acquire_shared().await?.expect("readers share");
    assert!(lock(&other).try_acquire().await?.is_none());
    // Twice is once.
    let held = held.downgrade().await?;
    assert!(held.is_held() && held.token() < beside.token());
    held.release().await?;
    assert!(lock(&one).try_acquire().await?.is_none());
    beside.release().await?;
    take_turn(&one).await.map(drop)
}

/// W1: a downgrade of a lock that was lost says so, and takes nothing.
pub async fn w1_downgrade_after_a_loss(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    let held = acquire(&one).await?;
    lock(&other).break_lock().await?;
    let next = acquire(&other).await?;
    // Whether it was told already or not.
    let refused = held.downgrade().await.expect_err("it was broken");
    assert_eq!(refused.kind(), ErrorKind::Lost);
    assert!(lock(&one).try_acquire_shared().await?.is_none());
    assert!(next.is_held());
    next.release().await
}

/// W1, C1: a downgrade that is dropped anywhere lets go of the lock.
pub async fn w1_a_dropped_downgrade_releases(stage: &Stage) -> Result<()> {
    at_every_poll(stage, "downgrade", stage.rounds(1, 2), interrupted_downgrade).await
}

/// A lock is downgraded, and somebody else shares it.
pub async fn interrupted_downgrade(scene: &Scene<'_>) -> Result<()> {
    let held = acquire(&scene.one).await?;
    let shared = scene.interrupt(held.downgrade()).await?;
    if let Some(shared) = &shared {
        assert!(shared.is_held() && shared.is_shared(), "{scene:?}");
        share(&scene.other).await?.release().await?;
    }
    drop(shared);
    nothing_is_left(scene.stage, &scene.other, &format!("{scene:?}")).await
}

/// A share is waited for, and somebody else downgrades meanwhile.
pub async fn interrupted_wait_for_a_downgrade(scene: &Scene<'_>) -> Result<()> {
    let held = acquire(&scene.other).await?;
    let lock = lock(&scene.one);
    let downgrading = tokio::spawn(async move {
        sleep(MOMENT / 2).await;
        held.downgrade().await
    });
    let granted = scene.interrupt(lock.acquire_shared(scene.patience())).await?;
    let downgraded = downgrading.await.expect("no panic")?;
    assert!(downgraded.is_held(), "{scene:?}");
    assert!(granted.as_ref().is_none_or(|share| share.is_held()), "{scene:?}");
    drop((granted, downgraded));
    nothing_is_left(scene.stage, &scene.other, &format!("{scene:?}")).await
}

/// W1: there is no upgrade. A reader who asks for the lock waits for himself, and two for each other.
pub async fn w1_no_upgrade(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    let shares = [share(&one).await?, share(&other).await?];
    for client in [&one, &other] {
        let refused = lock(client).acquire(Some(6 * MOMENT)).await.expect_err("it is shared");
        assert_eq!(refused.kind(), ErrorKind::Timeout);
    }
    assert!(shares.iter().all(|share| share.is_held()));
    drop(shares);
    take_turn(&one).await.map(drop)
}

/// W1, C1, C2: a share that is asked for and dropped at any point leaves nothing.
pub async fn w1_a_dropped_share_leaves_nothing(stage: &Stage) -> Result<()> {
    let least = stage.rounds(1, 2);
    at_every_poll(stage, "acquire_shared beside a share", least, interrupted_share).await?;
    at_every_poll(stage, "acquire_shared of a held lock", 2, interrupted_shared_wait).await
}

/// A lock is shared that somebody else shares already.
pub async fn interrupted_share(scene: &Scene<'_>) -> Result<()> {
    let other = share(&scene.other).await?;
    let lock = lock(&scene.one);
    drop(scene.interrupt(lock.acquire_shared(scene.patience())).await?);
    assert!(other.is_held(), "{scene:?}");
    other.release().await?;
    nothing_is_left(scene.stage, &scene.other, &format!("{scene:?}")).await
}

/// A share is waited for while somebody writes, who releases meanwhile.
pub async fn interrupted_shared_wait(scene: &Scene<'_>) -> Result<()> {
    let releasing = scene.drop_later(acquire(&scene.other).await?);
    let lock = lock(&scene.one);
    drop(scene.interrupt(lock.acquire_shared(scene.patience())).await?);
    releasing.await.expect("no panic");
    nothing_is_left(scene.stage, &scene.other, &format!("{scene:?}")).await
}

/// W1, L3: a writer who gives up lets the readers behind him in, though others still read.
pub async fn w1_a_writer_who_gives_up_blocks_nobody(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    let reading = share(&one).await?;
    // By a cancelled call.
    let writer = acquire_in_background(&other);
    until_contenders(stage, &lock(&one), 2).await;
    let reader = share_in_background(&one);
    until_contenders(stage, &lock(&one), 3).await;
    writer.abort();
    let reader = served(stage, reader).await?;
    assert!(reading.is_held() && reader.is_held());
    reader.release().await?;
    // By a timeout, at whatever moment of the reader's wait it comes.
    let refused = lock(&other);
    let writer = tokio::spawn(async move { refused.acquire(Some(6 * MOMENT)).await });
    sleep(2 * MOMENT).await;
    served(stage, share_in_background(&one)).await?.release().await?;
    let refused = writer.await.expect("no panic").expect_err("it is shared");
    assert_eq!(refused.kind(), ErrorKind::Timeout);
    until_contenders(stage, &lock(&one), 1).await;
    reading.release().await
}

/// W1: a session that ends takes its shares, its lock and its places with it.
pub async fn w1_a_session_that_ends_lets_others_in(stage: &Stage) -> Result<()> {
    let other = stage.connect("other").await?;
    // A reader.
    let dying = stage.connect("dying").await?;
    let lost = share(&dying).await?;
    let writer = acquire_in_background(&other);
    until_contenders(stage, &lock(&other), 2).await;
    dying.stop().await?;
    assert_eq!(lost.lost().await, LossReason::Closed);
    assert!(!lost.is_held());
    let held = served(stage, writer).await?;
    drop(lost);
    assert!(held.is_held());
    held.release().await?;
    // A writer, for two readers.
    let dying = stage.connect("dying").await?;
    let lost = acquire(&dying).await?;
    let readers = [share_in_background(&other), share_in_background(&other)];
    until_contenders(stage, &lock(&other), 3).await;
    dying.stop().await?;
    assert_eq!(lost.lost().await, LossReason::Closed);
    let [first, second] = readers;
    let readers = (served(stage, first).await?, served(stage, second).await?);
    // A writer who waits, for a reader behind him.
    let dying = stage.connect("dying").await?;
    let waiting = acquire_in_background(&dying);
    until_contenders(stage, &lock(&other), 3).await;
    let behind = share_in_background(&other);
    until_contenders(stage, &lock(&other), 4).await;
    dying.stop().await?;
    let refused = waiting.await.expect("no panic").expect_err("it is closed");
    assert_eq!(refused.kind(), ErrorKind::Closed);
    let behind = served(stage, behind).await?;
    assert!(readers.0.is_held() && readers.1.is_held() && behind.is_held());
    Ok(())
}

/// W1, S6: whoever waits is granted by its own live entry only, on both sides; else it queues again.
pub async fn w1_own_entry_check_on_both_sides(stage: &Stage) -> Result<()> {
    for waits_for_a_share in [true, false] {
        let holder = stage.connect("holder").await?;
        let files = files(stage);
        let waiter = stage.connect("waiter").await?;
        let held = if waits_for_a_share { acquire(&holder).await? } else { share(&holder).await? };
        let waiting = match waits_for_a_share {
            true => share_in_background(&waiter),
            false => acquire_in_background(&waiter),
        };
        until_contenders(stage, &lock(&holder), 2).await;
        let old = lock(&holder).holders().await?[1].token;
        match stage.backend() {
            Backend::Etcd => {
                let keys = stage.contenders(&lock(&holder)).await;
                let of_waiter = |key: &&String| create_revision(stage, key) == old.value();
                let key = keys.iter().find(of_waiter).expect("it waits");
                match waits_for_a_share {
                    true => assert!(stage.server().delete_key(key)),
                    false => assert!(stage.server().revoke_lease(lease_of(key))),
                }
            }
            _ => {
                for file in self::files(stage).iter().filter(|file| !files.contains(file)) {
                    std::fs::remove_file(file).expect("it is there");
                }
            }
        }
        held.release().await?;
        let guard = waiting.await.expect("no panic")?;
        assert!(guard.token() > old, "a dead entry was granted");
        assert!(guard.is_held() && guard.is_shared() == waits_for_a_share);
        sleep(3 * stage.heartbeat()).await;
        assert!(guard.is_held());
        let holders = lock(&holder).holders().await?;
        assert!(holders.len() == 1 && holders[0].token == guard.token(), "{holders:?}");
        guard.release().await?;
        waiter.stop().await?;
        holder.stop().await?;
    }
    Ok(())
}

fn files(stage: &Stage) -> Vec<std::path::PathBuf> {
    if stage.backend() == Backend::File { stage.session_files() } else { Vec::new() }
}

/// W1, L1: readers and writers whose process is killed are followed within the bound.
pub async fn w1_killed_readers_and_writers_are_followed(stage: &Stage) -> Result<()> {
    let coordinator = stage.connect("survivor").await?;
    // A reader, for a writer.
    let worker = stage.worker("reader");
    worker.call(json!({ "command": "acquire_shared", "lock": NAME }));
    let waiting = acquire_in_background(&coordinator);
    until_contenders(stage, &lock(&coordinator), 2).await;
    let killed = Instant::now();
    worker.kill();
    waiting.await.expect("no panic")?.release().await?;
    let took = killed.elapsed();
    eprintln!("W1: a killed reader is followed after {took:?}");
    assert!(took <= stage.crash_bound(), "{took:?}");
    // A writer, for two readers; and one who waited between them.
    let worker = stage.worker("writer");
    worker.call(json!({ "command": "acquire", "lock": NAME }));
    let first = share_in_background(&coordinator);
    until_contenders(stage, &lock(&coordinator), 2).await;
    worker.send(json!({ "command": "acquire", "lock": NAME, "as": "again" }));
    until_contenders(stage, &lock(&coordinator), 3).await;
    let second = share_in_background(&coordinator);
    until_contenders(stage, &lock(&coordinator), 4).await;
    let killed = Instant::now();
    worker.kill();
    let first = first.await.expect("no panic")?;
    let second = second.await.expect("no panic")?;
    let took = killed.elapsed();
    eprintln!("W1: a killed writer is followed after {took:?}");
    assert!(took <= stage.crash_bound(), "{took:?}");
    assert!(first.is_held() && second.is_held());
    Ok(())
}

/// W1, S3: a reader who is cut off knows that its share is gone before a writer is let in.
pub async fn w1_a_reader_cut_off_knows_before_a_writer_is_let_in(stage: &Stage) -> Result<()> {
    let (reader, other) = (stage.connect_by_proxy("reader").await?, stage.connect("other").await?);
    let reading = Arc::new(share(&reader).await?);
    let beside = share(&other).await?;
    let writer = acquire_in_background(&other);
    until_contenders(stage, &lock(&other), 3).await;
    let probe = Probe::start(&reading);
    stage.proxy().set_both(Mode::Blackhole);
    let cut = Instant::now();
    beside.release().await?;
    let next = writer.await.expect("no panic")?;
    let granted = BootInstant::now();
    assert!(!reading.is_held());
    assert!(probe.last_held().await < granted);
    assert!(cut.elapsed() <= stage.crash_bound(), "{:?}", cut.elapsed());
    assert!(next.is_held() && next.token() > reading.token());
    next.release().await?;
    // And back: the reader's next session reads again.
    stage.proxy().heal();
    share(&reader).await?.release().await
}
