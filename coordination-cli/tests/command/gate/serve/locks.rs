//! The native API of locks.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coordination_tests::harness::{
    Etcd, Redis, SchedulerLag, Server, rerun_if_starved, wait_until,
};
use serde_json::{Value, json};

use crate::http::{Service, answer, ask, hold, raw, send};
use crate::{LONG, Store};

/// The same on a directory and on two servers.
pub(super) fn on_stores(check: impl Fn(&Store)) {
    check(&Store::file());
    let etcd = Etcd::one();
    check(&Store::at(format!("etcd://{}/service", etcd.node(0).address())));
    let redis = Redis::one();
    check(&Store::at(format!("redis://{}?quarantine=0", redis.node(0).address())));
}

#[test]
fn a_lock_is_acquired_renewed_and_released() {
    rerun_if_starved(|| on_stores(acquired_renewed_and_released));
}

fn acquired_renewed_and_released(store: &Store) {
    let service = Service::start(store, "");
    let granted = service.post("/v1/locks/backup", r#"{"title":"nightly on h1","lease_ms":10000}"#);
    assert_eq!(granted.status, 201, "{granted:?}");
    let body = granted.json();
    assert_eq!(granted.header("fencing-token"), Some(&*body["fence"].to_string()));
    assert_eq!(granted.header("location"), Some(&*hold(&body)));
    assert_eq!(
        [&body["name"], &body["title"], &body["client"]],
        ["backup", "nightly on h1", "anonymous"]
    );
    let left = body["expires_in_ms"].as_u64().expect("a number");
    assert!((8_000..=10_000).contains(&left), "{body}");

    let busy = service.post("/v1/locks/backup", "");
    assert_eq!((busy.status, busy.code()), (409, "busy".to_owned()), "{busy:?}");
    assert_eq!(busy.header("content-type"), Some("application/problem+json"));

    std::thread::sleep(Duration::from_millis(1_200));
    let before = service.get(&hold(&body)).json()["expires_in_ms"].as_u64();
    let renewed = service.put(&hold(&body), "");
    assert_eq!(renewed.status, 200, "{renewed:?}");
    assert!(renewed.json()["expires_in_ms"].as_u64() > before, "{renewed:?}");
    assert_eq!(renewed.json()["fence"], body["fence"]);
    let many = service.post("/v1/renew", &json!({ "ids": [body["id"], "x"] }).to_string()).json();
    assert_eq!(many["held"][0]["fence"], body["fence"]);
    assert_eq!(many["ended"][0]["reason"], "no-such-hold");

    let waiter = send(&service.native, "POST", "/v1/locks/backup", &[], r#"{"wait_ms":20000}"#);
    let waits = || service.get("/v1/locks/backup").json()["entries"][1]["state"] == "waiting";
    assert!(wait_until(LONG, waits), "{:?}", service.get("/v1/locks/backup"));
    let entries = &service.get("/v1/locks/backup").json()["entries"];
    assert_eq!([&entries[0]["state"], &entries[0]["title"]], ["held", "nightly on h1"]);
    assert_eq!(service.get("/v1/locks").json()["names"], json!(["backup"]));

    assert_eq!(service.delete(&hold(&body)).status, 204);
    let next = answer(waiter);
    assert_eq!(next.status, 201, "{next:?}");
    assert!(next.json()["fence"].as_u64() > body["fence"].as_u64());
    let again = service.delete(&hold(&body));
    assert_eq!((again.status, &again.json()["reason"]), (410, &Value::from("released")));
    assert_eq!(service.put(&hold(&body), "").status, 410);
    assert_eq!(service.delete(&hold(&next.json())).status, 204);
    assert_eq!(service.get("/v1/locks").json()["names"], json!([]));
}

#[test]
fn the_lock_is_the_same_as_the_commands() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let body = service.acquire("vol-7", "");
        let busy = store.run("--lock vol-7 --wait 0 -- true");
        assert_eq!(busy.status.code(), Some(75));
        assert_eq!(service.delete(&hold(&body)).status, 204);
        let _held = store.runs("--lock vol-7");
        assert_eq!(service.post("/v1/locks/vol-7", "").status, 409);
    });
}

