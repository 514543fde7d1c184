//! Three network namespaces in a line, client – router – server, for tests in which packets are lost before any kernel
//! acknowledges them.
//!
//! [`Proxy`](super::Proxy) can only drop bytes that it has read, and by then the proxy's kernel has acknowledged them
//! to the sender. In these namespaces, a `blackhole` route of the router drops the packets before any kernel
//! acknowledges them. So TCP retransmits them again and again, and a new connection gets no answer at all.
//!
//! [`within`] runs a test again, as a child process in a new network namespace. This is the server's namespace; it has
//! its own loopback, so that everything else in this harness works as usual. The namespaces of client and router belong
//! to two processes that do nothing. No namespace has a name, so each disappears with its processes, however these end.
//! The machine's own network is not touched.
//!
//! All this requires root, or the right to create user namespaces.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use super::rerun::count_fault;
use super::violation::why;
use super::{Child, Direction, Launch, Scratch, wait_until, write_script};

/// The environment variable that is set in the child process which runs in the namespace.
const INSIDE: &str = "COORDINATION_TEST_NETNS";
/// How long the child process may run. This is longer than any such test takes.
const LIMIT: Duration = Duration::from_secs(120);

/// The server's address, as the client reaches it.
pub const SERVER: &str = "10.77.1.1";
const SERVER_SIDE: &str = "10.77.1.2";
const CLIENT_SIDE: &str = "10.77.2.2";
const CLIENT: &str = "10.77.2.1";

/// Whether this process is the child that [`within`] started.
pub(super) fn is_inside() -> bool {
    env::var_os(INSIDE).is_some()
}

/// Runs `body` in a new network namespace. `name` is the name of the test with its crate and modules, by which the
/// child process runs it.
///
/// # Panics
///
/// If the body fails, or if this machine does not allow namespaces. In the latter case the test could be skipped, but
/// that would hide that it proves nothing.
pub fn within(name: &str, body: impl FnOnce(&Lines)) {
    if is_inside() {
        return body(&Lines::new());
    }
    let (_, name) = name.split_once("::").expect("a crate and a test");
    let scratch = Scratch::new("netns");
    let unshare = unshare();
    let test = env::current_exe().expect("the test runs");
    let words = unshare[1..].iter().map(String::as_str).chain([
        test.to_str().expect("cargo's names are text"),
        "--exact",
        name,
        "--nocapture",
    ]);
    let launch = Launch::new(&unshare[0], scratch.join("test.log")).args(words);
    let child = launch.env(INSIDE, "1").start();
    let status = child.wait(LIMIT);
    let log = child.log();
    println!("{log}");
    assert!(
        status.is_some_and(|status| status.success()),
        "{name} in its namespace: {status:?}, {}",
        why(&log)
    );
    assert!(log.contains("1 passed"), "there is no test called {name}");
}

/// The first words of a command line: they run the program whose command line follows them, in a new network namespace.
fn unshare() -> Vec<String> {
    let plain = ["unshare", "--net", "--"];
    let as_user = ["unshare", "--net", "--user", "--map-root-user", "--"];
    let allowed = |words: &[&str]| {
        let tried = Command::new(words[0]).args(&words[1..]).arg("true").output();
        tried.is_ok_and(|tried| tried.status.success())
    };
    let words = [&plain[..], &as_user[..]].into_iter().find(|words| allowed(words));
    let words = words.expect(
        "this machine allows no network namespaces, neither to this user nor by user namespaces; run the tests \
         as root, with `unshare` of util-linux and `ip` of iproute2 installed",
    );
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The virtual network between the namespaces of client and server. This process is in the server's namespace.
#[derive(Debug)]
pub struct Lines {
    router: Child,
    client: Child,
    scratch: Scratch,
}

impl Lines {
    fn new() -> Self {
        let scratch = Scratch::new("lines");
        let [router, client] = ["router", "client"].map(|name| {
            let launch = Launch::new("unshare", scratch.join(format!("{name}.log")));
            launch.args(["--net", "--", "sleep", "infinity"]).start()
        });
        let lines = Self { router, client, scratch };
        for child in [&lines.router, &lines.client] {
            let own = fs::read_link("/proc/self/ns/net").expect("every process has one");
            let is_apart = || {
                let its = fs::read_link(namespace(child));
                its.is_ok_and(|its| its != own)
            };
            assert!(wait_until(Duration::from_secs(5), is_apart), "{}", child.log());
        }
        lines.lay();
        lines
    }

    fn lay(&self) {
        let (router, client) = (namespace(&self.router), namespace(&self.client));
        let (router_ns, client_ns) = (router.display(), client.display());
        ip("link set lo up");
        ip(&format!("link add server0 type veth peer name router0 netns {router_ns}"));
        self.router_ip(&format!("link add router1 type veth peer name client0 netns {client_ns}"));
        ip(&format!("address add {SERVER}/24 dev server0"));
        ip("link set server0 up");
        for (address, device) in [(SERVER_SIDE, "router0"), (CLIENT_SIDE, "router1")] {
            self.router_ip(&format!("address add {address}/24 dev {device}"));
            self.router_ip(&format!("link set {device} up"));
        }
        self.client_ip(&format!("address add {CLIENT}/24 dev client0"));
        self.client_ip("link set client0 up");
        ip(&format!("route add {CLIENT} via {SERVER_SIDE}"));
        self.client_ip(&format!("route add {SERVER} via {CLIENT_SIDE}"));
        // Each network namespace has its own `ip_forward`, and a process can set only the one of the namespace in which
        // it runs. So this command runs in the router's namespace.
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        run(enter(&router).args(["sh", "-c", forward]));
    }

    /// Makes the router drop all packets in these directions from now on.
    pub fn lose(&self, ways: &[Direction]) {
        count_fault();
        for way in ways {
            self.router_ip(&format!("route add blackhole {}/32", target(*way)));
        }
    }

    /// Makes the router forward the packets in these directions again.
    pub fn heal(&self, ways: &[Direction]) {
        for way in ways {
            self.router_ip(&format!("route del blackhole {}/32", target(*way)));
        }
    }

    /// Writes a script that runs `program` in the client's namespace, and returns the script's path. The script is
    /// removed when this value is dropped.
    ///
    /// # Panics
    ///
    /// When the script cannot be written.
    pub fn at_client(&self, program: &str) -> String {
        let script = self.scratch.join("at-client");
        let namespace = namespace(&self.client);
        // `exec` replaces the shell by the program. So if a test pauses or kills the process, it hits the program
        // itself.
        let text =
            format!("#!/bin/sh\nexec nsenter --net={} {program} \"$@\"\n", namespace.display());
        write_script(&script, &text);
        script.display().to_string()
    }

    fn router_ip(&self, words: &str) {
        run(enter(&namespace(&self.router)).arg("ip").args(words.split(' ')));
    }

    fn client_ip(&self, words: &str) {
        run(enter(&namespace(&self.client)).arg("ip").args(words.split(' ')));
    }
}

/// The destination address of packets in this direction.
fn target(way: Direction) -> &'static str {
    match way {
        Direction::ToServer => SERVER,
        Direction::ToClient => CLIENT,
    }
}

fn namespace(of: &Child) -> PathBuf {
    PathBuf::from(format!("/proc/{}/ns/net", of.id()))
}

fn enter(namespace: &std::path::Path) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", namespace.display()));
    command
}

fn ip(words: &str) {
    run(Command::new("ip").args(words.split(' ')));
}

fn run(command: &mut Command) {
    let output =
        command.output().expect("`ip` of iproute2 and `nsenter` of util-linux are installed");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
