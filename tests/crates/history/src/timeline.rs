//! Sorts the records of a history by time, and collects the records of each acquire in one `Attempt`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use crate::clients::Clients;
use crate::record::{Answer, Event, NEVER, NO_SLOT, Operation, Record, Why};
use crate::report::Report;
use crate::rules::{Kind, Object, Rules};

/// The time of one event of an attempt, and the index of the record that has this event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    /// The time; [`NEVER`] if the event never happened.
    pub(crate) at: u64,
    pub(crate) index: usize,
}

impl Mark {
    const NONE: Self = Self { at: NEVER, index: usize::MAX };

    pub(crate) fn is_some(self) -> bool {
        self.at != NEVER
    }

    /// The time; `None` if the event never happened.
    pub(crate) fn time(self) -> Option<u64> {
        self.is_some().then_some(self.at)
    }
}

/// Everything that is recorded of one acquire and its guard.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) client: u32,
    object: usize,
    pub(crate) shared: bool,
    pub(crate) timeout: u64,
    pub(crate) token: u64,
    pub(crate) slot: u32,
    pub(crate) deadline: u64,
    pub(crate) why: Option<Why>,
    pub(crate) call: Mark,
    pub(crate) granted: Mark,
    pub(crate) refused: Mark,
    pub(crate) cancelled: Mark,
    /// The beginning of the last call of `is_held` that returned true. Calls after a downgrade are left out, because
    /// the guard is not exclusive then.
    pub(crate) held: Mark,
    /// The return of the first call of `is_held` that returned false.
    pub(crate) not_held: Mark,
    pub(crate) lost: Mark,
    downgraded: Mark,
    pub(crate) release_call: Mark,
    pub(crate) release_return: Mark,
    pub(crate) released: bool,
}

impl Attempt {
    fn new(client: u32, object: usize) -> Self {
        Self {
            client,
            object,
            shared: false,
            timeout: NEVER,
            token: 0,
            slot: NO_SLOT,
            deadline: NEVER,
            why: None,
            call: Mark::NONE,
            granted: Mark::NONE,
            refused: Mark::NONE,
            cancelled: Mark::NONE,
            held: Mark::NONE,
            not_held: Mark::NONE,
            lost: Mark::NONE,
            downgraded: Mark::NONE,
            release_call: Mark::NONE,
            release_return: Mark::NONE,
            released: false,
        }
    }

    /// Adds a record of this attempt. Returns false if the record contradicts the earlier ones.
    fn add(&mut self, at: u64, index: usize, event: &Event) -> bool {
        let mark = Mark { at, index };
        match *event {
            Event::Call { shared, timeout } if !self.call.is_some() => {
                (self.shared, self.timeout) = (shared, timeout);
                set(&mut self.call, mark)
            }
            Event::Granted { token, slot } if self.is_open() => {
                (self.token, self.slot) = (token, slot);
                set(&mut self.granted, mark)
            }
            Event::Refused { why } if self.is_open() => {
                self.why = Some(why);
                set(&mut self.refused, mark)
            }
            Event::Cancelled if self.is_open() => set(&mut self.cancelled, mark),
            Event::Probe { before, held: true } => {
                let share = self.downgraded.is_some() && before > self.downgraded.at;
                if !share && (!self.held.is_some() || self.held.at < before) {
                    self.held = Mark { at: before, index };
                }
                before <= at
            }
            Event::Probe { held: false, .. } => {
                if !self.not_held.is_some() {
                    self.not_held = mark;
                }
                true
            }
            Event::Lost { deadline } if !self.lost.is_some() => {
                self.deadline = deadline;
                set(&mut self.lost, mark)
            }
            Event::Downgraded => set(&mut self.downgraded, mark),
            Event::ReleaseCall => set(&mut self.release_call, mark),
            Event::ReleaseReturn { outcome } if !self.release_return.is_some() => {
                self.released = outcome == 0;
                set(&mut self.release_return, mark)
            }
            _ => false,
        }
    }

    /// Whether the acquire is still running as far as is known: it has neither returned nor been dropped.
    fn is_open(&self) -> bool {
        self.answered().is_none() && !self.cancelled.is_some()
    }

    /// When the acquire returned, with a guard or without.
    pub(crate) fn answered(&self) -> Option<u64> {
        self.granted.time().or(self.refused.time())
    }