#[test]
fn shared_holds_go_together() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let one = service.acquire("catalogue", r#"{"shared":true}"#);
        let other = service.acquire("catalogue", r#"{"shared":true}"#);
        assert_eq!(one["shared"], true);
        // Nothing on a directory keeps others out once the instance is dead, and promises are of one holder.
        assert_eq!(one["covered"], "none");
        assert_eq!(service.post("/v1/locks/catalogue", "").status, 409);
        for hold in [hold(&one), hold(&other)] {
            assert_eq!(service.delete(&hold).status, 204);
        }
        assert_eq!(service.post("/v1/locks/catalogue", "").status, 201);
    });
}

/// H3: the lease is over at its end, not before, and the next one gets the lock 20 ms later at most.
#[test]
fn h3_a_lease_ends_by_itself_and_never_early() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        for _ in 0..10 {
            let granted = Instant::now();
            let body = service.acquire("x", r#"{"lease_ms":300}"#);
            let answered = Instant::now();
            let next = service.acquire("x", r#"{"wait_ms":5000}"#);
            // The lease began after the request was sent, and before its answer was read.
            assert!(granted.elapsed() >= Duration::from_millis(300), "early");
            let took = answered.elapsed();
            let late = took.saturating_sub(Duration::from_millis(300));
            let bound = Duration::from_millis(120) + SchedulerLag::lately(took);
            assert!(late < bound, "late by {late:?}, and {bound:?} is the bound");
            let ended = service.put(&hold(&body), "");
            assert_eq!((ended.status, &ended.json()["reason"]), (410, &Value::from("expired")));
            assert_eq!(service.delete(&hold(&next)).status, 204);
        }
    });
}

/// H6, by sockets that close: while it waits a client leaves nothing; a half-sent request asks for nothing.
#[test]
fn h6_a_client_that_leaves_leaves_nothing() {
    rerun_if_starved(|| on_stores(leaves_nothing));
}

fn leaves_nothing(store: &Store) {
    let service = Service::start(store, "");
    let body = service.acquire("x", "");
    for _ in 0..5 {
        drop(send(&service.native, "POST", "/v1/locks/x", &[], r#"{"wait_ms":30000}"#));
    }
    let waiter = send(&service.native, "POST", "/v1/locks/x", &[], r#"{"wait_ms":30000}"#);
    let count = || service.get("/v1/locks/x").json()["entries"].as_array().map(Vec::len);
    assert!(wait_until(LONG, || count() == Some(2)), "{:?}", service.get("/v1/locks/x"));
    drop(waiter);
    assert!(wait_until(LONG, || count() == Some(1)), "a place was left");
    let text = format!(
        "POST /v1/locks/y HTTP/1.1\r\nHost: {}\r\nContent-Length: 20\r\n\r\n{{\"wait",
        service.native
    );
    drop(raw(&service.native, &text));
    assert_eq!(service.delete(&hold(&body)).status, 204);
    let names = || service.get("/v1/locks").json()["names"].clone();
    assert!(wait_until(LONG, || names() == json!([])), "{}", names());
    for gauge in ["coordination_held{", "coordination_waiting{"] {
        assert!(wait_until(LONG, || is_zero(&service, gauge)), "{}", service.get("/metrics").body);
    }
}

/// Whether there is such a gauge, and each of its series is at zero. It is lowered when the store has answered.
fn is_zero(service: &Service, gauge: &str) -> bool {
    let metrics = service.get("/metrics").body;
    let mut series = metrics.lines().filter(|line| line.starts_with(gauge)).peekable();
    series.peek().is_some() && series.all(|line| line.ends_with(" 0"))
}

#[test]
fn a_hold_tells_of_its_end() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let body = service.acquire("x", r#"{"lease_ms":60000}"#);
        let events = send(&service.native, "GET", &format!("{}/events", hold(&body)), &[], "");
        assert_eq!(service.put(&hold(&body), "").status, 200);
        assert_eq!(service.delete(&hold(&body)).status, 204);
        let told = answer(events);
        assert!(
            told.body.contains("event: held") && told.body.contains("event: ended"),
            "{told:?}"
        );
        assert!(told.body.contains("released"), "{told:?}");
        let history = service.get("/v1/history?name=x").json();
        assert_eq!(history["history"][0]["how"], "released", "{history}");
        let others = service.get("/v1/history?kind=group&name=x").json();
        assert_eq!((&others["kind"], &others["history"]), (&"group".into(), &json!([])));
    });
}

/// H6: a connection that ends after any byte of a request asks for nothing, or for something that ends with its lease.
#[test]
fn h6_a_request_that_is_cut_anywhere_leaves_nothing() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let body = r#"{"lease_ms":100}"#;
        let text = format!(
            "POST /v1/locks/cut HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n{body}",
            service.native,
            body.len()
        );
        // The gauge has a series once there was a hold, and a service that is busy grants none to a client that has gone.
        service.acquire("seen", body);
        for end in 1..=text.len() {
            drop(raw(&service.native, &text[..end]));
        }
        let names = || service.get("/v1/locks").json()["names"].clone();
        assert!(wait_until(LONG, || names() == json!([])), "{}", names());
        assert!(wait_until(LONG, || is_zero(&service, "coordination_held{")), "a hold is left");
    });
}

