//! Commands about elections.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use coordination::{Election, Leadership};
use coordination_tests::harness::log::now_ns;
use serde_json::{Value, json};

use crate::{
    client::{Arguments, Client, failed, misused},
    say,
};

/// The leaderships that this process has, by the names of their elections.
static HELD: LazyLock<Mutex<HashMap<String, Arc<Leadership>>>> = LazyLock::new(Mutex::default);

fn all_held() -> MutexGuard<'static, HashMap<String, Arc<Leadership>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn held(arguments: Arguments<'_>) -> Result<(String, Arc<Leadership>), Value> {
    let handle = arguments.text("election")?;
    let leadership = all_held().get(handle).cloned();
    Ok((handle.to_owned(), leadership.ok_or_else(|| misused("it does not lead there"))?))
}

fn election(client: &Client, arguments: Arguments<'_>) -> Result<Election, Value> {
    client.coordinator()?.election(arguments.text("election")?).map_err(failed)
}

pub(crate) async fn campaign(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let election = election(client, arguments)?;
    let campaign = election.campaign(&arguments.0["value"], arguments.millis("timeout_ms"));
    let leadership = campaign.await.map_err(failed)?;
    let term = leadership.term();
    all_held().insert(arguments.text("election")?.to_owned(), Arc::new(leadership));
    Ok(json!({ "term": term, "t_ns": now_ns() }))
}

/// Leads and resigns, over and over, for as long as the process lives.
pub(crate) async fn reign(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let election = election(client, arguments)?;
    loop {
        let leadership = election.campaign("worker", None).await.map_err(failed)?;
        say(&json!({ "event": "leads", "term": leadership.term() }));
        tokio::time::sleep(Duration::from_millis(1)).await;
        leadership.resign().await.map_err(failed)?;
    }
}

pub(crate) fn watch_leadership(arguments: Arguments<'_>) -> Result<Value, Value> {
    let (handle, leadership) = held(arguments)?;
    tokio::spawn(async move {
        let reason = format!("{:?}", leadership.lost().await);
        say(&json!({ "event": "out", "election": handle, "reason": reason, "t_ns": now_ns() }));
    });
    Ok(json!({}))
}

/// Calls `is_leader` over and over on a thread of its own. After a pause of the process, this thread calls it within
/// the first moments, without waiting for the runtime.
pub(crate) fn probe_leadership(arguments: Arguments<'_>) -> Result<Value, Value> {
    let (handle, leadership) = held(arguments)?;
    thread::spawn(move || {
        let mut last_true = None;
        loop {
            let before_ns = now_ns();
            if !leadership.is_leader() {
                return say(&json!({
                    "event": "not_leader",
                    "election": handle,
                    "t_ns": now_ns(),
                    "last_true_before_ns": last_true,
                }));
            }
            last_true = Some(before_ns);
            thread::sleep(Duration::from_micros(200));
        }
    });
    Ok(json!({}))
}
