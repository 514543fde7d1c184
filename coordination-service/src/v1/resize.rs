//! `PUT` of a recipe whose settings are stored: other settings for all who ask from now on.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::acquire::{PERMITS, places};
use super::path::named;
use crate::around::Noted;
use crate::auth::Right;
use crate::bodies::body;
use crate::fields::Fields;
use crate::kind::Kind;
use crate::problem::Problem;
use crate::reply::principal;
use crate::service::Shared;

/// The name, if the caller may change its settings, and the body.
async fn asked(service: &Shared, request: Request) -> Result<(Kind, String, Fields), Problem> {
    let who = principal(&request)?;
    let (kind, name) = named(&request)?;
    who.needs(Right::Admin, &name)?;
    Ok((kind, name, Fields::parse(&body(service, request).await?)?))
}

fn done(kind: Kind, name: String) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    response.extensions_mut().insert(Noted::name(kind, name));
    response
}

/// `PUT /v1/semaphores/{name}`
pub(super) async fn semaphore(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let (kind, name, mut fields) = asked(&service, request).await?;
    fields.needs("permits");
    let permits = fields.count("permits", 1..=PERMITS.0).unwrap_or(PERMITS.0);
    fields.done()?;
    service.coordinator()?.semaphore(&name, permits)?.resize(permits).await?;
    Ok(done(kind, name))
}

/// `PUT /v1/limiters/{name}`
pub(super) async fn limiter(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let (kind, name, mut fields) = asked(&service, request).await?;
    fields.needs("slots");
    let places = places(&mut fields);
    fields.done()?;
    places.of(&service.coordinator()?, &name)?.resize(places.slots).await?;
    Ok(done(kind, name))
}
