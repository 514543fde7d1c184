//! X1: errors have the right kind and effect. X2: `#[synchronized]` hides no error and no loss.

use std::future::pending;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use coordination::{
    Coordinator, Effect, Error, ErrorKind, FencingToken, LossReason, Result, synchronized,
};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::tools::{
    ANSWERED, NAME, PATIENCE, acquire, assert_out_of_time, lock, take_turn, until_contenders,
};
use super::{TestStore, with_option};
use crate::bounds;
use crate::harness::{Mode, ports::free_port};

async fn refused(url: &str) -> Error {
    let start = Instant::now();
    let error = match Coordinator::connect(url).await {
        Ok(_) => panic!("{url:?} was taken"),
        Err(error) => error,
    };
    assert!(start.elapsed() <= bounds::connected(), "{url}: {error} after {:?}", start.elapsed());
    error
}

/// X1: a wrong URL is refused when connecting.
pub async fn x1_configuration_is_refused_at_connect(store: &TestStore) -> Result<()> {
    let url = store.url();
    let joined = |option: &str| store.url_with(option);
    let (_, rest) = url.split_once(':').expect("a URL has a scheme");
    let cases = [
        (format!("nosuch:{rest}"), ErrorKind::Config),
        (rest.to_owned(), ErrorKind::Config),
        (String::new(), ErrorKind::Config),
        (joined("no_such_option=1"), ErrorKind::Config),
        (joined("ttl=soon"), ErrorKind::Config),
        (joined("ttl=1ms"), ErrorKind::Config),
        (joined("heartbeat=0"), ErrorKind::Config),
        (joined("namespace=a%2F..%2Fb"), ErrorKind::Config),
        (joined("require=no_such_need"), ErrorKind::Config),
    ];
    for (url, kind) in cases {
        let error = refused(&url).await;
        assert_eq!((error.kind(), error.effect()), (kind, Effect::None), "{url:?}: {error}");
        assert!(!error.is_transient(), "{url:?}: {error}");
    }
    // An option of another store is refused.
    let foreign = if store.has_server() { "durable=true" } else { "server_name=x" };
    assert_eq!(refused(&joined(foreign)).await.kind(), ErrorKind::Config);
    let coordinator = store.connect("one").await?;
    let scope = coordinator.characteristics().scope;
    if scope != coordination::Scope::Hosts {
        let error = refused(&joined("require=hosts")).await;
        assert!(matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Config), "{error}");
    }
    Ok(())
}

/// X1: errors of wrong names, of a member id that is taken, and of a stopped coordinator.
pub async fn x1_kinds_of_every_backend(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    for name in [String::new(), "x".repeat(1025)] {
        let error = one.lock(&name).expect_err("no name");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Name, Effect::None));
        assert!(std::error::Error::source(&error).is_some());
    }
    let error = store.connect("one").await.expect_err("somebody has the member id");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::MemberExists, Effect::None));
    let held = acquire(&one).await?;
    let error = lock(&other).acquire(Some(ANSWERED)).await.expect_err("held");
    assert_out_of_time(&error, ANSWERED);
    assert_eq!(error.effect(), Effect::None);
    assert_eq!((error.operation(), error.key()), ("acquire", Some(NAME)));
    assert!(error.backend().is_some() && error.to_string().contains(NAME), "{error}");
    held.release().await?;
    one.stop().await?;
    let error = lock(&one).acquire(None).await.expect_err("closed");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Closed, Effect::None));
    assert_eq!(error.loss_reason(), Some(LossReason::Closed));
    // The refused client has left no session: its member id is free.
    take_turn(&store.connect("one").await?).await.map(drop)
}

/// X1: errors of directories that cannot be used.
pub async fn x1_kinds_of_a_directory(store: &TestStore) -> Result<()> {
    let missing = store.directory().join("no/such/parent");
    let error = refused(&format!("file://{}", missing.display())).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let file = store.directory().with_extension("file");
    std::fs::write(&file, "").expect("the directory is ours");
    let error = refused(&format!("file://{}", file.display())).await;
    let kinds = [ErrorKind::Storage, ErrorKind::Config, ErrorKind::Permission];
    assert!(kinds.contains(&error.kind()), "{error:?}");
    assert_eq!(error.effect(), Effect::None);
    for relative in ["file://locks", "file:locks"] {
        assert_eq!(refused(relative).await.kind(), ErrorKind::Config, "{relative}");
    }
    // A queue's file that is a link to a session's file is refused.
    let one = store.connect("one").await?;
    let session = store.session_files().remove(0);
    let queue = session.with_file_name("../queues/lock.planted");
    std::os::unix::fs::symlink(&session, queue).expect("the directory is ours");
    let error = one.lock("planted")?.try_acquire().await.expect_err("a planted link");
    assert!(matches!(error.kind(), ErrorKind::Storage | ErrorKind::Permission), "{error}");
    Ok(())
}

