//! When permits can be had: arithmetic, without a store and without a clock.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use rand::RngExt;
use serde::{Deserialize, Serialize};

use crate::env;

/// A time on a limiter's clock, or a length, in microseconds.
pub(super) type Micros = u64;

/// The largest number of permits whose slots are remembered.
pub(super) const MAX_STRICT: u32 = 10_000;
/// The longest window, and the longest margin.
const MAX_WINDOW: Duration = Duration::from_secs(24 * 60 * 60);
const MIN_WINDOW: Duration = Duration::from_millis(1);

/// What a limiter allows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rules {
    /// How many permits there are at most, and in which window; sorted.
    limits: Vec<(u32, Micros)>,
    margin: Micros,
    paced: bool,
}

impl Rules {
    /// Adds a limit; an error says what is allowed.
    pub(super) fn add(&mut self, permits: u32, per: Duration) -> Result<(), String> {
        if permits == 0 {
            return Err("a rate limiter gives at least one permit in a window".into());
        }
        if !(MIN_WINDOW..=MAX_WINDOW).contains(&per) {
            return Err(format!("the window is {per:?}, and has to be of 1 ms to 24 h"));
        }
        self.limits.push((permits, to_micros(per)));
        self.limits.sort_unstable();
        self.limits.dedup();
        Ok(())
    }

    pub(super) fn set_margin(&mut self, margin: Duration) -> Result<(), String> {
        if margin > MAX_WINDOW {
            return Err(format!("the margin is {margin:?}, and may be 24 h at most"));
        }
        self.margin = to_micros(margin);
        Ok(())
    }

    pub(super) fn pace(&mut self) {
        self.paced = true;
    }

    /// How many permits there are at most, and in which window.
    pub(super) fn limits(&self) -> impl Iterator<Item = (u32, Duration)> {
        self.limits.iter().map(|(permits, per)| (*permits, Duration::from_micros(*per)))
    }

    pub(super) fn is_paced(&self) -> bool {
        self.paced
    }

    pub(super) fn margin(&self) -> Option<Duration> {
        (self.margin > 0).then(|| Duration::from_micros(self.margin))
    }

    /// Whether the rules can be kept at all; an error says what is allowed.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.limits.iter().map(|limit| limit.0).max() {
            Some(most) if most > MAX_STRICT && !self.paced => Err(format!(
                "{most} permits in a window are more than can be remembered, {MAX_STRICT} at most; a paced limiter has no such bound"
            )),
            _ => Ok(()),
        }
    }

    /// Whether this many permits can ever be had at once; an error says what is allowed.
    pub(super) fn check_permits(&self, permits: u32) -> Result<(), String> {
        self.check()?;
        match self.windows().map(|(most, _)| most).min() {
            _ if self.paced && permits != 1 => {
                Err("a paced limiter gives one permit at a time".into())
            }
            Some(most) if permits == 0 || to_index(permits) > most => {
                Err(format!("{permits} permits were asked for at once, and 1 to {most} can be had"))
            }
            _ => Ok(()),
        }
    }

    /// The sliding windows of the rules: how many slots there may be in each, and how long it is.
    fn windows(&self) -> impl Iterator<Item = (usize, Micros)> {
        self.limits.iter().map(|(permits, per)| {
            let per = per.saturating_add(self.margin);
            match self.paced {
                true => (1, per.div_ceil(u64::from((*permits).max(1)))),
                false => (to_index(*permits), per),
            }
        })
    }

    /// How many slots have to be remembered, so that every limit can be kept.
    fn memory(&self) -> usize {
        self.windows().map(|(permits, _)| permits).max().unwrap_or_default()
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (permits, per)) in self.limits.iter().enumerate() {
            let and = if number == 0 { "" } else { " and " };
            write!(f, "{and}{permits} per {:?}", Duration::from_micros(*per))?;
        }
        f.write_str(if self.paced { ", paced" } else { ", strict" })?;
        match self.margin() {
            Some(margin) => write!(f, ", margin {margin:?}"),
            None => Ok(()),
        }
    }
}