/// H4, without faults: of the clients of two instances one holds the lock at a time, and fences rise from one to the next.
#[test]
fn h4_clients_of_two_instances_take_turns() {
    rerun_if_starved(|| on_stores(take_turns));
}

fn take_turns(store: &Store) {
    const CLIENTS: usize = 8;
    const TURNS: usize = 15;
    let instances = [Service::start(store, ""), Service::start(store, "")];
    let inside = AtomicUsize::new(0);
    let fences = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let at = instances[client % 2].native.as_str();
            let (inside, fences) = (&inside, &fences);
            scope.spawn(move || {
                for _ in 0..TURNS {
                    let granted = ask(at, "POST", "/v1/locks/x", &[], r#"{"wait_ms":60000}"#);
                    assert_eq!(granted.status, 201, "{granted:?}");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    let fence = granted.json()["fence"].as_u64().expect("a number");
                    fences.lock().expect("nobody panics").push(fence);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    let released = ask(at, "DELETE", &hold(&granted.json()), &[], "");
                    assert_eq!(released.status, 204, "{released:?}");
                }
            });
        }
    });
    let fences = fences.into_inner().expect("nobody panics");
    assert_eq!(fences.len(), CLIENTS * TURNS);
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
}

#[test]
fn a_thousand_holds_are_renewed_by_one_request() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let held = service.acquire("x", r#"{"lease_ms":60000}"#);
        let unknown = "aaaaaaaa.aaaaaaaaaaaaaaaa.aaaaaaaaaaaaaaaaaaaaaaaaaa";
        let mut ids = vec![unknown.to_owned(); 999];
        ids.push(held["id"].as_str().expect("an id").to_owned());
        let renewed = service.post("/v1/renew", &json!({ "ids": ids }).to_string());
        assert_eq!(renewed.status, 200, "{renewed:?}");
        assert_eq!(renewed.json()["held"].as_array().map(Vec::len), Some(1));
        assert_eq!(renewed.json()["ended"][0]["reason"], "wrong-instance");
        ids.push(unknown.to_owned());
        assert_eq!(service.post("/v1/renew", &json!({ "ids": ids }).to_string()).status, 400);
    });
}

