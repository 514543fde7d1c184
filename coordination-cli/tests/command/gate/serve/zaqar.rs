//! The API of Zaqar: what its clients send, and what they can read.

use coordination_tests::harness::rerun_if_starved;
use serde_json::{Value, json};

use super::locks::on_stores;
use super::safety::{made, tokens};
use crate::Store;
use crate::http::{Answer, Service, ask};

const PROJECT: (&str, &str) = ("X-Project-Id", "tenant");

/// What a client of one project sees of one queue.
struct Queue<'a> {
    service: &'a Service,
    name: &'static str,
}

impl Queue<'_> {
    fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let path = format!("/v2/queues/{}{path}", self.name);
        ask(&self.service.zaqar, method, &path, &[PROJECT], body)
    }

    fn status(&self, method: &str, path: &str, body: &str) -> u16 {
        self.ask(method, path, body).status
    }

    /// Posts messages whose bodies are these numbers, and answers their paths.
    fn post(&self, numbers: std::ops::Range<u32>) -> Vec<String> {
        let messages: Vec<_> = numbers.map(|n| json!({ "ttl": 120, "body": { "n": n } })).collect();
        let posted = self.ask("POST", "/messages", &json!({ "messages": messages }).to_string());
        assert_eq!(posted.status, 201, "{posted:?}");
        let paths = posted.json()["resources"].as_array().cloned().unwrap_or_default();
        paths.iter().map(|path| path.as_str().expect("a path").to_owned()).collect()
    }

    fn stats(&self) -> Value {
        self.ask("GET", "/stats", "").json()["messages"].clone()
    }
}

/// The part of a path that names a message or a claim.
fn last(path: &Value) -> &str {
    path.as_str().and_then(|path| path.rsplit('/').next()).expect("a path")
}

fn numbers(messages: &Value) -> Vec<&Value> {
    messages.as_array().expect("a list").iter().map(|message| &message["body"]["n"]).collect()
}

#[test]
fn messages_are_claimed_renewed_and_deleted() {
    rerun_if_starved(|| on_stores(claimed_renewed_and_deleted));
}

fn claimed_renewed_and_deleted(store: &Store) {
    let service = Service::start(store, "");
    let queue = Queue { service: &service, name: "work" };
    assert_eq!([queue.status("PUT", "", ""), queue.status("HEAD", "", "")], [204, 204]);
    assert_eq!(queue.status("POST", "/claims", ""), 204, "nothing is there");
    assert_eq!(queue.post(0..3).len(), 3);

    // What a client asks for without arguments.
    let claimed = queue.ask("POST", "/claims?limit=2", "{\"ttl\":null,\"grace\":null}");
    assert_eq!(claimed.status, 201, "{claimed:?}");
    let claim = claimed.json();
    assert_eq!(numbers(&claim["messages"]), [&json!(0), &json!(1)]);
    let location = Value::from(claimed.header("location").expect("where it is"));
    let (id, first) = (last(&location), &claim["messages"][0]);
    assert_eq!(first["href"].as_str().and_then(|href| href.rsplit('=').next()), Some(id));
    assert_eq!(claimed.header("fencing-token"), Some(claim["fence"].to_string().as_str()));
    let known = ["age", "body", "claim_count", "href", "id", "ttl"];
    assert!(first.as_object().expect("an object").keys().map(String::as_str).eq(known), "{first}");
    // Its life was prolonged to the end of the claim and what comes after that: 300 s and 60 s.
    let life = first["ttl"].as_u64().expect("a number");
    assert!(first["claim_count"] == json!(1) && (360..380).contains(&life), "{first}");
    assert_eq!(queue.stats(), json!({ "free": 1, "claimed": 2, "total": 3 }));

    let of_claim = format!("/claims/{id}");
    let looked = queue.ask("GET", &of_claim, "").json();
    assert_eq!([&looked["ttl"], &looked["grace"]], [&json!(300), &json!(60)]);
    assert_eq!(looked["messages"].as_array().map(Vec::len), Some(2));
    assert_eq!(queue.status("PATCH", &of_claim, "{\"ttl\":100,\"grace\":60}"), 204);
    assert_eq!(queue.ask("GET", &of_claim, "").json()["ttl"], json!(100));

    let message = format!("/messages/{}", last(&first["id"]));
    let by = |claim: &str| format!("{message}?claim_id={claim}");
    let other = "0123456789abcdef0123456789abcdef";
    assert_eq!(queue.ask("GET", &message, "").json()["body"], json!({ "n": 0 }));
    assert_eq!(queue.status("DELETE", &message, ""), 403, "a claim has it");
    for wrong in [other, "none", "'; DROP TABLE'", ""] {
        let wrong = wrong.replace(' ', "%20");
        assert_eq!(queue.status("DELETE", &by(&wrong), ""), 400, "{wrong}");
    }
    assert_eq!(
        [queue.status("DELETE", &by(id), ""), queue.status("DELETE", &by(id), "")],
        [204; 2]
    );
    assert_eq!(queue.status("GET", &message, ""), 404);
    assert_eq!(
        [queue.status("DELETE", &of_claim, ""), queue.status("DELETE", &of_claim, "")],
        [204; 2]
    );
    assert_eq!(
        [queue.status("GET", &of_claim, ""), queue.status("PATCH", &of_claim, "{}")],
        [404; 2]
    );
    assert_eq!(queue.stats(), json!({ "free": 2, "claimed": 0, "total": 2 }));
    let again = queue.ask("POST", "/claims", "{\"ttl\":60,\"grace\":60}").json();
    assert_eq!(numbers(&again["messages"]), [&json!(1), &json!(2)]);
    assert_eq!(
        [&again["messages"][0]["claim_count"], &again["messages"][1]["claim_count"]],
        [2, 1]
    );
    assert!(again["fence"].as_u64() > claim["fence"].as_u64());
}

