//! Makes steps at the store.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::clear::{sweep, tidy};
use super::clock::{Clock, Moment, STRANGERS, later};
use super::draft::{Draft, Known, Outcome, Step, Stop};
use super::layout::Head;
use super::outage::Outage;
use super::precedence::{First, Line, Manner, Precedence, ahead};
use super::refused::Refused;
use super::types::duration;
use crate::backend::{Beside, Listing, MOST_BESIDE, Source, Write};
use crate::env::Process;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::recipe::engine::data::{MAX_VALUE_BYTES, from_data, to_data};
use crate::recipe::engine::queue::{Queue, in_doubt};
use crate::session::{Sight, Views, Written};
use crate::time::BootInstant;

/// How long the head may become by posts. The rest is for claims, for acknowledgements, which add up to a thousand names of records
/// that are to be removed, and for the deletion of the queue.
const MOST_OF_POSTS: usize = MAX_VALUE_BYTES - 16 * 1024;
/// How many of the last writes are remembered.
const REMEMBERED: usize = 16;
/// How many records are kept from one step to the next, and how many bytes.
const KEPT: usize = 512;
const KEPT_BYTES: usize = 4 * 1024 * 1024;

/// What all handles of a queue in this process share.
pub(super) struct Engine {
    pub(super) queue: Queue,
    clock: Clock,
    cache: Mutex<Cache>,
    /// Held by the step that is at the store, so that steps of one process do not make each other start again. A call of many
    /// steps lets go of it after each of them.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// The same among renewals, which do not wait for other steps. A renewal does not hold it while it lets others go first.
    renewing: tokio::sync::Mutex<()>,
    /// What those who wait for their turn are told, and ([`no_entry`](Self::no_entry)) those who wait until this process has its entry.
    outage: Outage,
    pub(super) no_entry: Outage,
    /// Held by the step that only reads and has asked to go first: one at a time.
    pub(super) asking: Arc<tokio::sync::Mutex<()>>,
    /// The newest version that a step has seen.
    newest: AtomicU64,
    line: Mutex<Line>,
    /// What the last look has shown: the queues to which letters are on their way; whether the store has no clock; and whether no
    /// clock that this process can read tells when the last write was made, as when the store's server was started since.
    letters_to: Mutex<Vec<String>>,
    /// Held by who brings letters to where they are to go; the queue that got the last ones, which is kept because it knows how
    /// much time has passed there, and those that did not take any.
    pub(super) delivering: tokio::sync::Mutex<(Option<Arc<Engine>>, Refused)>,
    /// When one of those who wait for an item last tried to deliver letters.
    last_delivery: Mutex<Option<Instant>>,
    /// When the last look was asked for that has shown that nothing is ready.
    found_nothing: Mutex<Option<Instant>>,
    /// How many pages are left to the task that tidies; zero: there is no such task.
    to_tidy: AtomicUsize,
    lacks_clock: AtomicBool,
    lacks_witness: AtomicBool,
    follower: Mutex<Option<(AbortHandle, Process)>>,
    /// When a write was last seen of which this host's clock does not tell when it was made, or when such a write was last made or
    /// followed, as far as the head tells.
    stranger: Mutex<Option<Instant>>,
}

/// Records, as of one version of the head.
#[derive(Default)]
struct Cache {
    mark: Mark,
    known: Known,
    /// What its records take.
    bytes: usize,
}

impl Cache {
    fn new(mark: Mark, known: Known) -> Self {
        let (known, bytes) = worth_keeping(known);
        Self { mark, known, bytes }
    }
}

/// A version of the head, and the write that made it: a store that was given back older data may count to the same version once
/// more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    version: u64,
    by: Option<u64>,
}

/// A queue as it was read.
pub(super) struct Look {
    pub(super) head: Head,
    pub(super) version: Option<u64>,
    pub(super) moment: Moment,
    /// When the store was asked, or when an observer's view was read.
    pub(super) asked: Instant,
    /// The same moment by the clock that counts suspend.
    pub(super) sent: BootInstant,
    /// The entries that there are, in order.
    pub(super) entries: Vec<u64>,
    /// The entries of steps that have asked to go first.
    pub(super) ahead: Vec<First>,
    pub(super) has_clock: bool,
    /// Who gave the listing.
    pub(super) source: Option<Source>,
}

