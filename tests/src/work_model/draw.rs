//! What a call is made with: drawn at random, and most often something that is there.

use coordination::{ClaimId, ClaimOptions, ItemId, WorkQueue};
use rand::RngExt;

use super::model::Ms;
use super::{CLIENTS, DELAY, LONG, Run, SHORT, Time, ms, named};

impl Run<'_> {
    /// The queue, by any of the clients.
    pub(super) fn jobs(&mut self) -> WorkQueue {
        self.clients[self.rng.random_range(0..CLIENTS)].jobs.clone()
    }

    /// How long something is to last.
    pub(super) fn span(&mut self) -> Ms {
        match self.time {
            Time::Paused => self.rng.random_range(1..400),
            Time::Real if self.rng.random_bool(0.9) => LONG,
            Time::Real => {
                self.has_short = true;
                SHORT
            }
        }
    }

    /// How long an item is to be delayed that lives so long.
    pub(super) fn delay(&mut self, life: Ms) -> Ms {
        match (self.time, self.rng.random_range(0..12)) {
            (Time::Paused, 0..4) => self.rng.random_range(0..life),
            (Time::Real, 0..3) if life > SHORT => DELAY,
            (Time::Real, 3) if life > SHORT => {
                self.has_short = true;
                SHORT
            }
            _ => 0,
        }
    }

    pub(super) fn item(&mut self) -> ItemId {
        let newest = self.items.len().min(30);
        let newest = newest.checked_sub(1).map(|last| self.rng.random_range(0..=last));
        newest.map_or_else(|| named("0"), |nth| self.items[self.items.len() - 1 - nth])
    }

    pub(super) fn claim_id(&mut self) -> ClaimId {
        match self.claims.len().min(8) {
            0 => named("'; DROP TABLE"),
            _ if self.rng.random_bool(0.03) => named("'; DROP TABLE"),
            newest => self.claims[self.claims.len() - 1 - self.rng.random_range(0..newest)],
        }
    }

    pub(super) fn new_id(&self) -> ClaimId {
        let id = ClaimId::random();
        match self.is_crowded {
            true => named(&format!("{}00", &id.to_string()[..30])),
            false => id,
        }
    }

    /// A claim, and most often one of its items.
    pub(super) fn claimed_item(&mut self) -> (ItemId, ClaimId) {
        let claim = self.claim_id();
        match self.model.members(claim).first() {
            Some(item) if self.rng.random_bool(0.7) => (*item, claim),
            _ => (self.item(), claim),
        }
    }

    pub(super) fn options(&mut self) -> (ClaimOptions, (usize, Ms, Ms)) {
        let (limit, ttl) = (self.rng.random_range(1..6), self.span());
        let grace = if self.rng.random_bool(0.5) && ttl != SHORT { self.span() } else { 0 };
        let options = ClaimOptions::default().limit(limit).ttl(ms(ttl)).grace(ms(grace));
        (options, (limit, ttl, grace))
    }
}
