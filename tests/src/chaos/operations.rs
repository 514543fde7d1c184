//! Small operations on a value, a counter and an election, whose answers must be linearizable.

use coordination::{Coordinator, Counter, Effect, Election, Error, SharedValue, Version};
use coordination_history::{Answer, Event, Operation, now};
use rand::{RngExt, rngs::StdRng};

use super::{
    client::Pen,
    things::{Thing, What},
};

/// Somebody who asks and writes.
pub(super) struct Clerk {
    desk: Desk,
    rng: StdRng,
    /// The last version seen.
    seen: Option<Version>,
    /// What is written is told apart by this.
    written: u32,
}

enum Desk {
    Value(SharedValue<u32>),
    Counter(Counter),
    Election(Election),
}

const NAMED: &str = "the name is valid";

impl Clerk {
    /// `client` is not used by another client of the run.
    pub(super) fn new(
        coordinator: &Coordinator,
        thing: &Thing,
        client: u32,
        rng: StdRng,
    ) -> Option<Self> {
        let desk = match thing.what {
            What::Value => Desk::Value(coordinator.value(thing.name).expect(NAMED)),
            What::Counter => Desk::Counter(coordinator.counter(thing.name).expect(NAMED)),
            What::Election => Desk::Election(coordinator.election(thing.name).expect(NAMED)),
            _ => return None,
        };
        Some(Self { desk, rng, seen: None, written: client << 20 })
    }

    /// One operation.
    pub(super) async fn turn(&mut self, pen: &Pen) {
        let call = now();
        let (what, answer) = match &self.desk {
            Desk::Value(value) => {
                let value = value.clone();
                self.value(&value).await
            }
            Desk::Counter(counter) => count(counter, &mut self.rng).await,
            Desk::Election(election) => (Operation::Leader, leader(election).await),
        };
        pen.write(Event::Operation { call, what, answer });
    }

    async fn value(&mut self, value: &SharedValue<u32>) -> (Operation, Answer) {
        match self.rng.random_range(0..100) {
            0..40 => (Operation::Read, self.read(value).await),
            40..50 => {
                self.written += 1;
                let set = value.set(&self.written).await;
                let answer = set.map(|version| Answer::Written { version: number(version) });
                (Operation::Set { value: self.written }, answer.unwrap_or_else(write_failed))
            }
            50..95 => self.compare_and_set(value).await,
            _ => {
                let deleted = value.delete().await;
                let answer = deleted.map(|is| if is { Answer::Deleted } else { Answer::Absent });
                (Operation::Delete, answer.unwrap_or_else(write_failed))
            }
        }
    }

    async fn read(&mut self, value: &SharedValue<u32>) -> Answer {
        match value.read().await {
            Ok(Some(found)) => {
                self.seen = Some(found.version);
                Answer::Value { version: number(found.version), value: found.value }
            }
            Ok(None) => {
                self.seen = None;
                Answer::Absent
            }
            Err(_) => Answer::NotDone,
        }
    }

    async fn compare_and_set(&mut self, value: &SharedValue<u32>) -> (Operation, Answer) {
        self.written += 1;
        let expected = self.seen;
        let what = Operation::CompareAndSet {
            expected: expected.map_or(0, number),
            value: self.written,
        };
        let answer = match value.compare_and_set(expected, &self.written).await {
            Ok(Some(version)) => {
                self.seen = Some(version);
                Answer::Written { version: number(version) }
            }
            Ok(None) => Answer::Mismatch,
            Err(error) => write_failed(error),
        };
        (what, answer)
    }
}

async fn count(counter: &Counter, rng: &mut StdRng) -> (Operation, Answer) {
    if rng.random_bool(0.3) {
        let number = counter.read().await.map(Answer::Number);
        return (Operation::Count, number.unwrap_or(Answer::NotDone));
    }
    let by = rng.random_range(1..10);
    let sum = counter.add(by).await.map(Answer::Number);
    (Operation::Add { by }, sum.unwrap_or_else(write_failed))
}

async fn leader(election: &Election) -> Answer {
    match election.leader().await {
        Ok(Some(term)) => Answer::Leader { token: term.term.value() },
        Ok(None) => Answer::Nobody,
        Err(_) => Answer::NotDone,
    }
}

fn write_failed(error: Error) -> Answer {
    match error.effect() {
        Effect::None => Answer::NotDone,
        Effect::Unknown | Effect::Applied => Answer::Unknown,
    }
}

fn number(version: Version) -> u64 {
    version.to_string().parse().expect("a version is a number")
}
