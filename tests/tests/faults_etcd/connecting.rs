//! F-48: servers that cannot be used, for every reason; and secrets that nobody prints.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use coordination_tests::{
    faults::Site,
    harness::{
        Certificates, Direction, Etcd, Mode, Proxy, Tls, Worker,
        etcd::{ROOT_PASSWORD, USER_PASSWORD},
        ports::free_address,
    },
};
use serde_json::{Value, json};

use super::{LONG, TTL, WORKER};

/// Contract X1: a configuration error fails within this time.
const LIMIT: Duration = Duration::from_secs(5);

/// A process that tells all it does, and keeps what it told.
struct Traced {
    worker: Worker,
    said: Vec<String>,
    secrets: Vec<String>,
}

impl Traced {
    fn new(secrets: &[&str]) -> Self {
        let worker = Worker::start(WORKER, "etcd://nowhere", &[("COORDINATION_WORKER_TRACE", "1")]);
        let secrets = secrets.iter().map(|secret| (*secret).to_owned()).collect();
        Self { worker, said: Vec::new(), secrets }
    }

    fn try_call(&mut self, command: Value) -> Result<Value, Value> {
        let answer = self.worker.try_call(command);
        self.said.push(format!("{answer:?}"));
        answer
    }

    /// Connecting fails within five seconds, and says of which kind it is.
    fn refused(&mut self, url: &str, kinds: &[&str]) {
        let began = Instant::now();
        let connect = json!({ "command": "connect", "url": url, "ttl_ms": 2_000 });
        let error = self.try_call(connect).expect_err("it should be refused");
        let took = began.elapsed();
        println!("F-48 etcd: {} in {took:?}: {}", error["kind"], error["message"]);
        let kind = error["kind"].as_str().unwrap_or_default();
        assert!(kinds.contains(&kind), "{url}: {error} instead of {kinds:?}");
        assert!(took <= LIMIT, "{url}: {error} took {took:?}");
    }

    fn connects(&mut self, url: &str) {
        let connect = json!({ "command": "connect", "url": url, "ttl_ms": 2_000 });
        self.try_call(connect).unwrap_or_else(|error| panic!("{error}"));
        self.try_call(json!({ "command": "acquire", "lock": "it", "timeout_ms": 2_000 }))
            .unwrap_or_else(|error| panic!("{error}"));
        self.try_call(json!({ "command": "stop" })).unwrap_or_else(|error| panic!("{error}"));
    }

    /// None of the secrets is in what the process has said, in any spelling.
    fn is_discreet(&self) {
        let log = self.worker.child().log();
        assert!(log.contains("TRACE"), "nothing was traced");
        let said = self.said.join("\n");
        for secret in &self.secrets {
            for spelling in [secret.clone(), secret.replace('@', "%40").replace('/', "%2F")] {
                for text in [&log, &said] {
                    let at = text.find(&spelling);
                    assert!(at.is_none(), "a secret was told: {:?}", at.map(|at| around(text, at)));
                }
            }
        }
    }
}

fn around(text: &str, at: usize) -> &str {
    let begin = text[..at].rfind('\n').map_or(0, |begin| begin + 1);
    let end = text[at..].find('\n').map_or(text.len(), |end| at + end);
    &text[begin..end]
}

/// What is between the first and the last line of a PEM file.
fn body(key: &Path) -> String {
    let pem = std::fs::read_to_string(key).expect("it was written");
    pem.lines().nth(1).unwrap_or_default().to_owned()
}

#[test]
fn f48_not_there() {
    let (etcd, _site) = super::cluster(1);
    let mut client = Traced::new(&["canary-31"]);
    let nobody = free_address();
    client.refused(&format!("etcd://user:canary-31@{nobody}"), &["Refused"]);
    client.refused(&format!("etcd://user:canary-31@{nobody},{nobody}"), &["Refused"]);
    client.refused("etcd://user:canary-31@host.invalid:2379", &["Dns"]);
    client.refused("etcd://user:canary-31@:2379", &["Config"]);
    client.refused("etcd://user:canary-31@127.0.0.1:99999", &["Config"]);
    client.refused("etcd://user:canary-31@127.0.0.1:1?pasword=canary-31", &["Config"]);
    client.refused("etdc://user:canary-31@127.0.0.1:1", &["Config", "Unsupported"]);
    client.refused("etcd://user@127.0.0.1:1", &["Config"]);
    // One of two is enough.
    client.connects(&format!("etcd://{nobody},{}", etcd.authority()));
    client.is_discreet();
}

