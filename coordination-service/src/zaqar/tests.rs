use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use axum::body::Body;
use axum::http::Request;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;

use super::*;
use crate::acquire::tests::instance;
use crate::settings::Cover;

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

/// H9: nobody makes the service forget what it knows for others, by looking at queues or by posting to its own.
#[tokio::test]
async fn only_queues_that_are_worked_on_are_followed() {
    let (service, _other) = instance(Cover::Any).await;
    let status = async |method, path: &str, body: &str| {
        ask(&service, request(method, path, body.to_owned())).await.status().as_u16()
    };
    assert_eq!(status("POST", "work/claims", "").await, 204);
    let one = r#"{"messages":[{"body":1}]}"#;
    assert_eq!(status("POST", "posted/messages", one).await, 201);
    for number in 0..250 {
        assert_eq!(status("GET", &format!("seen-{number}/stats"), "").await, 200);
        assert_eq!(status("GET", &format!("seen-{number}/messages"), "").await, 200);
    }
    let is_kept = |name: &str| service.queues.has(&format!("zaqar/p/{name}"));
    assert!(is_kept("work") && is_kept("posted") && !is_kept("seen-249"));
}

/// What queues keep of what they have read is bounded over all of them.
#[tokio::test]
async fn many_queues_keep_little_of_what_they_have_read() {
    let (service, _other) = instance(Cover::Any).await;
    let body = "x".repeat(100 * 1024);
    let messages = format!("{{\"messages\":[{{\"body\":\"{body}\"}},{{\"body\":\"{body}\"}}]}}");
    let mut most = 0;
    for number in 0..12 {
        for _ in 0..2 {
            let path = format!("q-{number}/messages");
            let posted = ask(&service, request("POST", &path, messages.clone())).await;
            assert_eq!(posted.status().as_u16(), 201);
            assert_eq!(ask(&service, request("GET", &path, "")).await.status().as_u16(), 200);
        }
        most = most.max(service.queues.cached_bytes());
    }
    assert!((1 << 20..=2 << 20).contains(&most), "{most} bytes were kept");
}

/// A claim that another instance has made is seen to by the one that renews it.
#[tokio::test]
async fn a_queue_whose_claims_are_renewed_is_followed() {
    let (service, _other) = instance(Cover::Any).await;
    let status = async |method, path: &str, body: &str| {
        let answer = ask(&service, request(method, path, body.to_owned())).await;
        let location = answer.headers().get("location").and_then(|path| path.to_str().ok());
        let told = (answer.status().as_u16(), location.unwrap_or_default().to_owned());
        axum::body::to_bytes(answer.into_body(), 9_999).await.expect("a body");
        told
    };
    assert_eq!(status("POST", "work/messages", r#"{"messages":[{"body":1}]}"#).await.0, 201);
    let (created, claim) = status("POST", "work/claims", "").await;
    assert_eq!(created, 201);
    service.queues.forget("zaqar/p/work");
    let claim = claim.strip_prefix("/v2/queues/").expect("a path");
    assert_eq!(status("PATCH", claim, r#"{"ttl":100}"#).await.0, 204);
    assert!(service.queues.has("zaqar/p/work"));
}

/// H10: a stop waits for what is posted, also if its client has hung up.
#[tokio::test]
async fn h10_a_post_that_has_begun_counts_until_it_is_over() {
    let (service, other) = instance(Cover::Any).await;
    let one = r#"{"messages":[{"body":1}]}"#;
    {
        let mut asked = pin!(ask(&service, request("POST", "work/messages", one)));
        let is_pending = poll_fn(|context| Poll::Ready(asked.as_mut().poll(context).is_pending()));
        assert!(is_pending.await);
    }
    assert!(!service.under_way.is_over(), "it has begun");
    while !service.under_way.is_over() {
        tokio::task::yield_now().await;
    }
    let queue = other.queue("zaqar/p/work").expect("a name");
    assert_eq!(queue.stats().await.expect("memory answers").ready, 1);
}

/// H6: whoever has renewed a claim or looked at it by its URL, which is in the head of the answer, keeps it, though the connection has not
/// taken the text.
#[tokio::test]
async fn h6_a_claim_of_which_somebody_was_told_is_not_given_back() {
    for (method, body, status) in [("PATCH", r#"{"ttl":100}"#, 204), ("GET", "", 200)] {
        let (service, other) = instance(Cover::Any).await;
        let one = r#"{"messages":[{"body":1}]}"#;
        let posted = ask(&service, request("POST", "work/messages", one)).await;
        assert_eq!(posted.status().as_u16(), 201);
        let claimed = ask(&service, request("POST", "work/claims", "")).await;
        let location = claimed.headers()["location"].to_str().expect("a path").to_owned();
        let claim = location.strip_prefix("/v2/queues/").expect("a path");
        let told = ask(&service, request(method, claim, body)).await;
        assert_eq!(told.status().as_u16(), status, "{method}");
        drop(claimed);
        while !service.under_way.is_over() {
            tokio::task::yield_now().await;
        }
        let queue = other.queue("zaqar/p/work").expect("a name");
        assert_eq!(queue.stats().await.expect("memory answers").claimed, 1, "{method}");
    }
}
