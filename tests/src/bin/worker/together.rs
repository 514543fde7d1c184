//! Commands about barriers, latches, and jobs that may be done once per period.

use std::sync::{Mutex, PoisonError};

use coordination::Inside;
use serde_json::{Value, json};

use crate::client::{Arguments, Client, failed};

static INSIDE: Mutex<Vec<Inside>> = Mutex::new(Vec::new());

pub(crate) async fn claim(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let period = arguments.millis("period_ms").unwrap_or_default();
    let job = client.coordinator()?.once_per(arguments.text("job")?, period).map_err(failed)?;
    let claim = job.try_claim().await.map_err(failed)?;
    Ok(claim.map_or(Value::Null, |claim| json!({ "token": claim.token() })))
}

pub(crate) async fn close_barrier(
    client: &Client,
    arguments: Arguments<'_>,
) -> Result<Value, Value> {
    let barrier = client.coordinator()?.barrier(arguments.text("barrier")?).map_err(failed)?;
    let closed = barrier.close().await.map_err(failed)?;
    Ok(json!({ "closed": closed }))
}

pub(crate) async fn count_down(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let count = arguments.count("count")?.try_into().unwrap_or_default();
    let latch = client.coordinator()?.latch(arguments.text("latch")?, count).map_err(failed)?;
    let remaining = latch.count_down().await.map_err(failed)?;
    Ok(json!({ "remaining": remaining }))
}

/// Enters a double barrier, and stays inside until the process ends.
pub(crate) async fn go_in(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let parties = arguments.count("parties")?.try_into().unwrap_or_default();
    let coordinator = client.coordinator()?;
    let barrier = coordinator.double_barrier(arguments.text("barrier")?, parties);
    let inside = barrier.map_err(failed)?.enter(None).await.map_err(failed)?;
    let token = inside.token();
    INSIDE.lock().unwrap_or_else(PoisonError::into_inner).push(inside);
    Ok(json!({ "token": token }))
}
