//! `/v1/groups/{name}`: make a group, delete it, take a member away.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use coordination::ErrorKind;
use serde_json::json;

use super::path::named;
use crate::around::Noted;
use crate::auth::Right;
use crate::bodies::body;
use crate::fields::Fields;
use crate::holds::{End, Hold};
use crate::kind::Kind;
use crate::look;
use crate::problem::{Code, Problem};
use crate::reply::{json, principal};
use crate::service::Shared;
use crate::text;

fn noted(mut response: Response, name: String) -> Response {
    response.extensions_mut().insert(Noted::name(Kind::Group, name));
    response
}

/// `PUT /v1/groups/{name}`
pub(super) async fn create(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let (_, name) = named(&request)?;
    who.needs(Right::Use, &name)?;
    Fields::parse(&body(&service, request).await?)?.done()?;
    let status = match service.coordinator()?.group(&name)?.create().await {
        Ok(()) => StatusCode::CREATED,
        Err(error) if error.kind() == ErrorKind::GroupExists => StatusCode::NO_CONTENT,
        Err(error) => return Err(error.into()),
    };
    Ok(noted(status.into_response(), name))
}

/// `DELETE /v1/groups/{name}`, or of a member: `?member=ID`
pub(super) async fn delete(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let (_, name) = named(&request)?;
    who.needs(Right::Admin, &name)?;
    // Whoever means a member is not to delete the group by a slip of the pen.
    let mut query = text::query(request.uri().query()).into_iter();
    let member = match (query.next(), query.next()) {
        (None, _) => None,
        (Some((key, member)), None) if key == "member" => Some(member),
        _ => return Err(Problem::new(Code::Invalid, "known is `member`, once")),
    };
    let response = match member {
        Some(member) => {
            tracing::warn!(name, member, by = who.name, "taking a member away");
            without(&service, &name, &member).await?
        }
        None => {
            service.coordinator()?.group(&name)?.delete().await?;
            StatusCode::NO_CONTENT.into_response()
        }
    };
    Ok(noted(response, name))
}

/// Takes a member away, and answers who it was.
async fn without(service: &Shared, name: &str, member: &str) -> Result<Response, Problem> {
    let coordinator = service.coordinator()?;
    let before = look::entries(service, &coordinator, Kind::Group, name, look::SAID).await?;
    let Some(entry) = before.iter().find(|entry| entry["who"] == member) else {
        return Err(Problem::new(Code::Changed, "nothing was done").with("entries", before));
    };
    let is_meant = |hold: &Hold| hold.member.as_deref() == Some(member);
    match service.holds.of_name(Kind::Group, name, is_meant) {
        Some(hold) => {
            let left = || Problem::new(Code::Changed, "the member left by itself");
            service.holds.give_up(&hold, End::Broken).await.map_err(|_| left())??;
        }
        None => drop(coordinator.group(name)?.remove(member).await?),
    }
    Ok(json(StatusCode::OK, &json!({ "broken": entry })))
}
