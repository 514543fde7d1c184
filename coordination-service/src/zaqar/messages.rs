//! Messages: what is posted, listed, deleted and popped.

use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use coordination::{ClaimId, Error, ErrorKind, ItemId, ListOptions, NewItem, WorkItem};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::asked::{Asked, LONGEST_BODY, number, query, read, seconds};
use crate::auth::Right;
use crate::bodies::body_within;
use crate::fields::is_shallow;
use crate::finishing::finished;
use crate::problem::{Code, Problem};
use crate::reply::json;
use crate::service::Shared;

/// The most messages of one request.
const MOST: usize = 20;
/// How many messages are listed or claimed, unless the request says so.
const SOME: usize = 10;

/// A problem of what somebody does with a claim that is not there any more, or not theirs.
pub(super) fn unclaimed(error: Error) -> Problem {
    match error.kind() {
        ErrorKind::NoSuchClaim => no_claim(),
        _ => error.into(),
    }
}

pub(super) fn no_claim() -> Problem {
    Problem::new(Code::NoSuchHold, "there is no such claim, or it is over")
}

/// The same of an item.
fn unacknowledged(error: Error) -> Problem {
    let (code, why) = match error.kind() {
        ErrorKind::NoSuchClaim | ErrorKind::NotClaimed => {
            (Code::Invalid, "the claim is over, or does not have the message")
        }
        ErrorKind::IsClaimed => {
            (Code::Forbidden, "a claim has the message: say which by `claim_id`")
        }
        ErrorKind::NotClaimedBy => (Code::Forbidden, "another claim has the message"),
        _ => return error.into(),
    };
    Problem::new(code, why)
}

/// A message as its clients read it: with other fields they fail.
#[derive(Serialize)]
pub(super) struct Shown {
    id: ItemId,
    href: String,
    age: u64,
    ttl: u64,
    claim_count: u32,
    body: Box<RawValue>,
}

/// Messages, and where the next ones are.
#[derive(Serialize)]
struct Messages {
    messages: Vec<Shown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<Value>,
}

/// These messages, as those of a claim or not.
pub(super) fn shown(queue: &str, items: &[WorkItem], claim: Option<ClaimId>) -> Vec<Shown> {
    let shown = |item: &WorkItem| {
        let id = item.id();
        // The clients take what follows the last `=` for the claim's id.
        let of = claim.map(|claim| format!("?claim_id={claim}")).unwrap_or_default();
        Shown {
            id,
            href: format!("{}{of}", path_of(queue, id)),
            age: item.age().as_secs(),
            ttl: (item.age() + item.expires_in()).as_secs(),
            claim_count: item.claims(),
            body: body_of(item),
        }
    };
    items.iter().map(shown).collect()
}

/// The body as it was posted. One that was not posted by this API may be no JSON: it is shown as a text.
fn body_of(item: &WorkItem) -> Box<RawValue> {
    match serde_json::from_slice::<Box<RawValue>>(item.body()) {
        Ok(body) if is_shallow(body.get()) => body,
        _ => {
            let text = String::from_utf8_lossy(item.body());
            serde_json::value::to_raw_value(&text).unwrap_or_default()
        }
    }
}

/// An answer of which the bodies stay as they were posted.
pub(super) fn written(told: &impl Serialize) -> Result<String, Problem> {
    let failed = |_| Problem::new(Code::Internal, "the answer cannot be written");
    serde_json::to_string(told).map_err(failed)
}

/// The same, as an answer.
pub(super) fn text(told: &impl Serialize) -> Result<Response, Problem> {
    Ok(([(header::CONTENT_TYPE, "application/json")], written(told)?).into_response())
}

fn path_of(queue: &str, id: ItemId) -> String {
    format!("/v2/queues/{queue}/messages/{id}")
}

/// The claim of this name. Any text is one, perhaps of nothing.
pub(super) fn claim_id(text: &str) -> ClaimId {
    text.parse().unwrap_or_else(|never| match never {})
}

/// The message of this name. Any text is one, perhaps of nothing.
fn item_id(text: &str) -> ItemId {
    text.parse().unwrap_or_else(|never| match never {})
}

#[derive(Deserialize)]
struct Posted {
    messages: Vec<Message>,
}

#[derive(Deserialize)]
struct Message {
    ttl: Option<u64>,
    delay: Option<u64>,
    body: Box<RawValue>,
}

impl Message {
    fn item(self) -> NewItem {
        let item = NewItem::new(self.body.get());
        let item = self.ttl.map(seconds).into_iter().fold(item, NewItem::ttl);
        self.delay.map(seconds).into_iter().fold(item, NewItem::delay)
    }
}

