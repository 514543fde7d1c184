//! How a thread waits for what is async.

use std::future::Future;

use crate::env::blocking::Blocking;

/// Blocks this thread until an async call is done.
///
/// Use it only for futures of this library, and for futures made only of them: a future that needs a runtime
/// panics or waits for ever. The [module's](super) remarks on calls within a runtime apply.
///
/// # Examples
///
/// ```
/// use coordination::blocking::{self, wait};
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let lock = coordinator.lock("vol-7")?;
///     let guard = lock.acquire(None)?;
///     lock.break_lock()?;
///     println!("it was lost: {}", wait(guard.lost()));
///     coordinator.stop()
/// }
/// ```
pub fn wait<F: Future>(future: F) -> F::Output {
    let _blocking = Blocking::begin();
    // If this runs within a task of tokio, that task never returns to tokio, so its budget would never be renewed. Therefore the
    // future runs without a budget.
    pollster::block_on(tokio::task::unconstrained(future))
}
