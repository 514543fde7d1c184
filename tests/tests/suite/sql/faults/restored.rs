//! F-61, F-68: the server comes back without its data, or with older ones.

use std::sync::Arc;
use std::time::Duration;

use coordination::{Coordinator, SharedValue, ValueWatch};
use coordination_tests::faults::Site;
use coordination_tests::harness::wait_until;
use coordination_tests::must_hold;
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

use super::super::{one, url};
use super::{Faulty, LONG};
use crate::WORKER;

/// A lease that is longer than the server needs to come back.
const LEASE: Duration = Duration::from_secs(15);

fn site<S: Faulty>() -> (Arc<S>, Site) {
    let server = Arc::new(S::start(None));
    let site = Site::on(Arc::clone(&server) as Arc<_>, WORKER).with_ttl(LEASE);
    (server, site)
}

/// F-61: the server is killed, and comes back without its data. The holder is told with its first heartbeat, its waiter is served, and
/// tokens rise.
pub(crate) fn f61_the_server_comes_back_without_its_data<S: Faulty>() {
    let (server, site) = site::<S>();
    server.save();
    let (holder, waiter) = (site.process("holder"), site.process("waiter"));
    let old = holder.acquire("x");
    holder.observe("x");
    let waiting = waiter.wait_for("x");
    waiter.sees_contenders("x", 2);
    server.restore();
    let lost = holder.lost(LONG);
    println!("F-61 {}: {}", site.name(), lost.reason);
    assert_eq!(lost.reason, "ExpiredByServer");
    let new = waiter.granted(waiting, LONG);
    must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
    waiter.release("x");
    let next = holder.acquire("x");
    must_hold!(next.token > new.token, "{} after {}", next.token, new.token);
    holder.release("x");
    assert!(wait_until(LONG, || site.entries().is_empty()), "{:?}", site.entries());
}

/// F-68: after the snapshot was made, one of the sessions has removed an entry, and others have entered some. When the snapshot is
/// restored, the removed entry comes back, and blocks nobody; the others are gone, of which a holder is told, and a waiter enters anew.
pub(crate) fn f68_what_was_given_back_since_blocks_nobody<S: Faulty>() {
    let (server, site) = site::<S>();
    let [one, two, three] = ["one", "two", "three"].map(|name| site.process(name));
    one.acquire("x");
    one.acquire("kept");
    one.observe("kept");
    server.save();
    one.release("x");
    let held = two.acquire("x");
    two.observe("x");
    let waiting = three.wait_for("x");
    three.sees_contenders("x", 2);
    server.restore();
    let lost = two.lost(LONG);
    println!("F-68 {}: {}", site.name(), lost.reason);
    let next = three.granted(waiting, LONG);
    must_hold!(next.token > held.token, "{} after {}", next.token, held.token);
    one.keeps("kept");
    three.release("x");
    for process in [&one, &two] {
        process.acquire("x");
        process.release("x");
    }
    one.release("kept");
    assert!(wait_until(LONG, || site.entries().is_empty()), "{:?}", site.entries());
}

/// F-68: versions go back with the snapshot. A watcher of a value is told what the store has then, and what is written later.
pub(crate) async fn f68_a_watcher_goes_on_after_the_restore<S: Faulty>() {
    let server = one::<S>();
    let url = url(&*server).replace("ttl=2s", "ttl=15s");
    let client = Coordinator::connect(&url).await.expect("a server");
    let value = client.value::<u64>("v").expect("a name");
    set(&value, 1).await;
    block_in_place(|| server.save());
    for number in 2..=40 {
        set(&value, number).await;
    }
    let mut watch = value.watch();
    tell(&mut watch, 40).await;
    block_in_place(|| server.restore());
    tell(&mut watch, 1).await;
    set(&value, 41).await;
    tell(&mut watch, 41).await;
    client.stop().await.expect("stopped");
}

/// Writes the value, as often as it takes: the server may just have stood still.
async fn set(value: &SharedValue<u64>, number: u64) {
    let setting = async {
        while value.set(&number).await.is_err() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LONG, setting).await.expect("it is written");
}

/// Waits until the watch has told this number.
async fn tell(watch: &mut ValueWatch<u64>, number: u64) {
    let told = async {
        let mut next = async || watch.next().await.expect("it goes on").into_value();
        while next().await.map(|told| told.value) != Some(number) {}
    };
    timeout(LONG, told).await.unwrap_or_else(|_| panic!("{number} is not told"));
}
