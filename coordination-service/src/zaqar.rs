//! The API of OpenStack's Zaqar, version 2, for its clients as they are: messages and claims, over work queues.

mod messages;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use coordination::{ClaimId, ClaimOptions, ClaimView, WorkLimits, WorkQueue};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::oneshot;

use crate::acquire::draining;
use crate::around::{Api, Noted, around, body_within};
use crate::auth::Right;
use crate::delivery::{self, Deliver};
use crate::problem::{Code, Problem};
use crate::reply::{json, nowhere, principal};
use crate::service::{Phase, Shared};
use crate::text;

/// The most bytes of a body: a post of the largest messages, and what is written around them.
const LONGEST_BODY: usize = 512 * 1024;
/// The longest name of a queue.
const LONGEST_NAME: usize = 64;

/// All routes of the API.
pub(crate) fn routes(service: &Shared) -> Router {
    let done = || async { StatusCode::NO_CONTENT };
    let all = post(messages::post).get(messages::list).delete(messages::delete_some);
    let one = get(messages::look).delete(messages::delete);
    let claimed = get(look).patch(renew).delete(release);
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/v2/ping", get(done))
        .route("/v2/queues/{queue}", put(make).head(make))
        .route("/v2/queues/{queue}/stats", get(stats))
        .route("/v2/queues/{queue}/messages", all)
        .route("/v2/queues/{queue}/messages/{message}", one)
        .route("/v2/queues/{queue}/claims", post(claim))
        .route("/v2/queues/{queue}/claims/{claim}", claimed)
        .fallback(nowhere)
        .method_not_allowed_fallback(nowhere)
        .layer(from_fn_with_state((Arc::clone(service), Api::Zaqar), around))
        .with_state(Arc::clone(service))
}

/// The status with which its clients know that something went wrong. Others pass for success.
pub(crate) fn status(code: Code) -> StatusCode {
    match code.status().as_u16() {
        404 | 405 | 410 => StatusCode::NOT_FOUND,
        status @ (400 | 401 | 403 | 409 | 500 | 503) => {
            StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
        }
        402..500 if code != Code::RateLimited && code != Code::TooMany => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// A token as OpenStack's clients send it, in the header that is looked at elsewhere.
pub(crate) fn authorized(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    if let Some(token) = headers.remove(HeaderName::from_static("x-auth-token"))
        && !headers.contains_key(header::AUTHORIZATION)
        && let Ok(bearer) = HeaderValue::from_bytes(&[b"Bearer ", token.as_bytes()].concat())
    {
        headers.insert(header::AUTHORIZATION, bearer);
    }
    headers
}

/// A queue that a request is about.
struct Asked {
    queue: WorkQueue,
    /// Its name in the path.
    shown: String,
    /// Its name at the store, for the log.
    name: String,
}

impl Asked {
    /// The queue of this name in the caller's project, if the caller has this right to it.
    fn of(
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
        principal(request)?.needs(right, &name)?;
        let coordinator = service.coordinator()?;
        let make = |name: &String| coordinator.queue(name);
        let queue = service.queues.get(name.clone(), make)?.with_limits(WorkLimits::zaqar());
        Ok(Self { queue, shown, name })
    }

    /// The same, for what is not begun any more while the service stops.
    fn to_begin(service: &Shared, request: &Request, shown: String) -> Result<Self, Problem> {
        match service.phase() {
            Phase::Serving => Self::of(service, request, shown, Right::Use),
            _ => Err(draining()),
        }
    }

    fn noted(self, mut response: Response) -> Response {
        response.extensions_mut().insert(Noted { name: Some(self.name), ..Noted::default() });
        response
    }
}

/// Reads a body as one JSON object; an empty one is `{}`.
fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, Problem> {
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
fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// What a query says once; an error where it says something that is not known.
fn query(request: &Request, known: &[&str]) -> Result<Vec<(String, String)>, Problem> {
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
fn number(query: &[(String, String)], key: &str) -> Result<Option<usize>, Problem> {
    let given = query.iter().find(|(known, _)| known == key);
    let wrong = |_| Problem::new(Code::Invalid, format!("`{key}` is a whole number"));
    given.map(|(_, text)| text.parse().map_err(wrong)).transpose()
}

/// `PUT` and `HEAD /v2/queues/{queue}`: queues need not be made.
async fn make(
    State(service): State<Shared>,
    Path(queue): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = Asked::of(&service, &request, queue, Right::Use)?;
    Ok(asked.noted(StatusCode::NO_CONTENT.into_response()))
}

/// `GET /v2/queues/{queue}/stats`
async fn stats(
    State(service): State<Shared>,
    Path(queue): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = Asked::of(&service, &request, queue, Right::Read)?;
    let stats = asked.queue.stats().await?;
    let told = json!({ "messages": {
        "free": stats.ready + stats.delayed, "claimed": stats.claimed, "total": stats.total(),
    }});
    Ok(asked.noted(json(StatusCode::OK, &told)))
}

/// How long a claim lasts, in seconds, and its messages after it; null is as if it were not there.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Terms {
    ttl: Option<u64>,
    grace: Option<u64>,
}

/// A claim whose client may not know of it yet: given back when this is dropped before it was delivered.
struct Given {
    queue: Option<WorkQueue>,
    id: ClaimId,
}

impl Deliver for Given {
    fn deliver(&mut self) {
        self.queue = None;
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let id = self.id;
            runtime.spawn(async move {
                if let Err(error) = queue.release(id).await {
                    tracing::debug!(%error, "a claim that nobody knows of ends by its time");
                }
            });
        }
    }
}

/// Makes a claim. It is given back if nobody is there any more to receive it.
async fn given(
    queue: WorkQueue,
    options: ClaimOptions,
) -> Result<Option<(ClaimView, Given)>, Problem> {
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let id = ClaimId::random();
        let claimed = queue.claim_as(id, options).await;
        let given = claimed.map(|view| view.map(|view| (view, Given { queue: Some(queue), id })));
        // What nobody receives is dropped here.
        let _ = tell.send(given);
    });
    let failed = |_| Problem::new(Code::Internal, "the claim ended without an answer");
    Ok(told.await.map_err(failed)??)
}

