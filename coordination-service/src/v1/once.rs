//! `/v1/once/{name}`: a job that is done once per period, over all who ask.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use coordination::{LastClaim, OncePer};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::holds::{self, ended};
use super::names::Names;
use crate::around::Noted;
use crate::auth::{Principal, Right};
use crate::bodies::body;
use crate::claims::Claimed;
use crate::delivery::{self, Deliver};
use crate::fields::Fields;
use crate::finishing::{Finishing, finished};
use crate::holds::End;
use crate::ids;
use crate::keys;
use crate::problem::{Code, Problem};
use crate::reply::{json, principal, rest};
use crate::service::{Service, Shared};
use crate::text::{self, millis, rfc3339};

const PATH: &str = "/v1/once/";
/// The longest period: 366 days, in milliseconds.
const LONGEST: u64 = 366 * 86_400_000;

/// The routes of jobs.
pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/v1/once", get(list)).route("/v1/once/{*name}", post(claim).get(look))
}

/// A claim whose client may not know of it yet: given back when this is dropped before it was delivered.
struct Given {
    claimed: Option<Arc<Claimed>>,
    /// A stop waits, for a while, until the claim was delivered or given back.
    finishing: Option<Finishing>,
}

impl Deliver for Given {
    fn deliver(&mut self) {
        self.claimed = None;
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        let (Some(claimed), finishing) = (self.claimed.take(), self.finishing.take()) else {
            return;
        };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                claimed.give_back_unknown().await;
                drop(finishing);
            });
        }
    }
}

/// The job that a body asks for.
fn job(service: &Shared, name: &str, fields: &mut Fields) -> Result<(OncePer, String), Problem> {
    fields.needs("period_ms");
    let period = fields.millis("period_ms", 1..=LONGEST).unwrap_or(Duration::from_secs(1));
    let at_least = fields.millis("at_least_ms", 0..=LONGEST).unwrap_or_default();
    let is_aligned = fields.flag("aligned").unwrap_or(false);
    let job = service.coordinator()?.once_per(name, period)?.at_least(at_least);
    let job = if is_aligned { job.aligned() } else { job };
    Ok((job, format!("{period:?} {at_least:?} {is_aligned}")))
}

/// Claims the job for this client.
async fn claimed(
    service: &Service,
    job: &OncePer,
    client: &str,
    name: &str,
) -> Result<Arc<Claimed>, Problem> {
    match job.try_claim().await? {
        Some(claim) => Ok(service.claims.add(&service.tag, client, name, claim)),
        None => {
            let why = "somebody has claimed it for this period";
            let due = millis(job.due().await?);
            Err(Problem::new(Code::Spent, why).with("due_in_ms", due))
        }
    }
}

/// `POST /v1/once/{name}`
async fn claim(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let name = text::name(rest(&request, PATH))?;
    who.needs(Right::Use, &name)?;
    let key = keys::key(request.headers())?;
    let mut fields = Fields::parse(&body(&service, request).await?)?;
    let job = job(&service, &name, &mut fields);
    fields.done()?;
    let (job, settings) = job?;
    let finishing = service.begin()?;
    let (of, client, named) = (Arc::clone(&service), who.name.clone(), name.clone());
    let claiming = async move { claimed(&of, &job, &client, &named).await };
    match key {
        Some(key) => {
            let claiming = async move {
                let _finishing = finishing;
                claiming.await
            };
            let content = ["once", &name, &settings];
            let claimed = keyed(&service, &who.name, &key, content, claiming).await?;
            Ok(created(&claimed, Body::from))
        }
        None => {
            // Nobody does the job whose client has gone before it knew.
            let given = async move {
                let claimed = claiming.await?;
                Ok::<_, Problem>(Given { claimed: Some(claimed), finishing: Some(finishing) })
            };
            let given = finished((), given).await??;
            let lost = || Problem::new(Code::Internal, "the claim is not there");
            let claimed = given.claimed.clone().ok_or_else(lost)?;
            Ok(created(&claimed, |text| delivery::body(text, given)))
        }
    }
}

/// The claim of the first request with this key, as long as it is good: who repeats it is not told to do what somebody else may do by now.
async fn keyed(
    service: &Service,
    client: &str,
    key: &str,
    content: [&str; 3],
    claiming: impl Future<Output = Result<Arc<Claimed>, Problem>> + Send + 'static,
) -> Result<Arc<Claimed>, Problem> {
    let is_first = Arc::new(AtomicBool::new(false));
    let claiming = {
        let is_first = Arc::clone(&is_first);
        async move {
            is_first.store(true, Ordering::Release);
            claiming.await
        }
    };
    let claimed = service.keys.settled(client, key, keys::content(&content), claiming).await?;
    match claimed.end() {
        Some(end) if !is_first.load(Ordering::Acquire) => Err(ended(end)),
        _ => Ok(claimed),
    }
}