/// What is stored: the rules, and the slots that were given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct History {
    pub(super) rules: Rules,
    /// A random number, which distinguishes this history from another that was begun later under the same name.
    pub(super) id: u64,
    /// The clock by which the times of this history are measured.
    epoch: u64,
    /// When this version of the history was written, on the history's clock.
    pub(super) now: Micros,
    /// How many permits were given in all.
    pub(super) given: u64,
    /// How many permits had been given when the present rules were set.
    #[serde(default)]
    ruled_from: u64,
    /// What hosts have seen of this history, on a store without a clock; those that have seen it last come last.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub(super) witnesses: VecDeque<Witness>,
    /// The last slots, oldest first: as many as the rules need, or all if there were fewer.
    #[serde(with = "differences")]
    pub(super) slots: VecDeque<Micros>,
    /// On a store without a clock: which permit each of the last slots was given to, the oldest first. Each write draws a random
    /// number for its permits. So a permit that the store has lost is not taken for the one that was given in its place.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub(super) marks: VecDeque<u32>,
}

/// At `shown` on the clock of this host, so many permits had been given, and the history's time was `now`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Witness {
    /// A number for the host's boot; another one after each boot.
    pub(super) host: u64,
    pub(super) shown: Micros,
    pub(super) given: u64,
    pub(super) now: Micros,
}

/// For how many hosts the history remembers what each of them has seen last.
const WITNESSES: usize = 16;
/// Once in so many times the first witness is forgotten, whose host may be gone for good.
const RARELY: u32 = 1_000;
/// Marks are above zero, and below this number: ten thousand of them have to fit into a value beside their slots.
const MARKS: u32 = 1_000_000;

impl History {
    /// The history of a limiter that has given no permit yet.
    pub(super) fn new(rules: Rules, epoch: u64, now: Micros) -> Self {
        Self {
            rules,
            id: env::rng().random(),
            epoch,
            now,
            given: 0,
            ruled_from: 0,
            witnesses: VecDeque::new(),
            slots: VecDeque::new(),
            marks: VecDeque::new(),
        }
    }

    /// Sets which clock the times are by; true if it was another one before.
    ///
    /// If it was another, nothing is known of when the slots were, except that it was before now. So all permits that can be
    /// had count as taken now.
    pub(super) fn begin(&mut self, epoch: u64, now: Micros) -> bool {
        let is_cold = epoch != self.epoch;
        if is_cold {
            (self.epoch, self.now) = (epoch, now);
            let given = usize::try_from(self.given).unwrap_or(usize::MAX);
            self.slots = std::iter::repeat_n(now, self.rules.memory().min(given)).collect();
            self.marks.clear();
        }
        is_cold
    }

    /// Takes this many permits if they can be had within `longest`, and returns their slot; otherwise returns how long the wait
    /// would be.
    pub(super) fn reserve(
        &mut self,
        now: Micros,
        permits: u32,
        longest: Option<Micros>,
    ) -> Result<Micros, Micros> {
        let now = now.max(self.now);
        let slot = self.slot(now, to_index(permits));
        let wait = slot.saturating_sub(now);
        if longest.is_some_and(|longest| wait > longest) {
            return Err(wait);
        }
        self.now = now;
        self.given = self.given.saturating_add(permits.into());
        self.slots.extend(std::iter::repeat_n(slot, to_index(permits)));
        self.forget();
        Ok(slot)
    }

    /// Marks the permits that the present write gives: the last ones, so many.
    pub(super) fn mark(&mut self, permits: u32) {
        let mark = env::rng().random_range(1..MARKS);
        self.marks.extend(std::iter::repeat_n(mark, to_index(permits)));
        self.forget();
    }

    /// The slots and the marks of their permits, the youngest first. A permit that was given by an earlier version of the library
    /// has the mark zero.
    pub(super) fn marked(&self) -> impl Iterator<Item = (Micros, u32)> {
        let marks = self.marks.iter().rev().copied().chain(std::iter::repeat(0));
        self.slots.iter().rev().copied().zip(marks)
    }

    /// The first moment from `now` on at which this many permits can be had.
    ///
    /// It is not before any slot that was given already, so that nobody overtakes. And for each limit of `most`
    /// permits in a window, the last of the new permits is at least a window later than the permit `most` places
    /// before it.
    fn slot(&self, now: Micros, permits: usize) -> Micros {
        let free = self.rules.windows().filter_map(|(most, window)| {
            let before = (self.slots.len() + permits).checked_sub(most + 1)?;
            Some(self.slots.get(before)?.saturating_add(window))
        });
        let last = self.slots.back().copied().unwrap_or_default();
        free.fold(now.max(last), Micros::max)
    }

