//! The APIs of others: rdlm and lockable.dev, by the requests that their clients send.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use coordination_tests::harness::{
    Etcd, Mode, Proxy, SchedulerLag, Server, Zookeeper, rerun_if_starved,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use serde_json::json;

use crate::Store;
use crate::http::{Answer, Service, answer, ask, send};

fn rdlm(service: &Service, method: &str, path: &str, body: &str) -> Answer {
    ask(&service.rdlm, method, path, &[("Accept", "*/*")], body)
}

/// The path of a lock's URL.
fn location(service: &Service, answer: &Answer) -> String {
    assert_eq!(answer.status, 201, "{answer:?}");
    let url = answer.header("location").expect("it has one");
    url.strip_prefix(&format!("http://{}", service.rdlm))
        .expect("as its clients want it")
        .to_owned()
}

#[test]
fn rdlms_requests_are_answered_as_its_clients_need() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let wanted = r#"{"lifetime": 60, "wait": 0, "title": "me with RDLMClient(0.2.0) @host"}"#;
        let first = rdlm(&service, "POST", "/locks/a%20b/%C3%BC", wanted);
        let path = location(&service, &first);
        assert_eq!(first.header("fencing-token"), Some(&*first.json()["fence"].to_string()));
        let lock = rdlm(&service, "GET", &path, "");
        assert_eq!(lock.header("content-type"), Some("application/hal+json"));
        let lock = lock.json();
        assert_eq!(
            [&lock["active"], &lock["lifetime"], &lock["wait"]],
            [&json!(true), &json!(60), &json!(0)]
        );
        for time in ["active_since", "active_expires"] {
            assert_eq!(
                lock[time].as_str().map(|time| (time.len(), &time[10..11])),
                Some((26, "T")),
                "{lock}"
            );
        }
        let begun = Instant::now();
        let late = rdlm(
            &service,
            "POST",
            "/locks/a%20b/%C3%BC",
            r#"{"lifetime":1,"wait":0.3,"title":""}"#,
        );
        assert_eq!(late.status, 408, "{late:?}");
        assert!(begun.elapsed() >= Duration::from_millis(300));
        assert_eq!(rdlm(&service, "PUT", &path, r#"{"lifetime":90}"#).json()["lifetime"], 90);
        assert_eq!(
            rdlm(&service, "GET", "/resources", "").status,
            403,
            "that is for administrators"
        );
        assert_eq!(rdlm(&service, "DELETE", &path, "").status, 204);
        assert_eq!(rdlm(&service, "DELETE", &path, "").status, 404);
        assert_eq!(rdlm(&service, "GET", &path, "").status, 404);
    });
}

/// H2: RD1 (ticks of a second, leases cut to seconds, a try that waits) and RD7 (500 for what is no request).
#[test]
fn h2_rdlms_defects_are_not_copied() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        for _ in 0..5 {
            let begun = Instant::now();
            location(
                &service,
                &rdlm(&service, "POST", "/locks/x", r#"{"lifetime":0.3,"wait":0,"title":""}"#),
            );
            let answered = Instant::now();
            let next = rdlm(&service, "POST", "/locks/x", r#"{"lifetime":9,"wait":5,"title":""}"#);
            let path = location(&service, &next);
            assert!(begun.elapsed() >= Duration::from_millis(300));
            let took = answered.elapsed();
            let bound = Duration::from_millis(420) + SchedulerLag::lately(took);
            assert!(took < bound, "{took:?}, and {bound:?} is the bound");
            assert_eq!(rdlm(&service, "DELETE", &path, "").status, 204);
        }
        for wrong in [
            "[]",
            "null",
            "{}",
            r#"{"lifetime":1e20,"wait":0,"title":""}"#,
            r#"{"lifetime":0,"wait":0,"title":""}"#,
            r#"{"lifetime":1,"wait":-1,"title":""}"#,
            r#"{"lifetime":1,"wait":0}"#,
        ] {
            assert_eq!(rdlm(&service, "POST", "/locks/x", wrong).status, 400, "{wrong}");
        }
        // RD8: nothing is made by looking.
        assert_eq!(rdlm(&service, "GET", "/locks/never/x", "").status, 404);
        assert_eq!(service.get("/v1/locks").json()["names"], json!([]));
    });
}

/// A body of rdlm's API.
fn for_so_long(lifetime: f64, wait: f64) -> String {
    json!({ "lifetime": lifetime, "wait": wait, "title": "" }).to_string()
}

/// H2, RD2: rdlm cuts leases to whole seconds, so one of 2.7 s ends after 2 s, and one of 0.9 s at once.
#[test]
fn h2_rd2_a_lease_has_its_fraction() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        for (name, lifetime) in [("x", 0.9), ("y", 2.7)] {
            let (path, sent) = (format!("/locks/{name}"), Instant::now());
            location(&service, &rdlm(&service, "POST", &path, &for_so_long(lifetime, 0.0)));
            location(&service, &rdlm(&service, "POST", &path, &for_so_long(9.0, 9.0)));
            let passed = sent.elapsed();
            assert!(passed >= Duration::from_secs_f64(lifetime), "{lifetime} s: {passed:?}");
        }
    });
}

