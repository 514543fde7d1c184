//! Commands about work queues.

use std::sync::{Mutex, PoisonError};

use coordination::{ClaimOptions, WorkClaim};
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
