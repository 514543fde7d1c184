//! The store's notifications, over the simulated network.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rand::RngExt;
use tokio::sync::oneshot;

use super::{Network, Way, happens, on_its_way};
use crate::backend::{EntryRef, Mode, Watching};
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;
use crate::simulation::contents::Contents;

#[async_trait]
impl Watching for Network {
    async fn gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        let entry = entry.clone();
        let wait =
            move |contents: Arc<Contents>| async move { contents.gone(&entry, seq, waiter).await };
        self.notified(recheck, wait).await
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        self.observes();
        let queue = queue.clone();
        let wait =
            move |contents: Arc<Contents>| async move { contents.changed(&queue, revision).await };
        self.notified(recheck, wait).await
    }
}

impl Network {
    /// Waits for a notification, or until it is time for the re-check.
    async fn notified<O>(
        &self,
        recheck: Duration,
        wait: impl FnOnce(Arc<Contents>) -> O + Send + 'static,
    ) -> Result<()>
    where
        O: Future<Output = Result<()>> + Send,
    {
        if !self.is_remote() {
            return wait(self.world.contents()).await;
        }
        self.world.count_call();
        if let Some(refused) = self.world.refusal() {
            return Err(refused);
        }
        let (way, lost, cut_short) = self.world.draw(|random, weather| {
            let way = Way::draw(random, weather);
            let lost = happens(random, weather.lost_notification);
            let is_broken = happens(random, weather.broken_watch);
            let is_cut_short = is_broken || happens(random, weather.early_notification);
            let after = Duration::from_millis(random.random_range(0..200));
            (way, lost, is_cut_short.then_some((after, is_broken)))
        });
        if let Some(_slot) = self.world.slot().await {
            on_its_way(way.there + way.back).await;
        }
        let (client, world) = (Arc::clone(&self.client), self.world.clone());
        let (tell, told) = oneshot::channel();
        let watch = tokio::spawn(async move {
            on_its_way(way.there).await;
            let Some(start) = world.start() else { return };
            if way.request_lost || client.link().requests_cut {
                return;
            }
            wait(world.contents()).await.ok();
            on_its_way(way.back).await;
            if lost {
                return world.count("lost notification");
            }
            if !client.link().replies_cut && world.start() == Some(start) {
                let _ = tell.send(());
            }
        });
        let _watch = Ended(watch);
        let notified = async {
            match told.await {
                Ok(()) => {}
                Err(_) => std::future::pending().await,
            }
        };
        let cut_short = async {
            let Some((after, is_broken)) = cut_short else { return std::future::pending().await };
            tokio::time::sleep(after).await;
            is_broken
        };
        tokio::select! {
            biased;
            () = notified => Ok(()),
            is_broken = cut_short => match is_broken {
                true => {
                    self.world.count("broken watch");
                    Err(Error::new(ErrorKind::Unavailable, "watch", "the watch broke"))
                }
                false => {
                    self.world.count("early notification");
                    Ok(())
                }
            },
            () = tokio::time::sleep(recheck) => Ok(()),
        }
    }
}

/// Stops the task when dropped.
struct Ended(tokio::task::JoinHandle<()>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort();
    }
}
