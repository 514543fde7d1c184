//! Commands about work queues.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use coordination::{Ack, ClaimOptions, Effect, WorkClaim, WorkItem, WorkQueue};
use coordination_history::{Event, Record, Work, Writer, now};
use serde_json::{Value, json};

use crate::client::{Arguments, Client, failed};

static CLAIMS: Mutex<Vec<WorkClaim>> = Mutex::new(Vec::new());

/// Claims items, and keeps the claim until the process ends.
pub(crate) async fn claim_work(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let queue = client.coordinator()?.queue(arguments.text("queue")?).map_err(failed)?;
    let options = ClaimOptions::default().limit(arguments.count("limit")?);
    let claim = queue.claim(options).await.map_err(failed)?;
    let answer = claim.as_ref().map_or(
        Value::Null,
        |claim| json!({ "token": claim.token(), "items": claim.items().len() }),
    );
    CLAIMS.lock().unwrap_or_else(PoisonError::into_inner).extend(claim);
    Ok(answer)
}

/// Claims items and acknowledges them until the process ends.
pub(crate) async fn work_through(
    client: &Client,
    arguments: Arguments<'_>,
) -> Result<Value, Value> {
    let queue = client.coordinator()?.queue(arguments.text("queue")?).map_err(failed)?;
    let writer = Writer::open(arguments.text("history")?).expect("the history is writable");
    let mut diary = Diary { writer, client: arguments.count("client")? as u32, attempt: 0 };
    loop {
        // The store may be out of reach for a moment, or the session lost because the process was paused.
        if let Err(error) = work(&queue, &mut diary).await {
            eprintln!("working: {error}");
        }
    }
}

/// Writes down what becomes of the items of one claim.
struct Diary {
    writer: Writer,
    client: u32,
    attempt: u64,
}

impl Diary {
    fn note(&self, call: u64, item: &WorkItem, token: u64, what: Work) {
        let item = item.body().try_into().map_or(0, u64::from_le_bytes);
        let event = Event::Work { call, item, token, what };
        let (client, attempt) = (self.client, self.attempt);
        let record = Record { at: now(), client, attempt, object: 1, event };
        self.writer.append(&record).expect("the history is writable");
    }
}

/// Makes one claim, and acknowledges its items one by one, or all of them at once.
async fn work(queue: &WorkQueue, diary: &mut Diary) -> coordination::Result<()> {
    diary.attempt += 1;
    let call = now();
    // A process that is paused for long loses the first kind by the claim's ttl, even if it keeps its session.
    let ttl = if diary.attempt % 4 == 1 { 1 } else { 20 };
    let options = ClaimOptions::default().limit(10).ttl(Duration::from_secs(ttl));
    let Some(claim) = queue.claim_wait(options, Some(Duration::from_secs(1))).await? else {
        return Ok(());
    };
    let token = claim.token().value();
    claim.items().iter().for_each(|item| diary.note(call, item, token, Work::Claimed));
    let items = claim.items().to_vec();
    for item in &items {
        // The work.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let before = now();
        if claim.is_held() {
            diary.note(before, item, token, Work::Had);
        }
    }
    let (at_once, one_by_one) = match diary.attempt % 4 {
        0 => items.split_at(0),
        _ => items.split_at(items.len()),
    };
    for item in one_by_one {
        let call = now();
        diary.note(call, item, token, Work::Acking);
        match claim.ack(item.id()).await {
            Ok(Ack::Done) => diary.note(call, item, token, Work::Acked),
            Ok(Ack::AlreadyGone) => diary.note(call, item, token, Work::Gone),
            Err(error) if error.effect() == Effect::None => {
                diary.note(call, item, token, Work::NotAcked);
            }
            Err(_) => {}
        }
    }
    let call = now();
    at_once.iter().for_each(|item| diary.note(call, item, token, Work::Acking));
    if !at_once.is_empty() {
        match claim.ack_all().await {
            Ok(count) if count == at_once.len() => {
                at_once.iter().for_each(|item| diary.note(call, item, token, Work::Acked));
            }
            Err(error) if error.effect() == Effect::None => {
                at_once.iter().for_each(|item| diary.note(call, item, token, Work::NotAcked));
            }
            // Which of them it has removed is not known.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}
