//! With the feature `metrics`: what is told to a recorder.
//!
//! A handle of the facade belongs to the recorder that it came from, and to none if there was none. So it is the *keys* that are
//! kept, with their labels and their hash, and each number asks the recorder for its handle anew: a recorder that is installed
//! late, or that has forgotten what was idle, hears all that comes after. We allocate nothing for that; a recorder may.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use ::metrics::{Gauge, IntoF64, Key, Label, Level, Metadata, Recorder, SharedString};
use tokio::time::Instant;

use super::{Outcome, names};
use crate::env::Process;
use crate::error::{LossReason, Result};
use crate::events::has_clock;
use crate::key::QueueKey;
use crate::session::State;

/// The label of a name that was made of no template.
const NO_TEMPLATE: &str = "(none)";
/// The label of all templates beyond the limit.
const OTHER_TEMPLATES: &str = "(other)";
/// The most templates of a recipe that have a label of their own: a program has a few dozen. One that puts what changes into a
/// template would have millions.
const MOST_TEMPLATES: usize = 200;

const METADATA: Metadata<'static> =
    Metadata::new("coordination", Level::INFO, Some("coordination"));

/// The address of the recorder that was told last what the metrics mean.
static INTRODUCED: AtomicUsize = AtomicUsize::new(0);

/// Calls the recorder, if there is one.
fn heard(tell: impl FnOnce(&dyn Recorder)) {
    let told = |recorder: &dyn Recorder| {
        if hears(recorder) {
            introduce(recorder);
            tell(recorder);
        }
    };
    guarded(|| ::metrics::with_recorder(told));
}

/// A panic in the program's recorder is the recorder's: what is released or lost meanwhile must go on.
fn guarded<T: Default>(call: impl FnOnce() -> T) -> T {
    // The hook for panics has told it already.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_default()
}

/// Whether somebody may listen. False if nobody does: then neither a clock nor a label is read.
pub(crate) fn may_be_heard() -> bool {
    guarded(|| ::metrics::with_recorder(hears))
}

/// Whether this is a recorder, and not what the facade calls where none is installed.
fn hears(recorder: &dyn Recorder) -> bool {
    // Whatever has memory of its own is a recorder. What has none may keep all in statics: its handles tell.
    size_of_val(recorder) != 0 || answers(recorder)
}

fn answers(recorder: &dyn Recorder) -> bool {
    struct Asked<'a>(&'a Cell<bool>);

    impl IntoF64 for Asked<'_> {
        fn into_f64(self) -> f64 {
            self.0.set(true);
            1.0
        }
    }

    static BUILD: Key = Key::from_static_parts(names::BUILD, &VERSION);
    let is_asked = Cell::new(false);
    // A handle of nobody does not ask for the value.
    recorder.register_gauge(&BUILD, &METADATA).set(Asked(&is_asked));
    is_asked.get()
}

static VERSION: [Label; 1] = [Label::from_static_parts("version", env!("CARGO_PKG_VERSION"))];

/// Tells a recorder that is new what the metrics mean, and which version this is.
fn introduce(recorder: &dyn Recorder) {
    let address = address(recorder);
    if INTRODUCED.load(Ordering::Relaxed) != address {
        // Before it is called: if it panics, it is not asked to listen again with each number.
        INTRODUCED.store(address, Ordering::Relaxed);
        names::describe(recorder);
        answers(recorder);
    }
}

fn address(recorder: &dyn Recorder) -> usize {
    ptr::from_ref(recorder).cast::<()>().addr()
}

/// What is counted for one session: all of it has the store as a label.
pub(crate) struct Meters {
    store: &'static str,
    process: Process,
    recipes: Cache<&'static str, Cache<Arc<str>, Series>>,
    /// By metric and the values of its labels.
    others: Cache<[&'static str; 3], Key>,
}

/// What was made once, and is kept.
type Cache<K, V> = RwLock<HashMap<K, Arc<V>>>;

/// The keys of one recipe and one template.
struct Series {
    waiting: Key,
    held: Key,
    acquire: Vec<Key>,
    released: Key,
    over_by_loss: Key,
    lost: Vec<Key>,
    /// The recorder that has counters of losses.
    begun: AtomicUsize,
}

const OUTCOMES: [Outcome; 5] =
    [Outcome::Acquired, Outcome::NotFree, Outcome::TimedOut, Outcome::Failed, Outcome::Cancelled];

impl Meters {
    pub(crate) fn new(store: &'static str, process: Process) -> Self {
        Self { store, process, recipes: Cache::default(), others: Cache::default() }
    }

    /// An acquire ended after so long.
    pub(crate) fn acquire_ended(&self, key: &QueueKey, outcome: Outcome, took: Duration) {
        // In a forked child every acquire fails.
        if (outcome == Outcome::Acquired || self.process.is_this()) && may_be_heard() {
            let series = self.series(key);
            let place = OUTCOMES.iter().position(|known| *known == outcome);
            record(series.acquire.get(place.unwrap_or_default()), took);
        }
    }

