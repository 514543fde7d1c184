//! Commands that keep a lock, or this process, busy.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use coordination::Lock;
use coordination_history::{Event, NEVER, NO_SLOT, Record, Writer};
use coordination_tests::harness::log::now_ns;
use serde_json::{Value, json};
use tokio::{runtime::Handle, task::JoinSet};

use crate::{
    client::{Arguments, Client, failed, misused},
    say,
};

/// What is needed to acquire, hold and release a lock once, and to record that in a history.
#[derive(Clone)]
struct Turn {
    lock: Lock,
    timeout: Option<Duration>,
    hold: Duration,
    history: Option<Arc<Writer>>,
}

impl Turn {
    fn new(client: &Client, arguments: Arguments<'_>) -> Result<Self, Value> {
        let history = arguments.optional("file").map(Writer::open).transpose();
        let history = history.map_err(|error| misused(&error.to_string()))?;
        Ok(Self {
            lock: client.lock(arguments)?,
            timeout: arguments.millis("timeout_ms"),
            hold: arguments.micros("hold_us").unwrap_or_default(),
            history: history.map(Arc::new),
        })
    }

    /// Acquires, holds and releases the lock once. Returns the token.
    async fn take(&self) -> Result<u64, Value> {
        static ATTEMPTS: AtomicU64 = AtomicU64::new(1);
        let attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
        let write = |event| self.write(attempt, event);
        let timeout = self.timeout.map_or(NEVER, |timeout| timeout.as_nanos() as u64);
        write(Event::Call { shared: false, timeout });
        let guard = match self.lock.acquire(self.timeout).await {
            Ok(guard) => guard,
            Err(error) => {
                write(Event::Refused { why: error.kind().into() });
                return Err(failed(error));
            }
        };
        let token = guard.token().value();
        write(Event::Granted { token, slot: NO_SLOT });
        if !self.hold.is_zero() {
            tokio::time::sleep(self.hold).await;
        }
        // `is_held` is called as late as possible, right before the release, because until then nobody else may have
        // the lock.
        let before = now_ns();
        write(Event::Probe { before, held: guard.is_held() });
        write(Event::ReleaseCall);
        let returned = guard.release().await;
        write(Event::released(&returned));
        returned.map_err(failed)?;
        Ok(token)
    }

    fn write(&self, attempt: u64, event: Event) {
        let Some(history) = &self.history else { return };
        let client = std::process::id();
        let record = Record { at: now_ns(), client, attempt, object: 1, event };
        history.append(&record).expect("the history is writable");
    }
}

pub(crate) async fn cycle(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let turn = Turn::new(client, arguments)?;
    let mut tokens = Vec::new();
    for _ in 0..arguments.count("n")? {
        tokens.push(turn.take().await?);
    }
    Ok(json!({ "tokens": tokens }))
}

pub(crate) async fn tasks(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let turn = Turn::new(client, arguments)?;
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..arguments.count("n")? {
        let turn = turn.clone();
        tasks.spawn(async move { turn.take().await });
    }
    let outcomes = tasks.join_all().await;
    let tokens = outcomes.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(json!({ "tokens": tokens, "ms": begun.elapsed().as_millis() as u64 }))
}

/// Keeps all worker threads of the runtime busy with computing, so that no other task of this program can run.
pub(crate) async fn block_executor(arguments: Arguments<'_>) -> Result<Value, Value> {
    let length = arguments.millis("ms").ok_or_else(|| misused("it needs the number `ms`"))?;
    let workers = Handle::current().metrics().num_workers();
    let busy = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..workers {
        let busy = Arc::clone(&busy);
        tasks.spawn(async move {
            if busy.fetch_add(1, Ordering::SeqCst) + 1 == workers {
                say(&json!({ "event": "blocked", "workers": workers, "t_ns": now_ns() }));
            }
            // Each task keeps its thread until all these tasks have a thread of their own. Without this wait, two of
            // them could run on one thread after each other.
            while busy.load(Ordering::SeqCst) < workers {
                std::hint::spin_loop();
            }
            let begun = Instant::now();
            while begun.elapsed() < length {
                std::hint::spin_loop();
            }
        });
    }
    tasks.join_all().await;
    Ok(json!({ "workers": workers }))
}

pub(crate) async fn spawn_children(arguments: Arguments<'_>) -> Result<Value, Value> {
    let count = arguments.count("n")?;
    let seconds = arguments.number("seconds");
    let spawned = tokio::task::spawn_blocking(move || {
        for _ in 0..count {
            match seconds {
                Some(seconds) => drop(Command::new("sleep").arg(seconds.to_string()).spawn()?),
                None => drop(Command::new("true").status()?),
            }
        }
        Ok::<_, std::io::Error>(())
    });
    let spawned = spawned.await.map_err(|error| misused(&error.to_string()))?;
    spawned.map_err(|error| misused(&error.to_string()))?;
    Ok(json!({}))
}