/// X1: errors of servers that cannot be used.
pub async fn x1_kinds_of_a_server(store: &TestStore) -> Result<()> {
    let server = store.server();
    let authority = server.authority();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = silent.local_addr().map(|address| (silent, address)).expect("bound");
    let plain = |authority: &str| server.url(authority, "x");
    let secure = server.secure_url(&authority, "x");
    let cases = [
        (plain(&format!("127.0.0.1:{}", free_port())), ErrorKind::Refused),
        (plain("no-such-host.invalid:2379"), ErrorKind::Dns),
        (plain(&silent.1.to_string()), ErrorKind::Unavailable),
        (with_option(&plain(&authority), "cert=/nowhere"), ErrorKind::Config),
        (with_option(&secure, "ca=/nowhere"), ErrorKind::Config),
        (secure, ErrorKind::Tls),
    ];
    for (url, kind) in cases.into_iter().chain(server.refused_urls()) {
        let error = refused(&url).await;
        assert_eq!(error.kind(), kind, "{url}: {error:?}");
        let transient = [ErrorKind::Refused, ErrorKind::Unavailable].contains(&kind);
        assert_eq!(error.is_transient(), transient, "{url}: {error:?}");
        assert!(!format!("{error}{error:?}").contains("secret"), "{error}");
    }
    Ok(())
}

/// X1: a request that the server does not answer may have taken effect.
pub async fn x1_no_answer_is_unknown(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect_by_proxy("one").await?, store.connect("other").await?);
    let held = acquire(&one).await?;
    let (waiter, limit) = (lock(&one), store.heartbeat() + 3 * store.attempt_timeout());
    let waiting = tokio::spawn(async move { waiter.acquire(Some(limit)).await });
    until_contenders(store, &lock(&other), 2).await;
    store.proxy().set_both(Mode::Stall);
    // As far as the client knows, its entry is still in the queue, so the effect is unknown.
    let error = waiting.await.expect("no panic").expect_err("held");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    let error = lock(&one).break_lock().await.expect_err("out of reach");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_transient());
    let start = Instant::now();
    let error = one.stop().await.expect_err("out of reach");
    let bound = bounds::stopped(store.ttl().unwrap_or_default()) + store.scheduling();
    assert!(start.elapsed() <= bound, "{:?}", start.elapsed());
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    assert_eq!(held.lost().await, LossReason::Closed);
    Ok(())
}

/// What the bodies of the functions below report to the checks.
#[derive(Debug, Default)]
struct Told {
    entered: Notify,
    dropped: AtomicBool,
}

struct Dropped<'a>(&'a Told);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.dropped.store(true, Ordering::SeqCst);
    }
}

async fn break_once_entered(breaker: &Coordinator, told: &Told) -> Result<()> {
    told.entered.notified().await;
    lock(breaker).break_lock().await.map(|broken| assert!(broken.is_some()))
}

#[synchronized("vol-7", coordinator = c)]
async fn waits_for_ever(c: &Coordinator, told: &Told) -> Result<()> {
    let _dropped = Dropped(told);
    told.entered.notify_one();
    pending().await
}

#[synchronized("vol-7", on_lost = "finish", guard = guard, coordinator = c)]
async fn finishes(c: &Coordinator, told: &Told) -> Result<LossReason> {
    told.entered.notify_one();
    Ok(guard.lost().await)
}

#[synchronized("vol-{number}", guard = guard, coordinator = c)]
async fn answers(c: &Coordinator, number: u32) -> Result<FencingToken> {
    assert!(guard.is_held());
    Ok(guard.token())
}

#[synchronized("vol-7", guard = guard, coordinator = c)]
fn outlives_its_lock(c: Coordinator, told: Arc<Told>) -> Result<()> {
    told.entered.notify_one();
    while guard.is_held() {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// X2: when the lock is lost, the body is dropped at its await, and the caller gets `Lost`.
pub async fn x2_the_body_is_dropped_on_loss(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let told = Told::default();
    let (outcome, broken) = tokio::join!(
        timeout(PATIENCE, waits_for_ever(&one, &told)),
        break_once_entered(&other, &told)
    );
    broken?;
    let error = outcome.expect("the loss is noticed").expect_err("the lock was broken");
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(error.loss_reason(), Some(LossReason::EntryDeleted));
    assert!(told.dropped.load(Ordering::SeqCst));
    take_turn(&other).await.map(drop)
}

/// X2: with `on_lost = "finish"` the body runs on, and the caller gets the body's result.
pub async fn x2_the_body_finishes_if_asked_to(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let told = Told::default();
    let (outcome, broken) =
        tokio::join!(timeout(PATIENCE, finishes(&one, &told)), break_once_entered(&other, &told));
    broken?;
    assert_eq!(outcome.expect("the loss is noticed")?, LossReason::EntryDeleted);
    take_turn(&other).await.map(drop)
}

/// X2: if the lock is lost, a function without `async` returns `Lost`, but only after its body has ended.
pub async fn x2_a_thread_is_told_afterwards(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let told = Arc::new(Told::default());
    let running = {
        let (one, told) = (one.clone(), Arc::clone(&told));
        tokio::task::spawn_blocking(move || outlives_its_lock(one, told))
    };
    break_once_entered(&other, &told).await?;
    let outcome = timeout(PATIENCE, running).await.expect("the loss is noticed");
    let error = outcome.expect("no panic").expect_err("the lock was broken");
    assert_eq!(error.kind(), ErrorKind::Lost);
    take_turn(&other).await.map(drop)
}

/// X2: without a loss, the caller gets the body's result, and calls for one name take turns.
pub async fn x2_the_result_is_the_bodys(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let mut last = None;
    for _ in 0..store.rounds(20, 5) {
        let (first, second) = tokio::join!(answers(&one, 7), answers(&other, 7));
        let (first, second) = (first?, second?);
        assert!(Some(first.min(second)) > last && first != second);
        last = Some(first.max(second));
    }
    assert!(lock(&one).holders().await?.is_empty() || take_turn(&one).await.is_ok());
    Ok(())
}
