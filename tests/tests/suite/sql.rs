//! What is checked of each store that keeps its queues in the tables of an SQL server, and not of others: fenced transactions,
//! users, other versions, what others have left. Such a server says in [`SqlServer`] how it is asked for that.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use coordination::{Coordinator, ErrorKind, Result};
use coordination_tests::harness::{Certificates, Server};
use tokio::task::block_in_place;

pub(crate) const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

/// A server of one such store, as its administrator sees it.
pub(crate) trait SqlServer: Server + 'static {
    /// How many seconds a transaction stays open that has checked a token; the requests of whoever waits behind it that are
    /// looks, and how many those are at the most.
    const BEHIND: (f64, &'static [&'static str], u64);
    /// Makes a user called `app`, whose password is `secret`.
    const USER: &'static str;
    /// Rights of the user that are not enough, and those that are missing then.
    const RIGHTS: (&'static [&'static str], &'static str);
    /// What an installation leaves that was not ended.
    const NOT_ENDED: &'static [&'static str];
    /// Entries of the only session that was open, as a replica that lags would have them.
    const LEFT: &'static str;
    /// Nothing but ten dead sessions with a hundred entries each, and a session `s0`, which lives.
    const DEAD: &'static [&'static str];
    /// A heartbeat of the session `s0`, which is answered with `ok`.
    const RENEW: &'static str;
    /// What somebody is told who does not come by TLS to a server that wants it.
    const WANTS_TLS: ErrorKind;

    /// One server, which wants TLS if certificates are given.
    fn start(certificates: Option<&Certificates>) -> Self;

    /// What the administrator is answered, and what the server says where it refuses.
    fn tell(&self, statement: &str) -> Result<String, String>;

    /// What statements call one of our tables.
    fn table(name: &str) -> String;

    /// A statement that checks a token.
    fn fence(name: &str, token: u64) -> String;

    /// A statement that takes so long.
    fn sleep(seconds: f64) -> String;

    /// How many such statements are carried out.
    const SLEEPING: &'static str;

    /// The URL of another place on the server, which is there from now on.
    fn beside(&self, url: &str) -> String;

    /// Ends all connections of ours.
    fn end_connections(&self);
}

pub(crate) fn one<S: SqlServer>() -> Arc<S> {
    block_in_place(|| Arc::new(S::start(None)))
}

pub(crate) fn url(server: &impl SqlServer) -> String {
    format!("{}&ttl=2s&heartbeat=250ms", server.url(&server.authority(), ""))
}

pub(crate) fn try_ask(server: &impl SqlServer, statement: &str) -> Result<String, String> {
    block_in_place(|| server.tell(statement))
}

pub(crate) fn ask(server: &impl SqlServer, statement: &str) -> String {
    let answer = try_ask(server, statement);
    answer.unwrap_or_else(|said| panic!("{statement}: {said}"))
}

pub(crate) fn try_connect_kind(result: Result<Coordinator>) -> ErrorKind {
    let error = result.expect_err("it is refused");
    println!("{error}");
    error.kind()
}

/// Makes our tables.
pub(crate) async fn make(server: &impl SqlServer) {
    Coordinator::connect(&url(server)).await.expect("made").stop().await.expect("stopped");
}

/// Whether a transaction that checks this token first is carried out.
fn is_fenced<S: SqlServer>(server: &S, name: &str, token: u64) -> Result<(), String> {
    try_ask(server, &S::fence(name, token)).map(drop)
}

fn count<S: SqlServer>(server: &S, table: &str) -> String {
    ask(server, &format!("SELECT count(*) FROM {}", S::table(table)))
}

/// Makes a test of each check, on this server.
macro_rules! sql_checks {
    ($server:ty: $($check:ident)*) => {
        $(
            #[test]
            fn $check() {
                coordination_tests::harness::rerun_on_threads(crate::sql::$check::<$server>);
            }
        )*
    };
    ($server:ty) => {
        $crate::sql::sql_checks! {
            $server:
            s2_a_fenced_transaction_is_the_holders
            s2_nobody_is_granted_a_lock_within_a_fenced_transaction
            sec7_a_user_with_rights_on_these_tables_is_enough
            x1_another_version_is_refused
            x1_many_make_the_tables_at_once
            r3_however_many_entries_were_left_they_go
            t1_a_heartbeat_removes_no_more_than_it_has_time_for
            sec3_the_server_is_verified
        }
    };
}
pub(crate) use sql_checks;