/// H2, RD3: at rdlm a single try waits for the next whole second.
#[test]
fn h2_rd3_a_try_is_answered_at_once() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        location(&service, &rdlm(&service, "POST", "/locks/x", &for_so_long(600.0, 0.0)));
        let tries = (0..5).map(|_| {
            let begun = Instant::now();
            let tried = rdlm(&service, "POST", "/locks/x", &for_so_long(600.0, 0.0));
            assert_eq!(tried.status, 408, "{tried:?}");
            begun.elapsed()
        });
        // Of several, as the machine may have something else to do.
        let least = tries.min().expect("there are some");
        assert!(least < Duration::from_millis(300), "{least:?}");
    });
}

/// H2, RD9: at rdlm a lock whose lease is over is shown and can be deleted until the next whole second.
#[test]
fn h2_rd9_what_is_over_is_over() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        for _ in 0..5 {
            let held = rdlm(&service, "POST", "/locks/x", &for_so_long(0.2, 9.0));
            let path = location(&service, &held);
            std::thread::sleep(Duration::from_millis(200));
            assert_eq!(rdlm(&service, "DELETE", &path, "").status, 404);
            assert_eq!(rdlm(&service, "GET", &path, "").status, 404);
            assert_eq!(rdlm(&service, "PUT", &path, r#"{"lifetime":9}"#).status, 404);
        }
    });
}

/// H2, RD11: names are what their URL says, whatever is written in it as it is and what as `%2F`; those that clients rewrite are refused.
#[test]
fn h2_rd11_a_name_is_one_name() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let acquire =
            |name: &str| rdlm(&service, "POST", &format!("/locks/{name}"), &for_so_long(60.0, 0.0));
        for (one, same) in [("a/b", "a%2Fb"), ("a%20b", "%61%20b"), ("%C3%BC", "%c3%bc")] {
            let path = location(&service, &acquire(one));
            assert_eq!(acquire(same).status, 408, "{one} and {same}");
            assert_eq!(rdlm(&service, "DELETE", &path, "").status, 204, "{path}");
            let path = location(&service, &acquire(same));
            assert_eq!(rdlm(&service, "DELETE", &path, "").status, 204, "{path}");
        }
        // No folding.
        let path = location(&service, &acquire("name"));
        location(&service, &acquire("Name"));
        location(&service, &acquire("name/more"));
        assert_eq!(rdlm(&service, "DELETE", &path, "").status, 204, "{path}");
        for wrong in ["..", "a/../b", ".", "a%00", "%FF", "a%0Ab"] {
            assert_eq!(acquire(wrong).status, 400, "{wrong}");
        }
    });
}

