//! The API of lockable.dev, for its client as it is. The holder is known by its token and its address.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::get;
use serde_json::json;

use crate::acquire;
use crate::around::{Api, around};
use crate::auth::{Principal, Right};
use crate::holds::{End, Hold};
use crate::kind::Kind;
use crate::peer::Peer;
use crate::problem::{Code, Problem};
use crate::proxies::Client;
use crate::reply::{self, not_so, nowhere, principal, rest};
use crate::service::{Phase, Shared};
use crate::text;
use crate::v1::{holds, info};
use crate::wanted::{Wanted, What};

/// All routes of the API.
pub(crate) fn routes(service: &Shared) -> Router {
    Router::new()
        .route("/livez", get(info::live))
        .route("/readyz", get(info::ready))
        .route("/v1/acquire/{*name}", get(acquire))
        .route("/v1/heartbeat/{*name}", get(heartbeat))
        .route("/v1/release/{*name}", get(release))
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so)
        .layer(from_fn_with_state((Arc::clone(service), Api::Lockable), around))
        .with_state(Arc::clone(service))
}

/// Who asks for which lock: each token has locks of its own.
struct Caller {
    name: String,
    client: String,
    who: Arc<Principal>,
    address: IpAddr,
}

fn caller(request: &Request, path: &str) -> Result<Caller, Problem> {
    // A GET changes state here, so what browsers send by themselves is refused.
    let is_prefetch = ["purpose", "sec-purpose", "x-moz"]
        .iter()
        .any(|name| request.headers().contains_key(*name));
    if request.method() == Method::HEAD || is_prefetch {
        return Err(Problem::new(Code::Method, "only GET, and no prefetch, as this changes state"));
    }
    let who = principal(request)?;
    let name = text::name(&format!("lockable/{}/{}", who.name, rest(request, path)))?;
    who.needs(Right::Use, &name)?;
    let address = match (request.extensions().get::<Client>(), request.extensions().get::<Peer>()) {
        (Some(Client(address)), _) => Some(*address),
        (None, Some(Peer::Address(address))) => Some(address.ip()),
        (None, Some(Peer::User(_)) | None) => None,
    };
    let unknown = || Problem::new(Code::Internal, "nobody knows where this came from");
    let address = address.ok_or_else(unknown)?;
    Ok(Caller { name, client: who.name.clone(), who, address })
}

fn answer(is_so: bool) -> Response {
    reply::json(StatusCode::OK, &json!({ "response": is_so }))
}

/// `GET /v1/acquire/{name}`: one try. Whatever waiting may mend is answered by false: any other status ends the client.
async fn acquire(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let caller = caller(&request, "/v1/acquire/")?;
    let wanted = Wanted {
        title: caller.address.to_string(),
        what: What::Lock { shared: false },
        name: caller.name,
        wait: Duration::ZERO,
        keep: Duration::ZERO,
        lease: service.settings.lockable_lease,
        // It is told whether it has a lock, and nothing else.
        relies_on_lease: true,
        client: caller.client,
        who: caller.who,
    };
    match acquire::acquire(&service, wanted, None).await {
        // What is over by now was never had.
        Ok(granted) if service.holds.now(granted.hold()?).is_err() => Ok(answer(false)),
        Ok(granted) => {
            let mut response = Response::new(granted.body(json!({ "response": true }).to_string()));
            let kind = header::HeaderValue::from_static("application/json");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            Ok(response)
        }
        Err(problem)
            if problem.code.status().as_u16() == 409
                || problem.code.status().as_u16() >= 500
                || problem.code == Code::TooMany =>
        {
            Ok(answer(false))
        }
        Err(problem) => Err(problem),
    }
}

impl Caller {
    /// Whether it is the one to whom this was granted, from where it asks.
    fn has(&self, hold: &Hold) -> bool {
        hold.client == self.client && hold.title == self.address.to_string()
    }
}

/// What the caller holds under this name.
fn held(service: &Shared, caller: &Caller) -> Option<Arc<Hold>> {
    service.holds.of_name(Kind::Lock, &caller.name, |hold| caller.has(hold))
}

/// `GET /v1/heartbeat/{name}`: true, and the lease begins anew, as long as it is the caller's.
async fn heartbeat(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let caller = caller(&request, "/v1/heartbeat/")?;
    let Some(hold) = held(&service, &caller) else { return Ok(answer(false)) };
    let is_held = holds::renewed(&service, &hold, None).await.is_ok();
    // Then nothing is renewed any more, and this answer cannot say how much of the lease is left. It is looked at afterwards: if a stop
    // comes to this between the two, what was not renewed is not told of as renewed.
    Ok(answer(is_held && service.phase() != Phase::Ending))
}

