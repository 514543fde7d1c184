//! What a command runs under is taken away by `break` from a holder that is not told: it stands still, or is cut off from the store. The
//! next command starts when that holder's has ended, and not before.
//!
//! The commands tell by themselves, by a lock of the kernel's, as in [`kept_apart`](crate::kept_apart).

use std::fs::File;
use std::process::{Command, Stdio};

use coordination::Coordinator;
use coordination_tests::harness::{Mode, Proxy, Server, Setup, wait_until};
use coordination_tests::must_hold_unless_starved;
use rustix::process::Signal;
use serde_json::Value;

use super::{LONG, Store, Wrapper, output, stderr, stdout, written};

/// The code of a command that finds another one running.
const OVERLAP: i32 = 99;
/// What is broken, as `break` calls it, and what holds it.
const KINDS: [(&str, &str); 4] = [
    ("lock", "run --lock x"),
    ("semaphore", "run --semaphore x:1"),
    ("limiter", "run --singleton x"),
    ("election", "elect x"),
];
/// Longer than any check waits, so that what is seen is not the end of the lease. In seconds.
const ENDLESS: u64 = 90;

/// One who holds something, and whose command runs.
struct Holder<'a> {
    store: &'a Store,
    recipe: &'static str,
    words: &'static str,
    wrapper: Wrapper,
}

impl<'a> Holder<'a> {
    /// By this way to the store.
    fn start(store: &'a Store, url: &str, (recipe, words): (&'static str, &'static str)) -> Self {
        let alive = store.path(&format!("alive-{recipe}"));
        let started = store.path(&format!("started-{recipe}"));
        let _ = std::fs::remove_file(&started);
        let text = format!(
            "#!/bin/sh\nexec flock -n -E {OVERLAP} {} sh -c 'echo $$ > {}; exec sleep 120'\n",
            alive.display(),
            started.display()
        );
        let command = store.script(&format!("holds-{recipe}"), &text);
        let mut coordination = store.coordination(words.split(' '));
        coordination.args(["--quiet", "--", &command]).env("COORDINATION_URL", url);
        let wrapper = Wrapper::start(&mut coordination);
        written(&started);
        Self { store, recipe, words, wrapper }
    }

    fn is_broken(&self) {
        let said = self.is_broken_with(&[]);
        assert!(said.contains("the next command under it starts when this holder's has"), "{said}");
    }

    /// Answers what is said.
    fn is_broken_with(&self, more: &[&str]) -> String {
        let words = ["break", "x", "--yes", "--recipe", self.recipe];
        let broken = output(self.store.coordination(words).args(more));
        assert_eq!(broken.status.code(), Some(0), "{}", stderr(&broken));
        stderr(&broken)
    }

    /// The next one, whose code says whether it met the holder's command, and what it has said.
    fn next(&self, more: &[&str]) -> (Wrapper, impl Fn() -> String + use<>) {
        let log = self.store.path(&format!("log-{}", self.recipe));
        let alive = self.store.path(&format!("alive-{}", self.recipe)).display().to_string();
        let (file, code) =
            (File::create(&log).expect("the directory is there"), OVERLAP.to_string());
        let mut coordination = self.store.coordination(self.words.split(' '));
        coordination.args(more).args(["--", "flock", "-n", "-E", &code, &alive, "true"]);
        let next = coordination.stdout(Stdio::null()).stderr(file).spawn().expect("it was built");
        (Wrapper(next), move || std::fs::read_to_string(&log).unwrap_or_default())
    }
}

