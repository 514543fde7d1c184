//! What operators, replicas and other programs of the database do to MySQL and MariaDB while clients are connected.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use coordination::{Coordinator, ErrorKind};
use coordination_tests::harness::{Mysql, Server, judged_on_threads};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

fn one() -> Arc<Mysql> {
    block_in_place(|| Arc::new(Mysql::one()))
}

fn url(mysql: &Mysql, options: &str) -> String {
    format!("{}&{options}", mysql.url(&mysql.authority(), ""))
}

fn ask(mysql: &Mysql, statement: &str) -> String {
    block_in_place(|| mysql.ask(statement))
}

/// Carries it out on a connection of its own, and returns when it has come to its `SELECT SLEEP`.
fn begin(mysql: &Arc<Mysql>, work: &str) -> thread::JoinHandle<Result<String, String>> {
    let running = {
        let (mysql, work) = (Arc::clone(mysql), work.to_owned());
        thread::spawn(move || mysql.try_ask(&work))
    };
    while sleeping(mysql).is_empty() && !running.is_finished() {}
    running
}

/// The connections that are at a `SELECT SLEEP`.
fn sleeping(mysql: &Mysql) -> String {
    ask(mysql, "SELECT id FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'")
}

fn kill_all(mysql: &Mysql) {
    let ours =
        "SELECT id FROM information_schema.processlist WHERE db = 'coordination' AND info IS NULL";
    for id in ask(mysql, ours).lines() {
        // It may have ended.
        let _ = block_in_place(|| mysql.try_ask(&format!("KILL {id}")));
    }
}

/// A primary, and a server that replicates from it and may be written to, as all may that are not told otherwise.
fn replicated() -> [Arc<Mysql>; 2] {
    block_in_place(|| {
        let numbered = |id| Mysql::options().set("server-id", id).set("log-bin", "log").start();
        let servers = ["1", "2"].map(|id| Arc::new(numbered(id)));
        let authority = servers[0].authority();
        let (host, port) = authority.rsplit_once(':').expect("a port");
        servers[1].ask(&format!(
            "CHANGE MASTER TO master_host = '{host}', master_port = {port}, master_user = 'coordination'; START SLAVE"
        ));
        let running = "SHOW GLOBAL STATUS LIKE 'Slaves_running'";
        while !servers[1].ask(running).ends_with('1') {}
        servers
    })
}

/// S1: of several servers of the URL none is used that replicates from another, though it may be written to.
#[test]
fn s1_a_replica_that_may_be_written_to_is_not_used() {
    judged_on_threads(async || {
        let [primary, replica] = replicated();
        let both = format!("{},{}", primary.authority(), replica.authority());
        let both = format!("{}&ttl=10s", primary.url(&both, ""));
        let mut granted = Vec::new();
        let mut coordinators = Vec::new();
        for _ in 0..10 {
            let coordinator = Coordinator::connect(&both).await.expect("the primary");
            let lock = coordinator.lock("x").expect("a name");
            granted.extend(lock.try_acquire().await.expect("an answer"));
            coordinators.push(coordinator);
        }
        assert_eq!(granted.len(), 1, "S1: so many hold it");
        let refused = Coordinator::connect(&url(&replica, "ttl=10s")).await.expect_err("a replica");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains("replicates"), "{refused}");
        drop(granted);
        for coordinator in coordinators {
            coordinator.stop().await.expect("stopped");
        }
        // It is made the primary.
        ask(&replica, "STOP SLAVE; RESET SLAVE ALL");
        let coordinator = Coordinator::connect(&url(&replica, "ttl=10s")).await.expect("a primary");
        coordinator.stop().await.expect("stopped");
    });
}
