//! Commands after whose answer the worker goes on to send events.

use std::{process, sync::atomic::Ordering, thread, time::Duration};

use coordination_tests::harness::{log::now_ns, waited};
use serde_json::{Value, json};

use crate::{
    client::{Arguments, Client, Held},
    say,
};

pub(crate) fn watch_lost(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let held = client.held(arguments)?;
    let handle = arguments.text("handle")?.to_owned();
    tokio::spawn(async move {
        let reason = tokio::select! {
            biased;
            reason = held.guard.lost() => reason,
            () = ended(&held) => return,
        };
        let t_ns = now_ns();
        let waited = waited(process::id());
        drop(held);
        say(&json!({
            "event": "lost",
            "handle": handle,
            "reason": format!("{reason:?}"),
            "t_ns": t_ns,
            "waited": waited,
        }));
    });
    Ok(json!({}))
}

/// Calls `is_held` over and over on a thread of its own. After a pause of the process, this thread calls it within the
/// first moments, without waiting for the runtime.
pub(crate) fn probe_held(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let held = client.held(arguments)?;
    let handle = arguments.text("handle")?.to_owned();
    let pause = arguments.micros("every_us").unwrap_or_default();
    thread::spawn(move || {
        let mut last_true = None;
        while !held.ending.load(Ordering::SeqCst) {
            let before_ns = now_ns();
            if !held.guard.is_held() {
                let after_ns = now_ns();
                drop(held);
                return say(&json!({
                    "event": "not_held",
                    "handle": handle,
                    "before_ns": before_ns,
                    "after_ns": after_ns,
                    "last_true_before_ns": last_true,
                }));
            }
            last_true = Some(before_ns);
            if !pause.is_zero() {
                thread::sleep(pause);
            }
        }
    });
    Ok(json!({}))
}

pub(crate) fn state_events(client: &Client) -> Result<Value, Value> {
    let mut states = client.coordinator()?.state();
    let current = states.current();
    tokio::spawn(async move {
        while let Some(state) = states.changed().await {
            say(&json!({ "event": "state", "state": format!("{state:?}"), "t_ns": now_ns() }));
        }
    });
    Ok(json!({ "state": format!("{current:?}") }))
}

/// Completes when the guard is about to be released or dropped.
async fn ended(held: &Held) {
    while !held.ending.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