/// H5, on a directory: rdlm's users never renew, and a killed instance would free what they hold at once. A promise keeps
/// it.
#[test]
fn h5_a_promise_outlives_its_instance() {
    rerun_if_starved(|| {
        let store = Store::file();
        let (one, other) = (Service::start(&store, ""), Service::start(&store, ""));
        let wanted = r#"{"lifetime":3,"wait":0,"title":""}"#;
        let begun = Instant::now();
        location(&one, &rdlm(&one, "POST", "/locks/x", wanted));
        let held = Instant::now();
        let waiter =
            send(&other.rdlm, "POST", "/locks/x", &[], r#"{"lifetime":9,"wait":30,"title":""}"#);
        std::thread::sleep(Duration::from_millis(200));
        drop(one);
        let tried = rdlm(&other, "POST", "/locks/x", wanted);
        assert_eq!(tried.status, 408, "nobody else: {tried:?}");
        let next = answer(waiter);
        assert_eq!(next.status, 201, "{next:?}");
        assert!(
            begun.elapsed() >= Duration::from_secs(3),
            "the promise was broken after {:?}",
            begun.elapsed()
        );
        // It is counted from the first sight, after the kill.
        assert!(held.elapsed() < Duration::from_secs(6), "{:?}", held.elapsed());
    });
}

/// H5: a store that grants a shorter lease than an instance asks for keeps nothing for as long as was asked.
#[test]
fn h5_a_store_that_grants_less_is_helped_by_a_promise() {
    rerun_if_starved(|| {
        let zookeeper = Zookeeper::options().line("maxSessionTimeout=3000").start();
        let store = Store::at(format!("zookeeper://{}/service", zookeeper.authority()));
        let start = || Service::start(&store, "--long long/");
        let (one, other) = (start(), start());
        let begun = Instant::now();
        // By our own API, as all locks of rdlm's are promised.
        let held = one.acquire("long/x", r#"{"lease_ms":6000,"wait_ms":9000}"#);
        assert_eq!(held["covered"], "http", "the instance's session is shorter: {held}");
        drop(one);
        other.acquire("long/x", r#"{"wait_ms":30000}"#);
        assert!(begun.elapsed() >= Duration::from_secs(6), "{:?}", begun.elapsed());
    });
}

/// H5: who shares a lock is not to have it beside the one to whom it was promised alone.
#[test]
fn h5_who_shares_sits_a_promise_out() {
    rerun_if_starved(|| {
        let store = Store::file();
        let (one, other) = (Service::start(&store, ""), Service::start(&store, ""));
        let begun = Instant::now();
        one.acquire("x", r#"{"lease_ms":3000}"#);
        drop(one);
        let tried = other.post("/v1/locks/x", r#"{"shared":true}"#);
        assert_eq!((tried.status, tried.code()), (409, "busy".to_owned()), "{tried:?}");
        let shared = other.acquire("x", r#"{"shared":true,"wait_ms":30000}"#);
        assert!(begun.elapsed() >= Duration::from_secs(3), "{:?}", begun.elapsed());
        assert_eq!(shared["covered"], "none", "{shared}");
        other.acquire("x", r#"{"shared":true}"#);
    });
}

#[test]
fn a_release_leaves_no_promise_and_a_clean_stop_keeps_it() {
    rerun_if_starved(|| {
        let store = Store::file();
        let mut one = Service::start(&store, "--drain 0s");
        let other = Service::start(&store, "");
        let wanted = r#"{"lifetime":2,"wait":0,"title":""}"#;
        let path = location(&one, &rdlm(&one, "POST", "/locks/x", wanted));
        assert_eq!(rdlm(&one, "DELETE", &path, "").status, 204);
        let next = rdlm(&other, "POST", "/locks/x", wanted);
        let path = location(&other, &next);
        assert_eq!(rdlm(&other, "DELETE", &path, "").status, 204);

        let begun = Instant::now();
        location(&one, &rdlm(&one, "POST", "/locks/x", wanted));
        one.terminate();
        assert_eq!(one.process.code(), Some(0));
        let next = rdlm(&other, "POST", "/locks/x", r#"{"lifetime":2,"wait":20,"title":""}"#);
        assert_eq!(next.status, 201, "{next:?}");
        assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    });
}

/// The answer to a client at another address of this host.
fn ask_from_elsewhere(at: &str, path: &str) -> Answer {
    let kind = (AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC);
    let socket = socket_with(kind.0, kind.1, kind.2, None).expect("a descriptor is free");
    let elsewhere = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), 0);
    bind(&socket, &elsewhere).expect("all of 127.0.0.0/8 is here");
    let to: SocketAddrV4 = at.parse().expect("an address");
    connect(&socket, &to).expect("it listens");
    let mut stream = TcpStream::from(socket);
    let text = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).expect("it reads");
    answer(stream)
}

/// H2: also LD2 (anybody may release) and LD3 (what a browser sends by itself changes something).
#[test]
fn lockables_requests_are_answered_as_its_client_needs() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let ask = |path: &str| {
            let answer = ask(&service.lockable, "GET", path, &[], "");
            assert_eq!(answer.status, 200, "{answer:?}");
            answer.json()["response"].as_bool().expect("true or false")
        };
        assert!(ask("/v1/acquire/job") && !ask("/v1/acquire/job"));
        assert!(ask("/v1/heartbeat/job"));
        assert!(ask("/v1/release/job") && !ask("/v1/release/job") && !ask("/v1/heartbeat/job"));
        assert!(ask("/v1/acquire/job"));
        let by_itself = |method: &str, headers: &[(&str, &str)]| {
            crate::http::ask(&service.lockable, method, "/v1/release/job", headers, "").status
        };
        assert_eq!(by_itself("HEAD", &[]), 405);
        assert_eq!(by_itself("GET", &[("Sec-Purpose", "prefetch")]), 405);
        for path in ["/v1/acquire/job", "/v1/heartbeat/job", "/v1/release/job"] {
            let told = ask_from_elsewhere(&service.lockable, path);
            let is_so = told.json()["response"].as_bool();
            assert_eq!((told.status, is_so), (200, Some(false)), "{path}: {told:?}");
        }
        let names = service.get("/v1/locks").json();
        assert_eq!(names["names"], json!(["lockable/anonymous/job"]));
        assert!(ask("/v1/heartbeat/job") && ask("/v1/release/job"));
    });
}

/// A try behind promises asks the store once more than another one does.
#[test]
fn a_store_that_is_far_away_is_asked_to_the_end() {
    rerun_if_starved(|| {
        let etcd = Etcd::one();
        let proxy = Proxy::start(etcd.node(0).address());
        let service = Service::start(&Store::at(format!("etcd://{}/service", proxy.address())), "");
        proxy.set_both(Mode::Delay(Duration::from_millis(60)));
        for (name, lifetime, covered) in [("one", 60, "http"), ("other", 9, "all")] {
            let body = format!(r#"{{"lifetime":{lifetime},"wait":0,"title":""}}"#);
            let tried = rdlm(&service, "POST", &format!("/locks/{name}"), &body);
            assert_eq!(tried.status, 201, "it is free: {tried:?}");
            assert_eq!(tried.json()["covered"], covered, "the store's lease has 30 s");
            let acquired =
                ask(&service.lockable, "GET", &format!("/v1/acquire/{name}"), &[], "").json();
            assert_eq!(acquired["response"], true, "it is free");
        }
    });
}
