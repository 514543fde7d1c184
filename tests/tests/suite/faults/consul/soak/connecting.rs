//! F-48, F-49, F-71: what only Consul has in these rows of the fault matrix, namely tokens, short leases and
//! certificates.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use coordination::LockGuard;
use coordination::blocking::{Coordinator, release};
use coordination_tests::faults::connecting::Traced;
use coordination_tests::faults::tls::{self, Started};
use coordination_tests::faults::{LONG, Site};
use coordination_tests::harness::consul::{MASTER, TOKEN};
use coordination_tests::harness::{Consul, ConsulTls, Server, rerun_if_starved};
use serde_json::{Value, json};

use crate::WORKER;

#[test]
fn f48_a_lease_that_is_too_short() {
    rerun_if_starved(|| {
        let consul = Consul::options().with("session_ttl_min", "10s".into()).start();
        let mut client = Traced::new(WORKER, &[]);
        client.refused(&format!("consul://{}", consul.authority()), &["Config"]);
    });
}

#[test]
fn f48_tokens() {
    rerun_if_starved(|| {
        let consul = Consul::options().acl("coordination").start();
        let wrong = "11111111-2222-3333-4444-canary555555";
        let mut client = Traced::new(WORKER, &[wrong, TOKEN, MASTER]);
        let at = consul.authority();
        client.refused(&format!("consul://:{wrong}@{at}"), &["Auth"]);
        client.refused(&format!("consul://{at}"), &["Permission"]);
        // The token has rights on its prefix only.
        client.refused(&format!("consul://:{TOKEN}@{at}/elsewhere"), &["Permission"]);
        client.connects(&format!("consul://:{TOKEN}@{at}"));
        let file = consul.directory().join("token");
        std::fs::write(&file, format!("{TOKEN}\n")).expect("the directory is ours");
        client.connects(&format!("consul://{at}?token_file={}", file.display()));
        client.is_discreet();
        // An agent without ACLs ignores tokens.
        let open = Consul::one();
        client.connects(&format!("consul://:{wrong}@{}", open.authority()));
        client.is_discreet();
    });
}

/// Creates a policy with these rules and a token with this policy, and returns the token.
fn token(consul: &Consul, name: &str, rules: &str) -> String {
    let policy = json!({ "Name": name, "Rules": rules }).to_string();
    let token = json!({ "Policies": [{ "Name": name }] }).to_string();
    assert_eq!(consul.ask("PUT", "/v1/acl/policy", &policy).0, 200, "the policy can be made");
    let (made, token) = consul.ask("PUT", "/v1/acl/token", &token);
    assert_eq!(made, 200, "the token can be made");
    let token: Value = serde_json::from_str(&token).expect("a token");
    token["SecretID"].as_str().expect("it has a secret").to_owned()
}

/// F-73: in each round, one of the rights that the documentation lists is missing, or is given for only a part of the
/// prefix.
#[test]
fn f73_each_right_is_missing() {
    rerun_if_starved(|| {
        let consul = Consul::options().acl("coordination").start();
        let mut client = Traced::new(WORKER, &[]);
        let url = |token: &str| format!("consul://:{token}@{}/fleet", consul.authority());
        let keys = r#"key_prefix "fleet/" { policy = "write" } "#;
        let sessions = r#"session_prefix "" { policy = "write" } "#;
        for (nth, (rules, missing)) in [
            (sessions.to_owned(), "key_prefix"),
            (format!("{sessions}{}", keys.replace("write", "read")), "key_prefix"),
            (format!("{sessions}{}", keys.replace("fleet/", "fleet/member/")), "key_prefix"),
            (format!("{sessions}{}", keys.replace("fleet/", "fleet/lock/")), "key_prefix"),
            (keys.to_owned(), "session_prefix"),
            (format!("{keys}{}", sessions.replace("write", "read")), "session_prefix"),
        ]
        .iter()
        .enumerate()
        {
            println!("F-73 consul: only {rules}");
            let token = token(&consul, &format!("lacking-{nth}"), rules);
            client.refused_with(&url(&token), &["Permission"], missing);
        }
        // The failed attempts to connect have left neither keys nor sessions.
        assert_eq!((consul.keys("fleet/"), consul.sessions().len()), (Vec::new(), 0));
        // The right to read the agent is not needed.
        client.connects(&url(&token(&consul, "enough", &format!("{keys}{sessions}"))));
    });
}

