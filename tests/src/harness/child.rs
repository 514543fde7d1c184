//! Child processes that can be paused and killed, and never outlive the test.
//!
//! A child is only ever addressed through its handle, which is waited for by us alone: its process
//! id cannot be another's. It is killed on drop, and by the kernel when this process dies without
//! dropping anything: `setpriv --pdeathsig KILL` sets the parent-death signal and then becomes the
//! program, so the process id stays. That signal follows the *thread* that started the child, hence
//! the one thread below that starts all of them and never ends.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    path::PathBuf,
    process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use super::{rerun::count_fault, wait_until};

/// How to start a [`Child`].
#[derive(Debug)]
pub struct Launch {
    command: Command,
    program: OsString,
    log: PathBuf,
    piped: bool,
    with_children: bool,
}

impl Launch {
    /// `program` (a path, or a name looked up in `PATH`), with its output appended to `log`.
    pub fn new(program: impl AsRef<OsStr>, log: impl Into<PathBuf>) -> Self {
        let program = program.as_ref();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        Self {
            command,
            program: program.to_owned(),
            log: log.into(),
            piped: false,
            with_children: false,
        }
    }

    /// Adds arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Keeps nothing of our environment but `PATH`: settings of the shell must not reach a server.
    pub fn clear_env(mut self) -> Self {
        self.command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        self
    }

    /// Connects standard input and output to pipes; the log then gets standard error only.
    pub fn piped(mut self) -> Self {
        self.piped = true;
        self
    }

    /// What is done to it is done to the processes that it has started: it is a server of several.
    pub fn with_children(mut self) -> Self {
        self.with_children = true;
        self
    }

    /// Starts it.
    ///
    /// # Panics
    ///
    /// When it cannot be started. A program that `setpriv` does not find shows up later, in the log.
    pub fn start(mut self) -> Child {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .expect("the log's directory is writable");
        let copy = log.try_clone().expect("a file can be duplicated");
        self.command.stderr(log);
        if self.piped {
            self.command.stdin(Stdio::piped()).stdout(Stdio::piped());
        } else {
            self.command.stdin(Stdio::null()).stdout(copy);
        }
        let process = spawn(self.command)
            .unwrap_or_else(|error| panic!("cannot start {:?}: {error}", self.program));
        let (pid, process) = (Pid::from_child(&process), Mutex::new(process));
        Child { pid, process, log: self.log, with_children: self.with_children }
    }
}

/// A running process; killed and waited for on drop.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    process: Mutex<std::process::Child>,
    log: PathBuf,
    with_children: bool,
}

impl Child {
    /// The process id.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Stops it with SIGSTOP; on return it no longer runs. Nothing happens when it has ended.
    pub fn pause(&self) {
        let mut process = self.lock();
        if !is_running(&mut process) || is_stopped(self.id()) {
            return;
        }
        count_fault();
        self.stop();
        self.children().iter().for_each(|child| send(*child, Signal::STOP));
    }

    /// Sends SIGSTOP; on return it no longer runs.
    fn stop(&self) {
        self.signal(Signal::STOP);
        // The signal is sent at once but acted upon a little later.
        let stopped = wait_until(Duration::from_secs(2), || {
            let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            let change = rustix::process::waitid(WaitId::Pid(self.pid), options);
            matches!(change, Ok(Some(status)) if status.stopped())
        });
        assert!(stopped, "SIGSTOP had no effect");
    }

    /// Lets it run on, with SIGCONT.
    pub fn resume(&self) {
        if is_running(&mut self.lock()) {
            self.children().iter().for_each(|child| send(*child, Signal::CONT));
            self.signal(Signal::CONT);
        }
    }

    /// The processes that it has started, if they are to share its fate.
    ///
    /// Invariant: it is stopped while they are signalled, so it waits for none of them, and no id of theirs is another's.
    fn children(&self) -> Vec<Pid> {
        if !self.with_children {
            return Vec::new();
        }
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_ours = |id: &i32| parent_of(*id) == Some(self.pid.as_raw_nonzero().get());
        ids.filter(is_ours).filter_map(Pid::from_raw).collect()
    }

    /// Kills it with SIGKILL, paused or not, and waits for its end.
    pub fn kill(&self) -> ExitStatus {
        count_fault();
        self.end()
    }

    fn end(&self) -> ExitStatus {
        let mut process = self.lock();
        if self.with_children && is_running(&mut process) {
            if !is_stopped(self.id()) {
                self.stop();
            }
            self.children().iter().for_each(|child| send(*child, Signal::KILL));
        }
        // Fails only when the process has ended, which is what we want. A paused process needs no
        // SIGCONT, and must not get one: it would run, and send, for a moment.
        let _ = process.kill();
        process.wait().expect("the child is ours to wait for")
    }

    /// Asks it to end with SIGTERM, and kills it when it has not done so within `patience`.
    pub fn terminate(&self, patience: Duration) -> ExitStatus {
        if is_running(&mut self.lock()) {
            self.signal(Signal::TERM);
        }
        wait_until(patience, || !self.is_running());
        self.end()
    }

    /// Whether it has not ended; a paused process is running.
    pub fn is_running(&self) -> bool {
        is_running(&mut self.lock())
    }

    /// How it ended, once it has.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.lock().try_wait().ok().flatten()
    }

    /// Waits for its end, for at most `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<ExitStatus> {
        wait_until(timeout, || !self.is_running());
        self.exit_status()
    }

    /// The pipes, when it was started with [`Launch::piped`]; once.
    pub fn pipes(&self) -> Option<(ChildStdin, ChildStdout)> {
        let mut process = self.lock();
        process.stdin.take().zip(process.stdout.take())
    }

    /// Its output so far.
    pub fn log(&self) -> String {
        fs::read(&self.log)
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        // Invariant: called with the process locked and not waited for, so the id is still its own.
        rustix::process::kill_process(self.pid, signal).expect("our child can be signalled");
    }

    fn lock(&self) -> MutexGuard<'_, std::process::Child> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().rev().take(20).collect();
            eprintln!("--- end of {}", self.log.display());
            lines.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// A process that has ended is waited for by its parent alone: its id is still its own.
fn send(process: Pid, signal: Signal) {
    let _ = rustix::process::kill_process(process, signal);
}

fn parent_of(id: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

fn is_running(process: &mut std::process::Child) -> bool {
    matches!(process.try_wait(), Ok(None))
}

/// Whether it was paused before; each stop is reported to a waiter only once.
fn is_stopped(id: u32) -> bool {
    fs::read_to_string(format!("/proc/{id}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
}

type Order = (Command, mpsc::Sender<io::Result<std::process::Child>>);

/// Starts a process from the thread that lives as long as this process.
fn spawn(command: Command) -> io::Result<std::process::Child> {
    static ORDERS: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        thread::Builder::new()
            .name("parent-of-children".to_owned())
            .spawn(move || {
                for (mut command, answer) in orders {
                    // The asker waits for the answer.
                    let _ = answer.send(command.spawn());
                }
            })
            .expect("a thread can be started");
        sender
    });
    let (answer, result) = mpsc::channel();
    orders.send((command, answer)).expect("the thread ends with the process");
    result.recv().expect("the thread answers each order")
}
