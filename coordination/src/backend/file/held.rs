//! What each heartbeat does for the held entries. The heartbeat finds out which of these entries are gone. If the times of a held
//! entry's queue file are old, the heartbeat also sets these times to now, so that programs that clean up old files leave the file
//! alone.
//!
//! A session may hold ten thousand entries, each in a file of its own. So a file is read only if it has changed since an earlier
//! heartbeat found the entry in it. Whenever this work has used the session's thread for [`SHARE`], it lets other tasks of the
//! thread run. If one queue cannot be read now, the others are still checked, and the next heartbeat tries that queue again.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::directory::Moment;
use super::queue;
use super::store::Store;
use crate::backend::{EntryId, EntryRef, Gone};
use crate::error::Result;

/// How long a loop over many files may use the session's thread before it lets other tasks of the thread run.
const SHARE: Duration = Duration::from_micros(200);

/// For each held entry, the state that its queue's file had when the entry was last found there. If the file still has this state,
/// it need not be read again.
#[derive(Default)]
pub(super) struct Looks(Mutex<HashMap<EntryId, Moment>>);

impl Looks {
    /// If more than twice as many entries are remembered here as are held, forgets those that are not held any more.
    fn tidy(&self, held: &[EntryRef]) {
        let mut looks = self.lock();
        if looks.len() > 2 * held.len() {
            let held: HashSet<_> = held.iter().map(|entry| &entry.id).collect();
            looks.retain(|id, _| held.contains(id));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<EntryId, Moment>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// Checks each of these entries of ours. As soon as it finds that an entry is gone, it calls `gone` for this entry.
    pub(super) async fn look_after(&self, held: &[EntryRef], gone: &Gone<'_>) {
        self.looks.tidy(held);
        let mut share = Share::begin();
        for entry in held {
            match self.is_held(entry) {
                Some(Ok(true)) => {}
                Some(Ok(false)) => gone(&entry.id),
                Some(Err(error)) => tracing::debug!(%error, "cannot look after a held entry"),
                None => tracing::debug!(queue = entry.queue.name(), "busy: looked at later"),
            }
            share.give_way().await;
        }
    }

    /// Whether an entry of ours is in its queue's file. `None`: another process has the file locked for so long that this cannot be
    /// found out now.
    fn is_held(&self, entry: &EntryRef) -> Option<Result<bool>> {
        let name = queue::file_name(&entry.queue);
        // The file's state is read first, and then the file. So if the file is changed in between, the older state is remembered,
        // and the next heartbeat finds another state and reads the file again.
        let glimpse = match self.queues.keep(&name) {
            Ok(Some(glimpse)) => glimpse,
            Ok(None) => return Some(Ok(false)),
            Err(error) => return Some(Err(error)),
        };
        if self.looks.lock().get(&entry.id) == Some(&glimpse.moment) {
            return Some(Ok(true));
        }
        let is_present = self.is_present(entry)?;
        if glimpse.is_settled && matches!(is_present, Ok(true)) {
            self.looks.lock().insert(entry.id.clone(), glimpse.moment);
        }
        Some(is_present)
    }
}

/// Measures how long a task has used its thread, so that a long loop can let other tasks of the thread run.
pub(super) struct Share(Instant);

impl Share {
    pub(super) fn begin() -> Self {
        Self(Instant::now())
    }

    /// If the task has used its thread for [`SHARE`] or longer, lets other tasks of the thread run first. Otherwise returns at
    /// once.
    pub(super) async fn give_way(&mut self) {
        if self.0.elapsed() >= SHARE {
            tokio::task::yield_now().await;
            self.0 = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, FileTimes};
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::SystemTime;

    use rustix::fs::{FlockOperation, flock};
    use tempfile::TempDir;

    use super::super::config::Config;
    use super::super::file_store::FileStore;
    use super::super::tests::{file, key, new_entry};
    use super::*;
    use crate::backend::{Entries, NewSession, SessionId, Sessions};

    /// How long a test waits at most for something that has to happen.
    const SOON: Duration = Duration::from_secs(30);

    /// A session that holds some entries.
    struct Holder {
        directory: TempDir,
        store: FileStore,
        session: NewSession,
        held: Vec<EntryRef>,
    }

    impl Holder {
        async fn of(names: &[&str]) -> Self {
            let directory = TempDir::new().expect("a directory");
            let config = Config {
                directory: directory.path().into(),
                durable: false,
                network_allowed: true,
                is_for_group: false,
            };
            let store = FileStore {
                store: Mutex::new(Arc::new(super::super::tests::store(directory.path()))),
                config,
                namespace: "test".into(),
                lines: Mutex::default(),
            };
            let id = SessionId::random();
            let session = NewSession { id, member: "m".into(), ttl: Duration::ZERO };
            store.open(&session).await.expect("nobody else is there");
            let mut held = Vec::new();
            for name in names {
                let entry = new_entry(id, &key(name));
                store.enter(&entry).await.expect("the disk works");
                held.push(entry.entry_ref);
            }
            Self { directory, store, session, held }
        }

        fn file(&self, index: usize) -> PathBuf {
            file(&self.directory, &self.held[index].queue)
        }

        async fn gone(&self) -> Vec<EntryId> {
            let gone: Mutex<Vec<EntryId>> = Mutex::default();
            let note = |id: &EntryId| gone.lock().expect("no panic").push(id.clone());
            let renewed = self.store.renew(self.session.id, &self.held, &note);
            let renewed = tokio::time::timeout(SOON, renewed).await;
            renewed.expect("it waits for no entry").expect("the session is well");
            gone.into_inner().expect("no panic")
        }
    }

    #[tokio::test]
    async fn what_is_wrong_with_some_entries_hides_no_loss_of_others() {
        let holder = Holder::of(&["busy", "damaged", "removed", "left"]).await;
        let busy = File::open(holder.file(0)).expect("it is there");
        flock(&busy, FlockOperation::LockExclusive).expect("nobody has it");
        fs::write(holder.file(1), "x".repeat(1024)).expect("it is ours");
        fs::remove_file(holder.file(2)).expect("it is ours");
        let other = super::super::tests::store(holder.directory.path());
        other.leave(&holder.held[3], None).expect("nobody has it").expect("the disk works");
        assert_eq!(holder.gone().await, [holder.held[2].id.clone(), holder.held[3].id.clone()]);
    }

    #[tokio::test]
    async fn a_file_that_did_not_change_is_not_read_and_a_change_is_seen() {
        let holder = Holder::of(&["a", "b"]).await;
        let looked = || holder.store.store().looks.lock().len();
        let begun = Instant::now();
        while looked() < 2 && begun.elapsed() < SOON {
            assert_eq!(holder.gone().await, []);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(looked(), 2, "they were not changed for long");
        let other = super::super::tests::store(holder.directory.path());
        other.leave(&holder.held[1], None).expect("nobody has it").expect("the disk works");
        assert_eq!(holder.gone().await, [holder.held[1].id.clone()]);
    }

    /// Programs that clean up temporary files remove files that were neither read nor written for ten days. So heartbeats must keep
    /// young the times of all files that a session needs.
    #[tokio::test]
    async fn what_is_used_does_not_look_unused() {
        let holder = Holder::of(&["a"]).await;
        let namespace = holder.directory.path().join("test");
        let session = namespace.join("sessions").join(holder.session.id.to_string());
        let floor = namespace.join("queues/floor");
        let used = [session, namespace.join("members/m"), holder.file(0), floor.clone()];
        let days_ago = SystemTime::now() - Duration::from_secs(11 * 24 * 60 * 60);
        for path in &used {
            let times = FileTimes::new().set_accessed(days_ago).set_modified(days_ago);
            File::open(path).and_then(|file| file.set_times(times)).expect("it is ours");
        }
        assert_eq!(holder.gone().await, []);
        for path in &used {
            let stat = fs::metadata(path).expect("it is there");
            let times = [stat.accessed(), stat.modified()].map(|time| time.expect("Linux has it"));
            let is_young = |time: SystemTime| time > days_ago + Duration::from_secs(24 * 60 * 60);
            assert!(times.into_iter().all(is_young), "{}: {times:?}", path.display());
        }
        fs::remove_file(&floor).expect("it is ours");
        assert_eq!(holder.gone().await, []);
        assert!(floor.exists(), "the next heartbeat makes it again");
    }

    /// The directory exists, and other processes see the session in it. Only the directory's path cannot be resolved at the moment,
    /// which must not end the session.
    #[tokio::test]
    async fn a_path_that_cannot_be_looked_at_ends_no_session() {
        let holder = Holder::of(&["a", "b"]).await;
        let other = super::super::tests::store(holder.directory.path());
        let path = holder.directory.path();
        let elsewhere = path.with_extension("elsewhere");
        fs::rename(path, &elsewhere).expect("it is ours");
        std::os::unix::fs::symlink(path, path).expect("its name is free");
        let renewed = holder.store.renew(holder.session.id, &holder.held, &|_| {}).await;
        // Other processes still have the directory open. If one of them removes an entry while the path cannot be resolved, the
        // heartbeat must report the removed entry.
        other.leave(&holder.held[1], None).expect("nobody has it").expect("the disk works");
        let gone: Mutex<Vec<EntryId>> = Mutex::default();
        let note = |id: &EntryId| gone.lock().expect("no panic").push(id.clone());
        holder
            .store
            .renew(holder.session.id, &holder.held, &note)
            .await
            .expect_err("the path is as it was");
        fs::remove_file(path).expect("it is ours");
        fs::rename(&elsewhere, path).expect("its name is free");
        let error = renewed.expect_err("a link that leads to itself");
        assert_ne!(error.kind(), crate::error::ErrorKind::Lost, "{error}");
        let gone = gone.into_inner().expect("no panic");
        assert_eq!(gone, [holder.held[1].id.clone()]);
        assert_eq!(holder.gone().await, gone);
        fs::rename(path, &elsewhere).expect("it is ours");
        let renewed = holder.store.renew(holder.session.id, &holder.held, &|_| {}).await;
        fs::rename(&elsewhere, path).expect("its name is free");
        let error = renewed.expect_err("it was moved away");
        assert_eq!(error.kind(), crate::error::ErrorKind::Lost, "{error}");
    }

    /// Other processes look for these directories by their paths. If `members` was moved, for instance, another session could take
    /// the member id. So the session is lost as soon as one of the directories was moved.
    #[tokio::test]
    async fn each_directory_is_to_be_where_others_look_for_it() {
        for name in ["queues", "sessions", "members"] {
            let holder = Holder::of(&["a"]).await;
            let path = holder.directory.path().join("test").join(name);
            fs::rename(&path, path.with_extension("elsewhere")).expect("it is ours");
            let renewed = holder.store.renew(holder.session.id, &holder.held, &|_| {}).await;
            let error = renewed.expect_err("it was moved away");
            assert_eq!(error.kind(), crate::error::ErrorKind::Lost, "{name}: {error}");
        }
    }
}