    /// Replaces the rules. Slots that were forgotten, and that the new rules need, count as late as they can have been.
    pub(super) fn reconfigure(&mut self, rules: Rules) {
        // No more slots can have been forgotten than were given.
        let given = usize::try_from(self.given).unwrap_or(usize::MAX);
        let wanted = rules.memory().min(given);
        while self.slots.len() < wanted
            && let Some(slot) = self.latest_before_the_first()
        {
            self.slots.push_front(slot);
        }
        (self.rules, self.ruled_from) = (rules, self.given);
        self.forget();
    }

    /// When the permit before the first remembered one was given, at the latest.
    ///
    /// It was no later than the first remembered permit. And for each limit of `most` permits in a window, it was a window before
    /// the permit `most` places after it, if that permit was given under these rules.
    fn latest_before_the_first(&self) -> Option<Micros> {
        let first = self.slots.front().copied()?;
        let is_ruled = |index: usize| {
            let after = u64::try_from(self.slots.len() - index - 1).unwrap_or(u64::MAX);
            self.given.saturating_sub(after) > self.ruled_from
        };
        let bounds = self.rules.windows().filter_map(|(most, window)| {
            let index = most.checked_sub(1)?;
            let slot = self.slots.get(index).filter(|_| is_ruled(index))?;
            Some(slot.saturating_sub(window))
        });
        Some(bounds.fold(first, Micros::min))
    }

    /// What this host has seen last of the history, if that is remembered.
    pub(super) fn witness(&self, host: u64) -> Option<&Witness> {
        self.witnesses.iter().find(|witness| witness.host == host)
    }

    /// From now on this host remembers that it has seen this version, at this time by its clock.
    ///
    /// If there is no room, a witness of the earliest version is forgotten, and of several the one that came last. The others go on
    /// until a window has passed. If the one that came first were forgotten, hosts that ask in turn would make each other forget, and
    /// nobody could ever prove that a window has passed.
    pub(super) fn attest(&mut self, host: u64, shown: Micros) {
        self.witnesses.retain(|witness| witness.host != host);
        while self.witnesses.len() >= WITNESSES {
            let known = self.witnesses.iter().enumerate();
            let last_of_earliest = known.min_by_key(|(at, witness)| (witness.given, Reverse(*at)));
            let forgotten = match env::rng().random_range(0..RARELY) {
                0 => 0,
                _ => last_of_earliest.map_or(0, |(at, _)| at),
            };
            self.witnesses.remove(forgotten);
        }
        let (given, now) = (self.given, self.now);
        self.witnesses.push_back(Witness { host, shown, given, now });
    }

    /// The history as the witness has seen it; `None`: too many permits were given since.
    pub(super) fn back_then(&self, witness: &Witness) -> Option<Self> {
        let since = usize::try_from(self.given.checked_sub(witness.given)?).ok()?;
        let mut then = self.clone();
        then.slots.truncate(self.slots.len().checked_sub(since)?);
        then.marks.truncate(self.marks.len().saturating_sub(since));
        (then.given, then.now) = (witness.given, witness.now);
        Some(then)
    }

    fn forget(&mut self) {
        let too_many = self.slots.len().saturating_sub(self.rules.memory());
        self.slots.drain(..too_many);
        let too_many = self.marks.len().saturating_sub(self.slots.len());
        self.marks.drain(..too_many);
    }
}

/// Writes slots as the differences between them, as ten thousand slots would not fit into a value otherwise.
mod differences {
    use std::collections::VecDeque;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::Micros;

