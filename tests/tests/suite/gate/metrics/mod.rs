//! What the library reports to a metrics recorder, read from the text that Prometheus would scrape from it.

mod attacked;
mod dashboard;
mod gauges;
mod opentelemetry;
mod page;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use coordination::{Coordinator, Error, panics, synchronized};
use metrics::LocalRecorderGuard;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use tokio::time::sleep;

use self::page::Page;

type Result<T = (), E = Error> = std::result::Result<T, E>;

const SECOND: Duration = Duration::from_secs(1);

/// A recorder that writes its metrics as the text that Prometheus scrapes.
fn recorder() -> PrometheusRecorder {
    let builder = PrometheusBuilder::new().set_buckets(&[0.001, 0.01, 0.1, 1.0, 10.0]);
    builder.expect("there are bounds").build_recorder()
}

/// Sends this thread's metrics to `recorder` until the guard is dropped. With the memory store, this thread does all
/// the work, so these are all metrics.
fn listen(recorder: &PrometheusRecorder) -> LocalRecorderGuard<'_> {
    metrics::set_default_local_recorder(recorder)
}

/// The text of a scrape, and the types, descriptions and samples that it contains.
#[derive(Debug, Default)]
struct Scrape {
    text: String,
    /// The type of each metric, by the name that stands in its `# TYPE` line.
    types: BTreeMap<String, String>,
    described: BTreeSet<String>,
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    /// The name in the metric's `# TYPE` line: without `_bucket`, `_sum` or `_count`.
    metric: String,
    /// The name in the sample's own line, which may end in `_bucket`, `_sum` or `_count`.
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Scrape {
    fn of(recorder: &PrometheusRecorder) -> Self {
        Self::parse(recorder.handle().render())
    }

    fn parse(text: String) -> Self {
        let mut scrape = Self::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let words: Vec<_> = line.splitn(4, ' ').collect();
            match words[..] {
                ["#", "TYPE", name, kind] => {
                    scrape.types.insert(name.to_owned(), kind.to_owned());
                }
                ["#", "HELP", name, _] => drop(scrape.described.insert(name.to_owned())),
                _ => scrape.samples.push(Sample::parse(line, &scrape.types)),
            }
        }
        Self { text, ..scrape }
    }

    /// The sum of all samples of this name that have these labels.
    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |sample: &&Sample| {
            labels
                .iter()
                .all(|(label, value)| sample.labels.get(*label).is_some_and(|is| is == value))
        };
        let of_name = self.samples.iter().filter(|sample| sample.name == name);
        of_name.filter(has).map(|sample| sample.value).sum()
    }

    /// All values that this label has in any sample.
    fn values(&self, label: &str) -> BTreeSet<&str> {
        self.samples
            .iter()
            .filter_map(|sample| sample.labels.get(label))
            .map(|value| &**value)
            .collect()
    }
}

impl Sample {
    fn parse(line: &str, types: &BTreeMap<String, String>) -> Self {
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty());
        let label = |label: &str| {
            let (name, value) = label.split_once("=\"").expect("a label");
            (name.to_owned(), value.trim_end_matches('"').to_owned())
        };
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let metric = base.filter(|base| types.contains_key(*base)).unwrap_or(name).to_owned();
        let value = value.parse().expect("a number");
        Self { metric, name: name.to_owned(), labels: labels.map(label).collect(), value }
    }
}

async fn connect(store: &str, member: &str) -> Result<Coordinator> {
    let settings = Coordinator::builder().member_id(member).heartbeat(SECOND);
    settings.connect(&format!("memory://metrics-{store}")).await
}

#[synchronized("vol-<id>", coordinator = coordinator)]
async fn resize(coordinator: &Coordinator, id: u32) -> Result {
    sleep(2 * SECOND).await;
    Ok(())
}

