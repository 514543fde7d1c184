//! Recipes over HTTP without a hold: values, counters and rates.

use std::time::{Duration, Instant};

use coordination_tests::harness::{rerun_if_starved, wait_until};
use serde_json::json;

use super::locks::on_stores;
use super::safety::{made, tokens};
use crate::http::{Answer, Service, ask, hold, send};
use crate::{LONG, Store};

const JSON: &str = "application/json";

#[test]
fn values_are_read_and_written() {
    rerun_if_starved(|| on_stores(values));
}

fn values(store: &Store) {
    let service = Service::start(store, "");
    let path = "/v1/values/team%2Flimit";
    let send = |method: &str, headers: &[(&str, &str)], body: &str| {
        ask(&service.native, method, path, headers, body)
    };
    let tag = |answer: &Answer| answer.header("etag").expect("a version").to_owned();
    let missing = send("GET", &[], "");
    assert_eq!((missing.status, missing.code().as_str()), (404, "no-such-value"), "{missing:?}");
    assert_eq!(send("DELETE", &[], "").code(), "no-such-value");
    let nobody = send("PUT", &[("If-Match", "\"1\"")], "1");
    assert_eq!((nobody.status, nobody.code().as_str()), (412, "version"), "{nobody:?}");

    let new = "{\"n\": 12345678901234567890123, \"list\": [1.50, null]}";
    let made = send("PUT", &[("If-None-Match", "*")], new);
    assert_eq!((made.status, made.body.as_str()), (201, ""), "{made:?}");
    let again = send("PUT", &[("If-None-Match", "*")], "2");
    assert_eq!((again.status, again.code().as_str()), (412, "version"), "{again:?}");
    let read = send("GET", &[], "");
    assert_eq!((read.status, read.body.as_str(), tag(&read)), (200, new, tag(&made)), "{read:?}");
    assert_eq!(read.header("content-type"), Some(JSON));

    let first = tag(&made);
    let second = send("PUT", &[("If-Match", &first)], "\"two\"");
    assert_eq!(second.status, 204, "{second:?}");
    assert_eq!(send("PUT", &[("If-Match", &first)], "3").code(), "version");
    assert_eq!(send("DELETE", &[("If-Match", &first)], "").code(), "version");
    let third = send("PUT", &[], " [3]\n");
    assert_eq!(third.status, 204, "{third:?}");
    assert_ne!(tag(&second), tag(&third));
    assert_eq!(send("GET", &[], "").body, "[3]");
    assert_eq!(send("DELETE", &[("If-Match", &tag(&third))], "").status, 204);
    assert_eq!(send("GET", &[], "").status, 404);
    assert_eq!(send("DELETE", &[("If-Match", &first)], "").code(), "no-such-value");

    let deep = "[".repeat(33) + &"]".repeat(33);
    let long = format!("\"{}\"", "x".repeat(256 * 1024));
    for (headers, body) in [
        (&[][..], ""),
        (&[], "{"),
        (&[], "1 2"),
        (&[], &deep),
        (&[], &long),
        (&[("If-Match", "17")], "1"),
        (&[("If-Match", "\"1\""), ("If-None-Match", "*")], "1"),
        (&[("If-None-Match", "\"1\"")], "1"),
    ] {
        let refused = send("PUT", headers, body);
        assert_eq!((refused.status, refused.code().as_str()), (400, "invalid"), "{refused:?}");
    }
    let too_large = send("PUT", &[], &format!("\"{}\"", "x".repeat(258 * 1024)));
    assert_eq!(too_large.code(), "too-large");
    assert_eq!(send("GET", &[], "").status, 404, "nothing of it was written");
    let promise = ask(&service.native, "GET", "/v1/values/.coordination/promise/x", &[], "");
    assert_eq!(promise.code(), "name", "what the service keeps for itself is not shown");
}

#[test]
fn counters_count() {
    rerun_if_starved(|| on_stores(counters));
}

