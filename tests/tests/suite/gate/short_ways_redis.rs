//! `enter_fast.lua` and `leave_fast.lua` must have the same results and effects as `enter.lua` and `leave.lua`, except
//! for what their headers say they leave out. Random calls are carried out by the fast scripts in one namespace, and by
//! the complete scripts in another one, and everything is compared.

use coordination_tests::harness::redis::{Operator, Reply};
use coordination_tests::harness::{Redis, Server, rerun_if_starved};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

macro_rules! script {
    ($name:literal) => {
        include_str!(concat!("../../../../coordination/src/backend/redis/scripts/", $name, ".lua"))
    };
}

const PRELUDE: &str = script!("prelude");
const LONG: [(&str, &str); 7] = [
    ("greet", script!("greet")),
    ("open", script!("open")),
    ("renew", script!("renew")),
    ("close", script!("close")),
    ("enter", script!("enter")),
    ("update", script!("update")),
    ("leave", script!("leave")),
];
const SHORT: [(&str, &str); 2] =
    [("enter", script!("enter_fast")), ("leave", script!("leave_fast"))];
/// A script that carries out a call in both namespaces.
const BOTH: &str = include_str!("short_ways_redis.lua");

const SEEDS: u64 = 5;
const CALLS: usize = 1_500;
/// The first two arguments of every call. `@record`: the call expects the namespace's present record. `0 0`: the call
/// depends on no earlier time.
const KNOWN: [&str; 2] = ["@record", "0 0"];
const QUEUES: [&str; 2] = ["lock/one", "lock/two"];
/// Fields of the namespace's record that the fast scripts use, each with a damaged value for it. With the last `offset` the
/// namespace's clock goes back, and the record is sound.
const DAMAGES: [(&str, &str); 8] = [
    ("last", "9e15"),
    ("last", "nan"),
    ("last", ""),
    ("last", "17958505835207g1"),
    ("offset", "1e400"),
    ("offset", "-5000000"),
    ("term", ""),
    ("server", "abc:1"),
];

#[test]
fn redis_scripts_say_by_the_short_way_what_they_say_by_the_long_one() {
    rerun_if_starved(|| {
        let redis = Redis::one();
        let mut short = [0, 0];
        for seed in 0..SEEDS {
            let mut both = Both::begin(&redis, seed);
            (0..CALLS).for_each(|_| both.step());
            short.iter_mut().zip(both.short).for_each(|(all, some)| *all += some);
        }
        println!("by the short way: {} entered, {} left", short[0], short[1]);
        assert!(short.iter().all(|count| *count > CALLS / 10), "{short:?} by the short way");
    });
}

/// Two namespaces with the same contents, and the calls on them.
struct Both {
    seed: u64,
    random: StdRng,
    operator: Operator,
    script: String,
    sessions: Vec<Session>,
    entries: Vec<Entry>,
    /// Whether the lease of some session is over, but no call has removed that session yet.
    is_unswept: bool,
    /// How many enters and leaves were carried out by the fast scripts.
    short: [usize; 2],
}

#[derive(Clone)]
struct Session {
    id: String,
    generation: u64,
}

#[derive(Clone)]
struct Entry {
    queue: &'static str,
    id: String,
    number: String,
    session: Session,
}

fn way(body: &str) -> String {
    format!("function(KEYS, ARGV, redis)\n{body}\nend")
}

fn script() -> String {
    let long = LONG.map(|(name, text)| {
        let body = way(&format!("{PRELUDE}\n{text}"));
        format!("long.{name} = {body}\n")
    });
    let short = SHORT.map(|(name, text)| format!("short.{name} = {}\n", way(text)));
    format!("local long, short = {{}}, {{}}\n{}{}{BOTH}", long.concat(), short.concat())
}

impl Both {
    fn begin(redis: &Redis, seed: u64) -> Self {
        let mut operator = Operator::connect(redis.node(0).address()).expect("it listens");
        let mut ask = |words: &[&str]| operator.ask(words).expect("it answers");
        ask(&["FLUSHALL"]);
        let script = ask(&["SCRIPT", "LOAD", &script()]).text().expect("a script without mistakes");
        let mut both = Self {
            seed,
            random: StdRng::seed_from_u64(seed),
            operator,
            script,
            sessions: Vec::new(),
            entries: Vec::new(),
            is_unswept: false,
            short: [0, 0],
        };
        both.greet();
        both
    }

