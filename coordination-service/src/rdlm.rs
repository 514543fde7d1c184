//! The API of rdlm 0.4.2, for its clients as they are: leases of minutes that nobody renews, kept by promises.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use coordination::Recipe;
use serde_json::{Value, json};

use crate::acquire;
use crate::around::{Api, Noted, around};
use crate::auth::{Principal, Right};
use crate::bodies::body;
use crate::fields::Fields;
use crate::holds::{End, Found, Hold, Now};
use crate::kind::Kind;
use crate::problem::{Code, Problem};
use crate::reply::{not_so, nowhere, principal, rest};
use crate::service::{Phase, Shared};
use crate::text::{self, millis, zoneless};
use crate::v1::{holds, info};
use crate::wanted::{Wanted, What};

/// What its names begin with at the store.
const PREFIX: &str = "rdlm/";
const LOCKS: &str = "/locks/";
const RESOURCES: &str = "/resources/";

/// All routes of the API.
pub(crate) fn routes(service: &Shared) -> Router {
    Router::new()
        .route("/", get(|| async { "Welcome\n" }))
        .route("/livez", get(info::live))
        .route("/readyz", get(info::ready))
        .route("/locks/{*name}", post(acquire).get(look).put(renew).delete(release))
        .route("/resources", get(all).delete(clear_all))
        .route("/resources/{*name}", get(one).delete(clear))
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so)
        .layer(from_fn_with_state((Arc::clone(service), Api::Rdlm), around))
        .with_state(Arc::clone(service))
}

fn name(request: &Request, path: &str) -> Result<String, Problem> {
    text::name(&format!("{PREFIX}{}", rest(request, path)))
}

/// `POST /locks/{name}`
async fn acquire(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let name = name(&request, LOCKS)?;
    who.needs(Right::Use, &name)?;
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.unwrap_or_default().to_owned();
    let path = request.uri().path().to_owned();
    let mut fields = Fields::parse(&body(&service, request).await?)?;
    let lease = fields.seconds("lifetime", 0.001, 86_400.0);
    let wait = fields.seconds("wait", 0.0, 3_600.0);
    let title = fields.title("title");
    fields.done_leniently()?;
    let title = title.ok_or_else(|| Problem::new(Code::Invalid, "`title` is wanted"))?;
    let client = who.name.clone();
    let what = What::Lock { shared: false };
    let (keep, relies_on_lease) = (Duration::ZERO, true);
    let wanted = Wanted { what, name, wait, keep, lease, relies_on_lease, title, client, who };
    let granted = match acquire::acquire(&service, wanted, None).await {
        Err(problem) if problem.code == Code::Busy => {
            // Its clients know by 408 that the time is over, and by 409 that somebody removed their wait.
            let mut response = problem.into_response();
            *response.status_mut() = StatusCode::REQUEST_TIMEOUT;
            return Ok(response);
        }
        granted => granted?,
    };
    let hold = granted.hold()?.clone();
    let now = service.holds.now(&hold).map_err(|_| acquire::lost())?;
    let answer = json!({ "fence": hold.fence, "expires_in_ms": millis(now.expires_in), "covered": now.covered.text() });
    let mut response = Response::new(granted.body(answer.to_string()));
    *response.status_mut() = StatusCode::CREATED;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("fencing-token", HeaderValue::from(hold.fence));
    if let Ok(location) = HeaderValue::from_str(&format!("http://{host}{path}/{}", hold.id())) {
        headers.insert(header::LOCATION, location);
    }
    Ok(noted(response, &hold))
}

/// An answer in the type that rdlm's own tests want.
fn hal(body: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/hal+json")], body.to_string()).into_response()
}

fn noted(mut response: Response, hold: &Hold) -> Response {
    response.extensions_mut().insert(Noted::of(hold));
    response
}

/// The hold of a URL `/locks/{name}/{id}`, if it lives. The id alone is enough, as in the original: its clients send no
/// credentials here.
fn found(service: &Shared, request: &Request) -> Result<Arc<Hold>, Problem> {
    match known(service, request)? {
        (hold, true) => Ok(hold),
        _ => Err(unknown()),
    }
}

fn unknown() -> Problem {
    Problem::new(Code::NoSuchHold, "nobody holds anything by this URL")
}

/// Whether this may be a lock of this API: it is alone, and no other recipe's.
fn is_ours(hold: &Hold) -> bool {
    hold.kind == Kind::Lock && hold.several.is_none() && hold.name.starts_with(PREFIX)
}

