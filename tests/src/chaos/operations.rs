//! Short operations on a value, a counter and an election. The checker tests whether their results are linearizable.

use coordination::{Coordinator, Counter, Effect, Election, Error, SharedValue, Version};
use coordination_history::{Answer, Event, Operation, now};
use rand::{RngExt, rngs::StdRng};

use super::{
    client::Pen,
    things::{NAMED, Thing, What},
};

/// Performs operations on one object.
pub(super) struct Clerk {
    desk: Desk,
    rng: StdRng,
    /// The last version of the value that this clerk has seen.
    seen: Option<Version>,
    /// The last value that this clerk has written. No value is written twice in a run.
    written: u32,
}

enum Desk {
    Value(SharedValue<u32>),
    Counter(Counter),
    Election(Election),
}

impl Clerk {
    /// Creates a clerk for this object, if it has short operations. `client` has to be unique in the run, because it
    /// makes the written values unique.
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

    /// Performs one operation and records it. A write is also recorded before the operation, without a result, because
    /// the client may be killed during the operation.
    pub(super) async fn turn(&mut self, pen: &Pen) {
        let what = self.choose();
        let call = now();
        if !matches!(what, Operation::Read | Operation::Count | Operation::Leader) {
            pen.write(Event::Operation { call, what, answer: Answer::Unknown });
        }
        let answer = match &self.desk {
            Desk::Value(value) => {
                let value = value.clone();
                self.value(&value, what).await
            }
            Desk::Counter(counter) => count(counter, what).await,
            Desk::Election(election) => leader(election).await,
        };
        pen.write(Event::Operation { call, what, answer });
    }

    fn choose(&mut self) -> Operation {
        let chance = self.rng.random_range(0..100);
        match &self.desk {
            Desk::Counter(_) if chance < 30 => Operation::Count,
            Desk::Counter(_) => Operation::Add { by: self.rng.random_range(1..10) },
            Desk::Election(_) => Operation::Leader,
            Desk::Value(_) if chance < 40 => Operation::Read,
            Desk::Value(_) if chance < 45 => Operation::Delete,
            Desk::Value(_) => {
                self.written += 1;
                let (value, expected) = (self.written, self.seen.map_or(0, number));
                match chance {
                    45..55 => Operation::Set { value },
                    _ => Operation::CompareAndSet { expected, value },
                }
            }
        }
    }

    async fn value(&mut self, value: &SharedValue<u32>, what: Operation) -> Answer {
        match what {
            Operation::Set { value: new } => {
                let set = value.set(&new).await;
                let answer = set.map(|version| Answer::Written { version: number(version) });
                answer.unwrap_or_else(write_failed)
            }
            Operation::CompareAndSet { value: new, .. } => self.compare_and_set(value, new).await,
            Operation::Delete => {
                let deleted = value.delete().await;
                let answer = deleted.map(|is| if is { Answer::Deleted } else { Answer::Absent });
                answer.unwrap_or_else(write_failed)
            }
            _ => self.read(value).await,
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

    async fn compare_and_set(&mut self, value: &SharedValue<u32>, new: u32) -> Answer {
        match value.compare_and_set(self.seen, &new).await {
            Ok(Some(version)) => {
                self.seen = Some(version);
                Answer::Written { version: number(version) }
            }
            Ok(None) => Answer::Mismatch,
            Err(error) => write_failed(error),
        }
    }
}

async fn count(counter: &Counter, what: Operation) -> Answer {
    match what {
        Operation::Add { by } => {
            let sum = counter.add(by).await.map(Answer::Number);
            sum.unwrap_or_else(write_failed)
        }
        _ => counter.read().await.map(Answer::Number).unwrap_or(Answer::NotDone),
    }
}

async fn leader(election: &Election) -> Answer {
    match election.leader().await {
        Ok(Some(term)) => Answer::Leader { token: term.term.value() },
        Ok(None) => Answer::Nobody,
        Err(_) => Answer::NotDone,
    }
}

/// The answer to record for a write that failed. If its effect is unknown, the store may still carry it out later.
fn write_failed(error: Error) -> Answer {
    match error.effect() {
        Effect::None => Answer::NotDone,
        Effect::Unknown | Effect::Applied => Answer::Unknown,
    }
}

pub(super) fn number(version: Version) -> u64 {
    version.to_string().parse().expect("a version is a number")
}
