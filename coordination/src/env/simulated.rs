//! A world that a simulation can take over, thread by thread. Threads without a simulation have the real one.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;

use rand::{Rng, TryRng};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::real;

/// A task as it is given to a simulation.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a simulation answers instead of the machine.
pub(crate) trait Simulated {
    /// What the clock since boot shows, in nanoseconds.
    fn boot_nanos(&self) -> u64;

    /// What the wall clock shows, in microseconds since 1970.
    fn unix_micros(&self) -> u64;

    /// Which host this is: processes of one host have one clock.
    fn host(&self) -> u64;

    /// The next random number.
    fn random(&self) -> u64;

    /// Makes a task that is about to start part of the simulated process that starts it.
    fn within(&self, task: Task) -> Task;
}

thread_local! {
    static INSTALLED: Cell<Option<&'static dyn Simulated>> = const { Cell::new(None) };
}

/// From here on this thread's world is the simulation's.
pub(crate) fn install(simulation: &'static dyn Simulated) {
    INSTALLED.set(Some(simulation));
}

/// From here on this thread's world is the machine's again.
pub(crate) fn uninstall() {
    INSTALLED.set(None);
}

/// The clock since boot, which goes on while the machine is suspended.
pub(crate) fn boot_nanos() -> u64 {
    INSTALLED.get().map_or_else(real::boot_nanos, Simulated::boot_nanos)
}

/// The wall clock in microseconds since 1970. A new queue's tokens start at it, and people are shown it. It never decides who holds
/// a lock.
pub(crate) fn unix_micros() -> u64 {
    INSTALLED.get().map_or_else(real::unix_micros, Simulated::unix_micros)
}

/// Which host this thread is on, in a simulation.
pub(super) fn host() -> Option<u64> {
    INSTALLED.get().map(Simulated::host)
}

/// Random numbers that nobody can guess, or in a simulation those that follow from its seed.
pub(crate) fn rng() -> Random {
    Random
}

/// Starts a task on this runtime.
pub(crate) fn spawn<F>(runtime: &Handle, task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    match INSTALLED.get() {
        Some(simulation) => runtime.spawn(within(simulation, task)),
        None => real::spawn(runtime, task),
    }
}

fn within<F>(simulation: &dyn Simulated, task: F) -> impl Future<Output = F::Output> + use<F>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let (answer, mut answered) = oneshot::channel();
    let task = simulation.within(Box::pin(async move { drop(answer.send(task.await)) }));
    async move {
        task.await;
        answered.try_recv().expect("a task that has ended has sent its answer")
    }
}

/// The library's random numbers.
#[derive(Debug)]
pub(crate) struct Random;

impl TryRng for Random {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.next_u64() as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(INSTALLED.get().map_or_else(|| real::rng().next_u64(), Simulated::random))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}
