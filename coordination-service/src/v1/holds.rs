//! `/v1/holds`: look, renew, release; `/v1/renew`: many at once.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::acquire::VALUE;
use crate::acquire;
use crate::around::Noted;
use crate::auth::{Principal, Right};
use crate::bodies::{body, body_within};
use crate::fields::Fields;
use crate::holds::{Covered, End, Found, Hold, Now};
use crate::ids;
use crate::kind::Kind;
use crate::problem::{Code, Problem};
use crate::reply::{json, principal, rest};
use crate::service::{Phase, Service, Shared};
use crate::text::{millis, rfc3339};

pub(super) const PATH: &str = "/v1/holds/";
const SHORTEST_LEASE: u64 = 100;
/// 24 hours.
const LONGEST_LEASE: u64 = 86_400_000;
/// The most holds that are renewed by one request.
const MANY: usize = 1_000;
/// The most bytes of such a request: an id has 44.
const MANY_BYTES: usize = 64 * 1024;
/// For how many of them the store is asked at the same time, and for how long for all of them: none is asked for after that.
const AT_ONCE: usize = 32;
const ASKED: Duration = Duration::from_secs(10);

/// A hold as its client and administrators see it, without its id.
pub(super) fn shown(service: &Service, hold: &Hold, now: &Now) -> Value {
    let mut shown = json!({
        "handle": hold.handle, "kind": hold.kind.text(),
        "lease_ms": millis(now.lease), "expires_in_ms": millis(now.expires_in),
        "renew_in_ms": millis(now.expires_in / 3), "covered": now.covered.text(), "client": hold.client,
        "title": hold.title, "granted_at": rfc3339(hold.granted_at), "instance": service.tag,
    });
    add_fences(&mut shown, hold);
    match &hold.several {
        None => shown["name"] = hold.name.clone().into(),
        Some(parts) => shown["names"] = parts.iter().map(|(name, _)| name.as_str()).collect(),
    }
    match hold.kind {
        Kind::Lock => shown["shared"] = now.shared.into(),
        Kind::Semaphore | Kind::Limiter => shown["slots"] = hold.slots.clone().into(),
        Kind::Group => shown["member"] = hold.member.clone().into(),
        Kind::Election => {}
    }
    shown
}

/// Adds the fence, or that of each name.
pub(super) fn add_fences(shown: &mut Value, hold: &Hold) {
    match &hold.several {
        None => shown["fence"] = hold.fence.into(),
        Some(parts) => shown["fences"] = parts.iter().map(|(_, fence)| *fence).collect(),
    }
}

/// The header with the fence, if there is one fence.
pub(super) fn add_fence(response: &mut Response, hold: &Hold) {
    if hold.several.is_none() {
        response.headers_mut().insert("fencing-token", HeaderValue::from(hold.fence));
    }
}

/// The answer to who asks for a hold that has ended.
pub(crate) fn ended(end: End) -> Problem {
    let problem = Problem::new(Code::Ended, format!("the hold has ended: {}", end.text()));
    let problem = problem.with("reason", end.text());
    match end {
        End::Lost(reason) => problem.with("loss", format!("{reason:?}")).with(
            "detail",
            "the instance lost it at the store: what was done under it may have overlapped with another holder's work",
        ),
        _ => problem,
    }
}

/// The answer to who asks for a hold that the instance of this tag has granted.
pub(crate) fn of_another(tag: &str) -> Problem {
    let other = "another instance granted this hold, or this one before it was restarted";
    Problem::new(Code::WrongInstance, other).with("instance", tag)
}

/// The hold of this id, or how it ended, if the caller may use it.
pub(super) fn found(
    service: &Shared,
    who: &Principal,
    id: &str,
) -> Result<(Arc<Hold>, Option<End>), Problem> {
    let unknown = || Problem::new(Code::NoSuchHold, "nobody holds anything by this id");
    let (tag, handle, secret) = ids::parse(id).ok_or_else(unknown)?;
    if tag != service.tag {
        return Err(of_another(tag));
    }
    let (hold, end) = match service.holds.find(handle) {
        Found::Live(hold) => (hold, None),
        Found::Ended(hold, end) => (hold, Some(end)),
        Found::Unknown => return Err(unknown()),
    };
    if !hold.secret.is(secret) {
        return Err(unknown());
    }
    if hold.client != who.name {
        hold.parts().iter().try_for_each(|(name, _)| who.needs(Right::Admin, name))?;
    }
    Ok((hold, end))
}

