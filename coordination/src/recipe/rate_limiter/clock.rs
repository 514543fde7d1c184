//! What time it is for a limiter: by the store's clock, or by a virtual one where the store has none.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::task::AbortHandle;

use super::schedule::{History, Micros, to_micros_floor};
use crate::backend::{Listing, Value};
use crate::env::{HostClock, Process};
use crate::error::{Error, ErrorKind, Result};
use crate::recipe::engine::data::from_data;
use crate::recipe::engine::queue::Queue;
use crate::session::Sight;
use crate::time::BootInstant;

/// Clocks of two machines may differ in rate by one part in this many (A1 in `docs/guarantees.md`).
const DRIFT: u64 = 200;

/// What the clones of a limiter share.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) clock: Clock,
    pub(super) follower: Follower,
    /// Locked by the call that is at the store, so that calls of one process do not make each other start again.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
    /// How many calls have come back from the store.
    pub(super) returned: Arc<AtomicU64>,
    /// How often a history was looked at.
    #[cfg(test)]
    pub(super) looks: Arc<AtomicU64>,
}

/// The history that a listing has, and the present time on the limiter's clock.
pub(super) struct Time {
    pub(super) history: Option<History>,
    pub(super) epoch: u64,
    pub(super) now: Micros,
}

/// A version of a history that this process has seen.
#[derive(Clone, Copy)]
pub(super) struct Newest {
    id: u64,
    given: u64,
}

impl Newest {
    /// Whether the store has lost this version, and has an earlier one again: after a fail-over, or restored from a copy. That is
    /// known only if the history was asked for after this version had been seen.
    ///
    /// A server that lags behind may give the same answer. What is forgotten then makes permits come later, never earlier.
    fn is_lost(self, history: &History) -> bool {
        self.id == history.id && history.given < self.given
    }
}

/// What this process knows of a limiter's time. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Clock {
    ages: Arc<Mutex<Ages>>,
    host: Arc<OnceLock<Option<HostClock>>>,
}

impl Clock {
    /// The newest version of the history that this process has seen so far.
    pub(super) fn newest(&self) -> Newest {
        self.lock().newest()
    }

    /// Reads the history and the time from a listing. `at` is a moment between the arrival of the listing and this call, and
    /// `newest` was taken before the listing was asked for; without it, the listing may be older than what was seen since.
    pub(super) fn read(
        &self,
        listing: &Listing,
        newest: Option<Newest>,
        at: BootInstant,
    ) -> Result<Time> {
        let mut history = listing.value.as_ref().map(history).transpose()?;
        let (epoch, now) = match (&listing.clock, &mut history) {
            (Some(clock), _) => (clock.epoch, to_micros_floor(clock.now)),
            (None, Some(history)) => {
                let mut ages = self.lock();
                if newest.is_some_and(|newest| newest.is_lost(history)) {
                    *ages = Ages::default();
                }
                if let Some((then, seen)) = self.witnessed(history) {
                    ages.learn(&then, seen);
                }
                ages.learn(history, at);
                (0, ages.date(history, at))
            }
            (None, None) => (0, 0),
        };
        Ok(Time { history, epoch, now })
    }

    /// Notes that this process has written the history, with times as of this moment.
    pub(super) fn wrote(&self, history: &History, at: BootInstant) {
        self.lock().learn(history, at);
    }

    /// Makes this host a witness of the history as it is at this moment; false: it is one already, or cannot be.
    ///
    /// Processes come and go, and none of them may live for a whole window; their host's clock goes on.
    pub(super) fn attest(&self, history: &mut History, at: BootInstant) -> bool {
        let Some(host) = self.host() else { return false };
        let is_known = history.witness(host.epoch()).is_some_and(|it| it.given == history.given);
        if !is_known {
            history.attest(host.epoch(), to_micros_floor(host.at(at)) + 1);
        }
        !is_known
    }

