//! Holds: what clients were granted through this instance, each with a lease that the client renews.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coordination::BootInstant;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::ended::Ended;
pub(crate) use crate::ends::{Covered, End};
use crate::finishing::finished;
use crate::guard::Guard;
pub(crate) use crate::hold::{Begun, Hold, Now};
use crate::hold::{Held, State};
use crate::kind::Kind;
use crate::problem::Problem;
use crate::promise::Promise;
use crate::undeleted::Undeleted;

/// The most names of which something changed that are noted.
const TOUCHED: usize = 10_000;

/// For no longer is a lease left to a timer: a timer stands still while the machine is suspended, and a lease does not.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// How long the store has to delete the promises of a hold before it is released without that: they are deleted as soon as that can be.
const DELETED: Duration = Duration::from_secs(5);

/// Is told of each end.
type OnEnd = Box<dyn Fn(&Hold, End) + Send + Sync>;

/// All holds of this instance, and those that have ended lately.
pub(crate) struct Holds {
    table: Mutex<Table>,
    /// The names of which something changed; for who shows them.
    touched: Mutex<HashSet<(Kind, String)>>,
    pub(crate) touch: Notify,
    /// How many are being released at the store.
    releasing: watch::Sender<usize>,
    /// Promises that are to go, and could not be deleted yet.
    pub(crate) undeleted: Arc<Undeleted>,
    /// Told of each end.
    on_end: OnEnd,
}

#[derive(Default)]
struct Table {
    live: HashMap<String, Arc<Hold>>,
    /// Those of each name, by their fences.
    names: HashMap<(Kind, String), ByFence>,
    /// How many names all of them have, and those of each client.
    parts: usize,
    clients: HashMap<String, usize>,
    ended: Ended,
}

/// With its handle, a hold is told from one of the same fence, by a store that has forgotten what it had granted.
type ByFence = BTreeMap<(u64, String), Arc<Hold>>;

/// What is known of a hold.
pub(crate) enum Found {
    Live(Arc<Hold>),
    Ended(Arc<Hold>, End),
    Unknown,
}

