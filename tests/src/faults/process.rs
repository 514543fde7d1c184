//! [`Process`], a client process with methods for its commands.

use std::{
    ops::Deref,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{SCHEDULING, Site};
use crate::bounds;
use crate::harness::{Worker, wait_until};

/// A [`Worker`] that is connected to a store.
#[derive(Debug)]
pub struct Process {
    worker: Worker,
    /// L5: how soon after the end of a fault a free lock can be acquired.
    recovered: Duration,
    /// Events that arrived while a caller waited for an event with another name.
    aside: Mutex<Vec<Value>>,
}

/// The result of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token.
    pub token: u64,
    /// When the acquire returned.
    pub t_ns: u64,
}

/// The event of a loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The reason's name.
    pub reason: String,
    /// When `lost()` returned.
    pub t_ns: u64,
}

/// What a thread that calls `is_held()` all the time saw when the guard was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHeld {
    /// The start of the first call that returned `false`.
    pub before_ns: u64,
    /// The start of the last call that returned `true`.
    pub last_true_ns: u64,
}

impl Process {
    /// Starts a process and connects it.
    pub(super) fn connect(site: &Site, member: &str) -> Self {
        let process = Self::unconnected(site);
        process.call(connect_command(site, member));
        process
    }

    /// Starts a process that is not connected yet.
    pub fn unconnected(site: &Site) -> Self {
        let worker = Worker::start(&site.worker, &site.url, &[]);
        let recovered = bounds::recovered(site.ttl) + SCHEDULING;
        Self { worker, recovered, aside: Mutex::default() }
    }

    /// Connects the process.
    ///
    /// # Errors
    ///
    /// The worker's error.
    pub fn try_connect(&self, site: &Site, member: &str) -> Result<Value, Value> {
        self.try_call(connect_command(site, member))
    }

    /// Acquires `lock`, which must be free. It may take as long as L5 allows after a fault.
    ///
    /// # Panics
    ///
    /// If the acquire fails.
    #[track_caller]
    pub fn acquire(&self, lock: &str) -> Grant {
        let acquired = self.acquire_within(lock, self.recovered);
        acquired.unwrap_or_else(|error| panic!("{lock:?} is free: {error}"))
    }

    /// Acquires `lock` within `timeout`.
    ///
    /// # Errors
    ///
    /// The worker's error.
    pub fn acquire_within(&self, lock: &str, timeout: Duration) -> Result<Grant, Value> {
        let timeout_ms = timeout.as_millis() as u64;
        let command = json!({ "command": "acquire", "lock": lock, "timeout_ms": timeout_ms });
        self.try_call(command).map(|answer| grant(&answer))
    }

    /// Begins to wait for `lock` without a timeout; the returned number is for [`Process::granted`].
    pub fn wait_for(&self, lock: &str) -> u64 {
        self.send(json!({ "command": "acquire", "lock": lock }))
    }

    /// Acquires `lock` if it is free now.
    pub fn try_acquire(&self, lock: &str) -> Option<Grant> {
        let answer = self.call(json!({ "command": "try_acquire", "lock": lock }));
        (!answer.is_null()).then(|| grant(&answer))
    }

    /// Waits for the grant of a [`Process::wait_for`].
    ///
    /// # Panics
    ///
    /// If the result does not arrive within `timeout`, or is an error.
    #[track_caller]
    pub fn granted(&self, waiting: u64, timeout: Duration) -> Grant {
        let answer = self.receive(waiting, timeout);
        let answer = answer.unwrap_or_else(|| panic!("no grant within {timeout:?}"));
        grant(&answer.unwrap_or_else(|error| panic!("no grant: {error}")))
    }

    /// Releases `lock`; returns when the release was called.
    pub fn release(&self, lock: &str) -> u64 {
        let answer = self.call(json!({ "command": "release", "handle": lock }));
        number(&answer, "before_ns")
    }

    /// Whether the guard of `lock` claims to be held.
    pub fn is_held(&self, lock: &str) -> bool {
        let answer = self.call(json!({ "command": "is_held", "handle": lock }));
        answer["held"] == json!(true)
    }

