//! `/v1/values/{name}` and `/v1/counters/{name}`: what all processes share and nobody holds.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use coordination::{Counter, SharedValue, Version};
use serde_json::json;
use serde_json::value::RawValue;

use super::known::{Known, not_modified, tagged};
use super::names::Names;
use crate::around::Noted;
use crate::auth::Right;
use crate::bodies::{body, body_within};
use crate::fields::{Fields, is_shallow};
use crate::finishing::finished;
use crate::keys;
use crate::problem::{Code, Problem};
use crate::reply::{json, principal, rest};
use crate::service::Shared;
use crate::text;

const VALUES: &str = "/v1/values/";
const COUNTERS: &str = "/v1/counters/";
/// The most bytes of a value, with blanks around it.
const LONGEST: usize = 257 * 1024;

/// A value as its text: numbers keep all their digits.
type Value = SharedValue<Box<RawValue>>;

/// The routes of values and counters.
pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/v1/values", get(values))
        .route("/v1/values/{*name}", get(read).put(write).delete(delete))
        .route("/v1/counters", get(counters))
        .route("/v1/counters/{*name}", get(count).post(add))
}

/// What a request says of the version that it expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Any,
    /// There is no value.
    None,
    This(Version),
}

impl Expected {
    fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let wrong = || {
            let why = "`If-Match` takes one version, as `ETag` gave it, and `If-None-Match` takes `*`; give one of them";
            Problem::new(Code::Invalid, why)
        };
        let one = |name| {
            let mut given = headers.get_all(name).iter();
            let (first, more) = (given.next(), given.next());
            let text = first.map(|value| value.to_str().map_err(|_| wrong())).transpose()?;
            if more.is_none() { Ok(text) } else { Err(wrong()) }
        };
        match (one(header::IF_MATCH)?, one(header::IF_NONE_MATCH)?) {
            (None, None) => Ok(Self::Any),
            (None, Some("*")) => Ok(Self::None),
            (Some(tag), None) => {
                let number = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
                let version = number.and_then(|number| serde_json::from_str(number).ok());
                version.map(Self::This).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }
}

fn other_version() -> Problem {
    Problem::new(Code::Version, "nothing was done: read it, and decide again")
}

fn no_value() -> Problem {
    Problem::new(Code::NoSuchValue, "nobody has written it, or it was deleted")
}

/// The answer to a request about this name.
fn noted(mut response: Response, name: String) -> Response {
    response.extensions_mut().insert(Noted { name: Some(name), ..Noted::default() });
    response
}

fn tag(version: Version) -> String {
    format!("\"{version}\"")
}

/// The name in a path, if the caller has this right to it.
fn named(request: &Request, path: &str, right: Right) -> Result<String, Problem> {
    let name = text::name(rest(request, path))?;
    principal(request)?.needs(right, &name)?;
    Ok(name)
}

fn value(service: &Shared, name: &str) -> Result<Value, Problem> {
    Ok(service.coordinator()?.value(name)?)
}

fn counter(service: &Shared, name: &str) -> Result<Counter, Problem> {
    Ok(service.coordinator()?.counter(name)?)
}

/// `GET /v1/values?prefix=&after=&limit=`
async fn values(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let asked = Names::of(&request)?;
    let mut names = service.coordinator()?.values().await?;
    // Promises, for instance, for which nobody can ask.
    names.retain(|name| !name.starts_with(text::OWN));
    Ok(asked.answer(&who, names))
}

/// `GET /v1/counters?prefix=&after=&limit=`
async fn counters(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let asked = Names::of(&request)?;
    Ok(asked.answer(&who, service.coordinator()?.counters().await?))
}

/// `GET /v1/values/{name}`
async fn read(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let (who, name) = (principal(&request)?, named(&request, VALUES, Right::Read)?);
    let known = Known::of(&service, request.headers(), &[])?;
    let value = value(&service, &name)?;
    let (mut watch, mut is_over) = (None, !known.is_waiting());
    let found = loop {
        let found = value.read().await?.ok_or_else(no_value)?;
        let tag = tag(found.version);
        if !known.has(&tag) {
            break found;
        }
        if is_over {
            return Ok(noted(not_modified(&tag), name));
        }
        // What it tells may be what was read before: it is read again.
        let watch = watch.get_or_insert_with(|| value.watch());
        is_over = !known.changed(&service, (&who, &name), watch.next()).await?;
    };
    let kind = [(header::CONTENT_TYPE, "application/json")];
    let response = (StatusCode::OK, kind, found.value.get().to_owned()).into_response();
    Ok(noted(tagged(response, &tag(found.version)), name))
}

/// `PUT /v1/values/{name}`
async fn write(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let name = named(&request, VALUES, Right::Use)?;
    let expected = Expected::of(request.headers())?;
    let body = body_within(&service, request, LONGEST).await?;
    let new = of_body(&body)?;
    let value = value(&service, &name)?;
    let writing = async move {
        match expected {
            Expected::Any => value.set(&new).await.map(Some),
            Expected::None => value.compare_and_set(None, &new).await,
            Expected::This(version) => value.compare_and_set(Some(version), &new).await,
        }
    };
    let version = finished((service.begin_any()?, body), writing).await??;
    let version = version.ok_or_else(other_version)?;
    let status = match expected {
        Expected::None => StatusCode::CREATED,
        Expected::Any | Expected::This(_) => StatusCode::NO_CONTENT,
    };
    Ok(noted(tagged(status.into_response(), &tag(version)), name))
}

/// The value that a body is.
fn of_body(body: &[u8]) -> Result<Box<RawValue>, Problem> {
    let refused = |error: serde_json::Error| {
        let at = format!("line {}, column {}", error.line(), error.column());
        Problem::new(Code::Invalid, format!("the body is not one JSON value: {at}"))
    };
    let value: Box<RawValue> = serde_json::from_slice(body).map_err(refused)?;
    if !is_shallow(value.get()) {
        return Err(Problem::new(Code::Invalid, "the value has more than 32 levels"));
    }
    Ok(value)
}

/// `DELETE /v1/values/{name}`
async fn delete(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let name = named(&request, VALUES, Right::Use)?;
    let value = value(&service, &name)?;
    let is_done = match Expected::of(request.headers())? {
        Expected::Any => value.delete().await?,
        Expected::None => {
            let why = "what is to be deleted has to be there: give `If-Match`, or nothing";
            return Err(Problem::new(Code::Invalid, why));
        }
        Expected::This(version) => {
            let is_done = value.compare_and_delete(version).await?;
            if !is_done && value.read().await?.is_some() {
                return Err(other_version());
            }
            is_done
        }
    };
    if !is_done {
        return Err(no_value());
    }
    Ok(noted(StatusCode::NO_CONTENT.into_response(), name))
}

/// `GET /v1/counters/{name}`
async fn count(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let (who, name) = (principal(&request)?, named(&request, COUNTERS, Right::Read)?);
    let known = Known::of(&service, request.headers(), &[])?;
    let counter = counter(&service, &name)?;
    let mut is_over = !known.is_waiting();
    let (count, tag) = loop {
        let count = counter.read().await?;
        let tag = format!("\"{count}\"");
        if !known.has(&tag) {
            break (count, tag);
        }
        if is_over {
            return Ok(noted(not_modified(&tag), name));
        }
        // It is read again, also when the time is over.
        is_over = !known.changed(&service, (&who, &name), counter.changed(count)).await?;
    };
    let response = json(StatusCode::OK, &json!({ "value": count }));
    Ok(noted(tagged(response, &tag), name))
}

/// `POST /v1/counters/{name}`
async fn add(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let name = named(&request, COUNTERS, Right::Use)?;
    let (who, key) = (principal(&request)?, keys::key(request.headers())?);
    let mut fields = Fields::parse(&body(&service, request).await?)?;
    let amount = fields.signed("add").unwrap_or(1);
    fields.done()?;
    let counter = counter(&service, &name)?;
    let finishing = service.begin()?;
    let adding = async move {
        let _finishing = finishing;
        Ok(counter.add(amount).await?)
    };
    let count = match key {
        Some(key) => {
            let content = keys::content(&["counter", &name, &amount.to_string()]);
            service.keys.settled(&who.name, &key, content, adding).await?
        }
        None => adding.await?,
    };
    Ok(noted(json(StatusCode::OK, &json!({ "value": count })), name))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use axum::http::HeaderValue;
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;

    use super::*;
    use crate::acquire::tests::instance;
    use crate::settings::Cover;
    use crate::v1;

    /// Whatever is stored for clients is listed, and nothing that the service keeps of its own.
    #[tokio::test]
    async fn what_nobody_holds_is_listed() {
        let (service, other) = instance(Cover::Any).await;
        let routes = TowerToHyperService::new(v1::routes(&service));
        let ask = async |path: &str| {
            let asked = Request::builder().uri(path).header("host", "localhost");
            let asked = asked.body(Body::empty()).expect("a request");
            let answer = routes.call(asked).await.expect("an answer");
            assert_eq!(answer.status(), StatusCode::OK, "{path}");
            let text = axum::body::to_bytes(answer.into_body(), 65_536).await.expect("a body");
            serde_json::from_slice::<serde_json::Value>(&text).expect("it is JSON")
        };
        for name in ["a", ".coordination/a"] {
            other.value(name).expect("a name").set(&1).await.expect("memory answers");
        }
        other.counter("b").expect("a name").add(1).await.expect("memory answers");
        let job = other.once_per("c", Duration::from_secs(86_400)).expect("a name");
        assert_eq!(ask("/v1/once/c").await, json!({ "name": "c", "last": null }));
        let claim = job.try_claim().await.expect("memory answers").expect("nobody has claimed it");
        for (path, name) in [("/v1/values", "a"), ("/v1/counters", "b"), ("/v1/once", "c")] {
            assert_eq!(ask(path).await["names"], json!([name]), "{path}");
        }
        let looked = ask("/v1/once/c").await;
        let last = &looked["last"];
        assert_eq!((&last["fence"], &last["open"]), (&claim.token().value().into(), &false.into()));
        assert!(last["due_in_ms"].as_u64().is_some_and(|due| due > 0), "{looked}");
        assert!(claim.give_back().await.expect("memory answers"));
        assert_eq!(ask("/v1/once/c").await["last"]["due_in_ms"], 0);
    }

    fn expected(pairs: &[(header::HeaderName, &str)]) -> Option<Expected> {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_str(value).expect("a header")));
        Expected::of(&HeaderMap::from_iter(pairs)).ok()
    }

    #[test]
    fn a_version_is_expected_in_one_way() {
        let version = serde_json::from_str("17").expect("a version");
        let (same, none) = (header::IF_MATCH, header::IF_NONE_MATCH);
        assert_eq!(expected(&[]), Some(Expected::Any));
        assert_eq!(expected(&[(none.clone(), "*")]), Some(Expected::None));
        assert_eq!(expected(&[(same.clone(), "\"17\"")]), Some(Expected::This(version)));
        for wrong in ["17", "*", "\"x\"", "\"17\", \"18\"", "W/\"17\"", "\"-1\"", ""] {
            assert_eq!(expected(&[(same.clone(), wrong)]), None, "{wrong}");
        }
        assert_eq!(expected(&[(none.clone(), "\"17\"")]), None);
        assert_eq!(expected(&[(same, "\"17\""), (none, "*")]), None);
    }

    #[test]
    fn a_value_keeps_its_digits() {
        let digits = b" {\"n\": 12345678901234567890123} ";
        let kept = of_body(digits).expect("a value");
        assert_eq!(kept.get(), "{\"n\": 12345678901234567890123}");
        let deep = |levels| "[".repeat(levels) + &"]".repeat(levels);
        assert!(of_body(deep(32).as_bytes()).is_ok());
        for wrong in ["", "{", "1 2", "\u{feff}1", &deep(33), &deep(100_000)] {
            assert!(of_body(wrong.as_bytes()).is_err());
        }
    }
}
