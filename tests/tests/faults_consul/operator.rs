//! What operators do to Consul: snapshots that are restored, and `consul lock` among our keys.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use coordination_tests::faults::{LONG, Site};
use coordination_tests::harness::{Consul, Server, wait_until};

use super::WORKER;

const LOCK: &str = "operator";

fn consul(server: &Consul, arguments: &[&str]) -> Command {
    let mut command = Command::new("consul");
    let (subcommand, rest) = arguments.split_at(if arguments[0] == "snapshot" { 2 } else { 1 });
    let address = format!("-http-addr=http://{}", server.authority());
    command.args(subcommand).arg(address).args(rest).stdout(Stdio::null());
    command
}

/// F-52: the index goes back to where it was, under those who wait by it.
#[test]
fn f52_the_index_goes_back() {
    let server = Arc::new(Consul::one());
    let site = Site::on(server.clone(), WORKER);
    let (holder, waiter) = (site.process("holder"), site.process("waiter"));
    let first = holder.acquire(LOCK);
    let waiting = waiter.wait_for(LOCK);
    waiter.sees_contenders(LOCK, 2);
    let snapshot = server.directory().join("snapshot");
    let path = snapshot.display().to_string();
    assert!(consul(&server, &["snapshot", "save", &path]).status().expect("it runs").success());
    for number in 0..50 {
        server.put_key(&format!("elsewhere/{number}"), "");
    }
    assert!(consul(&server, &["snapshot", "restore", &path]).status().expect("it runs").success());
    holder.keeps(LOCK);
    holder.release(LOCK);
    let next = waiter.granted(waiting, LONG);
    assert!(next.token > first.token);
    waiter.release(LOCK);
    assert!(wait_until(LONG, || site.entries().is_empty()), "{:?}", site.entries());
}

/// `consul lock` on a queue's prefix and on the namespace: neither minds the other, and nothing is spoiled.
#[test]
fn f23_consul_lock_among_our_keys() {
    let server = Arc::new(Consul::one());
    let site = Site::on(server.clone(), WORKER);
    for prefix in [format!("coordination/lock/{LOCK}"), "coordination".to_owned()] {
        let mut other = consul(&server, &["lock", &prefix, "sleep", "3"]).spawn().expect("it runs");
        let key = format!("{prefix}/.lock");
        assert!(wait_until(LONG, || !server.key(&key)["Session"].is_null()), "{prefix}");
        let name = |role: &str| format!("{role}-{}", prefix.len());
        let (holder, waiter) = (site.process(&name("holder")), site.process(&name("waiter")));
        let first = holder.acquire(LOCK);
        holder.observe(LOCK);
        let waiting = waiter.wait_for(LOCK);
        waiter.sees_contenders(LOCK, 2);
        thread::sleep(Duration::from_millis(100));
        holder.keeps(LOCK);
        holder.release(LOCK);
        assert!(waiter.granted(waiting, LONG).token > first.token);
        assert!(!server.key(&key)["Session"].is_null(), "it holds its own lock still");
        waiter.release(LOCK);
        assert!(other.wait().expect("it is ours").success());
        let left = server.keys(&format!("coordination/lock/{LOCK}/"));
        assert_eq!(left, [""; 0]);
    }
}