/// The same, and whether it lives.
fn known(service: &Shared, request: &Request) -> Result<(Arc<Hold>, bool), Problem> {
    let (path, id) = rest(request, LOCKS).rsplit_once('/').ok_or_else(unknown)?;
    let name = text::name(&format!("{PREFIX}{path}"))?;
    let (tag, handle, secret) = crate::ids::parse(id).ok_or_else(unknown)?;
    if tag != service.tag {
        return Err(holds::of_another(tag));
    }
    let (hold, lives) = match service.holds.find(handle) {
        Found::Live(hold) => (hold, true),
        Found::Ended(hold, _) => (hold, false),
        Found::Unknown => return Err(unknown()),
    };
    let is_meant = hold.secret.is(secret) && is_ours(&hold) && hold.name == name;
    is_meant.then_some((hold, lives)).ok_or_else(unknown)
}

/// `GET /locks/{name}/{id}`
async fn look(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let hold = found(&service, &request)?;
    let unknown = |_| Problem::new(Code::NoSuchHold, "it has ended");
    let now = service.holds.told(&hold, false).map_err(unknown)?;
    Ok(noted(hal(&shown(&hold, &now, &hold.id())), &hold))
}

/// A lock with the fields that its clients need, all of them.
fn shown(hold: &Hold, now: &Now, uid: &str) -> Value {
    json!({
        "active": true, "active_since": zoneless(hold.granted_at),
        "active_expires": zoneless(SystemTime::now() + now.expires_in), "title": hold.title, "uid": uid,
        "lifetime": number(now.lease), "wait": number(hold.wait), "fence": hold.fence,
    })
}

/// Whole seconds as a whole number, as its clients gave them.
fn number(duration: Duration) -> Value {
    match duration.subsec_nanos() {
        0 => duration.as_secs().into(),
        _ => duration.as_secs_f64().into(),
    }
}

/// `PUT /locks/{name}/{id}`: a renewal, which the original lacks.
async fn renew(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let hold = found(&service, &request)?;
    let mut fields = Fields::parse(&body(&service, request).await?)?;
    let lease = fields.seconds("lifetime", 0.001, 86_400.0);
    fields.done()?;
    let now = holds::renewed(&service, &hold, Some(lease)).await?;
    // Its client would rely on all of the lease. By now it may have been renewed all the same, just before.
    if service.phase() == Phase::Ending {
        let why = "this instance is about to stop and renews nothing more";
        return Err(Problem::new(Code::Draining, why).with("effect", "unknown"));
    }
    Ok(noted(hal(&shown(&hold, &now, &hold.id())), &hold))
}

/// `DELETE /locks/{name}/{id}`, or with a handle, which needs the right to do so.
async fn release(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let has_ended = || Problem::new(Code::NoSuchHold, "it has ended");
    let (hold, end) = match known(&service, &request) {
        Ok((hold, true)) => (hold, End::Released),
        Ok((hold, false)) => {
            service.holds.take_back(&hold);
            return Err(has_ended());
        }
        Err(problem) => (of_handle(&service, &request).ok_or(problem)?, End::Broken),
    };
    if end == End::Broken {
        principal(&request)?.needs(Right::Admin, &hold.name)?;
    }
    drop(service.holds.give_up(&hold, end).await.map_err(|_| {
        service.holds.take_back(&hold);
        has_ended()
    })?);
    Ok(noted(StatusCode::NO_CONTENT.into_response(), &hold))
}

fn of_handle(service: &Shared, request: &Request) -> Option<Arc<Hold>> {
    let (_, handle) = rest(request, LOCKS).rsplit_once('/')?;
    match service.holds.find(handle) {
        Found::Live(hold) if is_ours(&hold) => Some(hold),
        _ => None,
    }
}

/// `GET /resources`
async fn all(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let who = principal(&request)?;
    who.needs(Right::Admin, PREFIX)?;
    let names = names(&service).await?.into_iter();
    let resources: Vec<_> = names
        .map(|name| json!({ "name": name, "_links": { "self": { "href": format!("{RESOURCES}{name}") } } }))
        .collect();
    Ok(hal(
        &json!({ "_links": { "self": { "href": "/resources" } }, "_embedded": { "resources": resources } }),
    ))
}

/// The names in use, without the prefix.
async fn names(service: &Shared) -> Result<Vec<String>, Problem> {
    let names = service.coordinator()?.in_use(Recipe::Lock).await?.into_iter();
    Ok(names.filter_map(|name| name.strip_prefix(PREFIX).map(str::to_owned)).collect())
}

