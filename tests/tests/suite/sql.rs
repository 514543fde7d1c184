//! Checks that only stores on an SQL server have: fenced transactions, database users and their rights, tables of
//! another version, and entries and sessions left by others. Each such store implements [`SqlServer`], which supplies
//! the statements that the checks need.

pub(crate) mod faults;
mod short_ways;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use coordination::{ClaimOptions, Coordinator, ErrorKind, Recipe, Result};
use coordination_tests::harness::{Certificates, Direction, Mode, Server};
use coordination_tests::must_hold;
use rand::RngExt;
use tokio::task::block_in_place;
use tokio::time::timeout;

pub(crate) use self::short_ways::{
    l4_a_free_lock_is_little_work, s1_short_ways_do_what_long_ones_do,
};

pub(crate) const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));
/// A number as a server gives it while its clock is set far ahead.
pub(crate) const GIVEN: u64 = 9_000_000_000_000_000;

/// A server of one SQL store, with what its administrator can do on it.
pub(crate) trait SqlServer: Server + 'static {
    /// For the check of a waiter behind a fenced transaction: how many seconds the transaction stays open after it
    /// has checked its token; the kinds of request with which the waiter polls; and a number of such requests that
    /// the waiter must not reach.
    const BEHIND: (f64, &'static [&'static str], u64);
    /// Statement that creates a user called `app` whose password is `secret`.
    const USER: &'static str;
    /// Grants for the user `app`: first some that are not enough, then those that are still missing after them.
    const RIGHTS: (&'static [&'static str], &'static str);
    /// Statements after which the user `app` may not log in, and after which he may again.
    const LOGIN: (&'static str, &'static str);
    /// Statement that gives the user `app` another password, which stands for `{}`.
    const PASSWORD: &'static str;
    /// Statements after which the server accepts no further client of the user `app`, and after which it does again; and words of its
    /// refusal.
    const FULL: (&'static str, &'static str, &'static str);
    /// Statement that drops all that the library has made.
    const DROP: &'static str;
    /// Statements that bring the store into the state in which an interrupted installation leaves it.
    const NOT_ENDED: &'static [&'static str];
    /// Statement that gives the only open session entries that it does not know of, as a lagging replica may have them when
    /// it becomes the primary.
    const LEFT: &'static str;
    /// Statements after which the tables contain only ten expired sessions, `s1` to `s10`, with a hundred entries each,
    /// and one live session, `s0`.
    const DEAD: &'static [&'static str];
    /// Statement with which the session `s0` renews its lease; the server returns `ok`.
    const RENEW: &'static str;
    /// Statements that add the session `dead`, which is over, and its entry, which cannot be removed; and the statement after
    /// which it can be. The entry comes first: a heartbeat that finds the session without an entry marks it as empty, and then
    /// nobody looks for an entry of it any more.
    const STUCK: (&'static [&'static str], &'static str);
    /// Statements that make the queue of the lock `x`, give the number [`GIVEN`] in it, and prune it. They are to be run in one
    /// transaction.
    const USED_AND_PRUNED: &'static str;
    /// Statement that makes the queue of the lock `x`, and gives no number in it.
    const MAKES_QUEUE: &'static str;
    /// Statement before calls of the library's functions or procedures that are made by hand: settings that the library makes too, or
    /// by which bytes in answers are shown as text.
    const BY_HAND: &'static str;
    /// Arguments of `open` between the member and the lease.
    const CHANNEL: &'static str;
    /// Query for how much work the server's functions or procedures have done so far, in a unit that does not depend on time; and how
    /// much of it an acquire and a release may take while nobody else wants the lock.
    const WORK: (&'static str, u64);
    /// Statements that begin a transaction which sees the tables as of its first query.
    const OLD_VIEW: &'static str;
    /// The kind of error that a client without TLS gets from a server that requires TLS.
    const WANTS_TLS: ErrorKind;

    /// Starts one server, which requires TLS if certificates are given.
    fn start(certificates: Option<&Certificates>) -> Self;

    /// Runs a statement as the administrator: its output, or the server's error text.
    fn tell(&self, statement: &str) -> Result<String, String>;

    /// The full name of one of the library's tables, for use in a statement.
    fn table(name: &str) -> String;

    /// A statement that calls one of the library's functions or procedures.
    fn call(function: &str, arguments: &str) -> String;

    /// A statement that checks a fencing token.
    fn fence(name: &str, token: u64) -> String;

    /// A statement that takes this many seconds.
    fn sleep(seconds: f64) -> String;

    /// A query for the number of [`sleep`](Self::sleep) statements that are running.
    const SLEEPING: &'static str;

    /// Makes another database (or schema) on the server, and returns `url` changed to use it.
    fn beside(&self, url: &str) -> String;

    /// Ends all connections that the library has opened to the server.
    fn end_connections(&self);

    /// All statements that the server has received so far, from its log: those of the library, of the harness, and of
    /// drivers on their own account.
    fn statements(&self) -> Vec<String>;
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

/// Connects and stops once, so that the library's tables exist.
pub(crate) async fn make(server: &impl SqlServer) {
    Coordinator::connect(&url(server)).await.expect("made").stop().await.expect("stopped");
}

/// `Ok` if the server carries out the fence statement for this token, otherwise the error text.
fn is_fenced<S: SqlServer>(server: &S, name: &str, token: u64) -> Result<(), String> {
    try_ask(server, &S::fence(name, token)).map(drop)
}

fn count<S: SqlServer>(server: &S, table: &str) -> String {
    ask(server, &format!("SELECT count(*) FROM {}", S::table(table)))
}

/// Makes a test of each named check, on this server.
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
            s2_a_transaction_with_an_old_view_is_refused
            l1_a_clock_that_is_set_back_keeps_nobody_out
            l4_a_free_lock_is_one_statement_each_way
            l4_a_free_lock_is_little_work
            s1_short_ways_do_what_long_ones_do
            c3_who_gives_up_while_it_reads_costs_no_connection
            t2_numbers_go_on_when_a_queue_is_pruned_while_another_makes_it
            sec7_a_user_with_rights_on_these_tables_is_enough
            x1_another_version_is_refused
            x1_many_make_the_tables_at_once
            r3_however_many_entries_were_left_they_go
            r3_an_update_that_was_lost_is_made_again
            t1_a_heartbeat_removes_no_more_than_it_has_time_for
            l5_what_cannot_be_cleared_up_ends_no_session
            sec3_the_server_is_verified
        }
    };
}
pub(crate) use sql_checks;

