//! The short ways of `enter` and `leave`, which the server takes for a lock that nobody else wants: that they do what the long ones
//! do, and that they are taken.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use coordination::Coordinator;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{PATIENCE, SqlServer, ask, make, one, url};

const SEEDS: u64 = 4;
const STEPS: usize = 160;
/// How many steps are sent to the server at once.
const BATCH: usize = 10;
/// In the statements this stands for the name of one of two groups of sessions and queues. The same steps are carried out in both.
const GROUP: &str = "~";
/// A number with at least as many digits is a time or an entry's number, which differ between the groups.
const LONG: usize = 5;

/// S1: random steps have the same answers and the same effects by the short ways as by the long ones. In the second group nothing is
/// ever known of where a queue begins, so that all steps take the long ways.
pub(crate) async fn s1_short_ways_do_what_long_ones_do<S: SqlServer>() {
    let server = one::<S>();
    make(&*server).await;
    let mut were_empty = 0;
    for seed in 0..SEEDS {
        for table in ["entries", "queues", "sessions"] {
            ask(&*server, &format!("DELETE FROM {}", S::table(table)));
        }
        let steps = Steps::<S>::of(seed);
        let [(short, empty), (long, never)] = [("g1", true), ("g2", false)]
            .map(|(group, may_be_short)| carry_out(&*server, &steps, group, may_be_short));
        assert_eq!(never, 0, "seed {seed}: queues that are known to be empty");
        let differing = short.iter().zip(&long).position(|(short, long)| short != long);
        let around = |place: usize| place.saturating_sub(8)..=place;
        if let Some(place) = differing {
            panic!("seed {seed}: {:#?} and {:#?}", &short[around(place)], &long[place]);
        }
        assert_eq!(short.len(), long.len(), "seed {seed}");
        assert!(!short.iter().any(|line| line.contains("outside")), "seed {seed}: {short:#?}");
        were_empty += empty;
    }
    println!("{were_empty} times a queue was known to be empty");
    assert!(were_empty >= 30, "{were_empty}");
}

/// Carries out the steps in this group. Returns the answers and what the tables have after each step, without what differs between the
/// groups; and how often a queue was known to be empty before a step.
fn carry_out<S: SqlServer>(
    server: &S,
    steps: &[String],
    group: &str,
    may_be_short: bool,
) -> (Vec<String>, usize) {
    let (entries, queues, sessions) =
        (S::table("entries"), S::table("queues"), S::table("sessions"));
    let long = format!("UPDATE {queues} SET first = 0");
    let empty = format!("SELECT 'empty' FROM {queues} WHERE first > last AND path LIKE '~/%'");
    let state = format!(
        "SELECT q.path, e.id, e.session, e.shared, e.text FROM {entries} e JOIN {queues} q ON q.id = e.queue
           WHERE q.path LIKE '~/%' ORDER BY q.path, e.seq;
         SELECT id, generation, expires > 1 FROM {sessions} WHERE id LIKE '~s%' ORDER BY id;
         SELECT 'outside', e.seq, q.first, q.last FROM {entries} e JOIN {queues} q ON q.id = e.queue
           WHERE e.seq < q.first OR e.seq > q.last"
    );
    let mut lines = Vec::new();
    for batch in steps.chunks(BATCH) {
        let one = |step: &String| match may_be_short {
            true => format!("{empty}; {step}; {state}"),
            false => format!("{long}; {empty}; {step}; {state}"),
        };
        let all: Vec<_> = batch.iter().map(one).collect();
        let statements = format!("{}; {}", S::BY_HAND, all.join("; "));
        let answer = ask(server, &statements.replace(GROUP, group));
        lines.extend(answer.lines().map(|line| comparable(line, group)));
    }
    let all = lines.len();
    lines.retain(|line| line != "empty");
    let empty = all - lines.len();
    (lines, empty)
}

/// A line of an answer without the group's name and without times and numbers.
fn comparable(line: &str, group: &str) -> String {
    let is_long = |word: &str| word.len() >= LONG && word.bytes().all(|byte| byte.is_ascii_digit());
    let word = |word: &str| match is_long(word) {
        true => "#".to_owned(),
        false => word.strip_prefix(group).unwrap_or(word).to_owned(),
    };
    line.split(['|', '\t']).map(word).collect::<Vec<_>>().join(" ")
}

/// Makes random steps. They do not depend on answers: a step finds the number of an entry by the entry's id.
struct Steps<S> {
    random: StdRng,
    /// How many sessions were opened, and which of them are not over.
    opened: usize,
    sessions: Vec<String>,
    /// The entries that were entered and not left, as far as the steps know: session, path and id.
    entries: Vec<[String; 3]>,
    made: Vec<String>,
    server: PhantomData<S>,
}

impl<S: SqlServer> Steps<S> {
    fn of(seed: u64) -> Vec<String> {
        let random = StdRng::seed_from_u64(seed);
        let (sessions, entries, made) = (Vec::new(), Vec::new(), Vec::new());
        let server = PhantomData;
        let mut steps = Self { random, opened: 0, sessions, entries, made, server };
        steps.open();
        steps.open();
        while steps.made.len() < STEPS {
            steps.step();
        }
        steps.made
    }