/// `GET /resources/{name}`
async fn one(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let name = name(&request, RESOURCES)?;
    principal(&request)?.needs(Right::Admin, &name)?;
    let path = rest(&request, RESOURCES);
    let mut locks = Vec::new();
    for who in service.coordinator()?.lock(&name)?.holders().await? {
        let own = service.holds.of_fence(Kind::Lock, &name, who.token.value());
        let own = own.and_then(|hold| Some((service.holds.now(&hold).ok()?, hold)));
        let since = zoneless(who.since.unwrap_or(SystemTime::UNIX_EPOCH));
        let title = if who.label.is_empty() { who.member } else { who.label };
        let mut lock = match own {
            Some((now, hold)) => shown(&hold, &now, &hold.handle),
            // Another instance's, or one that waits: what the store knows of it.
            None if who.holding => json!({
                "active": true, "active_since": since, "active_expires": since, "title": title,
                "uid": who.token.value().to_string(), "lifetime": 0, "wait": 0,
            }),
            None => json!({
                "active": false, "wait_since": since, "wait_expires": since, "title": title,
                "uid": who.token.value().to_string(), "lifetime": 0, "wait": 0,
            }),
        };
        // Of several locks, which its clients do not know, each has its own.
        lock["fence"] = who.token.value().into();
        let uid = lock["uid"].as_str().unwrap_or_default();
        lock["_links"] = json!({ "self": { "href": format!("{LOCKS}{path}/{uid}") } });
        locks.push(lock);
    }
    // Of one that nobody uses there are none: its client takes any other status for a failure of the service.
    Ok(hal(&json!({ "name": name.strip_prefix(PREFIX), "_embedded": { "locks": locks } })))
}

