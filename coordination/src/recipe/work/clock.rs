//! What time it is for a queue.
//!
//! A queue has a clock of its own, which each write moves on by the time that has passed since the write before. If the store
//! has a clock, that tells how much has passed. If not, the clock of the host that wrote last tells it to the processes of that
//! host. Any other process knows only that at least the time has passed since it saw that write first, and follows the queue to
//! see it soon. So no time is taken for longer than it was: a claim, a delay and a life may last longer, by the time that the
//! news takes to come, never shorter.

use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rand::RngExt;

use super::layout::{Micros, Stamp};
use crate::backend;
use crate::canary::{Canary, sings};
use crate::env::{self, HostClock};
use crate::time::BootInstant;

/// Clocks of two machines may differ in rate by one part in this many (A1).
const DRIFT: u64 = 200;
/// For how long other hosts count as those who write after one of them was seen to.
pub(super) const STRANGERS: Duration = Duration::from_secs(20);
/// How many clocks are remembered by which the last write is known.
const WITNESSES: usize = 8;
/// Once in so many times the first of them is forgotten, whose host may be gone for good.
const RARELY: u32 = 1_000;

/// What this process knows of a queue's time.
#[derive(Default)]
pub(super) struct Clock {
    host: OnceLock<Option<HostClock>>,
    seen: Mutex<Option<LastWrite>>,
}

/// The last write that was seen.
#[derive(Clone, Copy)]
struct LastWrite {
    by: u64,
    /// When it was made, if it is our own, or else when it was seen first.
    at: BootInstant,
    is_own: bool,
}

/// A moment of the queue's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) now: Micros,
    /// The clock by which other processes of this host, or of all hosts, know this moment: its epoch, and what it shows.
    pub(super) witness: Option<(u64, Micros)>,
    /// Whether the last write is known by that clock.
    pub(super) is_witnessed: bool,
    /// Whether it is known how long ago the last write was made, and not only when it was seen. If not, others may know better.
    pub(super) is_exact: bool,
    at: BootInstant,
}

impl Clock {
    /// The queue's time at the moment `at` of our own clock, which is after the store's answer had come.
    pub(super) fn read(
        &self,
        stamp: &Stamp,
        of_store: Option<backend::Clock>,
        at: BootInstant,
    ) -> Moment {
        let host = || self.host().map(|host| (host.epoch(), micros(host.at(at))));
        let witness = match of_store {
            Some(clock) => Some((clock.epoch, micros(clock.now))),
            None => host(),
        };
        let passed = witness.and_then(|(epoch, shown)| stamp.passed(epoch, shown));
        let is_witnessed = passed.is_some();
        let last = of_store.is_none().then(|| self.last(stamp, at));
        // A clock that came later tells only how long ago that was.
        let is_of_writer = |(epoch, _): (u64, Micros)| stamp.of_writer == Some(epoch);
        let is_exact = last.is_some_and(|last| last.is_own)
            || (is_witnessed && witness.is_some_and(is_of_writer));
        let since = |last: LastWrite| shorter(micros(at.saturating_duration_since(last.at)));
        let passed = passed.unwrap_or_default().max(last.map_or(0, since));
        let mut now = stamp.now.saturating_add(passed);
        if sings(Canary::ExpiryByClientsClock) {
            now = now.max(at.as_nanos() / 1_000);
        }
        Moment { now, witness, is_witnessed, is_exact, at }
    }

    /// Notes that this process has made a write, with the time of this moment.
    pub(super) fn wrote(&self, by: u64, moment: Moment) {
        *self.lock() = Some(LastWrite { by, at: moment.at, is_own: true });
    }

    /// The last write, which is seen at this moment, if not before.
    fn last(&self, stamp: &Stamp, at: BootInstant) -> LastWrite {
        let mut seen = self.lock();
        match *seen {
            Some(last) if last.by == stamp.by => last,
            _ => *seen.insert(LastWrite { by: stamp.by, at, is_own: false }),
        }
    }