    pub(super) fn serialize<S: Serializer>(
        slots: &VecDeque<Micros>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let mut last = 0;
        to.collect_seq(
            slots.iter().map(|slot| slot.saturating_sub(std::mem::replace(&mut last, *slot))),
        )
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<VecDeque<Micros>, D::Error> {
        let mut last: Micros = 0;
        let slots = Vec::<Micros>::deserialize(from)?.into_iter().map(|difference| {
            last =
                last.checked_add(difference).ok_or_else(|| D::Error::custom("a slot too late"))?;
            Ok(last)
        });
        slots.collect()
    }
}

pub(super) fn to_micros(duration: Duration) -> Micros {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

pub(super) fn to_micros_floor(duration: Duration) -> Micros {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn to_index(permits: u32) -> usize {
    usize::try_from(permits).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Micros = 1_000;

    fn rules(limits: &[(u32, u64)]) -> Rules {
        let mut rules = Rules::default();
        for (permits, millis) in limits {
            rules.add(*permits, Duration::from_millis(*millis)).expect("allowed");
        }
        rules
    }

    fn history(limits: &[(u32, u64)]) -> History {
        History::new(rules(limits), 0, 0)
    }

    fn stored(history: &History) -> History {
        let text = serde_json::to_string(history).expect("plain data");
        serde_json::from_str(&text).expect("what was written")
    }

    /// What is granted at the end of one second is not granted again at the start of the next.
    #[test]
    fn t2_there_is_no_edge_between_windows() {
        let mut history = history(&[(5, 800)]);
        for slot in (750..755).map(|ms| ms * MS) {
            assert_eq!(history.reserve(slot, 1, Some(0)), Ok(slot));
        }
        for early in [755, 800, 1_000, 1_549].map(|ms| ms * MS) {
            assert_eq!(history.reserve(early, 1, Some(0)), Err(1_550 * MS - early));
        }
        assert_eq!(history.reserve(1_550 * MS, 1, Some(0)), Ok(1_550 * MS));
        assert_eq!(history.reserve(1_550 * MS, 1, Some(0)), Err(MS));
    }

    /// A microsecond before the end of the wait a caller is too early, and at its end it is not.
    #[test]
    fn t3_the_wait_is_exact() {
        let mut history = history(&[(2, 10)]);
        assert_eq!(history.reserve(7, 1, Some(0)), Ok(7));
        assert_eq!(history.reserve(9, 1, Some(0)), Ok(9));
        let wait = history.reserve(11, 1, Some(0)).expect_err("both are taken");
        assert_eq!(history.reserve(11 + wait - 1, 1, Some(0)), Err(1));
        assert_eq!(history.reserve(11 + wait, 1, Some(0)), Ok(7 + 10 * MS));
    }

    #[test]
    fn nobody_overtakes_a_reservation() {
        let mut history = history(&[(2, 10)]);
        assert_eq!(history.reserve(0, 2, None), Ok(0));
        assert_eq!(history.reserve(1, 2, None), Ok(10 * MS));
        // One permit alone could not be had earlier either.
        assert_eq!(history.reserve(2, 1, None), Ok(20 * MS));
        assert_eq!(history.reserve(3, 1, Some(0)), Err(20 * MS - 3));
    }

    #[test]
    fn all_limits_count_every_permit() {
        let mut history = history(&[(2, 10), (3, 100)]);
        let slots: Vec<_> = (0..5).map(|_| history.reserve(0, 1, None)).collect();
        assert_eq!(slots, [0, 0, 10 * MS, 100 * MS, 100 * MS].map(Ok));
        // By the limit of 3 in 100 ms, a window must have passed since the permit of 10 ms.
        assert_eq!(history.reserve(0, 1, None), Ok(110 * MS));
    }

    #[test]
    fn a_paced_one_keeps_its_distance_and_one_slot() {
        let mut rules = rules(&[(3, 10)]);
        rules.pace();
        assert!(rules.check_permits(2).is_err());
        let mut history = History::new(rules, 0, 0);
        let slots: Vec<_> = (0..3).map(|_| history.reserve(5, 1, None)).collect();
        assert_eq!(slots, [5, 3_339, 6_673].map(Ok));
        assert_eq!(history.slots.len(), 1);
    }

    #[test]
    fn a_margin_makes_the_window_longer() {
        let mut rules = rules(&[(1, 10)]);
        rules.set_margin(Duration::from_millis(5)).expect("allowed");
        let mut history = History::new(rules, 0, 0);
        assert_eq!(history.reserve(0, 1, None), Ok(0));
        assert_eq!(history.reserve(0, 1, None), Ok(15 * MS));
    }

    #[test]
    fn another_clock_starts_cold_once() {
        let mut history = history(&[(2, 10)]);
        assert_eq!(history.reserve(9_000_000, 1, None), Ok(9_000_000));
        assert!(history.begin(1, 50));
        // One was given in all, whenever that was.
        assert_eq!(history.reserve(60, 1, Some(0)), Ok(60));
        assert_eq!(history.reserve(70, 1, Some(0)), Err(10 * MS - 20));
        assert!(!history.begin(1, 70));
        assert_eq!(history.reserve(60 + 10 * MS, 2, Some(0)), Ok(60 + 10 * MS));
    }

    #[test]
    fn a_clock_set_back_is_waited_for() {
        let mut history = history(&[(1, 10)]);
        assert_eq!(history.reserve(100 * MS, 1, Some(0)), Ok(100 * MS));
        assert_eq!(history.reserve(5, 1, Some(0)), Err(10 * MS));
    }

    #[test]
    fn growing_takes_the_forgotten_ones_for_young_and_shrinking_keeps_the_youngest() {
        let mut history = history(&[(2, 10)]);
        for now in [0, 0, 10 * MS, 11 * MS] {
            history.reserve(now, 1, Some(0)).expect("free");
        }
        history.reconfigure(rules(&[(4, 10)]));
        // The permits count as if given at 0, 1, 10 and 11 ms, because the old rules allowed no later times.
        assert_eq!(history.slots, [0, MS, 10 * MS, 11 * MS]);
        assert_eq!(history.reserve(12 * MS, 2, Some(0)), Ok(12 * MS));
        history.reconfigure(rules(&[(1, 10)]));
        assert_eq!(history.reserve(12 * MS, 1, Some(0)), Err(10 * MS));
        // Nothing was forgotten where nothing had been given.
        let mut history = self::history(&[(2, 10)]);
        history.reserve(0, 1, Some(0)).expect("free");
        history.reconfigure(rules(&[(4, 10)]));
        assert_eq!(history.reserve(0, 3, Some(0)), Ok(0));
    }

    /// What is forgotten under rules that were looser counts as late as it can have been then.
    #[test]
    fn the_rules_before_the_last_ones_say_nothing_of_what_is_forgotten() {
        let mut history = history(&[(9, 1)]);
        history.reserve(0, 9, Some(0)).expect("free");
        history.reconfigure(rules(&[(2, 10)]));
        history.reserve(10 * MS, 1, Some(0)).expect("free");
        history.reconfigure(rules(&[(5, 10)]));
        // The last permit was given under the second rules, so the one two places before it was given ten milliseconds earlier.
        // When those before that were given is not known.
        assert_eq!(history.slots, [0, 0, 0, 0, 10 * MS]);
    }

    #[test]
    fn a_raised_limit_is_there_at_once() {
        let day = 86_400_000;
        let mut history = history(&[(5, day)]);
        history.reserve(0, 5, Some(0)).expect("free");
        assert!(history.reserve(MS, 1, Some(0)).is_err());
        history.reconfigure(rules(&[(1_000, day)]));
        assert_eq!(history.reserve(MS, 995, Some(0)), Ok(MS));
        assert!(history.reserve(MS, 1, Some(0)).is_err());
        // A cap for the day that is added to a limit which has long been used.
        let mut history = self::history(&[(2, 100)]);
        for second in 0..1_000 {
            history.reserve(second * 1_000 * MS, 2, Some(0)).expect("free");
        }
        history.reconfigure(rules(&[(2, 100), (1_000, day)]));
        let now = 1_000_000 * MS;
        // The limiter has to count as if two permits had been given in each tenth of a second before the last two.
        let wait =
            history.reserve(now, 2, Some(0)).expect_err("a thousand may have been given today");
        assert!(wait < day * MS && wait >= day * MS - 60_000 * MS, "{wait}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut rules = rules(&[(1, 1)]);
        assert!(rules.add(0, Duration::from_secs(1)).is_err());
        assert!(rules.add(1, Duration::from_micros(999)).is_err());
        assert!(rules.add(1, Duration::from_secs(86_401)).is_err());
        assert!(rules.set_margin(Duration::MAX).is_err());
        assert!(rules.check_permits(0).is_err());
        assert!(rules.check_permits(2).is_err());
        assert!(rules.check_permits(1).is_ok());
        rules.add(MAX_STRICT + 1, Duration::from_secs(1)).expect("for a paced one");
        assert!(rules.check_permits(1).is_err());
        rules.pace();
        assert!(rules.check_permits(1).is_ok());
        let mut one = history(&[(1, 1)]);
        assert_eq!(
            (0..3).map(|_| one.reserve(0, 1, None)).collect::<Vec<_>>(),
            [0, MS, 2 * MS].map(Ok)
        );
    }

    #[test]
    fn the_longest_history_fits_into_a_value() {
        let mut history = history(&[(MAX_STRICT, 86_400_000)]);
        // The limiter gives a permit each half year for five thousand years.
        for number in 0..u64::from(MAX_STRICT) {
            history.reserve(number * 15_778_800_000_000, 1, None).expect("no limit");
        }
        history.marks.extend(std::iter::repeat_n(MARKS - 1, history.slots.len()));
        (1..=2 * WITNESSES).for_each(|host| history.attest(u64::MAX - host as u64, u64::MAX));
        let text = serde_json::to_string(&history).expect("plain data");
        assert!(text.len() < crate::recipe::engine::data::MAX_VALUE_BYTES, "{}", text.len());
        assert_eq!(stored(&history), history);
    }

    #[test]
    fn damage_is_no_history() {
        for damaged in [
            "",
            "{}",
            "null",
            r#"{"rules":{"limits":[],"margin":0,"paced":false},"id":1,"epoch":0,"given":7,"now":0,"slots":[-1]}"#,
            r#"{"rules":{"limits":[],"margin":0,"paced":false},"id":1,"epoch":0,"given":7,"now":0,"slots":[1,18446744073709551615]}"#,
        ] {
            assert!(serde_json::from_str::<History>(damaged).is_err(), "{damaged}");
        }
        // Numbers that this library never writes do no harm either.
        let odd = r#"{"rules":{"limits":[[0,0],[4294967295,18446744073709551615]],"margin":18446744073709551615,"paced":false},"id":1,"epoch":0,"given":7,"now":18446744073709551615,"slots":[18446744073709551615,0]}"#;
        for paced in [false, true] {
            let mut odd: History = serde_json::from_str(odd).expect("it reads");
            odd.rules.paced = paced;
            let _ = odd.reserve(0, 1, None);
            odd.reconfigure(rules(&[(5, 800)]));
            let _ = odd.reserve(0, 1, None);
        }
    }

    /// One limiter after many calls: each permit's slot.
    fn run(limits: &[(u32, u64)], calls: &[(u64, u32, Option<u64>)]) -> Vec<Micros> {
        let most = limits.iter().map(|limit| limit.0).min().unwrap_or(1);
        let (mut history, mut now, mut given) = (history(limits), 0, Vec::new());
        for (pause, permits, longest) in calls {
            now += pause;
            let permits = 1 + permits % most;
            match history.reserve(now, permits, *longest) {
                Ok(slot) => {
                    assert!(slot >= now && longest.is_none_or(|longest| slot - now <= longest));
                    given.extend(std::iter::repeat_n(slot, to_index(permits)));
                }
                Err(wait) => {
                    // The caller is told a time at which the permits can be had, and a microsecond earlier they cannot.
                    let mut then = history.clone();
                    assert_eq!(then.reserve(now + wait, permits, Some(0)), Ok(now + wait));
                    assert!(history.clone().reserve(now + wait - 1, permits, Some(0)).is_err());
                }
            }
            history = stored(&history);
        }
        given
    }

    proptest! {
        /// Whatever is asked for when, the permit that comes `permits` after another is a window later.
        #[test]
        fn t4_every_window_has_at_most_so_many(
            first in (1_u32..8, 1_u64..50),
            second in (1_u32..20, 1_u64..200),
            calls in prop::collection::vec(
                (0_u64..20_000, 0_u32..8, prop::option::of(0_u64..30_000)), 1..200),
        ) {
            let limits = [first, second];
            let given = run(&limits, &calls);
            prop_assert!(given.is_sorted());
            for (permits, per) in limits {
                for window in given.windows(to_index(permits) + 1) {
                    prop_assert!(window[to_index(permits)] - window[0] >= per * MS, "{window:?}");
                }
            }
        }

        /// Every window has at most so many permits, by the rules of each moment, also if the rules change between the calls.
        #[test]
        fn t4_and_with_other_rules(
            rounds in prop::collection::vec((1_u32..9, 1_u64..50, 1_usize..20), 1..8),
        ) {
            let (mut history, mut given) = (history(&[(3, 10)]), Vec::new());
            for (permits, per, calls) in rounds {
                history.reconfigure(rules(&[(permits, per)]));
                for _ in 0..calls {
                    given.push(history.reserve(0, 1, None).expect("no bound"));
                    if let Some(before) = given.len().checked_sub(to_index(permits) + 1) {
                        prop_assert!(given[given.len() - 1] - given[before] >= per * MS);
                    }
                }
            }
        }
    }
}
