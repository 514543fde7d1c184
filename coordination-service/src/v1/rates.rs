//! `/v1/rates/{name}`: permits of a rate limiter.

use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use coordination::{Attempt, ErrorKind, RateLimiter, RatePermit, RateSettings};
use serde_json::json;

use super::names::Names;
use crate::around::Noted;
use crate::auth::{Principal, Right};
use crate::bodies::body;
use crate::fields::Fields;
use crate::keys;
use crate::metrics;
use crate::problem::{Code, Problem};
use crate::rates::{Limit, Rate};
use crate::reply::{json, principal, rest};
use crate::service::{Phase, Shared};
use crate::text::{self, LONGEST_WAIT, millis, millis_up};
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
    Router::new()
        .route("/v1/rates", get(list))
        .route("/v1/rates/{*name}", post(acquire).put(replace).get(look))
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
            waiting(within(&service, (&who, &name), &limiter, permits, wait)).await
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
    // Whoever waits for so long is not too early.
    Problem::new(Code::RateLimited, why).retry_after(Duration::from_millis(millis_up(wait)))
}

async fn at_once(limiter: &RateLimiter, permits: u32) -> Result<RatePermit, Problem> {
    match limiter.try_acquire(permits).await? {
        Attempt::Granted(permit) => Ok(permit),
        Attempt::Denied { retry_after } => Err(limited(retry_after)),
    }
}

/// Waits for permits. They are spent if the service begins to stop meanwhile, the client goes away, or it has no right to them any more.
async fn within(
    service: &Shared,
    (who, name): (&Principal, &str),
    limiter: &RateLimiter,
    permits: u32,
    wait: Duration,
) -> Result<RatePermit, Problem> {
    let mut phases = service.phase.subscribe();
    let may_wait = || service.auth.still(who, Right::Use, name);
    let granted = tokio::select! {
        biased;
        _ = phases.wait_for(|phase| *phase != Phase::Serving) => return Err(Problem::draining()),
        refused = service.auth.refused(may_wait) => return Err(refused),
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

/// `GET /v1/rates?prefix=&after=&limit=`
async fn list(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let asked = Names::of(&request)?;
    Ok(asked.answer(&who, service.coordinator()?.rate_limiters().await?))
}

/// `GET /v1/rates/{name}`: the settings that are stored, in the fields of `PUT`. Without any nothing is limited.
async fn look(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let name = text::name(rest(&request, PATH))?;
    principal(&request)?.needs(Right::Read, &name)?;
    // Whoever looks need not know them.
    let limiter = service.coordinator()?.rate_limiter(&name, 1, Duration::from_secs(1))?;
    let stored = limiter.stored_settings().await?;
    let limits = stored.iter().flat_map(RateSettings::limits);
    // Whoever puts what it has read allows no more than before.
    let limits: Vec<_> = limits
        .map(|(permits, per)| json!({ "permits": permits, "per_ms": millis_up(per) }))
        .collect();
    let margin = stored.as_ref().map_or(Duration::ZERO, RateSettings::margin);
    let paced = stored.as_ref().is_some_and(RateSettings::is_paced);
    let told =
        json!({ "name": name, "limits": limits, "margin_ms": millis_up(margin), "paced": paced });
    Ok(noted(json(StatusCode::OK, &told), name))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;
    use serde_json::Value;

    use super::*;
    use crate::acquire::tests::instance;
    use crate::settings::Cover;
    use crate::v1;

    /// What is stored is told as it was sent, and whoever looks changes nothing.
    #[tokio::test]
    async fn rates_are_listed_with_their_settings() {
        let (service, other) = instance(Cover::Any).await;
        let routes = TowerToHyperService::new(v1::routes(&service));
        let ask = async |method: &str, path: &str, body: &str| {
            let asked = Request::builder().method(method).uri(path).header("host", "localhost");
            let asked = asked.body(Body::from(body.to_owned())).expect("a request");
            let answer = routes.call(asked).await.expect("an answer");
            assert_eq!(answer.status(), StatusCode::OK, "{method} {path}");
            let text = axum::body::to_bytes(answer.into_body(), 65_536).await.expect("a body");
            serde_json::from_slice::<Value>(&text).expect("it is JSON")
        };
        let looked = ask("GET", "/v1/rates/a/b", "").await;
        assert_eq!(looked["limits"], json!([]));
        assert_eq!(ask("GET", "/v1/rates", "").await["names"], json!([]));
        let sent = r#"{"limits":[{"permits":5,"per_ms":800},{"permits":9,"per_ms":60000}],"margin_ms":20}"#;
        ask("POST", "/v1/rates/a/b", sent).await;
        ask("POST", "/v1/rates/c", r#"{"limits":[{"permits":1,"per_ms":1}],"paced":true}"#).await;
        let looked = ask("GET", "/v1/rates/a/b", "").await;
        let expected: Value = serde_json::from_str(sent).expect("it is JSON");
        for field in ["limits", "margin_ms"] {
            assert_eq!(looked[field], expected[field], "{looked}");
        }
        assert_eq!(looked["paced"], false);
        assert_eq!(ask("GET", "/v1/rates/c", "").await["paced"], true);
        assert_eq!(ask("GET", "/v1/rates", "").await["names"], json!(["a/b", "c"]));
        let some = ask("GET", "/v1/rates?prefix=a/&limit=1", "").await;
        assert_eq!(some, json!({ "names": ["a/b"], "next": null }));
        // Of finer settings of another program those are told that allow no more.
        let micros = Duration::from_micros;
        let fine = other.rate_limiter("d", 1, micros(1_500)).expect("a name");
        let fine = fine.margin(micros(10)).expect("it is short");
        assert!(matches!(fine.try_acquire(1).await, Ok(Attempt::Granted(_))));
        let looked = ask("GET", "/v1/rates/d", "").await;
        let told = (&looked["limits"][0]["per_ms"], &looked["margin_ms"]);
        assert_eq!(told, (&json!(2), &json!(1)));
    }
}
