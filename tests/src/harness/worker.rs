//! Tests with several client *processes*: each worker is a process that executes the commands of the test.
//!
//! The worker is this package's own binary (`src/bin/worker/`), which an integration test finds as
//! `env!("CARGO_BIN_EXE_worker")`. This works under `cargo test` and `cargo nextest` alike, and no test binary has to
//! run itself.
//!
//! # Protocol
//!
//! One JSON object on each line. The test writes commands to the worker's standard input:
//!
//! ```json
//! {"id": 1, "command": "acquire", "name": "vol-7", "timeout_ms": 5000}
//! ```
//!
//! The worker answers each command once on its standard output, in any order, with the same `id` and the result or the
//! error:
//!
//! ```json
//! {"id": 1, "ok": {"token": 17}}
//! {"id": 1, "error": {"kind": "Timeout", "message": "…"}}
//! ```
//!
//! Commands run concurrently, so an `acquire` that waits does not delay others. A line without an `id` is an event,
//! which the worker sends on its own: `{"event": "lost", "name": "vol-7", "t_ns": 123}`. The worker ends when its
//! standard input is closed. Its standard error is written to its log.
//!
//! Every worker knows `ping` (answers `{"pid": …, "t_ns": …}`) and `exit` (`{"code": 0}`, no
//! answer); the rest is described at the top of `src/bin/worker/main.rs`.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{BufRead, BufReader, Write},
    process::{ChildStdin, ChildStdout},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{Child, Launch, Scratch};
use crate::bounds::LONG;

/// The environment variable with the URL of the store for a worker.
pub const URL: &str = "COORDINATION_WORKER_URL";

/// A client process that executes commands of the test; killed on drop.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    commands: Mutex<ChildStdin>,
    inbox: Arc<Inbox>,
    last_id: AtomicU64,
    _scratch: Option<Scratch>,
}

/// Answers and events that the worker has sent and that no caller has taken yet.
#[derive(Debug, Default)]
struct Inbox {
    state: Mutex<Said>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Said {
    answers: BTreeMap<u64, Value>,
    events: VecDeque<Value>,
    ended: bool,
}

impl Worker {
    /// Starts `binary` as a client of the store at `url`, with `environment` added to ours.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn start(binary: &str, url: &str, environment: &[(&str, &str)]) -> Self {
        let scratch = Scratch::new("worker");
        let launch = Launch::new(binary, scratch.join("worker.log")).env(URL, url);
        let launch =
            environment.iter().fold(launch, |launch, (name, value)| launch.env(name, value));
        Self { _scratch: Some(scratch), ..Self::launch(launch) }
    }

    /// Starts any program that speaks the protocol; its log is written where `launch` says.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn launch(launch: Launch) -> Self {
        let child = launch.piped().start();
        let (commands, answers) = child.pipes().expect("it was started with pipes");
        let inbox = Arc::new(Inbox::default());
        thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || inbox.fill(answers)
        });
        Self {
            child,
            commands: Mutex::new(commands),
            inbox,
            last_id: AtomicU64::new(0),
            _scratch: None,
        }
    }

    /// Sends a command and waits for its result. Blocks the thread.
    ///
    /// # Panics
    ///
    /// When the answer is an error, or none comes within [`LONG`].
    pub fn call(&self, command: Value) -> Value {
        self.try_call(command.clone()).unwrap_or_else(|error| panic!("{command} failed: {error}"))
    }

    /// Sends a command and waits for its answer: the result, or the error. Blocks the thread.
    ///
    /// # Errors
    ///
    /// The worker's `error`.
    ///
    /// # Panics
    ///
    /// When no answer comes within [`LONG`].
    pub fn try_call(&self, command: Value) -> Result<Value, Value> {
        let id = self.send(command.clone());
        self.receive(id, LONG)
            .unwrap_or_else(|| panic!("no answer to {command}; log:\n{}", self.child.log()))
    }

    /// Sends a command, an object, and returns the number by which to ask for its answer.
    ///
    /// # Panics
    ///
    /// When `command` is not an object. A worker that has ended is no panic: no answer will come.
    pub fn send(&self, mut command: Value) -> u64 {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        command.as_object_mut().expect("a command is an object").insert("id".to_owned(), id.into());
        let mut commands = lock(&self.commands);
        // The command is sent by one write, which is small enough to fit into the pipe of a paused worker, so that it
        // does not block.
        let _ = commands.write_all(format!("{command}\n").as_bytes());
        id
    }

    /// Waits for the answer to command `id`; none if `timeout` passes or the worker has ended.
    pub fn receive(&self, id: u64, timeout: Duration) -> Option<Result<Value, Value>> {
        self.inbox.take(timeout, |said| said.answers.remove(&id)).map(into_result)
    }

    /// The answer to command `id` if it has arrived; to be used with [`super::eventually`].
    pub fn poll(&self, id: u64) -> Option<Result<Value, Value>> {
        self.receive(id, Duration::ZERO)
    }

    /// Waits for the next event; none if `timeout` passes or the worker has ended.
    pub fn event(&self, timeout: Duration) -> Option<Value> {
        self.inbox.take(timeout, |said| said.events.pop_front())
    }

    /// Stops the process with SIGSTOP.
    pub fn pause(&self) {
        self.child.pause();
    }

    /// Lets the process run on.
    pub fn resume(&self) {
        self.child.resume();
    }

    /// Kills the process with SIGKILL. Answers and events that it sent before can still be received.
    pub fn kill(&self) {
        self.child.kill();
    }

    /// The process.
    pub fn child(&self) -> &Child {
        &self.child
    }
}

impl Inbox {
    /// Reads and sorts the worker's output until the worker ends; runs on a thread of its own.
    fn fill(&self, output: ChildStdout) {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // A worker that was killed may leave an incomplete line.
            let Ok(said) = serde_json::from_str::<Value>(&line) else {
                continue;
            };
            let mut state = lock(&self.state);
            match said["id"].as_u64() {
                Some(id) => drop(state.answers.insert(id, said)),
                None => state.events.push_back(said),
            }
            self.more.notify_all();
        }
        lock(&self.state).ended = true;
        self.more.notify_all();
    }

    fn take<T>(
        &self,
        timeout: Duration,
        mut pick: impl FnMut(&mut Said) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + timeout;
        let mut said = lock(&self.state);
        loop {
            let picked = pick(&mut said);
            let left = deadline.saturating_duration_since(Instant::now());
            if picked.is_some() || said.ended || left.is_zero() {
                return picked;
            }
            said = self.more.wait_timeout(said, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn into_result(mut answer: Value) -> Result<Value, Value> {
    match answer.get("error") {
        Some(error) => Err(error.clone()),
        None => Ok(answer["ok"].take()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