    /// Until when the grant held for certain, counted from the return of its acquire. If no call of `is_held` returned
    /// true, this is the return of the acquire itself.
    pub(crate) fn held_until(&self) -> u64 {
        self.held.time().map_or(self.granted.at, |held| held.max(self.granted.at))
    }

    /// When the attempt's entry was certainly gone from the store: at the confirmed release, or `bound` after the
    /// attempt ended in any other way. `crashed` is when its client was found to be dead.
    pub(crate) fn gone(&self, crashed: Option<u64>, bound: u64) -> u64 {
        if let (true, Some(released)) = (self.released, self.release_return.time()) {
            return released;
        }
        let ends =
            [self.refused, self.cancelled, self.lost, self.release_call, self.release_return];
        let ended = ends.into_iter().filter_map(Mark::time).chain(crashed).max();
        ended.map_or(NEVER, |ended| ended.saturating_add(bound))
    }
}

/// Sets a mark that is not set yet; returns whether it was not set.
fn set(place: &mut Mark, mark: Mark) -> bool {
    let first = !place.is_some();
    if first {
        *place = mark;
    }
    first
}

/// A short operation, with the times of its call and its return.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Small {
    pub(crate) call: u64,
    /// When the operation returned. [`NEVER`]: its result is unknown, and it may still take effect.
    pub(crate) returned: u64,
    pub(crate) what: Operation,
    pub(crate) answer: Answer,
    pub(crate) index: usize,
}

/// All that happened to one object.
#[derive(Debug)]
pub(crate) struct Scope<'a> {
    pub(crate) object: &'a Object,
    pub(crate) attempts: Vec<&'a Attempt>,
    pub(crate) operations: Vec<Small>,
    /// Indices of the records [`Write`](Event::Write), [`Final`](Event::Final), [`Kept`](Event::Kept) and
    /// [`Remains`](Event::Remains).
    pub(crate) told: Vec<usize>,
    /// Indices of the records [`Work`](Event::Work).
    pub(crate) work: Vec<usize>,
}

impl<'a> Scope<'a> {
    fn new(object: &'a Object) -> Self {
        Self {
            object,
            attempts: Vec::new(),
            operations: Vec::new(),
            told: Vec::new(),
            work: Vec::new(),
        }
    }

    /// The grants in groups. Within a group tokens rise and grants exclude each other. A lock or an election has one
    /// group, a semaphore or limiter has one for each slot.
    pub(crate) fn groups(&self) -> Vec<Vec<&'a Attempt>> {
        let mut granted: Vec<_> =
            self.attempts.iter().copied().filter(|attempt| attempt.granted.is_some()).collect();
        if !matches!(self.object.kind, Kind::Slots { .. }) {
            return vec![granted];
        }
        granted.retain(|attempt| attempt.slot != NO_SLOT);
        granted.sort_by_key(|attempt| attempt.slot);
        granted.chunk_by(|one, other| one.slot == other.slot).map(<[_]>::to_vec).collect()
    }
}

/// The whole history: records in order of time, with the attempts and operations that they belong to.
pub(crate) struct Timeline<'a> {
    pub(crate) records: Cow<'a, [Record]>,
    attempts: Vec<Attempt>,
    operations: Vec<(usize, Small)>,
    told: Vec<(usize, usize)>,
    work: Vec<(usize, usize)>,
    pub(crate) clients: Clients,
    /// The time of the last record.
    pub(crate) end: u64,
}

impl<'a> Timeline<'a> {
    pub(crate) fn new(records: &'a [Record], rules: &Rules, report: &mut Report) -> Self {
        let mut records = Cow::Borrowed(records);
        if !records.is_sorted_by_key(|record| record.at) {
            // The sort is stable, so records with equal times stay in the order in which they were written.
            records.to_mut().sort_by_key(|record| record.at);
        }
        let mut gather = Gather::new(rules);
        for (index, record) in records.iter().enumerate() {
            if !gather.take(index, record) {
                report.misfits += 1;
            }
            report.count(record, rules);
        }
        let Gather { attempts, operations, told, work, .. } = gather;
        for attempt in &attempts {
            let orphan = !attempt.call.is_some();
            let guard = [attempt.held, attempt.not_held, attempt.lost, attempt.release_call];
            let unheld = !attempt.granted.is_some() && guard.into_iter().any(Mark::is_some);
            report.misfits += u64::from(orphan || unheld);
            report.unanswered += u64::from(attempt.is_open());
        }
        report.records = records.len() as u64;
        let end = records.last().map_or(0, |record| record.at);
        report.span = end - records.first().map_or(0, |record| record.at);
        let clients = Clients::new(&records, rules);
        Self { records, attempts, operations, told, work, clients, end }
    }