/// F-73: when the client checks its rights, the agent closes the connection without an answer. If it does so only once,
/// the client reports the missing right. If it does so each time, the client reports that it could not find out whether
/// it has the right. In no case does it connect without the rights that a lock needs.
#[test]
fn f73_a_right_is_missing_and_a_question_is_lost() {
    rerun_if_starved(|| {
        let mut client = Traced::new(WORKER, &[]);
        let at = agent_that_forbids(1);
        client.refused_with(&format!("consul://:token@{at}/fleet"), &["Permission"], "key_prefix");
        let at = agent_that_forbids(usize::MAX);
        client.refused(&format!("consul://:token@{at}/fleet"), &["Unavailable"]);
    });
}

/// Starts a simulated agent whose token may create sessions but may not write keys. It does not answer the first
/// `unanswered` transactions.
fn agent_that_forbids(unanswered: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = listener.local_addr().expect("it is bound").to_string();
    let mut left = unanswered;
    // The thread ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let path = asked_for(&stream);
            let (status, body) = match path.as_deref() {
                Some("/v1/status/leader") => (200, r#""127.0.0.1:8300""#),
                Some("/v1/session/create") => (200, r#"{"ID":"7c1e"}"#),
                Some("/v1/txn") if left > 0 => {
                    left -= 1;
                    continue;
                }
                Some("/v1/txn") => {
                    (409, r#"{"Results":null,"Errors":[{"OpIndex":0,"What":"Permission denied"}]}"#)
                }
                Some(path) if path.starts_with("/v1/session/destroy/") => (200, "true"),
                Some(_) => (403, "Permission denied"),
                None => continue,
            };
            let length = body.len();
            let head =
                format!("HTTP/1.1 {status} It\r\nContent-Length: {length}\r\nConnection: close");
            drop(write!(stream, "{head}\r\n\r\n{body}"));
        }
    });
    at
}

/// The path of a request; reads the request to its end.
fn asked_for(stream: &TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let (mut path, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        match line.trim().to_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().ok()?,
            Some(_) => {}
            None if line.trim().is_empty() => break,
            None => path = line.split(' ').nth(1).map(str::to_owned),
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    path
}

/// Starts an HTTP service that is no Consul agent, and answers every request with this status. Returns its address,
/// and a counter of its connections.
fn another_service(status: u16) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = listener.local_addr().expect("it is bound").to_string();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    // The thread ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            count.fetch_add(1, Ordering::SeqCst);
            let head = format!("HTTP/1.1 {status} It\r\nContent-Length: 5\r\nConnection: close");
            if stream.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {
                drop(write!(stream, "{head}\r\n\r\nhello"));
            }
        }
    });
    (at, asked)
}

#[test]
fn f48_a_host_that_is_no_agent_is_left() {
    rerun_if_starved(|| {
        let consul = Consul::one();
        let mut client = Traced::new(WORKER, &[]);
        for status in [200, 403, 404] {
            let (at, asked) = another_service(status);
            // The client connects several times, because it tries the hosts in random order.
            for _ in 0..20 {
                client.connects(&format!("consul://{at},{}", consul.authority()));
                if asked.load(Ordering::SeqCst) > 0 {
                    break;
                }
            }
            assert!(asked.load(Ordering::SeqCst) > 0, "it was never tried");
        }
    });
}

/// A relay in front of an agent. When `is_other` is set, it no longer forwards requests but replies like another
/// service, also on connections that are open already.
struct Relay {
    authority: String,
    connections: Arc<AtomicUsize>,
    is_other: Arc<AtomicBool>,
}

fn relay(agent: String, answer: (u16, &'static str)) -> Relay {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let authority = listener.local_addr().expect("an address").to_string();
    let (connections, is_other) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let relay = Relay { authority, connections, is_other };
    let (connections, is_other) = (Arc::clone(&relay.connections), Arc::clone(&relay.is_other));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            connections.fetch_add(1, Ordering::SeqCst);
            let Ok(server) = TcpStream::connect(&agent) else { return };
            let is_other = Arc::clone(&is_other);
            thread::spawn(move || pass(&stream, &server, answer, &is_other));
        }
    });
    relay
}

