//! What a request is about: the queue, the body, and the query.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::Request;
use axum::response::Response;
use coordination::{WorkLimits, WorkQueue};
use serde::de::DeserializeOwned;

use crate::around::Noted;
use crate::auth::{Principal, Right};
use crate::problem::{Code, Problem};
use crate::reply::principal;
use crate::service::Shared;
use crate::text;

/// The most bytes of a body: a post of the largest messages, and what is written around them.
pub(super) const LONGEST_BODY: usize = 512 * 1024;
/// The longest name of a queue.
const LONGEST_NAME: usize = 64;

/// A queue that a request is about.
pub(super) struct Asked {
    pub(super) queue: WorkQueue,
    reading: Reading,
    /// Who asks.
    who: Arc<Principal>,
    /// Its name in the path.
    pub(super) shown: String,
    /// Its name at the store, for the log.
    name: String,
}

/// A request that may read much, which the queue keeps for the next one; when this is dropped, all queues together keep no more
/// than they may.
struct Reading(Shared);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.queues.trim();
    }
}

impl Asked {
    /// The queue of this name in the caller's project, if the caller has this right to it.
    pub(super) fn of(
        service: &Shared,
        request: &Request,
        shown: String,
        right: Right,
    ) -> Result<Self, Problem> {
        let project =
            request.headers().get("x-project-id").and_then(|project| project.to_str().ok());
        let is_good = |project: &&str| !project.is_empty() && !project.contains('/');
        let project = project.filter(is_good).ok_or_else(|| {
            Problem::new(Code::Invalid, "`X-Project-Id` is wanted, a word without a slash")
        })?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if !(1..=LONGEST_NAME).contains(&shown.len()) || !shown.bytes().all(is_name) {
            let why = "a queue's name has 1 to 64 letters, digits, `-` and `_`";
            return Err(Problem::new(Code::Name, why));
        }
        let name = format!("zaqar/{project}/{shown}");
        text::checked(&name)?;
        let who = principal(request)?;
        who.needs(right, &name)?;
        let queue = service.queues.queue(&service.coordinator()?, &name)?;
        let (queue, reading) =
            (queue.with_limits(WorkLimits::zaqar()), Reading(Arc::clone(service)));
        Ok(Self { queue, reading, who, shown, name })
    }

    /// The queue is followed from now on, as the caller has claimed from it or posted to it: who only looks has no need of that.
    pub(super) fn keep(&self) {
        self.reading.0.queues.keep(&self.who.name, &self.name, &self.queue);
    }

    pub(super) fn noted(self, mut response: Response) -> Response {
        response.extensions_mut().insert(Noted { name: Some(self.name), ..Noted::default() });
        response
    }
}

/// Reads a body as one JSON object; an empty one is `{}`.
pub(super) fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, Problem> {
    let body = body.trim_ascii();
    let body = if body.is_empty() { b"{}" } else { body };
    // A list would be read as the fields in their order.
    let parsed = match body.starts_with(b"{") {
        true => serde_json::from_slice(body),
        false => serde_json::from_slice("an object".as_bytes()),
    };
    // Where it is, but not what: a body may have a secret in it.
    parsed.map_err(|error| {
        let at = format!("line {}, column {}", error.line(), error.column());
        Problem::new(Code::Invalid, format!("the body is not the JSON object that is wanted: {at}"))
    })
}

/// Whole seconds as they are given.
pub(super) fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// What a query says once; an error where it says something that is not known.
pub(super) fn query(request: &Request, known: &[&str]) -> Result<Vec<(String, String)>, Problem> {
    let query = text::query(request.uri().query());
    match query.iter().find(|(key, _)| !known.contains(&key.as_str())) {
        None => Ok(query),
        Some(_) => {
            let known = known.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
            Err(Problem::new(Code::Invalid, format!("known are {known}")))
        }
    }
}

/// A number in a query, if there is one.
pub(super) fn number(query: &[(String, String)], key: &str) -> Result<Option<usize>, Problem> {
    let given = query.iter().find(|(known, _)| known == key);
    let wrong = |_| Problem::new(Code::Invalid, format!("`{key}` is a whole number"));
    given.map(|(_, text)| text.parse().map_err(wrong)).transpose()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Terms {
        ttl: Option<u64>,
        grace: Option<u64>,
    }

    #[test]
    fn a_body_is_an_object() {
        let read = |body: &'static str| read::<Terms>(&Bytes::from_static(body.as_bytes()));
        let terms = |body| read(body).map(|terms| (terms.ttl, terms.grace)).ok();
        assert_eq!(terms(" \n"), Some((None, None)));
        assert_eq!(terms("{\"ttl\":60,\"grace\":null}"), Some((Some(60), None)));
        for wrong in
            ["[", "[]", ".", "\"fail\"", "null", "{\"ttl\":-1}", "{\"ttl\":1.5}", "{\"ttl\":\"1\"}"]
        {
            assert_eq!(terms(wrong), None, "{wrong}");
        }
    }
}