    /// The history of each object, in the order of [`Rules::objects`].
    pub(crate) fn scopes<'s>(&'s self, rules: &'s Rules) -> Vec<Scope<'s>> {
        let mut scopes: Vec<_> = rules.objects.iter().map(Scope::new).collect();
        for attempt in &self.attempts {
            scopes[attempt.object].attempts.push(attempt);
        }
        for (object, small) in &self.operations {
            scopes[*object].operations.push(*small);
        }
        for (object, index) in &self.told {
            scopes[*object].told.push(*index);
        }
        for (object, index) in &self.work {
            scopes[*object].work.push(*index);
        }
        scopes
    }
}

/// Collects attempts and operations while it reads the records of a history one by one.
struct Gather {
    objects: HashMap<u32, usize, Quick>,
    known: HashMap<(u32, u64), usize, Quick>,
    attempts: Vec<Attempt>,
    begun: HashMap<(u32, u64), usize, Quick>,
    operations: Vec<(usize, Small)>,
    told: Vec<(usize, usize)>,
    work: Vec<(usize, usize)>,
}

impl Gather {
    fn new(rules: &Rules) -> Self {
        let objects = rules.objects.iter().enumerate();
        Self {
            objects: objects.map(|(index, object)| (object.id, index)).collect(),
            known: HashMap::default(),
            attempts: Vec::new(),
            begun: HashMap::default(),
            operations: Vec::new(),
            told: Vec::new(),
            work: Vec::new(),
        }
    }

    /// Takes the next record. Returns false if the record contradicts the earlier ones.
    fn take(&mut self, index: usize, record: &Record) -> bool {
        match record.event {
            Event::Crash
            | Event::Paused
            | Event::Resumed
            | Event::Fault { .. }
            | Event::FaultEnd { .. }
            | Event::Healed => return true,
            _ => {}
        }
        let Some(&object) = self.objects.get(&record.object) else { return false };
        match record.event {
            Event::Write { .. }
            | Event::Final { .. }
            | Event::Kept { .. }
            | Event::Remains { .. } => {
                self.told.push((object, index));
                true
            }
            Event::Work { call, .. } => {
                self.work.push((object, index));
                call <= record.at
            }
            Event::Operation { call, what, answer } => {
                let returned = if answer == Answer::Unknown { NEVER } else { record.at };
                let small = Small { call, returned, what, answer, index };
                self.operation(object, record, small)
            }
            _ => self.attempt(object, index, record),
        }
    }

    fn attempt(&mut self, object: usize, index: usize, record: &Record) -> bool {
        if record.attempt == 0 {
            return false;
        }
        let place = *self.known.entry((record.client, record.attempt)).or_insert_with(|| {
            self.attempts.push(Attempt::new(record.client, object));
            self.attempts.len() - 1
        });
        let attempt = &mut self.attempts[place];
        attempt.object == object && attempt.add(record.at, index, &record.event)
    }

    fn operation(&mut self, object: usize, record: &Record, small: Small) -> bool {
        if !small.what.may_answer(small.answer) || small.call > record.at {
            return false;
        }
        if record.attempt != 0 {
            match self.begun.entry((record.client, record.attempt)) {
                Entry::Vacant(entry) => {
                    entry.insert(self.operations.len());
                }
                Entry::Occupied(entry) => {
                    let (of, begun) = &mut self.operations[*entry.get()];
                    let same = *of == object && begun.what == small.what;
                    if same && begun.answer == Answer::Unknown {
                        *begun = Small { call: begun.call.min(small.call), ..small };
                    }
                    return same;
                }
            }
        }
        self.operations.push((object, small));
        true
    }
}

/// A hasher that is fast, but for which it is easy to find numbers with equal hashes. Here this is no danger, because
/// the numbers come from our own tests.
type Quick = BuildHasherDefault<Mix>;

#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