/// Forwards between client and agent. While `is_other` is set, answers the client itself, with this status and body.
fn pass(
    client: &TcpStream,
    server: &TcpStream,
    (status, body): (u16, &str),
    is_other: &AtomicBool,
) {
    thread::scope(|scope| {
        scope.spawn(|| drop(std::io::copy(&mut { server }, &mut { client })));
        let mut request = [0; 16_384];
        while let Ok(length @ 1..) = { client }.read(&mut request) {
            if is_other.load(Ordering::SeqCst) {
                // The relay answers once and closes the connection: a request may arrive in several parts, and a second
                // answer would be taken for the answer to the next request.
                let length = body.len();
                let head = format!("HTTP/1.1 {status} It\r\nContent-Length: {length}");
                let answer = format!("{head}\r\nConnection: close\r\n\r\n{body}");
                drop({ client }.write_all(answer.as_bytes()));
                break;
            }
            if { server }.write_all(&request[..length]).is_err() {
                break;
            }
        }
        drop(server.shutdown(Shutdown::Both));
    });
}

/// Returns the guard of a lock that `holder` has acquired, the guard of a lock that `other` has acquired, and a thread
/// in which `holder` waits for the second lock.
fn hold_and_wait(
    holder: &Coordinator,
    other: &Coordinator,
    lease: Duration,
) -> (LockGuard, LockGuard, Waits) {
    let take = |client: &Coordinator, name| {
        let lock = client.lock(name).expect("a good name");
        lock.acquire(Some(lease)).expect("it is free")
    };
    let (guard, wanted) = (take(holder, "held"), take(other, "wanted"));
    let waiter = waits(holder, "wanted", lease);
    thread::sleep(lease / 20);
    (guard, wanted, waiter)
}

type Waits = thread::JoinHandle<coordination::Result<()>>;

/// Starts a thread that waits for a lock, and then releases it.
fn waits(client: &Coordinator, name: &str, lease: Duration) -> Waits {
    let lock = client.lock(name).expect("a good name");
    thread::spawn(move || release(lock.acquire(Some(3 * lease))?))
}

#[test]
fn f48_a_host_that_becomes_another_service_is_left() {
    rerun_if_starved(|| {
        let consul = Consul::one();
        let other = format!("consul://{}/becomes", consul.authority());
        let other = Coordinator::connect(&other).expect("it is there");
        for answer in [(200, "hello"), (404, "hello"), (404, ""), (403, "hello")] {
            let relay = relay(consul.authority(), answer);
            let url = format!("consul://{},{}/becomes", relay.authority, consul.authority());
            let holder = loop {
                // The client connects several times, because it tries the hosts in random order.
                let holder = Coordinator::connect(&url).expect("one of them is there");
                if relay.connections.load(Ordering::SeqCst) > 0 {
                    break holder;
                }
                holder.stop().expect("the agent confirms");
            };
            let lease = Duration::from_secs(10);
            let (guard, wanted, waiter) = hold_and_wait(&holder, &other, lease);
            relay.is_other.store(true, Ordering::SeqCst);
            thread::sleep(lease + lease / 2);
            assert!(guard.is_held(), "{answer:?}: {:?}", guard.remaining());
            release(wanted).expect("the agent confirms");
            let waited = waiter.join().expect("no panic");
            assert!(waited.is_ok(), "{answer:?}: {waited:?}");
            let next = waits(&holder, "next", lease).join().expect("no panic");
            next.expect("the other host is an agent");
            release(guard).expect("the agent confirms");
            holder.stop().expect("the agent confirms");
        }
    });
}

#[test]
fn f48_another_service_answers_for_a_while() {
    rerun_if_starved(|| {
        let consul = Consul::one();
        let other = format!("consul://{}/while", consul.authority());
        let other = Coordinator::connect(&other).expect("it is there");
        for answer in [(403, "hello"), (404, "hello"), (200, "hello")] {
            let relay = relay(consul.authority(), answer);
            let holder = format!("consul://{}/while", relay.authority);
            let holder = Coordinator::connect(&holder).expect("it leads to an agent");
            let lease = Duration::from_secs(10);
            let (guard, wanted, waiter) = hold_and_wait(&holder, &other, lease);
            relay.is_other.store(true, Ordering::SeqCst);
            // Requests that the agent has already received are still answered by the agent. From now on the relay
            // answers new requests itself, as another service.
            let early = waits(&holder, "early", lease);
            thread::sleep(lease / 3);
            relay.is_other.store(false, Ordering::SeqCst);
            release(wanted).expect("the agent confirms");
            for waiter in [waiter, early] {
                let waited = waiter.join().expect("no panic");
                assert!(waited.is_ok(), "{answer:?}: {waited:?}");
            }
            assert!(guard.is_held(), "{answer:?}: {:?}", guard.remaining());
            release(guard).expect("the agent confirms");
            holder.stop().expect("the agent confirms");
        }
    });
}

