//! `/v1/rates/{name}`: permits of a rate limiter.

use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use coordination::{Attempt, ErrorKind, RateLimiter, RatePermit};
use serde_json::json;

use crate::around::Noted;
use crate::auth::Right;
use crate::bodies::body;
use crate::fields::Fields;
use crate::keys;
use crate::metrics;
use crate::problem::{Code, Problem};
use crate::rates::{Limit, Rate};
use crate::reply::{json, principal, rest};
use crate::service::{Phase, Shared};
use crate::text::{self, LONGEST_WAIT, millis};
use crate::waited::waiting;

const PATH: &str = "/v1/rates/";
/// The most permits of a request, and of a limit whose permits may be had at once.
const PERMITS: u32 = 10_000;
/// The most permits of a limit that gives one after the other.
const PACED_PERMITS: u32 = 1_000_000;
/// The longest window and the longest margin, in milliseconds.
const LONGEST_WINDOW: u64 = 86_400_000;

/// The routes of rate limiters.
pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/v1/rates/{*name}", post(acquire).put(replace))
}

/// The settings that a body has.
fn rate(fields: &mut Fields) -> Rate {
    let is_paced = fields.flag("paced").unwrap_or(false);
    let most = if is_paced { PACED_PERMITS } else { PERMITS };
    let limits = fields.objects("limits", 1..=8, |limit| {
        limit.needs("permits");
        limit.needs("per_ms");
        let permits = limit.count("permits", 1..=most).unwrap_or(1);
        let per = limit.millis("per_ms", 1..=LONGEST_WINDOW).unwrap_or(Duration::from_secs(1));
        Limit { permits, per }
    });
    let margin = fields.millis("margin_ms", 0..=LONGEST_WINDOW).unwrap_or_default();
    Rate { limits, margin, is_paced }
}

fn noted(mut response: Response, name: String) -> Response {
    response.extensions_mut().insert(Noted { name: Some(name), ..Noted::default() });
    response
}

/// `POST /v1/rates/{name}`
async fn acquire(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let name = text::name(rest(&request, PATH))?;
    who.needs(Right::Use, &name)?;
    keys::refuse(request.headers())?;
    let mut fields = Fields::parse(&body(&service, request).await?)?;
    let permits = fields.count("permits", 1..=PERMITS).unwrap_or(1);
    let wait = fields.millis("wait_ms", 0..=LONGEST_WAIT).unwrap_or_default();
    let rate = rate(&mut fields);
    fields.done()?;
    let _finishing = service.begin()?;
    let limiter = service.rates.limiter(&service.coordinator()?, &name, &rate)?;
    let begun = Instant::now();
    let granted = match wait.is_zero() {
        true => at_once(&limiter, permits).await,
        false => {
            let _waiting = service.waits.enter(&who.name, 1, service.settings.limits.waits)?;
            waiting(within(&service, &limiter, permits, wait)).await
        }
    };
    // Of settings that the store refuses there is nothing to be known.
    if !matches!(&granted, Err(problem) if problem.code != Code::RateLimited) {
        service.rates.keep(&who.name, &name, rate, &limiter);
    }
    let outcome = if granted.is_ok() { "granted" } else { "refused" };
    metrics::rate_permits(outcome, permits);
    let granted = json!({
        "granted": permits, "waited_ms": millis(begun.elapsed()),
        "usable_for_ms": granted?.usable_for().map(millis),
    });
    Ok(noted(json(StatusCode::OK, &granted), name))
}

fn limited(wait: Duration) -> Problem {
    let why = "the permits are not to be had in the time given; nothing was taken";
    // Rounded up, so that whoever waits for so long is not too early.
    let wait = Duration::from_millis(millis(wait + Duration::from_micros(999)));
    Problem::new(Code::RateLimited, why).retry_after(wait)
}

async fn at_once(limiter: &RateLimiter, permits: u32) -> Result<RatePermit, Problem> {
    match limiter.try_acquire(permits).await? {
        Attempt::Granted(permit) => Ok(permit),
        Attempt::Denied { retry_after } => Err(limited(retry_after)),
    }
}

/// Waits for permits. They are spent if the service begins to stop meanwhile, or the client goes away.
async fn within(
    service: &Shared,
    limiter: &RateLimiter,
    permits: u32,
    wait: Duration,
) -> Result<RatePermit, Problem> {
    let mut phases = service.phase.subscribe();
    let granted = tokio::select! {
        biased;
        _ = phases.wait_for(|phase| *phase != Phase::Serving) => return Err(Problem::draining()),
        granted = limiter.acquire(permits, Some(wait)) => granted,
    };
    granted.map_err(|error| match (error.kind(), error.retry_after()) {
        (ErrorKind::Timeout, Some(wait)) => limited(wait),
        _ => error.into(),
    })
}

/// `PUT /v1/rates/{name}`
async fn replace(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let name = text::name(rest(&request, PATH))?;
    who.needs(Right::Admin, &name)?;
    let mut fields = Fields::parse(&body(&service, request).await?)?;
    let rate = rate(&mut fields);
    fields.done()?;
    let limiter = service.rates.limiter(&service.coordinator()?, &name, &rate)?;
    limiter.reconfigure().await?;
    service.rates.keep(&who.name, &name, rate, &limiter);
    Ok(noted(StatusCode::NO_CONTENT.into_response(), name))
}
