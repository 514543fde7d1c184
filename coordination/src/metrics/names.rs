//! Every metric that there is, as `docs/metrics.md` explains them.

use ::metrics::{Recorder, SharedString, Unit};

pub(super) const ACQUIRE: &str = "coordination_acquire_seconds";
pub(super) const HOLD: &str = "coordination_hold_seconds";
pub(super) const HELD: &str = "coordination_held";
pub(super) const WAITING: &str = "coordination_waiting";
pub(super) const LOST: &str = "coordination_lost_total";
pub(super) const HEARTBEAT: &str = "coordination_heartbeat_seconds";
pub(super) const SESSIONS: &str = "coordination_sessions";
pub(super) const REQUESTS: &str = "coordination_store_requests_total";
pub(super) const ERRORS: &str = "coordination_store_errors_total";
pub(super) const BUILD: &str = "coordination_build_info";

const HISTOGRAMS: [(&str, &str); 3] = [
    (ACQUIRE, "How long acquires took, by how they ended."),
    (HOLD, "How long guards were held, by how they ended."),
    (HEARTBEAT, "How long heartbeats of sessions took, by how they ended."),
];

const GAUGES: [(&str, &str); 4] = [
    (HELD, "Guards that are held at this moment."),
    (WAITING, "Acquires that wait at this moment, for another holder or for the store."),
    (SESSIONS, "Sessions by their state; those of coordinators that were stopped do not count."),
    (BUILD, "Always 1; the version of the library is a label."),
];

const COUNTERS: [(&str, &str); 3] = [
    (LOST, "Guards that were lost while they were held."),
    (REQUESTS, "Requests to the store, each try on its own."),
    (ERRORS, "Requests to the store that failed, by the kind of error."),
];

/// Tells a recorder what each metric means.
pub(super) fn describe(recorder: &dyn Recorder) {
    let text = SharedString::const_str;
    for (name, meaning) in HISTOGRAMS {
        recorder.describe_histogram(name.into(), Some(Unit::Seconds), text(meaning));
    }
    for (name, meaning) in GAUGES {
        recorder.describe_gauge(name.into(), None, text(meaning));
    }
    for (name, meaning) in COUNTERS {
        recorder.describe_counter(name.into(), None, text(meaning));
    }
}
