//! The last claim, and when it is over, although clocks may be wrong.
//!
//! Claims are dated by the wall clocks of the clients, and one of these may be wrong by years. So a claim's date is believed only
//! if other clocks do not contradict it.
//!
//! On a store with a clock, that clock says how old the claim is. If the age does not fit to the wall clocks of the process that
//! made the claim and of the process that asks, the store's clock decides. A time that is read from the store's clock is already
//! some time old when it arrives, because the process may be stopped just then; it is known how old at most.
//!
//! On other stores, a claim that is dated later than now is not believed. A process that finds such a claim stores with it what its
//! host's clock since boot shows, which nobody can set. Once the whole period has passed by this clock, any process on that host
//! gets the next claim.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::RngExt;
use serde::{Deserialize, Serialize};

use crate::backend::{Clock, Listing};
use crate::env::{self, HostClock, unix_micros};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{self, QueueKey};
use crate::recipe::engine::data::from_data;
use crate::time::BootInstant;
use crate::token::FencingToken;

/// The wall clocks of two hosts may differ by this part of the period: a tenth.
const SLACK: u64 = 10;
/// Wall clocks may in any case differ by a second (here in microseconds), but not by more than the period.
const LEAST_SLACK: u64 = 1_000_000;
/// Clocks since boot may differ in rate by one part in this many (A1 in `docs/guarantees.md`).
const DRIFT: u64 = 200;
/// How many hosts are remembered that do not believe a claim's date. As a clock is hardly ever that wrong, they may be many.
const HOSTS: usize = 64;
/// Once in so many times the first of them is forgotten, whose host may be gone for good.
const RARELY: u32 = 1_000;

/// How far apart claims have to be, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) period: u64,
    /// The shortest time between two claims, also if the first was given back.
    pub(super) at_least: u64,
    pub(super) is_aligned: bool,
}

/// The last claim, as stored. Times are microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Last {
    pub(super) number: FencingToken,
    pub(super) at: u64,
    pub(super) next: u64,
    /// How long the claim excludes the next one if its date is not believed. Earlier versions do not store this: then it is the
    /// time from `at` to `next`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lasts: Option<u64>,
    /// What the store's clock showed when the claim was made, at most; `None` if the store has no clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) stored: Option<Shown>,
    /// By how much less than `stored` the clock may have shown then.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) unsure: u64,
    /// For each host that does not believe the claim's date: what the host's clock showed when the host found that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) doubted: Vec<Shown>,
    /// The entry of the guard under which the claim was made; removed when the claim is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) under: Option<Under>,
}

/// What a clock showed at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shown {
    /// Which clock it was, and since when it runs: another number after a restart.
    pub(super) epoch: u64,
    pub(super) micros: u64,
}

/// The entry of a guard. It ends with its holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Under {
    pub(super) kind: String,
    /// The name in an encoded form, which is short even if the name is long.
    pub(super) name: String,
    pub(super) entry: u64,
}

/// What the clocks show.
#[derive(Clone, Copy)]
pub(super) struct Now {
    pub(super) wall: u64,
    /// What the store's clock shows, at least.
    pub(super) store: Option<Shown>,
    /// By how much more than `store` the clock may show.
    pub(super) unsure: u64,
    /// What the host's clock since boot shows; read only if it is needed.
    pub(super) host: Option<Shown>,
}

/// What to do when a claim is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Claim(Last),
    /// The last claim is not over.
    Wait,
    /// The last claim is not over, as far as is known, but its date is not believed. With the claim as it is to be stored, if it
    /// does not say yet what our host's clock showed.
    Doubt(Option<Last>),
}

impl Now {
    /// What the clocks show. The listing was requested at `asked` or later.
    pub(super) fn of(listing: &Listing, asked: BootInstant) -> Self {
        let shown = |clock: Clock| Shown { epoch: clock.epoch, micros: micros_floor(clock.now) };
        // The wall clock is read first, because time that passes between the two readings then only makes `unsure` larger.
        let wall = unix_micros();
        let unsure = micros(BootInstant::now().saturating_duration_since(asked));
        Self { wall, store: listing.clock.map(shown), unsure, host: None }
    }

    /// What the store's clock shows, at most.
    fn latest(self) -> Option<Shown> {
        let latest = |shown: Shown| shown.micros.saturating_add(longer(self.unsure));
        self.store.map(|shown| Shown { micros: latest(shown), ..shown })
    }

    /// Adds what this host's clock since boot shows.
    fn on_host(self) -> Self {
        let shown = |host: HostClock| Shown {
            epoch: host.epoch(),
            micros: micros_floor(host.at(BootInstant::now())),
        };
        Self { host: self.host.or_else(|| HostClock::find().map(shown)), ..self }
    }
}

impl Last {
    pub(super) fn of(listing: &Listing, operation: &'static str) -> Result<Option<Self>> {
        let Some(value) = &listing.value else { return Ok(None) };
        let last: Self = from_data(operation, &value.data)?;
        // A later claim needs a later time and a larger number. After a claim with such numbers there are none, so the claim would
        // not exclude any other.
        if last.at.max(last.number.value()) > i64::MAX as u64 {
            let message = "the store has a claim that no clock of this time can have made";
            return Err(Error::new(ErrorKind::Corrupt, operation, message));
        }
        Ok(Some(last))
    }

    /// Whether this is still the claim `other`, and not done since.
    pub(super) fn is(&self, other: &Self) -> bool {
        (self.number, self.at, &self.under) == (other.number, other.at, &other.under)
    }

