//! What went wrong, as RFC 9457 has it: a code that never changes its meaning, and a sentence for people.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use coordination::{Effect, Error, ErrorKind};
use serde_json::{Map, Value, json};

/// Codes with their status and title: one line each.
macro_rules! codes {
    ($($name:ident $code:literal $status:literal $title:literal;)*) => {
        /// What a program decides by.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Code { $(#[doc = $title] $name,)* }

        impl Code {
            const ALL: &[Self] = &[$(Self::$name,)*];

            /// The code, the status, and a title.
            fn parts(self) -> (&'static str, u16, &'static str) {
                match self { $(Self::$name => ($code, $status, $title),)* }
            }
        }
    };
}

codes! {
    Invalid "invalid" 400 "The request is not as it should be";
    Name "name" 400 "This name cannot be used";
    Unauthenticated "unauthenticated" 401 "A valid token is missing";
    Forbidden "forbidden" 403 "The caller has no right to this";
    NoSuchRoute "no-such-route" 404 "There is nothing at this path";
    NoSuchHold "no-such-hold" 404 "Nobody holds anything by this id";
    NoSuchValue "no-such-value" 404 "There is no such value";
    GroupMissing "group-missing" 404 "There is no such group";
    Method "method" 405 "This path does not take this method";
    TooSlow "too-slow" 408 "The body did not arrive in time";
    Busy "busy" 409 "Somebody else holds it";
    Broken "broken" 409 "An administrator has taken the place in the queue away";
    Superseded "superseded" 409 "A later request with the same key has taken over";
    Changed "changed" 409 "The grant of that fence is not there any more";
    StandbyFull "standby-full" 409 "All slots are taken, and all places on standby";
    Replaced "replaced" 409 "Somebody who came later stands by in its place";
    MemberExists "member-exists" 409 "The group has a member of this id";
    GroupNotEmpty "group-not-empty" 409 "The group has members";
    Mismatch "mismatch" 409 "The store has other settings under this name";
    Spent "spent" 409 "The job was claimed for this period";
    Ended "ended" 410 "The hold has ended";
    Version "version" 412 "The value has another version";
    TooLarge "too-large" 413 "The body is too large";
    Encoding "encoding" 415 "Bodies are not to be compressed";
    WrongHost "wrong-host" 421 "We are not called by this name";
    WrongInstance "wrong-instance" 421 "Another instance of the service granted this hold";
    KeyReused "key-reused" 422 "The key was used for another request";
    FenceMissing "fence-missing" 428 "Say by `fence` which grant is meant";
    RateLimited "rate-limited" 429 "The rate does not allow it yet";
    TooMany "too-many" 429 "The caller waits for too much or holds too much";
    Internal "internal" 500 "The service failed";
    Corrupt "corrupt" 500 "The store has something that the service did not write";
    Unsupported "unsupported" 501 "This is not built";
    StoreAway "store-away" 503 "The store does not answer";
    InDoubt "in-doubt" 503 "The store's answer was lost";
    Overloaded "overloaded" 503 "The service has too much to do";
    Draining "draining" 503 "The service is about to stop";
}

impl Code {
    /// Its text, as it stands in answers.
    pub(crate) fn text(self) -> &'static str {
        self.parts().0
    }

    /// The status that goes with it.
    pub(crate) fn status(self) -> StatusCode {
        StatusCode::from_u16(self.parts().1).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Timeout => Self::Busy,
            ErrorKind::Lost => Self::Ended,
            ErrorKind::Closed => Self::Draining,
            ErrorKind::Name => Self::Name,
            ErrorKind::Input | ErrorKind::Value => Self::Invalid,
            ErrorKind::GroupMissing => Self::GroupMissing,
            ErrorKind::MemberExists | ErrorKind::AlreadyJoined => Self::MemberExists,
            ErrorKind::NotJoined => Self::Changed,
            ErrorKind::GroupNotEmpty => Self::GroupNotEmpty,
            ErrorKind::Mismatch => Self::Mismatch,
            ErrorKind::Corrupt | ErrorKind::Collision => Self::Corrupt,
            ErrorKind::Unsupported => Self::Unsupported,
            ErrorKind::Unavailable
            | ErrorKind::Refused
            | ErrorKind::Dns
            | ErrorKind::Tls
            | ErrorKind::Auth
            | ErrorKind::Permission
            | ErrorKind::Quota
            | ErrorKind::Storage => match error.effect() {
                Effect::None => Self::StoreAway,
                _ => Self::InDoubt,
            },
            _ => Self::Internal,
        }
    }
}

/// An answer that is not what was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    /// What a program decides by.
    pub(crate) code: Code,
    detail: String,
    fields: Map<String, Value>,
    retry_after: Option<Duration>,
}

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        let retry_after = match code {
            Code::StoreAway | Code::InDoubt | Code::Overloaded | Code::Draining => {
                Some(Duration::from_secs(1))
            }
            _ => None,
        };
        Self { code, detail: detail.into(), fields: Map::new(), retry_after }
    }

    /// Nothing is granted any more.
    pub(crate) fn draining() -> Self {
        Self::new(Code::Draining, "this instance is about to stop and grants nothing more")
    }

    /// With one more field.
    pub(crate) fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(field.to_owned(), value.into());
        self
    }

    /// With its sentence also in the field where Zaqar's clients look for it.
    pub(crate) fn described(self) -> Self {
        let detail = self.detail.clone();
        self.with("description", detail)
    }

    /// With the time after which it may be tried again.
    pub(crate) fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// How a hold ended, or the code.
    pub(crate) fn reason(&self) -> Value {
        self.fields.get("reason").cloned().unwrap_or_else(|| self.code.text().into())
    }

    /// The answer's body, for the request of this id.
    pub(crate) fn text(&self, request: &str) -> String {
        let (code, status, title) = self.code.parts();
        let mut body = json!({
            "type": format!("/problems/{code}"), "title": title, "status": status, "detail": self.detail,
            "code": code, "request": request,
        });
        for (field, value) in &self.fields {
            body[field] = value.clone();
        }
        if let Some(wait) = self.retry_after {
            body["retry_after_ms"] = crate::text::millis(wait).into();
        }
        body.to_string()
    }
}

/// No detail of the library's: that may name servers.
impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let code = Code::of(&error);
        if matches!(code, Code::Internal | Code::Corrupt | Code::StoreAway | Code::InDoubt) {
            tracing::warn!(%error, "a request failed");
        }
        let detail = match code {
            Code::Name | Code::Invalid | Code::Mismatch => error.to_string(),
            code => format!("{} failed: {}", error.operation(), code.parts().2.to_lowercase()),
        };
        let problem = Self::new(code, detail);
        if error.effect() == Effect::Unknown { problem.with("effect", "unknown") } else { problem }
    }
}

/// Without a body: that has the request's id in it, which only `around` knows.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.code.status();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(wait) = self.retry_after {
            headers.insert(
                header::RETRY_AFTER,
                wait.as_millis()
                    .div_ceil(1_000)
                    .max(1)
                    .to_string()
                    .parse()
                    .unwrap_or(HeaderValue::from_static("1")),
            );
        }
        match self.code {
            Code::Unauthenticated => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Code::TooLarge | Code::TooSlow | Code::Draining => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// What a code means, for `GET /problems/{code}`.
pub(crate) fn explained(code: &str) -> Option<Value> {
    let known = Code::ALL.iter().map(|code| code.parts()).find(|parts| parts.0 == code);
    known.map(|(code, status, title)| json!({ "code": code, "status": status, "title": title }))
}