#[test]
fn messages_are_listed_popped_and_deleted() {
    rerun_if_starved(|| on_stores(listed_popped_and_deleted));
}

fn listed_popped_and_deleted(store: &Store) {
    let service = Service::start(store, "");
    let queue = Queue { service: &service, name: "list" };
    queue.post(0..5);
    assert_eq!(queue.status("POST", "/claims?limit=1", ""), 201);
    let page = queue.ask("GET", "/messages?limit=3", "").json();
    assert_eq!(numbers(&page["messages"]), [&json!(1), &json!(2), &json!(3)]);
    let next = page["links"][0]["href"].as_str().expect("a path");
    let rest = ask(&service.zaqar, "GET", next, &[PROJECT], "").json();
    assert_eq!(numbers(&rest["messages"]), [&json!(4)]);
    // Its client follows links until there are none.
    let next = rest["links"][0]["href"].as_str().expect("a path");
    let end = ask(&service.zaqar, "GET", next, &[PROJECT], "").json();
    let odd = queue.ask("GET", "/messages?marker=a%26b%25c&limit=3", "").json();
    let nothing = json!({ "messages": [], "links": [] });
    assert_eq!([&end, &odd], [&nothing; 2]);
    let all = queue.ask("GET", "/messages?limit=20&include_claimed=True", "").json();
    assert_eq!(numbers(&all["messages"]).len(), 5);

    let id = |n: usize| last(&all["messages"][n]["id"]);
    assert_eq!(queue.status("DELETE", &format!("/messages/{}", id(0)), ""), 403, "it is claimed");
    // Several at once are deleted whoever has them, as Zaqar does it.
    let several = format!("/messages?ids={},{}&ids={}", id(0), id(1), id(2));
    assert_eq!(queue.status("DELETE", &several, ""), 204);
    assert_eq!(queue.stats(), json!({ "free": 2, "claimed": 0, "total": 2 }));
    assert_eq!(queue.status("DELETE", &format!("/messages?ids={},none", id(1)), ""), 204);
    let popped = queue.ask("DELETE", "/messages?pop=1", "");
    assert_eq!((popped.status, numbers(&popped.json()["messages"])), (200, vec![&json!(3)]));
    assert_eq!(queue.stats(), json!({ "free": 1, "claimed": 0, "total": 1 }));

    // Delayed ones are free, but cannot be claimed yet. A body keeps its digits, its order and its blanks.
    let body = "{\"b\": [1e400, 12345678901234567890123], \"a\":0}";
    let later = format!("{{\"messages\":[{{\"ttl\":300,\"delay\":200,\"body\":{body}}}]}}");
    let posted = queue.ask("POST", "/messages", &later);
    assert_eq!(posted.status, 201, "{posted:?}");
    let path = posted.json()["resources"][0].as_str().expect("a path").to_owned();
    let looked = ask(&service.zaqar, "GET", &path, &[PROJECT], "");
    assert!(looked.status == 200 && looked.body.contains(body), "{looked:?}");
    let ready = queue.ask("GET", "/messages", "").json();
    assert_eq!(ready["messages"].as_array().map(Vec::len), Some(1));
    let deep = "[".repeat(33) + &"]".repeat(33);
    let deep = format!("{{\"messages\":[{{\"body\":{deep}}}]}}");
    assert_eq!(queue.status("POST", "/messages", &deep), 400);
}