    fn host(&self) -> Option<HostClock> {
        *self.host.get_or_init(HostClock::find)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<LastWrite>> {
        self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Stamp {
    /// What has passed since, by the clock of this epoch.
    fn passed(&self, epoch: u64, shown: Micros) -> Option<Micros> {
        let witness = self.witnesses.iter().find(|(of, _)| *of == epoch);
        witness.map(|(_, then)| shown.saturating_sub(*then))
    }

    /// One more clock by which the last write is known.
    ///
    /// If there are too many, the last one goes: hosts that ask in turn, each with a short process, would make each other forget
    /// before any of them asks again, and no time would pass for them.
    pub(super) fn attest(&mut self, witness: (u64, Micros)) {
        if self.witnesses.len() >= WITNESSES {
            let first = env::rng().random_range(0..RARELY) == 0;
            self.witnesses.remove(if first { 0 } else { WITNESSES - 1 });
            self.witnesses.truncate(WITNESSES - 1);
        }
        // It was forgotten, and what it shows now is later than the write.
        self.of_writer = self.of_writer.filter(|epoch| *epoch != witness.0);
        self.witnesses.push(witness);
    }

    /// The stamp of a write that is made at this moment.
    pub(super) fn at(moment: Moment, by: u64) -> Self {
        let of_writer = moment.witness.map(|(epoch, _)| epoch);
        let witnesses = moment.witness.into_iter().collect();
        Self { now: moment.now, by, witnesses, of_writer, turned: None }
    }

    /// [`at`](Self::at) for a write that follows the one of this stamp.
    ///
    /// Where hosts write in turn, this is noted: a process that reads seldom may see only the writes of its own host.
    pub(super) fn next(&self, moment: Moment, by: u64) -> Self {
        let next = Self::at(moment, by);
        // Before the first write nobody had written.
        let has_turned = self.by != 0 && self.of_writer != next.of_writer;
        let is_recent = |then: &Micros| next.now.saturating_sub(*then) < micros(STRANGERS);
        let turned = if has_turned { Some(next.now) } else { self.turned.filter(is_recent) };
        Self { turned, ..next }
    }
}

fn micros(duration: Duration) -> Micros {
    u64::try_from(duration.as_micros()).unwrap_or(Micros::MAX)
}

/// What the store's clock shows, at least, when this much has passed since it was read.
pub(super) fn later(clock: backend::Clock, passed: Duration) -> backend::Clock {
    let passed = Duration::from_micros(shorter(micros(passed)));
    backend::Clock { now: clock.now.saturating_add(passed), ..clock }
}

/// The time that has passed by every clock when this much has passed by one of them.
fn shorter(passed: Micros) -> Micros {
    passed - passed.div_ceil(DRIFT + 1)
}

/// How long to wait by one clock until this much has passed by every other.
pub(super) fn longer(wait: Micros) -> Micros {
    wait.saturating_add(wait.div_ceil(DRIFT)).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> BootInstant {
        BootInstant::from_nanos(micros * 1_000)
    }

    fn of_store(epoch: u64, micros: u64) -> Option<backend::Clock> {
        Some(backend::Clock { epoch, now: std::time::Duration::from_micros(micros) })
    }

    #[test]
    fn c9_a_store_whose_clock_was_set_back_or_is_another_stands_still_at_most() {
        let clock = Clock::default();
        let first = clock.read(&Stamp::default(), of_store(1, 500), at(0));
        assert_eq!((first.now, first.is_witnessed), (0, false));
        let stamp = Stamp::at(first, 7);
        assert_eq!(clock.read(&stamp, of_store(1, 800), at(1)).now, 300);
        let stamp = Stamp::at(clock.read(&stamp, of_store(1, 800), at(1)), 8);
        for (epoch, shown) in [(1, 100), (2, 100_000)] {
            assert_eq!(clock.read(&stamp, of_store(epoch, shown), at(2)).now, 300);
        }
    }

    #[test]
    fn c3_without_a_clock_no_time_is_longer_than_it_was() {
        let (writer, other) = (Clock::default(), Clock::default());
        writer.host.get_or_init(|| None);
        other.host.get_or_init(|| None);
        let stamp = Stamp::at(writer.read(&Stamp::default(), None, at(1_000_000)), 7);
        writer.wrote(7, writer.read(&Stamp::default(), None, at(1_000_000)));
        // The other one sees it a second later.
        assert_eq!(other.read(&stamp, None, at(2_000_000)).now, 0);
        let (own, others) =
            (writer.read(&stamp, None, at(3_000_000)), other.read(&stamp, None, at(3_000_000)));
        assert!(own.now <= 2_000_000 && own.now > 1_980_000, "{own:?}");
        assert!(others.now <= 1_000_000 && others.now > 990_000, "{others:?}");
    }

    #[test]
    fn processes_of_one_host_know_it_by_its_clock() {
        let (writer, other) = (Clock::default(), Clock::default());
        let moment = writer.read(&Stamp::default(), None, at(5_000_000_000));
        let stamp = Stamp::at(moment, 7);
        let later = other.read(&stamp, None, at(5_007_000_000));
        assert_eq!((later.now, later.is_witnessed), (7_000_000, true));
    }

    #[test]
    fn a_clock_that_came_later_does_not_know_when_the_write_was_made() {
        let first = Clock::default().read(&Stamp::default(), of_store(1, 500), at(0));
        let mut stamp = Stamp::at(first, 7);
        stamp.attest((2, 900));
        let read = |epoch| Clock::default().read(&stamp, of_store(epoch, 1_000), at(1));
        assert!(read(1).is_exact);
        assert_eq!((read(2).now, read(2).is_witnessed, read(2).is_exact), (100, true, false));
    }

    #[test]
    fn that_hosts_write_in_turn_is_noted_for_a_while() {
        let mut stamp = Stamp::default();
        let writes = [(1, 1), (1, 2), (2, 3), (2, 4), (1, 5), (1, 24), (1, 25)];
        let turned = writes.map(|(epoch, second)| {
            let moment = Clock::default().read(&Stamp::default(), of_store(epoch, 500), at(0));
            stamp = stamp.next(Moment { now: second * 1_000_000, ..moment }, 7);
            stamp.turned.map(|turned| turned / 1_000_000)
        });
        assert_eq!(turned, [None, None, Some(3), Some(3), Some(5), Some(5), None]);
    }

    #[test]
    fn many_hosts_do_not_make_each_other_forget() {
        let mut stamp =
            Stamp::at(Clock::default().read(&Stamp::default(), of_store(1, 500), at(0)), 7);
        // Hosts ask in turn, each in a process that ends, for a minute.
        let hosts = 2..2 + 3 * WITNESSES as u64;
        let mut longest = 0;
        for second in 0..60 {
            for host in hosts.clone() {
                match stamp.passed(host, second * 1_000_000) {
                    Some(passed) => longest = longest.max(passed),
                    None => stamp.attest((host, second * 1_000_000)),
                }
                assert!(stamp.witnesses.len() <= WITNESSES);
            }
        }
        assert!(longest >= 10_000_000, "{longest}");
    }
}
