//! F-14, F-41, F-42: an operation is interrupted at every place where it can be, not at some of them.
//!
//! A *case* does one operation, interrupted, and then asserts what has to be so: nothing is left at the
//! store, and somebody else gets what there is. It stands once, beside the other checks of its recipe. This
//! file interrupts it in three ways:
//!
//! * [`at_every_poll`]: the caller's future is dropped after its first poll, its second, … , when it is polled
//!   as a runtime polls it: when it was woken. Then once more after one short pause, two, … , since what the
//!   session's task does on the caller's behalf goes on between two polls.
//! * [`at_every_message`]: dropped while the conversation with the server stands still after its first
//!   message, its second, … , either way. What the server has done, and the client has not heard of, is then
//!   not left to chance.
//! * [`at_every_cut`]: not dropped; the connection ends after, or before, each message or frame.
//!
//! Each goes on until the operation has ended before it was interrupted, so the places need no counting
//! beforehand; how many there were is printed.

use std::cell::Cell;
use std::fmt;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use coordination::{Builder, Coordinator, Result, State, StateWatch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::tools::{MOMENT, PATIENCE, acquire, lock, poll_once};
use crate::bounds;
use crate::harness::{Direction, Mode, Proxy, Unit, eventually};

/// More places than any operation has: beyond them it does not end.
const MANY: usize = 2_000;
/// How long a conversation is left standing still, so that all that can go on has gone on.
const STANDSTILL: Duration = Duration::from_millis(3);

/// Where a connection ends: at such a unit, this one being the last that goes through or not.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    direction: Direction,
    unit: Unit,
    is_after: bool,
}

const fn cut(direction: Direction, unit: Unit, is_after: bool) -> Cut {
    Cut { direction, unit, is_after }
}

/// After and before each message, either way.
pub const MESSAGES: &[Cut] = &[
    cut(Direction::ToServer, Unit::Messages, true),
    cut(Direction::ToServer, Unit::Messages, false),
    cut(Direction::ToClient, Unit::Messages, true),
    cut(Direction::ToClient, Unit::Messages, false),
];

/// After and before each frame, either way: headers, acknowledgements and the ends of streams as well.
pub const FRAMES: &[Cut] = &[
    cut(Direction::ToServer, Unit::Frames, true),
    cut(Direction::ToServer, Unit::Frames, false),
    cut(Direction::ToClient, Unit::Frames, true),
    cut(Direction::ToClient, Unit::Frames, false),
];

/// The cuts at each unit of the store's conversations.
pub fn all_cuts(store: &TestStore) -> impl Iterator<Item = &'static [Cut]> + use<> {
    let units = store.server().units().iter();
    units.map(|unit| if *unit == Unit::Frames { FRAMES } else { MESSAGES })
}

/// How many cuts are made at least where each unit of a conversation is cut at: one request and one answer, each
/// after and before, by each unit.
pub fn least_cuts(store: &TestStore) -> usize {
    4 * store.server().units().len()
}

/// A place at which an operation is interrupted.
#[derive(Clone, Copy, Debug)]
enum Interruption {
    /// Dropped right after so many polls.
    Poll(usize),
    /// Dropped after so many pauses.
    Pause(usize),
    /// Dropped when so many messages have gone through, and no more do.
    Message(Direction, usize),
    /// Its connection is cut at the unit of this number.
    Cut(Cut, usize),
    /// Nowhere.
    Nowhere,
}

impl fmt::Display for Interruption {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Poll(polls) => write!(formatter, "dropped after {polls} polls"),
            Self::Pause(pauses) => write!(formatter, "dropped after {pauses} pauses"),
            Self::Message(way, count) => write!(formatter, "dropped at message {count} {way:?}"),
            Self::Cut(Cut { direction, unit, is_after }, count) => {
                let when = if *is_after { "after" } else { "before" };
                write!(formatter, "cut {when} {unit:?} {count} {direction:?}")
            }
            Self::Nowhere => formatter.write_str("not interrupted"),
        }
    }
}

/// Two clients, and the place where the operation of the first is to be interrupted.
pub struct Pair<'a> {
    /// The store.
    pub store: &'a TestStore,
    /// Whose operation is interrupted.
    pub one: Coordinator,
    /// Who sees what it has left.
    pub other: Coordinator,
    states: StateWatch,
    place: Interruption,
    is_by_proxy: bool,
    is_over: Cell<bool>,
    refused: Cell<u32>,
}

impl fmt::Debug for Pair<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.store.backend(), self.place)
    }
}

/// Settings under which a session says little of its own accord, and is not lost to a slow machine.
fn quiet(store: &TestStore) -> Builder {
    let settings = store.settings().ttl(Duration::from_secs(30)).heartbeat(Duration::from_secs(9));
    settings.initial_reconnect_backoff(Duration::from_millis(10))
}

