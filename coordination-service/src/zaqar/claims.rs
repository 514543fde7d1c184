//! Claims: what is made, looked at, renewed and given back.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use coordination::{ClaimId, ClaimOptions, ClaimView, Effect, ErrorKind, WorkQueue};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::asked::{Asked, LONGEST_BODY, number, query, read, seconds};
use super::messages::{self, Shown, claim_id, no_claim};
use super::untold::Untold;
use crate::auth::Right;
use crate::bodies::body_within;
use crate::delivery::{self, Deliver};
use crate::finishing::Finishing;
use crate::problem::{Code, Problem};
use crate::service::Shared;

/// How long a claim lasts, in seconds, and its messages after it; null is as if it were not there.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Terms {
    ttl: Option<u64>,
    grace: Option<u64>,
}

/// The answer to a claim.
#[derive(Serialize)]
struct Claimed {
    messages: Vec<Shown>,
    fence: u64,
}

/// The answer to a look at a claim.
#[derive(Serialize)]
struct Looked {
    age: u64,
    ttl: u64,
    grace: u64,
    href: String,
    messages: Vec<Shown>,
    fence: u64,
}

/// A claim whose client may not know of it yet: given back when this is dropped before it was delivered.
struct Given {
    queue: Option<WorkQueue>,
    id: ClaimId,
    untold: Arc<Untold>,
    /// A stop waits until the claim was delivered or taken back.
    finishing: Option<Finishing>,
}

impl Deliver for Given {
    fn deliver(&mut self) {
        self.queue = None;
        self.untold.end(self.id);
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else { return };
        let (id, untold) = (self.id, Arc::clone(&self.untold));
        if !untold.give_back(id) {
            return;
        }
        let (undone, finishing) = (queue.undo_claim(id), self.finishing.take());
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                undone.await;
                untold.end(id);
                drop(finishing);
            });
        }
    }
}

/// Makes a claim. It is given back if nobody is there any more to receive it.
async fn given(
    queue: WorkQueue,
    options: ClaimOptions,
    untold: Arc<Untold>,
    finishing: Finishing,
) -> Result<Option<(ClaimView, Given)>, Problem> {
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let id = ClaimId::random();
        untold.begin(id);
        let mut given =
            Given { queue: Some(queue.clone()), id, untold, finishing: Some(finishing) };
        let claimed = match queue.claim_as(id, options).await {
            Ok(Some(view)) => Ok(Some((view, given))),
            claimed => {
                // If the answer was lost, the claim may have been made, or may be made yet.
                if claimed.as_ref().err().is_none_or(|error| error.effect() != Effect::Unknown) {
                    given.deliver();
                }
                claimed.map(|_| None)
            }
        };
        // What nobody receives is dropped here.
        let _ = tell.send(claimed);
    });
    let failed = |_| Problem::new(Code::Internal, "the claim ended without an answer");
    told.await.map_err(failed)?.map_err(|error| match error.kind() {
        // Of this claim nobody was told: for its client nothing has ended.
        ErrorKind::Lost => Problem::new(Code::StoreAway, "it was lost at the store; ask again"),
        _ => error.into(),
    })
}

