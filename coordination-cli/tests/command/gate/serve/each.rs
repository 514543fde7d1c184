//! What is the same for each recipe: instances side by side, one that dies, and a store that is away.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use coordination_tests::harness::{
    Etcd, Redis, SchedulerLag, Server, rerun_if_starved, wait_until,
};
use serde_json::Value;

use super::locks::on_stores;
use crate::http::{Answer, Service, answer, ask, hold, send};
use crate::{LONG, Store};

/// The path and the fields of one of each recipe, of which there is room for one.
const EACH: [(&str, &str); 6] = [
    ("/v1/locks/x", ""),
    ("/v1/locks", r#""names":["y","z"],"#),
    ("/v1/semaphores/x", r#""permits":1,"#),
    ("/v1/limiters/x", r#""standby":1,"#),
    ("/v1/elections/x", ""),
    ("/v1/groups/x", r#""member":"m","#),
];

/// A hold of two seconds, and when it was asked for. One try has the time of one heartbeat for all that it asks the store, which
/// may be too short on a busy machine, and the next one is asked for anew.
fn granted(service: &Service, path: &str, own: &str) -> (Instant, Value) {
    let mut granted = None;
    let is_granted = wait_until(LONG, || {
        let begun = Instant::now();
        let answer = service.post(path, &format!(r#"{{{own}"lease_ms":2000}}"#));
        granted = (answer.status == 201).then(|| (begun, answer.json()));
        granted.is_some()
    });
    assert!(is_granted, "{path}");
    granted.expect("it was granted")
}

/// A client's title is seen wherever somebody looks, whichever instance granted what it holds, or has it wait.
#[test]
fn titles_are_shown_by_all_instances() {
    rerun_if_starved(|| on_stores(titles_are_shown));
}

fn titles_are_shown(store: &Store) {
    let (one, other) = (Service::start(store, ""), Service::start(store, ""));
    let title = "nightly “dump” of <h1>";
    for (path, own) in EACH {
        let body = format!(r#"{{{own}"title":"{title}"}}"#);
        // One try may take too long on a busy machine.
        assert!(wait_until(LONG, || one.post(path, &body).status == 201), "{path}");
        let looked = if path == "/v1/locks" { "/v1/locks/y" } else { path };
        for (service, is_its_own) in [(&one, true), (&other, false)] {
            let entry = &service.get(looked).json()["entries"][0];
            assert_eq!(entry["title"], title, "{path}: {entry}");
            assert_eq!(entry.get("handle").is_some(), is_its_own, "{path}: {entry}");
        }
    }
    let body = r#"{"wait_ms":60000,"title":"it waits"}"#;
    let _waits = send(&one.native, "POST", "/v1/locks/x", &[], body);
    for service in [&one, &other] {
        let waiting = || service.get("/v1/locks/x").json()["entries"][1].clone();
        assert!(wait_until(LONG, || waiting()["title"] == "it waits"), "{}", waiting());
    }
    assert_eq!(other.post("/v1/locks/plain", "").status, 201);
    let plain = &one.get("/v1/locks/plain").json()["entries"][0];
    assert!(plain["who"].is_string() && plain.get("title").is_none(), "{plain}");
}

/// H5, on servers: what a killed instance held is free when the store's own lease is over, and not before its client's.
#[test]
fn h5_what_a_killed_instance_held_is_free_in_time() {
    rerun_if_starved(|| {
        let (etcd, redis) = (Etcd::one(), Redis::one());
        for url in [
            format!("etcd://{}/service?ttl=3s&heartbeat=300ms", etcd.node(0).address()),
            format!("redis://{}?ttl=3s&heartbeat=300ms&quarantine=0", redis.node(0).address()),
        ] {
            killed(&Store::at(url));
        }
    });
}

/// H5, on a directory: of several locks each is promised, and nobody gets one through the service before that is over.
#[test]
fn h5_several_locks_of_a_killed_instance_are_promised() {
    rerun_if_starved(|| {
        let store = Store::file();
        let (one, other) = (Service::start(&store, ""), Service::start(&store, ""));
        let begun = Instant::now();
        let held = one.post("/v1/locks", r#"{"names":["x","y","z"],"lease_ms":2000}"#);
        assert_eq!((held.status, held.json()["covered"].as_str()), (201, Some("http")), "{held:?}");
        drop(one);
        assert_eq!(other.post("/v1/locks/y", "").code(), "busy");
        assert_eq!(other.post("/v1/locks", r#"{"names":["a","z"]}"#).code(), "busy");
        for (path, own) in [("/v1/locks/x", ""), ("/v1/locks", r#""names":["y","z"],"#)] {
            let next = other.post(path, &format!(r#"{{{own}"wait_ms":30000}}"#));
            assert_eq!(next.status, 201, "{next:?}");
            assert!(begun.elapsed() >= Duration::from_millis(2_000), "{:?}", begun.elapsed());
        }
    });
}

/// H5: a hundred holds of a killed instance are free in time, and none before its client's lease is over. A hundred who waited there keep
/// nobody waiting for longer than that.
#[test]
fn h5_a_hundred_holds_and_waits_of_a_killed_instance_are_over_in_time() {
    const MANY: usize = 100;
    const LEASE: Duration = Duration::from_millis(4_500);
    /// The session's lease and a second, by which all is free (L1), and time for so many to be granted it.
    const FREE: Duration = Duration::from_secs(6 + 1 + 5);
    rerun_if_starved(|| {
        let etcd = Etcd::one();
        let url = format!("etcd://{}/service?ttl=6s&heartbeat=500ms", etcd.node(0).address());
        let store = Store::at(url);
        let start = || Service::start(&store, "--no-access-log --long other/");
        let (one, other) = (start(), start());
        let wait = |at: &Service, of: &str| -> Vec<_> {
            let paths = (0..MANY).map(|number| format!("/v1/locks/{of}/{number}"));
            let body = r#"{"wait_ms":60000}"#;
            paths.map(|path| send(&at.native, "POST", &path, &[], body)).collect()
        };
        let acquire = |at: &Service, of: &str, lease: Duration| -> Vec<(Instant, Value)> {
            let body = format!(r#"{{"wait_ms":20000,"lease_ms":{}}}"#, lease.as_millis());
            let names = (0..MANY).map(|number| format!("{of}/{number}"));
            names.map(|name| (Instant::now(), at.acquire(&name, &body))).collect()
        };
        let are_queued = |count: usize| {
            (0..MANY).all(|number| {
                let looked = other.get(&format!("/v1/locks/other/{number}")).json();
                looked["entries"].as_array().map(Vec::len) == Some(count)
            })
        };
        let released = acquire(&other, "other", Duration::from_secs(600));
        let waiting = wait(&one, "other");
        assert!(wait_until(LONG, || are_queued(2)));
        let behind = wait(&other, "other");
        assert!(wait_until(LONG, || are_queued(3)));
        let held = acquire(&one, "one", LEASE);
        let next = wait(&other, "one");
        drop(one);
        let killed = Instant::now();
        drop(waiting);
        for (_, body) in &released {
            assert!(matches!(other.delete(&hold(body)).status, 202 | 204));
        }
        let granted: Vec<(Answer, Instant)> = std::thread::scope(|scope| {
            let streams = behind.into_iter().chain(next);
            let answers: Vec<_> = streams
                .map(|stream| scope.spawn(move || (answer(stream), Instant::now())))
                .collect();
            answers.into_iter().map(|told| told.join().expect("it does not panic")).collect()
        });
        let before = released.iter().map(|(_, body)| (killed, body));
        let before = before.chain(held.iter().map(|(begun, body)| (*begun + LEASE, body)));
        for ((soonest, before), (next, at)) in before.zip(&granted) {
            assert_eq!(next.status, 201, "after {before}: {next:?}");
            assert!(next.json()["fence"].as_u64() > before["fence"].as_u64(), "{next:?}");
            assert!(*at >= soonest, "{:?} too early: {next:?}", soonest - *at);
            let took = *at - killed;
            assert!(took < FREE + SchedulerLag::lately(took), "{took:?}: {next:?}");
        }
    });
}

fn killed(store: &Store) {
    let (one, other) = (Service::start(store, ""), Service::start(store, ""));
    let held = EACH.map(|(path, own)| {
        let (begun, held) = granted(&one, path, own);
        assert_eq!(held["covered"], "all", "{held}");
        (begun, held)
    });
    drop(one);
    std::thread::scope(|scope| {
        for ((path, own), (begun, held)) in EACH.into_iter().zip(held) {
            let at = other.native.as_str();
            scope.spawn(move || {
                // Nobody waits to join a group.
                let wait = if path.contains("groups") { "" } else { r#""wait_ms":30000,"# };
                let mut next = None;
                let granted = wait_until(LONG, || {
                    let body = format!(r#"{{{own}{wait}"lease_ms":2000}}"#);
                    let answer = ask(at, "POST", path, &[], &body);
                    next = (answer.status == 201).then(|| (begun.elapsed(), answer.json()));
                    next.is_some()
                });
                assert!(granted, "{path}");
                let (waited, next) = next.expect("it was granted");
                assert!(waited >= Duration::from_millis(2_000), "{path}: {waited:?}");
                let fence = |hold: &Value| hold["fence"].as_u64().or(hold["fences"][0].as_u64());
                assert!(fence(&next) > fence(&held), "{path}: {next} after {held}");
            });
        }
    });
}

/// H10: while the store is away each recipe says so, in time, and what is held is lost.
#[test]
fn h10_of_each_recipe_a_store_that_is_away_is_told() {
    rerun_if_starved(|| {
        let etcd = Etcd::one();
        let url = format!("etcd://{}/service?ttl=3s&heartbeat=300ms", etcd.node(0).address());
        let service = Service::start(&Store::at(url), "");
        let held = EACH.map(|(path, own)| granted(&service, path, own).1);
        etcd.node(0).pause();
        assert!(wait_until(LONG, || service.get("/readyz").json()["why"] == "store-away"));
        for ((path, own), wait) in EACH.into_iter().flat_map(|each| [(each, 0), (each, 100)]) {
            if wait > 0 && path.contains("groups") {
                continue;
            }
            let path = path.replace('x', "away");
            let away =
                service.post(&path, &format!(r#"{{{own}"wait_ms":{wait},"lease_ms":2000}}"#));
            assert_eq!(away.status, 503, "{path}, waiting {wait} ms: {away:?}");
            assert!(away.header("retry-after").is_some(), "{path}: {away:?}");
        }
        for (body, (path, _)) in held.iter().zip(EACH) {
            let ended = || service.put(&hold(body), "").status == 410;
            assert!(wait_until(LONG, ended), "{path}");
        }
        etcd.node(0).resume();
        assert!(wait_until(LONG, || service.get("/readyz").status == 200));
        for (path, own) in EACH {
            let granted =
                || service.post(path, &format!(r#"{{{own}"lease_ms":2000}}"#)).status == 201;
            assert!(wait_until(LONG, granted), "{path}");
        }
    });
}

/// H4, without faults: of the clients of two instances no more hold permits than there are, no two the same one, and the fences
/// of each permit rise.
#[test]
fn h4_clients_of_two_instances_share_permits() {
    rerun_if_starved(|| on_stores(share_permits));
}

fn share_permits(store: &Store) {
    const CLIENTS: usize = 8;
    const TURNS: usize = 10;
    let instances = [Service::start(store, ""), Service::start(store, "")];
    // The last fence of each permit, and whether somebody has it.
    let permits = Mutex::new([(0, false); 2]);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (at, permits) = (instances[client % 2].native.as_str(), &permits);
            scope.spawn(move || {
                for _ in 0..TURNS {
                    let body = r#"{"permits":2,"wait_ms":60000}"#;
                    let granted = ask(at, "POST", "/v1/semaphores/x", &[], body);
                    assert_eq!(granted.status, 201, "{granted:?}");
                    let held = granted.json();
                    let slot = held["slots"][0].as_u64().and_then(|slot| slot.try_into().ok());
                    let slot: usize = slot.expect("a number");
                    let fence = held["fence"].as_u64().expect("a number");
                    let before = std::mem::replace(
                        &mut permits.lock().expect("nobody panics")[slot],
                        (fence, true),
                    );
                    assert!(!before.1 && before.0 < fence, "{before:?} before {held}");
                    permits.lock().expect("nobody panics")[slot].1 = false;
                    let released = ask(at, "DELETE", &hold(&held), &[], "");
                    assert_eq!(released.status, 204, "{released:?}");
                }
            });
        }
    });
}
