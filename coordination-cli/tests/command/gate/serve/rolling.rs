//! H10: instances that are restarted one by one behind a balancer, under load, and one that is stopped under load.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use coordination_tests::harness::{rerun_if_starved, wait_until};
use coordination_tests::must_hold;
use serde_json::json;

use super::locks::on_stores;
use crate::balancer::Balancer;
use crate::http::{Answer, Kept, Service, answer, ask, hold};
use crate::{LONG, Store};

const CLIENTS: usize = 12;
const NAMES: usize = 4;

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
        for client in 0..CLIENTS {
            let (load, at) = (&load, balancer.at());
            scope.spawn(move || load.run(&at, client));
        }
        let _over = Over(&load.is_over);
        let mut news = Vec::new();
        for mut old in instances {
            std::thread::sleep(Duration::from_millis(500));
            old.terminate();
            assert_eq!(old.process.code(), Some(0), "{}", old.written());
            balancer.remove(&old);
            news.push(start());
        }
        std::thread::sleep(Duration::from_millis(500));
        load.is_over.store(true, Ordering::Relaxed);
        news
    });
    let grants = load.grants.load(Ordering::Relaxed);
    assert!(grants > 50, "only {grants} grants");
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
        let inside = self.inside[name].fetch_add(1, Ordering::SeqCst);
        must_hold!(inside == 0, "two are inside of {name}");
        let path = hold(&granted.json());
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(20));
            let renewed = ask(at, "PUT", &path, &[], "");
            assert_eq!(renewed.status, 200, "{renewed:?}");
        }
        self.inside[name].fetch_sub(1, Ordering::SeqCst);
        let released = ask(at, "DELETE", &path, &[], "");
        assert_eq!(released.status, 204, "{released:?}");
    }
}

/// H10: what was sent before the listener closes is answered.
#[test]
fn h10_what_was_sent_before_the_end_is_answered() {
    rerun_if_starved(|| {
        let store = Store::file();
        for _ in 0..5 {
            let mut service = Service::start(&store, "--no-access-log");
            let at = service.native.as_str();
            let sent = std::thread::scope(|scope| {
                let sending = scope.spawn(|| sent_until_refused(at));
                std::thread::sleep(Duration::from_millis(50));
                service.terminate();
                sending.join().expect("it does not panic")
            });
            let count = sent.len();
            let told: Vec<u16> = sent.into_iter().map(|stream| answer(stream).status).collect();
            let lost = told.iter().filter(|status| **status == 0).count();
            assert_eq!(lost, 0, "of {count} requests");
            assert_eq!(service.process.code(), Some(0));
        }
    });
}

/// Requests that are sent until nobody listens any more.
fn sent_until_refused(at: &str) -> Vec<TcpStream> {
    let mut sent = Vec::new();
    while let Ok(mut stream) = TcpStream::connect(at) {
        let text = "POST /v1/locks/late HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
        if write!(stream, "{text}Content-Length: 2\r\n\r\n{{}}").is_ok() {
            sent.push(stream);
        }
    }
    sent
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
