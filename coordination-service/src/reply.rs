//! What handlers of all APIs need: who asks, for what, and answers that are the same everywhere.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use crate::auth::Principal;
use crate::problem::{Code, Problem};

/// For paths that lead nowhere.
pub(crate) async fn nowhere() -> Problem {
    Problem::new(Code::NoSuchRoute, "there is nothing at this path; `/v1/info` says what there is")
}

/// For methods that a path does not take. The router adds those that it takes as `Allow`, which is all that `OPTIONS` asks for.
pub(crate) async fn not_so(method: Method) -> Response {
    match method {
        Method::OPTIONS => StatusCode::NO_CONTENT.into_response(),
        _ => Problem::new(Code::Method, "this path does not take this method").into_response(),
    }
}

/// An answer in JSON.
pub(crate) fn json(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// Who asks; `around` has put it there.
pub(crate) fn principal(request: &Request) -> Result<Arc<Principal>, Problem> {
    let unknown = || Problem::new(Code::Internal, "nobody knows who asks");
    request.extensions().get::<Arc<Principal>>().cloned().ok_or_else(unknown)
}

/// The rest of a path after this.
pub(crate) fn rest<'a>(request: &'a Request, prefix: &str) -> &'a str {
    request.uri().path().strip_prefix(prefix).unwrap_or_default()
}