impl Look {
    pub(super) fn mark(&self) -> Mark {
        Mark { version: self.version.unwrap_or_default(), by: self.head.done.back().copied() }
    }
}

/// The turn of a step among those of its process.
type Turn<'a> = tokio::sync::MutexGuard<'a, ()>;

/// Resolves when the caller of a step has gone, to whom its outcome was of use.
pub(super) type Gone = oneshot::Receiver<()>;

/// What a step came to, and what is to be written.
struct Made<T> {
    outcome: Result<Outcome<T>>,
    writes: Option<(Head, Vec<Beside>)>,
    /// What is written has no new time in it.
    sets_no_time: bool,
    /// It adds to the queue.
    adds: bool,
    /// Who alone is to write it; `None`: whoever is asked.
    seen: Option<Source>,
    /// The ranks of items that it removes because their bodies are missing.
    without_body: Vec<u64>,
    /// The names of the records that were read for it; `known` has all records that are known by then.
    read: Vec<Arc<str>>,
    known: Known,
}

impl Engine {
    pub(super) fn new(queue: Queue) -> Self {
        Self {
            queue,
            clock: Clock::default(),
            cache: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            renewing: tokio::sync::Mutex::default(),
            outage: Outage::default(),
            no_entry: Outage::default(),
            asking: Arc::default(),
            newest: AtomicU64::new(0),
            line: Mutex::default(),
            letters_to: Mutex::default(),
            delivering: tokio::sync::Mutex::default(),
            last_delivery: Mutex::default(),
            found_nothing: Mutex::default(),
            to_tidy: AtomicUsize::new(0),
            lacks_clock: AtomicBool::new(false),
            lacks_witness: AtomicBool::new(false),
            follower: Mutex::default(),
            stranger: Mutex::default(),
        }
    }

    /// Makes a step, again as long as others change the queue in between.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the step goes on in the background.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        operation: &'static str,
        step: impl FnMut(&mut Draft<'_>, &[u64]) -> Step<Outcome<T>> + Send + 'static,
    ) -> Result<T> {
        let engine = Arc::clone(self);
        let running = async move {
            let done = engine.run_here(operation, step).await;
            engine.follow();
            done
        };
        self.queue.run(operation, running).await
    }

    /// [`run`](Self::run) for a step that only reads: it waits for no other step of this process.
    pub(super) async fn run_reading<T: Send + 'static>(
        self: &Arc<Self>,
        operation: &'static str,
        step: impl FnMut(&mut Draft<'_>, &[u64]) -> Step<Outcome<T>> + Send + 'static,
    ) -> Result<T> {
        self.queue.session.check_open(operation)?;
        let engine = Arc::clone(self);
        let reading = async move { engine.run_until_done(operation, Manner::Reads, step).await };
        // It may take long where there is much to read, and keep others waiting: so it ends with its caller.
        let read = self.queue.session.run_for_caller(operation, reading).await;
        // A read has no effect, whether its answer came or not.
        self.queue.named(read.map_err(|error| error.with_effect(Effect::None)))
    }

