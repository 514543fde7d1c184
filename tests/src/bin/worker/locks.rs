//! Commands about shared locks, several locks at once, and timed releases.

use std::sync::{Mutex, PoisonError};

use coordination::{MultiGuard, TimedRelease};
use coordination_tests::harness::log::now_ns;
use serde_json::{Value, json};

use crate::client::{Arguments, Client, failed, misused};

/// Guards of several locks, which are held until the process ends.
static SEVERAL: Mutex<Vec<MultiGuard>> = Mutex::new(Vec::new());
static TIMED: Mutex<Vec<TimedRelease>> = Mutex::new(Vec::new());

pub(crate) async fn acquire_shared(
    client: &Client,
    arguments: Arguments<'_>,
) -> Result<Value, Value> {
    let lock = client.lock(arguments)?;
    let guard = lock.acquire_shared(arguments.millis("timeout_ms")).await.map_err(failed)?;
    Ok(client.keep(arguments, guard))
}

pub(crate) async fn acquire_all(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let names = arguments.0["locks"].as_array().ok_or_else(|| misused("it needs `locks`"))?;
    let names = names.iter().filter_map(Value::as_str);
    let locks = client.coordinator()?.locks(names).map_err(failed)?;
    let guard = locks.acquire(arguments.millis("timeout_ms")).await.map_err(failed)?;
    let tokens: Vec<_> = guard.guards().iter().map(|guard| guard.token()).collect();
    SEVERAL.lock().unwrap_or_else(PoisonError::into_inner).push(guard);
    Ok(json!({ "tokens": tokens, "t_ns": now_ns() }))
}

pub(crate) async fn release_after(
    client: &Client,
    arguments: Arguments<'_>,
) -> Result<Value, Value> {
    let held_for = arguments.millis("ms").ok_or_else(|| misused("it needs `ms`"))?;
    let timed = client.take(arguments).await?.release_after(held_for);
    TIMED.lock().unwrap_or_else(PoisonError::into_inner).push(timed);
    Ok(json!({ "t_ns": now_ns() }))
}
