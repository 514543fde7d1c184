//! F-72: the agent accepts no more connections from one address.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use coordination::blocking::{Coordinator, release};
use coordination::{ErrorKind, LockGuard};
use coordination_tests::bounds;
use coordination_tests::faults::{LONG, SCHEDULING};
use coordination_tests::harness::{Consul, Server, rerun_if_starved};
use serde_json::json;

/// The lease of the clients.
const LEASE: Duration = Duration::from_secs(10);
/// The agent's setting, which the error message has to name.
const SETTING: &str = "http_max_conns_per_client";

fn agent(limit: usize) -> (Consul, String) {
    let consul = Consul::options().with("limits", json!({ SETTING: limit })).start();
    let url = format!("consul://{}/limits", consul.authority());
    (consul, url)
}

/// Acquires a lock that nobody else uses, within the timeout of tests.
fn take(client: &Coordinator, name: &str) -> LockGuard {
    let lock = client.lock(name).expect("a good name");
    lock.acquire(Some(LONG)).expect("nobody else wants it")
}

/// Another program on this host uses up the agent's connections. Connected clients keep their sessions, and a new
/// client gets an error that names the limit.
#[test]
fn f72_no_connection_is_left() {
    rerun_if_starved(|| {
        const LIMIT: usize = 24;
        let (consul, url) = agent(LIMIT);
        let holder = Coordinator::connect(&url).expect("there is room");
        let guard = take(&holder, "held");
        let strangers = Strangers::at(&consul.authority());
        let until = Instant::now() + 2 * LEASE;
        while Instant::now() < until {
            assert!(guard.is_held(), "it was lost: {:?}", guard.remaining());
            thread::sleep(LEASE / 100);
        }
        let refused = Coordinator::connect(&url).expect_err("there is no room");
        println!("F-72 consul: {refused}");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains(SETTING), "{refused}");
        drop(strangers);
        release(guard).expect("the agent confirms");
        release(take(&holder, "next")).expect("the agent confirms");
        let client = Coordinator::connect(&url).expect("there is room again");
        release(take(&client, "held")).expect("the agent confirms");
    });
}

/// While another program uses up the agent's connections, connected clients go on with the single connection that each
/// of them has: waiters are served, a holder whose lock is broken learns of it, and dropped calls cost no connection.
#[test]
fn f72_all_goes_on_without_another_connection() {
    rerun_if_starved(|| {
        const LIMIT: usize = 24;
        // The time within which waiters are served and losses are reported.
        let bound = bounds::served() + SCHEDULING;
        let (consul, url) = agent(LIMIT);
        let clients = [(); 2].map(|()| Coordinator::connect(&url).expect("there is room"));
        let kept = [take(&clients[0], "kept-0"), take(&clients[1], "kept-1")];
        let strangers = Strangers::at(&consul.authority());
        // Clients try to move to new connections every ten seconds. Here such a move fails, because the agent accepts
        // no new connection.
        thread::sleep(Duration::from_secs(11));
        let until = Instant::now() + 2 * LEASE;
        let (mut turns, mut slowest) = (0, Duration::ZERO);
        while Instant::now() < until {
            let (one, other) = (&clients[turns % 2], &clients[1 - turns % 2]);
            let held = take(one, "shared");
            let lock = other.lock("shared").expect("a good name");
            let hurried = lock.acquire(Some(Duration::from_millis(1 + turns as u64 % 7)));
            assert!(hurried.is_err(), "it is held");
            let waiter = thread::spawn(move || lock.acquire(Some(LONG)));
            thread::sleep(Duration::from_millis(50));
            let released = Instant::now();
            if turns % 3 == 2 {
                let lock = other.lock("shared").expect("a good name");
                let broken = lock.break_lock().expect("the agent is there");
                assert!(broken.is_some(), "there is a holder");
                while held.is_held() {
                    assert!(released.elapsed() < bound, "the holder is not told");
                    thread::sleep(Duration::from_millis(5));
                }
            } else {
                release(held).expect("the agent confirms");
            }
            let next = waiter.join().expect("no panic").expect("it is free");
            slowest = slowest.max(released.elapsed());
            release(next).expect("the agent confirms");
            assert!(kept.iter().all(|guard| guard.is_held()), "a session was lost");
            turns += 1;
        }
        println!("F-72 consul: {turns} turns, the slowest after {slowest:?}");
        assert!(slowest < bound, "L2: served after {slowest:?}");
        drop(strangers);
        kept.into_iter().for_each(|guard| release(guard).expect("the agent confirms"));
    });
}

