//! Commands about semaphores and limiters. The process keeps permits and slots until the command `let_go`, or until it
//! ends.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use coordination::{Admission, Limiter, Patience, Permit, WorkSlot};
use coordination_tests::harness::log::now_ns;
use serde_json::{Value, json};

use crate::client::{Arguments, Client, failed};

enum Kept {
    Permits(Permit),
    Slot(WorkSlot),
}

static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

fn keep(kept: Kept) {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
}

pub(crate) async fn permits(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let of = arguments.number("of").and_then(|of| of.try_into().ok()).unwrap_or(1);
    let count = arguments.number("count").and_then(|count| count.try_into().ok()).unwrap_or(1);
    let coordinator = client.coordinator()?;
    let semaphore = coordinator.semaphore(arguments.text("semaphore")?, of).map_err(failed)?;
    let timeout = arguments.millis("timeout_ms");
    let permit = semaphore.acquire_many(count, timeout).await.map_err(failed)?;
    let answer = json!({ "slots": permit.slots(), "token": permit.token(), "t_ns": now_ns() });
    keep(Kept::Permits(permit));
    Ok(answer)
}

fn limiter(client: &Client, arguments: Arguments<'_>) -> Result<Limiter, Value> {
    let number = |name| arguments.number(name).and_then(|number| u32::try_from(number).ok());
    let limiter = client.coordinator()?.limiter(arguments.text("limiter")?).map_err(failed)?;
    let limiter = limiter.slots(number("slots").unwrap_or(1));
    let limiter = limiter.standby(number("standby").unwrap_or_default());
    let limiter = match arguments.optional("order") {
        Some("latest") => limiter.latest_wins(),
        _ => limiter,
    };
    Ok(limiter.patience(arguments.millis("timeout_ms").map_or(Patience::Never, Patience::Timeout)))
}

pub(crate) async fn enter(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let admission = limiter(client, arguments)?.enter().await.map_err(failed)?;
    Ok(match admission {
        Admission::Working(slot) => {
            let answer = json!({ "slot": slot.slot(), "token": slot.token(), "t_ns": now_ns() });
            keep(Kept::Slot(slot));
            answer
        }
        Admission::Refused(refusal) => json!({ "refused": format!("{refusal:?}") }),
    })
}

pub(crate) async fn let_go() -> Result<Value, Value> {
    let kept = std::mem::take(&mut *KEPT.lock().unwrap_or_else(PoisonError::into_inner));
    for kept in kept {
        match kept {
            Kept::Permits(permit) => permit.release().await.map_err(failed)?,
            Kept::Slot(slot) => slot.release().await.map_err(failed)?,
        }
    }
    Ok(json!({ "t_ns": now_ns() }))
}

/// Enters and leaves the limiter, over and over, for `ms`. Returns each stay as `[slot, from, to, token]`, and how
/// often the limiter refused to let it in.
pub(crate) async fn come_and_go(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let limiter = limiter(client, arguments)?;
    let length = arguments.millis("ms").unwrap_or_default();
    let hold = arguments.micros("hold_us").unwrap_or_default();
    let (begun, mut stays, mut refused) = (Instant::now(), Vec::new(), 0_u64);
    while begun.elapsed() < length {
        match limiter.enter().await.map_err(failed)? {
            Admission::Working(slot) => {
                let from = now_ns();
                tokio::time::sleep(hold).await;
                if !slot.is_held() {
                    continue;
                }
                stays.push(json!([slot.slot(), from, now_ns(), slot.token()]));
                slot.release().await.map_err(failed)?;
            }
            Admission::Refused(_) => {
                refused += 1;
                tokio::time::sleep(Duration::from_millis(20 + some_millis())).await;
            }
        }
    }
    Ok(json!({ "stays": stays, "refused": refused }))
}

/// A number below forty that looks random, so that several processes do not make their calls at the same moments.
fn some_millis() -> u64 {
    now_ns() / 1_000 % 40
}
