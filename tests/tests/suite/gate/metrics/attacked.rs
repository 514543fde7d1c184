//! Metrics recorders that panic, have no size, or are installed late; and programs that use ever more names and
//! templates.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use serde_json::json;
use tokio::time::sleep;

use super::{Result, SECOND, Scrape, connect, listen, recorder, resize};

/// A recorder that panics at each call, and counts its panics.
#[derive(Default)]
struct Panics(Arc<AtomicUsize>);

impl Panics {
    fn panic(&self) -> ! {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::panic::resume_unwind(Box::new("a recorder's own fault"));
    }
}

impl Recorder for Panics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        self.panic()
    }
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        self.panic()
    }
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        self.panic()
    }
    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        self.panic()
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        self.panic()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        self.panic()
    }
}

/// A recorder that panics ends neither an acquire, nor a release, nor a heartbeat, nor a drop while another panic
/// unwinds.
#[tokio::test(start_paused = true)]
async fn a_recorder_that_panics_harms_no_lock() -> Result {
    let panics = Panics::default();
    let count = Arc::clone(&panics.0);
    let _listening = metrics::set_default_local_recorder(&panics);
    let (one, other) = (connect("panics", "one").await?, connect("panics", "other").await?);
    let held = one.lock("a")?.acquire(None).await?;
    let lock = other.lock("a")?;
    lock.acquire(Some(SECOND)).await.expect_err("it is held");
    let waiting = tokio::spawn(async move { lock.acquire(None).await });
    sleep(5 * SECOND).await;
    assert!(held.is_held());
    held.release().await?;
    drop(waiting.await.expect("no panic")?);
    let lock = one.lock("a")?;
    let unwinds = tokio::spawn(async move {
        let _held = lock.acquire(None).await.expect("it is free");
        panic!("on purpose");
    });
    assert!(unwinds.await.is_err());
    assert!(other.lock("a")?.try_acquire().await?.is_some());
    resize(&one, 7).await?;
    assert!(count.load(Ordering::SeqCst) > 10, "the recorder was not called");
    one.stop().await?;
    other.stop().await
}

/// A recorder of size zero, which counts in the static `HEARD`. The library has to find out that this recorder does
/// record.
struct WithoutMemory;

static HEARD: AtomicUsize = AtomicUsize::new(0);

struct Hears;

impl metrics::CounterFn for Hears {
    fn increment(&self, value: u64) {
        HEARD.fetch_add(value as usize, Ordering::SeqCst);
    }
    fn absolute(&self, _: u64) {}
}

impl metrics::GaugeFn for Hears {
    fn increment(&self, _: f64) {}
    fn decrement(&self, _: f64) {}
    fn set(&self, _: f64) {}
}

impl metrics::HistogramFn for Hears {
    fn record(&self, _: f64) {}
}

impl Recorder for WithoutMemory {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::new(Hears))
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(Hears))
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Hears))
    }
}

/// The `metrics` crate's own recorder, which drops everything and is in use while no recorder is installed, has size
/// zero too. The library must not take `WithoutMemory` for that recorder.
#[tokio::test(start_paused = true)]
async fn a_recorder_without_memory_of_its_own_hears_too() -> Result {
    let one = connect("without", "one").await?;
    one.lock("a")?.acquire(None).await?.release().await?;
    assert_eq!(HEARD.load(Ordering::SeqCst), 0);
    let _listening = metrics::set_default_local_recorder(&WithoutMemory);
    one.lock("a")?.acquire(None).await?.release().await?;
    assert_eq!(HEARD.load(Ordering::SeqCst), 2, "an acquire and a release");
    one.stop().await
}

