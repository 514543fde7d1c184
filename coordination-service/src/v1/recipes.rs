//! `/v1/{recipe}`: list the names, look at one, take a grant away.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use coordination::FencingToken;
use data_encoding::HEXLOWER;
use serde_json::{Value, json};

use super::known::{Known, not_modified, tagged};
use super::names::Names;
use super::path::{named, of_path};
use super::{acquire, groups, resize};
use crate::acquire::break_grant;
use crate::around::Noted;
use crate::auth::{Principal, Right};
use crate::holds::End;
use crate::kind::Kind;
use crate::look;
use crate::mirror::steady;
use crate::problem::{Code, Problem};
use crate::reply::{json, principal};
use crate::service::Shared;
use crate::text;

/// The routes of all recipes whose grants are holds.
pub(super) fn routes() -> Router<Shared> {
    Kind::ALL.into_iter().fold(Router::new(), |router, kind| {
        let segment = kind.segment();
        router
            .route(&format!("/v1/{segment}"), of_recipe(kind))
            .route(&format!("/v1/{segment}/{{*name}}"), of_name(kind))
    })
}

fn of_recipe(kind: Kind) -> MethodRouter<Shared> {
    match kind {
        Kind::Lock => get(list).post(acquire::acquire_several),
        _ => get(list),
    }
}

fn of_name(kind: Kind) -> MethodRouter<Shared> {
    let common = post(acquire::acquire).get(look);
    match kind {
        Kind::Lock | Kind::Election => common.delete(take_away),
        Kind::Semaphore => common.put(resize::semaphore).delete(take_away),
        Kind::Limiter => common.put(resize::limiter).delete(take_away),
        Kind::Group => common.put(groups::create).delete(groups::delete),
    }
}

/// `GET /v1/{recipe}?prefix=&after=&limit=`
async fn list(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let (kind, _) = of_path(&request)?;
    let asked = Names::of(&request)?;
    Ok(asked.answer(&who, look::names(&service.coordinator()?, kind).await?))
}

/// `GET /v1/{recipe}/{name}`
async fn look(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let (kind, name) = named(&request)?;
    let who = principal(&request)?;
    who.needs(Right::Read, &name)?;
    let known = Known::of(&service, request.headers(), &[kind])?;
    let mut is_over = !known.is_waiting();
    loop {
        let since = service.mirror.last();
        let coordinator = service.coordinator()?;
        let entries = look::entries(&service, &coordinator, kind, &name, look::SAID).await?;
        let stored = look::stored(&coordinator, kind, &name).await?;
        let steady = &HEXLOWER.encode(&steady(&entries))[..16];
        let tag = match stored {
            Some(number) => format!("W/\"{steady}.{number}\""),
            None => format!("W/\"{steady}\""),
        };
        if !known.has(&tag) {
            return Ok(tagged(looked(kind, &name, entries, stored), &tag));
        }
        if is_over {
            return Ok(not_modified(&tag));
        }
        // Not all that is told here is in the mirror, nor at once: when the time is over it is looked at again.
        let change = service.mirror.changed(kind, &name, since);
        is_over = !known.changed(&service, (&who, &name), change).await?;
    }
}

/// Who holds it and who waits, as it is told, and how many there are of it.
fn looked(kind: Kind, name: &str, entries: Vec<Value>, stored: Option<u32>) -> Response {
    let mut told = json!({ "kind": kind.text(), "name": name });
    match kind {
        Kind::Semaphore => told["permits"] = stored.into(),
        Kind::Limiter => told["slots"] = stored.into(),
        Kind::Lock | Kind::Election | Kind::Group => {}
    }
    if kind == Kind::Election {
        let leader = entries.first().filter(|entry| entry["state"] == "leading");
        for (field, of) in [("leader", "who"), ("term", "fence"), ("value", "value")] {
            told[field] = leader.map(|leader| leader[of].clone()).into();
        }
    }
    told["entries"] = entries.into();
    json(StatusCode::OK, &told)
}