/// Idle connections of another program, as many as the agent accepts. If the agent closes one of them, it is opened
/// again.
struct Strangers {
    ended: Arc<AtomicBool>,
    task: Option<thread::JoinHandle<()>>,
}

impl Strangers {
    fn at(authority: &str) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (at, is_over) = (authority.to_owned(), Arc::clone(&ended));
        let task = thread::spawn(move || {
            let mut open: Vec<TcpStream> = Vec::new();
            while !is_over.load(Ordering::SeqCst) {
                open.retain(is_open);
                if let Ok(stream) = TcpStream::connect(&at) {
                    stream.set_nonblocking(true).expect("a socket");
                    open.push(stream);
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        Self { ended, task: Some(task) }
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        if let Some(task) = self.task.take() {
            task.join().expect("no panic");
        }
    }
}

fn is_open(stream: &TcpStream) -> bool {
    let peeked = stream.peek(&mut [0]);
    peeked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// There are ten processes more than the agent has connections for. Each process holds a lock, and waits for another
/// one. No process loses its session, not even while the agent restarts, and all waiters get their locks.
#[test]
fn f72_more_processes_than_connections() {
    rerun_if_starved(|| {
        // A process uses five connections: one for heartbeats, one for calls, and three for blocking queries.
        const BORNE: usize = 8;
        const PROCESSES: usize = BORNE + 10;
        let (consul, url) = agent(5 * BORNE);
        let mut clients: Vec<Process> = Vec::new();
        for number in 0..PROCESSES {
            clients.push(Process::start(&url, number));
            clients.iter().for_each(Process::is_well);
        }
        all_are_well(&clients, 2 * LEASE);
        consul.nodes()[0].restart();
        all_are_well(&clients, 2 * LEASE);
        let before: Vec<_> = clients.iter().map(Process::turns).collect();
        all_are_well(&clients, 2 * LEASE);
        let turns = clients.iter().zip(before).map(|(client, before)| client.turns() - before);
        println!("F-72 consul: turns within {:?}: {:?}", 2 * LEASE, turns.collect::<Vec<_>>());
        for client in clients {
            client.stop();
        }
    });
}

fn all_are_well(clients: &[Process], during: Duration) {
    let until = Instant::now() + during;
    while Instant::now() < until {
        clients.iter().for_each(Process::is_well);
        thread::sleep(LEASE / 100);
    }
}

/// A client that stands for a process. It holds a lock of its own, and again and again acquires and releases a second
/// lock, which its neighbours also use.
struct Process {
    number: usize,
    client: Coordinator,
    guard: LockGuard,
    turns: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
    task: thread::JoinHandle<()>,
}

impl Process {
    fn start(url: &str, number: usize) -> Self {
        let began = Instant::now();
        let client = loop {
            match Coordinator::connect(url) {
                Ok(client) => break client,
                Err(refused) => {
                    println!("F-72 consul: process {number}: {refused}");
                    assert!(refused.to_string().contains(SETTING), "{refused}");
                    assert!(began.elapsed() < LONG, "process {number} never connects: {refused}");
                }
            }
        };
        let guard = take(&client, &format!("own-{number}"));
        let (turns, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let lock = client.lock(format!("shared-{}", number / 3)).expect("a good name");
        let (count, is_over) = (Arc::clone(&turns), Arc::clone(&ended));
        let task = thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                let Ok(turn) = lock.acquire(Some(LEASE)) else { continue };
                thread::sleep(Duration::from_millis(200));
                drop(release(turn));
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        println!("F-72 consul: process {number} began after {:?}", began.elapsed());
        Self { number, client, guard, turns, ended, task }
    }

    fn is_well(&self) {
        assert!(self.guard.is_held(), "process {} lost its session", self.number);
    }

    fn turns(&self) -> usize {
        self.turns.load(Ordering::SeqCst)
    }

    fn stop(self) {
        self.ended.store(true, Ordering::SeqCst);
        self.task.join().expect("no panic");
        drop(release(self.guard));
        drop(self.client.stop());
    }
}
