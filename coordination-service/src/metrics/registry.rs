//! Numbers by their names and labels, and their OpenMetrics text.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

/// The bounds of the histograms, in seconds.
const BOUNDS: [f64; 10] = [0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0, 3_600.0];

/// All numbers of the process. Nothing in it is ever removed: labels have few values.
#[derive(Default)]
pub(super) struct Registry {
    numbers: Mutex<HashMap<Key, Number>>,
    /// By the metric's name.
    meanings: Mutex<BTreeMap<String, SharedString>>,
}

#[derive(Clone)]
enum Number {
    Counter(Arc<AtomicU64>),
    /// The bits of an `f64`.
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<Times>),
}

#[derive(Default)]
struct Times(Mutex<Distribution>);

#[derive(Clone, Default)]
struct Distribution {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    fn number(&self, key: &Key, make: fn() -> Number) -> Number {
        let mut numbers = locked(&self.numbers);
        if let Some(number) = numbers.get(key) {
            return number.clone();
        }
        numbers.entry(key.to_retained()).or_insert_with(make).clone()
    }

    fn describe(&self, name: KeyName, meaning: SharedString) {
        locked(&self.meanings).entry(name.as_str().to_owned()).or_insert(meaning);
    }

    /// All of it, in the order of names and labels.
    pub(super) fn text(&self) -> String {
        let mut families: BTreeMap<String, BTreeMap<String, Number>> = BTreeMap::new();
        for (key, number) in &*locked(&self.numbers) {
            let family = families.entry(key.name().to_owned()).or_default();
            family.insert(labels_of(key), number.clone());
        }
        let meanings = locked(&self.meanings);
        let mut text = String::new();
        for (name, numbers) in &families {
            let meaning = meanings.get(name).map_or("", |meaning| meaning.as_ref());
            let kind = numbers.values().next().map_or("unknown", Number::kind);
            // A counter's family is called without the ending of its sample.
            let family = name.strip_suffix("_total").unwrap_or(name);
            let _ = writeln!(text, "# TYPE {family} {kind}\n# HELP {family} {meaning}");
            for (labels, number) in numbers {
                number.write(&mut text, name, labels);
            }
        }
        text.push_str("# EOF\n");
        text
    }
}

/// As they stand between the brackets.
fn labels_of(key: &Key) -> String {
    let label = |label: &::metrics::Label| {
        let value = label.value().replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        format!("{}=\"{value}\"", label.key())
    };
    key.labels().map(label).collect::<Vec<_>>().join(",")
}

impl Number {
    fn kind(&self) -> &'static str {
        match self {
            Self::Counter(_) => "counter",
            Self::Gauge(_) => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }

    fn write(&self, text: &mut String, name: &str, labels: &str) {
        let series =
            if labels.is_empty() { name.to_owned() } else { format!("{name}{{{labels}}}") };
        let _ = match self {
            Self::Counter(count) => writeln!(text, "{series} {}", count.load(Ordering::Relaxed)),
            Self::Gauge(bits) => {
                writeln!(text, "{series} {}", f64::from_bits(bits.load(Ordering::Relaxed)))
            }
            Self::Histogram(times) => {
                let times = locked(&times.0).clone();
                times.write(text, name, labels);
                Ok(())
            }
        };
    }
}

impl Distribution {
    fn write(&self, text: &mut String, name: &str, labels: &str) {
        let comma = if labels.is_empty() { "" } else { "," };
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS) {
            let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"{bound:?}\"}} {bucket}");
        }
        let Self { count, sum, .. } = self;
        let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "{name}_count{{{labels}}} {count}\n{name}_sum{{{labels}}} {sum}");
    }
}

impl HistogramFn for Times {
    fn record(&self, seconds: f64) {
        let mut times = locked(&self.0);
        for (bucket, bound) in times.buckets.iter_mut().zip(BOUNDS) {
            *bucket += u64::from(seconds <= bound);
        }
        times.count += 1;
        times.sum += seconds;
    }
}

impl Recorder for Registry {
    fn describe_counter(&self, name: KeyName, _unit: Option<Unit>, meaning: SharedString) {
        self.describe(name, meaning);
    }

    fn describe_gauge(&self, name: KeyName, _unit: Option<Unit>, meaning: SharedString) {
        self.describe(name, meaning);
    }

    fn describe_histogram(&self, name: KeyName, _unit: Option<Unit>, meaning: SharedString) {
        self.describe(name, meaning);
    }

    fn register_counter(&self, key: &Key, _metadata: &Metadata<'_>) -> Counter {
        match self.number(key, || Number::Counter(Arc::default())) {
            Number::Counter(count) => Counter::from_arc(count),
            Number::Gauge(_) | Number::Histogram(_) => Counter::noop(),
        }
    }

    fn register_gauge(&self, key: &Key, _metadata: &Metadata<'_>) -> Gauge {
        match self.number(key, || Number::Gauge(Arc::default())) {
            Number::Gauge(bits) => Gauge::from_arc(bits),
            Number::Counter(_) | Number::Histogram(_) => Gauge::noop(),
        }
    }

    fn register_histogram(&self, key: &Key, _metadata: &Metadata<'_>) -> Histogram {
        match self.number(key, || Number::Histogram(Arc::default())) {
            Number::Histogram(times) => Histogram::from_arc(times),
            Number::Counter(_) | Number::Gauge(_) => Histogram::noop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::metrics::{Label, Level};

    const METADATA: Metadata<'static> = Metadata::new("test", Level::INFO, None);

    #[test]
    fn the_text_is_cumulative_and_ends() {
        let registry = Registry::default();
        let key = |name: &'static str, label: &'static str, value: &'static str| {
            Key::from_parts(name, vec![Label::new(label, value)])
        };
        registry.describe_counter("coordination_a_total".into(), None, "What it is.".into());
        let count = registry.register_counter(&key("coordination_a_total", "b", "c"), &METADATA);
        count.increment(2);
        let times = key("coordination_d_seconds", "e", "a\"\\\n");
        registry.register_histogram(&times, &METADATA).record(0.02);
        let gauge = registry.register_gauge(&Key::from_static_name("coordination_f"), &METADATA);
        gauge.increment(3.0);
        gauge.decrement(1.0);
        // A name has one kind.
        registry.register_gauge(&key("coordination_a_total", "b", "c"), &METADATA).set(7.0);
        let text = registry.text();
        for line in [
            "# TYPE coordination_a counter",
            "# HELP coordination_a What it is.",
            r#"coordination_a_total{b="c"} 2"#,
            r#"coordination_d_seconds_bucket{e="a\"\\\n",le="0.005"} 0"#,
            r#"coordination_d_seconds_bucket{e="a\"\\\n",le="0.025"} 1"#,
            r#"coordination_d_seconds_bucket{e="a\"\\\n",le="+Inf"} 1"#,
            r#"coordination_d_seconds_count{e="a\"\\\n"} 1"#,
            "# TYPE coordination_f gauge",
            "coordination_f 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
