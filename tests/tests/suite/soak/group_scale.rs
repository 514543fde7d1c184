//! A thousand members and a thousand watches: what a join costs, how fast watchers see it, and how much memory they
//! need.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use coordination::Coordinator;
use coordination_tests::checks::Backend;
use coordination_tests::faults::Site;
use coordination_tests::harness::{Worker, log::now_ns, on_threads, rerun_alone};
use serde_json::json;
use tokio::task::block_in_place;

use crate::WORKER;

const GROUP: &str = "crowd";
/// How long requests are counted while nothing happens. This is the time between two re-checks of a watcher, so each
/// watcher re-checks about once.
const IDLE: Duration = Duration::from_secs(5);

/// The resident memory of a process, in bytes.
fn resident(worker: &Worker) -> i64 {
    let path = format!("/proc/{}/status", worker.child().id());
    let status = std::fs::read_to_string(path).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("Linux says it");
    let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse::<i64>().ok());
    1_024 * kib.expect("a number")
}

fn connected(url: &str, member: &str) -> Worker {
    let worker = Worker::start(WORKER, url, &[]);
    worker.call(json!({ "command": "connect", "member": member }));
    worker
}

/// Measures how much memory a member and a watch need, in one process that also contains the store.
#[test]
fn a_watch_weighs_little() {
    rerun_alone(weigh_a_watch);
}

fn weigh_a_watch() {
    const MEMBERS: i64 = 2_000;
    const WATCHES: i64 = 10_000;
    let worker = connected("memory://scale", "one");
    worker.call(json!({ "command": "create_group", "group": GROUP }));
    worker.call(json!({ "command": "join_many", "group": GROUP, "prefix": "early", "n": 10 }));
    let empty = resident(&worker);
    worker
        .call(json!({ "command": "join_many", "group": GROUP, "prefix": "member", "n": MEMBERS }));
    let joined = resident(&worker);
    // The first watch reads the group, which is not measured.
    worker.call(json!({ "command": "watch_many", "group": GROUP, "n": 10 }));
    let watched = resident(&worker);
    worker.call(json!({ "command": "watch_many", "group": GROUP, "n": WATCHES }));
    let (member, watch) = ((joined - empty) / MEMBERS, (resident(&worker) - watched) / WATCHES);
    println!(
        "memory: {member} bytes for each of {MEMBERS} members, the store's part included; {watch} for each of {WATCHES} watches"
    );
    assert!(member < 32 * 1_024 && watch < 8 * 1_024);
}

const PROCESSES: usize = 20;
const EACH: usize = 50;
const JOINS: u64 = 5;

/// Sends a command to all workers, and waits for all results.
fn all(workers: &[Worker], command: impl Fn(usize) -> serde_json::Value) -> Vec<serde_json::Value> {
    let sent: Vec<_> =
        workers.iter().enumerate().map(|(at, worker)| worker.send(command(at))).collect();
    let answers = workers.iter().zip(sent).map(|(worker, id)| {
        let answer = worker.receive(id, Duration::from_secs(60)).expect("it answers");
        answer.unwrap_or_else(|error| panic!("{error}"))
    });
    answers.collect()
}

fn since(before: &BTreeMap<String, u64>, now: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let grown = now.into_iter().map(|(method, count)| {
        let before = before.get(&method).copied().unwrap_or_default();
        (method, count - before)
    });
    grown.filter(|(_, count)| *count > 0).collect()
}

fn a_join_is_told_to_a_thousand_watches(backend: Backend) {
    let site = Site::start(backend, 1, WORKER);
    on_threads(join_among_a_thousand(&site));
}

async fn join_among_a_thousand(site: &Site) {
    let (url, store) = (&*site.url, site.name());
    let one = Coordinator::builder().member_id("one").connect(url).await.expect("a server");
    let group = one.group(GROUP).expect("a name");
    group.create().await.expect("there is none yet");
    let begun = Instant::now();
    let workers: Vec<_> = block_in_place(|| {
        (0..PROCESSES).map(|at| connected(url, &format!("process-{at}"))).collect()
    });
    block_in_place(|| {
        all(
            &workers,
            |at| json!({ "command": "join_many", "group": GROUP, "prefix": format!("member-{at}"), "n": EACH }),
        )
    });
    let total = PROCESSES * EACH;
    println!(
        "{store}: {total} members in {PROCESSES} processes joined after {:?}",
        begun.elapsed()
    );
    assert_eq!(group.members().await.expect("it is there").len(), total);
    block_in_place(|| {
        all(&workers, |_| json!({ "command": "watch_many", "group": GROUP, "n": EACH }))
    });
    println!("{store}: {total} watches stand after {:?}", begun.elapsed());

    let mut memberships = Vec::new();
    let mut told = Duration::ZERO;
    // Waits for earlier requests to end, and then counts the requests that are made while nothing happens: heartbeats
    // and re-checks.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let idle_before = block_in_place(|| site.server().request_counts());
    tokio::time::sleep(IDLE).await;
    let idle = since(&idle_before, block_in_place(|| site.server().request_counts()));
    let idle = idle.values().sum::<u64>() as f64;
    let counting = Instant::now();
    let before = block_in_place(|| site.server().request_counts());
    for number in 0..JOINS {
        let newcomer = format!("newcomer-{number}");
        let joining = now_ns();
        memberships.push(group.join_as(&newcomer, &()).await.expect("it is let in"));
        let answers = block_in_place(|| {
            all(&workers, |_| json!({ "command": "await_member", "member": newcomer }))
        });
        for answer in answers {
            assert_eq!(answer["told"], EACH);
            let at = answer["t_ns"].as_u64().expect("a time");
            told = told.max(Duration::from_nanos(at.saturating_sub(joining)));
        }
    }
    let counted = since(&before, block_in_place(|| site.server().request_counts()));
    let requests: u64 = counted.values().sum();
    println!(
        "{store}: a join reached {total} watches after {told:?} at the latest; {JOINS} joins cost {requests} requests: {counted:?}"
    );
    let idle = (1.2 * idle * counting.elapsed().div_duration_f64(IDLE).ceil()) as u64;
    // Reading a group on ZooKeeper takes three requests: a `sync`, the names, and the new nodes.
    let look = if store == "zookeeper" { 3 } else { 1 };
    // For each join: its own two requests, and in each process one read of the group, or two if the process had to
    // read again.
    let wanted = look * (JOINS * (2 + 2 * PROCESSES as u64) + PROCESSES as u64);
    assert!(requests <= wanted + idle, "{counted:?}, and {idle} while nothing happens");
    assert!(told < Duration::from_secs(20), "{told:?}");
    drop(workers);
    block_in_place(|| weigh(url, &store));
}

/// Measures how much memory a member needs in its process, while the store is in other processes.
fn weigh(url: &str, store: &str) {
    const MEMBERS: i64 = 300;
    let worker = connected(url, "heavy");
    let join = |prefix: &str, n: i64| {
        worker.call(json!({
            "command": "join_many", "group": GROUP, "prefix": prefix, "n": n,
        }));
        // Waits until each member is watched.
        std::thread::sleep(Duration::from_millis(500));
        resident(&worker)
    };
    // The memory that comes with the first members, and with reading the group, is not measured.
    let before = join("early", 20);
    let member = (join("later", MEMBERS) - before) / MEMBERS;
    println!("{store}: {member} bytes for each of {MEMBERS} members of one process");
    assert!(member < 128 * 1_024);
}

coordination_tests::each_store!(alone servers a_join_is_told_to_a_thousand_watches);