#[test]
fn f48_silent() {
    let (etcd, _site) = super::cluster(1);
    let proxy = Proxy::start(etcd.node(0).address());
    let mut client = Traced::new(&["canary-32"]);
    let url = format!("etcd://user:canary-32@{}", proxy.address());
    for direction in [Direction::ToServer, Direction::ToClient] {
        proxy.heal();
        proxy.set(direction, Mode::Blackhole);
        client.refused(&url, &["Unavailable"]);
    }
    // Slow is not silent.
    proxy.heal();
    proxy.reset_all();
    proxy.set_both(Mode::Delay(Duration::from_millis(100)));
    client.connects(&format!("etcd://{}", proxy.address()));
    client.is_discreet();
}

#[test]
fn f48_no_quorum() {
    let (etcd, site) = super::cluster(3);
    etcd.node(0).kill();
    etcd.node(1).kill();
    let mut client = Traced::new(&["canary-33"]);
    client.refused(&site.url, &["Unavailable", "Refused"]);
    client.refused(&format!("etcd://{}", etcd.node(2).address()), &["Unavailable"]);
    client.is_discreet();
}

#[test]
fn f48_users() {
    let etcd = Etcd::options().users("coordination/").start();
    let mut client = Traced::new(&["canary-34", USER_PASSWORD, ROOT_PASSWORD]);
    let at = etcd.authority();
    client.refused(&format!("etcd://tester:canary-34@{at}"), &["Auth"]);
    client.refused(&format!("etcd://nobody:canary-34@{at}"), &["Auth"]);
    client.refused(&format!("etcd://{at}"), &["Auth"]);
    // The user's role ends at its prefix.
    let user = Etcd::user_information();
    client.refused(&format!("etcd://{user}{at}/elsewhere"), &["Permission"]);
    client.connects(&format!("etcd://{user}{at}"));
    client.is_discreet();
    let (plain, _site) = super::cluster(1);
    client.refused(&format!("etcd://tester:canary-34@{}", plain.authority()), &["Auth"]);
    client.is_discreet();
}

#[test]
fn f48_certificates() {
    let certificates = Certificates::new();
    let etcd = Etcd::options().tls(Tls::new(&certificates)).start();
    let key = body(&certificates.client.key);
    let mut client = Traced::new(&["canary-35", &key]);
    let at = etcd.authority();
    let ca = certificates.authority.display();
    client.refused(&format!("etcd://{at}"), &["Tls"]);
    client.refused(&format!("etcds://{at}"), &["Tls"]);
    let other = certificates.other_authority.display();
    client.refused(&format!("etcds://{at}?ca={other}"), &["Tls"]);
    client.refused(&format!("etcds://{at}?ca={ca}&server_name=elsewhere.example"), &["Tls"]);
    client.refused(&format!("etcds://{at}?ca=/missing"), &["Config"]);
    client.refused(&format!("etcd://{at}?ca={ca}"), &["Config"]);
    let cert = certificates.client.certificate.display();
    client.refused(&format!("etcds://{at}?ca={ca}&cert={cert}"), &["Config"]);
    client.refused(&format!("etcds://{at}?ca={cert}"), &["Tls"]);
    client.connects(&format!("etcds://{at}?ca={ca}"));
    for (server, name) in
        [(&certificates.wrong_host, "wrong host"), (&certificates.expired, "expired")]
    {
        let etcd = Etcd::options().tls(Tls::new(&certificates).server(server)).start();
        println!("F-48 etcd: {name}");
        client.refused(&format!("etcds://{}?ca={ca}", etcd.authority()), &["Tls"]);
    }
    let (plain, _site) = super::cluster(1);
    client.refused(&format!("etcds://{}?ca={ca}", plain.authority()), &["Tls"]);
    client.is_discreet();
}

#[test]
fn f48_client_certificates() {
    let certificates = Certificates::new();
    let etcd = Etcd::options().tls(Tls::new(&certificates).require_client()).start();
    let (own, other) = (&certificates.client, &certificates.other_client);
    let mut client = Traced::new(&[&body(&own.key), &body(&other.key)]);
    let url = format!("etcds://{}?ca={}", etcd.authority(), certificates.authority.display());
    client.refused(&url, &["Tls"]);
    let with = |identity: &coordination_tests::harness::Identity| {
        let (cert, key) = (identity.certificate.display(), identity.key.display());
        format!("{url}&cert={cert}&key={key}")
    };
    client.refused(&with(other), &["Tls"]);
    client
        .refused(&format!("{url}&cert={0}&key={0}", own.certificate.display()), &["Config", "Tls"]);
    client.connects(&with(own));
    client.is_discreet();
}

/// The server goes away while it is connected to: a typed kind, in time, at every step.
#[test]
fn f48_down_after_connect() {
    let (etcd, site): (Etcd, Site) = super::cluster(1);
    let client = site.process("client");
    etcd.node(0).kill();
    let error = client.acquire_within("it", TTL).expect_err("there is no server");
    assert_eq!(error["kind"], "Unavailable", "{error}");
    etcd.node(0).restart();
    etcd.wait_ready();
    client.acquire_within("it", LONG).expect("it is back");
}