    /// The history as our host has seen it before, and when that was.
    fn witnessed(&self, history: &History) -> Option<(History, BootInstant)> {
        let host = self.host()?;
        let witness = history.witness(host.epoch())?;
        let seen = host.moment(Duration::from_micros(witness.shown))?;
        Some((history.back_then(witness)?, seen))
    }

    fn host(&self) -> Option<HostClock> {
        *self.host.get_or_init(HostClock::find)
    }

    fn lock(&self) -> MutexGuard<'_, Ages> {
        // No user code runs under this mutex, so what it guards is consistent even if it is poisoned.
        self.ages.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Reads what is stored.
pub(super) fn history(value: &Value) -> Result<History> {
    let history: History = from_data("acquire", &value.data)?;
    // The rules decide for how many slots memory is needed, so they are checked first.
    match history.rules.check() {
        Ok(()) => Ok(history),
        Err(problem) => Err(Error::new(ErrorKind::Corrupt, "acquire", problem)),
    }
}

/// Follows the history on stores without a clock, so that this process sees every new version soon.
#[derive(Default)]
pub(super) struct Follower(OnceLock<(AbortHandle, Process)>);

impl Follower {
    /// Follows the history from now on, until this is dropped.
    pub(super) fn start(&self, queue: &Queue, clock: &Clock) {
        self.0.get_or_init(|| {
            let (mut views, clock) = (queue.observe(Sight::Standing), clock.clone());
            let task = queue.session.spawn(async move {
                while let Ok(view) = views.next().await {
                    // What is stored may be corrupt; the next call that asks for a permit fails with that.
                    let _ = clock.read(&view.listing, None, BootInstant::now());
                }
            });
            (task.abort_handle(), Process::this())
        });
    }
}

impl Follower {
    pub(super) fn has_started(&self) -> bool {
        self.0.get().is_some()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some((task, process)) = self.0.get()
            && process.is_this()
        {
            task.abort();
        }
    }
}

/// What this process knows of how long ago the slots were, for stores without a clock.
///
/// On such a store the times in a history are by a virtual clock, which stands still between two writes. A process that has read
/// what the first of two writes stored knows only that at least the time since this read has passed. So each process keeps, for
/// every slot, the best proof of its age that it has: the age that some version of the history stated, and a moment by which the
/// process had read that version. To the age it adds the time that has passed since that moment by its own clock. What the process
/// writes states the ages that it can prove, so that others build on them.
///
/// A proved age is never more than the true one. So slots that are a window apart by proved ages are at least a window apart in
/// truth, which is all that a limiter needs. The price is the time that the news of each permit takes to reach the next writer:
/// permits come later by that time, never earlier.
///
/// What a process knows ends with it. So the history has [witnesses](Clock::attest). A witness says that so many permits had been
/// given when the clock of a certain host showed a certain time. Another process of that host proves ages by it. The slots of those
/// permits are at least what they were then, because no slot becomes earlier, so the ages that follow are never more than the true
/// ones either.
#[derive(Debug, Default)]
struct Ages {
    /// The history's id.
    id: u64,
    /// How many permits had been given.
    given: u64,
    /// In the order of age, the youngest slot first.
    proofs: Vec<Proof>,
}

/// At this moment a slot was at least this long ago. Below zero: the slot was yet to come, at most this much later.
#[derive(Clone, Copy, Debug)]
struct Proof {
    at: BootInstant,
    age: i64,
    /// The mark of the permit to which the slot was given.
    mark: u32,
}

impl Proof {
    fn age(self, now: BootInstant) -> i64 {
        let passed = shorter(to_micros_floor(now.saturating_duration_since(self.at)));
        self.age.saturating_add(signed(passed))
    }
}

impl Ages {
    fn newest(&self) -> Newest {
        Newest { id: self.id, given: self.given }
    }