/// The same, if it lives.
fn live(service: &Shared, who: &Principal, id: &str) -> Result<Arc<Hold>, Problem> {
    match found(service, who, id)? {
        (hold, None) => Ok(hold),
        (_, Some(end)) => Err(ended(end)),
    }
}

/// An error unless the caller may hold it still: a right that was taken away lasts for as long as the lease.
fn may_hold(who: &Principal, hold: &Hold) -> Result<(), Problem> {
    hold.parts().iter().try_for_each(|(name, _)| who.needs(Right::Use, name))
}

fn answer(service: &Shared, hold: &Hold, now: &Now) -> Response {
    let mut body = shown(service, hold, now);
    body["id"] = hold.id().into();
    let mut response = json(StatusCode::OK, &body);
    add_fence(&mut response, hold);
    noted(response, hold)
}

fn noted(mut response: Response, hold: &Hold) -> Response {
    response.extensions_mut().insert(Noted::of(hold));
    response
}

/// `GET /v1/holds/{id}`
pub(super) async fn look(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let hold = live(&service, &who, rest(&request, PATH))?;
    // Whoever has its id relies on what it is told here, though the answer to its request may not be taken yet.
    let now = service.holds.told(&hold, false).map_err(ended)?;
    Ok(answer(&service, &hold, &now))
}

/// `PUT /v1/holds/{id}`
pub(super) async fn renew(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let hold = live(&service, &who, rest(&request, PATH))?;
    may_hold(&who, &hold)?;
    let mut fields = Fields::parse(&body(&service, request).await?)?;
    let longest = millis(acquire::longest_lease(&service, &hold.locks()));
    let lease = fields.millis("lease_ms", SHORTEST_LEASE..=longest.max(SHORTEST_LEASE));
    let value = match hold.kind {
        Kind::Election => fields.json("value", VALUE),
        Kind::Group => fields.json("capabilities", VALUE),
        _ => None,
    };
    // Of several locks some may be shared already when the store refuses the next one.
    let is_lock = hold.kind == Kind::Lock && hold.several.is_none();
    let why = "a share is not made exclusive: release it, and acquire the lock exclusively";
    let is_to_share = is_lock && fields.only_true("shared", why);
    fields.done()?;
    if is_to_share && !hold.promises.is_empty() {
        let why = "a promise keeps the lock for this hold alone: release it, and acquire a share";
        return Err(Problem::new(Code::Unsupported, why));
    }
    // First of all, as it does not need the store: a value that the store is slow to take does not cost the lease.
    let mut now = renewed(&service, &hold, lease).await?;
    if let Some(value) = value {
        service.holds.tell(&hold, &value).await.map_err(ended)??;
        now = service.holds.now(&hold).map_err(ended)?;
    }
    if is_to_share {
        service.holds.share(&hold).await.map_err(ended)??;
        now = service.holds.now(&hold).map_err(ended)?;
    }
    Ok(answer(&service, &hold, &now))
}

/// Begins the lease anew, and has it promised first if it is to be longer than that.
pub(crate) async fn renewed(
    service: &Shared,
    hold: &Arc<Hold>,
    lease: Option<Duration>,
) -> Result<Now, Problem> {
    let now = begun_anew(service, hold, lease)?;
    match longer(service, lease, &now) {
        Some(longer) => extended(service, hold, longer).await,
        None => Ok(now),
    }
}

/// Begins the lease anew as far as that needs no store: one that is to be longer is as long as it was.
fn begun_anew(service: &Shared, hold: &Arc<Hold>, lease: Option<Duration>) -> Result<Now, Problem> {
    let now = service.holds.told(hold, false).map_err(ended)?;
    if service.phase() == Phase::Ending {
        return Ok(now);
    }
    service.holds.renew(hold, lease.filter(|lease| *lease <= now.lease)).map_err(ended)
}

/// The lease that is wanted, if it is longer than the present one and may begin.
fn longer(service: &Service, lease: Option<Duration>, now: &Now) -> Option<Duration> {
    lease.filter(|lease| *lease > now.lease && service.phase() != Phase::Ending)
}

