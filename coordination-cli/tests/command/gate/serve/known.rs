//! `ETag`, `If-None-Match` and `Prefer: wait=N`: who knows how something is is told when it is otherwise.

use std::time::{Duration, Instant};

use coordination_tests::harness::rerun_if_starved;

use super::locks::on_stores;
use crate::Store;
use crate::http::{Answer, Service, answer, ask, hold, send};

/// Shorter than the waits that a change ends.
const SOON: Duration = Duration::from_secs(20);
const LONG_WAIT: (&str, &str) = ("Prefer", "wait=30");

fn tag(answer: &Answer) -> String {
    answer.header("etag").unwrap_or_else(|| panic!("no tag: {answer:?}")).to_owned()
}

#[test]
fn who_knows_a_lock_is_told_of_its_changes() {
    rerun_if_starved(|| on_stores(locks));
}

fn locks(store: &Store) {
    let service = Service::start(store, "");
    let path = "/v1/locks/team/x";
    let get = |headers: &[(&str, &str)]| ask(&service.native, "GET", path, headers, "");
    let free = get(&[]);
    let of_free = tag(&free);
    assert!(free.status == 200 && of_free.starts_with("W/\""), "{free:?}");
    for known in [of_free.as_str(), &of_free[2..], "*", &format!("\"other\", {of_free}")] {
        let same = get(&[("If-None-Match", known)]);
        assert_eq!((same.status, same.body.as_str(), tag(&same)), (304, "", of_free.clone()));
    }
    // Who knows nothing, or something else, does not wait.
    let begun = Instant::now();
    assert_eq!(get(&[LONG_WAIT]).status, 200);
    assert_eq!(get(&[LONG_WAIT, ("If-None-Match", "\"other\"")]).status, 200);
    assert_eq!(get(&[LONG_WAIT, ("If-None-Match", "*")]).status, 304);
    assert!(begun.elapsed() < SOON);
    let begun = Instant::now();
    let waited = get(&[("Prefer", "wait=1"), ("If-None-Match", &of_free)]);
    assert_eq!(waited.status, 304, "{waited:?}");
    assert!(begun.elapsed() >= Duration::from_secs(1));

    let begun = Instant::now();
    let known = [LONG_WAIT, ("If-None-Match", of_free.as_str())];
    let waiting = send(&service.native, "GET", path, &known, "");
    let held = service.acquire("team/x", "{\"lease_ms\":15000}");
    let told = answer(waiting);
    assert_eq!(
        (told.status, told.json()["entries"][0]["fence"].as_u64()),
        (200, held["fence"].as_u64())
    );
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    // A renewal is no change, unless it is with another lease.
    let of_held = tag(&get(&[]));
    let known = [("If-None-Match", of_held.as_str())];
    for (lease, status) in [(15_000, 304), (25_000, 200)] {
        let renewed = service.put(&hold(&held), &format!("{{\"lease_ms\":{lease}}}"));
        assert_eq!(renewed.status, 200, "{renewed:?}");
        assert_eq!(get(&known).status, status, "{lease}");
    }
}

#[test]
fn who_knows_a_value_is_told_of_its_changes() {
    rerun_if_starved(|| on_stores(values));
}

fn values(store: &Store) {
    let mut service = Service::start(store, "");
    let native = service.native.clone();
    let path = "/v1/values/limit";
    let get = |headers: &[(&str, &str)]| ask(&native, "GET", path, headers, "");
    let put = |value: &str| ask(&native, "PUT", path, &[], value);
    let first = tag(&put("1"));
    let wait_for_other =
        |known: &str| send(&native, "GET", path, &[LONG_WAIT, ("If-None-Match", known)], "");
    let same = get(&[("If-None-Match", &first)]);
    assert_eq!((same.status, same.body.as_str(), tag(&same)), (304, "", first.clone()));
    let begun = Instant::now();
    assert_eq!(get(&[("Prefer", "wait=1"), ("If-None-Match", &first)]).status, 304);
    assert!(begun.elapsed() >= Duration::from_secs(1));

    let begun = Instant::now();
    let waiting = wait_for_other(&first);
    let second = tag(&put("2"));
    let told = answer(waiting);
    assert_eq!((told.status, told.body.as_str(), tag(&told)), (200, "2", second.clone()));
    // It is gone.
    let waiting = wait_for_other(&second);
    assert_eq!(service.delete(path).status, 204);
    assert_eq!(answer(waiting).code(), "no-such-value");
    // A service that stops keeps nobody waiting.
    let third = tag(&put("3"));
    let waiting = wait_for_other(&third);
    assert_eq!(get(&[]).status, 200, "the service has taken what was sent before");
    service.terminate();
    let told = answer(waiting);
    assert_eq!((told.status, told.code().as_str()), (503, "draining"), "{told:?}");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(service.process.code(), Some(0));
}

#[test]
fn who_knows_a_counter_is_told_of_its_changes() {
    rerun_if_starved(|| on_stores(counters));
}

fn counters(store: &Store) {
    let service = Service::start(store, "");
    let path = "/v1/counters/done";
    let get = |headers: &[(&str, &str)]| ask(&service.native, "GET", path, headers, "");
    let add = |body: &str| {
        let told = service.post(path, body);
        assert_eq!(told.status, 200, "{told:?}");
    };
    let first = get(&[]);
    let of_none = tag(&first);
    assert_eq!((first.status, &first.json()["value"]), (200, &0.into()));
    let same = get(&[("If-None-Match", &of_none)]);
    assert_eq!((same.status, same.body.as_str(), tag(&same)), (304, "", of_none.clone()));
    let begun = Instant::now();
    assert_eq!(get(&[("Prefer", "wait=1"), ("If-None-Match", &of_none)]).status, 304);
    assert!(begun.elapsed() >= Duration::from_secs(1));

    let begun = Instant::now();
    let known = [LONG_WAIT, ("If-None-Match", of_none.as_str())];
    let waiting = send(&service.native, "GET", path, &known, "");
    add(r#"{"add":17}"#);
    let told = answer(waiting);
    assert_eq!((told.status, &told.json()["value"]), (200, &17.into()), "{told:?}");
    assert_ne!(tag(&told), of_none);
    assert_eq!(get(&[LONG_WAIT, ("If-None-Match", &of_none)]).status, 200, "it is another one");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}