/// A lock that was acquired before the recorder was installed is not in its gauges, so the release of this lock does
/// not lower them.
#[tokio::test(start_paused = true)]
async fn a_recorder_that_comes_late_hears_what_comes_after() -> Result {
    let one = connect("late", "one").await?;
    let lock = one.lock("a")?;
    let early = lock.acquire(None).await?;
    let same = lock.clone();
    let waiting = tokio::spawn(async move { same.acquire(None).await });
    sleep(SECOND).await;
    let recorder = recorder();
    let _listening = listen(&recorder);
    early.release().await?;
    let held = waiting.await.expect("no panic")?;
    sleep(2 * SECOND).await;
    let scrape = Scrape::of(&recorder);
    assert_eq!(scrape.sum("coordination_held", &[]), 1.0, "{}", scrape.text);
    assert_eq!(scrape.sum("coordination_waiting", &[]), 0.0, "{}", scrape.text);
    assert_eq!(scrape.sum("coordination_sessions", &[]), 1.0, "{}", scrape.text);
    assert_eq!(scrape.sum("coordination_hold_seconds_count", &[]), 1.0, "{}", scrape.text);
    drop(held);
    one.stop().await?;
    let scrape = Scrape::of(&recorder);
    for gauge in ["coordination_held", "coordination_waiting", "coordination_sessions"] {
        assert_eq!(scrape.sum(gauge, &[]), 0.0, "{gauge}\n{}", scrape.text);
    }
    Ok(())
}

/// A gauge that was raised at one recorder is later lowered at the same recorder, whichever recorder is installed by
/// then.
#[tokio::test(start_paused = true)]
async fn each_recorder_has_its_own_ups_and_downs() -> Result {
    let (first, second) = (recorder(), recorder());
    let held = |recorder| Scrape::of(recorder).sum("coordination_held", &[]);
    let one = connect("two", "one").await?;
    let listening = listen(&first);
    let a = one.lock("a")?.acquire(None).await?;
    drop(listening);
    let listening = listen(&second);
    let b = one.lock("b")?.acquire(None).await?;
    assert_eq!((held(&first), held(&second)), (1.0, 1.0));
    a.release().await?;
    assert_eq!((held(&first), held(&second)), (0.0, 1.0));
    drop(listening);
    b.release().await?;
    assert_eq!((held(&first), held(&second)), (0.0, 0.0));
    one.stop().await
}

/// However many names a program uses, the exporter has few series. Two coordinators on one store are added up in one
/// series.
#[tokio::test(start_paused = true)]
async fn names_and_templates_without_end_are_few_series() -> Result {
    let recorder = recorder();
    let _listening = listen(&recorder);
    let (one, other) = (connect("many", "one").await?, connect("many", "other").await?);
    for nth in 0..50_000 {
        for coordinator in [&one, &other] {
            coordinator.lock(format!("name-{nth}"))?.acquire(None).await?.release().await?;
        }
    }
    let series = |scrape: &Scrape| scrape.text.lines().count();
    let few = Scrape::of(&recorder);
    assert_eq!(few.values("template").into_iter().collect::<Vec<_>>(), ["(none)"]);
    let all = [("outcome", "acquired"), ("template", "(none)")];
    assert_eq!(few.sum("coordination_acquire_seconds_count", &all), 100_000.0);
    assert!(series(&few) < 100, "{}", few.text);
    // The program makes a mistake: it puts the number into the template, so each lock has another template. From some
    // number of templates on, the library counts all further templates as `(other)`.
    for nth in 0..2_000 {
        let lock = one.lock_for(&format!("vol-{nth}-<id>"), &json!({ "id": 7 }))?;
        lock.acquire(None).await?.release().await?;
    }
    let many = Scrape::of(&recorder);
    assert!(many.values("template").len() <= 202, "{}", many.values("template").len());
    let other_templates = [("outcome", "released"), ("template", "(other)")];
    let counted = many.sum("coordination_hold_seconds_count", &other_templates);
    assert!((1_700.0..1_900.0).contains(&counted), "{counted}");
    one.stop().await?;
    other.stop().await
}

/// A template is text of the program, and may contain characters that end a label's text in a scrape. The exporter
/// must escape them.
#[tokio::test(start_paused = true)]
async fn a_template_forges_no_sample() -> Result {
    let recorder = recorder();
    let _listening = listen(&recorder);
    let one = connect("forged", "one").await?;
    let lock = one.lock_for("a\"}} 1\ncoordination_forged{{b=\"<id>", &json!({ "id": 7 }))?;
    lock.acquire(None).await?.release().await?;
    let scrape = Scrape::of(&recorder);
    assert!(!scrape.text.contains("\ncoordination_forged"), "{}", scrape.text);
    one.stop().await
}