/// H6: who sends a request again, because its answer was lost, gets the same hold.
#[test]
fn h6_a_repetition_gets_the_same_hold() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let with = |key: &str, path: &str, body: &str| {
            send(&service.native, "POST", path, &[("Idempotency-Key", key)], body)
        };
        let post = |key: &str, body: &str| answer(with(key, "/v1/locks/x", body));
        let granted = post("k1", r#"{"title":"a"}"#);
        assert_eq!(granted.status, 201, "{granted:?}");
        let again = post("\"k1\"", r#"{"wait_ms":100,"title":"a"}"#);
        assert_eq!((again.status, &again.json()["id"]), (201, &granted.json()["id"]), "{again:?}");
        assert_eq!(again.json()["fence"], granted.json()["fence"]);
        let other = post("k1", r#"{"title":"b"}"#);
        assert_eq!((other.status, other.code()), (422, "key-reused".to_owned()), "{other:?}");
        assert_eq!(post("k2", "{}").code(), "busy");

        // Of two that wait with one key the later one goes on.
        let waiting = |count: usize| {
            let entries = service.get("/v1/locks/x").json()["entries"].as_array().map(Vec::len);
            entries == Some(count)
        };
        let first = with("k3", "/v1/locks/x", r#"{"wait_ms":30000}"#);
        assert!(wait_until(LONG, || waiting(2)));
        let second = with("k3", "/v1/locks/x", r#"{"wait_ms":30000}"#);
        let told = answer(first);
        assert_eq!((told.status, told.code()), (409, "superseded".to_owned()), "{told:?}");
        assert!(wait_until(LONG, || waiting(2)));
        assert_eq!(service.delete(&hold(&granted.json())).status, 204);
        let second = answer(second);
        assert_eq!(second.status, 201, "{second:?}");
        let ended = post("k1", r#"{"title":"a"}"#);
        assert_eq!((ended.status, ended.code()), (410, "ended".to_owned()), "{ended:?}");
        assert_eq!(service.delete(&hold(&second.json())).status, 204);
        // Busy settled nothing.
        assert_eq!(post("k2", "{}").status, 201);
    });
}

/// H6: who asks again while its place is kept has it still, before those who have come later.
#[test]
fn h6_a_client_that_polls_keeps_its_place() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let held = service.acquire("x", r#"{"lease_ms":60000}"#);
        let poll = |wait: u32| {
            let body = format!(r#"{{"wait_ms":{wait},"keep_place_ms":60000}}"#);
            let key = [("Idempotency-Key", "k")];
            answer(send(&service.native, "POST", "/v1/locks/x", &key, &body))
        };
        let first = poll(50);
        let kept = first.json()["place_kept_ms"].as_u64();
        assert_eq!((first.code(), kept), ("busy".to_owned(), Some(60_000)), "{first:?}");
        let later = send(&service.native, "POST", "/v1/locks/x", &[], r#"{"wait_ms":60000}"#);
        let are_there = || {
            let entries = service.get("/v1/locks/x").json()["entries"].as_array().map(Vec::len);
            entries == Some(3)
        };
        assert!(wait_until(LONG, are_there));
        assert_eq!(poll(0).code(), "busy");
        assert_eq!(service.delete(&hold(&held)).status, 204);
        let second = poll(30_000);
        assert_eq!(second.status, 201, "{second:?}");
        assert_eq!(service.delete(&hold(&second.json())).status, 204);
        assert_eq!(answer(later).status, 201);
    });
}

/// What the library counts and what the service counts are one page, and two pages of the documentation explain all of it.
#[test]
fn metrics_are_those_of_the_library_and_of_the_service() {
    rerun_if_starved(|| metrics_are_on_two_pages(&Store::file()));
}

fn metrics_are_on_two_pages(store: &Store) {
    let service = Service::start(store, "");
    let body = service.acquire("x", r#"{"lease_ms":60000}"#);
    assert_eq!(service.post("/v1/locks/x", r#"{"wait_ms":50}"#).status, 409);
    assert_eq!(service.delete(&hold(&body)).status, 204);
    let metrics = service.get("/metrics").body;
    let page = |path: &str| {
        let path = format!("{}/../docs/{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).expect("a page")
    };
    let pages = page("metrics.md") + &page("service.md");
    let family = |line: &str| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned());
    let families: Vec<_> = metrics.lines().filter_map(family).collect();
    let mut once = families.clone();
    once.dedup();
    assert_eq!(families, once, "a family stands there twice");
    for family in &families {
        let is_explained = ["", "_total"].iter().any(|end| {
            pages.lines().any(|row| row.trim().starts_with(&format!("| `{family}{end}` |")))
        });
        assert!(is_explained, "{family} is on no page");
    }
    let lock = "recipe=\"lock\",template=\"(none)\",store=\"file\"";
    for series in [
        format!("coordination_acquire_seconds_count{{{lock},outcome=\"acquired\"}} 1"),
        format!("coordination_hold_seconds_count{{{lock},outcome=\"released\"}} 1"),
        format!("coordination_held{{{lock}}} 0"),
        "coordination_sessions{state=\"connected\",store=\"file\"} 1".to_owned(),
        format!("coordination_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")),
        "coordination_client_hold_seconds_count{kind=\"lock\",end=\"released\"} 1".to_owned(),
        "coordination_http_request_seconds_count{route=\"/v1/locks/{name}\",class=\"4xx\"} 1"
            .to_owned(),
        "coordination_event_streams 0".to_owned(),
    ] {
        assert!(metrics.lines().any(|line| line == series), "{series}\n{metrics}");
    }
}
