//! What the service says of itself: health, metrics, settings, hand-overs, problems.

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use coordination::State as SessionState;
use serde_json::json;

use crate::auth::Right;
use crate::kind::Kind;
use crate::metrics;
use crate::openapi;
use crate::problem::{Code, Problem, explained};
use crate::reply::{json, principal, rest};
use crate::service::{Phase, Service, Shared};
use crate::text::{self, millis};

/// `GET /livez`: the loop turns.
pub(crate) async fn live() -> &'static str {
    "ok\n"
}

/// `GET /readyz`
pub(crate) async fn ready(State(service): State<Shared>) -> Response {
    match why_not(&service) {
        None => json(StatusCode::OK, &json!({ "ready": true })),
        Some(why) => json(StatusCode::SERVICE_UNAVAILABLE, &json!({ "ready": false, "why": why })),
    }
}

/// Why nothing would be granted at this moment.
fn why_not(service: &Service) -> Option<&'static str> {
    if service.phase() != Phase::Serving {
        return Some("draining");
    }
    match service.session.borrow().as_ref().map(|session| session.state) {
        None => Some("starting"),
        Some(SessionState::Connected) => None,
        Some(_) => Some("store-away"),
    }
}

/// The session's state in a word.
pub(super) fn state(service: &Service) -> &'static str {
    match service.session.borrow().as_ref().map(|session| session.state) {
        None => "starting",
        Some(SessionState::Connected) => "connected",
        Some(SessionState::Suspended) => "suspended",
        Some(SessionState::Closed) => "closed",
        Some(_) => "lost",
    }
}

/// `GET /v1/info`
pub(super) async fn info(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let since = service.session.borrow().as_ref().map(|session| millis(session.since.elapsed()));
    let limits = service.settings.limits;
    Ok(json(
        StatusCode::OK,
        &json!({
            "version": env!("CARGO_PKG_VERSION"), "instance": service.tag,
            "store": {
                "scheme": service.scheme, "state": state(&service), "since_ms": since,
                "covered_lease_ms": service.cover.longest().map(millis),
            },
            "principal": who.name, "rights": who.rights(),
            "draining": service.phase() != Phase::Serving,
            "limits": {
                "connections": limits.connections, "waits": limits.waits.0, "waits_of_one": limits.waits.1,
                "holds": limits.holds.0, "holds_of_one": limits.holds.1, "streams": limits.streams,
            },
            "routes": *openapi::PATHS,
        }),
    ))
}

/// `GET /v1/history?kind=&name=`
pub(super) async fn history(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let query = text::query(request.uri().query());
    let given = |wanted: &str| query.iter().find(|(key, _)| key == wanted).map(|(_, text)| text);
    let unknown = || Problem::new(Code::Invalid, "`kind` is a word such as `lock`");
    let kind = match given("kind") {
        Some(word) => Kind::of(word).ok_or_else(unknown)?,
        None => Kind::Lock,
    };
    let name = given("name")
        .ok_or_else(|| Problem::new(Code::Invalid, "say by ?name= whose hand-overs are meant"))?;
    principal(&request)?.needs(Right::Read, name)?;
    let rows = service.history.of(kind, name);
    Ok(json(StatusCode::OK, &json!({ "kind": kind.text(), "name": name, "history": rows })))
}

/// `GET /metrics`
pub(super) async fn metrics(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    if !principal(&request)?.may_everywhere(Right::Read) {
        return Err(
            Problem::new(Code::Forbidden, "metrics are of all names").with("needs", "read on *")
        );
    }
    Ok(scraped(State(service)).await)
}

/// The same for whoever asks where there is nothing else.
pub(super) async fn scraped(State(service): State<Shared>) -> Response {
    let age = service.mirror.age(&Kind::ALL).map_or(0.0, |age| age.as_secs_f64());
    let number = |count: usize| u32::try_from(count).map_or(f64::INFINITY, f64::from);
    metrics::streams(number(service.mirror.watchers()));
    metrics::mirror_age(age);
    let text = metrics::text();
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// `GET /problems/{code}`
pub(super) async fn problem(request: Request) -> Result<Response, Problem> {
    let unknown = || Problem::new(Code::NoSuchRoute, "there is no such code");
    let known = explained(rest(&request, "/problems/")).ok_or_else(unknown)?;
    Ok(json(StatusCode::OK, &known))
}