/// `DELETE /v1/{recipe}/{name}?fence=N`
async fn take_away(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let (kind, name) = named(&request)?;
    who.needs(Right::Admin, &name)?;
    let fence = fence(&request)?;
    let coordinator = service.coordinator()?;
    let before = look::entries(&service, &coordinator, kind, &name, look::SAID).await?;
    let is_meant = |entry: &&Value| entry["fence"].as_u64() == Some(fence.value());
    let Some(entry) = before.iter().find(is_meant) else {
        return Err(Problem::new(Code::Changed, "nothing was done").with("entries", before));
    };
    if !is_taken_away(&service, &who, kind, &name, fence).await? {
        return Err(Problem::new(Code::Changed, "it ended by itself; nothing was done"));
    }
    let mut response = json(StatusCode::OK, &json!({ "broken": entry }));
    response.extensions_mut().insert(Noted::name(kind, name));
    Ok(response.into_response())
}

/// The fence that a query has.
fn fence(request: &Request) -> Result<FencingToken, Problem> {
    let query = text::query(request.uri().query());
    let given = query.iter().find(|(key, _)| key == "fence");
    let given = given
        .ok_or_else(|| Problem::new(Code::FenceMissing, "say by ?fence=N which grant is meant"))?;
    let fence = given.1.parse().ok().and_then(FencingToken::new);
    fence.ok_or_else(|| Problem::new(Code::Invalid, "a fence is a number of 1 or more"))
}

