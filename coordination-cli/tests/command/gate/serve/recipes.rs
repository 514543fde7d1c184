//! The other recipes over HTTP: what each has of its own, and that their holds are like those of locks.

use std::time::Duration;

use coordination_tests::harness::{rerun_if_starved, wait_until};
use serde_json::{Value, json};

use super::locks::on_stores;
use super::safety::{made, tokens};
use crate::http::{Answer, Service, answer, ask, hold, send};
use crate::{LONG, Store};

/// An instance with an administrator.
struct Site {
    service: Service,
    header: String,
    words: String,
}

impl Site {
    fn start(store: &Store) -> Self {
        let boss = made(store, "boss", "*", "admin");
        let file = tokens(store, std::slice::from_ref(&boss));
        let (words, header) =
            (format!("--tokens {}", file.display()), format!("Bearer {}", boss.0));
        Self { service: Service::start(store, &words), header, words }
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        self.ask_at(&self.service, method, path, body)
    }

    fn ask_at(&self, service: &Service, method: &str, path: &str, body: &str) -> Answer {
        ask(&service.native, method, path, &[("Authorization", &self.header)], body)
    }

    fn granted(&self, path: &str, body: &str) -> Value {
        let answer = self.ask("POST", path, body);
        assert_eq!(answer.status, 201, "{path} {body}: {answer:?}");
        answer.json()
    }

    fn code(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let answer = self.ask(method, path, body);
        (answer.status, answer.code())
    }

    fn entries(&self, path: &str) -> Value {
        self.ask("GET", path, "").json()["entries"].clone()
    }

    fn release(&self, body: &Value) {
        let released = self.ask("DELETE", &hold(body), "");
        assert_eq!(released.status, 204, "{released:?}");
    }
}

/// Whom a hold of a recipe other than the lock keeps out, once its instance is dead.
fn covered(store: &Store) -> &'static str {
    if store.url.starts_with("file:") { "none" } else { "all" }
}

fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

#[test]
fn permits_of_a_semaphore_are_held() {
    rerun_if_starved(|| on_stores(permits_are_held));
}

