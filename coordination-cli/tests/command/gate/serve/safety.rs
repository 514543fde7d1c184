//! What is refused, who may do what, and what is in no log.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use coordination_tests::harness::{SchedulerLag, rerun_if_starved, wait_until};

use super::locks::on_stores;
use crate::http::{Service, answer, ask, hold, raw};
use crate::{LONG, Store, output, stderr, stdout};

/// H7: each malformed request gets the status that the page says, and the next one is answered.
#[test]
fn h7_malformed_requests_are_refused_and_the_next_one_is_answered() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let long = format!("/v1/locks/{}", "x".repeat(1_001));
        let deep = format!("{{\"wait_ms\":{}1{}}}", "[".repeat(40), "]".repeat(40));
        let large = format!("{{\"value\":\"{}\"}}", "x".repeat(4_095));
        let deep_value = deep.replace("wait_ms", "value");
        let many_names = serde_json::json!({ "names": vec!["x"; 33] }).to_string();
        let long_member = format!("{{\"member\":\"{}\"}}", "x".repeat(256));
        for (method, path, body, status) in [
            ("POST", "/v1/locks/%00", "", 400),
            ("POST", "/v1/locks/a%0Ab", "", 400),
            ("POST", "/v1/locks/%FF", "", 400),
            ("POST", "/v1/locks/..", "", 400),
            ("POST", "/v1/locks/a/../b", "", 400),
            ("POST", "/v1/locks/%2e", "", 400),
            ("POST", "/v1/locks/.coordination/x", "", 400),
            ("POST", &long, "", 400),
            ("POST", "/v1/locks/x", "[]", 400),
            ("POST", "/v1/locks/x", "null", 400),
            ("POST", "/v1/locks/x", "1", 400),
            ("POST", "/v1/locks/x", "\"x\"", 400),
            ("POST", "/v1/locks/x", "{", 400),
            ("POST", "/v1/locks/x", "{}{}", 400),
            ("POST", "/v1/locks/x", &deep, 400),
            ("POST", "/v1/locks/x", r#"{"wait":1}"#, 400),
            ("POST", "/v1/locks/x", r#"{"wait_ms":1,"wait_ms":1}"#, 400),
            ("POST", "/v1/locks/x", r#"{"wait_ms":1.5}"#, 400),
            ("POST", "/v1/locks/x", r#"{"wait_ms":1e20}"#, 400),
            ("POST", "/v1/locks/x", r#"{"wait_ms":-1}"#, 400),
            ("POST", "/v1/locks/x", r#"{"wait_ms":"1"}"#, 400),
            ("POST", "/v1/locks/x", r#"{"wait_ms":null}"#, 400),
            ("POST", "/v1/locks/x", r#"{"wait_ms":3600001}"#, 400),
            ("POST", "/v1/locks/x", r#"{"lease_ms":99}"#, 400),
            ("POST", "/v1/locks/x", r#"{"lease_ms":86400001}"#, 400),
            ("POST", "/v1/locks/x", r#"{"shared":1}"#, 400),
            ("POST", "/v1/locks/x", r#"{"title":1}"#, 400),
            ("POST", "/v1/locks/x", r#"{"title":"a\u0000"}"#, 400),
            ("POST", "/v1/semaphores/x", "", 400),
            ("POST", "/v1/semaphores/x", r#"{"permits":0}"#, 400),
            ("POST", "/v1/semaphores/x", r#"{"permits":10001}"#, 400),
            ("POST", "/v1/semaphores/x", r#"{"permits":4294967297}"#, 400),
            ("POST", "/v1/semaphores/x", r#"{"permits":1.5}"#, 400),
            ("POST", "/v1/semaphores/x", r#"{"permits":3,"count":0}"#, 400),
            ("POST", "/v1/semaphores/x", r#"{"permits":3,"count":4}"#, 400),
            ("POST", "/v1/semaphores/x", r#"{"permits":1000,"count":501}"#, 400),
            ("POST", "/v1/semaphores/x", r#"{"permits":3,"shared":true}"#, 400),
            ("POST", "/v1/semaphores/..", r#"{"permits":3}"#, 400),
            ("GET", "/v1/semaphores?limit=0", "", 400),
            ("GET", "/v1/semaphores/", "", 404),
            ("PATCH", "/v1/semaphores/x", "", 405),
            ("PUT", "/v1/locks/x", "", 405),
            ("POST", "/v1/locks", "", 400),
            ("POST", "/v1/locks", r#"{"names":[]}"#, 400),
            ("POST", "/v1/locks", r#"{"names":"x"}"#, 400),
            ("POST", "/v1/locks", r#"{"names":["x",1]}"#, 400),
            ("POST", "/v1/locks", r#"{"names":["x",""]}"#, 400),
            ("POST", "/v1/locks", r#"{"names":["x",".."]}"#, 400),
            ("POST", "/v1/locks", r#"{"names":["x",".coordination/x"]}"#, 400),
            ("POST", "/v1/locks", &many_names, 400),
            ("PUT", "/v1/locks", "", 405),
            ("POST", "/v1/limiters/x", r#"{"slots":0}"#, 400),
            ("POST", "/v1/limiters/x", r#"{"slots":10001}"#, 400),
            ("POST", "/v1/limiters/x", r#"{"standby":10001}"#, 400),
            ("POST", "/v1/limiters/x", r#"{"standby":-1}"#, 400),
            ("POST", "/v1/limiters/x", r#"{"latest_wins":true,"slots":2}"#, 400),
            ("POST", "/v1/limiters/x", r#"{"latest_wins":true,"standby":0}"#, 400),
            ("POST", "/v1/limiters/x", r#"{"latest_wins":1}"#, 400),
            ("PATCH", "/v1/limiters/x", "", 405),
            ("POST", "/v1/groups/x", "", 400),
            ("POST", "/v1/groups/x", r#"{"member":""}"#, 400),
            ("POST", "/v1/groups/x", r#"{"member":1}"#, 400),
            ("POST", "/v1/groups/x", "{\"member\":\"a\0\"}", 400),
            ("POST", "/v1/groups/x", &long_member, 400),
            ("POST", "/v1/groups/x", r#"{"member":"m","wait_ms":1}"#, 400),
            ("POST", "/v1/groups/x", r#"{"member":"m","create":null}"#, 400),
            ("PUT", "/v1/groups/x", r#"{"x":1}"#, 400),
            ("GET", "/v1/groups/x", "", 404),
            ("PATCH", "/v1/groups/x", "", 405),
            ("POST", "/v1/elections/x", r#"{"permits":1}"#, 400),
            ("POST", "/v1/elections/x", &large, 400),
            ("POST", "/v1/elections/x", &deep_value, 400),
            ("PUT", "/v1/elections/x", "", 405),
            ("POST", "/v1/renew", r#"{"ids":[]}"#, 400),
            ("POST", "/v1/renew", r#"{"ids":[1]}"#, 400),
            ("POST", "/v1/renew", "{}", 400),
            ("GET", "/v1/locks?limit=0", "", 400),
            ("GET", "/v1/locks?limit=1001", "", 400),
            ("GET", "/v1/locks?x=1", "", 400),
            ("GET", "/v1/history", "", 400),
            ("GET", "/v1/history?kind=x&name=x", "", 400),
            ("GET", "/v1/holds/x", "", 404),
            ("GET", "/v1/holds/aaaaaaaa.aaaaaaaaaaaaaaaa.aaaaaaaaaaaaaaaaaaaaaaaaaa", "", 421),
            ("GET", "/v1/nothing", "", 404),
            ("GET", "/v1/locks/", "", 404),
            ("PATCH", "/v1/locks/x", "", 405),
            ("BREW", "/v1/locks/x", "", 405),
            ("DELETE", "/v1/info", "", 405),
            ("POST", "/livez", "", 405),
        ] {
            let answer = service.ask(method, path, body);
            assert_eq!(answer.status, status, "{method} {path} {body}: {answer:?}");
            assert_eq!(answer.json()["status"], status, "{answer:?}");
            assert!(answer.header("request-id").is_some_and(|id| answer.json()["request"] == id));
        }
        let refused = |headers: &[(&str, &str)], body: &str| {
            ask(&service.native, "POST", "/v1/locks/x", headers, body).status
        };
        assert_eq!(refused(&[("Content-Encoding", "gzip")], "{}"), 415);
        assert_eq!(refused(&[("Idempotency-Key", "a b")], "{}"), 400);
        assert_eq!(refused(&[("Idempotency-Key", &"x".repeat(129))], "{}"), 400);
        assert_eq!(refused(&[], &format!("{{\"title\":\"{}\"}}", "x".repeat(17_000))), 413);
        let host = &service.native;
        for text in [
            format!(
                "POST /v1/locks/x HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{{}}"
            ),
            format!("POST /v1/locks/x HTTP/1.1\r\nHost: {host}\r\nContent-Length: x\r\n\r\n"),
            format!("GET / HTTP/1.1\r\nHost: {host}\r\nA: b\rc\r\n\r\n"),
            "GET /\r\n\r\n".to_owned(),
            "\u{0}\u{1}\u{2}\r\n\r\n".to_owned(),
        ] {
            assert_eq!(answer(raw(host, &text)).status, 400, "{text:?}");
        }
        let many = "A: b\r\n".repeat(70);
        let text = format!("GET /livez HTTP/1.1\r\nHost: {host}\r\n{many}\r\n");
        assert_eq!(answer(raw(host, &text)).status, 431);
        let chunks = "4000\r\n".to_owned() + &"x".repeat(0x4000) + "\r\n1\r\nx\r\n0\r\n\r\n";
        let text = format!(
            "POST /v1/locks/x HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"
        );
        assert_eq!(answer(raw(host, &text)).status, 413);
        // All of it has left nothing behind.
        assert_eq!(service.get("/v1/locks").json()["names"], serde_json::json!([]));
        assert_eq!(service.post("/v1/locks/x", "").status, 201);
    });
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let refused = service.post("/v1/locks/x", r#"{"wait_ms":-1,"lease_ms":1,"x":0}"#).json();
        let errors = refused["errors"].as_array().expect("a list");
        let fields: Vec<_> = errors.iter().map(|error| error["field"].as_str()).collect();
        assert_eq!(fields, [Some("wait_ms"), Some("lease_ms"), Some("x")], "{refused}");
        let explained = service.get("/problems/invalid").json();
        assert_eq!(explained["status"], 400);
    });
}

/// H9: tokens, rights inside and outside of a prefix, and no secret in what is written.
#[test]
fn h9_rights_reach_as_far_as_their_names() {
    rerun_if_starved(|| {
        let store = Store::file();
        let made = [
            made(&store, "ci", "build/", "use"),
            made(&store, "boss", "*", "admin"),
            made(&store, "reader", "*", "read"),
        ];
        let file = tokens(&store, &made);
        let [ci, boss, reader] = made.map(|(token, _)| token);
        let words = format!("--tokens {}", file.display());

        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).expect("it is ours");
        let open = output(store.coordination(["serve"]).args(words.split(' ')));
        assert_eq!(open.status.code(), Some(64));
        assert!(stderr(&open).contains("chmod 600"), "{}", stderr(&open));

        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("it is ours");
        let service = Service::start(&store, &words);
        let by = |token: &str, method: &str, path: &str| {
            ask(&service.native, method, path, &[("Authorization", &format!("Bearer {token}"))], "")
        };
        assert_eq!(service.post("/v1/locks/build/x", "").status, 401);
        assert_eq!(service.get("/v1/info").status, 401);
        assert_eq!(by("co_wrong", "GET", "/v1/info").status, 401);
        assert_eq!(service.get("/").status, 200, "the page asks for the token itself");
        assert_eq!(service.get("/livez").status, 200);
        let held = by(&ci, "POST", "/v1/locks/build/x");
        assert_eq!(held.status, 201, "{held:?}");
        let refused = by(&ci, "POST", "/v1/locks/deploy");
        assert_eq!((refused.status, &refused.json()["needs"]), (403, &"use on deploy".into()));
        assert_eq!(by(&reader, "POST", "/v1/locks/build/y").status, 403);
        assert_eq!(by(&reader, "GET", "/v1/locks/build/x").status, 200);
        assert_eq!(by(&ci, "GET", "/v1/locks/deploy").status, 403);
        assert_eq!(
            (by(&reader, "GET", "/metrics").status, by(&ci, "GET", "/metrics").status),
            (200, 403)
        );

        let id = hold(&held.json());
        assert_eq!(by(&reader, "DELETE", &id).status, 403, "the id alone is not enough");
        let fence = held.json()["fence"].to_string();
        let path = format!("/v1/locks/build/x?fence={fence}");
        assert_eq!(by(&ci, "DELETE", &path).status, 403);
        assert_eq!(by(&boss, "DELETE", "/v1/locks/build/x").status, 428);
        assert_eq!(by(&boss, "DELETE", "/v1/locks/build/x?fence=1").status, 409);
        assert_eq!(by(&boss, "DELETE", &path).status, 200);
        let ended = by(&ci, "PUT", &id);
        assert_eq!((ended.status, &ended.json()["reason"]), (410, &"broken".into()));
        let secret = held.json()["id"].as_str().expect("an id")[18..].to_owned();
        let list = by(&boss, "GET", "/v1/locks/build/x").body;

        service.terminate();
        let mut service = service;
        assert_eq!(service.process.code(), Some(0));
        let written = service.written_to_the_end();
        assert!(written.contains("\"route\":\"/v1/locks/{name}\""), "{written}");
        assert!(written.contains("\"kind\":\"lock\""), "{written}");
        assert!(written.contains("\"waited_ms\":0"), "{written}");
        for canary in [&ci, &boss, &reader, &secret] {
            assert!(
                !written.contains(canary.as_str()) && !list.contains(canary.as_str()),
                "{canary}"
            );
        }
    });
}

/// H9: pages of others, names that lead to us by DNS, and listening where others can reach us.
#[test]
fn h9_browsers_and_strangers_are_kept_out() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "--host locks.example");
        let with = |headers: &[(&str, &str)]| {
            ask(&service.native, "POST", "/v1/locks/x", headers, r#"{"lease_ms":100}"#).status
        };
        assert_eq!(with(&[("Host", "evil.example")]), 421);
        assert_eq!(with(&[("Origin", "http://evil.example")]), 403);
        assert_eq!(with(&[("Origin", "null")]), 403);
        assert_eq!(with(&[("Sec-Fetch-Site", "cross-site")]), 403);
        assert_eq!(with(&[("Host", "locks.example:1")]), 201);
        assert_eq!(
            ask(&service.native, "GET", "/livez", &[("Host", "evil.example")], "").status,
            200
        );
        let get = |path: &str| {
            ask(&service.lockable, "GET", path, &[("Sec-Fetch-Site", "cross-site")], "").status
        };
        assert_eq!(get("/v1/acquire/x"), 403, "there a GET changes state");
        for words in [
            "--listen 0.0.0.0:0",
            "--rdlm 0.0.0.0:0",
            "--metrics 0.0.0.0:0",
            "--metrics 0.0.0.0:0 --allow-anonymous",
            "--listen 0.0.0.0:0 --allow-anonymous",
            "--listen 0.0.0.0:0 --allow-plaintext",
        ] {
            let refused = output(store.coordination(["serve"]).args(words.split(' ')));
            assert_eq!(refused.status.code(), Some(64), "{words}: {}", stderr(&refused));
        }
        let hasty = Store::at("etcd://127.0.0.1:1/x?ttl=100ms".to_owned());
        let refused = output(&mut hasty.coordination(["serve", "--listen", "127.0.0.1:0"]));
        assert!(refused.status.code() == Some(64) && stderr(&refused).contains("`ttl`"));
        let memory = Store::at("memory://".to_owned());
        let refused = output(&mut memory.coordination(["serve", "--listen", "127.0.0.1:0"]));
        assert!(refused.status.code() == Some(64) && stderr(&refused).contains("--fresh"));
    });
}

/// H9: every route, by nobody and by each right, inside and outside of the token's prefix.
#[test]
fn h9_each_route_asks_for_its_right() {
    rerun_if_starved(|| {
        let store = Store::file();
        let rights = ["read", "use", "admin"];
        let made: Vec<_> = rights.map(|right| made(&store, right, "in/", right)).into();
        let file = tokens(&store, &made);
        let service = Service::start(&store, &format!("--tokens {}", file.display()));
        let by = |token: Option<&str>, method: &str, path: &str, body: &str| {
            let header = token.map(|token| format!("Bearer {token}"));
            let headers: Vec<_> = header.iter().map(|it| ("Authorization", it.as_str())).collect();
            ask(&service.native, method, path, &headers, body).status
        };
        // The statuses for `read`, `use` and `admin`; nobody gets 401.
        for (method, path, body, expected) in [
            ("POST", "/v1/locks/in/a", r#"{"lease_ms":100}"#, [403, 201, 201]),
            ("POST", "/v1/locks/out", r#"{"lease_ms":100}"#, [403, 403, 403]),
            ("POST", "/v1/locks", r#"{"names":["in/c","in/d"],"lease_ms":100}"#, [403, 201, 201]),
            ("POST", "/v1/locks", r#"{"names":["in/c","out"],"lease_ms":100}"#, [403, 403, 403]),
            ("GET", "/v1/locks/in/a", "", [200, 200, 200]),
            ("GET", "/v1/locks/out", "", [403, 403, 403]),
            ("DELETE", "/v1/locks/in/b?fence=1", "", [403, 403, 409]),
            ("DELETE", "/v1/locks/out?fence=1", "", [403, 403, 403]),
            ("POST", "/v1/semaphores/in/a", r#"{"permits":9,"lease_ms":100}"#, [403, 201, 201]),
            ("POST", "/v1/semaphores/out", r#"{"permits":9,"lease_ms":100}"#, [403, 403, 403]),
            ("PUT", "/v1/semaphores/in/a", r#"{"permits":9}"#, [403, 403, 204]),
            ("PUT", "/v1/semaphores/out", r#"{"permits":9}"#, [403, 403, 403]),
            ("GET", "/v1/semaphores/in/a", "", [200, 200, 200]),
            ("GET", "/v1/semaphores/out", "", [403, 403, 403]),
            ("DELETE", "/v1/semaphores/in/b?fence=1", "", [403, 403, 409]),
            ("DELETE", "/v1/semaphores/out?fence=1", "", [403, 403, 403]),
            ("GET", "/v1/semaphores", "", [200, 200, 200]),
            ("POST", "/v1/limiters/in/a", r#"{"slots":9,"lease_ms":100}"#, [403, 201, 201]),
            ("POST", "/v1/limiters/out", r#"{"slots":9,"lease_ms":100}"#, [403, 403, 403]),
            ("PUT", "/v1/limiters/in/a", r#"{"slots":9}"#, [403, 403, 204]),
            ("PUT", "/v1/limiters/out", r#"{"slots":9}"#, [403, 403, 403]),
            ("GET", "/v1/limiters/in/a", "", [200, 200, 200]),
            ("GET", "/v1/limiters/out", "", [403, 403, 403]),
            ("DELETE", "/v1/limiters/in/b?fence=1", "", [403, 403, 409]),
            ("DELETE", "/v1/limiters/out?fence=1", "", [403, 403, 403]),
            ("GET", "/v1/limiters", "", [200, 200, 200]),
            ("PUT", "/v1/groups/in/a", "", [403, 204, 204]),
            ("PUT", "/v1/groups/out", "", [403, 403, 403]),
            ("POST", "/v1/groups/in/b", r#"{"member":"m","lease_ms":100}"#, [403, 201, 201]),
            ("POST", "/v1/groups/out", r#"{"member":"m","lease_ms":100}"#, [403, 403, 403]),
            ("GET", "/v1/groups/in/b", "", [200, 200, 200]),
            ("GET", "/v1/groups/out", "", [403, 403, 403]),
            ("DELETE", "/v1/groups/in/b?member=x", "", [403, 403, 409]),
            ("DELETE", "/v1/groups/in/a", "", [403, 403, 204]),
            ("DELETE", "/v1/groups/out", "", [403, 403, 403]),
            ("GET", "/v1/groups", "", [200, 200, 200]),
            ("POST", "/v1/elections/in/a", r#"{"lease_ms":100}"#, [403, 201, 201]),
            ("POST", "/v1/elections/out", r#"{"lease_ms":100}"#, [403, 403, 403]),
            ("GET", "/v1/elections/in/a", "", [200, 200, 200]),
            ("GET", "/v1/elections/out", "", [403, 403, 403]),
            ("DELETE", "/v1/elections/in/b?fence=1", "", [403, 403, 409]),
            ("DELETE", "/v1/elections/out?fence=1", "", [403, 403, 403]),
            ("GET", "/v1/elections", "", [200, 200, 200]),
            ("GET", "/v1/history?name=in/a", "", [200, 200, 200]),
            ("GET", "/v1/history?name=out", "", [403, 403, 403]),
            ("GET", "/v1/locks", "", [200, 200, 200]),
            ("GET", "/v1/info", "", [200, 200, 200]),
            ("GET", "/metrics", "", [403, 403, 403]),
            ("GET", "/v1/holds/x", "", [404, 404, 404]),
            ("PUT", "/v1/holds/x", "", [404, 404, 404]),
            ("DELETE", "/v1/holds/x", "", [404, 404, 404]),
            ("GET", "/v1/holds/x/events", "", [404, 404, 404]),
            ("POST", "/v1/renew", r#"{"ids":["x"]}"#, [200, 200, 200]),
        ] {
            assert_eq!(by(None, method, path, body), 401, "nobody, {method} {path}");
            for ((token, _), expected) in made.iter().zip(expected) {
                let waited = wait_until(LONG, || by(Some(token), method, path, body) == expected);
                assert!(waited, "{method} {path}: not {expected}");
            }
        }
        let others = ask(&service.lockable, "GET", "/v1/acquire/x", &[], "");
        assert_eq!(others.status, 401, "{others:?}");
        let others = ask(&service.rdlm, "POST", "/locks/x", &[], "{}");
        assert_eq!((others.status, others.header("www-authenticate")), (401, Some("Basic")));
    });
}

/// H8: connections that say nothing, or never end what they say, take nothing from others.
#[test]
fn h8_slow_clients_hold_up_nobody() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let half = format!("POST /v1/locks/x HTTP/1.1\r\nHost: {}\r\nContent-Le", service.native);
        let body = format!(
            "POST /v1/locks/x HTTP/1.1\r\nHost: {}\r\nContent-Length: 9\r\n\r\n{{",
            service.native
        );
        let slow: Vec<_> = ["", half.as_str(), body.as_str()]
            .into_iter()
            .cycle()
            .take(300)
            .map(|text| raw(&service.native, text))
            .collect();
        let begun = std::time::Instant::now();
        let held = service.acquire("y", "");
        assert_eq!(service.delete(&hold(&held)).status, 204);
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(1) + SchedulerLag::lately(took), "{took:?}");
        let mut slow = slow.into_iter();
        let body = slow.nth(2).expect("there are three hundred");
        assert_eq!(answer(body).status, 408, "a body has ten seconds");
    });
}

/// A token of this name with this right on a space, and its lines.
pub(super) fn made(store: &Store, name: &str, space: &str, right: &str) -> (String, String) {
    let words = ["serve", "--make-token", name, "--use", space];
    let text = stdout(&output(&mut store.coordination(words)));
    let (first, lines) = text.split_once('\n').expect("two lines at least");
    let token = first.rsplit(' ').next().expect("a token");
    (token.to_owned(), lines.replace("use =", &format!("{right} =")))
}

/// A file of tokens, which only we can read.
pub(super) fn tokens(store: &Store, made: &[(String, String)]) -> PathBuf {
    let file = store.path("tokens.toml");
    let lines: String = made.iter().map(|(_, lines)| lines.as_str()).collect();
    std::fs::write(&file, lines).expect("a file");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("it is ours");
    file
}

#[test]
fn a_lock_of_the_command_is_taken_away_by_its_fence() {
    rerun_if_starved(|| on_stores(taken_away));
}

fn taken_away(store: &Store) {
    let boss = made(store, "boss", "*", "admin");
    let file = tokens(store, std::slice::from_ref(&boss));
    let token = boss.0;
    let header = format!("Bearer {token}");
    let service = Service::start(store, &format!("--tokens {}", file.display()));
    let mut held = store.runs("--member-id stuck --lock x");
    let by = |method: &str, path: &str| {
        ask(&service.native, method, path, &[("Authorization", &header)], "")
    };
    let row = by("GET", "/v1/locks/x").json()["entries"][0].clone();
    assert_eq!([&row["state"], &row["who"]], ["held", "stuck"]);
    let broken = by("DELETE", &format!("/v1/locks/x?fence={}", row["fence"]));
    assert_eq!(
        (broken.status, &broken.json()["broken"]["who"]),
        (200, &"stuck".into()),
        "{broken:?}"
    );
    assert_eq!(held.code(), Some(70), "its command was stopped");
    assert!(
        wait_until(LONG, || by("GET", "/v1/locks/x").json()["entries"] == serde_json::json!([]))
    );
}