/// S2: a transaction that checks the token is the holder's, or is not carried out, whatever the name is like.
pub(crate) async fn s2_a_fenced_transaction_is_the_holders<S: SqlServer>() {
    let server = one::<S>();
    let coordinator = Coordinator::connect(&url(&*server)).await.expect("a server");
    let long = "é/".repeat(300);
    for name in ["x", "a b/c%é", "X", &long] {
        let lock = coordinator.lock(name).expect("a good name");
        let guard = lock.acquire(PATIENCE).await.expect("free");
        let token = guard.token().value();
        assert_eq!(is_fenced(&*server, name, token), Ok(()), "{name}");
        let waiting = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire(PATIENCE).await }
        });
        let next = format!("SELECT max(seq) FROM {}", S::table("entries"));
        let waiter = loop {
            let newest: u64 = ask(&*server, &next).parse().expect("a number");
            if newest > token {
                break newest;
            }
        };
        let refused = is_fenced(&*server, name, waiter).expect_err("it waits");
        assert!(refused.contains("is not that of a holder"), "{refused}");
        guard.release().await.expect("released");
        let next = waiting.await.expect("no panic").expect("free");
        is_fenced(&*server, name, token).expect_err("it was released");
        assert_eq!(is_fenced(&*server, name, next.token().value()), Ok(()));
        next.release().await.expect("released");
    }
    coordinator.stop().await.expect("stopped");
}

/// S2, L7: a lock stays where it is until a transaction that has checked its token is over, though its session ends meanwhile;
/// and whoever waits behind it does not ask all the time.
pub(crate) async fn s2_nobody_is_granted_a_lock_within_a_fenced_transaction<S: SqlServer>() {
    let server = one::<S>();
    let (seconds, looks, most) = S::BEHIND;
    let holder = Coordinator::connect(&url(&*server)).await.expect("a server");
    let guard = holder.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
    let token = guard.token().value();
    let transaction = {
        let server = Arc::clone(&server);
        let work = format!("BEGIN; {}; {}; COMMIT", S::fence("x", token), S::sleep(seconds));
        thread::spawn(move || {
            let done = server.tell(&work).map(drop);
            (done, Instant::now())
        })
    };
    while ask(&*server, S::SLEEPING) != "1" {}
    ask(&*server, &format!("UPDATE {} SET expires = 1", S::table("sessions")));
    let other = Coordinator::connect(&url(&*server)).await.expect("a server");
    let next = other.lock("x").expect("a name").acquire(PATIENCE).await.expect("free by then");
    let granted = Instant::now();
    let (done, ended) = transaction.join().expect("no panic");
    assert_eq!(done, Ok(()));
    let early = ended.saturating_duration_since(granted);
    assert!(early < Duration::from_millis(100), "granted {early:?} before its end");
    is_fenced(&*server, "x", token).expect_err("it is over");
    assert!(next.is_held() && next.token().value() > token);
    let counts = block_in_place(|| server.request_counts());
    let asked: u64 = looks.iter().filter_map(|look| counts.get(*look)).sum();
    println!("L7 {}: {asked} looks behind a transaction of {seconds} s", server.scheme());
    assert!(asked < most, "{asked} looks");
    next.release().await.expect("released");
    other.stop().await.expect("stopped");
    holder.stop().await.expect("stopped");
}

/// SEC-7: rights on what is ours are enough, and what is missing is told by who connects.
pub(crate) async fn sec7_a_user_with_rights_on_these_tables_is_enough<S: SqlServer>() {
    let server = one::<S>();
    let (too_few, missing) = S::RIGHTS;
    ask(&*server, S::USER);
    let url = url(&*server);
    let (_, at) = url.split_once('@').expect("there is a user");
    let as_app = format!("{}://app:secret@{at}", server.scheme());
    let kind = async || try_connect_kind(Coordinator::connect(&as_app).await);
    // It may make nothing.
    assert_eq!(kind().await, ErrorKind::Permission);
    make(&*server).await;
    assert_eq!(kind().await, ErrorKind::Permission);
    too_few.iter().for_each(|right| drop(ask(&*server, right)));
    assert_eq!(kind().await, ErrorKind::Permission);
    ask(&*server, missing);
    let app = Coordinator::connect(&as_app).await.expect("enough");
    let lock = app.lock("x").expect("a name");
    let guard = lock.acquire(PATIENCE).await.expect("free");
    assert_eq!(lock.holders().await.expect("listed").len(), 1);
    guard.release().await.expect("released");
    app.stop().await.expect("stopped");
    let wrong = as_app.replace("secret", "other");
    assert_eq!(try_connect_kind(Coordinator::connect(&wrong).await), ErrorKind::Auth);
}