    /// The claim when it is no longer open. The next one can be made `lasts` after it.
    pub(super) fn settled(self, lasts: u64) -> Self {
        let next = self.at.saturating_add(lasts);
        Self { next, lasts: Some(lasts), under: None, ..self }
    }

    /// The claim after a reset: only its number is left.
    pub(super) fn forgotten(self) -> Self {
        Self {
            number: self.number,
            at: 0,
            next: 0,
            lasts: None,
            stored: None,
            unsure: 0,
            doubted: Vec::new(),
            under: None,
        }
    }

    pub(super) fn at(&self) -> SystemTime {
        to_time(self.at)
    }

    pub(super) fn next(&self) -> SystemTime {
        to_time(self.next)
    }

    /// How long it is until the next claim can be made, as far as is known.
    pub(super) fn left(&self, now: Now) -> u64 {
        let by_wall = match self.next > self.at {
            true => self.next.saturating_sub(now.wall),
            // The claim was given back, so no clock matters.
            false => 0,
        };
        if self.is_believed(now) {
            return by_wall;
        }
        match self.age(now) {
            Some(age) => self.lasts().saturating_sub(age),
            None => by_wall.min(longer(self.lasts()).saturating_sub(self.doubted_for(now))),
        }
    }

    /// Whether our wall clock fits to that by which the claim was made, as far as this can be known.
    fn is_believed(&self, now: Now) -> bool {
        match self.age(now) {
            Some(age) => {
                let unsure = longer(self.unsure).saturating_add(longer(now.unsure));
                let slack = slack(self.lasts()).saturating_add(unsure);
                self.at.saturating_add(age).abs_diff(now.wall) <= slack
            }
            None => self.at <= now.wall.saturating_add(slack(self.lasts())),
        }
    }

    /// How old the claim is by the store's clock, at least.
    fn age(&self, now: Now) -> Option<u64> {
        passed(self.stored?, now.store?)
    }

    /// How long this host has not believed the claim's date.
    fn doubted_for(&self, now: Now) -> u64 {
        let passed = |host| self.doubted.iter().find_map(|since| passed(*since, host));
        now.on_host().host.and_then(passed).unwrap_or_default()
    }

    /// The claim with a note of what this host's clock shows now; `None`: it has such a note already, or the host has no clock.
    fn doubted_by(&self, now: Now) -> Option<Self> {
        let host = now
            .on_host()
            .host
            .filter(|host| !self.doubted.iter().any(|by| by.epoch == host.epoch))?;
        let mut doubted = self.doubted.clone();
        // Those that came first stay. If they were forgotten, hosts that ask in turn would make each other forget, and by none of
        // their clocks would a period ever pass.
        if doubted.len() >= HOSTS {
            let first = env::rng().random_range(0..RARELY) == 0;
            doubted.remove(if first { 0 } else { HOSTS - 1 });
            doubted.truncate(HOSTS - 1);
        }
        doubted.push(host);
        Some(Self { doubted, ..self.clone() })
    }

    fn lasts(&self) -> u64 {
        self.lasts.unwrap_or_else(|| self.next.saturating_sub(self.at))
    }
}

impl Under {
    pub(super) fn is_in(&self, key: &QueueKey) -> bool {
        self.kind == key.kind() && self.name == key::encode(key.name())
    }
}

/// Whether the job can be claimed at this moment, and with which claim.
pub(super) fn decide(last: Option<&Last>, now: Now, rule: Rule) -> Decision {
    if let Some(last) = last
        && last.left(now) > 0
    {
        return match last.is_believed(now) {
            true => Decision::Wait,
            // If the store's clock says how old the claim is, no host's clock is needed.
            false => Decision::Doubt(match last.age(now) {
                Some(_) => None,
                None => last.doubted_by(now),
            }),
        };
    }
    let lasts = rule.period.max(rule.at_least);
    // If the clock was set back a little, the last claim's time counts instead, so that claims' times do not fall.
    let is_close = |last: &&Last| last.at <= now.wall.saturating_add(slack(lasts));
    let at = last.filter(is_close).map_or(now.wall, |last| now.wall.max(last.at));
    let next = match rule.is_aligned {
        true => (at / rule.period).saturating_add(1).saturating_mul(rule.period),
        false => at.saturating_add(rule.period),
    };
    let next = next.max(at.saturating_add(rule.at_least));
    let number = last.map_or(0, |last| last.number.value()).saturating_add(1);
    match FencingToken::new(number) {
        Some(number) => Decision::Claim(Last {
            number,
            at,
            next,
            lasts: Some(lasts),
            stored: now.latest(),
            unsure: now.unsure,
            doubted: Vec::new(),
            under: None,
        }),
        None => Decision::Wait,
    }
}

/// By how much wall clocks may differ for claims that last this long.
fn slack(lasts: u64) -> u64 {
    (lasts / SLACK).max(LEAST_SLACK.min(lasts))
}

/// The time that has passed by a clock; `None`: `now` is of another clock, or the clock was restarted.
fn passed(since: Shown, now: Shown) -> Option<u64> {
    (since.epoch == now.epoch).then(|| now.micros.checked_sub(since.micros))?
}

/// How long to wait by one clock until this much has passed by every other.
fn longer(wait: u64) -> u64 {
    wait.saturating_add(wait / DRIFT)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Rounded up, so that a period is never too short.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

fn micros_floor(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn to_time(micros: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_micros(micros)).unwrap_or(UNIX_EPOCH)
}
