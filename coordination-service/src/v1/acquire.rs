//! `POST /v1/{recipe}/{name}`: what all recipes have in common, and the fields that each has of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use super::holds::{add_fence, ended, shown};
use super::path::named;
use crate::acquire::{self, Undelivered, longest_lease};
use crate::around::Noted;
use crate::auth::{Principal, Right};
use crate::bodies::{body, body_within};
use crate::fields::Fields;
use crate::holds::{End, Found, Hold};
use crate::keys::{self, Asked, Ticket};
use crate::kind::Kind;
use crate::problem::{Code, Problem};
use crate::reply::principal;
use crate::service::Shared;
use crate::text::{self, LONGEST_WAIT, millis};
use crate::wanted::{Places, Wanted, What};

/// The lease of who does not ask for one.
const LEASE: Duration = Duration::from_secs(20);
/// The shortest lease, in milliseconds.
const SHORTEST_LEASE: u64 = 100;
/// The most locks that are acquired together, and the most bytes of such a request.
const MANY: usize = 32;
const MANY_BYTES: usize = 64 * 1024;
/// The most permits that a semaphore has, and the most that one hold has of them.
pub(super) const PERMITS: (u32, u32) = (10_000, 500);
/// The most slots that a limiter has, and the most places on standby.
const PLACES: u32 = 10_000;
/// The most bytes of what a leader or a member says of itself.
pub(super) const VALUE: usize = 4_096;

/// `POST /v1/{recipe}/{name}`
pub(super) async fn acquire(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let (kind, name) = named(&request)?;
    who.needs(Right::Use, &name)?;
    let key = keys::key(request.headers())?;
    let mut fields = Fields::parse(&body(&service, request).await?)?;
    let asked = Instant::now();
    let what = what(kind, &mut fields);
    let wanted = wanted(&service, &who, what, name, fields)?;
    granted(&service, wanted, key, asked).await
}

/// `POST /v1/locks`
pub(super) async fn acquire_several(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let key = keys::key(request.headers())?;
    let mut fields = Fields::parse(&body_within(&service, request, MANY_BYTES).await?)?;
    let asked = Instant::now();
    let mut names = fields.texts("names", 1..=MANY);
    // As the library does it: each once, and in the same order everywhere.
    names.sort_unstable();
    names.dedup();
    let shared = fields.flag("shared").unwrap_or(false);
    let first = names.first().cloned().unwrap_or_default();
    let wanted =
        wanted(&service, &who, What::Locks { names: names.clone(), shared }, first, fields)?;
    for name in &names {
        text::checked(name)?;
        who.needs(Right::Use, name)?;
    }
    granted(&service, wanted, key, asked).await
}

/// The fields of a recipe's own.
fn what(kind: Kind, fields: &mut Fields) -> What {
    match kind {
        Kind::Lock => What::Lock { shared: fields.flag("shared").unwrap_or(false) },
        Kind::Semaphore => {
            fields.needs("permits");
            let permits = fields.count("permits", 1..=PERMITS.0).unwrap_or(PERMITS.0);
            let count = fields.count("count", 1..=permits.min(PERMITS.1)).unwrap_or(1);
            What::Semaphore { permits, count }
        }
        Kind::Limiter => What::Limiter { places: places(fields) },
        Kind::Election => What::Election { value: fields.json("value", VALUE).unwrap_or_default() },
        Kind::Group => {
            fields.needs("member");
            What::Group {
                member: fields.word("member").unwrap_or_default(),
                capabilities: fields.json("capabilities", VALUE).unwrap_or_default(),
                create: fields.flag("create").unwrap_or(true),
            }
        }
    }
}

/// The fields with the places of a limiter.
pub(super) fn places(fields: &mut Fields) -> Places {
    let latest_wins = fields.flag("latest_wins").unwrap_or(false);
    // Of those who stand by the latest wins only where one does, for one slot.
    let (slots, standby) = match latest_wins {
        true => (1..=1, 1..=1),
        false => (1..=PLACES, 0..=PLACES),
    };
    let (one, least) = (*slots.start(), *standby.start());
    let slots = fields.count("slots", slots).unwrap_or(one);
    let standby = fields.count("standby", standby).unwrap_or(least);
    Places { slots, standby, latest_wins }
}

