//! The coordinator and its guards, and the commands about a single lock.

use std::{
    collections::HashMap,
    env,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use coordination::{Contender, Coordinator, Error, Lock, LockGuard};
use coordination_tests::harness::{log::now_ns, worker::URL};
use serde_json::{Value, json};

/// The fields of a command, which are found by name.
#[derive(Clone, Copy)]
pub(crate) struct Arguments<'a>(pub(crate) &'a Value);

impl<'a> Arguments<'a> {
    pub(crate) fn text(self, name: &str) -> Result<&'a str, Value> {
        self.optional(name).ok_or_else(|| misused(&format!("it needs the text `{name}`")))
    }

    pub(crate) fn optional(self, name: &str) -> Option<&'a str> {
        self.0[name].as_str()
    }

    pub(crate) fn number(self, name: &str) -> Option<u64> {
        self.0[name].as_u64()
    }

    pub(crate) fn count(self, name: &str) -> Result<usize, Value> {
        let count = self.number(name).and_then(|number| number.try_into().ok());
        count.ok_or_else(|| misused(&format!("it needs the number `{name}`")))
    }

    pub(crate) fn millis(self, name: &str) -> Option<Duration> {
        self.number(name).map(Duration::from_millis)
    }

    pub(crate) fn micros(self, name: &str) -> Option<Duration> {
        self.number(name).map(Duration::from_micros)
    }
}

/// What all commands of the process share: the coordinator and the guards.
#[derive(Default)]
pub(crate) struct Client {
    coordinator: Mutex<Option<Coordinator>>,
    guards: Mutex<HashMap<String, Held>>,
}

/// A guard. Some commands, such as `probe_held`, go on using it in the background.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) guard: Arc<LockGuard>,
    /// Set when the guard is about to be released or dropped. Commands in the background then drop their references to
    /// it.
    pub(crate) ending: Arc<AtomicBool>,
}

impl Client {
    pub(crate) async fn connect(&self, arguments: Arguments<'_>) -> Result<Value, Value> {
        let mut builder = Coordinator::builder();
        if let Some(member) = arguments.optional("member") {
            builder = builder.member_id(member);
        }
        if let Some(prefix) = arguments.optional("prefix") {
            builder = builder.prefix(prefix);
        }
        if let Some(namespace) = arguments.optional("namespace") {
            builder = builder.namespace(namespace);
        }
        if let Some(ttl) = arguments.millis("ttl_ms") {
            builder = builder.ttl(ttl);
        }
        if let Some(heartbeat) = arguments.millis("heartbeat_ms") {
            builder = builder.heartbeat(heartbeat);
        }
        if let Some(backoff) = arguments.millis("max_backoff_ms") {
            builder = builder.max_reconnect_backoff(backoff);
        }
        let url = arguments.optional("url").map(str::to_owned).or_else(|| env::var(URL).ok());
        let url = url.ok_or_else(|| misused("there is no URL"))?;
        let begun = Instant::now();
        let coordinator = builder.connect(&url).await.map_err(failed)?;
        let member = coordinator.member_id().to_owned();
        *lock(&self.coordinator) = Some(coordinator);
        Ok(json!({ "member": member, "ms": millis_since(begun) }))
    }

    pub(crate) async fn acquire(&self, arguments: Arguments<'_>) -> Result<Value, Value> {
        let lock = self.lock(arguments)?;
        let guard = lock.acquire(arguments.millis("timeout_ms")).await.map_err(failed)?;
        Ok(self.keep(arguments, guard))
    }

    pub(crate) async fn try_acquire(&self, arguments: Arguments<'_>) -> Result<Value, Value> {
        let guard = self.lock(arguments)?.try_acquire().await.map_err(failed)?;
        Ok(guard.map_or(Value::Null, |guard| self.keep(arguments, guard)))
    }

    pub(crate) async fn release(&self, arguments: Arguments<'_>) -> Result<Value, Value> {
        let guard = self.take(arguments).await?;
        let before_ns = now_ns();
        guard.release().await.map_err(failed)?;
        Ok(json!({ "before_ns": before_ns, "after_ns": now_ns() }))
    }

