//! Commands about counters.

use serde_json::{Value, json};

use crate::{
    client::{Arguments, Client, failed},
    say,
};

/// Adds one to a counter, `n` times or for as long as the process lives. Reports each sum as an event.
pub(crate) async fn count(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let counter = client.coordinator()?.counter(arguments.text("counter")?).map_err(failed)?;
    let times = arguments.number("n").unwrap_or(u64::MAX);
    for _ in 0..times {
        let sum = counter.add(1).await.map_err(failed)?;
        say(&json!({ "event": "counted", "sum": sum }));
    }
    Ok(json!({}))
}