/// Begins a lease that is longer than the present one.
async fn extended(service: &Shared, hold: &Arc<Hold>, longer: Duration) -> Result<Now, Problem> {
    let is_covered = service.cover.longest().is_none_or(|cover| longer <= cover);
    let mut extensions = JoinSet::new();
    for promise in &hold.promises {
        let promise = Arc::clone(promise);
        extensions.spawn(async move { promise.extend(longer).await });
    }
    while let Some(extended) = extensions.join_next().await {
        if !extended.map_err(|_| unanswered())?? {
            let why = "the promise of this hold is not ours any more";
            return Err(Problem::new(Code::Changed, why));
        }
    }
    // Its client was told that the store keeps it.
    if !is_covered && hold.covered == Covered::All {
        let why = "a lease without a promise cannot become one with a promise: ask for the longer lease when you acquire";
        return Err(Problem::new(Code::Unsupported, why));
    }
    // A stop may have come to this while the store was asked. It does not wait for a lease that is longer than the store covers, and the
    // client goes by the one that it had.
    if service.phase() == Phase::Ending {
        return service.holds.now(hold).map_err(ended);
    }
    service.holds.renew(hold, Some(longer)).map_err(ended)
}

fn unanswered() -> Problem {
    Problem::new(Code::Internal, "a lease was not made longer, and nobody knows why")
}

/// What has become of holds that were to be renewed together.
#[derive(Default)]
struct Renewals {
    held: Vec<Value>,
    ended: Vec<Value>,
    /// Those that live, with the lease that they had.
    failed: Vec<Value>,
}

impl Renewals {
    fn add(&mut self, service: &Shared, id: &str, hold: &Arc<Hold>, failure: Option<&Problem>) {
        let now = match service.holds.told(hold, false) {
            Ok(now) => now,
            Err(end) => return self.add_ended(id, &ended(end)),
        };
        let mut told = json!({ "id": id, "expires_in_ms": millis(now.expires_in) });
        match failure {
            None => {
                add_fences(&mut told, hold);
                self.held.push(told);
            }
            Some(problem) => {
                told["reason"] = problem.reason();
                self.failed.push(told);
            }
        }
    }

    fn add_ended(&mut self, id: &str, problem: &Problem) {
        self.ended.push(json!({ "id": id, "reason": problem.reason() }));
    }
}

/// `POST /v1/renew`
pub(super) async fn renew_many(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let mut fields = Fields::parse(&body_within(&service, request, MANY_BYTES).await?)?;
    let ids = fields.texts("ids", 1..=MANY);
    let lease = fields.millis("lease_ms", SHORTEST_LEASE..=LONGEST_LEASE);
    fields.done()?;
    let mut renewals = Renewals::default();
    let mut begun = Vec::new();
    // Before the store is asked for any of them: it may be slow, and the leases of the others would be over meanwhile.
    for id in ids {
        let hold = match live(&service, &who, &id) {
            Ok(hold) => hold,
            Err(problem) => {
                renewals.add_ended(&id, &problem);
                continue;
            }
        };
        if let Err(problem) = may_hold(&who, &hold) {
            renewals.add(&service, &id, &hold, Some(&problem));
            continue;
        }
        match begun_anew(&service, &hold, lease) {
            Ok(now) => begun.push((id, hold, longer(&service, lease, &now))),
            Err(problem) => renewals.add_ended(&id, &problem),
        }
    }
    let (mut away, until) = (None, Instant::now() + ASKED);
    for some in begun.chunks(AT_ONCE) {
        if away.is_none() && Instant::now() >= until {
            away = Some(Problem::new(Code::StoreAway, "the store takes too long for so many"));
        }
        let failures = prolonged(&service, some, &mut away).await;
        for ((id, hold, _), failure) in some.iter().zip(failures) {
            renewals.add(&service, id, hold, failure.as_ref());
        }
    }
    let Renewals { held, ended, failed } = renewals;
    let told = json!({ "held": held, "ended": ended, "failed": failed });
    let mut response = json(StatusCode::OK, &told);
    let handles = begun.iter().map(|(_, hold, _)| hold.handle.clone()).collect();
    response.extensions_mut().insert(Noted { handles, ..Noted::default() });
    Ok(response)
}

/// A hold with its id, and the longer lease that it is to have, if it is.
type Begun = (String, Arc<Hold>, Option<Duration>);