/// `GET /v1/release/{name}`
async fn release(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let caller = caller(&request, "/v1/release/")?;
    let released = match held(&service, &caller) {
        Some(hold) => service.holds.give_up(&hold, End::Released).await.is_ok(),
        None => false,
    };
    if !released {
        // What was lost before: nobody is to wait for what was promised.
        service.holds.take_back_of_name(&caller.name, |hold| caller.has(hold));
    }
    Ok(answer(released))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use coordination::LossReason;

    use super::*;
    use crate::acquire::tests::{instance, is_soon_gone};
    use crate::metrics;
    use crate::promise;
    use crate::settings::Cover;

    const OURS: [u8; 4] = [127, 0, 0, 1];

    /// A request of anybody at this address.
    fn asked(service: &Shared, path: &str, address: [u8; 4]) -> Request {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = path.parse().expect("a path");
        let who = service.auth.principal(&header::HeaderMap::new()).expect("anybody");
        request.extensions_mut().insert(who);
        request.extensions_mut().insert(Peer::Address((address, 1).into()));
        request
    }

    /// The text of an answer.
    async fn told(answer: Result<Response, Problem>) -> String {
        let body = axum::body::to_bytes(answer.expect("answered").into_body(), 99).await;
        String::from_utf8(body.expect("a body").into()).expect("text")
    }

    /// What is ours from now on.
    async fn granted(service: &Shared) -> Arc<Hold> {
        let request = asked(service, "/v1/acquire/x", OURS);
        told(acquire(State(Arc::clone(service)), request).await).await;
        service.holds.live().pop().expect("it is held")
    }

    /// What our heartbeat is answered.
    async fn renewed(service: &Shared) -> String {
        let request = asked(service, "/v1/heartbeat/x", OURS);
        told(heartbeat(State(Arc::clone(service)), request).await).await
    }

    /// A client that gives a lock up that was lost before has its promise taken back, but not that of another address.
    #[tokio::test]
    async fn who_gives_a_lost_lock_up_keeps_nobody_waiting() {
        let (service, other) = instance(Cover::Nothing).await;
        let theirs = [127, 0, 0, 2];
        let hold = granted(&service).await;
        let lost = End::Lost(LossReason::ExpiredByServer);
        drop(service.holds.give_up(&hold, lost).await.expect("it was held"));
        let promise = promise::of(&other, &hold.name).expect("a name");
        let released = async |address| {
            let request = asked(&service, "/v1/release/x", address);
            told(release(State(Arc::clone(&service)), request).await).await
        };
        assert_eq!(released(theirs).await, r#"{"response":false}"#);
        assert!(service.holds.undeleted.is_empty());
        assert!(promise.read().await.expect("memory answers").is_some());
        assert_eq!(released(OURS).await, r#"{"response":false}"#);
        assert!(is_soon_gone(&promise).await);
    }

    /// H2: a client of this API goes by the whole lease when its heartbeat is answered, though less than that may be left of our session. So
    /// a promise keeps it, though the store would.
    #[tokio::test]
    async fn h2_the_whole_lease_is_promised() {
        let (service, other) = instance(Cover::Lease(Duration::from_secs(100))).await;
        let hold = granted(&service).await;
        let promise = promise::of(&other, &hold.name).expect("a name");
        let found = promise.read().await.expect("memory answers").expect("it is promised");
        assert!(found.value.is_of(hold.fence, service.settings.lockable_lease), "{found:?}");
        let request = asked(&service, "/v1/release/x", OURS);
        let released = told(release(State(Arc::clone(&service)), request).await).await;
        assert_eq!(released, r#"{"response":true}"#);
        assert!(promise.read().await.expect("memory answers").is_none());
    }

    /// H2, LD1: who sends one heartbeat and no further one is known by that, and not who sends none, or several.
    #[tokio::test]
    async fn h2_a_lease_that_ends_after_one_heartbeat_is_counted() {
        let (service, _other) = instance(Cover::Any).await;
        let is_counted = |times: u32| {
            let series = format!("coordination_lockable_one_heartbeat_total {times}");
            metrics::text().lines().any(|line| line == series)
        };
        for (heartbeats, end, counted) in [
            (0, End::Expired, 0),
            (1, End::Released, 0),
            (1, End::Expired, 1),
            (2, End::Expired, 1),
        ] {
            let hold = granted(&service).await;
            for _ in 0..heartbeats {
                assert_eq!(renewed(&service).await, r#"{"response":true}"#);
            }
            drop(service.holds.give_up(&hold, end).await.expect("it was held"));
            assert_eq!(is_counted(1), counted == 1, "{heartbeats} heartbeats, {end:?}");
        }
        assert!(!is_counted(2));
    }

    /// H10: who is told that its lease begins anew has a new one.
    #[tokio::test]
    async fn h10_nobody_is_told_of_a_renewal_that_does_not_take_place() {
        let (service, _other) = instance(Cover::Any).await;
        granted(&service).await;
        for (phase, expected) in [(Phase::Draining, true), (Phase::Ending, false)] {
            service.phase.send_replace(phase);
            let expected = json!({ "response": expected }).to_string();
            assert_eq!(renewed(&service).await, expected, "{phase:?}");
        }
    }
}
