//! Random histories of a simulated queue, which is so simple that it is right. The checker has to accept these
//! histories, and has to find the fault after one change that breaks a rule.

use std::collections::BTreeMap;

use coordination_history::{Event, Kind, NEVER, NO_SLOT, Record, Rule, Rules, check};

use crate::story::{NOT_FREE, RELEASED, held, of, passes, rules, told};

const SEEDS: u64 = 60;
const STEPS: usize = 1500;
const CLIENTS: usize = 6;

/// Random numbers by the algorithm SplitMix64: equal seeds give equal histories.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Idle,
    Called,
    Waiting,
    /// The store has granted the acquire, but the client has not recorded the grant yet.
    Returning,
    /// The store has refused the try, but the client has not recorded the refusal yet.
    Refusing,
    Holding,
    Releasing,
    /// The client's entry is gone from the store, but the client has not recorded the release yet.
    Released,
}

#[derive(Clone, Copy)]
struct Client {
    id: u32,
    attempt: u64,
    state: State,
    shared: bool,
    tries: bool,
    token: u64,
    slot: u32,
}

/// The simulated store, with its entries in the order in which they came, and its clients.
struct World {
    kind: Kind,
    dice: Dice,
    now: u64,
    token: u64,
    queue: Vec<usize>,
    clients: Vec<Client>,
    records: Vec<Record>,
}

impl World {
    fn run(kind: Kind, seed: u64) -> Vec<Record> {
        let idle = |id| Client {
            id,
            attempt: 0,
            state: State::Idle,
            shared: false,
            tries: false,
            token: 0,
            slot: NO_SLOT,
        };
        let clients = (1..=CLIENTS as u32).map(idle).collect();
        let (dice, queue, records) = (Dice(seed), Vec::new(), Vec::new());
        let mut world = Self { kind, dice, now: 1000, token: 0, queue, clients, records };
        for _ in 0..STEPS {
            let which = world.dice.below(CLIENTS as u64) as usize;
            world.now += 1 + world.dice.below(5);
            world.step(which);
        }
        world.records
    }

    fn write(&mut self, which: usize, event: Event) {
        let Client { id, attempt, .. } = self.clients[which];
        self.records.push(Record { attempt, ..of(id, self.now, event) });
    }

    fn step(&mut self, which: usize) {
        if self.clients[which].state != State::Idle && self.dice.percent(2) {
            return self.crash(which);
        }
        let state = match self.clients[which].state {
            State::Idle => self.call(which),
            State::Called => self.enqueue(which),
            State::Waiting => self.wait(which),
            State::Returning => {
                let Client { token, slot, .. } = self.clients[which];
                self.write(which, Event::Granted { token, slot });
                State::Holding
            }
            State::Refusing => {
                self.write(which, NOT_FREE);
                State::Idle
            }
            State::Holding => self.hold(which),
            State::Releasing => {
                self.queue.retain(|other| *other != which);
                State::Released
            }
            State::Released => {
                self.write(which, RELEASED);
                State::Idle
            }
        };
        self.clients[which].state = state;
    }

    fn call(&mut self, which: usize) -> State {
        let (tries, shared) = (self.dice.percent(30), self.dice.percent(50));
        let client = &mut self.clients[which];
        client.shared = shared && self.kind == Kind::Lock;
        client.attempt += 1;
        client.tries = tries;
        let timeout = if tries { 0 } else { NEVER };
        let shared = client.shared;
        self.write(which, Event::Call { shared, timeout });
        State::Called
    }

    fn enqueue(&mut self, which: usize) -> State {
        let free = match self.kind {
            Kind::Slots { count } => self.queue.len() < count as usize,
            _ => self.may_enter(which, self.queue.len()),
        };
        if self.clients[which].tries && !free {
            return State::Refusing;
        }
        self.token += 1;
        self.clients[which].token = self.token;
        self.clients[which].slot = NO_SLOT;
        self.queue.push(which);
        State::Waiting
    }

    fn may_enter(&self, which: usize, place: usize) -> bool {
        let mut ahead = self.queue[..place].iter();
        match self.kind {
            // A slot is given to an entry only when all entries before it have their slots, so that the tokens of each
            // slot rise.
            Kind::Slots { count } => {
                place < count as usize && ahead.all(|other| self.clients[*other].slot != NO_SLOT)
            }
            _ if self.clients[which].shared => ahead.all(|other| self.clients[*other].shared),
            _ => place == 0,
        }
    }

    fn wait(&mut self, which: usize) -> State {
        let place = self.queue.iter().position(|other| *other == which).expect("it waits");
        if !self.may_enter(which, place) {
            if self.dice.percent(90) {
                return State::Waiting;
            }
            self.queue.remove(place);
            self.write(which, Event::Cancelled);
            return State::Idle;
        }
        if let Kind::Slots { .. } = self.kind {
            let in_use =
                |slot: &u32| self.queue.iter().any(|other| self.clients[*other].slot == *slot);
            let free = (0..).find(|slot| !in_use(slot));
            self.clients[which].slot = free.expect("there are more numbers than clients");
        }
        State::Returning
    }

    fn hold(&mut self, which: usize) -> State {
        if self.dice.percent(60) {
            let before = self.now;
            self.now += 1;
            self.write(which, held(before));
            return State::Holding;
        }
        self.write(which, Event::ReleaseCall);
        State::Releasing
    }

    /// Kills the client, which ends its session and removes its entry. A new client takes its place.
    fn crash(&mut self, which: usize) {
        self.queue.retain(|other| *other != which);
        let id = self.clients[which].id;
        self.records.push(Record { attempt: 0, object: 0, ..of(id, self.now, Event::Crash) });
        let next = Client { id: id + 100, attempt: 0, state: State::Idle, ..self.clients[which] };
        self.clients[which] = next;
    }
}

