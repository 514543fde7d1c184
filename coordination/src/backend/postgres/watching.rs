//! Waiting for the end of an entry, and for a change of a queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::client::{Connection, Postgres};
use crate::backend::server::in_time;
use crate::backend::server::notifications::{Followed, Known, Wait, Waited};
use crate::backend::server::sql::{Before, Call, Connections, LITTLE, SqlStore};
use crate::backend::{EntryId, Mode};
use crate::error::Result;
use crate::panics::{caught, on_purpose};

/// How often a waiter asks the server if no notifications come, because the connection leads to a pooler. A free lock is granted
/// within two seconds (L2).
const WITHOUT_WORD: Duration = Duration::from_secs(1);

/// A subscription to a queue's channel.
pub(super) struct Following {
    followed: watch::Receiver<Followed>,
    epochs: watch::Receiver<u64>,
}

impl Following {
    pub(super) async fn begin(store: &SqlStore<Postgres>, path: &str) -> Result<Self> {
        let epochs = store.connections.epochs();
        let followed = in_time(store.patience, follow(&store.connections, path)).await?;
        Ok(Self { followed, epochs })
    }

    pub(super) async fn moved(&mut self, count: u64) {
        tokio::select! {
            biased;
            _ = self.followed.wait_for(|followed| followed.count != count) => {}
            _ = self.epochs.changed() => {}
        }
    }
}

/// Resolves when the entry with this number is gone, or no longer blocks a waiter of this mode.
pub(super) async fn gone(
    store: &SqlStore<Postgres>,
    path: &str,
    seq: u64,
    waiter: Mode,
    recheck: Duration,
) -> Result<()> {
    let dialect = store.dialect();
    let mut waiting = dialect.hub.wait(&Wait { queue: path.to_owned(), seq, mode: waiter });
    let waited = *waiting.borrow();
    let mut known = match waited {
        Waited::Over => return Ok(()),
        Waited::Blocks(known) => Some(known),
        Waited::Unknown => None,
    };
    let mut epochs = store.connections.epochs();
    // Whether the server has named this entry as the blocker of one of ours, so that it notifies us on our own channel when the
    // entry goes. Otherwise this waiter listens to the queue's channel instead.
    let is_expected = known.is_some();
    let mut following = None;
    loop {
        let epoch = *epochs.borrow_and_update();
        let until = match known.take().filter(|known| known.epoch == epoch) {
            Some(known) => known.until,
            None => {
                if !is_expected {
                    let follow = follow(&store.connections, path);
                    following = Some(in_time(store.patience, follow).await?);
                }
                let listens = following.is_some() && !is_pooled(dialect);
                let look = look(store, path, seq, waiter, listens);
                match in_time(store.patience, look).await? {
                    Some(left) => Instant::now() + left,
                    None => return Ok(()),
                }
            }
        };
        let until = until.min(Instant::now() + recheck) + LITTLE;
        tokio::select! {
            biased;
            _ = waiting.wait_for(Waited::is_over) => return Ok(()),
            _ = epochs.changed() => {}
            () = tokio::time::sleep_until(until.into()) => {}
        }
        drop(following.take());
    }
}

/// How long the entry's lease still lasts; `None`: the entry does not block the waiter.
async fn look(
    store: &SqlStore<Postgres>,
    path: &str,
    seq: u64,
    waiter: Mode,
    listens: bool,
) -> Result<Option<Duration>> {
    let call = Call::new("watch", "look")
        .bytes(path)
        .number(seq)
        .flag(waiter == Mode::Shared)
        .flag(listens);
    let answer = store.connections.run(&call).await?;
    let left = answer.number("remaining")?.filter(|_| answer.is_ok());
    Ok(left.map(Duration::from_micros))
}

/// Notes which entry blocks `entry`, an entry of ours: the server notifies this client when that entry goes.
pub(super) fn waits(store: &SqlStore<Postgres>, entry: &EntryId, before: Option<Before>) {
    let hub = &store.dialect().hub;
    let wait = before.map(|Before { path, seq, mode, epoch, until }| {
        let wait = Wait { queue: path, seq, mode };
        hub.expect(&wait, Known { epoch, until });
        wait
    });
    let known = store.entries.change(entry, |own| std::mem::replace(&mut own.known, wait.clone()));
    if let Some(known) = known.flatten().filter(|known| Some(known) != wait.as_ref()) {
        hub.forget(&known);
    }
}

/// Whether no notifications come, because the connection leads to a pooler.
fn is_pooled(dialect: &Postgres) -> bool {
    dialect.is_pooled.load(Ordering::Relaxed)
}

pub(super) fn at_most(dialect: &Postgres, recheck: Duration) -> Duration {
    if is_pooled(dialect) { recheck.min(WITHOUT_WORD) } else { recheck }
}

/// Subscribes to a queue's channel, on the connection in use.
async fn follow(
    connections: &Arc<Connections<Postgres>>,
    path: &str,
) -> Result<watch::Receiver<Followed>> {
    let dialect = &connections.link.dialect;
    // Nearly always the channel is subscribed already. Then nothing is sent, and no slot is needed.
    let (following, channel) = dialect.hub.follow(path, connections.rotation.epoch());
    if channel.is_none() {
        return Ok(following);
    }
    // The mutex is locked first, and the slot is taken after that. In the other order, tasks that wait for the mutex could take all
    // the slots, while the task that has the mutex waits for one.
    let _one_at_a_time = dialect.listening.lock().await;
    let ready = connections.ready("watch").await?;
    let epoch = ready.epoch();
    let (following, channel) = dialect.hub.follow(path, epoch);
    if let Some(channel) = channel {
        let channels = [channel];
        let listening = async |connection: Arc<Connection>| {
            on_purpose("watching");
            connection.listen(&channels, "watch").await
        };
        caught("watch", ready.make(listening)).await.flatten()?;
        dialect.hub.subscribed(&channels, epoch);
    }
    Ok(following)
}

/// Unsubscribes the channels that nobody has listened to for a while.
pub(super) async fn sweep(connections: &Arc<Connections<Postgres>>) {
    if connections.rotation.connected().is_none() {
        return;
    }
    let sweeping = async {
        let dialect = &connections.link.dialect;
        let _one_at_a_time = dialect.listening.lock().await;
        let ready = connections.ready("watch").await?;
        let channels = dialect.hub.sweep();
        if channels.is_empty() {
            return Ok(());
        }
        let no_longer = async |connection: Arc<Connection>| {
            connection.execute("UNLISTEN", &channels, "watch").await
        };
        in_time(connections.patience, ready.make(no_longer)).await
    };
    // If this fails, messages still come that nobody needs, which does no harm.
    let _: Result<()> = sweeping.await;
}
