//! `If-None-Match`, and `Prefer: wait=N`: who knows how something is waits until it is otherwise.

use std::future::Future;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::time::{Instant, timeout_at};

use super::events::too_many;
use crate::auth::{Principal, Right};
use crate::kind::Kind;
use crate::mirror::Watching;
use crate::problem::Problem;
use crate::service::{Phase, Shared};
use crate::waited::waiting;

/// The longest wait, in seconds.
const LONGEST: u64 = 60;

/// What a client knows, and how long it waits for something else.
pub(super) struct Known {
    tags: Vec<String>,
    /// Until when, and its place among all who follow something.
    waits: Option<(Instant, Watching)>,
}

impl Known {
    /// What these headers say. Who waits for a change of a recipe's names has its rows kept up to date meanwhile.
    pub(super) fn of(
        service: &Shared,
        headers: &HeaderMap,
        kinds: &[Kind],
    ) -> Result<Self, Problem> {
        let tags: Vec<_> =
            words(headers, &header::IF_NONE_MATCH).map(|tag| weak(tag).to_owned()).collect();
        let wait = words(headers, &HeaderName::from_static("prefer")).find_map(wait_of);
        // Who knows it as whatever it is waits for nothing.
        let is_one = !tags.is_empty() && tags.iter().all(|tag| tag != "*");
        let waits = match wait.filter(|_| is_one) {
            Some(wait) => {
                let most = service.settings.limits.streams;
                let watching = service.mirror.watching(most, kinds).ok_or_else(too_many)?;
                Some((Instant::now() + wait, watching))
            }
            None => None,
        };
        Ok(Self { tags, waits })
    }

    /// Whether this is how the client knows it.
    pub(super) fn has(&self, tag: &str) -> bool {
        self.tags.iter().any(|known| known == "*" || known == weak(tag))
    }

    /// Whether the client waits for something else.
    pub(super) fn is_waiting(&self) -> bool {
        self.waits.is_some()
    }

    /// Waits for this; false: the client's time is over.
    ///
    /// # Errors
    ///
    /// [`Code::Draining`](crate::problem::Code::Draining): another instance can be asked how it is. That this one may not see this name
    /// any more.
    pub(super) async fn changed(
        &self,
        service: &Shared,
        (who, name): (&Principal, &str),
        change: impl Future,
    ) -> Result<bool, Problem> {
        let Some((end, _)) = self.waits else { return Ok(false) };
        let mut phases = service.phase.subscribe();
        let may_see = || service.auth.still(who, Right::Read, name);
        tokio::select! {
            biased;
            _ = phases.wait_for(|phase| *phase != Phase::Serving) => Err(Problem::draining()),
            refused = service.auth.refused(may_see) => Err(refused),
            changed = waiting(timeout_at(end, change)) => Ok(changed.is_ok()),
        }
    }
}

/// The answer to who knows it as it is.
pub(super) fn not_modified(tag: &str) -> Response {
    tagged(StatusCode::NOT_MODIFIED.into_response(), tag)
}

pub(super) fn tagged(mut response: Response, tag: &str) -> Response {
    if let Ok(tag) = HeaderValue::from_str(tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// What stands between commas.
fn words<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    let given = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    given.flat_map(|value| value.split(',')).map(str::trim)
}

/// A tag without the mark that it is of what may differ in its bytes.
fn weak(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag)
}

/// A preference that we do not know is none.
fn wait_of(preference: &str) -> Option<Duration> {
    let (name, seconds) = preference.split_once('=')?;
    let seconds: u64 = seconds.trim().trim_matches('"').parse().ok()?;
    let is_good = name.trim().eq_ignore_ascii_case("wait") && (1..=LONGEST).contains(&seconds);
    is_good.then_some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_of_whole_seconds_up_to_a_minute() {
        let of = |text| wait_of(text).map(|wait| wait.as_secs());
        assert_eq!([of("wait=1"), of("Wait=\"60\""), of("wait = 5")], [Some(1), Some(60), Some(5)]);
        for other in ["wait=0", "wait=61", "wait", "wait=-1", "wait=x", "respond-async", "xwait=5"]
        {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