impl Holds {
    pub(crate) fn new(on_end: impl Fn(&Hold, End) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            touched: Mutex::default(),
            touch: Notify::new(),
            releasing: watch::Sender::new(0),
            undeleted: Arc::default(),
            on_end: Box::new(on_end),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a grant in, and sees to its end.
    pub(crate) fn begin(self: &Arc<Self>, begun: Begun) -> Arc<Hold> {
        let hold = Arc::new(Hold::new(begun));
        self.table().add(&hold);
        self.touched(&hold);
        tokio::spawn(follow(Arc::clone(self), Arc::clone(&hold)));
        hold
    }

    /// The hold of this handle.
    pub(crate) fn find(&self, handle: &str) -> Found {
        let table = self.table();
        if let Some(hold) = table.live.get(handle) {
            return Found::Live(Arc::clone(hold));
        }
        match table.ended.find(handle) {
            Some((hold, end)) => Found::Ended(hold, end),
            None => Found::Unknown,
        }
    }

    /// All that live.
    pub(crate) fn live(&self) -> Vec<Arc<Hold>> {
        self.table().live.values().cloned().collect()
    }

    /// How long all that live are still good if nothing more is heard from the store; none: nothing lives, or the store has no leases.
    pub(crate) fn good_for(&self) -> Option<Duration> {
        self.live().iter().filter_map(|hold| hold.good_for()).min()
    }

    /// How many names are held, and how many of them by this client. Each of several locks counts.
    pub(crate) fn count(&self, client: &str) -> (usize, usize) {
        let table = self.table();
        (table.parts, table.clients.get(client).copied().unwrap_or_default())
    }

    /// The one of this name and fence.
    pub(crate) fn of_fence(&self, kind: Kind, name: &str, fence: u64) -> Option<Arc<Hold>> {
        let table = self.table();
        let holds = table.names.get(&(kind, name.to_owned()))?;
        let (_, hold) =
            holds.range((fence, String::new())..).next().filter(|(of, _)| of.0 == fence)?;
        Some(Arc::clone(hold))
    }

    /// The one of this name that satisfies this.
    pub(crate) fn of_name(
        &self,
        kind: Kind,
        name: &str,
        wanted: impl Fn(&Hold) -> bool,
    ) -> Option<Arc<Hold>> {
        let table = self.table();
        table.names.get(&(kind, name.to_owned()))?.values().find(|hold| wanted(hold)).cloned()
    }

    /// What is so now, or how it ended.
    pub(crate) fn now(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<Now, End> {
        self.held(hold, |_| ())
    }

    /// Begins the lease anew; of the same length, if none is given. Whoever has its id was told of it, though the answer that says so may
    /// not be taken yet, as in HTTP/2 its head is before its text.
    pub(crate) fn renew(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        lease: Option<Duration>,
    ) -> Result<Now, End> {
        let now = self.held(hold, |held| {
            held.lease = lease.unwrap_or(held.lease);
            held.end = BootInstant::now().saturating_add(held.lease);
            hold.count_renewal();
            hold.tell();
        });
        hold.changed.send_replace(());
        self.touched(hold);
        now
    }

    /// Keeps one of which nobody was told for so long at least, though its lease may be shorter: that begins when its client is told.
    pub(crate) fn keep(self: &Arc<Self>, hold: &Arc<Hold>, keep: Duration) {
        let kept = self.held(hold, |held| {
            if !hold.was_told() {
                held.end = held.end.max(BootInstant::now().saturating_add(keep));
            }
        });
        if kept.is_ok() {
            hold.changed.send_replace(());
        }
    }

    /// Somebody is told of it, unless it is over. With the first one its lease begins, if that `begins` at all: until then it was kept.
    pub(crate) fn told(self: &Arc<Self>, hold: &Arc<Hold>, begins: bool) -> Result<Now, End> {
        let mut is_first = false;
        // In one step: who is told next is told of this lease, and not for how long it was kept.
        let now = self.held(hold, |held| {
            is_first = hold.tell();
            if is_first && begins {
                held.end = BootInstant::now().saturating_add(held.lease);
            }
        });
        if is_first {
            hold.changed.send_replace(());
            self.touched(hold);
        }
        now
    }

    /// Does this to what is held, unless that is over: of a renewal and an end at the same moment one wins.
    fn held(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        change: impl FnOnce(&mut Held),
    ) -> Result<Now, End> {
        let mut state = hold.state();
        let due = match &mut *state {
            State::Ended(end) => return Err(*end),
            State::Held(held) => match Hold::due(held) {
                Some(due) => due,
                None => {
                    change(held);
                    return Ok(hold.now(held));
                }
            },
        };
        drop(state);
        self.end_in_background(hold, due);
        Err(due)
    }

    /// Replaces what others see of it, for as long as it is held. Of several calls each begins when the one before is over.
    ///
    /// # Errors
    ///
    /// `Err`: it has ended, like this, and it may or may not have been replaced before. Inside: those of [`tell`](crate::guard::Guard::tell).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped when the change has begun, that goes on in the background.
    pub(crate) async fn tell(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        value: &Value,
    ) -> Result<Result<(), Problem>, End> {
        let value = value.clone();
        self.changing(hold, |guard| async move { guard.tell(&value).await }).await
    }

    /// Makes it a share of its lock, for as long as it is held. If that fails it is held still, and [`Now::shared`] says whether others may
    /// share it by now.
    ///
    /// # Errors
    ///
    /// `Err`: it has ended, like this. Inside: those of [`share`](crate::guard::Guard::share).
    ///
    /// # Cancel safety
    ///
    /// As for [`tell`](Self::tell).
    pub(crate) async fn share(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
    ) -> Result<Result<(), Problem>, End> {
        self.changing(hold, |guard| async move { guard.share().await }).await
    }

    /// Changes at the store what is held, for as long as it is held. Of several calls each begins when the one before is over. Whoever
    /// shows it is told of the change as soon as the store knows of that, also if the client is gone by then.
    async fn changing<F: Future<Output = Result<(), Problem>> + Send + 'static>(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        change: impl FnOnce(Arc<Guard>) -> F + Send + 'static,
    ) -> Result<Result<(), Problem>, End> {
        // Out here, so that there is one task for each hold at the most, however many clients come and go.
        let turn = Arc::clone(&hold.changing).lock_owned().await;
        let (holds, hold) = (Arc::clone(self), Arc::clone(hold));
        let change = async move {
            let changed = holds.change(&hold, change).await;
            holds.touched(&hold);
            changed
        };
        finished(turn, change).await.unwrap_or_else(|problem| Ok(Err(problem)))
    }

    async fn change<F: Future<Output = Result<(), Problem>>>(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        change: impl FnOnce(Arc<Guard>) -> F,
    ) -> Result<Result<(), Problem>, End> {
        let mut changes = hold.changes();
        let mut guard = None;
        self.held(hold, |held| guard = Some(Arc::clone(&held.guard)))?;
        // Invariant: what is held has a guard.
        let guard = guard.expect("it is held");
        let mut changed = pin!(change(guard));
        loop {
            tokio::select! {
                biased;
                changed = &mut changed => {
                    // Of what is over it is told how it ended, and not that the change failed.
                    if changed.is_err() {
                        self.now(hold)?;
                    }
                    return Ok(changed);
                }
                // A renewal, or the end: then the guard is needed for the release.
                _ = changes.changed() => drop(self.now(hold)?),
            }
        }
    }

    /// Ends it, and answers what is to be released, and how it ended; `Err`: it had ended before, like this. As
    /// [`End::Undelivered`] it ends only if nobody was told of it.
    fn end(self: &Arc<Self>, hold: &Arc<Hold>, end: End) -> Result<(Releasing, End), End> {
        let mut state = hold.state();
        // Whoever is told of it has the state for that: it sees this end, or this sees that it was told.
        if end == End::Undelivered && hold.was_told() {
            return Err(end);
        }
        let (held, end) = match std::mem::replace(&mut *state, State::Ended(end)) {
            State::Held(held) => {
                // What was due before is told, and not what came after that.
                let end = Hold::due(&held).unwrap_or(end);
                *state = State::Ended(end);
                (held, end)
            }
            State::Ended(before) => {
                *state = State::Ended(before);
                return Err(before);
            }
        };
        drop(state);
        let promised_until = (!end.frees() && !hold.promises.is_empty()).then_some(held.end);
        // Before it is out of the table: a stop waits for one or the other.
        let releasing = Releasing::begin(self, hold, held, end);
        self.table().remove(hold, end, promised_until);
        self.take_back_at(hold, promised_until);
        (self.on_end)(hold, end);
        hold.changed.send_replace(());
        self.touched(hold);
        Ok((releasing, end))
    }

    /// Ends it, and gives it up: its promise, then the lock. `Err`: it had ended before, like this.
    ///
    /// # Errors
    ///
    /// Inside: the store has not confirmed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it goes on in the background.
    pub(crate) async fn give_up(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        end: End,
    ) -> Result<coordination::Result<()>, End> {
        let (releasing, told) = self.end(hold, end)?;
        let task = tokio::spawn(releasing.let_go());
        if told != end {
            return Err(told);
        }
        Ok(task.await.unwrap_or(Ok(())))
    }

    /// The same for who does not wait.
    pub(crate) fn end_in_background(self: &Arc<Self>, hold: &Arc<Hold>, end: End) {
        if let Ok((releasing, _)) = self.end(hold, end)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(releasing.let_go());
        }
    }

