//! F-58, F-65: many clients, sessions and names.

use std::time::{Duration, Instant};

use coordination::{Coordinator, Lock, Recipe, State};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{sleep, timeout};

use super::super::{PATIENCE, SqlServer, ask, count, make, one, url};
use super::{Faulty, LONG, make_app};

/// A lease so long that no session is lost because the machine is busy.
const LEASE: Duration = Duration::from_secs(20);
/// The timeout of calls that are measured.
const SHORT: Duration = Duration::from_millis(20);
/// L4 allows 100 ms more than the timeout. The machine may be busy, so ten times as much is allowed.
const LONGEST: Duration = Duration::from_millis(20 + 10 * 100);

async fn connect(url: &str) -> Coordinator {
    Coordinator::builder().ttl(LEASE).connect(url).await.expect("a server")
}

/// The URL without the short lease.
fn plain<S: SqlServer>(server: &S) -> String {
    url(server).replace("&ttl=2s&heartbeat=250ms", "")
}

/// How long a try takes to acquire this lock, whatever comes of it.
async fn tried(lock: &Lock) -> Duration {
    let begun = Instant::now();
    let outcome = lock.acquire(Some(SHORT)).await;
    let took = begun.elapsed();
    drop(outcome);
    took
}

/// F-58: fifty clients with a password come back at once, each time the server has restarted. None loses its session.
pub(crate) async fn f58_fifty_clients_after_restarts<S: Faulty>() {
    const CLIENTS: usize = 50;
    const RESTARTS: usize = 5;
    let server = one::<S>();
    let url = make_app(&*server).await.replace("&ttl=2s&heartbeat=250ms", "");
    let mut clients = Vec::new();
    let mut guards = Vec::new();
    for number in 0..CLIENTS {
        let client = connect(&url).await;
        let lock = client.lock(format!("vol-{number}")).expect("a name");
        guards.push(lock.acquire(PATIENCE).await.expect("free"));
        clients.push(client);
    }
    for _ in 0..RESTARTS {
        block_in_place(|| {
            server.node(0).kill();
            std::thread::sleep(Duration::from_millis(300));
            server.node(0).restart();
            server.wait_ready();
        });
        let back = Instant::now();
        // Longer than the pause between two heartbeats.
        sleep(Duration::from_millis(1_500)).await;
        for client in &clients {
            let mut state = client.state();
            let connected = async {
                while state.current() != State::Connected {
                    assert!(state.changed().await.is_some(), "it was not stopped");
                }
            };
            timeout(LEASE, connected).await.expect("it comes back");
        }
        println!("F-58 {}: all are back after {:?}", server.scheme(), back.elapsed());
        assert!(guards.iter().all(|guard| guard.is_held()), "a session was lost");
    }
    for guard in guards {
        guard.release().await.expect("released");
    }
    for client in clients {
        client.stop().await.expect("stopped");
    }
}

/// F-65: one session holds ten thousand locks. It keeps them all, calls with a timeout return in time, and a lock that is broken is
/// told after some heartbeats.
pub(crate) async fn f65_ten_thousand_names_held<S: Faulty>() {
    const TASKS: usize = 10;
    const EACH: usize = 1_000;
    const BROKEN: &str = "held-3-500";
    /// Several heartbeats.
    const WHILE: Duration = Duration::from_secs(8);
    let server = one::<S>();
    let url = plain(&*server);
    let (holder, other) = (connect(&url).await, connect(&url).await);
    let busy = other.lock("busy").expect("a name").acquire(PATIENCE).await.expect("free");
    let begun = Instant::now();
    let mut acquiring = JoinSet::new();
    for task in 0..TASKS {
        let locks = (0..EACH).map(|nth| holder.lock(format!("held-{task}-{nth}")).expect("a name"));
        let locks: Vec<_> = locks.collect();
        acquiring.spawn(async move {
            let mut held = Vec::new();
            for lock in locks {
                held.push(lock.acquire(Some(LONG)).await.expect("free"));
            }
            held
        });
    }
    let held: Vec<_> = acquiring.join_all().await.into_iter().flatten().collect();
    println!("F-65 {}: {} held after {:?}", server.scheme(), held.len(), begun.elapsed());
    let lock = holder.lock("busy").expect("a name");
    let (begun, mut longest) = (Instant::now(), Duration::ZERO);
    while begun.elapsed() < WHILE {
        longest = longest.max(tried(&lock).await);
    }
    println!("F-65 {}: a try of {SHORT:?} takes {longest:?} at most", server.scheme());
    assert!(longest < LONGEST, "{longest:?}");
    assert!(held.iter().all(|guard| guard.is_held()), "something was lost");
    let lost = held.iter().find(|guard| guard.name() == BROKEN).expect("it is held");
    other.lock(BROKEN).expect("a name").break_lock().await.expect("an answer");
    let begun = Instant::now();
    timeout(LONG, lost.lost()).await.expect("it is told");
    println!("F-65 {}: a loss is told after {:?}", server.scheme(), begun.elapsed());
    assert_eq!(held.iter().filter(|guard| guard.is_held()).count(), TASKS * EACH - 1);
    busy.release().await.expect("released");
    other.stop().await.expect("stopped");
}

