//! What is counted, as OpenMetrics text. No label has a name, a principal or an address.
//!
//! What the library counts and what only a service has stand in one registry. What waits, what is held, for how long, and how the
//! session is, are the library's: see `docs/metrics.md`.

mod registry;

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use ::metrics::{Key, Label, Level, Metadata, Recorder, SharedString, Unit};

use self::registry::Registry;
use crate::holds::End;
use crate::kind::Kind;

const METADATA: Metadata<'static> =
    Metadata::new("coordination-service", Level::INFO, Some("coordination-service"));

const REQUESTS: &str = "coordination_http_requests_total";
const REQUEST_TIMES: &str = "coordination_http_request_seconds";
const REFUSED: &str = "coordination_refused_total";
const CLIENT_HOLD: &str = "coordination_client_hold_seconds";
const RATE_PERMITS: &str = "coordination_rate_permits_total";
const RELOAD_FAILURES: &str = "coordination_reload_failures_total";
const HANDSHAKE_FAILURES: &str = "coordination_tls_handshake_failures_total";
const ONE_HEARTBEAT: &str = "coordination_lockable_one_heartbeat_total";
const STREAMS: &str = "coordination_event_streams";
const AGE: &str = "coordination_mirror_age_seconds";

/// One for the process, as the facade's recorder is.
static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    let registry = Registry::default();
    let text = SharedString::const_str;
    registry.describe_counter(REQUESTS.into(), None, text("Requests that were answered."));
    let times = text("How long requests were worked on, without what they waited for others.");
    registry.describe_histogram(REQUEST_TIMES.into(), Some(Unit::Seconds), times);
    registry.describe_counter(REFUSED.into(), None, text("Requests that were refused."));
    let hold = text("How long clients had what they were granted, by how that ended.");
    registry.describe_histogram(CLIENT_HOLD.into(), Some(Unit::Seconds), hold);
    let permits = text("Permits of rates that were asked for, by whether they were granted.");
    registry.describe_counter(RATE_PERMITS.into(), None, permits);
    let failures = text("Files that were read again, of tokens or TLS, and were wrong.");
    registry.describe_counter(RELOAD_FAILURES.into(), None, failures);
    let failures =
        text("Connections that were not encrypted: the client broke off or was refused.");
    registry.describe_counter(HANDSHAKE_FAILURES.into(), None, failures);
    let lapsed = text("Leases of lockable.dev's API that ended after their only heartbeat.");
    registry.describe_counter(ONE_HEARTBEAT.into(), None, lapsed);
    registry.describe_gauge(STREAMS.into(), None, text("Streams of events."));
    registry.describe_gauge(AGE.into(), None, text("How old the rows of the page are."));
    registry
});

/// Has the library tell its numbers to the registry, unless the program has a recorder of its own: then these are there.
pub(crate) fn listen() {
    if ::metrics::set_global_recorder(&*REGISTRY).is_err() {
        tracing::debug!("the program has a recorder of metrics: the library's are not on /metrics");
    }
}

/// A request was answered after this time without its waits, or its client had gone: 499.
pub(crate) fn answered(route: &'static str, method: &str, status: u16, time: Duration) {
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let method = known.into_iter().find(|known| *known == method).unwrap_or("other");
    let labels = vec![
        Label::new("route", route),
        Label::new("method", method),
        Label::new("status", status.to_string()),
    ];
    count(Key::from_parts(REQUESTS, labels));
    let labels = vec![Label::new("route", route), Label::new("class", class(status))];
    REGISTRY.register_histogram(&Key::from_parts(REQUEST_TIMES, labels), &METADATA).record(time);
}

/// The class of a status: how it went, without a series for each number.
fn class(status: u16) -> &'static str {
    match status / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        _ => "5xx",
    }
}

/// A request was refused, for this reason.
pub(crate) fn refused(reason: &'static str) {
    count(Key::from_parts(REFUSED, vec![Label::new("reason", reason)]));
}

/// So many permits of a rate were asked for.
pub(crate) fn rate_permits(outcome: &'static str, permits: u32) {
    let key = Key::from_parts(RATE_PERMITS, vec![Label::new("outcome", outcome)]);
    REGISTRY.register_counter(&key, &METADATA).increment(permits.into());
}

/// A hold has ended.
pub(crate) fn ended(kind: Kind, granted: SystemTime, end: End) {
    let time = granted.elapsed().unwrap_or_default();
    let labels = vec![Label::new("kind", kind.text()), Label::new("end", end.text())];
    REGISTRY.register_histogram(&Key::from_parts(CLIENT_HOLD, labels), &METADATA).record(time);
}

/// A file that was to be read again is wrong.
pub(crate) fn reload_failed() {
    count(Key::from_static_name(RELOAD_FAILURES));
}

/// A connection was to be encrypted, and was not.
pub(crate) fn handshake_failed() {
    count(Key::from_static_name(HANDSHAKE_FAILURES));
}

/// A lease of lockable.dev's API has ended after its only heartbeat.
pub(crate) fn one_heartbeat() {
    count(Key::from_static_name(ONE_HEARTBEAT));
}

/// So many streams of events are open.
pub(crate) fn streams(count: f64) {
    REGISTRY.register_gauge(&Key::from_static_name(STREAMS), &METADATA).set(count);
}

/// The rows of the page are so old, in seconds.
pub(crate) fn mirror_age(seconds: f64) {
    REGISTRY.register_gauge(&Key::from_static_name(AGE), &METADATA).set(seconds);
}

/// All of it.
pub(crate) fn text() -> String {
    REGISTRY.text()
}

fn count(key: Key) {
    REGISTRY.register_counter(&key, &METADATA).increment(1);
}