#[test]
fn f49_token_revoked_while_held() {
    rerun_if_starved(|| {
        let consul = Arc::new(Consul::options().acl("coordination").start());
        let site = Site::on(consul.clone(), WORKER);
        let site = site.at(format!(":{TOKEN}@{}", consul.authority()));
        let holder = site.process("holder");
        holder.acquire("it");
        holder.observe("it");
        consul.revoke_token();
        thread::sleep(site.lease() / 4);
        holder.keeps("it");
        let refused = holder.acquire_within("new", Duration::from_secs(1)).expect_err("no rights");
        assert!(
            ["Auth", "Permission"].contains(&refused["kind"].as_str().unwrap_or("")),
            "{refused}"
        );
        holder.not_held(LONG);
        // Waits until the delays between the client's attempts have become long.
        thread::sleep(2 * site.lease());
        let before: u64 = consul.request_counts().values().sum();
        thread::sleep(Duration::from_secs(12));
        let asked = consul.request_counts().values().sum::<u64>() - before;
        println!("F-49 consul: {asked} requests within 12 s with a revoked token");
        // Each attempt to open a session costs two requests. The first attempts may still come after short delays.
        assert!(asked <= 40, "{asked} requests");
    });
}

#[test]
fn f48_certificates() {
    rerun_if_starved(|| {
        tls::f48_certificates(WORKER, true, |certificates, shown| match shown {
            Some(shown) => {
                secured(Consul::options().tls(ConsulTls::new(certificates).server(shown)).start())
            }
            None => {
                let consul = Consul::one();
                let at = consul.authority();
                (Arc::new(consul), at)
            }
        });
    });
}

#[test]
fn f48_client_certificates() {
    rerun_if_starved(|| {
        tls::f48_client_certificates(WORKER, |certificates| {
            secured(Consul::options().tls(ConsulTls::new(certificates).require_client()).start())
        });
    });
}

#[test]
fn f71_certificates_replaced() {
    rerun_if_starved(|| {
        tls::f71_certificates_replaced(
            WORKER,
            |certificates| {
                secured(
                    Consul::options().tls(ConsulTls::new(certificates).require_client()).start(),
                )
            },
            |_| {},
        );
    });
}

/// F-71: first, the token in the file is replaced by a valid one, and the old one is revoked. Then the file gets a
/// token that nobody knows, and the agent restarts.
#[test]
fn f71_token_replaced() {
    rerun_if_starved(|| {
        let consul = Arc::new(Consul::options().acl("coordination").start());
        let file = consul.directory().join("token");
        let put = |token: &str| std::fs::write(&file, token).expect("the directory is ours");
        put(TOKEN);
        let mut site = Site::on(consul.clone(), WORKER).with_ttl(Duration::from_secs(6));
        site.url = format!("consul://{}?token_file={}", consul.authority(), file.display());
        let holder = site.process("holder");
        holder.acquire("it");
        holder.observe("it");
        let other = "2c7c2d3e-4f5a-4b6c-9d7e-8f9a0b1c2d3e";
        let token = format!(r#"{{"SecretID": "{other}", "Policies": [{{"Name": "client"}}]}}"#);
        assert_eq!(consul.ask("PUT", "/v1/acl/token", &token).0, 200);
        put(&format!("{other}\n"));
        consul.revoke_token();
        thread::sleep(2 * site.lease());
        holder.keeps("it");
        holder.acquire("new");
        put("3d7c2d3e-4f5a-4b6c-9d7e-8f9a0b1c2d3e");
        consul.nodes()[0].restart();
        consul.wait_ready();
        thread::sleep(2 * site.lease());
        holder.keeps("it");
    });
}

fn secured(consul: Consul) -> Started {
    let at = consul.authority();
    (Arc::new(consul), at)
}
