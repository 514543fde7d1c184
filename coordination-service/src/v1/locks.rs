//! `/v1/locks`: acquire, list, look, take away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use coordination::{FencingToken, Recipe};
use serde_json::json;

use super::holds::{ended, shown};
use crate::acquire::{self, Wanted};
use crate::around::{Noted, body};
use crate::auth::Right;
use crate::fields::Fields;
use crate::holds::{End, Found, Hold};
use crate::keys::{self, Asked, Ticket};
use crate::kind::Kind;
use crate::look;
use crate::problem::{Code, Problem};
use crate::reply::{json, principal, rest};
use crate::service::Shared;
use crate::text::{self, millis};

const PATH: &str = "/v1/locks/";
/// The lease of who does not ask for one.
const LEASE: Duration = Duration::from_secs(20);
/// The longest wait, in milliseconds.
const LONGEST_WAIT: u64 = 3_600_000;
/// The shortest lease, in milliseconds.
const SHORTEST_LEASE: u64 = 100;

/// `POST /v1/locks/{name}`
pub(super) async fn acquire(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let name = text::name(rest(&request, PATH))?;
    who.needs(Right::Use, &name)?;
    let key = keys::key(request.headers())?;
    let mut fields = Fields::parse(&body(request).await?)?;
    let asked = Instant::now();
    let longest = millis(acquire::longest_lease(&service, &name));
    let shared = fields.flag("shared").unwrap_or(false);
    let wait = fields.millis("wait_ms", 0..=LONGEST_WAIT).unwrap_or_default();
    let lease = fields.millis("lease_ms", SHORTEST_LEASE..=longest.max(SHORTEST_LEASE));
    let lease = lease.unwrap_or(LEASE.min(Duration::from_millis(longest)));
    let title = fields.title("title").unwrap_or_default();
    fields.done()?;
    let client = who.name.clone();
    let wanted = Wanted { name, shared, wait, lease, title, client };
    let ticket = match key {
        Some(key) => match repeated(&service, &wanted, &key)? {
            Repeated::Of(hold) => return created(&service, &hold, asked, Body::from),
            Repeated::Not(ticket) => Some(ticket),
        },
        None => None,
    };
    let granted = acquire::acquire(&service, wanted, ticket).await?;
    let hold = granted.hold()?.clone();
    created(&service, &hold, asked, |text| granted.body(text))
}

/// What a key makes of a request.
enum Repeated {
    /// It was granted this before.
    Of(Arc<Hold>),
    /// It is new.
    Not(Ticket),
}

fn repeated(service: &Shared, wanted: &Wanted, key: &str) -> Result<Repeated, Problem> {
    let lease = wanted.lease.as_millis().to_string();
    let shared = wanted.shared.to_string();
    let content = keys::content(&[&wanted.name, &lease, &shared, &wanted.title]);
    loop {
        let handle = match service.keys.begin(&wanted.client, key, content) {
            Asked::New(ticket) => return Ok(Repeated::Not(ticket)),
            Asked::Reused => {
                let why = "this key stands for a request of another name or with other fields";
                return Err(Problem::new(Code::KeyReused, why));
            }
            Asked::Granted(handle) => handle,
        };
        match service.holds.find(&handle) {
            Found::Live(hold) => {
                // Before it is looked at: should the first answer be lost now, the hold is there or has visibly ended.
                hold.tell_again();
                return Ok(Repeated::Of(hold));
            }
            // Nobody ever had it, or it is too long ago.
            Found::Ended(_, End::Undelivered) | Found::Unknown => {
                service.keys.forget(&wanted.client, key, &handle);
            }
            Found::Ended(_, end) => return Err(ended(end)),
        }
    }
}