/// S2: the server carries out a transaction that checks a token only if the token is the current holder's, whatever
/// characters the lock's name has.
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

/// S2, L7: after a transaction has checked its token, nobody else is granted the lock until that transaction ends, even
/// if the holder's session ends earlier. A waiter behind such a transaction pauses between its polls.
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

/// S2: a transaction that sees the tables as of an earlier moment is refused, if the lock was passed on after that moment.
pub(crate) async fn s2_a_transaction_with_an_old_view_is_refused<S: SqlServer>() {
    let server = one::<S>();
    let coordinator = Coordinator::connect(&url(&*server)).await.expect("a server");
    let lock = coordinator.lock("x").expect("a name");
    let guard = lock.acquire(PATIENCE).await.expect("free");
    let (begin, fence) = (S::OLD_VIEW, S::fence("x", guard.token().value()));
    try_ask(&*server, &format!("{begin}; {fence}; COMMIT")).expect("it is the holder's");
    let transaction = {
        let (server, entries, sleep) = (Arc::clone(&server), S::table("entries"), S::sleep(4.0));
        let work = format!("{begin}; SELECT count(*) FROM {entries}; {sleep}; {fence}; COMMIT");
        thread::spawn(move || server.tell(&work).map(drop))
    };
    while ask(&*server, S::SLEEPING) != "1" {}
    guard.release().await.expect("released");
    let next = lock.acquire(PATIENCE).await.expect("free");
    assert_eq!(ask(&*server, S::SLEEPING), "1", "the transaction goes on after that");
    let refused = transaction.join().expect("no panic").expect_err("the lock was passed on");
    println!("S2 {}: {refused}", server.scheme());
    next.release().await.expect("released");
    coordinator.stop().await.expect("stopped");
}