    /// Carries out a call in both namespaces and compares the results; returns the result.
    fn call(&mut self, what: &str, arguments: &[&str]) -> String {
        let mut command = vec!["EVALSHA", &self.script, "0", what];
        command.extend(arguments);
        let Ok(Reply::List(answer)) = self.operator.ask(&command) else {
            panic!("seed {}: {command:?} is not answered", self.seed);
        };
        let texts: Vec<_> = answer.iter().map(|word| word.text().unwrap_or_default()).collect();
        assert_eq!(texts[2], "", "seed {}: {what} {arguments:?}", self.seed);
        let is_short = usize::from(texts[1] == "1");
        match what {
            "enter" => self.short[0] += is_short,
            "leave" => self.short[1] += is_short,
            _ => {}
        }
        texts[0].clone()
    }

    fn of_record(&mut self, what: &str, arguments: &[&str]) -> String {
        self.call(what, &[&KNOWN, arguments].concat())
    }

    fn raw(&mut self, command: &[&str]) {
        self.call("raw", command);
    }

    fn greet(&mut self) {
        self.call("greet", &["", "", "1", "30000000", "", "0", "0", "", "0"]);
    }

    fn is(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        all.choose(&mut self.random).cloned()
    }

    fn step(&mut self) {
        let Some(session) = self.one_of(&self.sessions.clone()) else { return self.open() };
        let entry = self.one_of(&self.entries.clone());
        match (self.random.random_range(0..100), entry) {
            (0..=37, _) => self.enter(&session),
            (38..=77, _) => self.leave(),
            (78..=81, _) => self.renew(&session),
            (82, Some(entry)) => self.share(&entry),
            (83..=85, _) => {
                self.of_record("close", &[&session.id]);
                self.has_ended(&session);
            }
            (86..=88, _) => self.open(),
            (89..=90, _) => self.expire(&session),
            (91, _) => self.raw(&["HSET", "clock", "heard", "9999999999999999"]),
            (92, _) => self.raw(&["HDEL", "clock", "heard"]),
            (93, Some(entry)) => self.delete(&entry),
            (94, Some(Entry { queue, id, session, .. })) => {
                let key = format!("session:{}", session.id);
                self.raw(&["HDEL", &key, &format!("entry:{queue}/{id}")]);
            }
            (95, _) => self.connect_again(&session),
            (96..=97, _) => self.damage(&session),
            (98, _) if self.is(30) => {
                self.raw(&["SET", &format!("session:{}", session.id), "somebody else's"]);
                self.leave_all(&session);
                self.has_ended(&session);
            }
            _ => {}
        }
    }

    fn open(&mut self) {
        let id = format!("{:016x}", self.random.random::<u64>());
        let generation = self.random.random_range(1..5);
        let session = Session { id, generation };
        let member = format!("member-{}", session.id);
        let lease = ["10000000", "20000000"][usize::from(self.is(50))];
        let generation = generation.to_string();
        self.of_record("open", &[&session.id, &generation, &member, "channel", lease, ""]);
        self.sessions.push(session);
    }

    fn has_ended(&mut self, session: &Session) {
        self.sessions.retain(|other| other.id != session.id);
        self.entries.retain(|entry| entry.session.id != session.id);
    }

    /// Enters a new entry. In one of ten cases, enters an existing entry a second time, as a client does that has
    /// lost the answer. Some calls know another record or a later time than the server has, or were sent on an earlier connection.
    fn enter(&mut self, session: &Session) {
        let record = if self.is(97) { "@record" } else { "abc:1" };
        self.enter_under(record, session);
    }

    fn enter_under(&mut self, record: &str, session: &Session) {
        let known = self.one_of(&self.entries.clone()).filter(|_| self.is(10));
        let entry = known.clone().unwrap_or_else(|| Entry {
            queue: QUEUES[usize::from(self.is(50))],
            id: format!("{}-{:08x}", session.id, self.random.random::<u32>()),
            number: String::new(),
            session: session.clone(),
        });
        let mode = if self.is(2) { "shared" } else { "exclusive" };
        let quarantine = if self.is(70) { "0" } else { "" };
        let newest = if self.is(98) { KNOWN[1] } else { "0 4000000000000000" };
        let Session { id: session, generation } = &entry.session;
        let generation = generation - u64::from(self.is(3));
        let text = format!("text-{}", self.random.random::<u16>());
        let arguments = [
            record,
            newest,
            session,
            &generation.to_string(),
            entry.queue,
            &entry.id,
            mode,
            &text,
            quarantine,
        ];
        let answer = self.call("enter", &arguments);
        let mut words = answer.trim_matches(['[', ']']).split(' ');
        if let (Some("ok"), Some(number), None) = (words.next(), words.next(), known) {
            self.entries.push(Entry { number: number.to_owned(), ..entry });
        }
    }

