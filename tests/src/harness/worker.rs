//! Tests with several client *processes*: each worker is a process that executes commands which the test sends to it.
//!
//! The worker is a binary of this package (`src/bin/worker/`). An integration test finds it as
//! `env!("CARGO_BIN_EXE_worker")`. This works under `cargo test` and under `cargo nextest`, and a test program need not
//! start itself as a worker.
//!
//! # Protocol
//!
//! Each line is one JSON object. The test writes commands to the worker's standard input:
//!
//! ```json
//! {"id": 1, "command": "acquire", "name": "vol-7", "timeout_ms": 5000}
//! ```
//!
//! The worker answers each command once, on its standard output. An answer has the same `id` as its command, and the
//! result or the error. The order of the answers may differ from that of the commands:
//!
//! ```json
//! {"id": 1, "ok": {"token": 17}}
//! {"id": 1, "error": {"kind": "Timeout", "message": "…"}}
//! ```
//!
//! Commands run at the same time, so an `acquire` that waits does not delay other commands. A line without an `id` is
//! an event, which the worker sends without being asked: `{"event": "lost", "name": "vol-7", "t_ns": 123}`. The worker
//! ends when its standard input is closed. Its standard error is written to its log.
//!
//! Every worker knows the commands `ping`, with the answer `{"pid": …, "t_ns": …}`, and `exit`, with the argument
//! `{"code": 0}` and without an answer. The other commands are described at the top of `src/bin/worker/main.rs`.

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

/// The environment variable that has the URL of the store for a worker.
pub const URL: &str = "COORDINATION_WORKER_URL";

/// A client process that executes the commands of a test. It is killed on drop.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    commands: Mutex<ChildStdin>,
    inbox: Arc<Inbox>,
    last_id: AtomicU64,
    _scratch: Option<Scratch>,
}

/// The answers and events that the worker has sent and no caller has taken yet.
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
    /// Starts the program `binary` as a client of the store at `url`. Its environment is ours with `environment` added.
    ///
    /// # Panics
    ///
    /// If the program cannot be started.
    pub fn start(binary: &str, url: &str, environment: &[(&str, &str)]) -> Self {
        let scratch = Scratch::new("worker");
        let launch = Launch::new(binary, scratch.join("worker.log")).env(URL, url);
        let launch =
            environment.iter().fold(launch, |launch, (name, value)| launch.env(name, value));
        Self { _scratch: Some(scratch), ..Self::launch(launch) }
    }

    /// Starts any program that speaks the protocol. Its log is where `launch` says.
    ///
    /// # Panics
    ///
    /// If the program cannot be started.
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
    /// If the answer is an error, or if there is no answer within [`LONG`].
    pub fn call(&self, command: Value) -> Value {
        self.try_call(command.clone()).unwrap_or_else(|error| panic!("{command} failed: {error}"))
    }

    /// Sends a command and waits for its answer: a result or an error. Blocks the thread.
    ///
    /// # Errors
    ///
    /// The error that the worker answered.
    ///
    /// # Panics
    ///
    /// If there is no answer within [`LONG`].
    pub fn try_call(&self, command: Value) -> Result<Value, Value> {
        let id = self.send(command.clone());
        self.receive(id, LONG)
            .unwrap_or_else(|| panic!("no answer to {command}; log:\n{}", self.child.log()))
    }

    /// Sends a command, which has to be a JSON object. Returns the number by which the caller can ask for the answer.
    ///
    /// # Panics
    ///
    /// If `command` is not an object. This does not panic if the worker has ended, but then there will be no answer.
    pub fn send(&self, mut command: Value) -> u64 {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        command.as_object_mut().expect("a command is an object").insert("id".to_owned(), id.into());
        let mut commands = lock(&self.commands);
        // The command is sent by one write. It is so small that it fits into the pipe even if the worker is paused and
        // does not read, so the write does not block.
        let _ = commands.write_all(format!("{command}\n").as_bytes());
        id
    }

    /// Waits for the answer to the command with this id. `None` if `timeout` passes or the worker has ended.
    pub fn receive(&self, id: u64, timeout: Duration) -> Option<Result<Value, Value>> {
        self.inbox.take(timeout, |said| said.answers.remove(&id)).map(into_result)
    }

    /// The answer to the command with this id; `None` if it has not arrived yet. For use in conditions of
    /// [`super::eventually`].
    pub fn poll(&self, id: u64) -> Option<Result<Value, Value>> {
        self.receive(id, Duration::ZERO)
    }

    /// Waits for the next event. `None` if `timeout` passes or the worker has ended.
    pub fn event(&self, timeout: Duration) -> Option<Value> {
        self.inbox.take(timeout, |said| said.events.pop_front())
    }

    /// Pauses the process with SIGSTOP.
    pub fn pause(&self) {
        self.child.pause();
    }

    /// Lets the process run again after a pause.
    pub fn resume(&self) {
        self.child.resume();
    }

    /// Kills the process with SIGKILL. The caller can still receive answers and events that the process sent before.
    pub fn kill(&self) {
        self.child.kill();
    }

    /// The process.
    pub fn child(&self) -> &Child {
        &self.child
    }
}

impl Inbox {
    /// Reads the worker's output until the worker ends, and sorts it into answers and events. Runs on a thread of its
    /// own.
    fn fill(&self, output: ChildStdout) {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // A worker that was killed may leave an incomplete line, which is ignored.
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