#[test]
fn what_zaqar_refuses_is_refused() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let queue = Queue { service: &service, name: "odd" };
        queue.post(0..1);
        for body in ["[", "[]", ".", "\"fail\"", "null", "{\"ttl\":-1,\"grace\":-1}"] {
            assert_eq!(queue.status("POST", "/claims", body), 400, "{body}");
        }
        for (ttl, grace) in [(59, 60), (60, 59), (60, 43_201), (43_201, 60)] {
            let body = json!({ "ttl": ttl, "grace": grace }).to_string();
            assert_eq!(queue.status("POST", "/claims", &body), 400, "{body}");
        }
        let claimed = queue.ask("POST", "/claims", "");
        let claim = Value::from(claimed.header("location").expect("where it is"));
        let of_claim = format!("/claims/{}", last(&claim));
        for body in ["[", "[]", ".", "\"fail\"", "{\"ttl\":-1,\"grace\":-1}"] {
            assert_eq!(queue.status("PATCH", &of_claim, body), 400, "{body}");
        }
        for (ttl, grace) in [(59, 60), (60, 59), (60, 43_201), (43_201, 60)] {
            let body = json!({ "ttl": ttl, "grace": grace }).to_string();
            assert_eq!(queue.status("PATCH", &of_claim, &body), 400, "{body}");
        }
        let looked = queue.ask("GET", &of_claim, "").json();
        assert_eq!([&looked["ttl"], &looked["grace"]], [&json!(300), &json!(60)]);
        for limit in ["0", "21", "-1", "x"] {
            assert_eq!(queue.status("POST", &format!("/claims?limit={limit}"), ""), 400, "{limit}");
            assert_eq!(
                queue.status("GET", &format!("/messages?limit={limit}"), ""),
                400,
                "{limit}"
            );
        }
        let many = json!({ "messages": vec![json!({ "ttl": 60, "body": 1 }); 21] }).to_string();
        for body in [
            "",
            "{\"messages\":[]}",
            "{\"messages\":[{\"ttl\":60}]}",
            "{\"messages\":[{\"ttl\":59,\"body\":1}]}",
            "{\"messages\":[{\"ttl\":1209601,\"body\":1}]}",
            "{\"messages\":[{\"ttl\":60,\"delay\":901,\"body\":1}]}",
            "{\"messages\":[{\"ttl\":60,\"body\":}]}",
            &many,
        ] {
            let refused = queue.ask("POST", "/messages", body);
            assert_eq!(refused.status, 400, "{body}: {refused:?}");
            assert!(refused.json()["description"].is_string(), "{refused:?}");
        }
        for path in ["/messages", "/messages?pop=21", "/messages?pop=1&ids=x", "/messages?ids="] {
            let expected = if path.ends_with("ids=") { 204 } else { 400 };
            assert_eq!(queue.status("DELETE", path, ""), expected, "{path}");
        }
        assert_eq!(queue.stats()["total"], json!(1));
        let nobody = ask(&service.zaqar, "GET", "/v2/queues/odd/stats", &[], "");
        assert_eq!(nobody.status, 400, "whose queue is not said: {nobody:?}");
        let other =
            ask(&service.zaqar, "GET", "/v2/queues/odd/stats", &[("X-Project-Id", "b")], "");
        assert_eq!(other.json()["messages"]["total"], json!(0), "each project has its own");
        for (method, path) in [
            ("GET", "/v2/queues"),
            ("GET", "/v1/queues/odd"),
            ("POST", "/v2/ping"),
            ("GET", "/v2/queues/odd/subscriptions"),
            ("PUT", "/v2/queues/odd/stats"),
        ] {
            let nothing = ask(&service.zaqar, method, path, &[PROJECT], "");
            assert_eq!(nothing.status, 404, "{path}");
            assert_eq!(nothing.json()["status"], json!(404), "{nothing:?}");
        }
        assert_eq!(ask(&service.zaqar, "GET", "/v2/ping", &[PROJECT], "").status, 204);
        let long = "x".repeat(65);
        for name in ["a.b", "%C3%BC", "a%2Fb", &long] {
            let path = format!("/v2/queues/{name}/stats");
            assert_eq!(ask(&service.zaqar, "GET", &path, &[PROJECT], "").status, 400, "{name}");
        }
    });
}

#[test]
fn tokens_of_openstack_are_known() {
    rerun_if_starved(|| {
        let store = Store::file();
        let user = made(&store, "user", "zaqar/tenant/", "use");
        let file = tokens(&store, std::slice::from_ref(&user));
        let service = Service::start(&store, &format!("--tokens {}", file.display()));
        let ask = |project: &str, header: (&str, &str)| {
            let headers = [("X-Project-Id", project), header];
            ask(&service.zaqar, "GET", "/v2/queues/q/stats", &headers, "").status
        };
        let bearer = format!("Bearer {}", user.0);
        assert_eq!(ask("tenant", ("X-Auth-Token", &user.0)), 200);
        assert_eq!(ask("tenant", ("Authorization", &bearer)), 200);
        assert_eq!(ask("tenant", ("X-Auth-Token", "wrong")), 401);
        assert_eq!(ask("tenant", ("Accept", "*/*")), 401);
        assert_eq!(ask("other", ("X-Auth-Token", &user.0)), 403);
        let two = [PROJECT, ("X-Auth-Token", &user.0), ("Authorization", &bearer)];
        let two = crate::http::ask(&service.zaqar, "GET", "/v2/queues/q/stats", &two, "");
        assert_eq!(two.status, 401, "one credential at most: {two:?}");
    });
}
