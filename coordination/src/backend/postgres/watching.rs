//! Waits for the end of an entry, and for a change of a queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::client::{Connection, Postgres};
use crate::backend::server::in_time;
use crate::backend::server::notifications::{Followed, Known, Wait, Waited};
use crate::backend::server::sql::{
    Before, Call, Connections, Freed, LITTLE, Sending, SqlStore, let_finish,
};
use crate::backend::{EntryId, Mode};
use crate::error::Result;
use crate::panics::on_purpose;

/// How often a waiter asks the server if no notifications come, because the connection leads to a pooler. It is this short so that
/// a lock that becomes free is granted within two seconds (L2).
const WITHOUT_WORD: Duration = Duration::from_secs(1);
/// How soon a waiter asks for the first time if no notifications come, and the entry that it waits for is another client's. With each
/// time this becomes twice as long, up to [`WITHOUT_WORD`]: most locks are held for a moment only.
const FIRST_WITHOUT_WORD: Duration = Duration::from_millis(50);

/// A subscription to a queue's channel. It also notices when the connection is replaced, because notifications may be lost then.
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

/// Resolves when the entry with the number `seq` is gone, or no longer blocks an entry of the mode `waiter`. Asks the server at
/// least once in every `recheck`, because notifications may be lost. `is_ours`: the entry is one of this client's own.
pub(super) async fn gone(
    store: &SqlStore<Postgres>,
    path: &str,
    (seq, is_ours): (u64, bool),
    waiter: Mode,
    recheck: Duration,
) -> Result<()> {
    let dialect = store.dialect();
    let wait = Wait { queue: path.to_owned(), seq, mode: waiter };
    let mut waiting = dialect.hub.wait(&wait, store.epoch());
    let waited = *waiting.borrow();
    let mut known = match waited {
        Waited::Over(_) => return Ok(()),
        Waited::Blocks(known) => Some(known),
        Waited::Unknown => None,
    };
    let mut epochs = store.connections.epochs();
    // True if the server has named this entry as the blocker of an entry of ours. If true, the server sends a notification on this
    // client's own channel when the entry goes. If false, it sends none there, so this waiter listens to the queue's channel, on
    // which every change is published.
    let is_expected = known.is_some();
    let mut following = None;
    // Of the end of an entry of its own, this client tells itself.
    let mut pause = match is_pooled(dialect) && !is_ours {
        true => FIRST_WITHOUT_WORD,
        false => recheck,
    };
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
        let until = until.min(Instant::now() + pause.min(recheck)) + LITTLE;
        pause = pause.saturating_mul(2);
        tokio::select! {
            biased;
            _ = waiting.wait_for(Waited::is_over) => return Ok(()),
            _ = epochs.changed() => {}
            () = tokio::time::sleep_until(until.into()) => {}
        }
        drop(following.take());
    }
}

/// Asks the server how long the entry's lease still lasts; `None`: the entry is gone, or does not block the waiter. `listens`: this
/// client listens to the queue's channel, so the server has to publish changes there.
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
    let answer = store.connections.run_to_end(call).await?;
    let left = answer.number("remaining")?.filter(|_| answer.is_ok());
    Ok(left.map(Duration::from_micros))
}

/// Notes that `entry`, an entry of ours, waits for the entry `before`. The server will send this client a notification when
/// `before` goes. `None`: `entry` waits for no other entry any more.
pub(super) fn waits(store: &SqlStore<Postgres>, entry: &EntryId, before: Option<Before>) {
    let hub = &store.dialect().hub;
    let now = before.map(|Before { path, seq, mode, epoch, until }| {
        hub.expect(Wait { queue: path, seq, mode }, Known { epoch, until })
    });
    let wait = now.as_ref().map(|now| now.wait.clone());
    let known = store.entries.change(entry, |own| std::mem::replace(&mut own.known, now));
    if let Some(known) = known.flatten().filter(|known| Some(&known.wait) != wait.as_ref()) {
        hub.forget(known);
    }
}

/// Where no notifications come, wakes those in this process who wait for what this client has changed itself.
pub(super) fn touched(dialect: &Postgres, path: &str, epoch: u64, freed: Option<Freed>) {
    if is_pooled(dialect) {
        let what = freed.map(|freed| match freed {
            Freed::Gone(seq) => (seq, true),
            Freed::Shared(seq) => (seq, false),
        });
        dialect.hub.happened(epoch, path, what);
    }
}

/// Whether the connection leads to a pooler, so that no notifications come.
fn is_pooled(dialect: &Postgres) -> bool {
    dialect.is_pooled.load(Ordering::Relaxed)
}

pub(super) fn at_most(dialect: &Postgres, recheck: Duration) -> Duration {
    if is_pooled(dialect) { recheck.min(WITHOUT_WORD) } else { recheck }
}

/// Subscribes to a queue's channel on the connection in use. When this returns, the server has confirmed the subscription.
async fn follow(
    connections: &Arc<Connections<Postgres>>,
    path: &str,
) -> Result<watch::Receiver<Followed>> {
    let hub = &connections.link.dialect.hub;
    // Nearly always the channel is subscribed on this connection already. Then this returns without a request, and needs neither
    // the mutex nor a slot.
    let (following, channel) = hub.follow(path, connections.rotation.epoch());
    if channel.is_none() {
        return Ok(following);
    }
    let (all, path) = (Arc::clone(connections), path.to_owned());
    let subscribing = |sending: Sending| async move { subscribe(&all, &path, &sending).await };
    let_finish("watch", connections.patience, subscribing).await
}

/// The task of [`follow`], which sends LISTEN if no other has done that meanwhile. It has the mutex until the server has answered,
/// also if its caller has given up.
async fn subscribe(
    connections: &Arc<Connections<Postgres>>,
    path: &str,
    sending: &Sending,
) -> Result<watch::Receiver<Followed>> {
    let dialect = &connections.link.dialect;
    // The mutex is locked before the slot for a call is taken. In the other order, tasks that wait for the mutex could have all the
    // slots, while the task that has locked the mutex waits for a slot. Then no task could go on.
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
        sending.begins();
        ready.make(listening).await?;
        dialect.hub.subscribed(&channels, epoch);
    }
    Ok(following)
}

/// Unsubscribes from channels to which nobody in this process has listened for some seconds. Called with each heartbeat, in a task
/// of its own.
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
    // The result is ignored: if this fails, messages that nobody needs go on coming, which does no harm.
    let _: Result<()> = sweeping.await;
}