/// What the records of a history say about one grant.
#[derive(Clone, Copy)]
struct Grant {
    client: u32,
    attempt: u64,
    call: u64,
    granted: u64,
    token: u64,
    index: usize,
    shared: bool,
}

fn grants(records: &[Record]) -> Vec<Grant> {
    let mut calls = BTreeMap::new();
    let mut grants = Vec::new();
    for (index, record) in records.iter().enumerate() {
        let Record { at, client, attempt, .. } = *record;
        match record.event {
            Event::Call { shared, .. } => {
                calls.insert((client, attempt), (at, shared));
            }
            Event::Granted { token, .. } => {
                let (call, shared) = calls[&(client, attempt)];
                grants.push(Grant { client, attempt, call, granted: at, token, index, shared });
            }
            _ => {}
        }
    }
    grants
}

impl Grant {
    fn says(&self, at: u64, event: Event) -> Record {
        Record { attempt: self.attempt, ..of(self.client, at, event) }
    }

    /// The history without the records that end this grant: its own records after `Granted`, and a later crash of its
    /// client.
    fn without_end(&self, records: &[Record]) -> Vec<Record> {
        let own = |record: &Record| (record.client, record.attempt) == (self.client, self.attempt);
        let dead = |record: &Record| record.client == self.client && record.event == Event::Crash;
        let gone = |record: &Record| (own(record) || dead(record)) && record.at > self.granted;
        records.iter().filter(|record| !gone(record)).copied().collect()
    }
}

fn judged(kind: Kind) -> Rules {
    let mut rules = rules(kind);
    (rules.wait_bound, rules.entry_bound) = (1_000_000, 0);
    rules
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    for kind in [Kind::Lock, Kind::Leadership, Kind::Slots { count: 1 }, Kind::Slots { count: 3 }] {
        let mut counted = 0;
        for seed in 0..SEEDS {
            let records = World::run(kind, seed);
            let report = passes(&judged(kind), &records);
            counted += report.grants;
        }
        assert!(counted > SEEDS * 40, "{kind:?}: {counted} grants");
    }
}

/// Applies `change` to two successive grants of many random histories, and checks that each changed history breaks the
/// rule.
fn all_caught(
    rule: Rule,
    rules: &Rules,
    change: impl Fn(&[Record], &Grant, &Grant) -> Option<Vec<Record>>,
) {
    let mut changed = 0;
    for seed in 0..SEEDS {
        let records = World::run(rules.objects[0].kind, seed);
        let grants = grants(&records);
        let mut dice = Dice(seed ^ 0xabcd);
        for _ in 0..5 {
            let first = dice.below(grants.len() as u64 - 1) as usize;
            let (one, other) = (&grants[first], &grants[first + 1]);
            let Some(bad) = change(&records, one, other) else { continue };
            let report = check(&bad, rules);
            assert!(report.broken.contains_key(&rule), "seed {seed}, grant {first}\n{report}");
            changed += 1;
        }
    }
    assert!(changed > SEEDS, "only {changed} were changed");
}

#[test]
fn an_overlap_is_caught() {
    for kind in [Kind::Lock, Kind::Leadership, Kind::Slots { count: 1 }] {
        all_caught(Rule::O1, &judged(kind), |records, one, other| {
            let mut bad = one.without_end(records);
            bad.push(one.says(other.granted + 2, held(other.granted + 1)));
            (!(one.shared && other.shared)).then_some(bad)
        });
    }
}

#[test]
fn swapped_tokens_are_caught() {
    for kind in [Kind::Lock, Kind::Leadership, Kind::Slots { count: 1 }] {
        all_caught(Rule::O2, &judged(kind), |records, _, other| {
            // The last grant whose acquire had returned before `other` was called. If the two acquires had run at the
            // same time, the order of their grants would be unknown.
            let one = grants(records).into_iter().rfind(|one| one.granted < other.call)?;
            let mut bad = records.to_vec();
            let with = |index: usize, token| match records[index].event {
                Event::Granted { slot, .. } => Event::Granted { token, slot },
                event => event,
            };
            bad[one.index].event = with(one.index, other.token);
            bad[other.index].event = with(other.index, one.token);
            Some(bad)
        });
    }
}

#[test]
fn a_release_that_wakes_nobody_is_caught() {
    all_caught(Rule::O5, &judged(Kind::Leadership), |records, one, other| {
        // The changed history ends when `one` is granted. If `other` waits at that moment, it never gets a result.
        let waits = other.call < one.granted;
        let mut bad: Vec<_> =
            records.iter().filter(|record| record.at <= one.granted).copied().collect();
        bad.push(told(one.granted + 1, Event::Healed));
        bad.push(told(one.granted + 1_000_010, Event::Remains { entries: 0 }));
        waits.then_some(bad)
    });
}

#[test]
fn a_loss_that_is_told_late_is_caught() {
    let rules = judged(Kind::Lock);
    all_caught(Rule::O5, &rules, |records, one, _| {
        let mut bad = one.without_end(records);
        let deadline = one.granted + 10;
        bad.push(one.says(deadline + rules.lost_slack + 1, Event::Lost { deadline }));
        Some(bad)
    });
}

#[test]
fn a_refusal_for_nothing_is_caught() {
    all_caught(Rule::O7, &judged(Kind::Slots { count: 3 }), |records, one, _| {
        let mut bad = records.to_vec();
        let call = Event::Call { shared: false, timeout: 0 };
        bad.push(Record { client: 77, ..one.says(10, call) });
        bad.push(Record { client: 77, ..one.says(20, NOT_FREE) });
        Some(bad)
    });
}