/// `POST /v2/queues/{queue}/claims?limit=`
async fn claim(
    State(service): State<Shared>,
    Path(queue): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = Asked::to_begin(&service, &request, queue)?;
    let limit = number(&query(&request, &["limit"])?, "limit")?;
    let terms: Terms = read(&body_within(request, LONGEST_BODY).await?)?;
    let options = ClaimOptions::default();
    let options = limit.into_iter().fold(options, ClaimOptions::limit);
    let options = terms.ttl.map(seconds).into_iter().fold(options, ClaimOptions::ttl);
    let options = terms.grace.map(seconds).into_iter().fold(options, ClaimOptions::grace);
    let Some((view, given)) = given(asked.queue.clone(), options).await? else {
        return Ok(asked.noted(StatusCode::NO_CONTENT.into_response()));
    };
    let (id, fence) = (given.id, view.token);
    let messages = messages::shown(&asked.shown, &view.items, Some(id));
    let text = json!({ "messages": messages, "fence": fence.value() }).to_string();
    let mut response = Response::new(delivery::body(text, given));
    *response.status_mut() = StatusCode::CREATED;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("fencing-token", HeaderValue::from(fence.value()));
    if let Ok(location) = HeaderValue::from_str(&path_of(&asked.shown, id)) {
        headers.insert(header::LOCATION, location);
    }
    Ok(asked.noted(response))
}

fn path_of(queue: &str, claim: ClaimId) -> String {
    format!("/v2/queues/{queue}/claims/{claim}")
}

/// The claim of this name. Any text is one, perhaps of nothing.
fn claim_id(text: &str) -> ClaimId {
    text.parse().unwrap_or_else(|never| match never {})
}

