//! Many clients that connect or enter at the same time, and long queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use coordination::{Coordinator, LockGuard, Result};
use coordination_tests::faults::{Site, many};
use coordination_tests::harness::{
    Direction, Proxy, Server, Unit, Zookeeper, rerun_alone, rerun_on_threads,
};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{sleep, timeout};

use crate::WORKER;

/// The longest lease that the servers under test grant.
const LEASE: Duration = Duration::from_secs(4);
/// The server is made slow: it runs for a part of each period of this length, and is paused for the rest.
const TURN: Duration = Duration::from_millis(80);
/// How fast the slowed-down server is: the number of an administrator's requests that it serves in a second.
const RATE: f64 = 280.0;
const ENTRIES: usize = 10_000;
const QUEUE: &str = "/coordination/lock/long";

/// F-44 with a server that gets little processor time: when a thousand waiters enter, their requests keep it busy for
/// longer than a heartbeat may take. No session is lost nevertheless.
#[test]
fn f44_a_slow_server() {
    rerun_alone(come_to_a_slow_server);
}

fn come_to_a_slow_server() {
    let zookeeper = Arc::new(Zookeeper::one());
    let site = Site::on(Arc::clone(&zookeeper) as Arc<dyn Server>, WORKER)
        .with_heartbeat(LEASE / 6)
        .with_ttl(LEASE);
    let share = share_of_time(&zookeeper);
    let is_over = AtomicBool::new(false);
    let served = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                zookeeper.node(0).pause();
                thread::sleep(TURN.mul_f64(1.0 - share));
                zookeeper.node(0).resume();
                thread::sleep(TURN.mul_f64(share));
            }
        });
        let served = scope.spawn(|| many::crowd(&site, 20, 50)).join();
        is_over.store(true, Ordering::Relaxed);
        served
    });
    let served = served.expect("all are served");
    println!("F-44, a slow server, 20 × 50: {served:?}, {:?}", zookeeper.request_counts());
    assert_eq!(site.entries(), [""; 0]);
}

/// The share of time for which the server has to run, so that it serves only `RATE` requests a second on this machine.
/// The share is a quarter at least.
fn share_of_time(zookeeper: &Zookeeper) -> f64 {
    const QUESTIONS: u32 = 300;
    let ask = || (0..QUESTIONS).for_each(|_| drop(zookeeper.look("/")));
    // The first requests are not measured, because a Java virtual machine is slow at first.
    ask();
    let begun = Instant::now();
    ask();
    let rate = f64::from(QUESTIONS) / begun.elapsed().as_secs_f64();
    println!("F-44, a slow server: {rate:.0} questions a second at full speed");
    (RATE / rate).clamp(0.25, 1.0)
}

/// A client that reads a long queue for the first time reads all of it, within the time of one call.
#[test]
fn a_long_queue_is_listed_by_the_first_call() -> Result<()> {
    rerun_on_threads(list_a_long_queue)
}

async fn list_a_long_queue() -> Result<()> {
    let zookeeper = block_in_place(Zookeeper::one);
    let url = format!("zookeeper://{}", zookeeper.authority());
    let above = ["/coordination", "/coordination/lock", QUEUE].map(str::to_owned);
    let entry =
        |number| format!("{QUEUE}/0123456789abcdef-0123456789abcdef01234567__lock__{number:010}");
    block_in_place(|| zookeeper.create_all(above.into_iter().chain((0..ENTRIES).map(entry))));
    let client = Coordinator::connect(&url).await?;
    let begun = Instant::now();
    let listed = client.lock("long")?.holders().await?;
    println!("{ENTRIES} entries are listed within {:?}", begun.elapsed());
    assert_eq!(listed.len(), ENTRIES);
    client.stop().await
}

/// One process holds more locks than the client crate can watch again after a reconnect. All locks stay held when the
/// connection breaks, and the loss of any of them is reported.
#[test]
fn l5_many_locks_of_one_process() -> Result<()> {
    rerun_on_threads(hold_many_locks)
}

async fn hold_many_locks() -> Result<()> {
    let (_zookeeper, proxy, operator, client) = cuttable().await?;
    let guards = hold(&client).await?;
    // Waits until the library has started all watches that it starts on these entries.
    sleep(Duration::from_secs(2)).await;
    cut(&proxy).await;
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    assert_eq!(lost, 0, "locks of {MANY} are lost");
    for guard in guards.iter().step_by(MANY / 20) {
        let begun = Instant::now();
        assert!(operator.lock(guard.name())?.break_lock().await?.is_some());
        let told = timeout(LONG_LEASE, guard.lost()).await;
        told.expect("a loss is told, by a look if by no watch");
        println!("a loss is told within {:?}", begun.elapsed());
    }
    drop(guards);
    operator.stop().await?;
    client.stop().await
}

/// With their long names, these entries have more bytes of paths than the client crate can watch again on a new
/// connection.
const MANY: usize = 600;
const LONG_LEASE: Duration = Duration::from_secs(10);

/// A server, a proxy in front of it, a client that does not use the proxy, and a client whose connection can be cut
/// by the proxy.
async fn cuttable() -> Result<(Zookeeper, Proxy, Coordinator, Coordinator)> {
    let start = || Zookeeper::options().line("maxSessionTimeout=10000").start();
    let zookeeper = block_in_place(start);
    let proxy = zookeeper.proxy_to(0);
    let connect = |at| async move {
        Coordinator::builder().ttl(LONG_LEASE).connect(&format!("zookeeper://{at}")).await
    };
    let beside = connect(zookeeper.authority()).await?;
    let client = connect(proxy.address().to_string()).await?;
    Ok((zookeeper, proxy, beside, client))
}

/// Cuts the connection, and waits for longer than the lease.
async fn cut(proxy: &Proxy) {
    proxy.cut_after(Direction::ToClient, Unit::Bytes, 1);
    sleep(LONG_LEASE * 5 / 4).await;
    assert!(!proxy.is_cut_pending(), "no connection broke");
}

fn name(number: usize) -> String {
    format!("{number:0>180}")
}

async fn hold(client: &Coordinator) -> Result<Vec<LockGuard>> {
    let mut acquiring = JoinSet::new();
    for number in 0..MANY {
        let lock = client.lock(name(number))?;
        acquiring.spawn(async move { lock.acquire(None).await });
    }
    acquiring.join_all().await.into_iter().collect()
}
