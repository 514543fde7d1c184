//! What a path says: which recipe, and which name.

use axum::extract::Request;

use crate::kind::Kind;
use crate::problem::{Code, Problem};
use crate::text;

/// The recipe and the rest of a path.
pub(super) fn of_path(request: &Request) -> Result<(Kind, &str), Problem> {
    let path = request.uri().path();
    let rest = path.strip_prefix("/v1/").unwrap_or_default();
    let (segment, name) = rest.split_once('/').unwrap_or((rest, ""));
    let unknown = || Problem::new(Code::NoSuchRoute, "there is no such recipe");
    Ok((Kind::of_segment(segment).ok_or_else(unknown)?, name))
}

/// The recipe and the name in a path.
pub(super) fn named(request: &Request) -> Result<(Kind, String), Problem> {
    let (kind, name) = of_path(request)?;
    Ok((kind, text::name(name)?))
}