/// L1, L3: after the last heartbeat of a holder and of waiters who are cut off, the server's clock is set back by an hour: by the clock, all
/// leases that are there last for an hour more. The waiter behind them has the lock within two leases and 5 s all the same.
pub(crate) async fn l1_a_clock_that_is_set_back_keeps_nobody_out<S: SqlServer>() {
    /// If they were gone one after the other, that would take a lease for each.
    const CUT_OFF: usize = 6;
    let server = one::<S>();
    let proxy = block_in_place(|| server.proxy_to(0));
    let there = url(&*server);
    let by_proxy = there.replace(&server.authority(), &proxy.address().to_string());
    let holder = Coordinator::connect(&by_proxy).await.expect("a server");
    let held = holder.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
    let (mut cut_off, mut in_vain) = (vec![holder], Vec::new());
    for ahead in 1..CUT_OFF {
        let client = Coordinator::connect(&by_proxy).await.expect("a server");
        let lock = client.lock("x").expect("a name");
        in_vain.push(tokio::spawn(async move { lock.acquire(None).await.map(drop) }));
        while count(&*server, "entries") != (ahead + 1).to_string() {}
        cut_off.push(client);
    }
    let other = Coordinator::connect(&there).await.expect("a server");
    let lock = other.lock("x").expect("a name");
    let waiting = tokio::spawn(async move { lock.acquire(Some(Duration::from_secs(30))).await });
    while count(&*server, "entries") != (CUT_OFF + 1).to_string() {}
    proxy.set_both(Mode::Blackhole);
    let sessions = S::table("sessions");
    ask(
        &*server,
        &format!("UPDATE {sessions} SET expires = expires + 3600000000 WHERE expires > 1"),
    );
    let set_back = Instant::now();
    let next = waiting.await.expect("no panic").expect("free within some leases");
    let took = set_back.elapsed();
    println!("L1 {}: granted {took:?} after that", server.scheme());
    must_hold!(took < Duration::from_secs(2 * 2 + 5), "{took:?}");
    must_hold!(
        !held.is_held() && next.token() > held.token(),
        "{} and {}",
        held.token(),
        next.token()
    );
    next.release().await.expect("released");
    other.stop().await.expect("stopped");
    proxy.set_both(Mode::Pass);
    in_vain.iter().for_each(tokio::task::JoinHandle::abort);
    for client in cut_off {
        // Its session is over, or is not known to be yet.
        drop(client.stop().await);
    }
}

/// L4: a lock that nobody else wants costs one statement to acquire, and one to release. By the server's log, the client sends
/// no other statement with these two.
pub(crate) async fn l4_a_free_lock_is_one_statement_each_way<S: SqlServer>() {
    const TURNS: usize = 20;
    let server = one::<S>();
    // No heartbeat comes between.
    let url = url(&*server).replace("ttl=2s&heartbeat=250ms", "ttl=60s");
    let coordinator = Coordinator::connect(&url).await.expect("a server");
    let lock = coordinator.lock("x").expect("a name");
    let before = block_in_place(|| server.statements()).len();
    for _ in 0..TURNS {
        lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
    }
    let statements = block_in_place(|| server.statements());
    let sent = &statements[before..];
    let of = |step: &str| sent.iter().filter(|statement| statement.contains(step)).count();
    assert_eq!([of("enter("), of("leave("), sent.len()], [TURNS, TURNS, 2 * TURNS], "{sent:#?}");
    coordinator.stop().await.expect("stopped");
}