/// Does to some locks everything that the metrics count, and lets a heartbeat fail. Returns the coordinators, which
/// are still connected.
async fn life(store: &str) -> Result<Vec<Coordinator>> {
    let (one, other) = (connect(store, "one").await?, connect(store, "other").await?);
    let (resized, waited) = tokio::join!(resize(&one, 7), async {
        sleep(SECOND / 10).await;
        let lock = other.lock("vol-7")?;
        lock.acquire(Some(SECOND)).await.expect_err("it is held");
        assert!(lock.try_acquire().await?.is_none());
        let cancelled = tokio::time::timeout(SECOND / 10, lock.acquire(None));
        assert!(cancelled.await.is_err(), "it is held");
        lock.acquire(None).await
    });
    resized?;
    let waited = waited?;
    one.lock("vol-7")?.break_lock().await?.expect("it is held");
    waited.lost().await;
    // A heartbeat fails.
    panics::arm("renew");
    sleep(3 * SECOND).await;
    Ok(vec![one, other])
}

#[tokio::test(start_paused = true)]
async fn a_scrape_has_what_the_page_names_and_nothing_else() -> Result {
    let recorder = recorder();
    let _listening = listen(&recorder);
    let coordinators = life("page").await?;
    let scrape = Scrape::of(&recorder);
    let page = Page::read();
    let scraped: BTreeMap<_, _> =
        scrape.types.iter().map(|(name, kind)| (name.as_str(), kind.as_str())).collect();
    assert_eq!(scraped, page.types(), "{}", scrape.text);
    for (metric, labels) in page.labels() {
        let samples = || scrape.samples.iter().filter(|sample| sample.metric == metric);
        assert!(scrape.described.contains(metric), "{metric} is not described");
        assert!(samples().count() > 0, "{metric} has no sample");
        for sample in samples() {
            let has = sample.labels.keys().map(String::as_str).filter(|label| *label != "le");
            assert_eq!(has.collect::<BTreeSet<_>>(), labels, "{metric}");
            for (label, value) in sample.labels.iter().filter(|(label, _)| *label != "le") {
                assert!(page.knows(metric, label, value), "{metric}: {label}={value:?}");
            }
        }
    }
    drop(coordinators);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_scrape_tells_what_became_of_a_lock() -> Result {
    let recorder = recorder();
    let _listening = listen(&recorder);
    let coordinators = life("life").await?;
    let scrape = Scrape::of(&recorder);
    let lock = |template, more: &[(&'static str, &'static str)]| {
        let mut labels = vec![("recipe", "lock"), ("template", template), ("store", "memory")];
        labels.extend(more);
        labels
    };
    let sum = |name: &str, labels: &[(&str, &str)]| scrape.sum(name, labels);
    let acquired = |template, outcome| {
        sum("coordination_acquire_seconds_count", &lock(template, &[("outcome", outcome)]))
    };
    assert_eq!(acquired("vol-<id>", "acquired"), 1.0, "{}", scrape.text);
    for outcome in ["acquired", "timed_out", "not_free", "cancelled"] {
        assert_eq!(acquired("(none)", outcome), 1.0, "{outcome}\n{}", scrape.text);
    }
    let waited = lock("(none)", &[("outcome", "timed_out")]);
    let waited = sum("coordination_acquire_seconds_sum", &waited);
    assert!((0.9..=1.1).contains(&waited), "{waited}");
    let held = sum("coordination_hold_seconds_sum", &lock("vol-<id>", &[("outcome", "released")]));
    assert!((1.9..=2.1).contains(&held), "{held}");
    let lost = lock("(none)", &[("reason", "entry_deleted")]);
    assert_eq!(sum("coordination_lost_total", &lost), 1.0, "{}", scrape.text);
    assert_eq!(sum("coordination_lost_total", &[]), 1.0, "{}", scrape.text);
    // Prometheus sees no increase if a counter appears with the value one. So each of the seven reasons has a
    // counter, which is zero at first.
    assert_eq!(scrape.values("reason").len(), 7, "{}", scrape.text);
    assert_eq!(
        sum("coordination_hold_seconds_count", &lock("(none)", &[("outcome", "lost")])),
        1.0
    );
    assert_eq!(sum("coordination_heartbeat_seconds_count", &[("outcome", "failed")]), 1.0);
    let failed = [("operation", "renew"), ("kind", "unavailable"), ("store", "memory")];
    assert_eq!(sum("coordination_store_errors_total", &failed), 1.0, "{}", scrape.text);
    let connected = [("state", "connected"), ("store", "memory")];
    assert_eq!(sum("coordination_sessions", &connected), 2.0, "{}", scrape.text);
    assert_eq!(sum("coordination_sessions", &[]), 2.0, "{}", scrape.text);
    drop(coordinators);
    Ok(())
}