/// Takes a grant away; false: it had ended before.
async fn is_taken_away(
    service: &Shared,
    who: &Principal,
    kind: Kind,
    name: &str,
    fence: FencingToken,
) -> Result<bool, Problem> {
    let told =
        || tracing::warn!(kind = kind.text(), name, %fence, by = who.name, "taking a grant away");
    if let Some(hold) = service.holds.of_fence(kind, name, fence.value()) {
        told();
        return match service.holds.give_up(&hold, End::Broken).await {
            Ok(confirmed) => Ok(confirmed.map(|()| true)?),
            Err(_) => Ok(false),
        };
    }
    told();
    if service.queued.take_away(kind, name, fence.value()) {
        return Ok(true);
    }
    let coordinator = service.coordinator()?;
    Ok(match kind {
        // Their numbers do not matter to who takes away.
        Kind::Semaphore => coordinator.semaphore(name, 1)?.break_grant(fence).await?.is_some(),
        Kind::Limiter => coordinator.limiter(name)?.break_grant(fence).await?.is_some(),
        Kind::Election => coordinator.election(name)?.break_grant(fence).await?.is_some(),
        Kind::Lock => break_grant(service, name, fence).await?,
        Kind::Group => {
            let why = "a member is taken away by ?member=ID";
            return Err(Problem::new(Code::Unsupported, why));
        }
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::time::Duration;

    use axum::body::Body;
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;

    use super::*;
    use crate::acquire::tests::{Disk, instance, is_soon_gone};
    use crate::promise::{self, Promise};
    use crate::settings::Cover;
    use crate::v1;

    /// A store that refuses the promise of a lock has nothing taken away, and whoever is told so can ask again.
    #[tokio::test]
    async fn what_is_told_not_to_be_taken_away_is_held() {
        let disk = Disk::new();
        let (service, other) = disk.instance().await;
        let lock = other.lock("x").expect("a name");
        let guard = lock.acquire(None).await.expect("it is free");
        let fence = guard.token();
        let value = promise::of(&other, "x").expect("a name");
        let promised = Promise::new(value.clone(), fence.value(), "deadbeef.one");
        let promised = promised.write(None, Duration::from_secs(3_600)).await;
        assert!(promised.expect("the store answers"), "nobody else writes");
        let boss = Arc::new(Principal::administrator("boss".to_owned()));
        let ask = async || {
            let mut asked = Request::new(Body::empty());
            *asked.uri_mut() = format!("/v1/locks/x?fence={fence}").parse().expect("a path");
            asked.extensions_mut().insert(Arc::clone(&boss));
            take_away(State(Arc::clone(&service)), asked).await.map(|told| told.status())
        };
        let path = disk.take("promise");
        let told = ask().await.expect_err("the store refuses");
        let body: Value = serde_json::from_str(&told.text("r")).expect("it is JSON");
        assert_eq!((&body["code"], body.get("effect")), (&"store-away".into(), None), "{body}");
        assert_eq!(lock.holders().await.expect("the store answers").len(), 1, "nothing was done");
        disk.give_back(&path);
        assert_eq!(ask().await.expect("the store answers"), StatusCode::OK);
        assert!(lock.holders().await.expect("the store answers").is_empty());
        assert!(is_soon_gone(&value).await);
    }

    /// What no row tells of, or not yet, is looked at when the time is over, before somebody is told that nothing has changed.
    #[tokio::test]
    async fn what_the_rows_do_not_tell_is_looked_at() {
        let (service, other) = instance(Cover::Any).await;
        let group = other.group("x").expect("a name");
        group.create().await.expect("there is none");
        let member = group.join_as("m", &1).await.expect("nobody is there");
        let routes = TowerToHyperService::new(v1::routes(&service));
        let look = async |headers: &[(&str, &str)]| {
            let mut asked = Request::builder().uri("/v1/groups/x").header("host", "localhost");
            for (name, value) in headers {
                asked = asked.header(*name, *value);
            }
            routes.call(asked.body(Body::empty()).expect("a request")).await.expect("an answer")
        };
        let first = look(&[]).await;
        let tag = first.headers()["etag"].to_str().expect("a text").to_owned();
        let known = [("if-none-match", tag.as_str()), ("prefer", "wait=1")];
        assert_eq!(look(&known).await.status(), StatusCode::NOT_MODIFIED);
        // Nobody reads rows here.
        let updates = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            member.update(&2).await.expect("it is a member");
            std::future::pending::<Infallible>().await
        };
        // In this order: on a machine that stands still until the time of the look is over, the member is updated first all the same.
        let told = tokio::select! {
            biased;
            never = updates => match never {},
            told = look(&known) => told,
        };
        assert_eq!(told.status(), StatusCode::OK);
        assert_ne!(told.headers()["etag"], tag.as_str());
    }

    /// How many there are is told, and the tag is another one when that has been changed.
    #[tokio::test]
    async fn a_look_tells_the_stored_number() {
        let (service, other) = instance(Cover::Any).await;
        let mut semaphore = other.semaphore("x", 3).expect("a name");
        let _permit = semaphore.acquire(None).await.expect("it is free");
        let limiter = other.limiter("x").expect("a name").slots(2);
        let _slot = limiter.enter().await.expect("memory answers");
        let routes = TowerToHyperService::new(v1::routes(&service));
        let look = async |path: &str| {
            let asked = Request::builder().uri(path).header("host", "localhost");
            let asked = asked.body(Body::empty()).expect("a request");
            let answer = routes.call(asked).await.expect("an answer");
            let tag = answer.headers()["etag"].to_str().expect("a text").to_owned();
            let text = axum::body::to_bytes(answer.into_body(), 65_536).await.expect("a body");
            (tag, serde_json::from_slice::<Value>(&text).expect("it is JSON"))
        };
        let (tag, told) = look("/v1/semaphores/x").await;
        assert_eq!((&told["permits"], told.get("slots")), (&3.into(), None), "{told}");
        let (_, told) = look("/v1/limiters/x").await;
        assert_eq!((&told["slots"], told.get("permits")), (&2.into(), None), "{told}");
        assert!(look("/v1/semaphores/unknown").await.1["permits"].is_null());
        assert!(look("/v1/locks/x").await.1.get("permits").is_none());
        semaphore.resize(5).await.expect("memory answers");
        let (later, told) = look("/v1/semaphores/x").await;
        assert_eq!(told["permits"], 5);
        assert_ne!(later.split('.').next_back(), tag.split('.').next_back());
    }
}