/// C3: watches, claims, lists and waiters that are dropped at any moment cost no connection: what they have asked the server is left
/// to finish. So is what was asked when a stop begins.
pub(crate) async fn c3_who_gives_up_while_it_reads_costs_no_connection<S: SqlServer>() {
    const ROUNDS: u32 = 60;
    /// How long each answer takes, so that most of what is dropped waits for one.
    const ANSWER: Duration = Duration::from_millis(4);
    let server = one::<S>();
    let proxy = block_in_place(|| server.proxy_to(0));
    // A call has ten seconds, so that none is given up because the machine is busy. What nobody wants has one second.
    let there = url(&*server).replace("ttl=2s&heartbeat=250ms", "ttl=60s&heartbeat=20s");
    let by_proxy = there.replace(&server.authority(), &proxy.address().to_string());
    let coordinator = Coordinator::connect(&by_proxy).await.expect("a server");
    let other = Coordinator::connect(&there).await.expect("a server");
    let held = other.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
    let lock = coordinator.lock("x").expect("a name");
    let jobs = coordinator.queue("jobs").expect("a name");
    let before = proxy.connections();
    proxy.set(Direction::ToClient, Mode::Delay(ANSWER));
    for round in 0..ROUNDS {
        let moment = rand::rng().random_range(Duration::ZERO..6 * ANSWER);
        // A new name each time, to which this client does not listen yet.
        let watch = coordinator.value::<u32>(format!("v-{round}")).expect("a name").watch();
        tokio::time::sleep(moment).await;
        drop(watch);
        drop(timeout(moment, jobs.claim_wait(ClaimOptions::default(), PATIENCE)).await);
        drop(timeout(moment, coordinator.in_use(Recipe::Lock)).await);
        drop(timeout(moment, lock.acquire(PATIENCE)).await);
        let connections = proxy.connections();
        // A busy machine may withhold an answer for longer than a second, once. Without that second, most rounds cost a connection.
        assert!(connections <= 2 * before, "{connections} after {round} rounds, until {moment:?}");
    }
    // Whoever gave up last may still be leaving, which is given up with its connection when a stop begins.
    while lock.holders().await.expect("listed").len() > 1 {}
    let before = proxy.connections();
    let _watch = coordinator.value::<u32>("last").expect("a name").watch();
    tokio::time::sleep(ANSWER / 2).await;
    coordinator.stop().await.expect("stopped");
    assert_eq!(proxy.connections(), before, "after the stop");
    held.release().await.expect("released");
    other.stop().await.expect("stopped");
}

/// One transaction makes a queue, gives a number in it while the server's clock is far ahead, and prunes the queue.
/// Before the transaction ends, somebody else begins to make the same queue. With the clock set back, the queue's next
/// number is larger than that number nevertheless.
pub(crate) async fn t2_numbers_go_on_when_a_queue_is_pruned_while_another_makes_it<S: SqlServer>() {
    let server = one::<S>();
    make(&*server).await;
    let transaction = {
        let server = Arc::clone(&server);
        let work = format!("BEGIN; {}; {}; COMMIT", S::USED_AND_PRUNED, S::sleep(1.0));
        thread::spawn(move || server.tell(&work).map(drop))
    };
    while ask(&*server, S::SLEEPING) != "1" {}
    // The transaction has not ended, so this statement sees neither the queue nor the lower bound (floor) for its
    // numbers. It waits for the transaction.
    ask(&*server, S::MAKES_QUEUE);
    assert_eq!(transaction.join().expect("no panic"), Ok(()));
    let coordinator = Coordinator::connect(&url(&*server)).await.expect("a server");
    let guard = coordinator.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
    let token = guard.token().value();
    assert!(token > GIVEN, "{token} was given after {GIVEN}");
    guard.release().await.expect("released");
    coordinator.stop().await.expect("stopped");
}

