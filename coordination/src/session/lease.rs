//! A session's lease: until when it may be relied on, and what is held under it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{self, AbortHandle};
use tokio::time::{Instant, sleep_until};

use super::line::Line;
use super::{CutOff, Purpose};
use crate::backend::{Blocker, EntryId, EntryRef, SessionId};
use crate::error::LossReason;
use crate::events::{About, Had, Origin};
use crate::key::QueueKey;
use crate::time::BootInstant;
use crate::token::FencingToken;

/// Which of a session's confirmed heartbeats count for its lease.
///
/// On most stores a heartbeat counts as soon as it was answered. On a store with a `proof_delay`, a heartbeat counts once another
/// one was confirmed that was sent at least this delay after the answer to the first. Until then an earlier heartbeat counts, and
/// at first the opening of the session.
pub(crate) struct ConfirmedHeartbeats {
    delay: Duration,
    /// In the order of their sending. The first one counts; those after it are not proved yet.
    confirmed: VecDeque<Confirmed>,
}

struct Confirmed {
    sent: BootInstant,
    answered: BootInstant,
}

impl ConfirmedHeartbeats {
    /// The heartbeats of a session whose opening was sent at `opened`. The opening counts as a heartbeat from the start.
    pub(crate) fn new(delay: Duration, opened: BootInstant) -> Self {
        let opening = Confirmed { sent: opened, answered: opened };
        Self { delay, confirmed: VecDeque::from([opening]) }
    }

    /// Notes that the heartbeat sent at `sent` was answered at `answered`. Returns when the newest heartbeat that counts was
    /// sent.
    pub(crate) fn confirm(&mut self, sent: BootInstant, answered: BootInstant) -> BootInstant {
        if self.delay.is_zero() {
            return sent;
        }
        self.confirmed.push_back(Confirmed { sent, answered });
        // Invariant: the delay is counted from the answer. The earlier heartbeat may have waited for a connection, or been on its
        // way, until just before its answer, and the server must have had it for the whole delay when the next one is sent.
        let is_proved = |earlier: &Confirmed| earlier.answered.saturating_add(self.delay) <= sent;
        while self.confirmed.get(1).is_some_and(is_proved) {
            self.confirmed.pop_front();
        }
        self.confirmed.front().map_or(sent, |newest| newest.sent)
    }

    /// How long the next heartbeat has to wait after an answer in order to prove the heartbeat that was answered; zero if the
    /// delay is longer than the interval, so that a later heartbeat proves it.
    pub(crate) fn pause(&self, interval: Duration) -> Duration {
        if self.delay <= interval { self.delay } else { Duration::ZERO }
    }
}

/// One session at the store, from its opening to its end.
///
/// A coordinator may have several, one after the other. What was acquired under one is never moved to another.
pub(crate) struct Lease {
    pub(crate) id: SessionId,
    /// As granted by the store; `None`: the session lives as long as the process.
    pub(crate) ttl: Option<Duration>,
    /// When the request that opened the session was sent.
    pub(crate) opened: BootInstant,
    pub(crate) origin: Arc<Origin>,
    /// Nanoseconds of [`BootInstant`], or [`PASSED`].
    ///
    /// Invariant: once anybody has seen that the deadline has passed, this is `PASSED` for good, so that a late heartbeat cannot
    /// revive a lock that was already reported as lost.
    deadline: AtomicU64,
    /// Set by whoever first learns that the lease is lost.
    end: Signal,
    holds: Mutex<Holds>,
    /// The entries that wait.
    pub(crate) line: Line,
}

const PASSED: u64 = 0;

#[derive(Default)]
struct Holds {
    ended: Option<LossReason>,
    by_entry: HashMap<EntryId, Held>,
    /// Whether a task looks for all of them together: see [`looks`](super::looks).
    are_looked_for: bool,
    /// When the last list was asked for that the store has given of them.
    listed: Option<Instant>,
}

struct Held {
    entry: EntryRef,
    seq: Option<u64>,
    hold: Arc<Hold>,
}