/// `GET /v1/once?prefix=&after=&limit=`
async fn list(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let asked = Names::of(&request)?;
    Ok(asked.answer(&who, service.coordinator()?.once_jobs().await?))
}

/// `GET /v1/once/{name}`: the last claim. The period is not stored.
async fn look(State(service): State<Shared>, request: Request) -> Result<Response, Problem> {
    let name = text::name(rest(&request, PATH))?;
    principal(&request)?.needs(Right::Read, &name)?;
    // Whoever looks need not know it.
    let job = service.coordinator()?.once_per(&name, Duration::from_secs(1))?;
    let last = job.last_claim().await?;
    let told = json!({ "name": name, "last": last.as_ref().map(told) });
    let mut response = json(StatusCode::OK, &told);
    response.extensions_mut().insert(Noted { name: Some(name), ..Noted::default() });
    Ok(response)
}

fn told(last: &LastClaim) -> Value {
    json!({
        "fence": last.token.value(), "at": rfc3339(last.at), "next_at": rfc3339(last.next),
        "due_in_ms": millis(last.due), "open": last.is_open,
    })
}

fn created(claimed: &Claimed, body: impl FnOnce(String) -> Body) -> Response {
    let shown = claimed.shown();
    let mut response = json(StatusCode::CREATED, &shown);
    *response.body_mut() = body(shown.to_string());
    response.headers_mut().insert("fencing-token", HeaderValue::from(claimed.fence));
    noted(response, claimed)
}

fn noted(mut response: Response, claimed: &Claimed) -> Response {
    let name = Some(claimed.name.clone());
    response.extensions_mut().insert(Noted { name, ..Noted::default() });
    response
}

/// `DELETE /v1/holds/{id}`, of a claim or of a hold.
pub(super) async fn release(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    match found(&service, &who, rest(&request, holds::PATH))? {
        Some(claimed) => give_back(&service, &claimed).await,
        None => holds::release(State(service), request).await,
    }
}

/// The claim of this id, if it is one and the caller may give it back.
fn found(service: &Service, who: &Principal, id: &str) -> Result<Option<Arc<Claimed>>, Problem> {
    let Some((_, handle, secret)) = ids::parse(id) else { return Ok(None) };
    let Some(claimed) = service.claims.find(handle).filter(|known| known.secret.is(secret)) else {
        return Ok(None);
    };
    if claimed.client != who.name {
        who.needs(Right::Admin, &claimed.name)?;
    }
    Ok(Some(claimed))
}

/// Gives a claim back, unless its period is over and somebody has made the next one.
async fn give_back(service: &Shared, claimed: &Arc<Claimed>) -> Result<Response, Problem> {
    let finishing = service.begin_any()?;
    if let Some(End::Released) = claimed.end() {
        return Err(ended(End::Released));
    }
    let own = Arc::clone(claimed);
    match finished(finishing, async move { own.give_back().await }).await?? {
        true => Ok(noted(StatusCode::NO_CONTENT.into_response(), claimed)),
        false => Err(ended(End::Expired)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acquire::tests::Disk;

    /// A claim of a job on this store, and who can claim it again.
    async fn first(service: &Shared) -> (OncePer, Arc<Claimed>) {
        let coordinator = service.coordinator().expect("it is connected");
        let job = coordinator.once_per("x", Duration::from_secs(3_600)).expect("a name");
        let job = job.at_least(Duration::ZERO);
        let first = claimed(service, &job, "me", "x").await.expect("nobody has claimed it");
        (job, first)
    }

    /// Who is told that the store was away asks again; nobody is told that a job is free that is not.
    #[tokio::test]
    async fn a_claim_that_could_not_be_given_back_is_given_back_by_a_repetition() {
        let disk = Disk::new();
        let (service, _other) = disk.instance().await;
        let (job, first) = first(&service).await;
        let path = disk.take("once");
        assert!(give_back(&service, &first).await.is_err());
        disk.give_back(&path);
        let given_back = give_back(&service, &first).await.expect("the store answers");
        assert_eq!(given_back.status(), StatusCode::NO_CONTENT);
        let again = give_back(&service, &first).await.map_err(|problem| problem.code);
        assert_eq!(again.err(), Some(Code::Ended));
        assert!(claimed(&service, &job, "you", "x").await.is_ok());
    }

    /// Nobody does the job of a client that has gone before it knew, unless somebody else can claim it.
    #[tokio::test]
    async fn a_claim_of_which_nobody_knows_is_given_back_when_the_store_lets_us() {
        let disk = Disk::new();
        let (service, _other) = disk.instance().await;
        let (job, first) = first(&service).await;
        let path = disk.take("once");
        drop(Given { claimed: Some(first), finishing: service.begin().ok() });
        tokio::time::sleep(Duration::from_millis(100)).await;
        disk.give_back(&path);
        let free = async {
            while claimed(&service, &job, "you", "x").await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), free).await.expect("it is given back");
    }
}