/// SEC-7: a user needs no more than rights on the library's own tables. If any of them is missing, `connect` fails with
/// `Permission`.
pub(crate) async fn sec7_a_user_with_rights_on_these_tables_is_enough<S: SqlServer>() {
    let server = one::<S>();
    let (too_few, missing) = S::RIGHTS;
    ask(&*server, S::USER);
    let url = url(&*server);
    let (_, at) = url.split_once('@').expect("there is a user");
    let as_app = format!("{}://app:secret@{at}", server.scheme());
    let kind = async || try_connect_kind(Coordinator::connect(&as_app).await);
    // The user has no rights yet, so it cannot create the tables.
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

/// X1: tables of another version are neither used nor changed; `connect` returns `Unsupported`.
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

/// X1: if many clients connect at once to a server without tables, the tables are made once. An interrupted
/// installation is completed.
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

/// R3: if the store has entries of a session that the session does not know of, they are removed, however many there
/// are.
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

/// R3: if the server has entries without their newest updates, as a lagging replica that took over may have them, the updates
/// are made again: a holder that has become a reader keeps no reader out. Of several updates of an entry, the last one is made.
pub(crate) async fn r3_an_update_that_was_lost_is_made_again<S: SqlServer>() {
    let server = one::<S>();
    let url = url(&*server).replace("ttl=2s", "ttl=6s");
    let holder = Coordinator::connect(&url).await.expect("a server");
    let other = Coordinator::connect(&url).await.expect("a server");
    let held = holder.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
    let group = holder.group("g").expect("a name");
    group.create().await.expect("created");
    let member = group.join(&1).await.expect("joined");
    let (entries, saved) = (S::table("entries"), S::table("saved"));
    ask(&*server, &format!("CREATE TABLE {saved} AS SELECT seq, shared, text FROM {entries}"));
    let reading = held.downgrade().await.expect("still held");
    member.update(&2).await.expect("updated");
    member.update(&3).await.expect("updated");
    let was = |column| format!("(SELECT s.{column} FROM {saved} s WHERE s.seq = e.seq)");
    let (shared, text) = (was("shared"), was("text"));
    ask(&*server, &format!("UPDATE {entries} AS e SET shared = {shared}, text = {text}"));
    block_in_place(|| server.end_connections());
    let lock = other.lock("x").expect("a name");
    let another = lock.acquire_shared(PATIENCE).await.expect("its holder only reads");
    assert!(reading.is_held(), "the holder was told of a loss");
    let group = other.group("g").expect("a name");
    let until = Instant::now() + Duration::from_secs(10);
    let is = loop {
        let members = group.members().await.expect("listed");
        let is = members.iter().next().map(|member| member.capabilities.as_json().to_owned());
        if is.as_deref() == Some("3") || Instant::now() > until {
            break is;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(is.as_deref(), Some("3"), "the last update");
    another.release().await.expect("released");
    reading.release().await.expect("released");
    member.leave().await.expect("left");
    other.stop().await.expect("stopped");
    holder.stop().await.expect("stopped");
}

/// T1: one heartbeat removes only a limited number of dead sessions' entries, so it does not take longer if there are
/// more of them.
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

/// L5: a session that is over has left an entry that cannot be removed. Others keep their sessions, and the entry is removed as
/// soon as it can be.
pub(crate) async fn l5_what_cannot_be_cleared_up_ends_no_session<S: SqlServer>() {
    let server = one::<S>();
    let coordinator = Coordinator::connect(&url(&*server)).await.expect("a server");
    let lock = coordinator.lock("x").expect("a name");
    let held = lock.acquire(PATIENCE).await.expect("free");
    let (stuck, no_longer) = S::STUCK;
    for (nth, statement) in stuck.iter().enumerate() {
        ask(&*server, statement);
        // Two heartbeats come between the last two: on a busy machine they do so in any case.
        if nth + 2 == stuck.len() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        assert!(held.is_held(), "the session was lost");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(count(&*server, "entries"), "2");
    ask(&*server, no_longer);
    let until = Instant::now() + Duration::from_secs(10);
    while count(&*server, "entries") != "1" && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let left = count(&*server, "entries");
    let (is_held, log) = (held.is_held(), server.node(0).log());
    let said: Vec<_> = log.lines().rev().take(60).collect();
    assert_eq!(left, "1", "the holder's own, held: {is_held}; the log, its end first: {said:#?}");
    held.release().await.expect("released");
    coordinator.stop().await.expect("stopped");
}

/// SEC-3: over TLS the client verifies the server's certificate. If only one of client and server uses TLS, `connect` fails.
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