/// What another version has made is neither used nor changed.
pub(crate) async fn x1_another_version_is_refused<S: SqlServer>() {
    let server = one::<S>();
    make(&*server).await;
    let version = S::table("version");
    ask(&*server, &format!("UPDATE {version} SET version = 99"));
    let url = url(&*server);
    let refused = try_connect_kind(Coordinator::connect(&url).await);
    assert_eq!(refused, ErrorKind::Unsupported);
    let beside = block_in_place(|| server.beside(&url));
    Coordinator::connect(&beside).await.expect("beside it").stop().await.expect("stopped");
    assert_eq!(ask(&*server, &format!("SELECT version FROM {version}")), "99");
}

/// All who come first make the tables once; and an installation that was not ended is made again.
pub(crate) async fn x1_many_make_the_tables_at_once<S: SqlServer>() {
    let server = one::<S>();
    S::NOT_ENDED.iter().for_each(|left| drop(ask(&*server, left)));
    let connecting = (0..12).map(|_| {
        let url = url(&*server);
        tokio::spawn(async move {
            let coordinator = Coordinator::connect(&url).await?;
            coordinator.lock("x")?.acquire(PATIENCE).await?.release().await?;
            coordinator.stop().await
        })
    });
    for connected in connecting.collect::<Vec<_>>() {
        connected.await.expect("no panic").expect("it is made, or there");
    }
    assert_eq!(count(&*server, "version"), "1");
}

/// R3: all that a replica has of entries that were left goes, however much that is.
pub(crate) async fn r3_however_many_entries_were_left_they_go<S: SqlServer>() {
    let server = one::<S>();
    let coordinator = Coordinator::connect(&url(&*server)).await.expect("a server");
    ask(&*server, S::LEFT);
    block_in_place(|| server.end_connections());
    let until = Instant::now() + Duration::from_secs(10);
    while count(&*server, "entries") != "0" && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(count(&*server, "entries"), "0");
    coordinator.stop().await.expect("stopped");
}

/// T1: a heartbeat does not take the longer, the more others have left.
pub(crate) async fn t1_a_heartbeat_removes_no_more_than_it_has_time_for<S: SqlServer>() {
    let server = one::<S>();
    make(&*server).await;
    S::DEAD.iter().for_each(|dead| drop(ask(&*server, dead)));
    assert_eq!(ask(&*server, S::RENEW), "ok");
    let left = count(&*server, "entries");
    assert_eq!(left, "900", "a hundred, and those of the others with the next ones");
    for _ in 0..9 {
        ask(&*server, S::RENEW);
    }
    assert_eq!(count(&*server, "entries"), "0");
}

/// SEC-3: by TLS the server is verified, and without it nothing is said where it is wanted.
pub(crate) async fn sec3_the_server_is_verified<S: SqlServer>() {
    let certificates = Certificates::new();
    let server = block_in_place(|| S::start(Some(&certificates)));
    let authority = server.authority();
    let secure = server.secure_url(&authority, "");
    let ca = certificates.authority.display();
    let coordinator = Coordinator::connect(&format!("{secure}&ca={ca}")).await.expect("trusted");
    let lock = coordinator.lock("x").expect("a name");
    lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
    coordinator.stop().await.expect("stopped");
    let kind = |url: String| async move { try_connect_kind(Coordinator::connect(&url).await) };
    assert_eq!(kind(secure.clone()).await, ErrorKind::Tls, "an unknown authority");
    let named = format!("{secure}&ca={ca}&server_name=other.example");
    assert_eq!(kind(named).await, ErrorKind::Tls, "another name");
    let plainly = Coordinator::connect(&server.url(&authority, "")).await;
    let refused = plainly.expect_err("it wants TLS");
    assert_eq!(refused.kind(), S::WANTS_TLS, "{refused}");
    assert!(refused.to_string().contains("TLS"), "{refused}");
    let plain = one::<S>();
    let url = format!("{}&ca={ca}", plain.secure_url(&plain.authority(), ""));
    assert_eq!(kind(url).await, ErrorKind::Tls, "it has no TLS");
}
