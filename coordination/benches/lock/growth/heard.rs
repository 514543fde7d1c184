//! What the library tells a recorder of metrics: how long heartbeats take.
//!
//! It tells of requests, too, but not of those within a wait: how many there are is asked of the server.

#[cfg(not(feature = "metrics"))]
pub(super) fn install() -> crate::Outcome {
    Ok(())
}

/// Microseconds of each heartbeat since this was asked before.
#[cfg(not(feature = "metrics"))]
pub(super) fn take() -> Vec<f64> {
    Vec::new()
}

#[cfg(feature = "metrics")]
pub(super) use with_metrics::{install, take};

#[cfg(feature = "metrics")]
mod with_metrics {
    use std::mem;
    use std::sync::{Arc, Mutex, OnceLock, PoisonError};

    use metrics::{
        Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString,
        Unit,
    };

    use crate::Outcome;

    static RECORDING: OnceLock<Recording> = OnceLock::new();

    #[derive(Clone, Default)]
    struct Recording {
        heartbeats: Arc<Times>,
    }

    #[derive(Default)]
    struct Times(Mutex<Vec<f64>>);

    impl HistogramFn for Times {
        fn record(&self, seconds: f64) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(seconds * 1e6);
        }
    }

    impl Recorder for Recording {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::noop()
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            match key.name() {
                "coordination_heartbeat_seconds" if has(key, "outcome", "confirmed") => {
                    Histogram::from_arc(Arc::clone(&self.heartbeats))
                }
                _ => Histogram::noop(),
            }
        }
    }

    fn has(key: &Key, label: &str, value: &str) -> bool {
        key.labels().any(|it| it.key() == label && it.value() == value)
    }

    pub(in super::super) fn install() -> Outcome {
        Ok(metrics::set_global_recorder(RECORDING.get_or_init(Recording::default).clone())?)
    }

    pub(in super::super) fn take() -> Vec<f64> {
        let Some(Recording { heartbeats }) = RECORDING.get() else { return Vec::new() };
        mem::take(&mut *heartbeats.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
