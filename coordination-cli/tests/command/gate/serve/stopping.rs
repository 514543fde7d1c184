//! How an instance ends, and what it says of its store meanwhile.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::{Duration, Instant};

use coordination_tests::harness::{Etcd, rerun_if_starved, wait_until};
use rustix::process::Signal;

use crate::http::{Service, answer, ask, hold, send};
use crate::{LONG, Store, Wrapper, output, stderr};

/// H10, of one instance: waits are told, holds can be renewed and released, and then it ends.
#[test]
fn h10_a_stop_frees_nothing_under_who_holds_it() {
    rerun_if_starved(|| {
        let store = Store::file();
        let mut service = Service::start(&store, "");
        let held = service.acquire("x", r#"{"lease_ms":60000}"#);
        let waiter = send(&service.native, "POST", "/v1/locks/x", &[], r#"{"wait_ms":30000}"#);
        let waits = || service.get("/v1/locks/x").json()["entries"][1]["state"] == "waiting";
        assert!(wait_until(LONG, waits));
        service.terminate();
        let told = answer(waiter);
        assert_eq!((told.status, told.code()), (503, "draining".to_owned()), "{told:?}");
        assert!(told.header("retry-after").is_some() && told.header("connection") == Some("close"));
        assert_eq!(service.post("/v1/locks/y", "").code(), "draining");
        let ready = service.get("/readyz");
        assert_eq!((ready.status, &ready.json()["why"]), (503, &"draining".into()));
        assert_eq!(service.put(&hold(&held), "").status, 200);
        assert!(service.process.is_running());
        assert_eq!(service.delete(&hold(&held)).status, 204);
        assert_eq!(service.process.code(), Some(0));
    });
}

/// A supervisor that asks for it is told when the service is ready, and when its end begins.
#[test]
fn a_supervisor_is_told_of_the_start_and_the_stop() {
    rerun_if_starved(|| {
        let store = Store::file();
        let path = store.path("notify");
        let told = UnixDatagram::bind(&path).expect("a socket");
        is_told(&store, &told, path.as_os_str());
        #[cfg(target_os = "linux")]
        {
            use std::os::linux::net::SocketAddrExt;

            let name = format!("coordination-test-{}", std::process::id());
            let at = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("a name");
            let told = UnixDatagram::bind_addr(&at).expect("a socket");
            is_told(&store, &told, format!("@{name}").as_ref());
        }
    });
}

fn is_told(store: &Store, told: &UnixDatagram, at: &OsStr) {
    told.set_read_timeout(Some(LONG)).expect("a socket");
    let next = || {
        let mut bytes = [0; 64];
        let count = told.recv(&mut bytes).expect("it says something");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let mut command = store.coordination(["serve", "--listen", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", at).stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = Wrapper(command.spawn().expect("it was built"));
    assert_eq!(next(), "READY=1");
    process.signal(Signal::TERM);
    assert_eq!(next(), "STOPPING=1");
    assert_eq!(process.code(), Some(0));
}

#[test]
fn a_stop_waits_for_leases_that_nobody_releases() {
    rerun_if_starved(|| {
        let store = Store::at("memory://".to_owned());
        let mut service = Service::start(&store, "--fresh --drain 0s");
        let begun = Instant::now();
        let held = service.acquire("x", r#"{"lease_ms":1500}"#);
        service.terminate();
        assert!(wait_until(LONG, || service.get("/readyz").status == 503));
        std::thread::sleep(Duration::from_millis(300));
        let renewed = service.put(&hold(&held), "");
        assert_eq!(renewed.status, 200, "{renewed:?}");
        assert!(
            renewed.json()["expires_in_ms"].as_u64() < Some(1_300),
            "nothing is renewed: {renewed:?}"
        );
        assert_eq!(service.process.code(), Some(0));
        assert!(begun.elapsed() >= Duration::from_millis(1_500));
    });
}

#[test]
fn a_second_signal_ends_it_at_once() {
    rerun_if_starved(|| {
        let store = Store::file();
        let mut service = Service::start(&store, "");
        let _held = service.acquire("x", r#"{"lease_ms":60000}"#);
        service.terminate();
        assert!(wait_until(LONG, || service.get("/readyz").status == 503));
        service.process.signal(Signal::INT);
        let begun = Instant::now();
        assert_eq!(service.process.code(), Some(0));
        assert!(begun.elapsed() < Duration::from_secs(10));
    });
}

/// H10: a client that hangs up just before a stop leaves no claim behind, which nobody could use and everybody would wait for.
#[test]
fn h10_a_stop_takes_back_what_nobody_received() {
    rerun_if_starved(|| {
        let etcd = Etcd::one();
        let store = Store::at(format!("etcd://{}/service", etcd.node(0).address()));
        let (mut service, other) = (Service::start(&store, ""), Service::start(&store, ""));
        let project = ("X-Project-Id", "p");
        let queue = |method: &str, path: &str, body: &str| {
            ask(&other.zaqar, method, &format!("/v2/queues/q{path}"), &[project], body)
        };
        let message = r#"{"messages":[{"body":1}]}"#;
        assert_eq!(queue("POST", "/messages", message).status, 201);
        let moment = Duration::from_millis(200);
        etcd.node(0).pause();
        let claim = send(&service.zaqar, "POST", "/v2/queues/q/claims", &[project], "");
        std::thread::sleep(moment);
        drop(claim);
        service.terminate();
        std::thread::sleep(moment);
        etcd.node(0).resume();
        assert_eq!(service.process.code(), Some(0));
        let claimed = queue("POST", "/claims", "");
        assert_eq!(claimed.status, 201, "{claimed:?} {:?}", queue("GET", "/stats", ""));
        assert_eq!(claimed.json()["messages"][0]["claim_count"], 1, "{claimed:?}");
    });
}

/// H10: the store is away and comes back.
#[test]
fn h10_a_store_that_is_away_is_told() {
    rerun_if_starved(|| {
        let etcd = Etcd::one();
        let store =
            Store::at(format!("etcd://{}/service?ttl=3s&heartbeat=300ms", etcd.node(0).address()));
        let service = Service::start(&store, "");
        let held = service.acquire("x", r#"{"lease_ms":2000}"#);
        assert_eq!(held["covered"], "all");
        let too_long = service.post("/v1/locks/y", r#"{"lease_ms":20000}"#);
        assert_eq!(too_long.status, 400, "more than the store's own lease: {too_long:?}");
        etcd.node(0).pause();
        assert!(wait_until(LONG, || service.get("/readyz").json()["why"] == "store-away"));
        let away = service.post("/v1/locks/y", r#"{"wait_ms":100}"#);
        assert_eq!(away.status, 503, "{away:?}");
        assert!(away.header("retry-after").is_some());
        let lost = || {
            let renewed = service.put(&hold(&held), "");
            renewed.status == 410 && renewed.json()["reason"] == "lost"
        };
        assert!(wait_until(LONG, lost), "{:?}", service.put(&hold(&held), ""));
        etcd.node(0).resume();
        assert!(wait_until(LONG, || service.get("/readyz").status == 200));
        assert!(wait_until(LONG, || service.post("/v1/locks/y", "").status == 201));
    });
}

/// H5, on a server: what a killed instance held is free when the store's own lease is over, and not before its client's.
#[test]
fn h5_a_killed_instance_keeps_nobody_out_for_ever() {
    rerun_if_starved(|| {
        let etcd = Etcd::one();
        let store =
            Store::at(format!("etcd://{}/service?ttl=3s&heartbeat=300ms", etcd.node(0).address()));
        let (one, other) = (Service::start(&store, ""), Service::start(&store, ""));
        let begun = Instant::now();
        let held = one.acquire("x", r#"{"lease_ms":2000}"#);
        drop(one);
        let next = other.acquire("x", r#"{"wait_ms":30000}"#);
        assert!(begun.elapsed() >= Duration::from_millis(2_000), "{:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
        assert!(next["fence"].as_u64() > held["fence"].as_u64());
        let elsewhere = other.put(&hold(&held), "");
        assert_eq!((elsewhere.status, elsewhere.code()), (421, "wrong-instance".to_owned()));
    });
}

#[test]
fn a_store_that_is_away_at_the_start_is_waited_for() {
    rerun_if_starved(|| {
        let etcd = Etcd::one();
        let url = format!("etcd://{}/service", etcd.node(0).address());
        etcd.node(0).pause();
        let store = Store::at(url);
        let mut service = Service::begin(&store, "");
        let ready = service.get("/readyz");
        assert_eq!((ready.status, &ready.json()["why"]), (503, &"starting".into()));
        assert_eq!(service.get("/livez").status, 200);
        assert_eq!(service.post("/v1/locks/x", "").code(), "store-away");
        etcd.node(0).resume();
        assert!(wait_until(LONG, || service.get("/readyz").status == 200));
        let held = service.acquire("x", "");
        assert_eq!(service.delete(&hold(&held)).status, 204);
        service.terminate();
        assert_eq!(service.process.code(), Some(0));
    });
}

#[test]
fn what_no_waiting_mends_ends_it() {
    rerun_if_starved(|| {
        for url in ["etcd://h:1/x?nonsense=1", "nonsense://h", "file:///proc/locks"] {
            let store = Store::at(url.to_owned());
            let ended = output(&mut store.coordination(["serve", "--listen", "127.0.0.1:0"]));
            assert_eq!(ended.status.code(), Some(64), "{url}: {}", stderr(&ended));
        }
        let service = Service::start(&Store::at("memory://".to_owned()), "--fresh");
        let taken = Store::at("memory://".to_owned());
        let words = ["serve", "--fresh", "--listen", &service.native];
        let ended = output(&mut taken.coordination(words));
        assert_eq!(ended.status.code(), Some(71), "{}", stderr(&ended));
    });
}

/// What it writes there is told to nobody, and no client waits for that.
#[test]
fn a_reader_of_stderr_that_stops_holds_nothing_up() {
    rerun_if_starved(|| {
        let store = Store::file();
        let (reader, mut writer) = std::io::pipe().expect("a descriptor is free");
        let mut command = store.coordination(["serve", "--listen", "127.0.0.1:0"]);
        command.stdout(Stdio::null()).stderr(writer.try_clone().expect("a descriptor is free"));
        let _process = Wrapper(command.spawn().expect("it was built"));
        drop(command);
        let (mut reader, mut first) = (BufReader::new(reader), String::new());
        while !first.contains(" on http://") {
            first.clear();
            reader.read_line(&mut first).expect("it says where it listens");
        }
        let (_, at) = first.trim().split_once(" on http://").expect("it is there");
        // More than a pipe takes, and from here on nobody reads it.
        std::thread::spawn(move || writer.write_all(&[b' '; 1 << 20]));
        std::thread::sleep(Duration::from_millis(300));
        assert!(wait_until(LONG, || ask(at, "GET", "/readyz", &[], "").status == 200));
        for name in ["x", "y"] {
            let held = ask(at, "POST", &format!("/v1/locks/{name}"), &[], "{}").json();
            let broken = output(&mut store.coordination(["break", name, "--yes"]));
            assert_eq!(broken.status.code(), Some(0), "{}", stderr(&broken));
            // It warns of that.
            let is_lost = || ask(at, "GET", &hold(&held), &[], "").status == 410;
            assert!(wait_until(LONG, is_lost));
            assert_eq!(ask(at, "GET", "/livez", &[], "").status, 200);
        }
        drop(reader);
    });
}
