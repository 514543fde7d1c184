//! H8: clients that take their time are gone in time, each kind in its own, and others are served meanwhile.

use std::fs::read_dir;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use coordination_tests::harness::descriptors::limit;
use coordination_tests::harness::{SchedulerLag, rerun_alone, wait_until};
use rustix::net::sockopt::set_socket_recv_buffer_size;

use crate::http::{Kept, Service, answer, ask, raw};
use crate::{LONG, Store};

/// How soon who is served has an answer, but for what the machine withholds.
const SERVED: Duration = Duration::from_millis(50);
/// How much later than it has to be a connection may be gone.
const LATE: Duration = Duration::from_secs(2);
/// So many of each kind.
const MANY: usize = 30;

/// How many descriptors an instance has.
fn descriptors(service: &Service) -> usize {
    let id = service.process.0.id();
    read_dir(format!("/proc/{id}/fd")).map_or(0, Iterator::count)
}

/// Asks all the time until told to stop; the slowest answer, but for what the machine withheld.
fn served(at: &str, is_over: &AtomicBool) -> Duration {
    let lag = SchedulerLag::start();
    let mut slowest = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        lag.forget();
        let begun = Instant::now();
        let told = ask(at, "POST", "/v1/locks/good", &[], r#"{"lease_ms":100}"#);
        assert!([201, 409].contains(&told.status), "{told:?}");
        let took = begun.elapsed();
        slowest = slowest.max(took.saturating_sub(lag.allowance(0, u64::MAX)));
        std::thread::sleep(Duration::from_millis(20));
    }
    slowest
}

/// One that has asked for much and reads nothing of it.
fn unread(service: &Service, path: &str) -> TcpStream {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", service.native);
    let stream = raw(&service.native, &request.repeat(40));
    set_socket_recv_buffer_size(&stream, 4_096).expect("a socket");
    stream
}

#[test]
fn h8_each_slow_client_is_gone_in_time() {
    rerun_alone(|| {
        let store = Store::file();
        let service = Service::start(&store, "--no-access-log");
        let host = &service.native;
        let large = serde_json::json!("x".repeat(250_000)).to_string();
        assert_eq!(service.put("/v1/values/large", &large).status, 204);
        let head = format!("POST /v1/locks/x HTTP/1.1\r\nHost: {host}\r\n");
        let half = format!("{head}Content-Length: 9\r\n\r\n{{");
        let begun = format!("{head}Content-Le");
        let whole = format!("GET /livez HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let good = scope.spawn(|| served(host, &is_over));
            let mut kinds = Vec::new();
            for (what, seconds, text) in [
                ("a body", 10, &*half),
                ("silence", 30, ""),
                ("a head", 30, &begun),
                ("an idle one", 30, &whole),
            ] {
                kinds.push(scope.spawn(move || ended_in_time(host, what, seconds, text)));
            }
            kinds.into_iter().for_each(|kind| kind.join().expect("they are gone in time"));
            unread_ended_in_time(&service);
            is_over.store(true, Ordering::Relaxed);
            let slowest = good.join().expect("it is served");
            println!("the slowest answer took {slowest:?}");
            assert!(slowest < SERVED, "{slowest:?}");
        });
    });
}

fn assert_in_time(what: &str, seconds: u64, took: Duration) {
    println!("{what}: gone after {took:?}");
    let stays = Duration::from_secs(seconds);
    assert!(took < stays + LATE && took + LATE > stays, "{what}: {took:?}");
}

/// Connections that begin so are closed after so many seconds.
fn ended_in_time(at: &str, what: &str, seconds: u64, text: &str) {
    let start = Instant::now();
    let slow: Vec<_> = (0..MANY).map(|_| raw(at, text)).collect();
    for stream in slow {
        answer(stream);
        assert_in_time(what, seconds, start.elapsed());
    }
}

/// The same for those who read nothing of their answers, which learn nothing of the end either.
fn unread_ended_in_time(service: &Service) {
    let (before, start) = (descriptors(service), Instant::now());
    let slow: Vec<_> = (0..MANY).map(|_| unread(service, "/v1/values/large")).collect();
    assert!(wait_until(LONG, || descriptors(service) + 5 >= before + MANY));
    assert!(wait_until(LONG, || descriptors(service) <= before + 5));
    assert_in_time("what is not read", 20, start.elapsed());
    drop(slow);
}

/// More connections than there may be: who is connected is served, and so is who comes later, in place of those that ask for nothing.
#[test]
fn h8_more_connections_than_there_may_be_hold_up_nobody_for_long() {
    rerun_alone(|| {
        let store = Store::file();
        let service = Service::start(&store, "--no-access-log");
        let at = service.native.clone();
        limit(8_000);
        let lag = SchedulerLag::start();
        let mut open = Kept::open(&at);
        let begun = Instant::now();
        let silent: Vec<_> = (0..4_150).map(|_| raw(&at, "")).collect();
        while begun.elapsed() < Duration::from_secs(20) {
            lag.forget();
            let asked = Instant::now();
            assert_eq!(open.ask("GET", "/livez", "").status, 200);
            let took = asked.elapsed().saturating_sub(lag.allowance(0, u64::MAX));
            assert!(took < SERVED, "{took:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let asked = Instant::now();
        let late = ask(&at, "POST", "/v1/locks/x", &[], "{}");
        assert_eq!(late.status, 201, "{late:?}");
        println!("who came last was served after {:?}", asked.elapsed());
        assert!(asked.elapsed() < LATE, "{:?}", asked.elapsed());
        drop(silent);
    });
}
