//! H9 of what nobody holds: values, counters, rates, events and queues; and that no secret is in what the service writes or shows.

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use coordination::blocking;
use coordination_tests::harness::{rerun_if_starved, wait_until};
use rustix::process::Signal;

use super::safety::{made, tokens};
use crate::http::{Answer, Service, answer, ask, hold, send};
use crate::{LONG, Store};

/// A method, a path, a body, and the statuses for `read`, `use` and `admin`. Nobody gets 401.
type Row = (&'static str, &'static str, &'static str, [u16; 3]);

const NATIVE: &[Row] = &[
    ("GET", "/v1/values", "", [200, 200, 200]),
    ("GET", "/v1/values/in/a", "", [404, 404, 404]),
    ("GET", "/v1/values/out", "", [403, 403, 403]),
    ("PUT", "/v1/values/in/a", "1", [403, 204, 204]),
    ("PUT", "/v1/values/out", "1", [403, 403, 403]),
    ("DELETE", "/v1/values/in/a", "", [403, 204, 404]),
    ("DELETE", "/v1/values/out", "", [403, 403, 403]),
    ("GET", "/v1/counters", "", [200, 200, 200]),
    ("GET", "/v1/counters/in/a", "", [200, 200, 200]),
    ("GET", "/v1/counters/out", "", [403, 403, 403]),
    ("POST", "/v1/counters/in/a", "", [403, 200, 200]),
    ("POST", "/v1/counters/out", "", [403, 403, 403]),
    ("POST", "/v1/rates/in/a", r#"{"limits":[{"permits":9,"per_ms":9}]}"#, [403, 200, 200]),
    ("POST", "/v1/rates/out", r#"{"limits":[{"permits":9,"per_ms":9}]}"#, [403, 403, 403]),
    ("PUT", "/v1/rates/in/a", r#"{"limits":[{"permits":9,"per_ms":9}]}"#, [403, 403, 204]),
    ("PUT", "/v1/rates/out", r#"{"limits":[{"permits":9,"per_ms":9}]}"#, [403, 403, 403]),
    ("GET", "/v1/rates", "", [200, 200, 200]),
    ("GET", "/v1/rates/in/a", "", [200, 200, 200]),
    ("GET", "/v1/rates/out", "", [403, 403, 403]),
    ("GET", "/v1/once", "", [200, 200, 200]),
    ("GET", "/v1/once/in/a", "", [200, 200, 200]),
    ("GET", "/v1/once/out", "", [403, 403, 403]),
    ("POST", "/v1/once/in/a", r#"{"period_ms":1}"#, [403, 201, 201]),
    ("POST", "/v1/once/out", r#"{"period_ms":1}"#, [403, 403, 403]),
];

/// After `/v2/queues/`, of the project `in`; of another one each status is 403.
const QUEUES: &[Row] = &[
    ("PUT", "q", "", [204, 204, 204]),
    ("HEAD", "q", "", [204, 204, 204]),
    ("GET", "q/stats", "", [200, 200, 200]),
    ("POST", "q/messages", r#"{"messages":[{"body":1}]}"#, [403, 201, 201]),
    ("GET", "q/messages", "", [200, 200, 200]),
    ("GET", "q/messages/none", "", [404, 404, 404]),
    ("DELETE", "q/messages/none", "", [403, 204, 204]),
    ("DELETE", "q/messages?ids=none", "", [403, 204, 204]),
    ("DELETE", "q/messages?pop=1", "", [403, 200, 200]),
    ("POST", "q/claims", "", [403, 204, 204]),
    ("GET", "q/claims/none", "", [403, 404, 404]),
    ("PATCH", "q/claims/none", "", [403, 404, 404]),
    ("DELETE", "q/claims/none", "", [403, 204, 204]),
];

/// H9: what is not held asks for its right, too, by nobody and by each right, inside and outside of the token's prefix.
#[test]
fn h9_what_nobody_holds_asks_for_its_right() {
    rerun_if_starved(|| {
        let store = Store::file();
        let spaces = [("in/", "native"), ("zaqar/in/", "zaqar")];
        let rights = ["read", "use", "admin"];
        let [native, queues] = spaces.map(|(space, of)| {
            rights.map(|right| made(&store, &format!("{of}-{right}"), space, right))
        });
        let file = tokens(&store, &[native.clone(), queues.clone()].concat());
        let service = Service::start(&store, &format!("--tokens {}", file.display()));
        let by = |at: &str, token: Option<&str>, row: &Row, path: &str, project: &str| {
            let bearer = token.map(|token| format!("Bearer {token}"));
            let token = bearer.iter().map(|bearer| ("Authorization", bearer.as_str()));
            let headers: Vec<_> = token.chain([("X-Project-Id", project)]).collect();
            ask(at, row.0, path, &headers, row.2).status
        };
        for row in NATIVE {
            let (method, path, ..) = row;
            // The shortest period is over before somebody else claims the job.
            std::thread::sleep(Duration::from_millis(2));
            let at = &service.native;
            assert_eq!(by(at, None, row, path, "in"), 401, "nobody, {method} {path}");
            for ((token, _), expected) in native.iter().zip(row.3) {
                let status = by(at, Some(token), row, path, "in");
                assert_eq!(status, expected, "{method} {path} {:?}", row.3);
            }
        }
        let coordinator = blocking::Coordinator::connect(&store.url).expect("it is there");
        for name in ["in/listed", "out/listed"] {
            coordinator.value(name).expect("a name").set(&1).expect("it is there");
            coordinator.counter(name).expect("a name").add(1).expect("it is there");
            let job = coordinator.once_per(name, LONG).expect("a name");
            drop(job.try_claim().expect("it is there"));
        }
        for path in ["/v1/values", "/v1/counters", "/v1/once"] {
            for (token, _) in &native {
                let bearer = format!("Bearer {token}");
                let told = ask(&service.native, "GET", path, &[("Authorization", &bearer)], "");
                let names = told.json()["names"].to_string();
                assert!(names.contains("in/listed") && !names.contains("out"), "{path} {names}");
            }
        }
        for row in QUEUES {
            let (method, path) = (row.0, format!("/v2/queues/{}", row.1));
            let at = &service.zaqar;
            assert_eq!(by(at, None, row, &path, "in"), 401, "nobody, {method} {path}");
            for ((token, _), expected) in queues.iter().zip(row.3) {
                let status = by(at, Some(token), row, &path, "in");
                assert_eq!(status, expected, "{method} {path} {:?}", row.3);
                assert_eq!(by(at, Some(token), row, &path, "out"), 403, "{method} {path}");
            }
            assert_eq!(by(at, Some(&native[2].0), row, &path, "in"), 403, "{method} {path}");
        }
        let nobody = ask(&service.zaqar, "GET", "/v2/ping", &[], "");
        assert_eq!(nobody.status, 401, "{nobody:?}");
    });
}

/// Reads a stream of events until it has this, to the end of an event.
fn until(events: &mut TcpStream, wanted: &str) -> String {
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    while !text.split_once(wanted).is_some_and(|(_, after)| after.contains("\n\n")) {
        let count = events.read(&mut bytes).expect("it goes on");
        assert!(count > 0, "it ended without {wanted}: {text}");
        text.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    text
}

/// H9: a stream of events is for who has a token, and tells of no name that the token may not read.
#[test]
fn h9_a_stream_of_events_tells_what_its_reader_may_see() {
    rerun_if_starved(|| {
        let store = Store::file();
        let made = [made(&store, "reader", "in/", "read"), made(&store, "boss", "*", "admin")];
        let file = tokens(&store, &made);
        let [reader, boss] = made.map(|(token, _)| format!("Bearer {token}"));
        let service = Service::start(&store, &format!("--tokens {}", file.display()));
        assert_eq!(service.get("/v1/events").status, 401);
        let acquire = |name: &str| {
            let path = format!("/v1/locks/{name}");
            let held = ask(&service.native, "POST", &path, &[("Authorization", &boss)], "");
            assert_eq!(held.status, 201, "{held:?}");
        };
        ["in/before", "out/before"].into_iter().for_each(acquire);
        let stream = |who: &str, path: &str| {
            send(&service.native, "GET", path, &[("Authorization", who)], "")
        };
        let mut events = stream(&reader, "/v1/events");
        let mut all = stream(&boss, "/v1/events");
        let before = until(&mut events, "event: live");
        assert!(before.contains("in/before") && !before.contains("out/"), "{before}");
        assert!(until(&mut all, "event: live").contains("out/before"));
        ["out/after", "in/after"].into_iter().for_each(acquire);
        until(&mut all, "out/after");
        let after = until(&mut events, "in/after");
        assert!(!after.contains("out/"), "{after}");
        // What it asks for itself gives it no more.
        let mut others = stream(&reader, "/v1/events?prefix=out/");
        let others = until(&mut others, "event: live");
        assert!(others.contains("\"count\":0") && !others.contains("out/before"), "{others}");
    });
}

/// H9: whose token is taken out of the file is told nothing more, within 10 s after that was read; others are.
#[test]
fn h9_a_stream_ends_with_its_token() {
    rerun_if_starved(|| {
        let store = Store::file();
        let made = [made(&store, "reader", "*", "read"), made(&store, "boss", "*", "admin")];
        let file = tokens(&store, &made);
        let [reader, boss] = made.clone().map(|(token, _)| format!("Bearer {token}"));
        let service = Service::start(&store, &format!("--tokens {}", file.display()));
        let stream = |who: &str, path: &str| {
            send(&service.native, "GET", path, &[("Authorization", who)], "")
        };
        let held = ask(&service.native, "POST", "/v1/locks/x", &[("Authorization", &boss)], "");
        let of_hold = format!("{}/events", hold(&held.json()));
        let (mut gone, mut stays) = (stream(&reader, "/v1/events"), stream(&boss, &of_hold));
        until(&mut gone, "event: live");
        until(&mut stays, "event: held");
        tokens(&store, &made[1..]);
        service.process.signal(Signal::HUP);
        let (mut rest, begun) = (Vec::new(), Instant::now());
        gone.read_to_end(&mut rest).expect("it ends in order");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        let mut head = [0; 12];
        stream(&reader, "/v1/events").read_exact(&mut head).expect("an answer");
        assert_eq!(&head, b"HTTP/1.1 401");
        until(&mut stays, ":");
        // Nor is one told of its own hold.
        tokens(&store, &made[..1]);
        service.process.signal(Signal::HUP);
        stays.read_to_end(&mut rest).expect("it ends in order");
    });
}

/// H9: whose token is taken out of the file waits for nothing any more, within 10 s after that was read: no place in a queue is left, and
/// others wait on.
#[test]
fn h9_a_wait_ends_with_its_token() {
    rerun_if_starved(|| {
        let store = Store::file();
        let made = [made(&store, "gone", "*", "use"), made(&store, "boss", "*", "admin")];
        let file = tokens(&store, &made);
        let [gone, boss] = made.clone().map(|(token, _)| format!("Bearer {token}"));
        let service = Service::start(&store, &format!("--tokens {}", file.display()));
        let at = |who: &str, method: &str, path: &str, body: &str| {
            send(&service.native, method, path, &[("Authorization", who)], body)
        };
        let told =
            |who: &str, method: &str, path: &str, body: &str| answer(at(who, method, path, body));
        assert_eq!(told(&boss, "POST", "/v1/locks/x", "").status, 201);
        let limits = r#"{"limits":[{"permits":1,"per_ms":600000}],"wait_ms":1200000}"#;
        assert_eq!(told(&boss, "POST", "/v1/rates/x", limits).status, 200);
        assert_eq!(told(&boss, "PUT", "/v1/values/x", "1").status, 204);
        let waits = r#"{"wait_ms":600000}"#;
        let value = told(&gone, "GET", "/v1/values/x", "");
        let tag = value.header("etag").expect("a tag").to_owned();
        let known =
            [("Authorization", gone.as_str()), ("Prefer", "wait=60"), ("If-None-Match", &tag)];
        let waiting = [
            at(&gone, "POST", "/v1/locks/x", waits),
            at(&gone, "POST", "/v1/rates/x", limits),
            send(&service.native, "GET", "/v1/values/x", &known, ""),
        ];
        let _stays = at(&boss, "POST", "/v1/locks/x", waits);
        let entries = || {
            let queue = told(&boss, "GET", "/v1/locks/x", "").json();
            queue["entries"].as_array().map_or(0, Vec::len)
        };
        assert!(wait_until(LONG, || entries() == 3), "both wait");
        tokens(&store, &made[1..]);
        service.process.signal(Signal::HUP);
        let begun = Instant::now();
        for waiting in waiting {
            let told = answer(waiting);
            assert_eq!((told.status, told.code().as_str()), (401, "unauthenticated"), "{told:?}");
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert!(wait_until(LONG, || entries() == 2), "one has left");
    });
}

/// H9: ids, bodies, values, capabilities and queries are in no log, no metric, no list and no problem.
#[test]
fn h9_no_secret_is_in_what_is_written() {
    rerun_if_starved(|| {
        let store = Store::file();
        let mut service = Service::start(&store, "");
        let mut problems = String::new();
        let mut post = |path: &str, body: &str, status: u16| {
            let answer = service.post(path, body);
            assert_eq!(answer.status, status, "{path}: {answer:?}");
            if status >= 400 {
                problems.push_str(&answer.body);
            }
            answer
        };
        // What is only in the bodies of requests.
        let held = post("/v1/locks/x", r#"{"title":"told"}"#, 201).json();
        let led = post("/v1/elections/x", r#"{"value":"canary-value"}"#, 201).json();
        let joined = r#"{"member":"m","capabilities":{"c":"canary-capabilities"}}"#;
        let joined = post("/v1/groups/x", joined, 201).json();
        post("/v1/locks/y", r#"{"field":"canary-field"}"#, 400);
        post("/v1/locks/y", r#"{"wait_ms":"canary-wrong"}"#, 400);
        post("/v1/locks/y", r#"{"title":"canary-open"#, 400);
        post("/v1/groups/x", r#"{"member":"m","capabilities":"canary-refused"}"#, 409);
        let put = |path: &str, body: &str| service.put(path, body);
        assert_eq!(put(&hold(&led), r#"{"value":"canary-told"}"#).status, 200);
        assert_eq!(put(&hold(&joined), r#"{"capabilities":"canary-told"}"#).status, 200);
        assert_eq!(put("/v1/values/x", r#"{"v":"canary-stored"}"#).status, 204);
        let refused = put("/v1/values/x", "canary-no-json");
        assert_eq!(refused.status, 400);
        problems.push_str(&refused.body);
        let key = [("Idempotency-Key", "canary-key"), ("X-Other", "canary-header")];
        let keyed = ask(&service.native, "POST", "/v1/locks/z", &key, "");
        assert_eq!(keyed.status, 201, "{keyed:?}");

        let queue = |method: &str, path: &str, body: &str, status: u16| -> Answer {
            let path = format!("/v2/queues/q{path}");
            let answer = ask(&service.zaqar, method, &path, &[("X-Project-Id", "p")], body);
            assert_eq!(answer.status, status, "{path}: {answer:?}");
            answer
        };
        queue("POST", "/messages", r#"{"messages":[{"body":"canary-message"}]}"#, 201);
        let refused = queue("POST", "/messages", r#"{"messages":[{"body":"canary-open}]}"#, 400);
        problems.push_str(&refused.body);
        let claim = queue("POST", "/claims", "", 201);
        let location = claim.header("location").expect("where it is").to_owned();
        let claim = location.rsplit('/').next().expect("an id").to_owned();
        queue("GET", &format!("/claims/{claim}"), "", 200);
        queue("PATCH", &format!("/claims/{claim}"), r#"{"ttl":60}"#, 204);
        let refused = queue("GET", "/messages?canary-query=1", "", 400);
        problems.push_str(&refused.body);
        queue("GET", "/messages?marker=canary-marker", "", 200);
        problems.push_str(&queue("GET", "/claims/canary-claim", "", 404).body);
        queue("DELETE", &format!("/claims/{claim}"), "", 204);

        // What the service warns of has no more in it.
        let broken = store.coordination(["break", "x", "--yes"]).status();
        assert!(broken.expect("it was built").success());
        let is_lost = || service.get(&hold(&held)).status == 410;
        assert!(wait_until(LONG, is_lost));
        let shown: String =
            ["/metrics", "/v1/locks", "/v1/locks/z", "/v1/history?name=x", "/v1/info"]
                .into_iter()
                .chain(["/v1/elections", "/v1/groups", "/v1/elections/x", "/v1/groups/x"])
                .map(|path| service.get(path).body)
                .collect();
        let metrics = service.get("/metrics").body;
        for id in [&led, &joined, &keyed.json()] {
            assert!(matches!(service.delete(&hold(id)).status, 202 | 204));
        }
        service.terminate();
        assert_eq!(service.process.code(), Some(0));
        let written = service.written_to_the_end();
        assert!(written.contains("\"route\":\"zaqar:/v2/queues/{queue}\""), "{written}");
        assert!(written.contains("a hold was lost"), "{written}");
        let secrets: Vec<_> = [&held, &led, &joined, &keyed.json()]
            .map(|held| held["id"].as_str().expect("an id")[18..].to_owned())
            .into_iter()
            .chain([claim, "canary".to_owned()])
            .collect();
        for secret in secrets {
            // What a leader or a member says of itself is shown to who may see it, and is in no metric.
            let shown = if secret == "canary" { &metrics } else { &shown };
            for (of, text) in [("log", &written), ("list", shown), ("problem", &problems)] {
                assert!(!text.contains(&secret), "{secret} is in a {of}: {text}");
            }
        }
    });
}

/// H9: a listener of its own tells metrics without a token, and nothing else; the API's asks for one all the same.
#[test]
fn h9_metrics_have_a_listener_of_their_own() {
    rerun_if_starved(|| {
        let store = Store::file();
        let made = [made(&store, "ci", "*", "use")];
        let file = tokens(&store, &made);
        let words = format!("--metrics 127.0.0.1:0 --tokens {}", file.display());
        let service = Service::start(&store, &words);
        let at = service.metrics.clone().expect("it says where");
        let get = |path: &str, headers: &[(&str, &str)]| ask(&at, "GET", path, headers, "");
        let bearer = format!("Bearer {}", made[0].0);
        let held =
            ask(&service.native, "POST", "/v1/locks/x", &[("Authorization", &bearer)], "").json();
        assert!(held["fence"].is_u64(), "{held}");
        let told = get("/metrics", &[]);
        let kind = told.header("content-type").unwrap_or_default();
        assert!(told.status == 200 && kind.starts_with("application/openmetrics-text"), "{told:?}");
        let counted = |line: &str| {
            line.starts_with("coordination_http_requests_total{")
                && line.contains("/v1/locks/{name}")
        };
        assert!(told.body.lines().any(counted), "{}", told.body);
        assert_eq!(get("/readyz", &[]).status, 200);
        for path in ["/", "/v1/info", "/v1/locks", "/v1/locks/x", "/openapi.json"] {
            assert_eq!(get(path, &[("Authorization", &bearer)]).status, 404, "{path}");
        }
        assert_eq!(ask(&at, "POST", "/metrics", &[], "").status, 405);
        assert_eq!(get("/metrics", &[("Host", "evil.example")]).status, 421);
        assert_eq!(service.get("/metrics").status, 401);
    });
}

/// H7: a request with two credentials is nobody's, also if both are right, or the same.
#[test]
fn h7_two_credentials_are_refused() {
    rerun_if_starved(|| {
        let store = Store::file();
        let made = [made(&store, "ci", "*", "use"), made(&store, "boss", "*", "admin")];
        let file = tokens(&store, &made);
        let [ci, boss] = made.map(|(token, _)| token);
        let service = Service::start(&store, &format!("--tokens {}", file.display()));
        let [of_ci, of_boss] = [&ci, &boss].map(|token| format!("Bearer {token}"));
        let (first, second) = (("Authorization", &*of_ci), ("Authorization", &*of_boss));
        for at in [&service.native, &service.rdlm, &service.zaqar] {
            let path = match at {
                at if *at == service.native => "/v1/locks/x",
                at if *at == service.rdlm => "/locks/x",
                _ => "/v2/queues/q/claims",
            };
            let body = match path {
                "/locks/x" => r#"{"lifetime":60,"wait":0,"title":""}"#,
                _ => "",
            };
            let project = ("X-Project-Id", "p");
            let status = |headers: &[(&str, &str)]| ask(at, "POST", path, headers, body).status;
            assert_eq!(status(&[first, second, project]), 401, "{path}");
            assert_eq!(status(&[first, first, project]), 401, "{path}");
            let one = status(&[first, project]);
            assert!(matches!(one, 201 | 204), "{path}: {one}");
        }
        let with_header = [first, ("X-Auth-Token", ci.as_str()), ("X-Project-Id", "p")];
        let two = ask(&service.zaqar, "GET", "/v2/queues/q/stats", &with_header, "");
        assert_eq!(two.status, 401, "{two:?}");
        let one = ask(&service.zaqar, "GET", "/v2/queues/q/stats", &with_header[1..], "");
        assert_eq!(one.status, 200, "{one:?}");
    });
}
