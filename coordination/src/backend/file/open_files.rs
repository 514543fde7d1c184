//! The files of queues that stay open after their use, as long as the process has file descriptors left. Opening a file for each
//! lock would take longer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, getrlimit};

use super::error::is_for_want_of_descriptors;
use super::queue::QueueFile;
use crate::error::Result;
use crate::key::QueueKey;

/// The largest number of files that stay open.
const MOST: usize = 64;
/// These files use at most one in this many of the file descriptors that the process may have.
const SHARE: u64 = 16;

/// The open files, by the queue's key.
pub(super) struct OpenFiles {
    files: Mutex<Files>,
    most: usize,
    /// How many files were opened.
    #[cfg(test)]
    pub(super) opened: std::sync::atomic::AtomicUsize,
}

type Files = HashMap<QueueKey, Arc<Mutex<QueueFile>>>;

impl OpenFiles {
    /// Computes from the process's limit how many files may stay open: the rest of the program needs file descriptors too.
    pub(super) fn new() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::at_most(usize::try_from(limit / SHARE).unwrap_or(usize::MAX).clamp(1, MOST))
    }

    pub(super) fn at_most(most: usize) -> Self {
        Self {
            files: Mutex::default(),
            most,
            #[cfg(test)]
            opened: Default::default(),
        }
    }

    pub(super) fn has(&self, key: &QueueKey) -> bool {
        self.lock().contains_key(key)
    }

    /// The queue's file, if it is open already. Otherwise the file that `open` opens, which then stays open.
    pub(super) fn get(
        &self,
        key: &QueueKey,
        open: impl Fn() -> Result<QueueFile>,
    ) -> Result<Arc<Mutex<QueueFile>>> {
        let mut files = self.lock();
        if let Some(file) = files.get(key) {
            return Ok(Arc::clone(file));
        }
        if files.len() >= self.most {
            close_idle(&mut files);
        }
        let file = match open() {
            Err(error) if is_for_want_of_descriptors(&error) && close_idle(&mut files) => open(),
            file => file,
        };
        #[cfg(test)]
        self.opened.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let file = Arc::new(Mutex::new(file?));
        files.insert(key.clone(), Arc::clone(&file));
        Ok(file)
    }

    /// Stops keeping this file open, because it is not the queue's file any more.
    pub(super) fn forget(&self, key: &QueueKey, file: &Arc<Mutex<QueueFile>>) {
        let mut files = self.lock();
        if files.get(key).is_some_and(|current| Arc::ptr_eq(current, file)) {
            files.remove(key);
        }
    }

    /// Runs `open`. If that fails because the process has no file descriptor left, closes the files that nobody uses at the moment,
    /// and runs `open` once more.
    pub(super) fn with_room<T>(&self, open: impl Fn() -> Result<T>) -> Result<T> {
        match open() {
            Err(error) if is_for_want_of_descriptors(&error) && self.close_idle() => open(),
            outcome => outcome,
        }
    }

    /// Closes the files that nobody uses at the moment. Returns false if there was no such file.
    pub(super) fn close_idle(&self) -> bool {
        close_idle(&mut self.lock())
    }

    /// Closes all files. Each file is then opened and read from its beginning, as in a new process.
    #[cfg(test)]
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn close_idle(files: &mut Files) -> bool {
    let before = files.len();
    files.retain(|_, file| Arc::strong_count(file) > 1);
    files.len() < before
}