    fn step(&mut self) {
        // Later steps come on newer connections, and a few come late, on an older one.
        let generation = 1 + self.made.len() / 40 - usize::from(self.is(5));
        let known = self.entries.choose(&mut self.random).cloned();
        match (self.random.random_range(0..100), known) {
            (0..38, known) => self.enter(generation, known),
            (38..82, Some(_)) => self.leave(generation),
            (82..86, Some(entry)) => self.share(generation, &entry),
            (86..89, _) => self.end(),
            (89..92, Some([_, _, id])) => {
                self.made.push(format!("DELETE FROM {} WHERE id = '{id}'", S::table("entries")));
            }
            // Another entry's number, with the id of none.
            (92..98, Some([session, path, id])) => {
                let seq = Self::seq_of(&id);
                let arguments =
                    format!("'{session}', {generation}, '{path}', '{GROUP}-none', {seq}");
                self.made.push(S::call("leave", &arguments));
            }
            _ => {}
        }
    }

    fn open(&mut self) {
        let session = format!("{GROUP}s{}", self.opened);
        let arguments =
            format!("'coordination', '{session}', 1, '{session}', {}3600000000, NULL", S::CHANNEL);
        self.made.push(S::call("open", &arguments));
        self.opened += 1;
        self.sessions.push(session);
    }

    /// Enters a new entry, or one that was entered before, as a client does that has lost the answer.
    fn enter(&mut self, generation: usize, known: Option<[String; 3]>) {
        let known = known.filter(|_| self.is(10));
        let [session, path, id] = known.unwrap_or_else(|| {
            let session = self.sessions.choose(&mut self.random).expect("one is open").clone();
            let queue = if self.is(50) { "one" } else { "two" };
            let entry =
                [session, format!("{GROUP}/lock/{queue}"), format!("{GROUP}-{}", self.made.len())];
            self.entries.push(entry.clone());
            entry
        });
        let is_shared = self.is(30);
        let arguments = format!(
            "'{session}', {generation}, '{path}', '{id}', {is_shared}, 'text {}'",
            self.made.len()
        );
        self.made.push(S::call("enter", &arguments));
    }

    /// Removes an entry, in most cases the oldest one. In most cases the call comes from the entry's session and has its number;
    /// otherwise it comes from somebody who breaks the lock, or has no number or a wrong one.
    fn leave(&mut self, generation: usize) {
        let place = if self.is(70) { 0 } else { self.random.random_range(0..self.entries.len()) };
        let [session, path, id] = self.entries[place].clone();
        let session = if self.is(90) { format!("'{session}'") } else { "NULL".to_owned() };
        let seq = match self.random.random_range(0..10) {
            0 => "NULL".to_owned(),
            1 => "1".to_owned(),
            _ => Self::seq_of(&id),
        };
        if seq != "1" {
            self.entries.remove(place);
        }
        let arguments = format!("{session}, {generation}, '{path}', '{id}', {seq}");
        self.made.push(S::call("leave", &arguments));
    }

    fn share(&mut self, generation: usize, [session, path, id]: &[String; 3]) {
        let seq = Self::seq_of(id);
        let arguments =
            format!("'{session}', {generation}, '{path}', '{id}', true, 'shared', {seq}");
        self.made.push(S::call("update", &arguments));
    }

    /// Ends a session as an operator does, and opens another one.
    fn end(&mut self) {
        let place = self.random.random_range(0..self.sessions.len());
        let session = self.sessions.remove(place);
        self.made.push(format!(
            "UPDATE {} SET expires = 1 WHERE id = '{session}'",
            S::table("sessions")
        ));
        self.open();
    }

    /// An expression for the number of this entry. If it is gone, the number is one that no entry has.
    fn seq_of(id: &str) -> String {
        format!("(SELECT COALESCE(MAX(seq), 1) FROM {} WHERE id = '{id}')", S::table("entries"))
    }

    fn is(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }
}

/// L4: the short ways are taken, and cost what they are known to cost.
pub(crate) async fn l4_a_free_lock_is_little_work<S: SqlServer>() {
    const TURNS: u64 = 200;
    /// What a client costs as it connects and stops.
    const BESIDE: u64 = 300;
    let server = one::<S>();
    make(&*server).await;
    let (query, most) = S::WORK;
    let work = || ask(&*server, query).parse::<u64>().expect("a number");
    let before = settled(work).await;
    // No heartbeat comes between.
    let url = url(&*server).replace("ttl=2s&heartbeat=250ms", "ttl=60s&heartbeat=20s");
    let coordinator = Coordinator::connect(&url).await.expect("a server");
    let lock = coordinator.lock("x").expect("a name");
    for _ in 0..TURNS {
        lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
    }
    coordinator.stop().await.expect("stopped");
    let done = settled(work).await - before;
    println!("{TURNS} acquires and releases: {done}");
    assert!(done >= TURNS, "{done} is too little to be all");
    assert!(done <= TURNS * most + BESIDE, "{done}");
}

/// What is counted, when it does not change any more: PostgreSQL counts what a connection has done some time after that.
async fn settled(count: impl Fn() -> u64) -> u64 {
    let until = Instant::now() + Duration::from_secs(30);
    let mut last = count();
    loop {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let now = count();
        // The query itself is counted on some servers.
        if now <= last + 1 || Instant::now() > until {
            return now;
        }
        last = now;
    }
}
