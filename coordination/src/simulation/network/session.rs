//! Sessions over the network.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{Call, Network};
use crate::backend::{EntryId, EntryRef, NewSession, SessionId, Sessions};
use crate::canary::{Canary, sings};
use crate::error::Result;

#[async_trait]
impl Sessions for Network {
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        let session = session.clone();
        self.client.has_opened(session.id);
        self.call(Call::Other, move |world| {
            let session = session.clone();
            async move { world.open(&session).await }
        })
        .await
    }

    async fn renew(&self, session: SessionId, held: &[EntryRef]) -> Result<Vec<EntryId>> {
        if let Some(answer) = self.take_stray() {
            return answer;
        }
        let (held, stray) = (held.to_vec(), Arc::clone(&self.stray));
        let answer = self.call(Call::Heartbeat, move |world| {
            let (held, stray) = (held.clone(), Arc::clone(&stray));
            async move {
                world.renew(session)?;
                let answer = world.memory().renew(session, &held).await;
                if sings(Canary::AnswerOfAnotherCall) {
                    *stray.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
                        Some(answer.clone());
                }
                answer
            }
        });
        let answer = answer.await;
        self.take_stray();
        answer
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        self.call(Call::Other, move |world| async move {
            world.end(session);
            Ok(())
        })
        .await
    }

    fn close_now(&self, session: SessionId) {
        if !self.is_remote() && !self.client.is_dead() {
            self.world.memory().close_now(session);
        }
    }
}