    /// An acquire waits until what is returned is dropped.
    pub(crate) fn waiting(&self, key: &QueueKey) -> Raised {
        self.raised(|| self.series(key).waiting.clone())
    }

    /// A guard is held until what is returned is lowered.
    pub(crate) fn held(&self, key: &QueueKey) -> Raised {
        self.raised(|| {
            let series = self.series(key);
            series.begin();
            series.held.clone()
        })
    }

    /// A guard was released. `held`, for how long it was held; `None`: the clock could not be read.
    pub(crate) fn released(&self, key: &QueueKey, held: Option<Duration>) {
        if let Some(held) = held
            && may_be_heard()
        {
            record(Some(&self.series(key).released), held);
        }
    }

    /// A guard was lost.
    pub(crate) fn lost(&self, key: &QueueKey, held: Option<Duration>, reason: LossReason) {
        if !may_be_heard() {
            return;
        }
        let series = self.series(key);
        let place = LossReason::ALL.iter().position(|known| *known == reason);
        count(series.lost.get(place.unwrap_or_default()));
        if let Some(held) = held {
            record(Some(&series.over_by_loss), held);
        }
    }

    /// A heartbeat is being sent.
    pub(crate) fn beat(&self) -> Beat<'_> {
        Beat { meters: self, begun: Instant::now(), is_over: false }
    }

    /// A request to the store was answered, or failed.
    pub(crate) fn request<T>(&self, operation: &'static str, outcome: &Result<T>) {
        if !may_be_heard() {
            return;
        }
        let operation_is =
            |metric| self.other([metric, operation, ""], || vec![("operation", operation.into())]);
        count(Some(&operation_is(names::REQUESTS)));
        if let Err(error) = outcome {
            let kind = error.kind().as_str();
            let labels = || vec![("operation", operation.into()), ("kind", kind.into())];
            count(Some(&self.other([names::ERRORS, operation, kind], labels)));
        }
    }

    fn raised(&self, key: impl FnOnce() -> Key) -> Raised {
        let mut gauge = None;
        if may_be_heard() {
            let key = key();
            heard(|recorder| {
                let raised = recorder.register_gauge(&key, &METADATA);
                raised.increment(1.0);
                gauge = Some(raised);
            });
        }
        Raised { gauge, process: self.process, is_lowered: AtomicBool::new(false) }
    }

    fn series(&self, key: &QueueKey) -> Arc<Series> {
        let of_recipe = cached(&self.recipes, &key.kind(), || key.kind(), RwLock::default);
        let template = key.template().unwrap_or(NO_TEMPLATE);
        if let Some(series) = read(&of_recipe).get(template) {
            return Arc::clone(series);
        }
        let is_full = read(&of_recipe).len() >= MOST_TEMPLATES;
        let template: Arc<str> = if is_full { OTHER_TEMPLATES } else { template }.into();
        let make = || Series::new(key.kind(), &template, self.store);
        cached(&of_recipe, &*template, || Arc::clone(&template), make)
    }

    /// The key of a metric that knows no recipe.
    fn other(
        &self,
        id: [&'static str; 3],
        labels: impl FnOnce() -> Vec<(&'static str, SharedString)>,
    ) -> Arc<Key> {
        let make = || {
            let mut labels = labels();
            labels.push(("store", self.store.into()));
            retained(id[0], labels)
        };
        cached(&self.others, &id, || id, make)
    }
}

impl Series {
    fn new(recipe: &'static str, template: &Arc<str>, store: &'static str) -> Self {
        let key = |metric, more: Option<(&'static str, &'static str)>| {
            let mut labels = vec![
                ("recipe", recipe.into()),
                ("template", SharedString::from_shared(Arc::clone(template))),
                ("store", store.into()),
            ];
            labels.extend(more.map(|(label, value)| (label, value.into())));
            retained(metric, labels)
        };
        let acquire = |outcome| key(names::ACQUIRE, Some(("outcome", text_of(outcome))));
        let lost = |reason: LossReason| key(names::LOST, Some(("reason", reason.as_str())));
        Self {
            waiting: key(names::WAITING, None),
            held: key(names::HELD, None),
            acquire: OUTCOMES.into_iter().map(acquire).collect(),
            released: key(names::HOLD, Some(("outcome", "released"))),
            over_by_loss: key(names::HOLD, Some(("outcome", "lost"))),
            lost: LossReason::ALL.into_iter().map(lost).collect(),
            begun: AtomicUsize::new(0),
        }
    }

    /// Begins to count losses, at zero: Prometheus sees no increase in a counter that begins at one.
    fn begin(&self) {
        heard(|recorder| {
            let address = address(recorder);
            if self.begun.swap(address, Ordering::Relaxed) != address {
                for key in &self.lost {
                    recorder.register_counter(key, &METADATA).increment(0);
                }
            }
        });
    }
}

/// One more in a gauge, until it is [`lower`](Self::lower)ed or dropped.
pub(crate) struct Raised {
    /// Where it was raised; `None`: nobody listened then.
    gauge: Option<Gauge>,
    process: Process,
    is_lowered: AtomicBool,
}

impl Raised {
    /// Whether somebody may listen to its end. Asks no recorder: this is called before the store is told of a release, which must
    /// not wait for the program's own code.
    pub(crate) fn may_be_heard(&self) -> bool {
        let has_memory = |recorder: &dyn Recorder| size_of_val(recorder) != 0;
        self.gauge.is_some() || guarded(|| ::metrics::with_recorder(has_memory))
    }

    /// Takes the one away again. Of several calls the first one does.
    pub(crate) fn lower(&self) {
        if let Some(gauge) = &self.gauge
            && !self.is_lowered.swap(true, Ordering::Relaxed)
        {
            guarded(|| gauge.decrement(1.0));
        }
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        if self.gauge.is_some() {
            if self.process.is_this() {
                self.lower();
                let gauge = self.gauge.take();
                guarded(|| drop(gauge));
            } else {
                // A handle's own drop may wait for what only the parent has.
                std::mem::forget(self.gauge.take());
            }
        }
    }
}

/// A heartbeat, from its sending on. If it is dropped before its end, it was cut off.
pub(crate) struct Beat<'a> {
    meters: &'a Meters,
    begun: Instant,
    is_over: bool,
}

impl Beat<'_> {
    pub(crate) fn ended(mut self, outcome: &Result<()>) {
        self.over(match outcome {
            Ok(()) => "confirmed",
            Err(error) if error.loss_reason().is_some() => "lost",
            Err(_) => "failed",
        });
    }