/// `POST /v2/queues/{queue}/claims?limit=`
pub(super) async fn claim(
    State(service): State<Shared>,
    Path(queue): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = Asked::of(&service, &request, queue, Right::Use)?;
    let limit = number(&query(&request, &["limit"])?, "limit")?;
    let terms: Terms = read(&body_within(&service, request, LONGEST_BODY).await?)?;
    let options = ClaimOptions::default();
    let options = limit.into_iter().fold(options, ClaimOptions::limit);
    let options = terms.ttl.map(seconds).into_iter().fold(options, ClaimOptions::ttl);
    let options = terms.grace.map(seconds).into_iter().fold(options, ClaimOptions::grace);
    // After the body, which may have taken long.
    let finishing = service.begin()?;
    let untold = Arc::clone(&service.untold);
    let claimed = given(asked.queue.clone(), options, untold, finishing).await?;
    asked.keep();
    let Some((view, given)) = claimed else {
        return Ok(asked.noted(StatusCode::NO_CONTENT.into_response()));
    };
    let (id, fence) = (given.id, view.token);
    let messages = messages::shown(&asked.shown, &view.items, Some(id));
    let text = messages::written(&Claimed { messages, fence: fence.value() })?;
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

/// `GET /v2/queues/{queue}/claims/{claim}`
pub(super) async fn look(
    State(service): State<Shared>,
    Path((queue, claim)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = Asked::of(&service, &request, queue, Right::Use)?;
    let id = claim_id(&claim);
    if !service.untold.tell(id) {
        return Err(no_claim());
    }
    let view = asked.queue.get(id).await.map_err(messages::unclaimed)?;
    let told = Looked {
        age: view.age.as_secs(),
        ttl: view.ttl.as_secs(),
        grace: view.grace.as_secs(),
        href: path_of(&asked.shown, id),
        messages: messages::shown(&asked.shown, &view.items, Some(id)),
        fence: view.token.value(),
    };
    Ok(asked.noted(messages::text(&told)?))
}

/// `PATCH /v2/queues/{queue}/claims/{claim}`
pub(super) async fn renew(
    State(service): State<Shared>,
    Path((queue, claim)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = Asked::of(&service, &request, queue, Right::Use)?;
    let terms: Terms = read(&body_within(&service, request, LONGEST_BODY).await?)?;
    let (ttl, grace) = (terms.ttl.map(seconds), terms.grace.map(seconds));
    let id = claim_id(&claim);
    if !service.untold.tell(id) {
        return Err(no_claim());
    }
    let renewed = asked.queue.renew(id, ttl, grace).await;
    renewed.map_err(messages::unclaimed)?;
    // Another instance may have made the claim, and not live any more: then this one knows when it was renewed last.
    asked.keep();
    Ok(asked.noted(StatusCode::NO_CONTENT.into_response()))
}

/// `DELETE /v2/queues/{queue}/claims/{claim}`
pub(super) async fn release(
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
    use std::time::Duration;

    use axum::body::to_bytes;
    use coordination::{Coordinator, NewItem};

    use super::*;
    use crate::finishing::UnderWay;

    /// Waits until a claim has so many items.
    async fn claimed(queue: &WorkQueue, count: u64) {
        let claimed = until_claimed(queue, count);
        tokio::time::timeout(Duration::from_secs(30), claimed).await.expect("in time");
    }

    async fn until_claimed(queue: &WorkQueue, count: u64) {
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
        let (under_way, untold) = (UnderWay::default(), Arc::<Untold>::default());
        let claim = || {
            let (options, finishing) = (ClaimOptions::default(), under_way.begin());
            given(queue.clone(), options, Arc::clone(&untold), finishing)
        };
        // The client goes away while the claim is made.
        let mut asked = Box::pin(claim());
        assert!(
            std::future::poll_fn(|context| std::task::Poll::Ready(
                asked.as_mut().poll(context).is_pending()
            ))
            .await
        );
        drop(asked);
        // The claim is made in any case, and taken back.
        claimed(&queue, 0).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        claimed(&queue, 0).await;
        // It goes away before the answer is written.
        let (_, undelivered) = claim().await.expect("an answer").expect("it is ready");
        claimed(&queue, 1).await;
        drop(delivery::body("{}".to_owned(), undelivered));
        claimed(&queue, 0).await;
        let (view, delivered) = claim().await.expect("an answer").expect("it is ready");
        assert_eq!(view.items[0].claims(), 1, "nobody had it before");
        to_bytes(delivery::body("{}".to_owned(), delivered), 9).await.expect("a body");
        tokio::time::sleep(Duration::from_millis(50)).await;
        claimed(&queue, 1).await;
        coordinator.stop().await.expect("stopped");
    }
}
