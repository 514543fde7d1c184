//! F-48: servers to which a client cannot connect, for all kinds of reasons, and secrets that nobody may print. Users
//! and certificates are tested by each store's own tests.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{LONG, Site};
use crate::bounds;
use crate::checks::with_option;
use crate::harness::{Direction, Mode, Worker, ports::free_address};

/// A worker process with tracing on. Its results and its log are searched for secrets.
#[derive(Debug)]
pub struct Traced {
    worker: Worker,
    said: Vec<String>,
    secrets: Vec<String>,
}

impl Traced {
    /// Starts the worker; its output must not contain these secrets.
    pub fn new(worker: &str, secrets: &[&str]) -> Self {
        let worker = Worker::start(worker, "memory://", &[("COORDINATION_WORKER_TRACE", "1")]);
        let secrets = secrets.iter().map(|secret| (*secret).to_owned()).collect();
        Self { worker, said: Vec::new(), secrets }
    }

    fn try_call(&mut self, command: Value) -> Result<Value, Value> {
        let answer = self.worker.try_call(command);
        self.said.push(format!("{answer:?}"));
        answer
    }

    /// Asserts that connecting fails within five seconds, with one of these kinds of error.
    ///
    /// # Panics
    ///
    /// If connecting succeeds, takes longer, or fails with another kind of error.
    pub fn refused(&mut self, url: &str, kinds: &[&str]) {
        self.refused_with(url, kinds, "");
    }

    /// Like [`refused`](Self::refused), and the error's message must contain `word`.
    ///
    /// # Panics
    ///
    /// If connecting succeeds, takes longer, or fails in another way.
    pub fn refused_with(&mut self, url: &str, kinds: &[&str], word: &str) {
        let began = Instant::now();
        let connect = json!({ "command": "connect", "url": url, "ttl_ms": 2_000 });
        let error = self.try_call(connect).expect_err("it should be refused");
        let took = began.elapsed();
        println!("F-48: {} in {took:?}: {}", error["kind"], error["message"]);
        let kind = error["kind"].as_str().unwrap_or_default();
        assert!(kinds.contains(&kind), "{url}: {error} instead of {kinds:?}");
        assert!(took <= bounds::connected(), "{url}: {error} took {took:?}");
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains(word), "{message:?} does not speak of {word:?}");
    }

    /// Asserts that the worker can connect, acquire a lock and stop.
    ///
    /// # Panics
    ///
    /// If one of the three fails.
    pub fn connects(&mut self, url: &str) {
        let connect = json!({ "command": "connect", "url": url, "ttl_ms": 2_000 });
        self.try_call(connect).unwrap_or_else(|error| panic!("{error}"));
        self.try_call(json!({ "command": "acquire", "lock": "it", "timeout_ms": 2_000 }))
            .unwrap_or_else(|error| panic!("{error}"));
        self.try_call(json!({ "command": "stop" })).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Asserts that none of the secrets is in the worker's output, plain or encoded for a URL.
    ///
    /// # Panics
    ///
    /// If a secret is in the output.
    pub fn is_discreet(&self) {
        let log = self.worker.child().log();
        let is_traced = ["TRACE", "DEBUG"].iter().any(|level| log.contains(level));
        assert!(is_traced, "nothing was traced");
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

/// F-48: nobody listens at the address, or the address cannot exist.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f48_not_there(site: &Site) {
    let mut client = Traced::new(&site.worker, &["canary-31"]);
    let at = |authority: &str| {
        let user = site.server().user_information("canary-31");
        site.server().url(&format!("{user}{authority}"), "")
    };
    let (scheme, nobody) = (site.server().scheme(), free_address());
    client.refused(&at(&nobody.to_string()), &["Refused"]);
    client.refused(&at("host.invalid:2379"), &["Dns"]);
    client.refused(&at(":2379"), &["Config"]);
    client.refused(&at("127.0.0.1:99999"), &["Config"]);
    let misspelt = with_option(&at("127.0.0.1:1"), "pasword=canary-31");
    client.refused(&misspelt, &["Config"]);
    let unknown = at("127.0.0.1:1").replacen(scheme, "etdc", 1);
    client.refused(&unknown, &["Config", "Unsupported"]);
    client.connects(&site.url);
    client.is_discreet();
}

/// F-48: nobody listens at any of several addresses; if somebody listens at one of two, connecting works.
pub fn f48_not_all_there(site: &Site) {
    let mut client = Traced::new(&site.worker, &["canary-31"]);
    let (nobody, there) = (free_address(), site.server().authority());
    let user = site.server().user_information("canary-31");
    client.refused(&site.at(format!("{user}{nobody},{nobody}")).url, &["Refused"]);
    client.connects(&site.at(format!("{nobody},{there}")).url);
    client.is_discreet();
}

/// F-48: the server accepts connections and never answers.
pub fn f48_silent(site: &Site) {
    let proxy = site.server().proxy_to(0);
    let mut client = Traced::new(&site.worker, &["canary-32"]);
    let user = site.server().user_information("canary-32");
    let url = site.at(format!("{user}{}", proxy.address())).url;
    for direction in [Direction::ToServer, Direction::ToClient] {
        proxy.heal();
        proxy.set(direction, Mode::Blackhole);
        client.refused(&url, &["Unavailable"]);
    }
    // A server that is only slow can be connected to.
    proxy.heal();
    proxy.reset_all();
    proxy.set_both(Mode::Delay(Duration::from_millis(100)));
    client.connects(&site.at(proxy.address()).url);
    client.is_discreet();
}

/// F-48: connecting works if one of two servers never answers, whatever the heartbeat interval is.
pub fn f48_silent_first(site: &Site) {
    let (proxy, there) = (site.server().proxy_to(0), site.server().authority());
    proxy.set_both(Mode::Blackhole);
    let mut client = Traced::new(&site.worker, &[]);
    for heartbeat in [500, 8_000] {
        // Tries both orders of the two addresses, because the client may begin with either.
        for authority in
            [format!("{},{there}", proxy.address()), format!("{there},{}", proxy.address())]
        {
            let url = site.at(authority).url;
            let connect = json!({
                "command": "connect", "url": url, "ttl_ms": 60_000, "heartbeat_ms": heartbeat,
            });
            client.try_call(connect).unwrap_or_else(|error| panic!("{heartbeat} ms: {error}"));
        }
    }
}

/// F-48: of three servers only one runs, which is no majority, so no client can connect.
pub fn f48_no_quorum(site: &Site) {
    site.server().node(0).kill();
    site.server().node(1).kill();
    let mut client = Traced::new(&site.worker, &[]);
    client.refused(&site.url, &["Unavailable", "Refused"]);
    client.refused(&site.at(site.server().node(2).address()).url, &["Unavailable"]);
    client.is_discreet();
}

/// F-48: the server goes away after a client has connected: each call then fails in time, with the right kind of error.
pub fn f48_down_after_connect(site: &Site) {
    let client = site.process("client");
    site.server().node(0).kill();
    let error = client.acquire_within("it", site.lease()).expect_err("there is no server");
    assert_eq!(error["kind"], "Unavailable", "{error}");
    site.server().node(0).restart();
    site.server().wait_ready();
    client.acquire_within("it", LONG).expect("it is back");
}