/// Begins the longer leases of these, and returns why that failed of each, if it did. Where the store has not answered before this, it is
/// not asked again: these would wait as long.
async fn prolonged(
    service: &Shared,
    some: &[Begun],
    away: &mut Option<Problem>,
) -> Vec<Option<Problem>> {
    let mut prolonging = Vec::new();
    for (_, hold, longer) in some {
        prolonging.push(longer.map(|longer| {
            let (service, hold, away) = (Arc::clone(service), Arc::clone(hold), away.clone());
            // A set, so that it ends with the request.
            let mut task = JoinSet::new();
            task.spawn(async move { prolong(&service, &hold, longer, away).await });
            task
        }));
    }
    let mut failures = Vec::new();
    for ((_, hold, _), task) in some.iter().zip(prolonging) {
        let prolonged = match task {
            Some(mut task) => task.join_next().await,
            None => None,
        };
        let failure = prolonged.and_then(|done| done.unwrap_or_else(|_| Err(unanswered())).err());
        let is_away = |problem: &&Problem| matches!(problem.code, Code::StoreAway | Code::InDoubt);
        // One without a promise did not ask the store.
        if let Some(problem) = failure.as_ref().filter(is_away)
            && !hold.promises.is_empty()
        {
            *away = Some(problem.clone());
        }
        failures.push(failure);
    }
    failures
}

async fn prolong(
    service: &Shared,
    hold: &Arc<Hold>,
    longer: Duration,
    away: Option<Problem>,
) -> Result<(), Problem> {
    if longer > acquire::longest_lease(service, &hold.locks()) {
        return Err(Problem::new(Code::Invalid, "the lease is too long for this name"));
    }
    match away.filter(|_| !hold.promises.is_empty()) {
        Some(problem) => Err(problem),
        None => extended(service, hold, longer).await.map(drop),
    }
}

/// `DELETE /v1/holds/{id}`
pub(super) async fn release(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let (hold, end) = found(&service, &who, rest(&request, PATH))?;
    let confirmed = match end {
        None => service.holds.give_up(&hold, End::Released).await,
        Some(end) => Err(end),
    };
    let confirmed = confirmed.map_err(|end| {
        service.holds.take_back(&hold);
        ended(end)
    })?;
    let response = match confirmed {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) if error.loss_reason().is_some() => {
            return Err(ended(error.loss_reason().map_or(End::Expired, End::Lost)));
        }
        Err(_) => json(StatusCode::ACCEPTED, &json!({ "state": "releasing" })),
    };
    Ok(noted(response, &hold))
}

#[cfg(test)]
mod tests {
    use crate::delivery::Deliver;
    use axum::body::Body;
    use coordination::LossReason;

    use super::*;
    use crate::acquire::acquire;
    use crate::acquire::tests::{instance, is_soon_gone, wanted};
    use crate::promise;
    use crate::settings::Cover;
    use crate::wanted::{Wanted, What};

    /// H9: whose right was taken away has what it holds until its lease is over, and may give it up.
    #[tokio::test]
    async fn h9_who_may_hold_nothing_any_more_renews_nothing() {
        let (service, _other) = instance(Cover::Any).await;
        let who = Arc::new(Principal::nobody());
        let wanted = Wanted { client: who.name.clone(), ..wanted(0) };
        let mut granted = acquire(&service, wanted, None).await.expect("it is free");
        let hold = granted.hold().expect("it is here").clone();
        granted.deliver();
        let asked = |path: &str, body: &str| {
            let mut request = Request::new(Body::from(body.to_owned()));
            *request.uri_mut() = path.parse().expect("a path");
            request.extensions_mut().insert(Arc::clone(&who));
            request
        };
        let path = format!("{PATH}{}", hold.id());
        let told = renew(State(Arc::clone(&service)), asked(&path, "")).await;
        assert_eq!(told.map(drop).map_err(|problem| problem.code), Err(Code::Forbidden));
        let ids = json!({ "ids": [hold.id()] }).to_string();
        let told = renew_many(State(Arc::clone(&service)), asked("/v1/renew", &ids)).await;
        let told = axum::body::to_bytes(told.expect("answered").into_body(), 9_999).await;
        let told: Value = serde_json::from_slice(&told.expect("a body")).expect("it is JSON");
        assert_eq!(told["failed"][0]["reason"], "forbidden", "{told}");
        assert_eq!(hold.renewals(), 0);
        let told = release(State(service), asked(&path, "")).await.expect("it is its own");
        assert_eq!(told.status(), StatusCode::NO_CONTENT);
    }

