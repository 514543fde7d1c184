use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use axum::body::Body;
use axum::http::Request;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;

use super::*;

/// A request of a client of the project `p`.
pub(crate) fn request(method: &str, path: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::builder().method(method).uri(format!("/v2/queues/{path}"));
    let request = request.header("host", "localhost").header("x-project-id", "p");
    request.body(body.into()).expect("a request")
}

/// The answer to a request.
pub(crate) fn ask(
    service: &Shared,
    request: Request<Body>,
) -> impl Future<Output = Response> + use<> {
    let routes = TowerToHyperService::new(routes(service));
    async move { routes.call(request).await.expect("there is an answer to each request") }
}

/// Claims from this queue, and is gone before there is an answer.
pub(crate) async fn hang_up(service: &Shared, queue: &str) {
    let mut asked = pin!(ask(service, request("POST", &format!("{queue}/claims"), "")));
    let is_pending = poll_fn(|context| Poll::Ready(asked.as_mut().poll(context).is_pending()));
    assert!(is_pending.await && !service.under_way.is_over(), "the claim has begun");
}