/// F-65: the sessions of ten thousand waiters of one lock end at the same time. Whoever waits behind them is served, and nobody's call
/// takes long meanwhile.
pub(crate) async fn f65_ten_thousand_sessions_end_at_once<S: Faulty>() {
    let server = one::<S>();
    let url = plain(&*server);
    let (holder, other) = (connect(&url).await, connect(&url).await);
    let kept = holder.lock("kept").expect("a name");
    let held = holder.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
    ask(&*server, S::CROWD);
    let kept = kept.acquire(PATIENCE).await.expect("free");
    let lock = other.lock("x").expect("a name");
    let waiting = tokio::spawn(async move { lock.acquire(Some(2 * LONG)).await });
    while count(&*server, "entries") != "10003" {}
    held.release().await.expect("released");
    let (sessions, now) = (S::table("sessions"), S::NOW);
    ask(&*server, &format!("UPDATE {sessions} SET expires = {now} WHERE id LIKE 'dead%'"));
    let free = holder.lock("free").expect("a name");
    let (begun, mut longest) = (Instant::now(), Duration::ZERO);
    while !waiting.is_finished() {
        longest = longest.max(tried(&free).await);
    }
    let next = waiting.await.expect("no panic").expect("all before it are dead");
    println!(
        "F-65 {}: served after {:?}, a try of {SHORT:?} took {longest:?} at most",
        server.scheme(),
        begun.elapsed()
    );
    // Whoever is dead is waited for once, and not once for each.
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    assert!(longest < LONGEST, "{longest:?}");
    assert!(kept.is_held() && next.is_held(), "a session was lost");
    next.release().await.expect("released");
    kept.release().await.expect("released");
    other.stop().await.expect("stopped");
    holder.stop().await.expect("stopped");
}

/// F-65: twenty thousand names were used once. Those in use are listed, and the others pruned, while calls take no longer than usual.
pub(crate) async fn f65_many_names_used_once<S: Faulty>() {
    const NAMES: u64 = 20_000;
    let server = one::<S>();
    make(&*server).await;
    ask(&*server, S::USED);
    assert_eq!(count(&*server, "queues"), NAMES.to_string());
    let url = plain(&*server);
    let (user, other) = (connect(&url).await, connect(&url).await);
    let held = user.lock("used-10000").expect("a name").acquire(PATIENCE).await.expect("free");
    let begun = Instant::now();
    assert_eq!(other.in_use(Recipe::Lock).await.expect("listed"), [held.name()]);
    println!("F-65 {}: {NAMES} names, listed after {:?}", server.scheme(), begun.elapsed());
    let begun = Instant::now();
    let pruning = tokio::spawn({
        let other = other.clone();
        async move { other.prune(Duration::ZERO).await }
    });
    let (another, mut longest) = (user.lock("another").expect("a name"), Duration::ZERO);
    while !pruning.is_finished() {
        longest = longest.max(tried(&another).await);
    }
    let pruned = pruning.await.expect("no panic").expect("pruned");
    println!(
        "F-65 {}: {pruned} pruned within {:?}, a try of {SHORT:?} took {longest:?} at most",
        server.scheme(),
        begun.elapsed()
    );
    assert!(longest < LONGEST, "{longest:?}");
    assert!(pruned >= NAMES - 1, "{pruned}");
    let left: u64 = count(&*server, "queues").parse().expect("a number");
    assert!(left <= 2, "{left} are left");
    assert!(held.is_held());
    held.release().await.expect("released");
    user.stop().await.expect("stopped");
}