    /// Deletes a promise on which nobody relies any more: in the background, if the store does not let us within a time.
    pub(crate) async fn delete_promise(&self, promise: Arc<Promise>) {
        let error = match tokio::time::timeout(DELETED, promise.delete()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        let ((handle, _), error) = (promise.key(), error.map(tracing::field::display));
        tracing::warn!(handle, error, "a promise is still there; its deletion is tried again");
        self.undeleted.add(promise);
    }

    /// Deletes the promises of a hold that was lost, as its client does not rely on it: it has said so, or was never told.
    pub(crate) fn take_back(&self, hold: &Hold) {
        if matches!(&*hold.state(), State::Ended(End::Lost(_))) {
            hold.promises.iter().for_each(|promise| self.undeleted.add(Arc::clone(promise)));
        }
    }

    /// The same for those of this name that satisfy this.
    pub(crate) fn take_back_of_name(&self, name: &str, wanted: impl Fn(&Hold) -> bool) {
        let promised = self.table().ended.promised(name);
        promised.iter().filter(|hold| wanted(hold)).for_each(|hold| self.take_back(hold));
    }

    /// Deletes the promise of a hold that was lost at this moment, when its client does not rely on it any more in any case.
    fn take_back_at(self: &Arc<Self>, hold: &Arc<Hold>, moment: Option<BootInstant>) {
        let (Some(moment), Ok(runtime)) = (moment, tokio::runtime::Handle::try_current()) else {
            return;
        };
        let (holds, hold) = (Arc::clone(self), Arc::clone(hold));
        runtime.spawn(async move {
            // Judged by the clock: a timer may be early.
            while !moment.remaining().is_zero() {
                tokio::time::sleep(moment.remaining().min(LONGEST_SLEEP)).await;
            }
            holds.take_back(&hold);
        });
    }

    /// Whether something is being released at the store.
    pub(crate) fn is_releasing(&self) -> bool {
        *self.releasing.borrow() > 0
    }

    fn touched(&self, hold: &Hold) {
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody may look for a long time; who does reads all of it first.
        if touched.len() < TOUCHED {
            let names = hold.parts().into_iter().map(|(name, _)| (hold.kind, name.to_owned()));
            touched.extend(names);
        }
        drop(touched);
        self.touch.notify_one();
    }

    /// The names of which something has changed since the last call.
    pub(crate) fn take_touched(&self) -> HashSet<(Kind, String)> {
        std::mem::take(&mut *self.touched.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Table {
    fn add(&mut self, hold: &Arc<Hold>) {
        self.live.insert(hold.handle.clone(), Arc::clone(hold));
        for (name, fence) in hold.parts() {
            let name = (hold.kind, name.to_owned());
            let of_name = self.names.entry(name).or_default();
            of_name.insert((fence, hold.handle.clone()), Arc::clone(hold));
        }
        self.parts += hold.part_count();
        *self.clients.entry(hold.client.clone()).or_default() += hold.part_count();
    }

    fn remove(&mut self, hold: &Hold, end: End, promised_until: Option<BootInstant>) {
        let Some(hold) = self.live.remove(&hold.handle) else { return };
        for (name, fence) in hold.parts() {
            let name = (hold.kind, name.to_owned());
            if let Some(others) = self.names.get_mut(&name) {
                others.remove(&(fence, hold.handle.clone()));
                if others.is_empty() {
                    self.names.remove(&name);
                }
            }
        }
        self.parts -= hold.part_count();
        if let Some(count) = self.clients.get_mut(&hold.client) {
            *count -= hold.part_count();
            if *count == 0 {
                self.clients.remove(&hold.client);
            }
        }
        self.ended.add(hold, end, BootInstant::now(), promised_until);
    }
}

/// What has ended and is not released yet.
struct Releasing {
    holds: Arc<Holds>,
    hold: Arc<Hold>,
    held: Option<Held>,
    end: End,
}

impl Releasing {
    fn begin(holds: &Arc<Holds>, hold: &Arc<Hold>, held: Held, end: End) -> Self {
        holds.releasing.send_modify(|count| *count += 1);
        Self { holds: Arc::clone(holds), hold: Arc::clone(hold), held: Some(held), end }
    }

    /// The promises first, if its client relies on them no more: who is granted a lock after that is not to wait for one.
    async fn let_go(mut self) -> coordination::Result<()> {
        if self.end.frees() {
            self.delete_promises().await;
        }
        let Some(held) = self.held.take() else { return Ok(()) };
        // Whoever changes it is told of its end, and has dropped its part of the guard when this is locked.
        let _changing = self.hold.changing.lock().await;
        match Arc::into_inner(held.guard) {
            Some(guard) => guard.release().await,
            None => Ok(()),
        }
    }

    /// All at the same time: its client waits for as long as one takes, and others wait for each that is still there.
    async fn delete_promises(&self) {
        let mut deletions = JoinSet::new();
        for promise in &self.hold.promises {
            let (holds, promise) = (Arc::clone(&self.holds), Arc::clone(promise));
            deletions.spawn(async move { holds.delete_promise(promise).await });
        }
        while deletions.join_next().await.is_some() {}
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        self.holds.releasing.send_modify(|count| *count -= 1);
    }
}

/// Ends a hold when its lease is over or it is lost.
async fn follow(holds: Arc<Holds>, hold: Arc<Hold>) {
    let mut changes = hold.changes();
    loop {
        let (over, left) = match &*hold.state() {
            State::Held(held) => (held.guard.over(), held.end.remaining()),
            State::Ended(_) => return,
        };
        tokio::select! {
            biased;
            _ = changes.changed() => {}
            // Released elsewhere: the state says so by the next turn of the loop.
            reason = over => if reason.is_none() && changes.changed().await.is_err() { return },
            () = tokio::time::sleep(left.min(LONGEST_SLEEP)) => {}
        }
        // Judged by the clock: a timer that is early, and a renewal at the same moment, end nothing.
        if let Err(End::Lost(reason)) = holds.now(&hold) {
            tracing::warn!(handle = hold.handle, %reason, "a hold was lost");
        }
    }
}