    /// Learns from a version that had been seen by this moment.
    fn learn(&mut self, history: &History, at: BootInstant) {
        if self.id != history.id {
            *self = Self { id: history.id, ..Self::default() };
        }
        let told = |(slot, mark)| {
            let age = signed(history.now).saturating_sub(signed(slot));
            Proof { at, age, mark }
        };
        let told: Vec<_> = history.marked().map(told).collect();
        if self.is_of_another_branch(history.given, &told) {
            *self = Self { id: history.id, ..Self::default() };
        }
        let (given, length) = match history.given >= self.given {
            true => (history.given, told.len()),
            false => (self.given, self.proofs.len()),
        };
        let best = (0..).take(length).filter_map(|back| {
            let before = proof(&self.proofs, self.given, given.checked_sub(back)?);
            let now = proof(&told, history.given, given.checked_sub(back)?);
            before
                .into_iter()
                .chain(now)
                .reduce(|one, other| if other.age(at) > one.age(at) { other } else { one })
        });
        (self.proofs, self.given) = (best.collect(), given);
    }

    /// Whether the store has lost permits that this process has seen, and others were given in their place: the youngest permit of
    /// which both know is not the same one. Proofs of the lost permits say nothing about the others.
    fn is_of_another_branch(&self, given: u64, told: &[Proof]) -> bool {
        let youngest = given.min(self.given);
        let ours = proof(&self.proofs, self.given, youngest);
        let theirs = proof(told, given, youngest);
        ours.zip(theirs).is_some_and(|(ours, theirs)| ours.mark != theirs.mark)
    }

    /// Sets the history's times to those that can be proved at this moment, and returns the present time on the limiter's clock.
    ///
    /// No slot becomes earlier, so the slots that were returned to callers are a window apart, too.
    fn date(&self, history: &mut History, at: BootInstant) -> Micros {
        // This version is not the newest that was seen, and its slots may be forgotten. Its clock is not moved on,
        // which does no harm, as a write that is based on it fails.
        if (self.id, self.given) != (history.id, history.given) {
            return history.now;
        }
        // An earlier slot is at least as old as a later one.
        let older = |younger: &mut i64, proof: &Proof| {
            *younger = proof.age(at).max(*younger);
            Some(*younger)
        };
        let ages: Vec<_> = self.proofs.iter().scan(i64::MIN, older).collect();
        let youngest_first = history.slots.iter().rev().zip(&ages);
        let now = youngest_first
            .map(|(slot, age)| signed(*slot).saturating_add(*age))
            .fold(signed(history.now), i64::max);
        for (slot, age) in history.slots.iter_mut().rev().zip(ages) {
            *slot = u64::try_from(now.saturating_sub(age)).unwrap_or(*slot);
        }
        history.now = u64::try_from(now).unwrap_or_default();
        history.now
    }
}

/// The proof for the permit of this number, among those for the last of `given` permits.
fn proof(proofs: &[Proof], given: u64, number: u64) -> Option<Proof> {
    let index = given.checked_sub(number)?;
    proofs.get(usize::try_from(index).ok()?).copied()
}

fn signed(micros: Micros) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX)
}

/// The time that has passed by every clock when this much has passed by one of them.
pub(super) fn shorter(passed: Micros) -> Micros {
    // If the other clock is half a percent slower, it shows passed / 1.005, which is passed × 200/201.
    passed - passed.div_ceil(DRIFT + 1)
}