    /// What the store keeps until the lease is over has no lease that the store does not keep, shared or not.
    #[tokio::test]
    async fn a_hold_that_is_covered_by_all_is_not_renewed_into_one_that_is_not() {
        let seconds = Duration::from_secs;
        for shared in [false, true] {
            let (service, _other) = instance(Cover::Lease(seconds(50))).await;
            let (what, name) = (What::Lock { shared }, "rdlm/x".to_owned());
            let wanted = Wanted { what, name, lease: seconds(20), ..wanted(0) };
            let granted = acquire(&service, wanted, None).await.expect("it is free");
            let hold = granted.hold().expect("it is here");
            assert_eq!(hold.covered, Covered::All);
            assert!(renewed(&service, hold, Some(seconds(50))).await.is_ok());
            let told = renewed(&service, hold, Some(seconds(600))).await.map(|now| now.lease);
            assert_eq!(told.map_err(|problem| problem.code), Err(Code::Unsupported), "{shared}");
        }
    }

    /// Others share the lock with a hold that was made a share; what a promise keeps for its client alone is not made one.
    #[tokio::test]
    async fn a_hold_is_made_a_share() {
        for (cover, is_promised) in [(Cover::Any, false), (Cover::Nothing, true)] {
            let (service, other) = instance(cover).await;
            let who = service.auth.principal(&axum::http::HeaderMap::new()).expect("anybody");
            let wanted = Wanted { client: who.name.clone(), ..wanted(0) };
            let granted = acquire(&service, wanted, None).await.expect("it is free");
            let hold = granted.hold().expect("it is here");
            let put = async |body: &'static str| {
                let mut request = Request::new(Body::from(body));
                let path = format!("{PATH}{}", hold.id());
                *request.uri_mut() = path.parse().expect("a path");
                request.extensions_mut().insert(Arc::clone(&who));
                let told = renew(State(Arc::clone(&service)), request).await?;
                let told = axum::body::to_bytes(told.into_body(), 9_999).await.expect("a body");
                Ok::<Value, Problem>(serde_json::from_slice(&told).expect("it is JSON"))
            };
            assert_eq!(put("{}").await.expect("it is held")["shared"], false);
            let told = put("{\"shared\":true}").await;
            let share = other.lock("x").expect("a name").try_acquire_shared().await;
            let is_free = share.expect("memory answers").is_some();
            match told {
                Ok(told) => {
                    assert_eq!(
                        (&told["shared"], &told["fence"]),
                        (&true.into(), &hold.fence.into())
                    );
                    assert!(is_free && !is_promised);
                }
                Err(problem) => {
                    assert_eq!(problem.code, Code::Unsupported);
                    assert!(!is_free && is_promised);
                }
            }
            let back = put("{\"shared\":false}").await.map(drop);
            assert_eq!(back.map_err(|problem| problem.code), Err(Code::Invalid));
        }
    }

    /// That it is lost may be found out by the store's answer to this, before anything else tells of it.
    #[tokio::test]
    async fn what_is_lost_is_not_made_a_share_and_says_why() {
        let (service, other) = instance(Cover::Any).await;
        let who = service.auth.principal(&axum::http::HeaderMap::new()).expect("anybody");
        let wanted = Wanted { client: who.name.clone(), ..wanted(0) };
        let granted = acquire(&service, wanted, None).await.expect("it is free");
        let hold = granted.hold().expect("it is here");
        let mut request = Request::new(Body::from("{\"shared\":true}"));
        let path = format!("{PATH}{}", hold.id());
        *request.uri_mut() = path.parse().expect("a path");
        request.extensions_mut().insert(who);
        other.lock("x").expect("a name").break_lock().await.expect("memory answers");
        let told = renew(State(Arc::clone(&service)), request).await.map(drop);
        let problem = told.expect_err("it was broken");
        assert_eq!((problem.code, problem.reason()), (Code::Ended, Value::from("lost")));
    }

    /// A client that says that it relies on it no more has its promise taken back, though the lock was lost before.
    #[tokio::test]
    async fn who_gives_a_lost_hold_up_keeps_nobody_waiting() {
        let (service, other) = instance(Cover::Nothing).await;
        let who = service.auth.principal(&axum::http::HeaderMap::new()).expect("anybody");
        let wanted = Wanted { client: who.name.clone(), ..wanted(0) };
        let mut granted = acquire(&service, wanted, None).await.expect("it is free");
        let hold = granted.hold().expect("it is here").clone();
        granted.deliver();
        let lost = End::Lost(LossReason::ExpiredByServer);
        drop(service.holds.give_up(&hold, lost).await.expect("it was held"));
        let promise = promise::of(&other, "x").expect("a name");
        assert!(promise.read().await.expect("memory answers").is_some());
        for _ in 0..2 {
            let mut request = Request::new(Body::empty());
            let path = format!("{PATH}{}", hold.id());
            *request.uri_mut() = path.parse().expect("a path");
            request.extensions_mut().insert(Arc::clone(&who));
            let told = release(State(Arc::clone(&service)), request).await.map(drop);
            assert_eq!(told.map_err(|problem| problem.code), Err(Code::Ended));
            assert!(is_soon_gone(&promise).await);
        }
    }

    /// The answer to a request to renew these.
    async fn renewal(service: &Shared, holds: &[&Arc<Hold>], lease: Duration) -> Value {
        let who = service.auth.principal(&axum::http::HeaderMap::new()).expect("anybody");
        let ids: Vec<_> = holds.iter().map(|hold| hold.id()).collect();
        let body = json!({ "ids": ids, "lease_ms": millis(lease) }).to_string();
        let mut request = Request::new(Body::from(body));
        request.extensions_mut().insert(who);
        let told = renew_many(State(Arc::clone(service)), request).await.expect("answered");
        let told = axum::body::to_bytes(told.into_body(), 9_999).await.expect("a body");
        serde_json::from_slice(&told).expect("it is JSON")
    }

    /// A lease that needs the store costs no other one its renewal, and what was not made longer has not ended.
    #[tokio::test]
    async fn a_store_that_is_slow_costs_nobody_a_lease() {
        let (service, _other) = instance(Cover::Nothing).await;
        let (lease, longer) = (Duration::from_secs(30), Duration::from_secs(60));
        let passed = Duration::from_secs(3);
        let mut granted = Vec::new();
        for name in ["x", "y"] {
            let (name, client) = (name.to_owned(), "anonymous".to_owned());
            let wanted = Wanted { name, client, lease, ..wanted(0) };
            granted.push(acquire(&service, wanted, None).await.expect("it is free"));
        }
        let holds = granted.iter().map(|granted| granted.hold().expect("it is here"));
        let holds: Vec<_> = holds.collect();
        tokio::time::sleep(passed).await;
        let hanging = holds[0].promises[0].hang().await;
        let begun = std::time::Instant::now();
        let answer = renewal(&service, &holds, longer);
        let asked = tokio::time::timeout(Duration::from_millis(500), answer).await;
        assert!(asked.is_err(), "the first one waits for its promise");
        let left = service.holds.now(holds[1]).expect("it is held").expires_in;
        // It was renewed after `begun`, however long ago that is by now.
        assert!(left + begun.elapsed() >= lease, "{left:?}");
        drop(hanging);
        let told = renewal(&service, &holds, longer).await;
        assert_eq!(told["held"].as_array().map(Vec::len), Some(2), "{told}");
    }

    /// The store is asked for many at the same time, and none waits for another one.
    #[tokio::test]
    async fn a_lease_that_hangs_holds_no_other_one_up() {
        let (service, _other) = instance(Cover::Nothing).await;
        let longer = Duration::from_secs(60);
        let mut granted = Vec::new();
        for name in ["x", "y"] {
            let (name, client) = (name.to_owned(), "anonymous".to_owned());
            let wanted = Wanted { name, client, lease: longer / 2, ..wanted(0) };
            granted.push(acquire(&service, wanted, None).await.expect("it is free"));
        }
        let holds = granted.iter().map(|granted| granted.hold().expect("it is here"));
        let holds: Vec<_> = holds.collect();
        let hanging = holds[0].promises[0].hang().await;
        let prolonged = async {
            while service.holds.now(holds[1]).expect("it is held").lease < longer {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            drop(hanging);
        };
        let both = async { tokio::join!(renewal(&service, &holds, longer), prolonged) };
        let both = tokio::time::timeout(Duration::from_secs(20), both).await;
        let (told, ()) = both.expect("the second one is made longer while the first one hangs");
        assert_eq!(told["held"].as_array().map(Vec::len), Some(2), "{told}");
    }

    #[tokio::test]
    async fn what_is_not_made_longer_has_not_ended() {
        let (service, _other) = instance(Cover::Lease(Duration::from_secs(50))).await;
        let wanted =
            Wanted { lease: Duration::from_secs(20), client: "anonymous".to_owned(), ..wanted(0) };
        let granted = acquire(&service, wanted, None).await.expect("it is free");
        let hold = granted.hold().expect("it is here");
        let told = renewal(&service, &[hold], Duration::from_secs(600)).await;
        assert_eq!((&told["ended"], &told["failed"][0]["reason"]), (&json!([]), &json!("invalid")));
    }
}
