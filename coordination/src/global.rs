//! The global coordinator: one for the process. With the feature `testing`, a scope may have its own in its place.

use std::sync::{PoisonError, RwLock};

use crate::coordinator::Coordinator;

static PROCESS: Slot = Slot::empty();

/// Where a coordinator is installed.
#[derive(Default)]
pub(crate) struct Slot(RwLock<Option<Coordinator>>);

impl Slot {
    const fn empty() -> Self {
        Self(RwLock::new(None))
    }

    /// Installs this one. False: there is another one that was not stopped.
    pub(crate) fn install(&self, coordinator: &Coordinator) -> bool {
        let mut slot = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if slot.as_ref().is_some_and(|installed| !installed.is_closed()) {
            return false;
        }
        let before = slot.replace(coordinator.clone());
        drop(slot);
        // Not under the lock: it may be the last of its session, whose end is told to the service's log.
        drop(before);
        true
    }

    /// The one that is installed.
    pub(crate) fn installed(&self) -> Option<Coordinator> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Calls this with the slot that counts here.
pub(crate) fn with_slot<T>(call: impl FnOnce(&Slot) -> T) -> T {
    #[cfg(feature = "testing")]
    if let Some(slot) = scopes::innermost() {
        return call(&slot);
    }
    call(&PROCESS)
}

/// Slots that take the place of the process' own for one task, one thread or one runtime.
#[cfg(feature = "testing")]
pub(crate) mod scopes {
    use std::cell::RefCell;
    use std::future::Future;
    use std::marker::PhantomData;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, PoisonError, RwLock};

    use tokio::runtime::{Handle, Id};

    use super::Slot;

    tokio::task_local! {
        static TASK: Arc<Slot>;
    }

    thread_local! {
        /// In the order in which they were entered.
        static THREAD: RefCell<Vec<Arc<Slot>>> = const { RefCell::new(Vec::new()) };
    }

    /// In the order in which they were entered.
    static RUNTIMES: RwLock<Vec<(Id, Arc<Slot>)>> = RwLock::new(Vec::new());
    /// How many there are, so that a look-up where there are none takes no lock.
    static COUNT: AtomicUsize = AtomicUsize::new(0);

    /// The slot of this task, else of this thread, else of this runtime.
    pub(super) fn innermost() -> Option<Arc<Slot>> {
        if let Ok(slot) = TASK.try_with(Arc::clone) {
            return Some(slot);
        }
        // On a thread that ends, what it had is gone.
        let of_thread = THREAD.try_with(|slots| slots.borrow().last().cloned());
        of_thread.ok().flatten().or_else(of_runtime)
    }

    fn of_runtime() -> Option<Arc<Slot>> {
        if COUNT.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let here = Handle::try_current().ok()?.id();
        let runtimes = RUNTIMES.read().unwrap_or_else(PoisonError::into_inner);
        let found = runtimes.iter().rev().find(|(id, _)| *id == here);
        found.map(|(_, slot)| Arc::clone(slot))
    }

    /// Runs a future in which this slot counts.
    pub(crate) fn run<F: Future>(
        slot: Arc<Slot>,
        future: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        TASK.scope(slot, future)
    }

    /// While it is there, this slot counts on the thread that made it, and on the runtime in which that was.
    pub(crate) struct Entered {
        slot: Arc<Slot>,
        runtime: Option<Id>,
        /// It stays on its thread.
        _thread: PhantomData<*const ()>,
    }

    impl Entered {
        pub(crate) fn new(slot: Arc<Slot>) -> Self {
            let runtime = Handle::try_current().ok().map(|handle| handle.id());
            if let Some(id) = runtime {
                let mut runtimes = RUNTIMES.write().unwrap_or_else(PoisonError::into_inner);
                runtimes.push((id, Arc::clone(&slot)));
                COUNT.store(runtimes.len(), Ordering::SeqCst);
            }
            THREAD.with(|slots| slots.borrow_mut().push(Arc::clone(&slot)));
            Self { slot, runtime, _thread: PhantomData }
        }
    }

    impl Drop for Entered {
        fn drop(&mut self) {
            // One of several that are the same is as good as the other. What is taken out is dropped where nothing is locked: it
            // may be the last of a session, whose end is told to the service's log.
            let _of_thread = THREAD.try_with(|slots| {
                let mut slots = slots.borrow_mut();
                let last = slots.iter().rposition(|slot| Arc::ptr_eq(slot, &self.slot));
                last.map(|last| slots.remove(last))
            });
            let Some(here) = self.runtime else { return };
            let mut runtimes = RUNTIMES.write().unwrap_or_else(PoisonError::into_inner);
            let is_it = |(id, slot): &(Id, Arc<Slot>)| *id == here && Arc::ptr_eq(slot, &self.slot);
            let of_runtime = runtimes.iter().rposition(is_it).map(|last| runtimes.remove(last));
            COUNT.store(runtimes.len(), Ordering::SeqCst);
            drop(runtimes);
            drop(of_runtime);
        }
    }
}
