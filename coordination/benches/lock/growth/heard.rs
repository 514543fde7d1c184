//! What the library tells a recorder of metrics: how long heartbeats take, and how many other requests there are.

/// Since it was asked before.
#[derive(Default)]
pub(super) struct Heard {
    /// Microseconds.
    pub(super) heartbeats: Vec<f64>,
    /// Requests to the store that are no heartbeats. `None`: nobody counts them.
    pub(super) requests: Option<u64>,
}

#[cfg(not(feature = "metrics"))]
pub(super) fn install() -> crate::Outcome {
    Ok(())
}

#[cfg(not(feature = "metrics"))]
pub(super) fn take() -> Heard {
    Heard::default()
}

#[cfg(feature = "metrics")]
pub(super) use with_metrics::{install, take};

#[cfg(feature = "metrics")]
mod with_metrics {
    use std::mem;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex, OnceLock, PoisonError};

    use metrics::{
        Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
        SharedString, Unit,
    };

    use super::Heard;
    use crate::Outcome;

    static RECORDING: OnceLock<Recording> = OnceLock::new();

    #[derive(Clone, Default)]
    struct Recording {
        heartbeats: Arc<Times>,
        requests: Arc<Count>,
    }

    #[derive(Default)]
    struct Times(Mutex<Vec<f64>>);

    impl HistogramFn for Times {
        fn record(&self, seconds: f64) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(seconds * 1e6);
        }
    }

    #[derive(Default)]
    struct Count(AtomicU64);

    impl CounterFn for Count {
        fn increment(&self, more: u64) {
            self.0.fetch_add(more, Ordering::Relaxed);
        }

        fn absolute(&self, count: u64) {
            self.0.fetch_max(count, Ordering::Relaxed);
        }
    }

    impl Recorder for Recording {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            match key.name() {
                "coordination_store_requests_total" if !has(key, "operation", "renew") => {
                    Counter::from_arc(Arc::clone(&self.requests))
                }
                _ => Counter::noop(),
            }
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

    pub(in super::super) fn take() -> Heard {
        let Some(Recording { heartbeats, requests }) = RECORDING.get() else {
            return Heard::default();
        };
        let mut times = heartbeats.0.lock().unwrap_or_else(PoisonError::into_inner);
        Heard {
            heartbeats: mem::take(&mut *times),
            requests: Some(requests.0.swap(0, Ordering::Relaxed)),
        }
    }
}