    fn over(&mut self, outcome: &'static str) {
        if !std::mem::replace(&mut self.is_over, true) && may_be_heard() && has_clock() {
            let labels = || vec![("outcome", outcome.into())];
            let key = self.meters.other([names::HEARTBEAT, outcome, ""], labels);
            record(Some(&key), self.begun.elapsed());
        }
    }
}

impl Drop for Beat<'_> {
    fn drop(&mut self) {
        self.over("cut_off");
    }
}

/// The state of a session, as the gauge of sessions shows it.
#[derive(Default)]
pub(crate) struct SessionGauge(Mutex<Option<(State, Raised)>>);

impl SessionGauge {
    /// Shows this state from now on. Called with each heartbeat, so that a recorder which came late hears of the session too.
    pub(crate) fn show(&self, meters: &Meters, state: State) {
        let shown = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = shown().take();
        let now = match before {
            Some((same, raised)) if same == state && raised.gauge.is_some() => {
                // What is never touched may be forgotten by the recorder.
                guarded(|| raised.gauge.iter().for_each(|gauge| gauge.increment(0.0)));
                Some((same, raised))
            }
            before => {
                drop(before);
                let labels = |text: &'static str| move || vec![("state", text.into())];
                let key = |text| meters.other([names::SESSIONS, text, ""], labels(text));
                let raise = |text| (state, meters.raised(|| (*key(text)).clone()));
                state_of(state).map(raise)
            }
        };
        *shown() = now;
    }
}

fn record(key: Option<&Key>, time: Duration) {
    let Some(key) = key else { return };
    heard(|recorder| recorder.register_histogram(key, &METADATA).record(time));
}

fn count(key: Option<&Key>) {
    let Some(key) = key else { return };
    heard(|recorder| recorder.register_counter(key, &METADATA).increment(1));
}

/// A key whose clones allocate nothing.
fn retained(metric: &'static str, labels: Vec<(&'static str, SharedString)>) -> Key {
    let label = |(name, value): (&'static str, SharedString)| Label::new(name, value);
    let labels: Vec<_> = labels.into_iter().map(label).collect();
    Key::from_parts(metric, labels).to_retained()
}

fn cached<K, Q, V>(
    cache: &Cache<K, V>,
    id: &Q,
    key: impl FnOnce() -> K,
    make: impl FnOnce() -> V,
) -> Arc<V>
where
    K: Hash + Eq + std::borrow::Borrow<Q>,
    Q: Hash + Eq + ?Sized,
{
    if let Some(found) = read(cache).get(id) {
        return Arc::clone(found);
    }
    let mut cache = cache.write().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(cache.entry(key()).or_insert_with(|| Arc::new(make())))
}

fn read<K, V>(cache: &Cache<K, V>) -> std::sync::RwLockReadGuard<'_, HashMap<K, Arc<V>>> {
    cache.read().unwrap_or_else(PoisonError::into_inner)
}

fn text_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Acquired => "acquired",
        Outcome::NotFree => "not_free",
        Outcome::TimedOut => "timed_out",
        Outcome::Failed => "failed",
        Outcome::Cancelled => "cancelled",
    }
}

/// `None`: the session of a coordinator that was stopped is not shown.
fn state_of(state: State) -> Option<&'static str> {
    match state {
        State::Connected => Some("connected"),
        State::Suspended => Some("suspended"),
        State::Lost(_) => Some("lost"),
        State::Closed => None,
    }
}