/// Checks a holder of each kind, one after the other, whose lease does not end meanwhile.
fn of_each_kind<S: Server>(check: impl Fn(&Store, Holder<'_>)) {
    let server = S::set_up(&Setup::of(1));
    let store = Store::at(url(&server, &server.authority(), ENDLESS));
    for kind in KINDS {
        check(&store, Holder::start(&store, &store.url, kind));
    }
}

/// It waits for the command of the former holder.
fn assert_waits(next: &mut Wrapper, log: &impl Fn() -> String) {
    let is_told = || log().contains("waiting for the former command under ");
    assert!(wait_until(LONG, is_told) && next.is_running(), "{}", log());
}

/// All of them have ended, and none met the holder's command.
fn assert_kept_apart(nexts: Vec<(Wrapper, impl Fn() -> String)>) {
    for (mut next, log) in nexts {
        let code = next.code();
        must_hold_unless_starved!(code != Some(OVERLAP), "both ran: {}", log());
        assert_eq!(code, Some(0), "{}", log());
    }
}

fn url(server: &impl Server, authority: &str, ttl: u64) -> String {
    let url = server.url(authority, "broken");
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}ttl={ttl}s")
}

/// A lease that ends while somebody waits, much later than the next one would start that does not.
fn short(server: &impl Server) -> u64 {
    (2 * server.ttl().as_secs()).max(5)
}

/// Nobody lets it go on, so its watch ends the command at the deadline.
pub(crate) fn holder_stands_still<S: Server>() {
    let server = S::set_up(&Setup::of(1));
    let store = Store::at(url(&server, &server.authority(), short(&server)));
    let mut holders = KINDS.map(|kind| Holder::start(&store, &store.url, kind));
    holders.iter().for_each(|holder| holder.wrapper.signal(Signal::STOP));
    holders.iter().for_each(Holder::is_broken);
    assert_kept_apart(holders.iter().map(|holder| holder.next(&[])).collect());
    for holder in &mut holders {
        holder.wrapper.signal(Signal::CONT);
        assert_eq!(holder.wrapper.code(), Some(70), "{}", holder.recipe);
    }
}

pub(crate) fn holder_is_cut_off<S: Server>() {
    let server = S::set_up(&Setup::of(1));
    let proxy = Proxy::start(server.node(0).address());
    let store = Store::at(url(&server, &server.authority(), short(&server)));
    let far = url(&server, &proxy.address().to_string(), short(&server));
    let mut holders = KINDS.map(|kind| Holder::start(&store, &far, kind));
    proxy.set_both(Mode::Blackhole);
    holders.iter().for_each(Holder::is_broken);
    assert_kept_apart(holders.iter().map(|holder| holder.next(&[])).collect());
    for holder in &mut holders {
        assert_eq!(holder.wrapper.code(), Some(70), "{}", holder.recipe);
    }
}

/// It is told then, and ends its command long before its lease ends.
pub(crate) fn holder_goes_on<S: Server>() {
    let server = S::set_up(&Setup::of(1));
    let store = Store::at(url(&server, &server.authority(), ENDLESS));
    goes_on(&store);
}

fn goes_on(store: &Store) {
    let mut holders = KINDS.map(|kind| Holder::start(store, &store.url, kind));
    holders.iter().for_each(|holder| holder.wrapper.signal(Signal::STOP));
    holders.iter().for_each(Holder::is_broken);
    let mut nexts: Vec<_> = holders.iter().map(|holder| holder.next(&[])).collect();
    for (next, log) in &mut nexts {
        assert_waits(next, log);
    }
    holders.iter().for_each(|holder| holder.wrapper.signal(Signal::CONT));
    assert_kept_apart(nexts);
    for holder in &mut holders {
        assert_eq!(holder.wrapper.code(), Some(70), "{}", holder.recipe);
    }
    assert_eq!(marks(store), 0, "nobody has to wait any more");
}

/// One who asks for that does not wait, and leaves the wait to those who follow.
pub(crate) fn next_is_hasty<S: Server>() {
    of_each_kind::<S>(|_, mut holder| {
        holder.wrapper.signal(Signal::STOP);
        holder.is_broken();
        let (mut hasty, log) = holder.next(&["--settle", "0"]);
        assert_eq!(hasty.code(), Some(OVERLAP), "{}: {}", holder.recipe, log());
        let (mut next, log) = holder.next(&[]);
        assert_waits(&mut next, &log);
        holder.wrapper.signal(Signal::CONT);
        assert_eq!(holder.wrapper.code(), Some(70), "{}", holder.recipe);
        assert_eq!(next.code(), Some(0), "{}", log());
    });
}

