//! An entry of ours, from before it is entered until it is given up.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::unconstrained;

use super::loss::{LossWatch, loss_reason};
use super::monitor::Monitor;
use crate::backend::{Data, EntryId, EntryRef, Mode, NewEntry, Room};
use crate::canary::{Canary, sings};
use crate::characteristics::LossDetection;
use crate::env::Unforked;
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};
use crate::key::QueueKey;
use crate::session::{Hold, Lease, Purpose, Session};

/// The contents of a new entry.
#[derive(Clone)]
pub(crate) struct Contents {
    pub(crate) member: Arc<str>,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) mode: Mode,
    pub(crate) data: Data,
    /// The updates that the entry will need until its turn has come. The store keeps space for them.
    pub(crate) room: Room,
    pub(crate) purpose: Purpose,
}

/// An entry of ours, from before it is entered until it is given up. Dropping it gives it up.
pub(crate) struct OwnEntry {
    session: Arc<Session>,
    lease: Arc<Lease>,
    entry: NewEntry,
    hold: Arc<Hold>,
    /// Known once the store has answered that the entry was entered.
    seq: Option<u64>,
    /// Locked while an update is in flight, so that updates reach the store in their order. Made with the first update: a plain
    /// lock needs none.
    updating: OnceLock<Arc<tokio::sync::Mutex<()>>>,
}

impl OwnEntry {
    pub(in crate::recipe) fn new(
        session: &Arc<Session>,
        lease: Arc<Lease>,
        queue: &QueueKey,
        contents: &Contents,
    ) -> Self {
        let entry = NewEntry {
            entry_ref: EntryRef { queue: queue.clone(), id: EntryId::random(lease.id) },
            session: lease.id,
            member: Arc::clone(&contents.member),
            label: contents.label.clone(),
            mode: contents.mode,
            data: Arc::clone(&contents.data),
            room: contents.room,
        };
        Self {
            session: Arc::clone(session),
            lease,
            entry,
            hold: Arc::new(Hold::new(contents.purpose)),
            seq: None,
            updating: OnceLock::new(),
        }
    }

    pub(in crate::recipe) fn entry(&self) -> &NewEntry {
        &self.entry
    }

    pub(in crate::recipe) fn entered(&mut self, seq: u64) {
        self.seq = Some(seq);
    }

    /// Notes the new data of the entry, if the policy has changed the data.
    pub(in crate::recipe) fn keeps(&mut self, data: Option<Data>) {
        if let Some(data) = data {
            self.entry.data = data;
        }
    }

    /// The data that the entry had when its turn came.
    pub(in crate::recipe) fn data(&self) -> &Data {
        &self.entry.data
    }

    /// Notes that the grant has reached the caller.
    pub(in crate::recipe) fn deliver(&self) {
        let queue = &self.entry.entry_ref.queue;
        self.hold.deliver(self.lease.about(queue));
        // Lost on its way: whoever lost it found nobody to tell.
        if let Some(reason) = self.hold.loss_reason() {
            self.lease.tell_lost_of(&self.hold, queue, self.seq, reason);
        }
    }

    /// For the deliberate mistake (canary) `OldEntryAdopted`: goes on with the entry of the try before.
    pub(in crate::recipe) fn adopt(&mut self, before: &mut Option<EntryId>) {
        let id = before.get_or_insert_with(|| self.entry.entry_ref.id.clone());
        self.entry.entry_ref.id = id.clone();
    }

    /// Drops this without removing the entry, because none was entered.
    pub(in crate::recipe) fn forget(self) {
        self.hold.begin_release();
    }

    /// The number of the entry; `None` only before it was entered.
    pub(crate) fn seq(&self) -> Option<u64> {
        self.seq
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Why the entry is lost, judged at this moment; `None` while it is not.
    pub(crate) fn loss_reason(&self) -> Option<LossReason> {
        loss_reason(&self.lease, &self.hold, self.session.process())
    }

    /// Follows the entry's loss without keeping the entry.
    pub(in crate::recipe) fn loss_watch(&self) -> LossWatch {
        let scheme = self.session.backend.scheme();
        let queue = self.entry.entry_ref.queue.clone();
        let (lease, hold) = (Arc::clone(&self.lease), Arc::clone(&self.hold));
        LossWatch { queue, scheme, lease, hold, process: self.session.process() }
    }

    /// Waits until [`loss_reason`](Self::loss_reason) is not `None`, and returns it.
    pub(crate) async fn wait_lost(&self) -> LossReason {
        match self.loss_reason() {
            Some(reason) => reason,
            None => self.hold.wait_lost().await,
        }
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.hold.is_released()
    }

    /// Gives the entry up, and returns whether the store has confirmed that. Of several calls only the first one removes the
    /// entry.
    ///
    /// If the future is dropped, the release goes on in the background.
    pub(crate) async fn give_up(&self) -> Result<()> {
        if let Some(reason) = self.loss_reason() {
            return Err(Error::lost("release", reason));
        }
        // Before the release, so that a stop that waits sees one of the two, the hold or this.
        let _releasing = self.session.finishing();
        if !self.hold.begin_release() {
            return Ok(());
        }
        self.lease.deregister(&self.entry.entry_ref.id);
        let leaving = self.session.leave_confirmed(&self.lease, &self.entry.entry_ref, self.seq);
        // After the removal has begun, which must not wait for what a service does with its log.
        let _told = self.told(None);
        leaving.await
    }

    /// Gives the entry up in the background.
    pub(crate) fn let_go(&self) {
        // This is checked first: a forked child holds nothing, and what follows may wait for a mutex that a thread of the parent
        // has locked.
        if !self.session.is_own_process() || self.hold.is_released() {
            return;
        }
        // Noted before the release: the session's task may not know yet that the deadline has passed, and who follows the grant would
        // be told that it was released while it was held.
        let lost = self.loss_reason();
        lost.into_iter().for_each(|reason| self.hold.lose(reason));
        if self.hold.begin_release() {
            self.lease.deregister(&self.entry.entry_ref.id);
            let told = self.told(lost);
            self.session.leave_in_background(&self.lease, self.entry.entry_ref.clone(), self.seq);
            drop(told);
        }
    }

    /// Tells, when what is returned is dropped, that the caller has it no longer.
    fn told(&self, lost: Option<LossReason>) -> Told<'_> {
        let held_for = self.hold.had().and_then(|had| had.held_for(lost));
        Told { own: self, held_for, lost }
    }

