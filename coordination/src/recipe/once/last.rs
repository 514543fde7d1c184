//! The last claim, and when it is over: by clocks that may be wrong.
//!
//! Claims are dated by wall clocks, and one of them may be years off. So a claim is believed as far as the clocks can be
//! compared. Where the store has a clock, that says how long ago the claim was made: if the wall clocks of who made it and
//! of who asks do not fit to that, the store's clock decides. What it showed is some time ago when its word arrives, how long
//! at most is known: a process may be stopped just then. Elsewhere a claim that seems to be made later than now is not
//! believed: who asks leaves its host's word that it was there at this moment of the host's clock since boot, which nobody
//! sets. Once the whole period has passed by that clock, whoever asks on that host gets the next claim.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::backend::{Clock, Listing};
use crate::env::{HostClock, unix_micros};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{self, QueueKey};
use crate::recipe::engine::data::from_data;
use crate::time::BootInstant;
use crate::token::FencingToken;

/// Clocks may differ by a tenth of the period,
const SLACK: u64 = 10;
/// and by a second, but not by more than the period.
const LEAST_SLACK: u64 = 1_000_000;
/// Clocks since boot run at the same rate but for one part in this many (A1).
const DRIFT: u64 = 200;
/// How many hosts' word is kept.
const HOSTS: usize = 8;

/// How far claims are apart, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) period: u64,
    /// Also after a claim that was given back.
    pub(super) at_least: u64,
    pub(super) is_aligned: bool,
}

/// The last claim, as stored. Times are microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Last {
    pub(super) number: FencingToken,
    pub(super) at: u64,
    pub(super) next: u64,
    /// How long it keeps others from the next claim where the clocks do not say; none stored: from `at` to `next`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lasts: Option<u64>,
    /// What the store's clock showed then, if it has one: no more than this,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) stored: Option<Shown>,
    /// and less by no more than that.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) unsure: u64,
    /// The hosts that do not believe it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) doubted: Vec<Shown>,
    /// The entry that it was made under; there until it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) under: Option<Under>,
}

/// What a clock showed at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shown {
    /// Which clock it was, and since when it runs.
    pub(super) epoch: u64,
    pub(super) micros: u64,
}

/// An entry that ends with its holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Under {
    pub(super) kind: String,
    /// Encoded, so that it is short.
    pub(super) name: String,
    pub(super) entry: u64,
}

/// What the clocks show.
#[derive(Clone, Copy)]
pub(super) struct Now {
    pub(super) wall: u64,
    /// No less than this,
    pub(super) store: Option<Shown>,
    /// and more by no more than that.
    pub(super) unsure: u64,
    /// Looked up only where it is needed.
    pub(super) host: Option<Shown>,
}

/// What is to be done about a claim that is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Claim(Last),
    /// The last claim is not over.
    Wait,
    /// Nor is it, by what is known, but it is not believed; with our word that it was there, if that is to be stored.
    Doubt(Option<Last>),
}

impl Now {
    /// With a listing that was asked for at that moment or later.
    pub(super) fn of(listing: &Listing, asked: BootInstant) -> Self {
        let shown = |clock: Clock| Shown { epoch: clock.epoch, micros: micros_floor(clock.now) };
        // In this order: what passes in between makes it less sure.
        let wall = unix_micros();
        let unsure = micros(BootInstant::now().saturating_duration_since(asked));
        Self { wall, store: listing.clock.map(shown), unsure, host: None }
    }

    /// What the store's clock shows at most.
    fn latest(self) -> Option<Shown> {
        let latest = |shown: Shown| shown.micros.saturating_add(longer(self.unsure));
        self.store.map(|shown| Shown { micros: latest(shown), ..shown })
    }

    /// With what this host's clock since boot shows.
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
        // Nothing is larger than these numbers, so after them every claim would succeed.
        if last.at.max(last.number.value()) > i64::MAX as u64 {
            let message = "the store has a claim that no clock of this time can have made";
            return Err(Error::new(ErrorKind::Corrupt, operation, message));
        }
        Ok(Some(last))
    }

    /// Whether it is that claim, whatever became of it.
    pub(super) fn is(&self, other: &Self) -> bool {
        (self.number, self.at, &self.under) == (other.number, other.at, &other.under)
    }

    /// As it is when the next one can be claimed this long after it was.
    pub(super) fn settled(self, lasts: u64) -> Self {
        let next = self.at.saturating_add(lasts);
        Self { next, lasts: Some(lasts), under: None, ..self }
    }

    /// Nothing is left of it but its number.
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

    /// How long it is until the next claim can be made, by what is known.
    pub(super) fn left(&self, now: Now) -> u64 {
        let by_wall = match self.next > self.at {
            true => self.next.saturating_sub(now.wall),
            // It was given back, by whatever clock.
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

    /// Whether the clock by which it was made and ours fit together, as far as that can be known.
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

    /// How old it is by the store's clock, at least.
    fn age(&self, now: Now) -> Option<u64> {
        passed(self.stored?, now.store?)
    }

    /// How long it has been doubted on this host.
    fn doubted_for(&self, now: Now) -> u64 {
        let passed = |host| self.doubted.iter().find_map(|since| passed(*since, host));
        now.on_host().host.and_then(passed).unwrap_or_default()
    }

    /// With this host's word that it was there at this moment; `None`: it has that, or the host has no clock.
    fn doubted_by(&self, now: Now) -> Option<Self> {
        let host = now
            .on_host()
            .host
            .filter(|host| !self.doubted.iter().any(|by| by.epoch == host.epoch))?;
        let mut doubted = self.doubted.clone();
        doubted.drain(..(doubted.len() + 1).saturating_sub(HOSTS));
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

/// Whether there can be a claim at this moment, and which.
pub(super) fn decide(last: Option<&Last>, now: Now, rule: Rule) -> Decision {
    if let Some(last) = last
        && last.left(now) > 0
    {
        return match last.is_believed(now) {
            true => Decision::Wait,
            // The store's clock tells how old it is, or a host has to.
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

/// By how much clocks may differ for claims that are so far apart.
fn slack(lasts: u64) -> u64 {
    (lasts / SLACK).max(LEAST_SLACK.min(lasts))
}

/// What has passed by a clock; `None`: it is another one, or was started anew.
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
