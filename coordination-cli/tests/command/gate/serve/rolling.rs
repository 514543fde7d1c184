//! H10: instances that are restarted one by one behind a balancer, under load, and one that is stopped under load.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use coordination_tests::harness::{rerun_if_starved, wait_until};
use coordination_tests::must_hold;
use rustix::process::Signal;
use serde_json::json;

use super::locks::on_stores;
use crate::balancer::Balancer;
use crate::http::{Answer, Kept, Service, answer, ask, hold, send};
use crate::{LONG, Store};

const CLIENTS: usize = 12;
const NAMES: usize = 4;
/// So many are sent to an instance that stands still: fewer than the system keeps for it.
const MANY: usize = 60;

/// No request is lost, no hold, and nobody overlaps: who is told that an instance is about to stop asks again.
#[test]
fn h10_instances_are_restarted_one_by_one_under_load() {
    rerun_if_starved(|| on_stores(restarted));
}

fn restarted(store: &Store) {
    let balancer = Balancer::start();
    let start = || {
        let service = Service::start(store, "--no-access-log --drain 10s");
        balancer.add(&service);
        service
    };
    let instances = [start(), start(), start()];
    let load = Load::default();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (load, at) = (&load, balancer.at());
                scope.spawn(move || load.run(&at, client))
            })
            .collect();
        let over = Over(&load.is_over);
        let mut news = Vec::new();
        for mut old in instances {
            std::thread::sleep(Duration::from_millis(500));
            old.terminate();
            assert_eq!(old.process.code(), Some(0), "{}", old.written());
            balancer.remove(&old);
            news.push(start());
        }
        std::thread::sleep(Duration::from_millis(500));
        let grants = || load.grants.load(Ordering::Relaxed);
        // A client that has failed is told below: nobody waits for it here.
        let is_enough = || grants() > 50 || clients.iter().any(|client| client.is_finished());
        let is_enough = wait_until(LONG, is_enough);
        drop(over);
        // A scope tells that a thread has panicked, but not what of: a violation would be taken for a matter of time.
        let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        let overlaps = load.overlaps.load(Ordering::SeqCst);
        must_hold!(overlaps == 0, "two were inside of a lock, {overlaps} times");
        for end in ended {
            end.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        assert!(is_enough, "only {} grants", grants());
        news
    });
    let last = Service::start(store, "");
    let names = || last.get("/v1/locks").json()["names"].clone();
    assert!(wait_until(LONG, || names() == json!([])), "{}", names());
}

/// Ends the load, whatever happens: otherwise a failure would wait for it.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    grants: AtomicUsize,
    /// How many are in each lock.
    inside: [AtomicUsize; NAMES],
    /// How often somebody else was there.
    overlaps: AtomicUsize,
}

/// Is inside until it is dropped, also by a client that fails: it uses what it holds no more.
struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Load {
    fn run(&self, at: &str, client: usize) {
        let mut turn = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            turn += 1;
            let name = (client + turn) % NAMES;
            let key = format!("{client}-{turn}");
            if let Some(granted) = self.acquire(at, name, &key) {
                self.hold(at, name, &granted);
            }
        }
    }

    /// Asks again as long as it is told that an instance is about to stop.
    fn acquire(&self, at: &str, name: usize, key: &str) -> Option<Answer> {
        let path = format!("/v1/locks/load-{name}");
        loop {
            let headers = [("Idempotency-Key", key)];
            let told = ask(at, "POST", &path, &headers, r#"{"wait_ms":2000}"#);
            match told.status {
                201 => return Some(told),
                409 => return None,
                503 if told.code() == "draining" => {}
                _ => panic!("{told:?}"),
            }
        }
    }

    fn hold(&self, at: &str, name: usize, granted: &Answer) {
        self.grants.fetch_add(1, Ordering::Relaxed);
        if self.inside[name].fetch_add(1, Ordering::SeqCst) > 0 {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        let inside = Inside(&self.inside[name]);
        let path = hold(&granted.json());
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(20));
            let renewed = ask(at, "PUT", &path, &[], "");
            assert_eq!(renewed.status, 200, "{renewed:?}");
        }
        drop(inside);
        let released = ask(at, "DELETE", &path, &[], "");
        assert_eq!(released.status, 204, "{released:?}");
    }
}

/// H10: what was sent before the listener closes is answered, though nobody had accepted it when we were told to stop.
///
/// The instance stands still while it is asked, so that all of it waits at the system, however fast the machine is.
#[test]
fn h10_what_was_sent_before_the_end_is_answered() {
    rerun_if_starved(|| {
        let store = Store::file();
        for _ in 0..5 {
            let mut service = Service::start(&store, "--no-access-log");
            service.process.signal(Signal::STOP);
            let asked = || send(&service.native, "GET", "/livez", &[], "");
            let sent: Vec<_> = (0..MANY).map(|_| asked()).collect();
            service.terminate();
            service.process.signal(Signal::CONT);
            let told: Vec<u16> = sent.into_iter().map(|stream| answer(stream).status).collect();
            let lost = told.iter().filter(|status| **status == 0).count();
            assert_eq!(lost, 0, "of {MANY} requests: {told:?}");
            assert_eq!(service.process.code(), Some(0));
        }
    });
}

/// H10: who keeps a connection open is told to leave it, by whatever it asks while the instance stops, but not who holds something
/// there: another connection may lead to another instance, which cannot renew it.
#[test]
fn h10_connections_that_stay_open_are_given_up() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let held = service.acquire("x", r#"{"lease_ms":60000}"#);
        let mut open = Kept::open(&service.native);
        let mut look = |method: &str, path: &str| {
            let told = open.ask(method, path, "");
            (told.status, told.header("connection").map(str::to_owned))
        };
        let (renewed, listed) = (hold(&held), "/v1/locks");
        assert_eq!(look("GET", listed), (200, None));
        service.terminate();
        assert!(wait_until(LONG, || service.get("/readyz").status == 503));
        assert_eq!(look("PUT", &renewed), (200, None));
        assert_eq!(look("GET", listed), (200, Some("close".to_owned())));
        assert_eq!(service.delete(&hold(&held)).status, 204);
    });
}
