//! A command whose lock is lost is dead before the next one starts, whatever it is lost by.
//!
//! The gate sees it five times for each way to lose it, the soak a hundred times. The commands tell by themselves: each
//! takes a lock of the kernel's (`flock -n`) for as long as it lives, so that one that starts too early ends at once, with
//! a code of its own.

use std::sync::{Mutex, MutexGuard};

use coordination_tests::harness::{Direction, Mode, Proxy, Server, Setup, wait_until};
use coordination_tests::must_hold_unless_starved;
use rustix::process::Signal;

use super::{LONG, Store, Wrapper, is_alive, output, stdout, written};

/// For those with many pairs: a hundred processes are enough for two processors.
static TURN: Mutex<()> = Mutex::new(());
/// How many are started at a time.
const AT_ONCE: usize = 5;

/// A holder whose command runs, and another who waits.
struct Pair {
    holder: Wrapper,
    waiter: Wrapper,
}

/// The server, and two ways to it.
struct Site<S> {
    server: S,
    proxy: Proxy,
    /// Of one who holds and one who waits, at a time.
    pairs: usize,
    /// In seconds.
    ttl: u64,
    /// What the URLs of those who hold have besides.
    far: &'static str,
    round: usize,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl<S: Server> Site<S> {
    fn new(pairs: usize) -> Self {
        let turn = || TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let turn = (pairs > AT_ONCE).then(turn);
        let server = S::set_up(&Setup::of(1));
        let proxy = Proxy::start(server.node(0).address());
        let ttl = server.ttl().as_secs();
        Self { server, proxy, pairs, ttl, far: "", round: 0, _turn: turn }
    }

    /// Each pair with a lock of its own; those who hold come by the proxy.
    fn pairs(&mut self) -> (Store, Vec<Pair>) {
        self.round += 1;
        let round = self.round;
        let url = |address: &str| {
            let url = self.server.url(address, &format!("apart-{round}"));
            let joint = if url.contains('?') { '&' } else { '?' };
            format!("{url}{joint}ttl={}s", self.ttl)
        };
        let near = Store::at(url(&self.server.authority()));
        let start = |who: &str, nth: usize, url: &str, then: &str| {
            let started = near.path(&format!("{who}-{nth}"));
            let alive = near.path(&format!("alive-{nth}"));
            let text = format!(
                "#!/bin/sh\nexec flock -n -E 99 {} sh -c 'echo $$ > {}; {then}'\n",
                alive.display(),
                started.display()
            );
            let command = near.script(&format!("{who}-{nth}.sh"), &text);
            let mut coordination =
                near.coordination(["run", "--quiet", "--lock", &format!("x{nth}"), "--", &command]);
            Wrapper::start(coordination.env("COORDINATION_URL", url))
        };
        let far = url(&self.proxy.address().to_string()) + self.far;
        let entries = || self.server.entries(&format!("apart-{round}"), "lock").len();
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        // Few at a time: who connects has some tenths of a second for each step.
        for nth in 0..self.pairs {
            holders.push(start("holder", nth, &far, "sleep 60"));
            if nth % AT_ONCE == AT_ONCE - 1 {
                (0..=nth).for_each(|nth| drop(written(&near.path(&format!("holder-{nth}")))));
            }
        }
        for nth in 0..self.pairs {
            waiters.push(start("waiter", nth, &near.url, "exit 0"));
            if nth % AT_ONCE == AT_ONCE - 1 {
                assert!(
                    wait_until(LONG, || entries() == self.pairs + nth + 1),
                    "{} entries",
                    entries()
                );
            }
        }
        let pairs = holders.into_iter().zip(waiters);
        (near, pairs.map(|(holder, waiter)| Pair { holder, waiter }).collect())
    }
}

/// Both have ended, the holder by its loss, and the waiter's command never met the holder's.
fn assert_kept_apart(pairs: Vec<Pair>, holders_code: Option<i32>) {
    for (nth, mut pair) in pairs.into_iter().enumerate() {
        let code = pair.waiter.code();
        must_hold_unless_starved!(code != Some(99), "pair {nth}: both ran");
        assert_eq!(code, Some(0), "pair {nth}");
        assert_eq!(pair.holder.status().code(), holders_code, "pair {nth}");
    }
}

pub(crate) fn server_stands_still<S: Server>(rounds: usize, pairs: usize) {
    let mut site = Site::<S>::new(pairs);
    for _ in 0..rounds {
        let (_store, pairs) = site.pairs();
        site.server.node(0).pause();
        std::thread::sleep(site.server.ttl().mul_f32(1.5));
        site.server.node(0).resume();
        assert_kept_apart(pairs, Some(70));
    }
}

pub(crate) fn network_is_cut<S: Server>(rounds: usize, pairs: usize) {
    let mut site = Site::<S>::new(pairs);
    for round in 0..rounds {
        let (_store, pairs) = site.pairs();
        match round % 3 {
            0 => site.proxy.set(Direction::ToServer, Mode::Blackhole),
            1 => site.proxy.set_both(Mode::Blackhole),
            _ => {
                site.proxy.refuse();
                site.proxy.reset_all();
            }
        }
        assert_kept_apart(pairs, Some(70));
        site.proxy.accept();
        site.proxy.heal();
    }
}

pub(crate) fn session_is_revoked<S: Server>(rounds: usize, pairs: usize) {
    let mut site = Site::<S>::new(pairs);
    for _ in 0..rounds {
        let (_store, pairs) = site.pairs();
        let namespace = format!("apart-{}", site.round);
        let mut entries = site.server.entries(&namespace, "lock");
        entries.sort_by_key(|entry| site.server.token_of(entry));
        for entry in entries.iter().take(site.pairs) {
            let session = site.server.session_of(entry).expect("it has one");
            assert!(site.server.end_session(&session));
        }
        assert_kept_apart(pairs, Some(70));
    }
}

/// Nobody can act who stands still: the process that watches does.
pub(crate) fn wrapper_stands_still<S: Server>(rounds: usize, pairs: usize) {
    let mut site = Site::<S>::new(pairs);
    for _ in 0..rounds {
        let (_store, pairs) = site.pairs();
        pairs.iter().for_each(|pair| pair.holder.signal(Signal::STOP));
        let pairs = pairs.into_iter().map(|mut pair| {
            let code = pair.waiter.code();
            must_hold_unless_starved!(code != Some(99), "both ran");
            assert_eq!(code, Some(0));
            pair.holder.signal(Signal::CONT);
            pair
        });
        assert_kept_apart(pairs.collect(), Some(70));
    }
}

pub(crate) fn wrapper_is_killed<S: Server>(rounds: usize, pairs: usize) {
    let mut site = Site::<S>::new(pairs);
    for _ in 0..rounds {
        let (_store, pairs) = site.pairs();
        pairs.iter().for_each(|pair| pair.holder.signal(Signal::KILL));
        assert_kept_apart(pairs, None);
    }
}

/// By an operator, and the URLs of those who hold ask for few heartbeats.
pub(crate) fn lock_is_broken<S: Server>(rounds: usize, pairs: usize) {
    let mut site = Site::<S>::new(pairs);
    (site.ttl, site.far) = (30, "&heartbeat=5s");
    for _ in 0..rounds {
        let (store, pairs) = site.pairs();
        for nth in 0..pairs.len() {
            assert!(is_broken(&store, &format!("x{nth}")));
        }
        assert_kept_apart(pairs, Some(70));
    }
}

/// Somebody waits for it, or comes afterwards.
pub(crate) fn on_one_host_lock_is_broken(rounds: usize) {
    for round in 0..rounds {
        let store = Store::file();
        let command = |who: &str, then: &str| {
            let (alive, started) = (store.path("alive"), store.path(who));
            let text = format!(
                "#!/bin/sh\nexec flock -n -E 99 {} sh -c 'echo $$ > {}; {then}'\n",
                alive.display(),
                started.display()
            );
            store.script(&format!("{who}.sh"), &text)
        };
        let holder = store.start(&format!("--lock x -- {}", command("holder", "sleep 60")));
        written(&store.path("holder"));
        let follow = || store.start(&format!("--lock x -- {}", command("waiter", "exit 0")));
        let waiter = (round % 2 == 0).then(follow);
        if waiter.is_some() {
            let lines = || {
                let status = output(&mut store.coordination(["status", "x"]));
                stdout(&status).lines().count()
            };
            assert!(wait_until(LONG, || lines() == 3), "it waits");
        }
        assert!(is_broken(&store, "x"));
        let waiter = waiter.unwrap_or_else(follow);
        assert_kept_apart(vec![Pair { holder, waiter }], Some(70));
    }
}

/// A wrapper that stands still cannot be told: who follows waits for it once, and for a time.
pub(crate) fn on_one_host_wrapper_stands_still() {
    let store = Store::file();
    let (mut holder, command) = store.running("--lock x");
    holder.signal(Signal::STOP);
    assert!(is_broken(&store, "x"));
    for _ in 0..2 {
        assert_eq!(store.run("--lock x -- true").status.code(), Some(0));
    }
    holder.signal(Signal::CONT);
    assert_eq!(holder.code(), Some(70));
    assert!(!is_alive(&command));
}

fn is_broken(store: &Store, lock: &str) -> bool {
    output(&mut store.coordination(["break", lock, "--yes"])).status.success()
}
