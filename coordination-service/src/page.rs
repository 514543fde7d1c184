//! The page: one text with its style and its script in it, which may load nothing else.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use data_encoding::BASE64;
use sha2::{Digest, Sha256};

const PAGE: &str = include_str!("page/index.html");

static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash("script"),
        hash("style")
    )
});

/// What stands between the tags of this name.
fn inside(tag: &str) -> &'static str {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let after = PAGE.split_once(open.as_str()).map_or("", |(_, after)| after);
    after.split_once(close.as_str()).map_or("", |(text, _)| text)
}

fn hash(tag: &str) -> String {
    format!("sha256-{}", BASE64.encode(&Sha256::digest(inside(tag).as_bytes())))
}

/// `GET /`
pub(crate) async fn page() -> Response {
    let headers = [
        ("content-type", "text/html; charset=utf-8"),
        ("content-security-policy", POLICY.as_str()),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        (header::CACHE_CONTROL.as_str(), "no-cache"),
    ];
    (headers, PAGE).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_one_small_text() {
        assert!(PAGE.len() <= 60 * 1024, "{}", PAGE.len());
        assert!(!inside("script").is_empty() && !inside("style").is_empty());
        // All text is set as text: names may have markup in them.
        for never in ["innerHTML", "outerHTML", "document.write", "eval(", "http://", "src=\""] {
            assert!(!inside("script").contains(never), "{never}");
        }
        assert!(
            !PAGE.contains(" style=\"") && !PAGE.contains(" onclick="),
            "the policy forbids it"
        );
    }
}