/// Nobody waits for its command, which never began.
pub(crate) fn next_is_broken_too<S: Server>() {
    of_each_kind::<S>(|store, mut holder| {
        holder.wrapper.signal(Signal::STOP);
        holder.is_broken();
        let (mut next, log) = holder.next(&[]);
        assert_waits(&mut next, &log);
        holder.is_broken();
        assert_eq!(next.code(), Some(70), "{}", log());
        assert_eq!(marks(store), 1, "{}: of the one that stands still", holder.recipe);
        holder.wrapper.signal(Signal::CONT);
        assert_eq!(holder.wrapper.code(), Some(70), "{}", holder.recipe);
        assert_eq!(marks(store), 0, "{}", holder.recipe);
    });
}

/// Its host is down, as the operator knows and the store does not: nobody waits for the lease.
pub(crate) fn holder_has_ended<S: Server>() {
    of_each_kind::<S>(|store, holder| {
        holder.wrapper.signal(Signal::KILL);
        let alive = store.path(&format!("alive-{}", holder.recipe)).display().to_string();
        let is_free = || {
            let mut looks = Command::new("flock");
            looks.args(["-n", &alive, "true"]).status().is_ok_and(|status| status.success())
        };
        assert!(wait_until(LONG, is_free), "its watch ends the command");
        let said = holder.is_broken_with(&["--ended"]);
        assert!(said.contains("nobody waits"), "{said}");
        assert_kept_apart(vec![holder.next(&[])]);
        assert_eq!(marks(store), 0, "{}", holder.recipe);
    });
}

/// Of one that waits no command runs, nor of one of which the operator says so.
pub(crate) fn nobody_goes_on() {
    let store = Store::file();
    let holder = Holder::start(&store, &store.url, KINDS[1]);
    let (mut waits, _) = holder.next(&["--member-id", "waits"]);
    let token = || -> Option<u64> {
        let all = output(&mut store.coordination(["status", "x", "--json"]));
        let all: Vec<Value> = serde_json::from_str(&stdout(&all)).expect("an array");
        all.iter().find(|row| row["member"] == "waits")?["token"].as_u64()
    };
    assert!(wait_until(LONG, || token().is_some()));
    let token = token().expect("it waits").to_string();
    let said = holder.is_broken_with(&["--token", &token]);
    assert!(said.contains("the end of the queue"), "{said}");
    assert_eq!(marks(&store), 0);
    assert!(waits.is_running());
    drop(waits);
    holder.wrapper.signal(Signal::STOP);
    let said = holder.is_broken_with(&["--ended"]);
    assert!(said.contains("nobody waits"), "{said}");
    assert_eq!(marks(&store), 0);
}

/// Without a lease: one who is told is waited for, and one who stands still for a moment.
pub(crate) fn on_one_host(rounds: usize) {
    let store = Store::file();
    for kind in KINDS.into_iter().cycle().take(rounds * KINDS.len()) {
        let mut holder = Holder::start(&store, &store.url, kind);
        holder.is_broken();
        assert_kept_apart(vec![holder.next(&[])]);
        assert_eq!(holder.wrapper.code(), Some(70), "{}", holder.recipe);
    }
    goes_on(&store);
}

/// How many marks the store has of what was broken.
fn marks(store: &Store) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("threads").block_on(async {
        let coordinator = Coordinator::connect(&store.url).await.expect("it is there");
        let marks = coordinator.broken::<Vec<Value>>().expect("a short name");
        let found = marks.read().await.expect("it is there");
        coordinator.stop().await.expect("it is there");
        found.map_or(0, |found| found.value.len())
    })
}