    /// Gives the entry this mode and data. An error says whether the store may have them, also if the entry is lost meanwhile.
    ///
    /// If the future is dropped, an update that was sent goes on; an update that was still waiting for an earlier one is not
    /// made.
    pub(crate) async fn update(
        &self,
        operation: &'static str,
        mode: Mode,
        data: Data,
    ) -> Result<()> {
        self.update_for(operation, mode, data, Room::default()).await
    }

    /// [`update`](Self::update) of an entry whose turn has not come yet. `room`: the updates that it still needs after this one,
    /// for which the store keeps space.
    pub(in crate::recipe) async fn update_for(
        &self,
        operation: &'static str,
        mode: Mode,
        data: Data,
        room: Room,
    ) -> Result<()> {
        if let Some(reason) = self.loss_reason() {
            return Err(Error::lost(operation, reason));
        }
        self.session.check_thread(operation)?;
        let (session, lease) = (Arc::clone(&self.session), Arc::clone(&self.lease));
        let (entry, seq) = (NewEntry { mode, data, room, ..self.entry.clone() }, self.seq);
        // Asked for before the task starts, because tasks may start in another order than they were spawned.
        let updating = Arc::clone(self.updating.get_or_init(Arc::default));
        let mut turns = Box::pin(unconstrained(updating.lock_owned()));
        let turn = poll_fn(|context| Poll::Ready(turns.as_mut().poll(context))).await;
        let (waits, gave_up) = oneshot::channel::<Infallible>();
        // Its drop wakes the task, which a forked child must not do.
        let _waits = Unforked::new(waits);
        let task = self.session.spawn(async move {
            // Waited for in here: whoever was handed the turn, and is not polled again, would keep all updates after it waiting.
            let turn = match turn {
                Poll::Ready(turn) => Some(turn),
                Poll::Pending => tokio::select! {
                    biased;
                    _ = gave_up => None,
                    turn = turns => Some(turn),
                },
            };
            let Some(_turn) = turn else {
                return Err(Error::new(ErrorKind::Closed, operation, "nobody waits for it"));
            };
            session.update(&lease, operation, &entry, seq.unwrap_or_default()).await
        });
        let ended =
            |ended| Err(self.session.unanswered(operation, ended).with_effect(Effect::Unknown));
        task.await.unwrap_or_else(ended)
    }

    /// Registers the hold with the lease, because the turn has come. Fails if the lease is lost.
    pub(in crate::recipe) fn grant(&mut self) -> Result<()> {
        let registered = self.lease.register(&self.entry.entry_ref, self.seq, &self.hold);
        let registered = registered.map_err(|reason| Error::lost("acquire", reason));
        // After the registration: a stop that has begun before is seen here, and one that begins later sees the hold.
        let admitted = registered.and_then(|()| self.session.admit("acquire", self.hold.purpose()));
        // The store has granted it, and others wait for it until it has removed the entry.
        admitted.map_err(|error| error.with_effect(Effect::Unknown))?;
        self.watch();
        Ok(())
    }

    /// Watches our entry, on stores that notify of its removal.
    fn watch(&self) {
        if self.session.backend.characteristics().loss_detection == LossDetection::Heartbeat {
            return;
        }
        let Some(seq) = self.seq else { return };
        let monitor = Monitor {
            session: Arc::clone(&self.session),
            lease: Arc::clone(&self.lease),
            hold: Arc::clone(&self.hold),
            entry: self.entry.clone(),
            seq,
        };
        self.hold.watched_by(self.session.spawn(monitor.run()).abort_handle());
    }
}

/// Tells the log, when this is dropped, that an entry was released, and how long it was held.
struct Told<'a> {
    own: &'a OwnEntry,
    held_for: Option<Duration>,
    lost: Option<LossReason>,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        let own = self.own;
        // A forked child was given nothing, and the recorder's mutexes may be locked there for ever.
        if let Some(had) = own.hold.had().filter(|_| own.session.is_own_process()) {
            let about = own.lease.about(&own.entry.entry_ref.queue);
            about.over(had, own.seq, self.held_for, self.lost);
        }
    }
}

impl Drop for OwnEntry {
    fn drop(&mut self) {
        if sings(Canary::NoDrop) {
            return;
        }
        self.let_go();
    }
}
