//! The calls about entries, over the simulated network.

use async_trait::async_trait;

use super::{Call, Network, happens, late};
use crate::backend::{
    Cursor, Entries, EntryId, EntryRef, Listing, NewEntry, Page, Position, SessionId, Store,
};
use crate::characteristics::LossDetection;
use crate::error::Result;
use crate::key::QueueKey;

#[async_trait]
impl Entries for Network {
    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let entry = entry.clone();
        self.call(Call::Other, move |world| {
            let entry = entry.clone();
            async move {
                world.admit()?;
                world.before_writing()?;
                let position = match world.has_left(&entry.entry_ref.id) {
                    true => return Err(late("enter")),
                    false => world.contents().enter(&entry)?,
                };
                world.after_writing().map(|()| position)
            }
        })
        .await
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let (entry, number) = (entry.clone(), self.world.send_update());
        self.call(Call::Other, move |world| {
            let entry = entry.clone();
            async move {
                world.before_writing()?;
                let updated = match world.is_newest(&entry.entry_ref.id, number) {
                    true => world.contents().update(&entry, seq).await?,
                    false => return Err(late("update")),
                };
                world.after_writing().map(|()| updated)
            }
        })
        .await
    }

    async fn leave(&self, entry: &EntryRef, _seq: Option<u64>) -> Result<()> {
        let entry = entry.clone();
        self.call(Call::Other, move |world| {
            let entry = entry.clone();
            async move {
                world.leaves(&entry.id);
                world.contents().leave(&entry)
            }
        })
        .await
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let entry = entry.clone();
        self.call(Call::Other, move |world| {
            let entry = entry.clone();
            async move { world.contents().position(&entry, seq) }
        })
        .await
    }

    fn lists_held(&self) -> bool {
        let is_told = self.characteristics().loss_detection == LossDetection::Watch;
        is_told && self.world.longest_list().is_some()
    }

    async fn missing(&self, session: SessionId, held: &[EntryRef]) -> Result<Option<Vec<EntryId>>> {
        if self.world.longest_list().is_none_or(|longest| held.len() > longest) {
            return Ok(None);
        }
        // The answer of a server that does not know these entries yet.
        let is_older = self.world.draw(|random, weather| happens(random, weather.older_answer));
        let held = held.to_vec();
        self.call(Call::Other, move |world| {
            let held = held.clone();
            async move {
                if is_older {
                    world.count("older list");
                    return Ok(Some(held.into_iter().map(|entry| entry.id).collect()));
                }
                world.contents().missing(session, &held).map(Some)
            }
        })
        .await
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        let queue = queue.clone();
        let is_observer = self.is_remote() && self.is_observer();
        // An observer may be answered with an older state. No rule says how old it is, and it may be older than the last answer. A
        // caller that decides by what it reads needs the present state, so only observers get an older one.
        let is_older =
            is_observer && self.world.draw(|random, weather| happens(random, weather.older_answer));
        self.call(Call::Other, move |world| {
            let queue = queue.clone();
            async move {
                let listing = match is_observer {
                    true => world.observe(&queue, is_older).await?,
                    false => world.contents().read(&queue).await?,
                };
                let clock = listing.clock.filter(|_| world.traits().has_clock);
                Ok(Listing { clock, ..listing })
            }
        })
        .await
    }

    async fn queues(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        let from = from.cloned();
        self.call(Call::Other, move |world| {
            let from = from.clone();
            async move { world.contents().queues(kind, from.as_ref()).await }
        })
        .await
    }

    fn enter_now(&self, entry: &NewEntry) -> Option<Result<Position>> {
        let is_here = !self.is_remote() && !self.client.is_dead();
        is_here.then(|| self.world.contents().enter(entry))
    }

    fn leave_now(&self, entry: &EntryRef, _seq: Option<u64>) -> Option<Result<()>> {
        let is_here = !self.is_remote() && !self.client.is_dead();
        is_here.then(|| self.world.contents().leave(entry))
    }
}
