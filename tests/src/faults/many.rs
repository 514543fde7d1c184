//! F-44: a thousand waiters on one lock.

use std::time::Duration;

use coordination_history::{Event, Kind, Object, Record, Rules, check, read};
use serde_json::{Value, json};

use super::{Process, Site, crash::since};
use crate::bounds::CROWD;
use crate::harness::{Scratch, Worker, wait_until};
use crate::must_hold;

const LOCK: &str = "many";

/// How a crowd of waiters was served.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// The time from the first acquire to the last release.
    pub total: Duration,
    /// The median of the times from a waiter's call of `release` to the return of the next waiter's acquire.
    pub median: Duration,
    /// The 99th percentile of the same times as for `median`.
    pub p99: Duration,
    /// The longest of the same times as for `median`.
    pub longest: Duration,
}

/// Has `processes` × `tasks` waiters acquire and release once each. Every waiter is served, one at a time, in the order
/// of tokens, which is the order of their arrival at the store.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn crowd(site: &Site, processes: usize, tasks: usize) -> Served {
    let scratch = Scratch::new("crowd");
    let file = scratch.join("history");
    let clients: Vec<_> =
        (0..processes).map(|index| site.process(&format!("client-{index}"))).collect();
    let gate = site.process("gate");
    // No waiter is served before all are in the queue.
    gate.acquire(LOCK);
    let command = json!({ "command": "tasks", "lock": LOCK, "n": tasks, "file": file });
    let sent: Vec<_> = clients.iter().map(|client| client.send(command.clone())).collect();
    wait_for_queue(&gate, 1 + processes * tasks);
    gate.release(LOCK);
    for (client, id) in clients.iter().zip(sent) {
        finish(client, id);
    }
    let mut history = read(&file).expect("every record is whole");
    history.sort_by_key(|record| record.at);
    assert_eq!(gate.holders(LOCK), [""; 0], "somebody was left behind");
    judge(&history, processes * tasks)
}

fn wait_for_queue(gate: &Process, count: usize) {
    // The waiters that enter keep the server busy, so an answer may come too late. The call is then repeated.
    let holders = || gate.try_call(json!({ "command": "holders", "lock": LOCK }));
    let ready = wait_until(CROWD, || {
        holders().is_ok_and(|all| all.as_array().is_some_and(|all| all.len() == count))
    });
    assert!(ready, "not {count} contenders: {:?}", holders());
}

/// Waits for the result of a client's command.
///
/// # Panics
///
/// If the command fails, or is not answered.
pub fn finish(client: &Worker, id: u64) -> Value {
    let answer = client.receive(id, CROWD);
    let answer = answer.unwrap_or_else(|| panic!("not served within {CROWD:?}"));
    answer.unwrap_or_else(|error| panic!("not served: {error}"))
}

/// Asserts that a history of acquires and releases has this many grants, never two holders, and grants in the order
/// of the queue.
///
/// # Panics
///
/// If the history shows a violation.
pub fn judge(history: &[Record], grants: usize) -> Served {
    let lock = Object { id: 1, name: LOCK.into(), kind: Kind::Lock, fifo: true };
    let report = check(history, &Rules::new(vec![lock]));
    must_hold!(report.violations.iter().all(|found| found.rule.is_of_time()), "{report}");
    assert!(report.is_clean(), "{report}");
    let served = [report.attempts, report.grants, report.held, report.released];
    assert_eq!(served, [grants as u64; 4], "each has one grant, and keeps it\n{report}");
    let of = |is: fn(&Event) -> bool| {
        history.iter().filter(move |record| is(&record.event)).map(|record| record.at)
    };
    let releases = of(|event| *event == Event::ReleaseCall);
    let returns = of(|event| matches!(event, Event::Granted { .. }));
    let gaps = releases.zip(returns.skip(1));
    let mut gaps: Vec<_> = gaps.map(|(released, granted)| since(released, granted)).collect();
    gaps.sort_unstable();
    let at = |percent: usize| gaps.get(gaps.len() * percent / 100).copied().unwrap_or_default();
    let ends = history.first().zip(history.last());
    Served {
        total: ends.map_or(Duration::ZERO, |(first, last)| since(first.at, last.at)),
        median: at(50),
        p99: at(99),
        longest: gaps.last().copied().unwrap_or_default(),
    }
}