fn permits_are_held(store: &Store) {
    let site = Site::start(store);
    let two = site.granted("/v1/semaphores/up/load", r#"{"permits":3,"count":2,"title":"two"}"#);
    assert_eq!(
        [&two["kind"], &two["name"], &two["covered"], &two["slots"]],
        [&json!("semaphore"), &json!("up/load"), &json!(covered(store)), &json!([0, 1])]
    );
    assert!(two["fence"].as_u64().is_some() && two.get("shared").is_none(), "{two}");
    let one = site.granted("/v1/semaphores/up/load", r#"{"permits":3}"#);
    assert_eq!(one["slots"], json!([2]));
    let path = "/v1/semaphores/up/load";
    assert_eq!(site.code("POST", path, r#"{"permits":3}"#), refused(409, "busy"));
    let other = site.ask("POST", path, r#"{"permits":4}"#);
    assert_eq!((other.status, other.code()), refused(409, "mismatch"));
    assert!(other.body.contains("3 permits") && other.body.contains("4 permits"), "{other:?}");

    let header = [("Authorization", site.header.as_str())];
    let wait = r#"{"permits":3,"count":2,"wait_ms":20000}"#;
    let waiter = send(&site.service.native, "POST", path, &header, wait);
    assert!(wait_until(LONG, || site.entries(path)[2]["state"] == "waiting"));
    let entries = site.entries(path);
    assert_eq!([&entries[0]["title"], &entries[0]["slots"]], [&json!("two"), &json!([0, 1])]);
    assert_eq!([&entries[2]["wants"], &entries[2]["slots"]], [&json!(2), &json!([])]);
    assert_eq!(
        site.ask("GET", "/v1/semaphores?prefix=up/", "").json()["names"],
        json!(["up/load"])
    );
    assert_eq!(site.ask("GET", "/v1/locks", "").json()["names"], json!([]), "it is no lock");
    assert_eq!(site.ask("PUT", &hold(&two), "").status, 200);
    site.release(&two);
    let next = answer(waiter);
    assert_eq!((next.status, &next.json()["slots"]), (201, &json!([0, 1])), "{next:?}");
    assert!(next.json()["fence"].as_u64() > two["fence"].as_u64());

    // A request that is sent again gets the same permit; the key stands for nothing else.
    let header = [("Authorization", site.header.as_str()), ("Idempotency-Key", "k")];
    let post = |path: &str, body: &str| ask(&site.service.native, "POST", path, &header, body);
    site.release(&next.json());
    let first = post(path, r#"{"permits":3}"#);
    let again = post(path, r#"{"permits":3,"wait_ms":9}"#);
    assert_eq!((first.status, again.status), (201, 201), "{first:?} {again:?}");
    assert_eq!(first.json()["id"], again.json()["id"]);
    for (path, body) in [(path, r#"{"permits":3,"count":2}"#), ("/v1/locks/up/load", "")] {
        assert_eq!(post(path, body).code(), "key-reused", "{path} {body}");
    }
    site.release(&first.json());

    // A shorter lease than the others', which ends by itself.
    site.release(&one);
    let short = site.granted(path, r#"{"permits":3,"lease_ms":300}"#);
    let ends = || site.ask("PUT", &hold(&short), r#"{"lease_ms":300}"#).status == 410;
    std::thread::sleep(Duration::from_millis(400));
    assert!(ends());
    assert!(wait_until(LONG, || site.entries(path) == json!([])));

    let history = site.ask("GET", "/v1/history?kind=semaphore&name=up/load", "").json();
    let how: Vec<_> = history["history"].as_array().expect("a list").iter().collect();
    assert_eq!(
        (how.len(), &how[0]["how"], &how[4]["how"]),
        (5, &json!("released"), &json!("expired"))
    );
    let metrics = site.ask("GET", "/metrics", "").body;
    let series = "coordination_client_hold_seconds_count{kind=\"semaphore\",end=\"released\"} 4";
    assert!(metrics.lines().any(|line| line == series), "{metrics}");
}

#[test]
fn a_semaphore_is_resized() {
    rerun_if_starved(|| on_stores(resized));
}

fn resized(store: &Store) {
    let site = Site::start(store);
    let path = "/v1/semaphores/x";
    let one = site.granted(path, r#"{"permits":1}"#);
    let resized = site.ask("PUT", path, r#"{"permits":2}"#);
    assert_eq!((resized.status, resized.body.as_str()), (204, ""), "{resized:?}");
    assert_eq!(site.code("POST", path, r#"{"permits":1}"#), refused(409, "mismatch"));
    let other = site.granted(path, r#"{"permits":2}"#);
    assert_eq!([&one["slots"], &other["slots"]], [&json!([0]), &json!([1])]);
    assert_eq!(site.code("PUT", path, "{}"), refused(400, "invalid"));
    assert_eq!(site.code("PUT", path, r#"{"permits":10001}"#), refused(400, "invalid"));
    let lock = site.ask("PUT", "/v1/locks/x", "{}");
    assert_eq!(lock.status, 405, "a lock has no settings");
}

#[test]
fn what_is_held_is_taken_away_by_its_fence() {
    rerun_if_starved(|| on_stores(taken_away));
}

/// By the instance that granted it, and by another one.
fn taken_away(store: &Store) {
    let site = Site::start(store);
    let other = Service::start(store, &site.words);
    for (path, body) in [
        ("/v1/semaphores/x", r#"{"permits":1,"title":"one"}"#),
        ("/v1/limiters/x", r#"{"title":"one"}"#),
        ("/v1/elections/x", r#"{"title":"one"}"#),
    ] {
        for (at, reason) in [(&site.service, "broken"), (&other, "lost")] {
            let one = site.granted(path, body);
            let by_fence = format!("{path}?fence={}", one["fence"]);
            assert_eq!(site.code("DELETE", path, ""), refused(428, "fence-missing"));
            let never = format!("{path}?fence=1000000000");
            assert_eq!(site.code("DELETE", &never, ""), refused(409, "changed"));
            assert_eq!(site.ask("GET", &hold(&one), "").status, 200, "nothing was done");
            let broken = site.ask_at(at, "DELETE", &by_fence, "");
            assert_eq!(broken.status, 200, "{broken:?}");
            assert_eq!(broken.json()["broken"]["fence"], one["fence"]);
            let ended = || site.ask("PUT", &hold(&one), "");
            assert!(wait_until(LONG, || ended().status == 410), "{path}: {:?}", ended());
            assert_eq!(ended().json()["reason"], json!(reason), "{path}");
            assert_eq!(site.code("DELETE", &by_fence, ""), refused(409, "changed"));
        }
    }
}

#[test]
fn a_leader_is_elected_and_proclaims() {
    rerun_if_starved(|| on_stores(elected));
}

fn elected(store: &Store) {
    let site = Site::start(store);
    let path = "/v1/elections/scheduler";
    let nobody = site.ask("GET", path, "").json();
    assert_eq!(
        [&nobody["leader"], &nobody["term"], &nobody["entries"]],
        [&Value::Null, &Value::Null, &json!([])]
    );
    let body = r#"{"value":{"url":"http://h1:8080","tags":[1,null]},"title":"h1"}"#;
    let leads = site.granted(path, body);
    assert_eq!([&leads["kind"], &leads["covered"]], [&json!("election"), &json!(covered(store))]);
    assert_eq!(site.code("POST", path, "{}"), refused(409, "busy"));
    let seen = site.ask("GET", path, "").json();
    assert_eq!([&seen["term"], &seen["value"]["tags"]], [&leads["fence"], &json!([1, null])]);
    assert!(seen["leader"].is_string(), "{seen}");

    let header = [("Authorization", site.header.as_str())];
    let wait = r#"{"value":"h2","wait_ms":20000}"#;
    let waiter = send(&site.service.native, "POST", path, &header, wait);
    assert!(wait_until(LONG, || site.entries(path)[1]["state"] == "waiting"));
    let proclaimed = site.ask("PUT", &hold(&leads), r#"{"value":"ready","lease_ms":15000}"#);
    assert_eq!((proclaimed.status, &proclaimed.json()["lease_ms"]), (200, &json!(15_000)));
    assert_eq!(proclaimed.json()["fence"], leads["fence"], "the term stays the same");
    let entries = site.entries(path);
    assert_eq!([&entries[0]["state"], &entries[0]["value"]], ["leading", "ready"]);
    assert_eq!([&entries[0]["title"], &entries[1]["value"]], ["h1", "h2"]);
    let refusal =
        site.ask("PUT", &hold(&leads), &format!(r#"{{"value":"{}"}}"#, "x".repeat(4_095)));
    assert_eq!((refusal.status, refusal.code()), refused(400, "invalid"));
    assert_eq!(site.ask("GET", "/v1/elections", "").json()["names"], json!(["scheduler"]));

    let many = json!({ "ids": [leads["id"]] }).to_string();
    assert_eq!(site.ask("POST", "/v1/renew", &many).json()["held"][0]["fence"], leads["fence"]);
    site.release(&leads);
    let next = answer(waiter);
    assert_eq!(next.status, 201, "{next:?}");
    assert!(next.json()["fence"].as_u64() > leads["fence"].as_u64());
    assert_eq!(site.ask("GET", path, "").json()["value"], "h2");
    assert_eq!(site.ask("PUT", &hold(&leads), r#"{"value":1}"#).status, 410);
    let lock = site.granted("/v1/locks/scheduler", "");
    assert_eq!(site.code("PUT", &hold(&lock), r#"{"value":1}"#), refused(400, "invalid"));
    let broken = site.ask("DELETE", &format!("{path}?fence={}", next.json()["fence"]), "");
    assert_eq!(broken.status, 200, "{broken:?}");
    assert_eq!(site.entries(path), json!([]));
}

#[test]
fn several_locks_are_held_together_or_not_at_all() {
    rerun_if_starved(|| on_stores(held_together));
}

fn held_together(store: &Store) {
    let site = Site::start(store);
    let one = site.granted("/v1/locks/b", "");
    assert_eq!(site.code("POST", "/v1/locks", r#"{"names":["c","b","a"]}"#), refused(409, "busy"));
    // None of them is kept.
    for name in ["a", "c"] {
        let path = format!("/v1/locks/{name}");
        assert!(wait_until(LONG, || site.entries(&path) == json!([])), "{name}");
    }
    let header = [("Authorization", site.header.as_str())];
    let wait = r#"{"names":["c","b","a","b"],"wait_ms":20000,"title":"three"}"#;
    let waiter = send(&site.service.native, "POST", "/v1/locks", &header, wait);
    assert!(wait_until(LONG, || site.entries("/v1/locks/b")[1]["state"] == "waiting"));
    site.release(&one);
    let granted = answer(waiter);
    assert_eq!((granted.status, granted.header("fencing-token")), (201, None), "{granted:?}");
    let three = granted.json();
    let promised = if store.url.starts_with("file:") { "http" } else { "all" };
    assert_eq!(
        [&three["kind"], &three["names"], &three["shared"], &three["covered"]],
        [&json!("lock"), &json!(["a", "b", "c"]), &json!(false), &json!(promised)]
    );
    assert!(three.get("fence").is_none() && three.get("name").is_none(), "{three}");
    for (name, fence) in ["a", "b", "c"].into_iter().zip(0..) {
        let entries = site.entries(&format!("/v1/locks/{name}"));
        let expected = [&json!("three"), &three["fences"][fence]];
        assert_eq!([&entries[0]["title"], &entries[0]["fence"]], expected, "{name}");
    }
    let many = json!({ "ids": [three["id"]] }).to_string();
    assert_eq!(site.ask("POST", "/v1/renew", &many).json()["held"][0]["fences"], three["fences"]);
    // Of one that is taken away, all are.
    let path = format!("/v1/locks/b?fence={}", three["fences"][1]);
    assert_eq!(site.ask("DELETE", &path, "").status, 200);
    let ended = site.ask("PUT", &hold(&three), "");
    assert_eq!((ended.status, &ended.json()["reason"]), (410, &json!("broken")));
    for name in ["a", "b", "c"] {
        let history = site.ask("GET", &format!("/v1/history?name={name}"), "").json();
        let last = history["history"].as_array().and_then(|rows| rows.last().cloned());
        assert_eq!(last.expect("one")["how"], "broken", "{name}");
        let path = format!("/v1/locks/{name}");
        assert!(wait_until(LONG, || site.entries(&path) == json!([])), "{name}");
    }

    let shares = r#"{"names":["a","b"],"shared":true}"#;
    let [one, other] = [site.granted("/v1/locks", shares), site.granted("/v1/locks", shares)];
    assert_eq!(one["shared"], true);
    assert_eq!(site.code("POST", "/v1/locks/a", ""), refused(409, "busy"));
    site.release(&one);
    site.release(&other);
    assert_eq!(site.ask("GET", "/v1/locks", "").json()["names"], json!([]));
}

#[test]
fn slots_of_a_limiter_are_held_and_stood_by_for() {
    rerun_if_starved(|| on_stores(slots_are_held));
}

fn slots_are_held(store: &Store) {
    let site = Site::start(store);
    let path = "/v1/limiters/nightly";
    let works = site.granted(path, r#"{"standby":1,"title":"works"}"#);
    assert_eq!(
        [&works["kind"], &works["slots"], &works["covered"]],
        [&json!("limiter"), &json!([1]), &json!(covered(store))]
    );
    assert_eq!(site.code("POST", path, r#"{"standby":1}"#), refused(409, "busy"));
    assert_eq!(site.code("POST", path, r#"{"standby":2}"#), refused(409, "mismatch"));
    let header = [("Authorization", site.header.as_str())];
    let wait = r#"{"standby":1,"wait_ms":20000}"#;
    let waiter = send(&site.service.native, "POST", path, &header, wait);
    assert!(wait_until(LONG, || site.entries(path)[1]["state"] == "standby"));
    let entries = site.entries(path);
    assert_eq!([&entries[0]["state"], &entries[0]["title"]], ["held", "works"]);
    assert!(entries[1]["waiting_ms"].is_u64(), "{entries}");
    assert_eq!(site.code("POST", path, wait), refused(409, "standby-full"));
    assert_eq!(site.ask("GET", "/v1/limiters", "").json()["names"], json!(["nightly"]));
    site.release(&works);
    let next = answer(waiter);
    assert_eq!((next.status, &next.json()["slots"]), (201, &json!([1])), "{next:?}");
    assert!(next.json()["fence"].as_u64() > works["fence"].as_u64());

    // More slots for all who ask from now on.
    assert_eq!(site.code("PUT", path, "{}"), refused(400, "invalid"));
    assert_eq!(site.ask("PUT", path, r#"{"slots":2,"standby":1}"#).status, 204);
    assert_eq!(site.code("POST", path, r#"{"standby":1}"#), refused(409, "mismatch"));
    let second = site.granted(path, r#"{"slots":2,"standby":1}"#);
    assert_eq!(second["slots"], json!([2]));
    let broken = site.ask("DELETE", &format!("{path}?fence={}", second["fence"]), "");
    assert_eq!(broken.status, 200, "{broken:?}");
    site.release(&next.json());
}

#[test]
fn the_latest_of_a_limiter_wins() {
    rerun_if_starved(|| on_stores(latest_wins));
}

fn latest_wins(store: &Store) {
    let site = Site::start(store);
    let path = "/v1/limiters/build";
    let works = site.granted(path, r#"{"latest_wins":true}"#);
    let header = [("Authorization", site.header.as_str())];
    let stands_by = |title: &str| {
        let wait = format!(r#"{{"latest_wins":true,"wait_ms":20000,"title":"{title}"}}"#);
        send(&site.service.native, "POST", path, &header, &wait)
    };
    let first = stands_by("first");
    assert!(wait_until(LONG, || site.entries(path)[1]["state"] == "standby"));
    let second = stands_by("second");
    let told = answer(first);
    assert_eq!((told.status, told.code()), refused(409, "replaced"), "{told:?}");
    site.release(&works);
    let next = answer(second);
    assert_eq!((next.status, &next.json()["title"]), (201, &json!("second")), "{next:?}");
}

#[test]
fn members_join_a_group_and_leave_it() {
    rerun_if_starved(|| on_stores(members_join));
}

fn members_join(store: &Store) {
    let site = Site::start(store);
    let path = "/v1/groups/backups";
    assert_eq!(site.code("GET", path, ""), refused(404, "group-missing"));
    let strict = r#"{"member":"disk-1","create":false}"#;
    assert_eq!(site.code("POST", path, strict), refused(404, "group-missing"));
    let body = r#"{"member":"disk-1","capabilities":{"size":4},"title":"one"}"#;
    let one = site.granted(path, body);
    assert_eq!(
        [&one["kind"], &one["member"], &one["covered"]],
        [&json!("group"), &json!("disk-1"), &json!(covered(store))]
    );
    assert_eq!(site.code("POST", path, body), refused(409, "member-exists"));
    let instance = Service::start(store, &site.words);
    let elsewhere = site.ask_at(&instance, "POST", path, body);
    assert_eq!((elsewhere.status, elsewhere.code()), refused(409, "member-exists"));
    let other = site.ask_at(&instance, "POST", path, r#"{"member":"disk-2"}"#);
    assert_eq!(other.status, 201, "{other:?}");
    assert!(other.json()["fence"].as_u64() > one["fence"].as_u64());

    let entries = site.entries(path);
    assert_eq!([&entries[0]["state"], &entries[0]["who"]], ["member", "disk-1"]);
    assert_eq!(
        [&entries[0]["title"], &entries[0]["capabilities"]],
        [&json!("one"), &json!({"size": 4})]
    );
    assert_eq!([&entries[1]["who"], &entries[1]["capabilities"]], [&json!("disk-2"), &json!(null)]);
    let updated = site.ask("PUT", &hold(&one), r#"{"capabilities":{"size":5}}"#);
    assert_eq!((updated.status, &updated.json()["fence"]), (200, &one["fence"]));
    assert_eq!(site.entries(path)[0]["capabilities"]["size"], 5);

    assert_eq!(site.code("DELETE", path, ""), refused(409, "group-not-empty"));
    assert_eq!(site.code("DELETE", &format!("{path}?fence=1"), ""), refused(400, "invalid"));
    let absent = site.ask("DELETE", &format!("{path}?member=x"), "");
    assert_eq!((absent.status, absent.code()), refused(409, "changed"));
    // Whoever granted it, this instance or another one.
    for (member, at, body) in
        [("disk-1", &site.service, &one), ("disk-2", &instance, &other.json())]
    {
        let taken = site.ask("DELETE", &format!("{path}?member={member}"), "");
        assert_eq!(
            (taken.status, &taken.json()["broken"]["who"]),
            (200, &json!(member)),
            "{taken:?}"
        );
        let ended = || site.ask_at(at, "PUT", &hold(body), "").status == 410;
        assert!(wait_until(LONG, ended), "{member}");
    }
    assert_eq!(site.entries(path), json!([]));
    assert_eq!(
        site.ask("GET", "/v1/groups", "").json()["names"],
        json!(["backups"]),
        "it is empty"
    );
    assert_eq!(site.ask("DELETE", path, "").status, 204);
    assert_eq!(site.code("DELETE", path, ""), refused(404, "group-missing"));
    assert_eq!([201, 204], [site.ask("PUT", path, "").status, site.ask("PUT", path, "").status]);
    let again = site.granted(path, strict);
    site.release(&again);
    assert!(again["fence"].as_u64() > other.json()["fence"].as_u64(), "incarnations rise");
}