/// The answer to a grant.
fn created(
    service: &Shared,
    hold: &Arc<Hold>,
    asked: Instant,
    body: impl FnOnce(String) -> Body,
) -> Result<Response, Problem> {
    let now = service.holds.now(hold).map_err(ended)?;
    let mut answer = shown(service, hold, &now);
    answer["id"] = hold.id().into();
    answer["took_ms"] = millis(asked.elapsed()).into();
    let mut response = Response::new(body(answer.to_string()));
    *response.status_mut() = StatusCode::CREATED;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/holds/{}", hold.id())) {
        headers.insert(header::LOCATION, location);
    }
    headers.insert("fencing-token", HeaderValue::from(hold.fence));
    response.extensions_mut().insert(Noted::of(hold));
    Ok(response)
}

/// `GET /v1/locks?prefix=&after=&limit=`
pub(super) async fn list(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let (mut prefix, mut after, mut limit) = (String::new(), String::new(), 100);
    for (key, value) in text::query(request.uri().query()) {
        match key.as_str() {
            "prefix" => prefix = value,
            "after" => after = value,
            "limit" => {
                let wrong = || Problem::new(Code::Invalid, "`limit` is 1 to 1,000");
                limit = value
                    .parse()
                    .ok()
                    .filter(|limit| (1..=1_000).contains(limit))
                    .ok_or_else(wrong)?;
            }
            _ => {
                return Err(Problem::new(Code::Invalid, "known are `prefix`, `after` and `limit`"));
            }
        }
    }
    let mut names = service.coordinator()?.in_use(Recipe::Lock).await?;
    names.retain(|name| name.starts_with(&prefix) && *name > after && who.may(Right::Read, name));
    names.sort_unstable();
    let next = (names.len() > limit).then(|| names[limit - 1].clone());
    names.truncate(limit);
    Ok(json(StatusCode::OK, &json!({ "names": names, "next": next })))
}

/// `GET /v1/locks/{name}`
pub(super) async fn look(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let name = text::name(rest(&request, PATH))?;
    principal(&request)?.needs(Right::Read, &name)?;
    let entries = look::entries(&service, &service.coordinator()?, &name).await?;
    Ok(json(StatusCode::OK, &json!({ "kind": "lock", "name": name, "entries": entries })))
}

/// `DELETE /v1/locks/{name}?fence=N`
pub(super) async fn take_away(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let name = text::name(rest(&request, PATH))?;
    who.needs(Right::Admin, &name)?;
    let query = text::query(request.uri().query());
    let given = query.iter().find(|(key, _)| key == "fence");
    let given = given
        .ok_or_else(|| Problem::new(Code::FenceMissing, "say by ?fence=N which grant is meant"))?;
    let fence = given.1.parse().ok().and_then(FencingToken::new);
    let fence =
        fence.ok_or_else(|| Problem::new(Code::Invalid, "a fence is a number of 1 or more"))?;
    let coordinator = service.coordinator()?;
    let before = look::entries(&service, &coordinator, &name).await?;
    let is_meant = |entry: &&serde_json::Value| entry["fence"].as_u64() == Some(fence.value());
    let Some(entry) = before.iter().find(is_meant) else {
        return Err(Problem::new(Code::Changed, "nothing was done").with("entries", before));
    };
    tracing::warn!(name, fence = fence.value(), by = who.name, "taking a lock away");
    let own = service.holds.of_fence(Kind::Lock, &name, fence.value());
    let is_done = match own {
        Some(hold) => match service.holds.give_up(&hold, End::Broken).await {
            Ok(confirmed) => confirmed.map(|()| true)?,
            Err(_) => false,
        },
        None => coordinator.lock(&name)?.break_grant(fence).await?.is_some(),
    };
    if !is_done {
        return Err(Problem::new(Code::Changed, "it ended by itself; nothing was done"));
    }
    // Whoever holds it next is not to wait for what was promised to the one that is gone.
    acquire::forget_promise(&service, &coordinator, &name, fence.value()).await?;
    let mut response = json(StatusCode::OK, &json!({ "broken": entry }));
    let noted = Noted { kind: Some(Kind::Lock), name: Some(name), handle: None };
    response.extensions_mut().insert(noted);
    Ok(response.into_response())
}