    /// [`run`](Self::run) for callers that are in a task of the session.
    pub(super) async fn run_here<T>(
        &self,
        operation: &'static str,
        step: impl FnMut(&mut Draft<'_>, &[u64]) -> Step<Outcome<T>>,
    ) -> Result<T> {
        self.run_until_done(operation, Manner::Writes, step).await
    }

    /// [`run_here`](Self::run_here) for a step that only reads.
    pub(super) async fn look_here<T>(
        &self,
        operation: &'static str,
        mut step: impl FnMut(&mut Draft<'_>) -> Step<T>,
    ) -> Result<T> {
        let step = |draft: &mut Draft<'_>, _: &[u64]| step(draft).map(Outcome::Done);
        self.run_until_done(operation, Manner::Reads, step).await
    }

    /// [`run_here`](Self::run_here), unless a claim has [found nothing](Self::found_nothing) since then: `None` in that case. This
    /// is asked again when it is the step's turn. Of many who wait for an item, only a few look at the store.
    ///
    /// Fails if the caller is `gone`, as long as nothing is written that may take effect: what is written before the last part of the step must
    /// be of use to others, too. Where others take longer than callers wait, all of them would else claim for those who have gone, and give
    /// that back, for ever.
    pub(super) async fn run_unless_nothing_since<T>(
        &self,
        operation: &'static str,
        since: Instant,
        gone: Gone,
        step: impl FnMut(&mut Draft<'_>, &[u64]) -> Step<Outcome<T>>,
    ) -> Result<Option<T>> {
        let mut caller = Some(gone);
        let turn = unless_gone(&mut caller, operation, self.turn_of(&self.turn)).await?;
        // Not also at the same instant: an item may have been posted after that look, and before this call.
        if self.found().is_some_and(|found| found > since) {
            return Ok(None);
        }
        self.run_from(operation, Manner::Writes, (Some(turn), caller), step).await.map(Some)
    }

    /// Notes that a look that was asked for at that time has shown that nothing is ready.
    pub(super) fn found_nothing(&self, asked: Instant) {
        let mut found = self.found();
        *found = (*found).max(Some(asked));
    }

    fn found(&self) -> MutexGuard<'_, Option<Instant>> {
        self.found_nothing.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// [`run_here`](Self::run_here) beside all others, for what has to be in time: it lets others go first for so long at the
    /// most.
    pub(super) async fn run_first<T>(
        &self,
        operation: &'static str,
        courtesy: Duration,
        step: impl FnMut(&mut Draft<'_>, &[u64]) -> Step<Outcome<T>>,
    ) -> Result<T> {
        let manner = Manner::InTime(Instant::now() + courtesy);
        self.run_until_done(operation, manner, step).await
    }

    async fn run_until_done<T>(
        &self,
        operation: &'static str,
        manner: Manner,
        step: impl FnMut(&mut Draft<'_>, &[u64]) -> Step<Outcome<T>>,
    ) -> Result<T> {
        self.run_from(operation, manner, (None, None), step).await
    }

    /// [`run_until_done`](Self::run_until_done) for a step that may have its turn already, and a caller who may go.
    async fn run_from<'a, T>(
        &'a self,
        operation: &'static str,
        manner: Manner,
        (mut turn, mut caller): (Option<Turn<'a>>, Option<Gone>),
        mut step: impl FnMut(&mut Draft<'_>, &[u64]) -> Step<Outcome<T>>,
    ) -> Result<T> {
        let (mut precedence, mut wanted) = (Precedence::new(self, manner), Vec::new());
        let is_in_time = matches!(manner, Manner::InTime(_));
        loop {
            let ready = async {
                if turn.is_none() {
                    turn = match manner {
                        Manner::Writes => Some(self.turn_of(&self.turn).await?),
                        Manner::InTime(_) => Some(self.turn_of(&self.renewing).await?),
                        Manner::Reads => None,
                    };
                }
                let look = self.look(operation).await?;
                if let Some((last, limit)) = precedence.before(&look) {
                    // Renewals do not wait for one another while they wait.
                    turn = turn.take().filter(|_| !is_in_time);
                    precedence.let_go_first(last, limit).await;
                    return Ok(None);
                }
                let wanted = std::mem::take(&mut wanted);
                let made = self.make(operation, &look, wanted, &mut step).await?;
                Ok(Some((look, made)))
            };
            let ready = unless_gone(&mut caller, operation, ready).await?;
            let Some((look, mut made)) = ready else { continue };
            // A renewal adds nothing to the head, and has no time for what others have left.
            let is_sweep = made.writes.is_some() && look.head.is_cluttered() && !is_in_time;
            if is_sweep {
                let sweeping = &mut |draft: &mut Draft<'_>, _: &[u64]| sweep(draft);
                made = self.make(operation, &look, Vec::new(), sweeping).await?;
            }
            let is_done = match made.writes {
                Some((head, beside)) => {
                    let is_dated = !made.sets_no_time || look.moment.is_exact;
                    let write = (head, beside, is_dated, made.adds, made.seen);
                    self.write(operation, &look, write, made.known).await?
                }
                None => made.read.is_empty() || self.is_still(operation, &look, made.known).await?,
            };
            if is_done && !made.without_body.is_empty() {
                let (queue, ranks) = (self.queue.name(), &made.without_body);
                tracing::warn!(
                    queue,
                    ?ranks,
                    "items were removed whose bodies somebody has removed"
                );
            }
            match made.outcome {
                outcome if is_done => match outcome? {
                    Outcome::Done(answer) => return Ok(answer),
                    // A sweep is no part of this call, and has an end: the call goes on at once.
                    Outcome::Again if is_sweep => wanted = Vec::new(),
                    // The next part of the step needs other records. Other calls of this process come first, for which it does
                    // not go first any more either: they would wait for its entry.
                    Outcome::Again => {
                        (precedence, wanted) = (Precedence::new(self, manner), Vec::new());
                        turn = None;
                    }
                },
                _ => {
                    let lost = async {
                        precedence.lost().await;
                        Ok(())
                    };
                    unless_gone(&mut caller, operation, lost).await?;
                    if precedence.is_too_long() {
                        let message = "others change the queue faster than it can be read";
                        let error = self.queue.error(ErrorKind::Unavailable, operation, message);
                        return Err(error.with_effect(Effect::None));
                    }
                    wanted = wanted_next(made.read);
                }
            }
        }
    }

    /// Waits for a turn. Fails, if the store was away for all of the last try, and that began while this call was waiting.
    async fn turn_of<'a>(&self, turns: &'a tokio::sync::Mutex<()>) -> Result<Turn<'a>> {
        let came = Instant::now();
        let turn = turns.lock().await;
        self.outage.check(came)?;
        Ok(turn)
    }

    /// Reads the head.
    pub(super) async fn look(&self, operation: &'static str) -> Result<Look> {
        let (session, key) = (&self.queue.session, &self.queue.key);
        let (asked, sent) = (Instant::now(), BootInstant::now());
        let seen_before = self.newest.load(Ordering::Acquire);
        let read = session.retry_briefly(operation, || session.backend.read_standing(key)).await;
        self.outage.note(asked, &read);
        let (listing, _) = read.map_err(|error| error.with_effect(Effect::None))?;
        let look = Look { asked, sent, ..self.read(operation, &listing, Duration::ZERO)? };
        if look.version.unwrap_or_default() < seen_before {
            // The store has lost its data, or was given back older ones: what was seen there counts no more.
            self.newest.store(0, Ordering::Release);
            *self.cache() = Cache::default();
            *self.line() = Line::default();
        }
        self.note(&look);
        Ok(look)
    }

    /// Notes what a look has shown, unless a newer look was noted already: a step that only reads may come late with its own.
    fn note(&self, look: &Look) {
        let version = look.version.unwrap_or_default();
        if self.newest.fetch_max(version, Ordering::AcqRel) <= version {
            self.note_letters(&look.head);
            self.lacks_clock.store(!look.has_clock, Ordering::Release);
            let is_witnessed = look.moment.is_witnessed || look.version.is_none();
            self.lacks_witness.store(!is_witnessed, Ordering::Release);
        }
    }

    pub(super) fn note_letters(&self, head: &Head) {
        *self.letters_to() = head.outboxes.keys().cloned().collect();
    }

    /// Whether nobody in this process has said yes here for so long; then this caller has.
    pub(super) fn is_delivery_due(&self, pause: Duration) -> bool {
        let mut last = self.last_delivery.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let is_due = last.is_none_or(|last| last.elapsed() >= pause);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }

    pub(super) fn letters_to(&self) -> MutexGuard<'_, Vec<String>> {
        self.letters_to.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn has_letters(&self) -> bool {
        !self.letters_to().is_empty()
    }

    /// Reads a listing that came this long ago. The time is that of the store's answer and no later, where the store has a clock: what
    /// it takes here to read the answer is no time that has passed for the queue.
    pub(super) fn read(
        &self,
        operation: &'static str,
        listing: &Listing,
        passed: Duration,
    ) -> Result<Look> {
        let at = BootInstant::now();
        let value = listing.value.as_ref();
        let head: Option<Head> =
            value.map(|value| from_data(operation, &value.data)).transpose()?;
        let head = head.unwrap_or_else(Head::of_new_queue);
        let of_store = listing.clock.map(|clock| later(clock, passed));
        let moment = self.clock.read(&head.clock, of_store, at);
        if value.is_some() {
            // A write of another host that one of this host has followed by now.
            let turned = head.clock.turned.map(|turned| moment.now.saturating_sub(turned));
            let turned = turned.and_then(|ago| Instant::now().checked_sub(duration(ago)));
            let seen = if moment.is_witnessed { turned } else { Some(Instant::now()) };
            let mut stranger =
                self.stranger.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            *stranger = (*stranger).max(seen);
        }
        Ok(Look {
            head,
            version: value.map(|value| value.version),
            moment,
            asked: Instant::now(),
            sent: at,
            entries: listing.entries.iter().map(|entry| entry.seq).collect(),
            ahead: ahead(listing),
            has_clock: listing.clock.is_some(),
            source: listing.source,
        })
    }

    /// Whether this is no older than what the last step saw.
    pub(super) fn is_new(&self, look: &Look) -> bool {
        look.version.unwrap_or_default() >= self.newest.load(Ordering::Acquire)
    }

    /// Makes the step, and reads what it asks for; at first what is `wanted`, all at once.
    async fn make<T>(
        &self,
        operation: &'static str,
        look: &Look,
        mut wanted: Vec<Arc<str>>,
        step: &mut impl FnMut(&mut Draft<'_>, &[u64]) -> Step<Outcome<T>>,
    ) -> Result<Made<T>> {
        let version = look.version.unwrap_or_default();
        // The cache counts only if it is of the version that was just read.
        let mut known = self.cached(look.mark());
        wanted.retain(|name| !known.contains_key(name));
        let mut read = Vec::new();
        loop {
            self.fetch(operation, &wanted, &mut known).await?;
            read.append(&mut wanted);
            let mut draft = Draft::new(look.head.clone(), version, look.moment.now, &known);
            (draft.asked, draft.sent, draft.source) = (look.asked, look.sent, look.source);
            draft.entries = Some(&look.entries);
            let done = step(&mut draft, &look.entries);
            let sets_no_time = draft.sets_no_time;
            let adds = draft.adds;
            let seen = draft.source.filter(|_| draft.by_entries);
            let without_body = std::mem::take(&mut draft.without_body);
            let done = done.and_then(|done| Ok((done, draft.finish()?)));
            let (outcome, writes) = match done {
                Ok((outcome, writes)) => (Ok(outcome), writes),
                Err(Stop::Fail(error)) => (Err(error), None),
                Err(Stop::Fetch(names)) => {
                    wanted = names;
                    continue;
                }
            };
            return Ok(Made {
                outcome,
                writes,
                sets_no_time,
                adds,
                seen,
                without_body,
                read,
                known,
            });
        }
    }

    async fn fetch(
        &self,
        operation: &'static str,
        names: &[Arc<str>],
        known: &mut Known,
    ) -> Result<()> {
        for names in names.chunks(MOST_BESIDE) {
            let (session, key) = (&self.queue.session, &self.queue.key);
            let read =
                session.retry_briefly(operation, || session.backend.records(key, names)).await;
            let (records, _) = read.map_err(|error| error.with_effect(Effect::None))?;
            known.extend(names.iter().cloned().zip(records));
        }
        Ok(())
    }

    /// Writes what a step has made of what is `known`; false: others have written since that was read, or another server than `seen` would
    /// write it.
    ///
    /// If the write is not `is_dated`, the queue's clock stays as it is: nobody here knows how late it is, and others may know.
    async fn write(
        &self,
        operation: &'static str,
        look: &Look,
        (mut head, beside, is_dated, adds, seen): (Head, Vec<Beside>, bool, bool, Option<Source>),
        known: Known,
    ) -> Result<bool> {
        let mut write = Write::new(&self.queue.key, look.version, None);
        if look.version.is_none() {
            head.id = write.id;
        }
        let last = head.done.back().copied();
        if is_dated {
            head.clock = head.clock.next(look.moment, write.id);
        }
        remember(&mut head.done, write.id);
        let longest = if adds { MOST_OF_POSTS } else { MAX_VALUE_BYTES };
        write.data = Some(to_data(operation, &head, longest)?);
        write.beside = beside;
        // Where what was posted has filled the memory, it has to be possible to claim and acknowledge it.
        write.needs_room = adds;
        write.seen = seen;
        let begun = Instant::now();
        let answer = self.queue.session.write(operation, &write).await;
        self.outage.note(begun, &answer);
        let written = match answer? {
            Written::Yes(version) => Some(version),
            Written::No => None,
            Written::Unknown => return self.find(operation, write.id, last).await,
        };
        if let Some(version) = written {
            if is_dated {
                self.clock.wrote(write.id, look.moment);
            }
            self.keep(look.mark(), known);
            self.wrote(look.mark(), Mark { version, by: Some(write.id) }, write.beside);
            self.note_letters(&head);
        }
        Ok(written.is_some())
    }

    /// Whether a write was done whose answer was lost, and which others followed.
    async fn find(&self, operation: &'static str, id: u64, last: Option<u64>) -> Result<bool> {
        // A look has no effect, but the write may have had one.
        let look = self.look(operation).await;
        let done = look.map_err(|error| error.with_effect(Effect::Unknown))?.head.done;
        let reaches_back = done.len() < REMEMBERED || last.is_some_and(|last| done.contains(&last));
        match done.contains(&id) {
            true => Ok(true),
            false if reaches_back => Ok(false),
            false => Err(in_doubt(operation)),
        }
    }

    /// Whether the head is as it was, and with it all that is `known`.
    async fn is_still(&self, operation: &'static str, look: &Look, known: Known) -> Result<bool> {
        let is_still = self.look(operation).await?.version == look.version;
        if is_still {
            self.keep(look.mark(), known);
        }
        Ok(is_still)
    }

    /// Makes this host, or the store's new clock, a witness of the last write, for those that come later.
    pub(super) async fn attest(&self, operation: &'static str) -> Result<()> {
        if !self.lacks_witness.load(Ordering::Acquire) {
            return Ok(());
        }
        let _turn = self.turn_of(&self.turn).await?;
        let mut look = self.look(operation).await?;
        let witness = look.moment.witness.filter(|_| !look.moment.is_witnessed);
        let (Some(witness), Some(version)) = (witness, look.version) else { return Ok(()) };
        look.head.clock.attest(witness);
        let data = to_data(operation, &look.head, MAX_VALUE_BYTES)?;
        let write = Write::new(&self.queue.key, Some(version), Some(data));
        let write = Write { needs_room: false, ..write };
        // If others have written meanwhile there is nothing to attest. Whether it was done or not, the call has had no effect.
        let written = self.queue.session.write(operation, &write).await;
        written.map(|_| ()).map_err(|error| error.with_effect(Effect::None))
    }

    /// On a store without a clock, sees each write soon, from now on until this is dropped.
    pub(super) fn follow(self: &Arc<Self>) {
        let mut follower = self.follower.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if follower.is_some() || !self.lacks_clock.load(Ordering::Acquire) {
            return;
        }
        let (views, engine) = (self.queue.observe(Sight::Standing), Arc::downgrade(self));
        let task = self.queue.session.spawn(see_writes(engine, views));
        *follower = Some((task.abort_handle(), Process::this()));
    }

    /// Whether writes that are seen late cost no time, as the host's clock tells when they were made.
    fn writers_are_here(&self) -> bool {
        let stranger = self.stranger.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        stranger.is_none_or(|stranger| stranger.elapsed() >= STRANGERS)
    }

    /// [Tidies](tidy) so many pages in the background, or all that need it: what posts have left to steps of their own.
    pub(super) fn tidy_later(self: &Arc<Self>, pages: usize) {
        if pages == 0 || self.to_tidy.fetch_add(pages, Ordering::AcqRel) > 0 {
            return;
        }
        let engine = Arc::clone(self);
        drop(self.queue.session.spawn(async move { engine.tidy_here().await }));
    }

    async fn tidy_here(&self) {
        loop {
            let left = self.to_tidy.load(Ordering::Acquire);
            match self.run_here("post", |draft, _| tidy(draft, left)).await {
                Ok(looked_at) if looked_at > 0 => {
                    if self.to_tidy.fetch_sub(looked_at, Ordering::AcqRel) == looked_at {
                        return;
                    }
                }
                // What has failed is left to later posts.
                _ => return self.to_tidy.store(0, Ordering::Release),
            }
        }
    }

    fn cached(&self, mark: Mark) -> Known {
        let cache = self.cache();
        if cache.mark == mark { cache.known.clone() } else { Known::new() }
    }

    /// Keeps records for the next step. They have to be known to belong to this version, as others may write between two
    /// requests.
    fn keep(&self, mark: Mark, known: Known) {
        let mut cache = self.cache();
        // A step that only reads may come late, with an older version.
        if cache.mark.version <= mark.version {
            *cache = Cache::new(mark, known);
        }
    }

    fn wrote(&self, before: Mark, now: Mark, beside: Vec<Beside>) {
        self.newest.fetch_max(now.version, Ordering::AcqRel);
        let mut cache = self.cache();
        if cache.mark == before {
            let mut known = std::mem::take(&mut cache.known);
            known.extend(beside.into_iter().map(|record| (record.name, record.data)));
            *cache = Cache::new(now, known);
        }
    }

    /// How many bytes of records are kept for the next step.
    pub(super) fn cached_bytes(&self) -> usize {
        self.cache().bytes
    }

    /// Keeps no records for the next step, which reads them again.
    pub(super) fn forget_cached(&self) {
        *self.cache() = Cache::default();
    }

    /// The entries of steps that have asked to go first, as this process has seen them.
    pub(super) fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let follower = self.follower.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((task, process)) = follower
            && process.is_this()
        {
            task.abort();
        }
    }
}

/// Sees each write soon while other hosts write, as it counts when a write was seen first. While only this host does, it sees what
/// was written in a while at once: many processes that all read what each of them writes would keep the store busy with that.
async fn see_writes(engine: Weak<Engine>, mut views: Views) {
    while let Ok(view) = views.next().await {
        let Some(engine) = engine.upgrade() else { return };
        // If the value is corrupt, the next call fails with that.
        let _ = engine.read("observe", &view.listing, view.came.elapsed());
        views.hurry(!engine.writers_are_here());
    }
}

/// These records and what they take; none, if that is too much.
fn worth_keeping(known: Known) -> (Known, usize) {
    let bytes = known.values().flatten().map(|data| data.len()).sum::<usize>();
    if known.len() > KEPT || bytes > KEPT_BYTES { (Known::new(), 0) } else { (known, bytes) }
}

/// Fails if the caller goes before this is done.
async fn unless_gone<T>(
    caller: &mut Option<Gone>,
    operation: &'static str,
    doing: impl Future<Output = Result<T>>,
) -> Result<T> {
    let Some(gone) = caller else { return doing.await };
    tokio::select! {
        biased;
        _ = gone => Err(Error::new(ErrorKind::Closed, operation, "nobody waits for it")),
        done = doing => done,
    }
}

/// What the next try reads at once: all that this try has read; nothing, if that has become too much by what earlier tries had
/// read.
fn wanted_next(read: Vec<Arc<str>>) -> Vec<Arc<str>> {
    if read.len() > 2 * MOST_BESIDE { Vec::new() } else { read }
}

fn remember(done: &mut VecDeque<u64>, id: u64) {
    done.push_back(id);
    if done.len() > REMEMBERED {
        done.pop_front();
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests;