fn counters(store: &Store) {
    let service = Service::start(store, "");
    let ask = |method: &str, body: &str| ask(&service.native, method, "/v1/counters/n", &[], body);
    assert_eq!(ask("GET", "").json(), json!({ "value": 0 }));
    assert_eq!(ask("POST", "").json(), json!({ "value": 1 }));
    assert_eq!(ask("POST", "{\"add\":41}").json(), json!({ "value": 42 }));
    assert_eq!(ask("POST", "{\"add\":-50}").json(), json!({ "value": -8 }));
    for wrong in ["{\"add\":1.5}", "{\"add\":\"1\"}", "{\"sub\":1}", "[1]"] {
        assert_eq!(ask("POST", wrong).code(), "invalid", "{wrong}");
    }
    let over = ask("POST", "{\"add\":-9223372036854775808}");
    assert_eq!((over.status, over.code().as_str()), (400, "invalid"), "{over:?}");
    assert_eq!(ask("GET", "").json(), json!({ "value": -8 }));
    assert_eq!(ask("DELETE", "").status, 405);
    // A request that is sent again counts once, also if others have counted meanwhile.
    let keyed = |path: &str, body: &str| {
        let key = [("Idempotency-Key", "k")];
        crate::http::ask(&service.native, "POST", path, &key, body)
    };
    let once = "{\"add\":8}";
    assert_eq!(keyed("/v1/counters/n", once).json(), json!({ "value": 0 }));
    assert_eq!(ask("POST", "").json(), json!({ "value": 1 }));
    assert_eq!(keyed("/v1/counters/n", once).json(), json!({ "value": 0 }));
    assert_eq!(ask("GET", "").json(), json!({ "value": 1 }));
    for (path, body) in
        [("/v1/counters/n", "{\"add\":9}"), ("/v1/counters/m", once), ("/v1/locks/n", "")]
    {
        let other = keyed(path, body);
        assert_eq!((other.status, other.code().as_str()), (422, "key-reused"), "{other:?}");
    }
    let rate = keyed("/v1/rates/n", "{\"limits\":[{\"permits\":1,\"per_ms\":1}]}");
    assert_eq!((rate.status, rate.code().as_str()), (501, "unsupported"), "{rate:?}");
}

#[test]
fn rates_are_kept() {
    rerun_if_starved(|| on_stores(rates));
}

fn rates(store: &Store) {
    let boss = made(store, "boss", "*", "admin");
    let user = made(store, "user", "*", "use");
    let file = tokens(store, &[boss.clone(), user.clone()]);
    let service = Service::start(store, &format!("--tokens {}", file.display()));
    let bearer = |token: &str| format!("Bearer {token}");
    let (boss, user) = (bearer(&boss.0), bearer(&user.0));
    let path = "/v1/rates/api";
    let ask_as = |who: &str, method: &str, body: &str| {
        ask(&service.native, method, path, &[("Authorization", who)], body)
    };
    let take = |body: &str| ask_as(&user, "POST", body);
    let limits = |more: &str| format!("{{\"limits\":[{{\"permits\":5,\"per_ms\":60000}}]{more}}}");
    for _ in 0..3 {
        let granted = take(&limits(""));
        assert_eq!(granted.status, 200, "{granted:?}");
        let told = granted.json();
        assert_eq!([&told["granted"], &told["usable_for_ms"]], [&json!(1), &json!(null)]);
    }
    assert_eq!(take(&limits(",\"permits\":2")).json()["granted"], json!(2));
    let denied = take(&limits(""));
    assert_eq!((denied.status, denied.code().as_str()), (429, "rate-limited"), "{denied:?}");
    let wait = denied.json()["retry_after_ms"].as_u64().expect("a time");
    let seconds: u64 = denied.header("retry-after").and_then(|text| text.parse().ok()).expect("it");
    assert!(wait > 0 && wait <= 60_400 && seconds == wait.div_ceil(1_000), "{denied:?}");
    // A wait that would be too long fails at once.
    let begun = Instant::now();
    assert_eq!(take(&limits(",\"wait_ms\":5000")).code(), "rate-limited");
    assert!(begun.elapsed() < Duration::from_secs(4));

    let other = "{\"limits\":[{\"permits\":10,\"per_ms\":1000}],\"margin_ms\":30000}";
    assert_eq!((take(other).status, take(other).code()), (409, "mismatch".to_owned()));
    assert_eq!(ask_as(&user, "PUT", other).code(), "forbidden");
    assert_eq!(ask_as(&boss, "PUT", other).status, 204);
    assert_eq!(take(&limits("")).code(), "mismatch");
    let usable =
        "{\"limits\":[{\"permits\":10,\"per_ms\":1000}],\"margin_ms\":30000,\"wait_ms\":120000}";
    let begun = Instant::now();
    let waiting = send(&service.native, "POST", path, &[("Authorization", &user)], usable);
    let granted = crate::http::answer(waiting);
    let told = granted.json();
    assert_eq!(granted.status, 200, "{granted:?}");
    assert!(told["usable_for_ms"].as_u64().is_some_and(|left| left <= 30_000), "{told}");
    let waited = told["waited_ms"].as_u64().expect("a time");
    assert!(u128::from(waited) <= begun.elapsed().as_millis(), "{told}");

    for (wrong, at) in [
        ("{}", "limits"),
        ("{\"limits\":[]}", "limits"),
        ("{\"limits\":[{\"permits\":0,\"per_ms\":1}]}", "limits[0].permits"),
        ("{\"limits\":[{\"permits\":1,\"per_ms\":86400001}]}", "limits[0].per_ms"),
        ("{\"limits\":[{\"permits\":10001,\"per_ms\":1000}]}", "limits[0].permits"),
        (
            "{\"limits\":[{\"permits\":1000001,\"per_ms\":1000}],\"paced\":true}",
            "limits[0].permits",
        ),
        ("{\"limits\":[{\"permits\":1}]}", "limits[0].per_ms"),
        ("{\"limits\":[{\"permits\":1,\"per_ms\":1,\"x\":1}]}", "limits[0].x"),
    ] {
        let refused = take(wrong);
        assert_eq!((refused.status, refused.code().as_str()), (400, "invalid"), "{refused:?}");
        assert_eq!(refused.json()["errors"][0]["field"], json!(at), "{refused:?}");
    }
    let never = take("{\"limits\":[{\"permits\":1,\"per_ms\":1}],\"permits\":2}");
    assert_eq!((never.status, never.code().as_str()), (400, "invalid"), "{never:?}");
    let paced = "{\"limits\":[{\"permits\":1000000,\"per_ms\":1000}],\"paced\":true}";
    assert_eq!(ask_as(&boss, "PUT", paced).status, 204);
    let metrics = ask(&service.native, "GET", "/metrics", &[("Authorization", &boss)], "").body;
    let series = "coordination_rate_permits_total{outcome=\"granted\"} 6";
    assert!(metrics.lines().any(|line| line == series), "{metrics}");
}

