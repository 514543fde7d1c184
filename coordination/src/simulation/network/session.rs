//! The calls about sessions, over the simulated network.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::{Call, Network, late};
use crate::backend::{EntryId, EntryRef, Gone, NewSession, SessionId, Sessions};
use crate::canary::{Canary, sings};
use crate::error::Result;

#[async_trait]
impl Sessions for Network {
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        let session = session.clone();
        self.client.has_opened(session.id);
        self.call(Call::Other, move |world| {
            let session = session.clone();
            async move {
                match world.has_closed(session.id) {
                    true => Err(late("open")),
                    false => world.open(&session).await,
                }
            }
        })
        .await
    }

    async fn renew(&self, session: SessionId, held: &[EntryRef], gone: &Gone<'_>) -> Result<()> {
        if let Some(answer) = self.take_stray() {
            answer?.iter().for_each(gone);
            return Ok(());
        }
        let (held, stray) = (held.to_vec(), Arc::clone(&self.stray));
        let answer = self.call(Call::Heartbeat, move |world| {
            let (held, stray) = (held.clone(), Arc::clone(&stray));
            async move {
                world.renew(session)?;
                let gone: Mutex<Vec<EntryId>> = Mutex::default();
                let note = |id: &EntryId| {
                    gone.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
                };
                let answer = world.contents().renew(session, &held, &note);
                let answer = answer.map(|()| gone.into_inner().unwrap_or_default());
                if sings(Canary::AnswerOfAnotherCall) {
                    *stray.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
                        Some(answer.clone());
                }
                answer
            }
        });
        let answer = answer.await;
        self.take_stray();
        answer?.iter().for_each(gone);
        Ok(())
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        self.call(Call::Other, move |world| async move {
            world.close(session);
            Ok(())
        })
        .await
    }

    fn close_now(&self, session: SessionId) {
        if !self.is_remote() && !self.client.is_dead() {
            self.world.contents().close_now(session);
        }
    }
}
