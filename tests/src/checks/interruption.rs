//! F-14, F-41, F-42: interrupts an operation at every possible place, instead of at a few of them.
//!
//! A *case* is a function that performs one operation, which is interrupted, and then asserts what has to be true:
//! nothing is left at the store, and another client gets the lock or the other object of the operation. Each case is in
//! the same file as the other checks of its recipe. This file interrupts cases in three ways:
//!
//! * [`at_every_poll`] drops the caller's future after its first poll, then after its second, and so on; the future is
//!   polled only when it was woken, as a runtime does. Then it drops the future after one short pause, after two, and
//!   so on, because the session's task goes on with the operation between two polls.
//! * [`at_every_message`] stops the traffic with the server after the first message, the second, and so on, in either
//!   direction, and then drops the future. So it tests, for certain, each state in which the server has done something
//!   that the client does not know.
//! * [`at_every_cut`] does not drop the future, but ends the connection after, or before, each message or frame.
//!
//! Each way goes on to later places until the operation ends before it is interrupted. So nobody has to know the
//! number of places; it is printed.

use std::cell::Cell;
use std::fmt;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use coordination::{Builder, Coordinator, Result, State, StateWatch};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::tools::{MOMENT, PATIENCE, acquire, lock, poll_once};
use crate::bounds;
use crate::harness::{Direction, Mode, Proxy, Unit, eventually};

/// No operation can be interrupted at this many places. If an operation is still not over at so many places, it hangs.
const MANY: usize = 2_000;
/// How long traffic stays stopped before the future is dropped, so that everything that can still happen has happened.
const STANDSTILL: Duration = Duration::from_millis(3);

/// Where the connection is cut: at a message or a frame in this direction, after the proxy has forwarded it or
/// before.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    direction: Direction,
    unit: Unit,
    is_after: bool,
}

const fn cut(direction: Direction, unit: Unit, is_after: bool) -> Cut {
    Cut { direction, unit, is_after }
}

/// Cuts after and before each message, in both directions.
pub const MESSAGES: &[Cut] = &[
    cut(Direction::ToServer, Unit::Messages, true),
    cut(Direction::ToServer, Unit::Messages, false),
    cut(Direction::ToClient, Unit::Messages, true),
    cut(Direction::ToClient, Unit::Messages, false),
];

/// Cuts after and before each frame, in both directions; also headers, acknowledgements and ends of streams.
pub const FRAMES: &[Cut] = &[
    cut(Direction::ToServer, Unit::Frames, true),
    cut(Direction::ToServer, Unit::Frames, false),
    cut(Direction::ToClient, Unit::Frames, true),
    cut(Direction::ToClient, Unit::Frames, false),
];

/// The lists of cuts for the store's protocol: one list for each unit, messages or frames, that the proxy can count
/// in it.
pub fn all_cuts(store: &TestStore) -> impl Iterator<Item = &'static [Cut]> + use<> {
    let units = store.server().units().iter();
    units.map(|unit| if *unit == Unit::Frames { FRAMES } else { MESSAGES })
}

/// The smallest possible number of cuts: a call has at least one request and one answer, which are cut before and
/// after, for each unit of the protocol.
pub fn least_cuts(store: &TestStore) -> usize {
    4 * store.server().units().len()
}

/// Where an operation is interrupted.
#[derive(Clone, Copy, Debug)]
enum Interruption {
    /// The future is dropped after this many polls.
    Poll(usize),
    /// The future is dropped after this many polls, each followed by a pause.
    Pause(usize),
    /// Traffic stops after this many messages in this direction, and then the future is dropped.
    Message(Direction, usize),
    /// The connection is cut at the message or frame with this number.
    Cut(Cut, usize),
    /// The operation is not interrupted.
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

/// Two clients, and where the operation of the first one is to be interrupted.
pub struct Pair<'a> {
    /// The store under test.
    pub store: &'a TestStore,
    /// The client whose operation is interrupted.
    pub one: Coordinator,
    /// The client that checks what the operation has left.
    pub other: Coordinator,
    states: StateWatch,
    place: Interruption,
    is_by_proxy: bool,
    is_over: Cell<bool>,
    refused: Cell<u32>,
    /// Whether the operation was polled, or is over, since the last call of [`drop_later`](Self::drop_later).
    begun: watch::Sender<bool>,
}

impl fmt::Debug for Pair<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.store.backend(), self.place)
    }
}

