//! A client that forks while it holds a lock: `forker <url> <name>`.
//!
//! Says what parent and child find, a line each, for `checks::closing` to read.
//!
//! A child of a process with threads may do little but ask and write: any lock of another thread,
//! the allocator's included, may be taken for ever. glibc keeps its allocator usable; and the child has
//! thirty seconds before it is killed, should anything else hang.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use coordination::blocking::{self, Coordinator};
use coordination::{ErrorKind, LockGuard, Result};

/// A child that hangs is killed after this time.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "multi_thread", worker_threads = 1)]
async fn main() -> ExitCode {
    let outcome = tokio::task::spawn_blocking(|| {
        let arguments: Vec<_> = std::env::args().collect();
        let [_, url, name] = arguments.as_slice() else { panic!("forker <url> <name>") };
        fork_while_holding(url, name)
    });
    match outcome.await.expect("no panic") {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

fn fork_while_holding(url: &str, name: &str) -> Result<()> {
    let coordinator = Coordinator::connect(url)?;
    let lock = coordinator.lock(name)?;
    let (kept, dropped) = (lock.acquire(None)?, coordinator.lock("another")?.acquire(None)?);
    let released = coordinator.lock("a third")?.acquire(None)?;
    match fork() {
        0 => child(kept, dropped, released, coordinator),
        child => {
            wait_for(child);
            // Long enough for anything that the child may have sent.
            std::thread::sleep(Duration::from_millis(500));
            let all = kept.is_held() && dropped.is_held() && released.is_held();
            let refused = lock.try_acquire()?.is_none()
                && coordinator.lock("another")?.try_acquire()?.is_none()
                && coordinator.lock("a third")?.try_acquire()?.is_none();
            println!("parent: held {}", all && refused);
            blocking::release(kept)?;
            blocking::release(dropped)?;
            blocking::release(released)?;
            coordinator.stop()
        }
    }
}

/// What the child does with its copies; it never returns.
fn child(kept: LockGuard, dropped: LockGuard, released: LockGuard, coordinator: Coordinator) -> ! {
    println!("child: held {}", kept.is_held() || dropped.is_held() || released.is_held());
    drop(dropped);
    let refused = blocking::release(released);
    let again = coordinator.lock("a fourth").and_then(|lock| lock.try_acquire());
    if is_closed(refused) && is_closed(again.map(drop)) && is_closed(coordinator.stop()) {
        println!("child: release refused");
    }
    drop(coordinator);
    drop(kept);
    exit(0)
}

fn is_closed(outcome: Result<()>) -> bool {
    outcome.is_err_and(|error| error.kind() == ErrorKind::Closed)
}

/// Waits for the child, and kills it when it hangs.
fn wait_for(child: i32) {
    let child = rustix::process::Pid::from_raw(child).expect("a child");
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let options = rustix::process::WaitOptions::NOHANG;
        if rustix::process::waitpid(Some(child), options).expect("our child").is_some() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
    panic!("the child hangs");
}

#[allow(unsafe_code, reason = "there is no safe way to fork")]
fn fork() -> i32 {
    // SAFETY: the child uses only what the module's docs speak of, and ends by `_exit`.
    let process = unsafe { libc::fork() };
    assert!(process >= 0, "it cannot fork");
    process
}

#[allow(unsafe_code, reason = "the child must not run what the parent has registered for its exit")]
fn exit(code: i32) -> ! {
    // SAFETY: it only ends the process.
    unsafe { libc::_exit(code) }
}