/// How long to wait by one clock until this much has passed by every other.
pub(super) fn longer(wait: Micros) -> Micros {
    wait.saturating_add(wait.div_ceil(DRIFT)).saturating_add(u64::from(wait > 0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::schedule::Rules;
    use super::*;
    use crate::recipe::engine::data::stored;

    proptest! {
        /// On a store without a clock: by the real time before which nobody can use the permit, and by the slots that are returned
        /// to callers.
        ///
        /// A process sees a version some time after it was written, or never; its clock runs up to half a
        /// percent faster than real time. Now and then the store loses its last writes.
        #[test]
        fn t4_without_a_clock(
            calls in prop::collection::vec(
                (0_usize..4, 0_u64..3_000, 0_u64..2_000, 0_u64..2_000, any::<bool>(),
                    prop::option::weighted(0.1, 1_u32..6), any::<bool>(),
                    prop::option::weighted(0.1, any::<bool>())), 1..200),
        ) {
            const RATES: [u64; 4] = [1_000, 1_005, 1_002, 1_004];
            let local = |process: usize, real: u64| BootInstant::from_nanos(real * RATES[process]);
            let mut processes: [Ages; 4] = Default::default();
            let mut history = three_in_ten_ms();
            let (mut real, mut permits, mut given, mut slots) = (1_000, 3, Vec::new(), Vec::new());
            let mut marks = 0;
            let mut copy = (history.clone(), 0, permits);
            for (process, pause, writing, telling, reserves, other_permits, is_new, loses) in calls {
                real += pause;
                match loses {
                    Some(false) => copy = (history.clone(), given.len(), permits),
                    // What the store has lost is not counted (A3).
                    Some(true) if copy.1 <= given.len() => {
                        (history, permits) = (copy.0.clone(), copy.2);
                        given.truncate(copy.1);
                        slots.truncate(copy.1);
                    }
                    _ => {}
                }
                let at = local(process, real);
                // Each process has a host of its own, which remembers what the process before it on that host had seen.
                if is_new {
                    processes[process] = Ages::default();
                }
                let newest = processes[process].newest();
                let host = u64::try_from(process).expect("few");
                if let Some(witness) = history.witness(host)
                    && let Some(then) = history.back_then(witness)
                {
                    processes[process].learn(&then, BootInstant::from_nanos(witness.shown * 1_000));
                }
                if newest.is_lost(&history) {
                    processes[process] = Ages::default();
                }
                processes[process].learn(&history, at);
                let mut next = history.clone();
                let now = processes[process].date(&mut next, at);
                if let Some(other_permits) = other_permits {
                    permits = usize::try_from(other_permits).expect("few");
                    next.reconfigure(so_many_in_ten_ms(other_permits));
                    history = next;
                    continue;
                }
                let slot = match next.reserve(now, 1, (!reserves).then_some(0)) {
                    Ok(slot) => slot,
                    Err(wait) => {
                        // If nobody else asks in between, the caller is not too early after this wait.
                        let then = BootInstant::from_nanos(at.as_nanos() + 1_000 * longer(wait));
                        let mut later = history.clone();
                        let now = processes[process].date(&mut later, then);
                        prop_assert!(later.reserve(now, 1, Some(0)).is_ok());
                        if is_new {
                            next.attest(host, at.as_nanos().div_ceil(1_000));
                            history = next;
                        }
                        continue;
                    }
                };
                let wait = slot - now;
                // The caller sleeps by its own clock, which runs fast.
                prop_assert!(longer(wait) * 1_000 / RATES[process] >= wait);
                for (told, new) in [(&mut given, real + wait), (&mut slots, slot)] {
                    // Checked by the rules that hold at this moment.
                    if let Some(before) = told.len().checked_sub(permits) {
                        prop_assert!(told[before] + 10_000 <= new, "{:?}, {new}", &told[before..]);
                    }
                    told.push(new);
                }
                next.mark(1);
                // Drawn by lot, one mark in a million would be that of a permit that was lost.
                marks += 1;
                *next.marks.back_mut().expect("it was marked") = marks;
                next.attest(host, at.as_nanos().div_ceil(1_000));
                history = next;
                real += writing;
                processes[process].learn(&history, at);
                real += telling;
                for (other, ages) in processes.iter_mut().enumerate() {
                    if !(real + other as u64).is_multiple_of(3) {
                        ages.learn(&history, local(other, real));
                    }
                }
            }
            prop_assert!(given.is_sorted() && slots.is_sorted());
        }

        /// When the length that `longer` returns has passed by one clock, the wanted length has passed by every other.
        #[test]
        fn longer_is_long_enough(wait in 0_u64..100_000_000_000, before in 0_u64..10_000_000) {
            let told = longer(wait);
            prop_assert!(shorter(before + told) >= shorter(before) + wait);
            prop_assert!(told <= wait + wait / 200 + 2);
        }
    }

    fn at(micros: u64) -> BootInstant {
        BootInstant::from_nanos(micros * 1_000)
    }

    #[test]
    fn word_of_a_permit_is_all_that_it_costs() {
        let (mut writer, mut reader) = (Ages::default(), Ages::default());
        let mut history = three_in_ten_ms();
        for number in 0..3 {
            let moment = 1_000 + 2_000 * number;
            let now = writer.date(&mut history, at(moment));
            history.reserve(now, 1, Some(0)).expect("three are free");
            writer.learn(&history, at(moment));
            // The reader sees each version 500 µs after the writer wrote it.
            reader.learn(&history, at(moment + 500));
        }
        let mut seen = history.clone();
        let now = reader.date(&mut seen, at(8_000));
        let wait = seen.reserve(now, 1, Some(0)).expect_err("three are taken");
        // The first was at 1,000 and seen at 1,500; half a percent of 6,500 is 33.
        assert_eq!(wait, 10_000 - 6_500 + 33);
        // The writer has seen the first permit earlier than the reader, so it can prove a greater age.
        let now = writer.date(&mut history, at(8_000));
        assert_eq!(history.reserve(now, 1, Some(0)), Err(10_000 - 7_000 + 35));
    }

    #[test]
    fn who_has_seen_nothing_knows_nothing() {
        let mut history = three_in_ten_ms();
        assert_eq!(history.reserve(0, 3, None), Ok(0));
        let mut late = Ages::default();
        late.learn(&history, at(1_000_000));
        let now = late.date(&mut history.clone(), at(1_000_000));
        assert_eq!(history.clone().reserve(now, 1, Some(0)), Err(10_000));
        // Another history of that name has other slots.
        let other = three_in_ten_ms();
        late.learn(&other, at(1_020_000));
        late.learn(&history, at(1_020_000));
        let mut seen = history.clone();
        let now = late.date(&mut seen, at(1_020_000));
        assert_eq!(seen.reserve(now, 1, Some(0)), Err(10_000));
    }

    /// Takes this many permits at this moment, and returns the history with them.
    fn taken(ages: &mut Ages, history: &History, permits: u32, micros: u64) -> History {
        let mut next = history.clone();
        ages.learn(&next, at(micros));
        let now = ages.date(&mut next, at(micros));
        next.reserve(now, permits, Some(0)).expect("so many are free");
        next.mark(permits);
        ages.learn(&next, at(micros));
        next
    }

    /// The store comes back from a copy, without the last permits that this process has seen.
    #[test]
    fn a_window_after_lost_permits_all_are_there_again() {
        let clock = Clock::default();
        let saved = taken(&mut clock.lock(), &three_in_ten_ms(), 3, 1_000);
        taken(&mut clock.lock(), &saved, 3, 20_000);
        let asks = |micros: u64| {
            let data = serde_json::to_string(&saved).expect("plain data");
            let newest = clock.newest();
            let time = clock.read(&stored::value(&data), Some(newest), at(micros));
            let time = time.expect("it is sound");
            time.history.expect("it is there").reserve(time.now, 1, Some(0))
        };
        assert_eq!(asks(30_000), Err(10_000));
        assert!(asks(41_000).is_ok());
    }

    /// The same, and another process has given as many permits since: what is known of the lost permits proves nothing of those.
    #[test]
    fn lost_permits_say_nothing_of_those_that_were_given_in_their_place() {
        let (mut one, mut other) = (Ages::default(), Ages::default());
        let saved = taken(&mut one, &three_in_ten_ms(), 1, 1_000);
        taken(&mut one, &saved, 2, 2_000);
        other.learn(&saved, at(1_000));
        let mut now_stored = taken(&mut other, &saved, 2, 30_000);
        one.learn(&now_stored, at(30_100));
        let now = one.date(&mut now_stored, at(30_100));
        assert!(now_stored.reserve(now, 3, Some(0)).is_err());
    }

    /// Each process asks once and ends; none lives for a window.
    #[test]
    fn a_host_remembers_what_its_processes_have_seen() {
        let mut history = three_in_ten_ms();
        assert_eq!(history.reserve(0, 3, None), Ok(0));
        let ask = |history: &mut History, micros: u64| {
            let mut ages = Ages::default();
            if let Some(then) = history.witness(7).and_then(|it| history.back_then(it)) {
                ages.learn(&then, at(history.witness(7).expect("just seen").shown));
            }
            ages.learn(history, at(micros));
            let now = ages.date(history, at(micros));
            let asked = history.reserve(now, 1, Some(0));
            if history.witness(7).is_none_or(|it| it.given != history.given) {
                history.attest(7, micros);
            }
            asked
        };
        // The first process has seen nothing, so it is refused. The second has to wait less, and the third gets a permit.
        assert_eq!(ask(&mut history, 1_000_000), Err(10_000));
        assert_eq!(ask(&mut history, 1_004_000), Err(6_020));
        assert!(ask(&mut history, 1_011_000).is_ok());
    }

    /// A process of this host that asks once and ends; whether it got a permit.
    fn asks_once(history: &mut History, host: u64, micros: u64) -> bool {
        let mut ages = Ages::default();
        if let Some(then) = history.witness(host).and_then(|it| history.back_then(it)) {
            ages.learn(&then, at(history.witness(host).expect("just seen").shown));
        }
        ages.learn(history, at(micros));
        let mut next = history.clone();
        let now = ages.date(&mut next, at(micros));
        let is_granted = next.reserve(now, 1, Some(0)).is_ok();
        if is_granted {
            next.mark(1);
        }
        if history.witness(host).is_none_or(|it| it.given != next.given) {
            next.attest(host, micros);
            *history = next;
        }
        is_granted
    }

    /// More hosts than are remembered ask in turn.
    #[test]
    fn many_hosts_do_not_make_each_other_forget() {
        let mut history = three_in_ten_ms();
        assert_eq!(history.reserve(0, 3, None), Ok(0));
        let mut granted = 0;
        for round in 0..60 {
            for host in 0..40 {
                let moment = 1_000_000 + round * 1_000 + host * 20;
                granted += usize::from(asks_once(&mut history, host, moment));
            }
        }
        assert!(granted > 5, "{granted} permits in six windows");
    }

    #[test]
    fn rules_that_cannot_be_kept_are_damage() {
        let kind = |paced: bool| {
            let data = format!(
                r#"{{"rules":{{"limits":[[4294967295,1000]],"margin":0,"paced":{paced}}},"id":7,"epoch":1,"now":9,"given":0,"slots":[]}}"#
            );
            let time = Clock::default().read(&stored::value(&data), None, at(5));
            time.err().map(|error| error.kind())
        };
        assert_eq!((kind(true), kind(false)), (None, Some(ErrorKind::Corrupt)));
    }

    #[test]
    fn odd_numbers_do_no_harm() {
        let odd = r#"{"rules":{"limits":[[3,10000]],"margin":0,"paced":false},"id":0,"epoch":0,"now":18446744073709551615,"given":2,"slots":[0,18446744073709551615,0]}"#;
        let odd: History = serde_json::from_str(odd).expect("it reads");
        let mut ages = Ages::default();
        for given in [2, 0, u64::MAX, 1] {
            let mut odd = odd.clone();
            odd.given = given;
            ages.learn(&odd, at(5));
            let now = ages.date(&mut odd, at(7));
            let _ = odd.reserve(now, 1, None);
            ages.learn(&odd, at(9));
        }
    }

    fn so_many_in_ten_ms(permits: u32) -> Rules {
        let mut rules = Rules::default();
        rules.add(permits, Duration::from_millis(10)).expect("allowed");
        rules
    }

    fn three_in_ten_ms() -> History {
        History::new(so_many_in_ten_ms(3), 0, 0)
    }
}