    /// The members that hold `lock` or wait for it, in the order of the queue.
    pub fn holders(&self, lock: &str) -> Vec<String> {
        members(&self.call(json!({ "command": "holders", "lock": lock })))
    }

    /// Waits until `count` contenders hold `lock` or wait for it.
    ///
    /// # Panics
    ///
    /// If the wait takes longer than L5 allows.
    #[track_caller]
    pub fn sees_contenders(&self, lock: &str, count: usize) {
        let seen = wait_until(self.recovered, || {
            // A server that was broken a moment ago may not answer at once.
            let answer = self.try_call(json!({ "command": "holders", "lock": lock }));
            answer.is_ok_and(|holders| members(&holders).len() == count)
        });
        assert!(seen, "{:?} are at {lock:?}, and not {count}", self.holders(lock));
    }

    /// Starts to watch `lock` for its loss, and to probe all the time whether it is held.
    pub fn observe(&self, lock: &str) {
        self.call(json!({ "command": "watch_lost", "handle": lock }));
        self.call(json!({ "command": "probe_held", "handle": lock, "every_us": 100 }));
    }

    /// Waits for the loss of an observed lock.
    ///
    /// # Panics
    ///
    /// If the loss does not happen within `timeout`.
    #[track_caller]
    pub fn lost(&self, timeout: Duration) -> Lost {
        let event = self.event_named("lost", timeout);
        let event = event.unwrap_or_else(|| panic!("not lost within {timeout:?}"));
        Lost {
            reason: event["reason"].as_str().unwrap_or_default().to_owned(),
            t_ns: number(&event, "t_ns"),
        }
    }

    /// Waits until the probe of an observed lock has seen the loss.
    ///
    /// # Panics
    ///
    /// If the probe does not see the loss within `timeout`.
    #[track_caller]
    pub fn not_held(&self, timeout: Duration) -> NotHeld {
        let event = self.event_named("not_held", timeout);
        let event = event.unwrap_or_else(|| panic!("held after {timeout:?}"));
        NotHeld {
            before_ns: number(&event, "before_ns"),
            last_true_ns: number(&event, "last_true_before_ns"),
        }
    }

    /// Asserts that an observed lock is held, and that no loss of it was reported so far.
    ///
    /// # Panics
    ///
    /// If the lock was lost.
    #[track_caller]
    pub fn keeps(&self, lock: &str) {
        assert!(self.is_held(lock), "{lock:?} is not held any more");
        let lost = self.event_named("lost", Duration::ZERO);
        let not_held = self.event_named("not_held", Duration::ZERO);
        assert!(lost.is_none() && not_held.is_none(), "a false loss: {lost:?} {not_held:?}");
    }

    /// Waits for the next event with this name. Events with other names that arrive meanwhile are kept for later calls.
    pub fn event_named(&self, name: &str, timeout: Duration) -> Option<Value> {
        let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = aside.iter().position(|event| event["event"] == name) {
            return Some(aside.remove(at));
        }
        let deadline = Instant::now() + timeout;
        loop {
            let event = self.event(deadline.saturating_duration_since(Instant::now()))?;
            if event["event"] == name {
                return Some(event);
            }
            aside.push(event);
        }
    }
}

impl Deref for Process {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        &self.worker
    }
}

fn connect_command(site: &Site, member: &str) -> Value {
    json!({
        "command": "connect",
        "url": site.url,
        "member": member,
        "ttl_ms": site.ttl.map(|ttl| ttl.as_millis() as u64),
        "heartbeat_ms": site.heartbeat.as_millis() as u64,
    })
}

fn grant(answer: &Value) -> Grant {
    Grant { token: number(answer, "token"), t_ns: number(answer, "t_ns") }
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

fn members(holders: &Value) -> Vec<String> {
    let holders = holders.as_array().cloned().unwrap_or_default();
    holders.iter().filter_map(|holder| Some(holder["member"].as_str()?.to_owned())).collect()
}