impl<'a> Pair<'a> {
    async fn new(store: &'a TestStore, is_by_proxy: bool, is_tied: bool) -> Result<Self> {
        let url = if is_by_proxy { store.url_by_proxy() } else { store.url().to_owned() };
        let settings = quiet(store).member_id("interrupted").heartbeat_on_current_runtime(is_tied);
        let one = settings.connect(&url).await?;
        Ok(Self {
            store,
            states: one.state(),
            one,
            other: quiet(store).member_id("beside").connect(store.url()).await?,
            place: Interruption::Nowhere,
            is_by_proxy,
            is_over: Cell::new(false),
            refused: Cell::new(0),
        })
    }

    /// Both clients leave, so that others may come by their names.
    async fn end(self) -> Result<()> {
        self.one.stop().await?;
        self.other.stop().await
    }

    /// The URL by which the client whose operation is interrupted connects.
    pub fn url(&self) -> String {
        if self.is_by_proxy { self.store.url_by_proxy() } else { self.store.url().to_owned() }
    }

    /// How long the operation may wait: as long as it likes, unless nothing but a cut happens to it.
    pub fn patience(&self) -> Option<Duration> {
        matches!(self.place, Interruption::Cut(..)).then_some(2 * bounds::served())
    }

    /// Does the operation, and interrupts it at the place; what came of it, if it was not dropped. An error
    /// that a cut connection explains is none.
    ///
    /// # Errors
    ///
    /// Any other error of the operation.
    pub async fn interrupt<T>(
        &self,
        operation: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>> {
        match self.attempt(operation).await.transpose() {
            Err(error) if matches!(self.place, Interruption::Cut(..)) && error.is_transient() => {
                self.refused.set(self.refused.get() + 1);
                Ok(None)
            }
            outcome => outcome,
        }
    }

    /// [`interrupt`](Self::interrupt) for whoever judges the error.
    pub async fn attempt<F: Future>(&self, operation: F) -> Option<F::Output> {
        let (outcome, is_over) = match self.place {
            Interruption::Poll(polls) => over(drop_after_polls(operation, polls).await),
            Interruption::Pause(pauses) => over(self.drop_after_pauses(operation, pauses).await),
            Interruption::Message(direction, count) => {
                let proxy = self.store.proxy();
                match number(count) {
                    // The server does what it is asked to, and nobody hears of it; or it is not asked.
                    0 => proxy.set(direction, Mode::Stall),
                    count => proxy.stall_after(direction, Unit::Messages, count),
                }
                let outcome = tokio::select! {
                    biased;
                    outcome = operation => Some(outcome),
                    () = stands_still(proxy) => None,
                };
                (outcome, proxy.is_cut_pending())
            }
            Interruption::Cut(cut, count) => {
                let proxy = self.store.proxy();
                if cut.is_after {
                    proxy.cut_after(cut.direction, cut.unit, number(count));
                } else {
                    proxy.cut_before(cut.direction, cut.unit, number(count));
                }
                let begun = Instant::now();
                let outcome = operation.await;
                let took = begun.elapsed();
                let bound = 2 * bounds::served() + super::SCHEDULING + self.store.scheduling();
                assert!(took <= bound, "{self:?}: {took:?}");
                (Some(outcome), proxy.is_cut_pending())
            }
            Interruption::Nowhere => over(Some(operation.await)),
        };
        if self.is_by_proxy {
            self.store.proxy().heal();
        }
        self.is_over.set(is_over);
        outcome
    }

    /// Drops what somebody holds a little later, when an operation that waits for it has begun to.
    pub fn drop_later<T: Send + 'static>(&self, held: T) -> JoinHandle<()> {
        let later = Duration::from_millis(if self.store.has_server() { 15 } else { 1 });
        tokio::spawn(async move {
            sleep(later).await;
            drop(held);
        })
    }

    async fn drop_after_pauses<F: Future>(&self, operation: F, pauses: usize) -> Option<F::Output> {
        let mut operation = pin!(operation);
        for _ in 0..pauses {
            let polled = poll_once(operation.as_mut()).await;
            if polled.is_some() {
                return polled;
            }
            match self.store.has_server() {
                true => sleep(Duration::from_millis(1)).await,
                false => pause(Duration::from_micros(50)).await,
            }
        }
        None
    }

