//! The native API: `/v1`, health, metrics, and the page.

mod acquire;
mod events;
mod groups;
pub(crate) mod holds;
pub(crate) mod info;
mod known;
mod names;
mod once;
mod path;
mod rates;
mod recipes;
mod resize;
mod values;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post, put};

use crate::around::{Api, around};
use crate::openapi;
use crate::page;
use crate::reply::{not_so, nowhere};
use crate::service::Shared;

/// All routes of the native API.
pub(crate) fn routes(service: &Shared) -> Router {
    let held = put(holds::renew).get(holds::look).delete(once::release);
    Router::new()
        .route("/", get(page::page))
        .merge(recipes::routes())
        .merge(rates::routes())
        .merge(values::routes())
        .merge(once::routes())
        .route("/v1/holds/{id}", held)
        .route("/v1/holds/{id}/events", get(events::of_hold))
        .route("/v1/renew", post(holds::renew_many))
        .route("/v1/events", get(events::all))
        .route("/v1/history", get(info::history))
        .route("/v1/info", get(info::info))
        .route("/openapi.json", get(openapi::openapi))
        .route("/livez", get(info::live))
        .route("/readyz", get(info::ready))
        .route("/metrics", get(info::metrics))
        .route("/problems/{code}", get(info::problem))
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so)
        .layer(from_fn_with_state((Arc::clone(service), Api::Native), around))
        .with_state(Arc::clone(service))
}

/// The routes of a listener that has metrics alone.
pub(crate) fn routes_of_metrics(service: &Shared) -> Router {
    Router::new()
        .route("/livez", get(info::live))
        .route("/readyz", get(info::ready))
        .route("/metrics", get(info::scraped))
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so)
        .layer(from_fn_with_state((Arc::clone(service), Api::Metrics), around))
        .with_state(Arc::clone(service))
}
