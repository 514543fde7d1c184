//! The store as the library has it: a namespace's directory, and the calls that change a queue.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use super::DESCRIPTOR;
use super::config::Config;
use super::error::is_for_want_of_descriptors;
use super::held::Share;
use super::queue::{Locked, is_of};
use super::store::Store;
use crate::backend::descriptor::Connect;
use crate::backend::{self, Cursor, Left, Page};
use crate::characteristics::{Characteristics, Durability, Liveness, Scope};
use crate::config::Settings;
use crate::error::{Error, LossReason, Result};
use crate::key::QueueKey;
use crate::panics;

/// A warning in the store's characteristics, if the directory is on a network file system.
const NETWORK: &str =
    "on a network file system a lock may end with its connection, and may not reach other hosts";

/// How long to wait between two tries to get a queue's short lock.
pub(super) const BUSY: Duration = Duration::from_millis(1);

/// The store of one namespace: a directory.
pub(crate) struct FileStore {
    pub(super) config: Config,
    pub(super) namespace: String,
    /// The open directory. If it was moved or removed, the next opening of a session puts a new one here.
    pub(super) store: Mutex<Arc<Store>>,
    /// Only with `durable`: for each queue, a semaphore with one permit. While the queue's short lock is taken or the disk is slow,
    /// one task of this process tries for the lock, and all others wait for the permit. Without the semaphore, hundreds of tasks
    /// would try for the lock.
    pub(super) lines: Mutex<HashMap<QueueKey, Weak<Semaphore>>>,
}

impl FileStore {
    pub(crate) fn open(config: &Config, settings: &Settings) -> Result<Self> {
        let store = Store::open(config, &settings.namespace)?;
        Ok(Self {
            config: config.clone(),
            namespace: settings.namespace.clone(),
            store: Mutex::new(Arc::new(store)),
            lines: Mutex::default(),
        })
    }

    pub(super) fn line_if_durable(&self, queue: &QueueKey) -> Option<Arc<Semaphore>> {
        self.config.durable.then(|| self.line(queue))
    }

    fn line(&self, queue: &QueueKey) -> Arc<Semaphore> {
        let mut lines = self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(line) = lines.get(queue).and_then(Weak::upgrade) {
            return line;
        }
        lines.retain(|_, line| line.strong_count() > 0);
        let line = Arc::new(Semaphore::new(1));
        lines.insert(queue.clone(), Arc::downgrade(&line));
        line
    }

    pub(super) fn store(&self) -> Arc<Store> {
        Arc::clone(&self.store.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// The open directory. If the path in the URL does not lead to it any more, opens the directory again.
    pub(super) fn store_in_place(&self) -> Result<Arc<Store>> {
        let mut store = self.store.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !store.is_in_place()? {
            *store = Arc::new(
                store.open_files.with_room(|| Store::open(&self.config, &self.namespace))?,
            );
        }
        Ok(Arc::clone(&store))
    }

    /// Makes a change of a queue: runs `step` under the queue's short lock.
    ///
    /// If the future is dropped before `step` has begun, `step` never begins. If `step` has begun, it keeps the lock until it is
    /// done. So the process that gets the lock next sees the whole effect of this call: nothing of it comes later.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        operation: &'static str,
        queue: &QueueKey,
        step: impl Fn(&Store, &mut Locked<'_>) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        let (store, key) = (self.store(), queue.clone());
        if !self.config.durable {
            return when_free(|| store.with_queue(&key, |queue| step(&store, queue))).await;
        }
        let line = self.line(queue);
        let _turn = line.acquire().await;
        let (answer, answered) = oneshot::channel();
        let ended = move || Error::lost(operation, LossReason::RuntimeEnded);
        let step = Arc::new(step);
        let (elsewhere, queue, later) = (Arc::clone(&store), key.clone(), Arc::clone(&step));
        let change = move || {
            loop {
                // Whether the caller has given up is checked under the lock. If it were checked earlier, the caller could give up
                // between the check and the lock, and another process could lock and read the queue in that time. After that, this
                // call would still change the queue, although its caller has given it up.
                let tried = elsewhere.with_queue(&queue, |queue| match answer.is_closed() {
                    true => Err(ended()),
                    false => later(&elsewhere, queue),
                });
                match tried {
                    Some(outcome) => return drop(answer.send(outcome)),
                    None if answer.is_closed() => return,
                    None => std::thread::sleep(BUSY),
                }
            }
        };
        // The disk takes milliseconds. So `step` does not run on the session's thread, where heartbeats run too.
        let Some(task) = on_a_thread(change) else {
            // Tokio may keep the task until it has a thread. But the receiver is dropped here, so the task finds that its caller
            // has gone, and does nothing. Therefore the change can be made here without being made twice.
            drop(answered);
            return when_free(|| store.with_queue(&key, |queue| step(&store, queue))).await;
        };
        match answered.await {
            Ok(outcome) => outcome,
            Err(_) => Err(match task.await {
                Ok(()) => ended(),
                Err(failed) => panics::of_task(operation, failed).unwrap_or_else(ended),
            }),
        }
    }
}

/// Runs blocking work on a thread of tokio's pool. `None`: the system starts no more threads. Tokio reports that by a panic, which
/// is caught here.
fn on_a_thread(work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    let start = AssertUnwindSafe(|| {
        panics::on_purpose("thread");
        tokio::task::spawn_blocking(work)
    });
    catch_unwind(start).ok()
}

/// Calls `step` again and again until `step` has got the queue's short lock and returns an outcome. If the future is dropped before
/// `step` has returned an outcome, nothing was done.
pub(super) async fn when_free<T>(mut step: impl FnMut() -> Option<Result<T>>) -> Result<T> {
    loop {
        match step() {
            Some(outcome) => return outcome,
            None => tokio::time::sleep(BUSY).await,
        }
    }
}

/// One page of the names of the queues of this kind for which `is_so` returns true.
pub(super) async fn names_where(
    store: &Store,
    kind: &'static str,
    from: Option<&Cursor>,
    is_so: impl Fn(&QueueKey) -> Option<Result<bool>>,
) -> Result<Page> {
    let left = Left::from(from, store.files(|name| is_of(name, kind))).await?;
    let (files, next) = left.page();
    let mut names = Vec::new();
    let mut share = Share::begin();
    for file in files {
        if let Some(key) = store.key(kind, file)?
            && when_free(|| is_so(&key)).await?
        {
            names.push(key.name().to_owned());
        }
        // Heartbeats run on this thread too, and must not have to wait until a long list was read.
        share.give_way().await;
    }
    Ok(Page { names, next })
}

#[async_trait]
impl Connect for Config {
    async fn connect(self: Box<Self>, settings: &Settings) -> Result<Arc<dyn backend::Store>> {
        Ok(Arc::new(FileStore::open(&self, settings)?))
    }
}

impl backend::Store for FileStore {
    fn scheme(&self) -> &'static str {
        DESCRIPTOR.name
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            scope: Scope::Processes,
            liveness: Liveness::Process,
            loss_detection: DESCRIPTOR.loss_detection,
            survives_restart: Durability::NotApplicable,
            survives_power_loss: if self.config.durable { Durability::Yes } else { Durability::No },
            survives_failover: Durability::NotApplicable,
            fifo: true,
            fencing_survives_data_loss: true,
            early_expiry: self.store().is_on_network.then_some(NETWORK),
            partition_overlap: None,
            max_plain_name: 200,
            min_ttl: None,
        }
    }

    fn lacks_descriptors(&self, error: &Error) -> bool {
        is_for_want_of_descriptors(error)
    }
}