    /// Removes an entry, in most cases the oldest one of a queue. In most cases the call comes from the entry's own
    /// session, otherwise from somebody who breaks the lock. In most cases it has the entry's number, otherwise a wrong
    /// number or none.
    fn leave(&mut self) {
        let queue = QUEUES[usize::from(self.is(50))];
        let of_queue: Vec<_> =
            self.entries.iter().filter(|entry| entry.queue == queue).cloned().collect();
        let oldest = of_queue.first().cloned().filter(|_| self.is(70));
        let Some(entry) = oldest.or_else(|| self.one_of(&of_queue)) else { return };
        // The fast script does not check whether the next waiter's session lives, so sessions that have ended are
        // removed first.
        if self.is_unswept
            && let Some(session) = self.sessions.first().cloned()
        {
            self.renew(&session);
        }
        let number = match self.random.random_range(0..100) {
            0..10 => String::new(),
            10..15 => format!("{}1", entry.number),
            _ => entry.number.clone(),
        };
        let generation = entry.session.generation.to_string();
        let by = if self.is(90) { [entry.session.id.as_str(), &generation] } else { ["", ""] };
        self.of_record("leave", &[by[0], by[1], queue, &entry.id, &number]);
        if number.len() <= entry.number.len() {
            self.entries.retain(|other| other.id != entry.id);
        }
    }

    /// Removes about half of the session's entries, if the sessions that have ended are removed already.
    fn leave_all(&mut self, session: &Session) {
        let its: Vec<_> =
            self.entries.iter().filter(|entry| entry.session.id == session.id).cloned().collect();
        let generation = session.generation.to_string();
        for Entry { queue, id, number, .. } in its {
            if !self.is_unswept && self.is(50) {
                self.of_record("leave", &[&session.id, &generation, queue, &id, &number]);
            }
        }
    }

    fn renew(&mut self, session: &Session) {
        let held: Vec<_> =
            self.entries.iter().filter(|entry| entry.session.id == session.id).cloned().collect();
        let generation = session.generation.to_string();
        let mut arguments = vec![session.id.as_str(), &generation];
        arguments.extend(held.iter().flat_map(|entry| [entry.queue, &entry.id]));
        self.of_record("renew", &arguments);
        self.is_unswept = false;
    }

    fn share(&mut self, entry: &Entry) {
        let Session { id, generation } = &entry.session;
        let generation = generation.to_string();
        self.of_record(
            "update",
            &[id, &generation, entry.queue, &entry.id, "shared", "new", &entry.number, "0"],
        );
    }

    /// Ends the session's lease by hand. The session is then removed by a later call.
    fn expire(&mut self, session: &Session) {
        self.raw(&["HSET", &format!("session:{}", session.id), "expires", "1"]);
        self.raw(&["ZADD", "sessions", "1", &session.id]);
        self.has_ended(session);
        self.is_unswept = true;
    }

    /// Removes the entry by hand, as an operator might.
    fn delete(&mut self, entry: &Entry) {
        let Entry { queue, id, session, .. } = entry;
        self.raw(&["ZREM", &format!("exclusive:{queue}"), id]);
        self.raw(&["HDEL", &format!("session:{}", session.id), &format!("entry:{queue}/{id}")]);
        self.entries.retain(|other| other.id != *id);
    }

    fn connect_again(&mut self, session: &Session) {
        let next = Session { generation: session.generation + 1, ..session.clone() };
        self.renew(&next);
        let all = self.entries.iter_mut().map(|entry| &mut entry.session).chain(&mut self.sessions);
        all.filter(|other| other.id == next.id).for_each(|other| *other = next.clone());
    }

    /// Changes the namespace's record by hand. The next call notices the change. The client then reads the record again
    /// (`greet`).
    fn damage(&mut self, session: &Session) {
        let Some((field, text)) = self.one_of(&DAMAGES) else { return };
        self.raw(&["HSET", "clock", field, text]);
        self.enter(session);
        self.greet();
        // A client that has not heard of the new record.
        self.enter_under("@cleared", session);
        // If the enter was refused, the clock may still be behind the last number. A leave by the short way leaves it so.
        self.renew(session);
    }
}