    pub(crate) async fn drop_guard(&self, arguments: Arguments<'_>) -> Result<Value, Value> {
        let guard = self.take(arguments).await?;
        let before_ns = now_ns();
        drop(guard);
        Ok(json!({ "before_ns": before_ns, "after_ns": now_ns() }))
    }

    pub(crate) fn is_held(&self, arguments: Arguments<'_>) -> Result<Value, Value> {
        let held = self.held(arguments)?;
        let before_ns = now_ns();
        let answer = held.guard.is_held();
        Ok(json!({ "held": answer, "before_ns": before_ns, "after_ns": now_ns() }))
    }

    pub(crate) fn write_fenced(&self, arguments: Arguments<'_>) -> Result<Value, Value> {
        let token = self.held(arguments)?.guard.token();
        Ok(json!({ "token": token, "value": arguments.0["value"], "t_ns": now_ns() }))
    }

    pub(crate) async fn holders(&self, arguments: Arguments<'_>) -> Result<Value, Value> {
        let contenders = self.lock(arguments)?.holders().await.map_err(failed)?;
        Ok(contenders.iter().map(describe).collect())
    }

    pub(crate) async fn break_lock(&self, arguments: Arguments<'_>) -> Result<Value, Value> {
        let broken = self.lock(arguments)?.break_lock().await.map_err(failed)?;
        Ok(broken.as_ref().map_or(Value::Null, describe))
    }

    pub(crate) async fn stop(&self) -> Result<Value, Value> {
        let begun = Instant::now();
        self.coordinator()?.stop().await.map_err(failed)?;
        Ok(json!({ "ms": millis_since(begun) }))
    }

    pub(crate) fn disconnect(&self) -> Result<Value, Value> {
        let coordinator = lock(&self.coordinator).take();
        coordinator.map(|_| json!({})).ok_or_else(not_connected)
    }

    pub(crate) fn coordinator(&self) -> Result<Coordinator, Value> {
        lock(&self.coordinator).clone().ok_or_else(not_connected)
    }

    pub(crate) fn lock(&self, arguments: Arguments<'_>) -> Result<Lock, Value> {
        let name = arguments.text("lock")?;
        self.coordinator()?.lock(name).map_err(failed)
    }

    pub(crate) fn held(&self, arguments: Arguments<'_>) -> Result<Held, Value> {
        let handle = arguments.text("handle")?;
        lock(&self.guards).get(handle).cloned().ok_or_else(|| misused("no guard has that handle"))
    }

    pub(crate) fn keep(&self, arguments: Arguments<'_>, guard: LockGuard) -> Value {
        let t_ns = now_ns();
        let result = json!({
            "token": guard.token(),
            "remaining_ms": guard.remaining().map(|left| left.as_millis() as u64),
            "t_ns": t_ns,
        });
        let handle = arguments.optional("as").or(arguments.optional("lock")).unwrap_or_default();
        let held = Held { guard: Arc::new(guard), ending: Arc::default() };
        lock(&self.guards).insert(handle.to_owned(), held);
        result
    }

    /// Takes the guard out of the list, and waits until no command in the background refers to it any more.
    pub(crate) async fn take(&self, arguments: Arguments<'_>) -> Result<LockGuard, Value> {
        let Held { mut guard, ending } = self.held(arguments)?;
        lock(&self.guards).remove(arguments.text("handle")?);
        ending.store(true, Ordering::SeqCst);
        loop {
            match Arc::try_unwrap(guard) {
                Ok(guard) => return Ok(guard),
                Err(shared) => guard = shared,
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn describe(contender: &Contender) -> Value {
    json!({
        "member": contender.member,
        "token": contender.token,
        "holding": contender.holding,
    })
}

/// The library's error as JSON.
pub(crate) fn failed(error: Error) -> Value {
    json!({
        "kind": format!("{:?}", error.kind()),
        "effect": format!("{:?}", error.effect()),
        "message": error.to_string(),
        "reason": error.loss_reason().map(|reason| format!("{reason:?}")),
    })
}

/// An error of the test: its command is wrong.
pub(crate) fn misused(message: &str) -> Value {
    json!({ "kind": "Command", "effect": "None", "message": message, "reason": null })
}

fn not_connected() -> Value {
    misused("`connect` comes first")
}

fn millis_since(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