#[test]
fn a_job_is_claimed_once_per_period() {
    rerun_if_starved(|| on_stores(once));
}

fn once(store: &Store) {
    let service = Service::start(store, "");
    let job = "{\"period_ms\":3600000}";
    let claim = |name: &str| service.post(&format!("/v1/once/{name}"), job);
    let first = claim("team/report");
    let told = first.json();
    assert_eq!((first.status, &told["name"]), (201, &json!("team/report")), "{first:?}");
    assert_eq!(first.header("fencing-token"), Some(told["fence"].to_string().as_str()));
    let spent = claim("team/report");
    assert_eq!((spent.status, spent.code().as_str()), (409, "spent"), "{spent:?}");
    let due = spent.json()["due_in_ms"].as_u64().expect("a time");
    assert!((3_500_000..=3_600_000).contains(&due), "{spent:?}");
    assert_eq!(claim("team/other").status, 201, "it is another job");

    // The job could not be done: somebody else may try, and his claim has a larger fence.
    assert_eq!(service.get(&hold(&told)).status, 404, "nobody holds anything");
    assert_eq!(service.delete(&hold(&told)).status, 204);
    let again = service.delete(&hold(&told));
    assert_eq!((again.status, again.code().as_str()), (410, "ended"), "{again:?}");
    let second = claim("team/report").json();
    assert!(second["fence"].as_u64() > told["fence"].as_u64(), "{second}");
    // The command has the same job under the same name.
    let reset = store.coordination(["reset", "team/report"]).status();
    assert!(reset.expect("it was built").success());
    let third = claim("team/report");
    assert_eq!(third.status, 201, "{third:?}");
    let late = service.delete(&hold(&second));
    assert_eq!((late.status, late.code().as_str()), (410, "ended"), "somebody claimed after it");

    // A repetition is told of the same claim, and one with other settings of none.
    let keyed = |body: &str| {
        ask(&service.native, "POST", "/v1/once/keyed", &[("Idempotency-Key", "k")], body)
    };
    let claimed = keyed(job);
    assert_eq!(claimed.status, 201, "{claimed:?}");
    assert_eq!(keyed(job).json(), claimed.json());
    assert_eq!(keyed("{\"period_ms\":3600001}").code(), "key-reused");
    // When it was given back, somebody else may do the job.
    assert_eq!(service.delete(&hold(&claimed.json())).status, 204);
    assert_eq!(claim("keyed").status, 201);
    let late = keyed(job);
    assert_eq!((late.status, late.code().as_str()), (410, "ended"), "{late:?}");

    // Aligned ones are soon over, by the clock on the wall.
    let short = "{\"period_ms\":100,\"aligned\":true,\"at_least_ms\":0}";
    assert_eq!(service.post("/v1/once/short", short).status, 201);
    assert!(wait_until(LONG, || service.post("/v1/once/short", short).status == 201));
}
