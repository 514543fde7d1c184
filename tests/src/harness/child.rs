//! Child processes that can be paused and killed, and never outlive the test.
//!
//! A child's process id cannot have been given to another process, because only this process waits for the child, and
//! only through the child's handle.
//!
//! A child is killed on drop. If this process dies without dropping the handle, the kernel kills the child: `setpriv
//! --pdeathsig KILL` sets the parent-death signal and then executes the program, which keeps the process id. The kernel
//! sends this signal when the *thread* that started the child ends. So all children are started by one thread, which
//! never ends (`spawn`).

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
use crate::bounds::LONG;

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
    /// Prepares to start `program`, which is a path or a name that is looked up in `PATH`. Its output is appended to
    /// `log`.
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

    /// Gives the process none of our environment variables except `PATH`, so that settings of the shell do not affect a
    /// server.
    pub fn clear_env(mut self) -> Self {
        self.command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        self
    }

    /// Connects standard input and output to pipes. The log then gets only standard error.
    pub fn piped(mut self) -> Self {
        self.piped = true;
        self
    }

    /// Sends each signal also to the processes that the process has started. A server that consists of several
    /// processes needs this.
    pub fn with_children(mut self) -> Self {
        self.with_children = true;
        self
    }

    /// Starts the process.
    ///
    /// # Panics
    ///
    /// If the process cannot be started. If `setpriv` starts but does not find the program, this call succeeds, and the
    /// error is in the log.
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

/// A running process. On drop it is killed and waited for.
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

    /// Pauses the process with SIGSTOP, and waits until it is stopped. Does nothing if the process has ended.
    pub fn pause(&self) {
        let mut process = self.lock();
        if !is_running(&mut process) || is_stopped(self.id()) {
            return;
        }
        count_fault();
        if self.stop(&mut process) {
            self.children().iter().for_each(|child| send(*child, Signal::STOP));
        } else {
            assert!(!is_running(&mut process), "SIGSTOP had no effect");
        }
    }

    /// Sends SIGSTOP and waits until the process is stopped. Returns false if it has ended before, or does not stop.
    fn stop(&self, process: &mut std::process::Child) -> bool {
        self.signal(Signal::STOP);
        // The kernel sends the signal at once, but the process stops later: when it gets a processor, and the disk has
        // done what the process waits for.
        let mut stopped = false;
        wait_until(LONG, || {
            let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            let change = rustix::process::waitid(WaitId::Pid(self.pid), options);
            stopped = matches!(change, Ok(Some(status)) if status.stopped());
            stopped || !is_running(process)
        });
        stopped
    }

    /// Lets the process run on, with SIGCONT.
    pub fn resume(&self) {
        if is_running(&mut self.lock()) {
            self.children().iter().for_each(|child| send(*child, Signal::CONT));
            self.signal(Signal::CONT);
        }
    }

    /// The processes that this process has started, if signals are to be sent to them too; otherwise none.
    ///
    /// To be called only while this process is stopped: a stopped process cannot wait for its children, so the id of a
    /// child that has ended is not given to another process. Otherwise a signal could reach a process that is not ours.
    fn children(&self) -> Vec<Pid> {
        if !self.with_children {
            return Vec::new();
        }
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_ours = |id: &i32| parent_of(*id) == Some(self.pid.as_raw_nonzero().get());
        ids.filter(is_ours).filter_map(Pid::from_raw).collect()
    }

    /// Kills the process with SIGKILL, even if it is paused, and waits for its end.
    pub fn kill(&self) -> ExitStatus {
        count_fault();
        self.end()
    }

    fn end(&self) -> ExitStatus {
        let mut process = self.lock();
        // This must not panic: it also runs on drop, where the panic of a failed check may unwind.
        if self.with_children
            && is_running(&mut process)
            && (is_stopped(self.id()) || self.stop(&mut process))
        {
            self.children().iter().for_each(|child| send(*child, Signal::KILL));
        }
        // `kill` fails only if the process has ended already. A paused process is killed without a SIGCONT before the
        // SIGKILL: after a SIGCONT it would run for a moment, and could send something.
        let _ = process.kill();
        process.wait().expect("the child is ours to wait for")
    }

    /// Sends SIGTERM, and kills the process if it has not ended within `patience`.
    pub fn terminate(&self, patience: Duration) -> ExitStatus {
        if is_running(&mut self.lock()) {
            self.signal(Signal::TERM);
        }
        wait_until(patience, || !self.is_running());
        self.end()
    }

    /// Whether the process is still there; a paused process counts as running.
    pub fn is_running(&self) -> bool {
        is_running(&mut self.lock())
    }

    /// The exit status, if the process has ended.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.lock().try_wait().ok().flatten()
    }

    /// Waits for the end of the process, for at most `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<ExitStatus> {
        wait_until(timeout, || !self.is_running());
        self.exit_status()
    }

    /// The pipes to standard input and output, if the process was started with [`Launch::piped`]. Only the first call
    /// returns them.
    pub fn pipes(&self) -> Option<(ChildStdin, ChildStdout)> {
        let mut process = self.lock();
        process.stdin.take().zip(process.stdout.take())
    }

    /// The child's output so far.
    pub fn log(&self) -> String {
        fs::read(&self.log)
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        // To be called only while the process is locked and known to be unwaited-for. Then its id cannot have been
        // given to another process.
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

/// Sends a signal to a child of our child. Our child is stopped, so it cannot have waited for the process. So the id
/// still belongs to the process, even if the process has ended.
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

/// Whether the process is stopped already. If it is, `stop` must not be called again, because the kernel reports each
/// stop only once and the call would wait in vain.
fn is_stopped(id: u32) -> bool {
    fs::read_to_string(format!("/proc/{id}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
}

type Order = (Command, mpsc::Sender<io::Result<std::process::Child>>);

/// Starts a process on a thread that lives as long as this process. The kernel would kill the child when the thread
/// that started it ends.
fn spawn(command: Command) -> io::Result<std::process::Child> {
    static ORDERS: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        thread::Builder::new()
            .name("parent-of-children".to_owned())
            .spawn(move || {
                for (mut command, answer) in orders {
                    // This cannot fail, because `spawn` waits for the result on the other end of the channel.
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