impl Held {
    /// As what it is told when it is cut off; `None`: nobody works under it.
    fn cut_off(&self) -> Option<CutOff> {
        if !self.hold.is_work() || self.hold.delivered.get().is_none() {
            return None;
        }
        let (recipe, name) = (self.entry.queue.kind(), self.entry.queue.name().to_owned());
        Some(CutOff { recipe, name, token: FencingToken::new(self.seq?)? })
    }
}

impl Lease {
    /// A lease whose opening was sent at `sent`.
    pub(crate) fn new(
        id: SessionId,
        ttl: Option<Duration>,
        sent: BootInstant,
        origin: Arc<Origin>,
    ) -> Self {
        Self {
            id,
            origin,
            ttl,
            opened: sent,
            deadline: AtomicU64::new(deadline(ttl, sent).as_nanos()),
            end: Signal::default(),
            holds: Mutex::default(),
            line: Line::default(),
        }
    }

    /// Until when the lease can be relied on, if nothing more is heard from the store.
    pub(crate) fn deadline(&self) -> BootInstant {
        BootInstant::from_nanos(self.deadline.load(Ordering::SeqCst))
    }

    /// Why the lease is lost, judged by the clock at this moment; `None` while it is good.
    pub(crate) fn loss_reason(&self) -> Option<LossReason> {
        if let Some(reason) = self.end.reason() {
            return Some(reason);
        }
        loop {
            let deadline = self.deadline.load(Ordering::SeqCst);
            if deadline == u64::MAX || BootInstant::now().as_nanos() < deadline {
                return None;
            }
            let swapped = self.deadline.compare_exchange(
                deadline,
                PASSED,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            if swapped.is_ok() {
                return Some(LossReason::DeadlinePassed);
            }
            // A heartbeat moved the deadline between the two reads, so both are read again.
        }
    }

    /// Moves the deadline on, because a heartbeat that was sent at `sent` was confirmed. False: too late, the lease is lost.
    pub(crate) fn extend(&self, sent: BootInstant) -> bool {
        let new = deadline(self.ttl, sent).as_nanos();
        loop {
            if self.loss_reason().is_some() {
                return false;
            }
            let old = self.deadline.load(Ordering::SeqCst);
            // Another thread may have called `loss_reason` in between, and seen the deadline pass. Never overwrite `PASSED`.
            if old == PASSED {
                return false;
            }
            if new <= old
                || self
                    .deadline
                    .compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
            {
                return true;
            }
        }
    }

    /// Ends the lease in this process: every guard under it is lost for good.
    pub(crate) fn lose(&self, reason: LossReason) {
        self.end(reason);
    }

    /// [`lose`](Self::lose) with the session. Returns what somebody worked under; `None`: the lease had ended before.
    pub(super) fn close(&self, reason: LossReason) -> Option<Vec<CutOff>> {
        let lost = self.end(reason)?;
        Some(lost.iter().filter_map(Held::cut_off).collect())
    }

    /// Returns what was lost with it; `None`: it had ended before.
    fn end(&self, reason: LossReason) -> Option<Vec<Held>> {
        let mut holds = self.holds();
        if holds.ended.is_some() {
            return None;
        }
        holds.ended = Some(reason);
        self.end.set(reason);
        let mut lost: Vec<_> = holds.by_entry.drain().map(|(_, held)| held).collect();
        lost.sort_unstable_by_key(|held| held.seq);
        for held in &lost {
            held.hold.lose(reason);
        }
        // Released before anything is logged, because a service's own code may run when an event is logged.
        drop(holds);
        for held in &lost {
            self.tell_lost(held, reason);
        }
        Some(lost)
    }

    /// What somebody works under.
    pub(super) fn worked_under(&self) -> Vec<CutOff> {
        self.holds().by_entry.values().filter_map(Held::cut_off).collect()
    }

    /// Something that somebody works under, or is about to.
    pub(super) fn any_work(&self) -> Option<Arc<Hold>> {
        let holds = self.holds();
        let mut work = holds.by_entry.values().map(|held| &held.hold).filter(|hold| hold.is_work());
        work.next().map(Arc::clone)
    }

    /// Resolves with the reason once the lease is lost.
    pub(crate) async fn ended(&self) -> LossReason {
        self.end.wait().await
    }

    /// Registers a new hold under this lease, unless the lease is lost.
    pub(crate) fn register(
        &self,
        entry: &EntryRef,
        seq: Option<u64>,
        hold: &Arc<Hold>,
    ) -> Result<(), LossReason> {
        let mut holds = self.holds();
        // Under the mutex: if `lose` comes first, the hold is refused; if it comes second, it finds the hold in the map, and loses
        // it. Without the mutex a hold could be registered just after `lose` has gone through the map, and its loss would never be
        // reported.
        match holds.ended.or_else(|| self.loss_reason()) {
            Some(reason) => Err(reason),
            None => {
                let held = Held { entry: entry.clone(), seq, hold: Arc::clone(hold) };
                holds.by_entry.insert(entry.id.clone(), held);
                Ok(())
            }
        }
    }

    /// Removes a hold that is being released: heartbeats do not check its entry any more.
    pub(crate) fn deregister(&self, id: &EntryId) {
        self.holds().by_entry.remove(id);
    }

    /// The entries that are held, for stores whose heartbeats check each of them.
    pub(crate) fn held(&self) -> Vec<EntryRef> {
        self.holds().by_entry.values().map(|held| held.entry.clone()).collect()
    }

    /// Notes that a task looks for all entries that are held. Returns false if there is one already.
    pub(super) fn begin_looks(&self) -> bool {
        !std::mem::replace(&mut self.holds().are_looked_for, true)
    }

    /// The entries that are held, for the task that looks for all of them. `None`: there are none, and the task ends.
    pub(super) fn held_or_end_looks(&self) -> Option<Vec<EntryRef>> {
        let mut holds = self.holds();
        // Invariant: under one mutex, so that an entry that is registered after this finds that no task looks for it.
        holds.are_looked_for = !holds.by_entry.is_empty();
        let held = holds.by_entry.values().map(|held| held.entry.clone());
        holds.are_looked_for.then(|| held.collect())
    }

    /// Notes the store's answer to a list of the held entries that was asked for at `asked`. The holders of those that it lacks are
    /// told to look for themselves.
    pub(super) fn listed(&self, asked: Instant, missing: &[EntryId]) {
        let mut holds = self.holds();
        holds.listed = Some(asked);
        let missing = missing.iter().filter_map(|id| holds.by_entry.get(id));
        missing.for_each(|held| held.hold.unlisted.notify_one());
    }

    /// Resolves when the holder of an entry has to look for the entry itself: a list lacks the entry, or the store has given no list
    /// for as long as `interval`, counted from now on.
    pub(crate) async fn look_due(&self, hold: &Hold, interval: Duration) {
        let mut seen = Instant::now();
        let without_a_list = async {
            loop {
                sleep_until(seen + interval).await;
                // Each list that was asked for since this entry was last looked for has, or lacks, this entry.
                let listed = self.holds().listed;
                match listed {
                    Some(listed) if listed > seen => seen = listed,
                    _ => return,
                }
            }
        };
        tokio::select! {
            biased;
            () = hold.unlisted.notified() => {}
            () = without_a_list => {}
        }
    }

    /// Whether a guard of this process holds the entry with this number. False while the grant is on its way to its caller, who
    /// may have dropped the future.
    pub(crate) fn holds_number(&self, queue: &QueueKey, seq: u64) -> bool {
        let is_it = |held: &Held| {
            held.seq == Some(seq)
                && held.entry.queue == *queue
                && held.hold.delivered.get().is_some()
        };
        self.holds().by_entry.values().any(is_it)
    }

    /// Loses the hold of this entry, which the store says is gone.
    pub(crate) fn entry_lost(&self, id: &EntryId) {
        let held = self.holds().by_entry.remove(id);
        if let Some(held) = held {
            held.hold.lose(LossReason::EntryDeleted);
            self.tell_lost(&held, LossReason::EntryDeleted);
        }
    }

    /// Logs the loss, unless the grant has not reached its caller.
    fn tell_lost(&self, held: &Held, reason: LossReason) {
        self.tell_lost_of(&held.hold, &held.entry.queue, held.seq, reason);
    }

    /// [`tell_lost`](Self::tell_lost) of an entry that this lease may not know any more.
    pub(crate) fn tell_lost_of(
        &self,
        hold: &Hold,
        queue: &QueueKey,
        seq: Option<u64>,
        reason: LossReason,
    ) {
        if let Some(had) = hold.had() {
            self.about(queue).over(had, seq, had.held_for(Some(reason)), Some(reason));
        }
    }

    pub(crate) fn about<'a>(&'a self, key: &'a QueueKey) -> About<'a> {
        About { origin: &self.origin, key }
    }

    /// Whether this entry of a queue was granted to this task. Some stores name a blocker by its key at the store, and not by the
    /// entry's id: there its number tells which one it is.
    pub(crate) fn is_of_task(&self, queue: &QueueKey, entry: &Blocker, task: task::Id) -> bool {
        let holds = self.holds();
        let is_it = |held: &&Held| held.seq == Some(entry.seq) && held.entry.queue == *queue;
        let held = holds.by_entry.get(&entry.id).or_else(|| holds.by_entry.values().find(is_it));
        let delivered = held.and_then(|held| held.hold.delivered.get());
        delivered.is_some_and(|delivered| delivered.task == Some(task))
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        // No user code runs under this mutex, so what it guards is consistent even if it is poisoned.
        self.holds.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The deadline (T1): the lease counted from the moment of *sending*, less 0.5 % because clocks may run at different
/// rates (A1), less a margin for the time between asking `is_held` and acting on it.
fn deadline(ttl: Option<Duration>, sent: BootInstant) -> BootInstant {
    let Some(ttl) = ttl else { return BootInstant::NEVER };
    let margin = (ttl / 100).max(Duration::from_millis(10));
    sent.saturating_add((ttl - ttl / 200).saturating_sub(margin))
}

/// One grant. It is held until it is released or lost, whichever comes first.
#[derive(Default)]
pub(crate) struct Hold {
    /// Set when the caller has received the grant.
    delivered: OnceLock<Delivered>,
    purpose: Purpose,
    released: AtomicBool,
    loss: Signal,
    monitor: OnceLock<AbortHandle>,
    /// Notified when a list of the held entries lacks this one.
    unlisted: Notify,
}

/// To whom a grant was given, and when.
struct Delivered {
    had: Option<Had>,
    task: Option<task::Id>,
}

impl Hold {
    pub(crate) fn new(purpose: Purpose) -> Self {
        Self { purpose, ..Self::default() }
    }

    pub(crate) fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Whether a stop waits for it.
    fn is_work(&self) -> bool {
        self.purpose == Purpose::Work && !self.is_released()
    }

    pub(crate) fn loss_reason(&self) -> Option<LossReason> {
        self.loss.reason()
    }

    pub(crate) fn deliver(&self, about: About<'_>) {
        // Made before it is set: what a service has installed may run in there, and no other thread is to wait for that.
        let had = (self.purpose != Purpose::Step).then(|| about.had());
        let _ = self.delivered.set(Delivered { had, task: task::try_id() });
    }

    /// What is told when it is over; `None`: the caller never had it, or it is a step of something else.
    pub(crate) fn had(&self) -> Option<&Had> {
        self.delivered.get()?.had.as_ref()
    }

    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Ordering::SeqCst)
    }

    /// True for the first call only: that caller must release the entry.
    pub(crate) fn begin_release(&self) -> bool {
        if let Some(monitor) = self.monitor.get() {
            monitor.abort();
        }
        let is_first = !self.released.swap(true, Ordering::SeqCst);
        // Wakes `wait_over`: a task that follows the grant learns of its release.
        self.loss.changed.notify_waiters();
        is_first
    }

    pub(crate) fn watched_by(&self, monitor: AbortHandle) {
        if self.is_released() {
            monitor.abort();
        }
        // Each hold is given one monitor, by the task to which it was granted.
        let _ = self.monitor.set(monitor);
    }

    pub(crate) fn lose(&self, reason: LossReason) {
        self.loss.set(reason);
    }

    pub(crate) async fn wait_lost(&self) -> LossReason {
        self.loss.wait().await
    }

    /// Resolves with `None` when the grant is released, or with the reason when it is lost.
    pub(crate) async fn wait_over(&self) -> Option<LossReason> {
        self.loss
            .wait_for(|reason| (reason.is_some() || self.is_released()).then_some(reason))
            .await
    }
}

/// A loss reason that is set once and can be read or awaited from anywhere.
#[derive(Default)]
struct Signal {
    /// The reason's position in [`LossReason::ALL`], counted from 1.
    reason: AtomicU8,
    changed: Notify,
}

impl Signal {
    fn reason(&self) -> Option<LossReason> {
        let code = usize::from(self.reason.load(Ordering::SeqCst));
        LossReason::ALL.get(code.checked_sub(1)?).copied()
    }

