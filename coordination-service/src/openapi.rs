//! `GET /openapi.json`: the native API in the words of OpenAPI, kept by hand. Tests compare it with the routes, and take the ranges of
//! fields from it.

use std::sync::LazyLock;

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use data_encoding::HEXLOWER;
use serde_json::Value;
use sha2::{Digest, Sha256};

const TEXT: &str = include_str!("openapi.json");

static TAG: LazyLock<String> = LazyLock::new(|| {
    let hash = HEXLOWER.encode(&Sha256::digest(TEXT.as_bytes()));
    format!("\"{}\"", &hash[..16])
});

/// What there is, for `/v1/info`.
pub(crate) static PATHS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let document: Value = serde_json::from_str(TEXT).unwrap_or_default();
    let paths = document["paths"].as_object().into_iter().flatten();
    paths.map(|(path, _)| path.clone()).collect()
});

/// `GET /openapi.json`
pub(crate) async fn openapi(request: Request) -> Response {
    let given = request.headers().get_all(header::IF_NONE_MATCH).iter();
    let mut tags = given.filter_map(|tags| tags.to_str().ok()).flat_map(|tags| tags.split(','));
    let is_known = tags.any(|tag| matches!(tag.trim(), "*") || tag.trim() == TAG.as_str());
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::ETAG, TAG.as_str()),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    match is_known {
        true => (StatusCode::NOT_MODIFIED, headers).into_response(),
        false => (headers, TEXT).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::Router;
    use axum::body::Body;
    use axum::http::Method;
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;

    use super::*;
    use crate::acquire::tests::instance;
    use crate::settings::Cover;
    use crate::v1;

    fn document() -> Value {
        serde_json::from_str(TEXT).expect("it is JSON")
    }

    /// H11: each path of the API is in the document, and each path of the document in the API, with the same methods.
    #[tokio::test]
    async fn h11_the_document_has_all_routes_and_no_others() {
        let (service, _other) = instance(Cover::Any).await;
        let routes = v1::routes(&service);
        // The router tells of its paths in no other way.
        let told = format!("{routes:?}");
        let quoted = told.split('"').filter(|text| text.starts_with('/'));
        let served: BTreeSet<_> = quoted
            .filter(|path| !path.contains("__private"))
            .map(|path| path.replace("{*", "{"))
            .collect();
        let document = document();
        let paths = document["paths"].as_object().expect("it has paths");
        assert_eq!(paths.keys().cloned().collect::<BTreeSet<_>>(), served);
        let routes = TowerToHyperService::new(routes);
        for (path, operations) in paths {
            assert_eq!(allowed(&routes, path).await, documented(operations), "{path}");
            let at = path.replace(['{', '}'], "");
            for method in [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
                let asked = Request::builder().method(&method).uri(&at).header("host", "localhost");
                let asked = asked.body(Body::empty()).expect("a request");
                let status = routes.call(asked).await.expect("an answer").status();
                let is_there = operations.get(method.as_str().to_lowercase()).is_some();
                let is_taken = status != StatusCode::METHOD_NOT_ALLOWED;
                assert_eq!(is_taken, is_there, "{method} {path}: {status}");
            }
        }
    }

    /// The methods that a path takes, in the words of its answer to `OPTIONS`.
    async fn allowed(routes: &TowerToHyperService<Router>, path: &str) -> BTreeSet<String> {
        let asked = Request::builder().method(Method::OPTIONS).header("host", "localhost");
        let asked = asked.uri(path.replace(['{', '}'], "")).body(Body::empty());
        let told = routes.call(asked.expect("a request")).await.expect("an answer");
        assert_eq!(told.status(), StatusCode::NO_CONTENT, "{path}");
        let methods = told.headers().get("allow").expect("it is told").to_str().expect("text");
        methods.split(',').map(str::to_owned).collect()
    }

    /// Those that the document has.
    fn documented(operations: &Value) -> BTreeSet<String> {
        let methods = ["get", "head", "post", "put", "delete"].into_iter();
        // Whatever is read can be asked for without its body.
        let stands_for = |method: &'static str| if method == "head" { "get" } else { method };
        let has = |method: &&'static str| operations.get(stands_for(method)).is_some();
        methods.filter(has).map(str::to_uppercase).collect()
    }

    /// What is named is there, operations have names of their own, and what is in a path is a parameter.
    #[test]
    fn h11_the_document_holds_together() {
        let document = document();
        for reference in TEXT.split("\"$ref\": \"").skip(1) {
            let pointer = reference.split('"').next().unwrap_or_default().trim_start_matches('#');
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
        let mut ids = BTreeSet::new();
        for (path, operations) in document["paths"].as_object().expect("it has paths") {
            let parameters = operations["parameters"].as_array().map_or(0, Vec::len);
            assert_eq!(parameters, path.matches('{').count(), "{path}");
            for operation in operations.as_object().expect("it is one").values() {
                let Some(id) = operation.get("operationId") else { continue };
                assert!(ids.insert(id.to_string()), "{id} is there twice");
                assert!(operation["responses"].get("default").is_some(), "{id}");
            }
        }
    }
}