/// `POST /v2/queues/{queue}/messages`
pub(super) async fn post(
    State(service): State<Shared>,
    Path(queue): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = Asked::of(&service, &request, queue, Right::Use)?;
    let body = body_within(&service, request, LONGEST_BODY).await?;
    let Posted { messages } = read(&body)?;
    if !(1..=MOST).contains(&messages.len()) {
        return Err(Problem::new(Code::Invalid, "1 to 20 messages may be posted at once"));
    }
    if !messages.iter().all(|message| is_shallow(message.body.get())) {
        return Err(Problem::new(Code::Invalid, "a body has more than 32 levels"));
    }
    // After the body, which may have taken long.
    let finishing = service.begin()?;
    let items: Vec<_> = messages.into_iter().map(Message::item).collect();
    let queue = asked.queue.clone();
    let posting = async move { queue.post(&items).await };
    let posted = finished((finishing, body), posting).await??;
    asked.keep();
    let resources: Vec<_> = posted.into_iter().map(|id| path_of(&asked.shown, id)).collect();
    Ok(asked.noted(json(StatusCode::CREATED, &json!({ "resources": resources }))))
}

/// Yes or no in a query, as Python and others write it.
fn flag(query: &[(String, String)], key: &str) -> Result<bool, Problem> {
    match query.iter().find(|(known, _)| known == key).map(|(_, text)| text.to_ascii_lowercase()) {
        None => Ok(false),
        Some(text) if text == "true" || text == "1" => Ok(true),
        Some(text) if text == "false" || text == "0" => Ok(false),
        Some(_) => Err(Problem::new(Code::Invalid, format!("`{key}` is true or false"))),
    }
}

/// `GET /v2/queues/{queue}/messages?marker=&limit=&include_claimed=&include_delayed=`
pub(super) async fn list(
    State(service): State<Shared>,
    Path(queue): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = Asked::of(&service, &request, queue, Right::Read)?;
    // `echo` is about who posted a message, which is not remembered.
    let known = ["marker", "limit", "echo", "include_claimed", "include_delayed"];
    let query = query(&request, &known)?;
    let marker = query.iter().find(|(key, _)| key == "marker").map(|(_, text)| item_id(text));
    let limit = number(&query, "limit")?.unwrap_or(SOME);
    if !(1..=MOST).contains(&limit) {
        return Err(Problem::new(Code::Invalid, "`limit` is 1 to 20"));
    }
    let claimed = flag(&query, "include_claimed")?;
    let delayed = flag(&query, "include_delayed")?;
    let options =
        ListOptions { after: marker, limit, include_claimed: claimed, include_delayed: delayed };
    let items = asked.queue.list(options).await?;
    // After nothing comes nothing: its client follows links until there are none.
    let next = items.last().map(|last| {
        let href = format!(
            "/v2/queues/{}/messages?marker={}&limit={limit}&include_claimed={claimed}&include_delayed={delayed}",
            asked.shown,
            last.id()
        );
        json!({ "rel": "next", "href": href })
    });
    let links = Some(next.into_iter().collect());
    let told = Messages { messages: shown(&asked.shown, &items, None), links };
    Ok(asked.noted(text(&told)?))
}

/// `GET /v2/queues/{queue}/messages/{message}`
pub(super) async fn look(
    State(service): State<Shared>,
    Path((queue, message)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = Asked::of(&service, &request, queue, Right::Read)?;
    let gone = || Problem::new(Code::NoSuchValue, "there is no such message");
    let item = asked.queue.item(item_id(&message)).await?.ok_or_else(gone)?;
    let told = shown(&asked.shown, &[item], None).pop().ok_or_else(gone)?;
    Ok(asked.noted(text(&told)?))
}

/// `DELETE /v2/queues/{queue}/messages/{message}?claim_id=`
pub(super) async fn delete(
    State(service): State<Shared>,
    Path((queue, message)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = Asked::of(&service, &request, queue, Right::Use)?;
    let query = query(&request, &["claim_id"])?;
    let item = item_id(&message);
    match query.first() {
        Some((_, claim)) => {
            asked.queue.ack(item, claim_id(claim)).await.map_err(unacknowledged)?;
        }
        None => {
            asked.queue.delete(item).await.map_err(unacknowledged)?;
        }
    }
    Ok(asked.noted(StatusCode::NO_CONTENT.into_response()))
}

/// `DELETE /v2/queues/{queue}/messages?ids=` or `?pop=`
pub(super) async fn delete_some(
    State(service): State<Shared>,
    Path(queue): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = Asked::of(&service, &request, queue, Right::Use)?;
    let query = query(&request, &["ids", "pop"])?;
    let given = query.iter().filter(|(key, _)| key == "ids").flat_map(|(_, ids)| ids.split(','));
    let ids: Vec<_> = given.map(item_id).collect();
    let wrong = || Problem::new(Code::Invalid, "say which by `ids`, 1 to 20, or how many by `pop`");
    match number(&query, "pop")? {
        Some(count) if ids.is_empty() => {
            let (finishing, queue) = (service.begin()?, asked.queue.clone());
            let items = finished(finishing, async move { queue.pop(count).await }).await??;
            asked.keep();
            let told = Messages { messages: shown(&asked.shown, &items, None), links: None };
            Ok(asked.noted(text(&told)?))
        }
        None if (1..=MOST).contains(&ids.len()) => {
            for id in ids {
                // Also one that a claim has: Zaqar asks after claims only where a single message is to be deleted.
                asked.queue.force_delete(id).await?;
            }
            Ok(asked.noted(StatusCode::NO_CONTENT.into_response()))
        }
        _ => Err(wrong()),
    }
}