    fn set(&self, reason: LossReason) {
        let code =
            1 + LossReason::ALL.iter().position(|known| *known == reason).unwrap_or_default();
        // The codes fit in a byte. The first reason stays.
        let _ = self.reason.compare_exchange(0, code as u8, Ordering::SeqCst, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    async fn wait(&self) -> LossReason {
        self.wait_for(|reason| reason).await
    }

    /// Resolves with the first `Some` of `is_over`, which is called with the reason now and after each change.
    async fn wait_for<T>(&self, is_over: impl Fn(Option<LossReason>) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Listen before looking, so that a reason that is set between the two is not missed.
            changed.as_mut().enable();
            if let Some(over) = is_over(self.reason()) {
                return over;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::env::Process;

    const ONE_MS: Duration = Duration::from_millis(1);

    fn lease(ttl: Duration, sent: BootInstant) -> Lease {
        let origin = Origin::new("memory", "a", "b".into(), Process::this());
        Lease::new(SessionId::random(), Some(ttl), sent, Arc::new(origin))
    }

    #[test]
    fn a_heartbeat_counts_when_it_is_proved() {
        let at = |ms: u64| BootInstant::from_nanos(ms * 1_000_000);
        let mut confirmed = ConfirmedHeartbeats::new(Duration::ZERO, at(0));
        assert_eq!(confirmed.confirm(at(10), at(12)), at(10));
        assert_eq!(confirmed.confirm(at(11), at(13)), at(11));

        let mut confirmed = ConfirmedHeartbeats::new(Duration::from_millis(100), at(0));
        let sent = [100, 201, 250, 302, 303, 1000, 1000].map(at);
        let proved = [0, 100, 100, 201, 201, 303, 303].map(at);
        assert_eq!(sent.map(|sent| confirmed.confirm(sent, sent.saturating_add(ONE_MS))), proved);
        assert!(confirmed.confirmed.len() <= 3, "{:?}", confirmed.confirmed.len());
    }

    /// The server may have had the heartbeat only just before it answered.
    #[test]
    fn a_heartbeat_that_took_long_is_proved_later() {
        let at = |ms: u64| BootInstant::from_nanos(ms * 1_000_000);
        let mut confirmed = ConfirmedHeartbeats::new(Duration::from_millis(100), at(0));
        assert_eq!(confirmed.confirm(at(200), at(290)), at(0));
        assert_eq!(confirmed.confirm(at(300), at(301)), at(0), "ten milliseconds prove nothing");
        assert_eq!(confirmed.confirm(at(390), at(391)), at(200));
        assert_eq!(confirmed.pause(Duration::from_millis(100)), Duration::from_millis(100));
        assert_eq!(confirmed.pause(Duration::from_millis(99)), Duration::ZERO);
    }

    fn ago(duration: Duration) -> BootInstant {
        BootInstant::from_nanos(BootInstant::now().as_nanos() - duration.as_nanos() as u64)
    }

    #[test]
    fn the_deadline_counts_from_sending_with_both_margins() {
        let sent = BootInstant::from_nanos(1_000_000_000);
        assert_eq!(deadline(Some(Duration::from_secs(10)), sent).as_nanos(), 10_850_000_000);
        assert_eq!(deadline(Some(Duration::from_millis(200)), sent).as_nanos(), 1_189_000_000);
        assert_eq!(deadline(None, sent), BootInstant::NEVER);
    }

    #[test]
    fn a_late_heartbeat_does_not_revive() {
        let lease = lease(Duration::from_secs(1), ago(Duration::from_secs(2)));
        assert!(!lease.extend(BootInstant::now()));
        assert_eq!(lease.loss_reason(), Some(LossReason::DeadlinePassed));
    }

    #[test]
    fn an_observed_passing_is_final_even_if_a_newer_heartbeat_is_confirmed() {
        let lease = lease(Duration::from_millis(50), ago(Duration::from_millis(100)));
        assert_eq!(lease.loss_reason(), Some(LossReason::DeadlinePassed));
        assert_eq!(lease.deadline().as_nanos(), PASSED);
        assert!(!lease.extend(BootInstant::now()));
        assert_eq!(lease.loss_reason(), Some(LossReason::DeadlinePassed));
    }

    #[test]
    fn an_older_heartbeat_never_shortens_the_lease() {
        let lease = lease(Duration::from_secs(10), BootInstant::now());
        let before = lease.deadline();
        assert!(lease.extend(ago(Duration::from_secs(5))));
        assert_eq!(lease.deadline(), before);
    }

    #[test]
    fn loss_reaches_every_hold_and_the_first_reason_stays() {
        let lease = lease(Duration::from_secs(10), BootInstant::now());
        let queue = QueueKey::new("lock", "a", 100).expect("a valid name");
        let entry = EntryRef { queue, id: EntryId::random(lease.id) };
        let hold = Arc::new(Hold::default());
        lease.register(&entry, Some(7), &hold).expect("a live lease");
        assert!(!lease.holds_number(&entry.queue, 7), "on its way");
        hold.deliver(lease.about(&entry.queue));
        assert!(lease.holds_number(&entry.queue, 7) && !lease.holds_number(&entry.queue, 8));
        lease.lose(LossReason::ExpiredByServer);
        lease.lose(LossReason::Closed);
        assert_eq!(hold.loss_reason(), Some(LossReason::ExpiredByServer));
        assert_eq!(lease.register(&entry, None, &hold), Err(LossReason::ExpiredByServer));
    }

    /// An entry that is held under this lease.
    fn held(lease: &Lease) -> (EntryRef, Arc<Hold>) {
        let queue = QueueKey::new("lock", "a", 100).expect("a valid name");
        let entry = EntryRef { queue, id: EntryId::random(lease.id) };
        let hold = Arc::new(Hold::default());
        lease.register(&entry, Some(7), &hold).expect("a live lease");
        (entry, hold)
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_looks_for_its_entry_if_no_list_does() {
        const INTERVAL: Duration = Duration::from_secs(1);
        let lease = lease(Duration::from_secs(60), BootInstant::now());
        let (entry, hold) = held(&lease);
        let due = lease.look_due(&hold, INTERVAL);
        tokio::pin!(due);
        for _ in 0..10 {
            assert!(timeout(INTERVAL * 4 / 5, &mut due).await.is_err(), "lists have it");
            lease.listed(Instant::now(), &[]);
        }
        let last = Instant::now();
        due.await;
        assert!(last.elapsed() >= INTERVAL && last.elapsed() < INTERVAL * 11 / 10);

        // A list that was asked for before the holder looked itself says nothing new.
        let due = lease.look_due(&hold, INTERVAL);
        tokio::pin!(due);
        lease.listed(last, &[]);
        assert!(timeout(INTERVAL * 11 / 10, &mut due).await.is_ok(), "nothing has come since");

        let told = Instant::now();
        lease.listed(told, std::slice::from_ref(&entry.id));
        lease.look_due(&hold, INTERVAL).await;
        assert!(told.elapsed() < INTERVAL / 10, "the list lacks it");
        assert_eq!(hold.loss_reason(), None, "that is no loss yet");
    }

    #[test]
    fn one_task_looks_for_all_as_long_as_something_is_held() {
        let lease = lease(Duration::from_secs(60), BootInstant::now());
        let (entry, _) = held(&lease);
        assert!(lease.begin_looks() && !lease.begin_looks());
        assert_eq!(lease.held_or_end_looks().as_deref(), Some(std::slice::from_ref(&entry)));
        assert!(!lease.begin_looks());
        lease.deregister(&entry.id);
        assert_eq!(lease.held_or_end_looks(), None);
        assert!(lease.begin_looks(), "the task has ended");
    }

    #[test]
    fn every_reason_survives_its_code() {
        for reason in LossReason::ALL {
            let signal = Signal::default();
            signal.set(reason);
            assert_eq!(signal.reason(), Some(reason));
        }
    }
}