/// `DELETE /resources/{name}`: takes the lock from all who hold it, and their places from those who wait at this instance.
async fn clear(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let name = name(&request, RESOURCES)?;
    let who = principal(&request)?;
    who.needs(Right::Admin, &name)?;
    match cleared(&service, &who, &name).await? {
        0 => Err(Problem::new(Code::NoSuchHold, "nobody holds it or waits for it")),
        _ => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

/// `DELETE /resources`
async fn clear_all(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let who = principal(&request)?;
    who.needs(Right::Admin, PREFIX)?;
    let mut count = 0;
    for name in names(&service).await? {
        let cleared = cleared(&service, &who, &format!("{PREFIX}{name}")).await;
        count += cleared.map_err(|problem| in_part(problem, count))?;
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Why not all was taken away, where so much was.
fn in_part(problem: Problem, count: usize) -> Problem {
    if count == 0 { problem } else { problem.with("effect", "unknown") }
}

async fn cleared(service: &Shared, who: &Principal, name: &str) -> Result<usize, Problem> {
    let lock = service.coordinator()?.lock(name)?;
    let mut count = 0;
    let (holders, waiting): (Vec<_>, Vec<_>) =
        lock.holders().await?.into_iter().partition(|holder| holder.holding);
    // Before any of them is granted it.
    for waiter in waiting {
        let fence = waiter.token.value();
        if service.queued.take_away(Kind::Lock, name, fence) {
            tracing::warn!(name, fence, by = who.name, "took a place in the queue away");
            count += 1;
        }
    }
    for holder in holders {
        let fence = holder.token.value();
        tracing::warn!(name, fence, by = who.name, "taking a lock away");
        match service.holds.of_fence(Kind::Lock, name, fence) {
            Some(hold) => {
                if service.holds.give_up(&hold, End::Broken).await.is_err() {
                    service.holds.take_back(&hold);
                }
            }
            None => {
                let broken = acquire::break_grant(service, name, holder.token).await;
                broken.map_err(|problem| in_part(problem, count))?;
            }
        }
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, Bytes};
    use axum::http::request;
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;

    use super::*;
    use crate::acquire::tests::{Disk, instance};
    use crate::holds::Covered;
    use crate::ids;
    use crate::promise::{self, Promise};
    use crate::settings::Cover;

    /// H2: a client of this API goes by its `lifetime`, also where it renews a lock while less than that is left of our session. So a promise
    /// keeps it, though the store would, and can be made longer.
    #[tokio::test]
    async fn h2_the_whole_lease_is_promised() {
        let (service, other) = instance(Cover::Lease(Duration::from_secs(100))).await;
        let hold = acquired(&service, 20).await;
        let promise = promise::of(&other, &hold.name).expect("a name");
        let is_promised = async |seconds| {
            let found = promise.read().await.expect("memory answers").expect("it is promised");
            found.value.is_of(hold.fence, Duration::from_secs(seconds))
        };
        assert!(is_promised(20).await);
        let longer = holds::renewed(&service, &hold, Some(Duration::from_secs(300))).await;
        assert!(longer.is_ok() && is_promised(300).await);
    }

    /// Without that, an error says that nothing was done.
    #[tokio::test]
    async fn what_was_taken_away_in_part_is_told() {
        let disk = Disk::new();
        let (service, other) = disk.instance().await;
        let lock = other.lock("rdlm/x").expect("a name");
        let held = lock.acquire(None).await.expect("it is free");
        let value = promise::of(&other, "rdlm/x").expect("a name");
        let promised = Promise::new(value, held.token().value(), "deadbeef.one");
        let promised = promised.write(None, Duration::from_secs(3_600)).await;
        assert!(promised.expect("the store answers"), "nobody else writes");
        let waiting = tokio::spawn({
            let service = Arc::clone(&service);
            let body = r#"{"lifetime":60,"wait":600,"title":""}"#.to_owned();
            async move { answer(&service, Request::post("/locks/x"), body).await.0 }
        });
        let boss = Principal::administrator("boss".to_owned());
        let mut is_told = false;
        let taken = async {
            while lock.holders().await.expect("the store answers").len() < 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            disk.take("promise");
            // It waits at the store a moment before that is known here, and is told a moment after it was taken away.
            while !waiting.is_finished() {
                let told = cleared(&service, &boss, "rdlm/x").await.expect_err("the store refuses");
                is_told |= told.text("r").contains(r#""effect":"unknown""#);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), taken).await.expect("it is taken away");
        assert_eq!(waiting.await.expect("it does not panic"), StatusCode::CONFLICT);
        assert!(is_told && held.is_held());
    }

    /// A promise keeps out only who asks through the service. Where the store keeps everybody out, that is told.
    #[tokio::test]
    async fn what_the_store_covers_beside_a_promise_is_told() {
        let covers = Cover::Lease(Duration::from_secs(100));
        for (cover, lifetime, expected) in [
            (covers, 20, "all"),
            (covers, 300, "http"),
            (Cover::Nothing, 20, "http"),
            (Cover::Any, 300, "all"),
        ] {
            let (service, _other) = instance(cover).await;
            let (_, told) = answer(&service, Request::post("/locks/x"), wanted(lifetime)).await;
            let told: Value = serde_json::from_slice(&told).expect("it is JSON");
            assert_eq!(told["covered"], expected, "{cover:?}, {lifetime} s");
        }
        let (service, _other) = instance(covers).await;
        let hold = acquired(&service, 20).await;
        let longer = holds::renewed(&service, &hold, Some(Duration::from_secs(300))).await;
        assert_eq!(longer.map(|now| now.covered).ok(), Some(Covered::Http));
    }

    /// H10: who is told that its lease begins anew has a new one.
    #[tokio::test]
    async fn h10_nobody_is_told_of_a_renewal_that_does_not_take_place() {
        let (service, _other) = instance(Cover::Any).await;
        let hold = acquired(&service, 60).await;
        let ending = (Phase::Ending, StatusCode::SERVICE_UNAVAILABLE);
        for (phase, expected) in [(Phase::Draining, StatusCode::OK), ending] {
            service.phase.send_replace(phase);
            for lifetime in [60, 300] {
                let path = format!("/locks/x/{}", hold.id());
                let body = format!(r#"{{"lifetime":{lifetime}}}"#);
                let (status, _) = answer(&service, Request::put(path), body).await;
                assert_eq!(status, expected, "{phase:?}, {lifetime} s");
            }
        }
    }

    /// Nobody is told that a lock is not there which another instance has granted.
    #[tokio::test]
    async fn the_lock_of_another_instance_is_not_gone() {
        let (service, _other) = instance(Cover::Any).await;
        let own = (service.tag.clone(), Code::NoSuchHold);
        for (tag, expected) in [own, (ids::tag(), Code::WrongInstance)] {
            let id = ids::Secret::new().id(&ids::handle(&tag));
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = format!("/locks/x/{id}").parse().expect("a path");
            let told = known(&service, &request).map(drop).map_err(|problem| problem.code);
            assert_eq!(told, Err(expected));
        }
    }

    /// The hold of who asks for the lock `x`, which is free, for so many seconds.
    async fn acquired(service: &Shared, lifetime: u64) -> Arc<Hold> {
        let (status, _) = answer(service, Request::post("/locks/x"), wanted(lifetime)).await;
        assert_eq!(status, StatusCode::CREATED);
        service.holds.live().pop().expect("it is held")
    }

    fn wanted(lifetime: u64) -> String {
        format!(r#"{{"lifetime":{lifetime},"wait":0,"title":""}}"#)
    }

    /// What this request is answered, to the end.
    async fn answer(
        service: &Shared,
        request: request::Builder,
        body: String,
    ) -> (StatusCode, Bytes) {
        let request = request.header("host", "localhost").body(Body::from(body));
        let routes = TowerToHyperService::new(routes(service));
        let told = routes.call(request.expect("a request")).await.expect("an answer");
        let (head, body) = told.into_parts();
        (head.status, axum::body::to_bytes(body, 9_999).await.expect("a body"))
    }
}