/// `GET /v2/queues/{queue}/claims/{claim}`
async fn look(
    State(service): State<Shared>,
    Path((queue, claim)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = Asked::of(&service, &request, queue, Right::Use)?;
    let id = claim_id(&claim);
    let view = asked.queue.get(id).await.map_err(messages::unclaimed)?;
    let told = json!({
        "age": view.age.as_secs(), "ttl": view.ttl.as_secs(), "grace": view.grace.as_secs(),
        "href": path_of(&asked.shown, id), "messages": messages::shown(&asked.shown, &view.items, Some(id)),
        "fence": view.token.value(),
    });
    Ok(asked.noted(json(StatusCode::OK, &told)))
}

/// `PATCH /v2/queues/{queue}/claims/{claim}`
async fn renew(
    State(service): State<Shared>,
    Path((queue, claim)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = Asked::of(&service, &request, queue, Right::Use)?;
    let terms: Terms = read(&body_within(request, LONGEST_BODY).await?)?;
    let (ttl, grace) = (terms.ttl.map(seconds), terms.grace.map(seconds));
    let renewed = asked.queue.renew(claim_id(&claim), ttl, grace).await;
    renewed.map_err(messages::unclaimed)?;
    Ok(asked.noted(StatusCode::NO_CONTENT.into_response()))
}

/// `DELETE /v2/queues/{queue}/claims/{claim}`
async fn release(
    State(service): State<Shared>,
    Path((queue, claim)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = Asked::of(&service, &request, queue, Right::Use)?;
    asked.queue.release(claim_id(&claim)).await?;
    Ok(asked.noted(StatusCode::NO_CONTENT.into_response()))
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use axum::body::to_bytes;
    use coordination::{Coordinator, ListOptions, NewItem};

    use super::*;

    /// Waits until a claim has so many items.
    async fn claimed(queue: &WorkQueue, count: u64) {
        while queue.stats().await.expect("memory answers").claimed != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// C4: what nobody receives is given back, and what the connection has taken is not.
    #[tokio::test]
    async fn a_claim_that_nobody_received_is_given_back() {
        let coordinator = Coordinator::connect("memory://").await.expect("it is in memory");
        let queue = coordinator.queue("q").expect("a name");
        queue.post(&[NewItem::new("1")]).await.expect("posted");
        let claim = || given(queue.clone(), ClaimOptions::default());
        // The client goes away while the claim is made.
        let mut asked = Box::pin(claim());
        assert!(
            std::future::poll_fn(|context| std::task::Poll::Ready(
                asked.as_mut().poll(context).is_pending()
            ))
            .await
        );
        drop(asked);
        while queue
            .list(ListOptions { limit: 1, ..ListOptions::default() })
            .await
            .expect("it answers")
            .first()
            .is_none_or(|item| item.claims() == 0)
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        claimed(&queue, 0).await;
        // It goes away before the answer is written.
        let (_, undelivered) = claim().await.expect("an answer").expect("it is ready");
        claimed(&queue, 1).await;
        drop(delivery::body("{}".to_owned(), undelivered));
        claimed(&queue, 0).await;
        let (view, delivered) = claim().await.expect("an answer").expect("it is ready");
        assert_eq!(view.items[0].claims(), 3);
        to_bytes(delivery::body("{}".to_owned(), delivered), 9).await.expect("a body");
        tokio::time::sleep(Duration::from_millis(50)).await;
        claimed(&queue, 1).await;
        coordinator.stop().await.expect("stopped");
    }

    #[test]
    fn its_clients_know_each_status() {
        for (code, expected) in [
            (Code::Invalid, 400),
            (Code::Unauthenticated, 401),
            (Code::Forbidden, 403),
            (Code::NoSuchRoute, 404),
            (Code::Method, 404),
            (Code::Ended, 404),
            (Code::Version, 400),
            (Code::TooLarge, 400),
            (Code::WrongHost, 400),
            (Code::TooMany, 503),
            (Code::Internal, 500),
            (Code::Unsupported, 503),
            (Code::StoreAway, 503),
        ] {
            assert_eq!(status(code).as_u16(), expected, "{code:?}");
        }
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

    #[test]
    fn a_token_of_openstack_is_a_bearers() {
        let headers = |pairs: &[(HeaderName, &'static str)]| {
            let pairs =
                pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            authorized(&HeaderMap::from_iter(pairs))
        };
        let token = HeaderName::from_static("x-auth-token");
        let own = |headers: HeaderMap| headers.get(header::AUTHORIZATION).cloned();
        assert_eq!(
            own(headers(&[(token.clone(), "t")])),
            Some(HeaderValue::from_static("Bearer t"))
        );
        let basic = HeaderValue::from_static("Basic eDp0");
        assert_eq!(
            own(headers(&[(token, "t"), (header::AUTHORIZATION, "Basic eDp0")])),
            Some(basic)
        );
        assert_eq!(own(headers(&[])), None);
    }
}
