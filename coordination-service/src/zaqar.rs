//! The API of OpenStack's Zaqar, version 2, for its clients as they are: messages and claims, over work queues.

mod asked;
mod claims;
mod messages;
#[cfg(test)]
pub(crate) mod tests;
mod untold;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use serde_json::json;

use self::asked::Asked;
pub(crate) use self::untold::Untold;
use crate::around::{Api, around};
use crate::auth::Right;
use crate::problem::Problem;
use crate::reply::{json, nowhere};
use crate::service::Shared;
use crate::v1::info;

/// All routes of the API.
pub(crate) fn routes(service: &Shared) -> Router {
    let done = || async { StatusCode::NO_CONTENT };
    let all = post(messages::post).get(messages::list).delete(messages::delete_some);
    let one = get(messages::look).delete(messages::delete);
    let claimed = get(claims::look).patch(claims::renew).delete(claims::release);
    Router::new()
        .route("/livez", get(info::live))
        .route("/readyz", get(info::ready))
        .route("/v2/ping", get(done))
        .route("/v2/queues/{queue}", put(make).head(make))
        .route("/v2/queues/{queue}/stats", get(stats))
        .route("/v2/queues/{queue}/messages", all)
        .route("/v2/queues/{queue}/messages/{message}", one)
        .route("/v2/queues/{queue}/claims", post(claims::claim))
        .route("/v2/queues/{queue}/claims/{claim}", claimed)
        .fallback(nowhere)
        .method_not_allowed_fallback(nowhere)
        .layer(from_fn_with_state((Arc::clone(service), Api::Zaqar), around))
        .with_state(Arc::clone(service))
}

/// `PUT` and `HEAD /v2/queues/{queue}`: queues need not be made.
async fn make(
    State(service): State<Shared>,
    Path(queue): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = Asked::of(&service, &request, queue, Right::Read)?;
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