/// The fields that all recipes have; the end of the fields.
fn wanted(
    service: &Shared,
    who: &Principal,
    what: What,
    name: String,
    mut fields: Fields,
) -> Result<Wanted, Problem> {
    let (wait, lease) = (Duration::ZERO, LEASE);
    let (title, client) = (String::new(), who.name.clone());
    let mut wanted = Wanted { what, name, wait, lease, title, client };
    let longest = millis(longest_lease(service, &wanted.locks()));
    // Nobody waits to join a group.
    let longest_wait = if matches!(wanted.what, What::Group { .. }) { 0 } else { LONGEST_WAIT };
    wanted.wait = fields.millis("wait_ms", 0..=longest_wait).unwrap_or_default();
    let lease = fields.millis("lease_ms", SHORTEST_LEASE..=longest.max(SHORTEST_LEASE));
    wanted.lease = lease.unwrap_or(LEASE.min(Duration::from_millis(longest)));
    wanted.title = fields.title("title").unwrap_or_default();
    fields.done()?;
    Ok(wanted)
}

/// Waits for what is wanted, and answers the hold; or answers the one that an earlier request with this key was granted.
async fn granted(
    service: &Shared,
    wanted: Wanted,
    key: Option<String>,
    asked: Instant,
) -> Result<Response, Problem> {
    let ticket = match &key {
        Some(key) => match repeated(service, &wanted, key)? {
            Repeated::Of(hold) => return created(service, &hold, asked, Body::from),
            Repeated::Not(ticket) => Some(ticket),
        },
        None => None,
    };
    let granted = acquire::acquire(service, wanted, ticket).await?;
    first_told(service, granted, asked, key.as_deref())
}

/// The answer to a grant that nobody was told of yet. What is over by now has not ended for its client, which never had it: it asks
/// again, with the same key.
fn first_told(
    service: &Shared,
    granted: Undelivered,
    asked: Instant,
    key: Option<&str>,
) -> Result<Response, Problem> {
    let hold = granted.hold()?.clone();
    match created(service, &hold, asked, |text| granted.body(text)) {
        // A repetition may have been told of it.
        Err(problem) if problem.code == Code::Ended && !hold.was_told_again() => {
            if let Some(key) = key {
                service.keys.forget(&hold.client, key, &hold.handle);
            }
            Err(acquire::lost())
        }
        answer => answer,
    }
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
    let what = format!("{:?}", wanted.what);
    let content = keys::content(&[&what, &wanted.name, &lease, &wanted.title]);
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
    // Before it is looked at what is left: a client adds the two, and what passes in between must not count twice.
    let took = asked.elapsed();
    let now = service.holds.now(hold).map_err(ended)?;
    let mut answer = shown(service, hold, &now);
    answer["id"] = hold.id().into();
    answer["took_ms"] = millis(took).into();
    let mut response = Response::new(body(answer.to_string()));
    *response.status_mut() = StatusCode::CREATED;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/holds/{}", hold.id())) {
        headers.insert(header::LOCATION, location);
    }
    add_fence(&mut response, hold);
    response.extensions_mut().insert(Noted::of(hold));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acquire::tests::{instance, wanted};
    use crate::settings::Cover;

    /// An instance that stood still between the grant and its answer tells nobody of the end of what nobody had, and grants it to who
    /// asks again.
    #[tokio::test]
    async fn a_grant_that_is_over_before_its_answer_has_not_ended() {
        let (service, _other) = instance(Cover::Any).await;
        let begin = || service.keys.begin("me", "k", keys::content(&["x"]));
        let Asked::New(ticket) = begin() else { panic!("nobody has asked before") };
        let granted = acquire::acquire(&service, wanted(0), Some(ticket)).await;
        let granted = granted.expect("it is free");
        let hold = granted.hold().expect("it is here").clone();
        assert!(matches!(begin(), Asked::Granted(_)));
        service.holds.end_in_background(&hold, End::Expired);
        let told = first_told(&service, granted, Instant::now(), Some("k")).map(drop);
        assert_eq!(told.map_err(|problem| problem.code), Err(Code::StoreAway));
        assert!(matches!(begin(), Asked::New(_)), "it may be asked for again");
    }
}