    /// At the first place, the second, … , until the operation ends before. How many there were.
    async fn enumerate(
        &mut self,
        first: usize,
        place: impl Fn(usize) -> Interruption,
        case: &mut impl AsyncFnMut(&Pair<'_>) -> Result<()>,
    ) -> Result<usize> {
        for count in first..MANY {
            self.place = place(count);
            self.is_over.set(false);
            case(self).await.inspect_err(|error| eprintln!("{self:?}: {error}"))?;
            self.keeps_its_session().await;
            if self.is_over.get() {
                return Ok(count - first);
            }
        }
        panic!("{self:?}: the operation does not end")
    }

    /// Whatever was interrupted, the session was not lost.
    async fn keeps_its_session(&mut self) {
        while let Ok(Some(state)) = timeout(Duration::ZERO, self.states.changed()).await {
            assert!(matches!(state, State::Connected | State::Suspended), "{self:?}: {state:?}");
        }
    }
}

/// An operation that was dropped, or that was over before.
fn over<T>(outcome: Option<T>) -> (Option<T>, bool) {
    let is_over = outcome.is_some();
    (outcome, is_over)
}

fn number(count: usize) -> u64 {
    u64::try_from(count).expect("not that many")
}

/// Polls the future this often at most, each time when it was woken, and drops it.
async fn drop_after_polls<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // No wake-up is to come after the last poll.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// How often the polls are gone through: a quick store's answer may be there before the first one is over.
const ENUMERATIONS: usize = 5;

/// Lets others work; shorter than the runtime's clock can tell.
async fn pause(length: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < length {
        tokio::task::yield_now().await;
    }
}

/// Waits until the proxy has let through what it was to, and for what comes of that.
async fn stands_still(proxy: &Proxy) {
    while proxy.is_cut_pending() {
        sleep(Duration::from_millis(1)).await;
    }
    sleep(STANDSTILL).await;
}

/// Drops the operation at each of its polls, and after each pause; `least` is how many polls it has at
/// least before the last.
///
/// The first time its session's tasks are on the caller's runtime, where they can be counted: none is left.
///
/// # Errors
///
/// Those of the case.
///
/// # Panics
///
/// When what the case asserts does not hold, and when there were fewer places.
pub async fn at_every_poll(
    store: &TestStore,
    what: &str,
    least: usize,
    mut case: impl AsyncFnMut(&Pair<'_>) -> Result<()>,
) -> Result<()> {
    let mut tied = Pair::new(store, false, true).await?;
    case(&tied).await?;
    // Held for long enough to be watched: the task for that stays, one for all that is ever watched.
    // And waited for, for the same reason.
    let held = acquire(&tied.one).await?;
    drop(timeout(2 * MOMENT, acquire(&tied.one)).await);
    held.release().await?;
    sleep(2 * MOMENT).await;
    // What is listed comes on a connection of its own on Redis, which has a task as well: made for each new server.
    lock(&tied.one).holders().await?;
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    let mut polls = 0;
    for _ in 0..ENUMERATIONS {
        polls = polls.max(tied.enumerate(0, Interruption::Poll, &mut case).await?);
        if polls >= least {
            break;
        }
    }
    eventually(PATIENCE, || metrics.num_alive_tasks() <= before).await;
    tied.end().await?;
    let mut pair = Pair::new(store, false, false).await?;
    let pauses = pair.enumerate(0, Interruption::Pause, &mut case).await?;
    pair.end().await?;
    println!("F-41 {:?}, {what}: {polls} polls, {pauses} pauses", store.backend());
    assert!(polls >= least, "{what}: only {polls} places to drop it at");
    Ok(())
}

/// Drops the operation while its conversation with the server stands still, after each message either way.
///
/// # Errors
///
/// Those of the case.
///
/// # Panics
///
/// When what the case asserts does not hold, and when no message went through.
pub async fn at_every_message(
    store: &TestStore,
    what: &str,
    mut case: impl AsyncFnMut(&Pair<'_>) -> Result<()>,
) -> Result<()> {
    let mut pair = Pair::new(store, true, false).await?;
    // Once undisturbed: what a first use has to say besides is said.
    case(&pair).await?;
    let mut places = Vec::new();
    for direction in [Direction::ToServer, Direction::ToClient] {
        let place = |count| Interruption::Message(direction, count);
        places.push(pair.enumerate(0, place, &mut case).await?);
    }
    pair.end().await?;
    let name = store.backend().name();
    println!("F-41 {name}, {what}: {} places on the way there, {} back", places[0], places[1]);
    assert!(places.iter().all(|places| *places >= 2), "{what}: {places:?} places");
    Ok(())
}

/// Cuts the connection at each unit of the operation's conversation in turn. How many cuts were made.
///
/// # Errors
///
/// Those of the case.
///
/// # Panics
///
/// When what the case asserts does not hold, and when a kind of cut was never made.
pub async fn at_every_cut(
    store: &TestStore,
    what: &str,
    cuts: &[Cut],
    mut case: impl AsyncFnMut(&Pair<'_>) -> Result<()>,
) -> Result<usize> {
    let mut pair = Pair::new(store, true, false).await?;
    case(&pair).await?;
    let mut made = Vec::new();
    for cut in cuts {
        let count = pair.enumerate(1, |count| Interruption::Cut(*cut, count), &mut case).await?;
        assert!(count > 0, "{what}: nothing to cut at {cut:?}");
        made.push(count);
    }
    let sum = made.iter().sum();
    let refused = pair.refused.get();
    pair.end().await?;
    let name = store.backend().name();
    println!("F-14 {name}, {what}: {sum} cuts {made:?}, {refused} told as an error");
    Ok(sum)
}