/// Settings with few heartbeats, and a lease so long that a slow machine does not lose the session.
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
            begun: watch::Sender::new(false),
        })
    }

    /// Stops both clients, so that others can use their member ids.
    async fn end(self) -> Result<()> {
        self.one.stop().await?;
        self.other.stop().await
    }

    /// The URL for the client whose operation is interrupted.
    pub fn url(&self) -> String {
        if self.is_by_proxy { self.store.url_by_proxy() } else { self.store.url().to_owned() }
    }

    /// The timeout of the operation. If the operation's future is dropped, there is no timeout. If the connection is
    /// cut, the operation has to succeed within the timeout nevertheless.
    pub fn patience(&self) -> Option<Duration> {
        matches!(self.place, Interruption::Cut(..)).then_some(2 * bounds::served())
    }

    /// Performs the operation and interrupts it at the chosen place. Returns its result, or `None` if it was dropped or
    /// failed with a transient error because the connection was cut.
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

    /// Like [`interrupt`](Self::interrupt), but returns the operation's errors to the caller, whatever they are.
    pub async fn attempt<F: Future>(&self, operation: F) -> Option<F::Output> {
        let operation = self.noted(operation);
        let (outcome, is_over) = match self.place {
            Interruption::Poll(polls) => over(drop_after_polls(operation, polls).await),
            Interruption::Pause(pauses) => over(self.drop_after_pauses(operation, pauses).await),
            Interruption::Message(direction, count) => {
                let proxy = self.store.proxy();
                match number(count) {
                    // If traffic to the server is stopped, the request does not arrive. If traffic to the client is
                    // stopped, the request is carried out without an answer.
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
        self.note_begun();
        self.is_over.set(is_over);
        outcome
    }

    /// The operation, of which it is noted that it was polled.
    fn noted<F: Future>(&self, operation: F) -> impl Future<Output = F::Output> {
        let mut operation = Box::pin(operation);
        std::future::poll_fn(move |context| {
            let polled = operation.as_mut().poll(context);
            self.note_begun();
            polled
        })
    }

    fn note_begun(&self) {
        self.begun.send_if_modified(|begun| !std::mem::replace(begun, true));
    }

    /// Drops `held` in the background a little after the operation that waits for it was polled for the first time: by
    /// then it waits, if the store is one that answers within a poll. If the operation is never polled, drops `held`
    /// after it.
    pub fn drop_later<T: Send + 'static>(&self, held: T) -> JoinHandle<()> {
        let later = Duration::from_millis(if self.store.has_server() { 15 } else { 1 });
        self.begun.send_replace(false);
        let mut begun = self.begun.subscribe();
        tokio::spawn(async move {
            // It fails only if the check has ended.
            drop(begun.wait_for(|begun| *begun).await);
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

    /// Interrupts the case at the first place, the second, and so on, until the operation ends before it is
    /// interrupted. Returns the number of places.
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

    /// Asserts that the session was never lost.
    async fn keeps_its_session(&mut self) {
        while let Ok(Some(state)) = timeout(Duration::ZERO, self.states.changed()).await {
            assert!(matches!(state, State::Connected | State::Suspended), "{self:?}: {state:?}");
        }
    }
}

/// Adds to an outcome whether the operation ended before it was dropped.
fn over<T>(outcome: Option<T>) -> (Option<T>, bool) {
    let is_over = outcome.is_some();
    (outcome, is_over)
}

fn number(count: usize) -> u64 {
    u64::try_from(count).expect("not that many")
}

/// Polls the future at most this often, each time only after it was woken, and drops it.
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
            // After the last poll no wake-up is awaited.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// How often all polls are tried. Several times, because a quick store may answer before the first poll returns, and
/// then the operation has fewer polls.
const ENUMERATIONS: usize = 5;

/// Lets other tasks run for a time that is shorter than the timer of the runtime can measure.
async fn pause(length: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < length {
        tokio::task::yield_now().await;
    }
}

/// Waits until the proxy has stopped the traffic, and then until everything that can still happen has happened.
async fn stands_still(proxy: &Proxy) {
    while proxy.is_cut_pending() {
        sleep(Duration::from_millis(1)).await;
    }
    sleep(STANDSTILL).await;
}

/// Drops the operation at each of its polls, and after each pause. The operation must have at least `least` polls
/// before its last one.
///
/// For the polls, the session's tasks run on the caller's runtime, where they can be counted: no task may be left over.
///
/// # Errors
///
/// Errors of the case.
///
/// # Panics
///
/// If an assertion of the case fails, or if there were fewer polls than `least`.
pub async fn at_every_poll(
    store: &TestStore,
    what: &str,
    least: usize,
    mut case: impl AsyncFnMut(&Pair<'_>) -> Result<()>,
) -> Result<()> {
    let mut tied = Pair::new(store, false, true).await?;
    case(&tied).await?;
    // Holds the lock and also waits for it, long enough for the library to start its tasks for watching. These tasks
    // stay, and are not to be counted as left over.
    let held = acquire(&tied.one).await?;
    drop(timeout(2 * MOMENT, acquire(&tied.one)).await);
    held.release().await?;
    sleep(2 * MOMENT).await;
    // Listing holders opens a second connection on Redis, which has a task too. That is done before tasks are counted.
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

/// Drops the operation while its traffic with the server is stopped, after each message in either direction.
///
/// # Errors
///
/// Errors of the case.
///
/// # Panics
///
/// If an assertion of the case fails, or if there was no message.
pub async fn at_every_message(
    store: &TestStore,
    what: &str,
    mut case: impl AsyncFnMut(&Pair<'_>) -> Result<()>,
) -> Result<()> {
    let mut pair = Pair::new(store, true, false).await?;
    // The case runs once without interruption, so that messages that only a first use sends are not counted.
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

/// Cuts the connection at each unit of the operation's traffic in turn. Returns the number of cuts.
///
/// # Errors
///
/// Errors of the case.
///
/// # Panics
///
/// If an assertion of the case fails, or if a kind of cut was never made.
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
