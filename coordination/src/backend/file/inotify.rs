//! Notifications: one inotify descriptor for all waiters of this backend.

use std::collections::HashMap;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::error::wants_descriptors;
use crate::backend::SessionId;
use crate::env;
use crate::panics::{caught, on_purpose};

/// After the close of a session's file was notified, its lock may still be there for up to this long: on a busy machine, the dying
/// process may be stopped in between.
const UNLOCKING: Duration = Duration::from_secs(2);
/// The shortest pause between two checks whether a session lives, after the close of its file was notified.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// The pause after a panic of the task that reads events.
const PAUSE: Duration = Duration::from_millis(50);

/// What a waiter listens for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Subject {
    /// Changes to a queue's file, by its watch descriptor.
    Queue(i32),
    /// The end of this session.
    Session(SessionId),
    /// The end of any session.
    Sessions,
}

/// The listeners, and the inotify descriptor that wakes them. Both are made when the first waiter comes.
pub(super) struct Watcher {
    shared: Mutex<Option<Arc<Shared>>>,
    /// Whether it was logged that the system grants no more watches.
    has_warned: AtomicBool,
}

struct Shared {
    inotify: AsyncFd<OwnedFd>,
    listeners: Mutex<HashMap<Subject, Listeners>>,
    ended: Mutex<Ended>,
}

/// When the ends of sessions were notified. Each is remembered for as long as the session's lock may still be there
/// ([`UNLOCKING`]).
#[derive(Default)]
struct Ended {
    of: HashMap<SessionId, Instant>,
    /// `newest`: the newest end of any session. `unknown`: when notifications were last lost, so that any session may have ended.
    newest: Option<Instant>,
    unknown: Option<Instant>,
}

struct Listeners {
    changed: Arc<Notify>,
    count: usize,
}

/// Listens for changes of one queue and for the end of a session, from the moment when this is made.
pub(super) struct Waiting {
    shared: Arc<Shared>,
    queue: i32,
    /// The session; `None`: any session.
    session: Option<SessionId>,
    changed: Arc<Notify>,
    ended: Arc<Notify>,
}

impl Watcher {
    pub(super) fn new() -> Self {
        Self { shared: Mutex::new(None), has_warned: AtomicBool::new(false) }
    }

    /// Starts to listen, on the session's runtime, for changes of the queue and for the end of this session or, with `None`, of
    /// any. Returns `None` if the system grants no more watches.
    ///
    /// If the process has no file descriptor left, `make_room` is called to close one, and returns whether it has.
    pub(super) fn listen(
        &self,
        queue: &Path,
        session: Option<SessionId>,
        sessions: &Path,
        make_room: impl FnOnce() -> bool,
    ) -> Option<Waiting> {
        let shared = match self.shared(sessions) {
            Err(errno) if wants_descriptors(errno) && make_room() => self.shared(sessions),
            shared => shared,
        };
        let shared = shared.inspect_err(|errno| self.warn(*errno, "max_user_instances"));
        let waiting = shared.ok()?.listen(queue, session);
        // `NOENT` means that the queue's file was pruned a moment ago, not that the system is short of watches.
        let is_shortage = |errno: &&Errno| **errno != Errno::NOENT;
        if let Some(errno) = waiting.as_ref().err().filter(is_shortage) {
            self.warn(*errno, "max_user_watches");
        }
        waiting.ok()
    }

    /// Logs the warning only once, because a waiter without a watch calls this at every poll.
    fn warn(&self, errno: Errno, limit: &str) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %errno,
                "no inotify: waiting by polling (see fs.inotify.{limit}); this is said once"
            );
        }
    }

    fn shared(&self, sessions: &Path) -> Result<Arc<Shared>, Errno> {
        let mut slot = self.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(shared) = &*slot {
            return Ok(Arc::clone(shared));
        }
        let descriptor = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&descriptor, sessions, WatchFlags::CLOSE_WRITE | WatchFlags::DELETE)?;
        let inotify = register(descriptor)?;
        let shared =
            Arc::new(Shared { inotify, listeners: Mutex::default(), ended: Mutex::default() });
        env::spawn(&Handle::current(), keep_distributing(Arc::downgrade(&shared)));
        Ok(Arc::clone(slot.insert(shared)))
    }
}

/// Registers the descriptor with the runtime.
#[expect(
    deprecated,
    reason = "unsound for types that do not own the descriptor they show; `OwnedFd` does, and the \
              replacement is unsafe to call, which this crate forbids"
)]
fn register(descriptor: OwnedFd) -> Result<AsyncFd<OwnedFd>, Errno> {
    AsyncFd::new(descriptor).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))
}

impl Shared {
    fn listen(self: Arc<Self>, queue: &Path, session: Option<SessionId>) -> Result<Waiting, Errno> {
        let events = WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        let mut listeners = self.listeners();
        // This is done under the mutex. A second watch on the same file gets the same watch descriptor, and the last waiter removes
        // it: without the mutex that could happen between this call and the `join` below, and the new waiter would never be woken.
        let queue = inotify::add_watch(self.inotify.get_ref(), queue, events)?;
        let changed = join(&mut listeners, Subject::Queue(queue));
        let ended = join(&mut listeners, of_session(session));
        drop(listeners);
        Ok(Waiting { shared: self, queue, session, changed, ended })
    }

    /// Wakes those who wait for the end of this session, because its file was closed or removed.
    fn notify_end(&self, file: &CStr) {
        let Some(session) = file.to_str().ok().and_then(SessionId::parse) else { return };
        self.ended().note(session);
        self.notify(Subject::Session(session));
        self.notify(Subject::Sessions);
    }

    fn notify(&self, subject: Subject) {
        if let Some(listeners) = self.listeners().get(&subject) {
            listeners.changed.notify_waiters();
        }
    }

    fn notify_all(&self) {
        self.ended().note_unknown();
        self.listeners().values().for_each(|listeners| listeners.changed.notify_waiters());
    }

    fn leave(&self, subject: Subject) {
        let mut listeners = self.listeners();
        let Some(entry) = listeners.get_mut(&subject) else { return };
        entry.count -= 1;
        if entry.count == 0 {
            listeners.remove(&subject);
            if let Subject::Queue(descriptor) = subject {
                // The kernel has removed the watch already if the file is gone.
                let _ = inotify::remove_watch(self.inotify.get_ref(), descriptor);
            }
        }
    }

    /// How long to wait until the next check. If the session's end was notified lately, waits as long as has passed since then, so
    /// that each pause is longer than the one before.
    fn patience(&self, session: Option<SessionId>, recheck: Duration) -> Duration {
        let since = self.ended().last(session).map(|ended| ended.elapsed());
        let pause = since.filter(|since| *since < UNLOCKING).map(|since| since.max(FIRST_LOOK));
        pause.map_or(recheck, |pause| pause.min(recheck))
    }

    fn ended(&self) -> MutexGuard<'_, Ended> {
        self.ended.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn listeners(&self) -> MutexGuard<'_, HashMap<Subject, Listeners>> {
        self.listeners.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Ended {
    fn note(&mut self, session: SessionId) {
        let now = Instant::now();
        self.of.retain(|_, ended| now.saturating_duration_since(*ended) < UNLOCKING);
        self.of.insert(session, now);
        self.newest = Some(now);
    }

    fn note_unknown(&mut self) {
        (self.newest, self.unknown) = (Some(Instant::now()), Some(Instant::now()));
    }

    /// When the end of this session, or with `None` of any, was last notified.
    fn last(&self, session: Option<SessionId>) -> Option<Instant> {
        match session {
            Some(session) => self.of.get(&session).copied().max(self.unknown),
            None => self.newest,
        }
    }
}

fn of_session(session: Option<SessionId>) -> Subject {
    session.map_or(Subject::Sessions, Subject::Session)
}

fn join(listeners: &mut HashMap<Subject, Listeners>, subject: Subject) -> Arc<Notify> {
    let entry =
        listeners.entry(subject).or_insert_with(|| Listeners { changed: Arc::default(), count: 0 });
    entry.count += 1;
    Arc::clone(&entry.changed)
}

impl Waiting {
    /// Runs `check`. If it returns false, waits for the next change, or until it is time to check again.
    ///
    /// Listening begins before the check, so that no change in between is missed. The kernel notifies the close of a session's file
    /// a moment before it drops the file's lock, so a check right after the notification may come too early. So after a
    /// notification the checks come soon at first, and then less and less often. Between these checks, changes of the queue are
    /// listened to as well, because most sessions that end are not the one that is waited for.
    pub(super) async fn unless<E>(
        &self,
        check: impl Future<Output = Result<bool, E>>,
        recheck: Duration,
    ) -> Result<bool, E> {
        let (changed, ended) = (self.changed.notified(), self.ended.notified());
        tokio::pin!(changed, ended);
        changed.as_mut().enable();
        ended.as_mut().enable();
        let patience = self.shared.patience(self.session, recheck);
        let look = async {
            if check.await? {
                return Ok(true);
            }
            tokio::select! {
                () = changed => {}
                () = ended => {}
            }
            Ok(false)
        };
        tokio::time::timeout(patience, look).await.unwrap_or(Ok(false))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.leave(Subject::Queue(self.queue));
        self.shared.leave(of_session(self.session));
    }
}

/// Runs [`distribute`], and starts it again after a panic. Events may have been lost then, so all waiters are woken.
async fn keep_distributing(shared: Weak<Shared>) {
    while caught("watch", distribute(Weak::clone(&shared))).await.is_err() {
        tokio::time::sleep(PAUSE).await;
        shared.upgrade().into_iter().for_each(|shared| shared.notify_all());
    }
}

/// Reads events and wakes the waiters whom they concern, until the backend is dropped.
async fn distribute(shared: Weak<Shared>) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        // The wait is bounded, because the backend may be dropped while this waits.
        let readable =
            tokio::time::timeout(Duration::from_secs(5), shared.inotify.readable()).await;
        let Ok(readable) = readable else { continue };
        let Ok(mut ready) = readable else { return };
        on_purpose("watching");
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(shared.inotify.get_ref(), &mut buffer);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    shared.notify_all()
                }
                Ok(event) => match event.file_name() {
                    Some(file) => shared.notify_end(file),
                    None => shared.notify(Subject::Queue(event.wd())),
                },
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        ready.clear_ready();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;

    #[derive(Clone, Default)]
    struct Warnings(Arc<AtomicUsize>);

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[tokio::test]
    async fn polling_is_warned_of_once() {
        let (watcher, warnings) = (Watcher::new(), Warnings::default());
        // With one subscriber only, `tracing` would ask the thread that comes to an event first whether anybody listens.
        let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
        tracing::subscriber::with_default(warnings.clone(), || {
            let none = watcher.listen(Path::new("/none"), None, Path::new("/"), || false);
            assert!(none.is_none(), "there is no such file");
            assert_eq!(warnings.0.load(Ordering::Relaxed), 0, "that is no shortage");
            (0..10).for_each(|_| watcher.warn(Errno::NOSPC, "max_user_watches"));
        });
        assert_eq!(warnings.0.load(Ordering::Relaxed), 1);
    }

    /// Of those who wait at one queue, the end of a session wakes only the waiter for that session.
    #[tokio::test]
    async fn the_end_of_a_session_wakes_who_waits_for_it() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let sessions = directory.path().join("sessions");
        std::fs::create_dir(&sessions).expect("it is ours");
        let queue = directory.path().join("queue");
        std::fs::File::create(&queue).expect("it is ours");
        let ids = [SessionId::random(), SessionId::random()];
        let watcher = Watcher::new();
        let looks = [const { AtomicUsize::new(0) }; 2];
        let waits = async |index: usize| -> Result<(), Errno> {
            loop {
                let waiting = watcher.listen(&queue, Some(ids[index]), &sessions, || false);
                let look = async {
                    looks[index].fetch_add(1, Ordering::Relaxed);
                    Ok(false)
                };
                waiting.expect("granted").unless(look, Duration::from_secs(3_600)).await?;
            }
        };
        let ends = async {
            while looks.iter().any(|looks| looks.load(Ordering::Relaxed) == 0) {
                tokio::task::yield_now().await;
            }
            std::fs::File::create(sessions.join(ids[0].to_string())).expect("it is ours");
            while looks[0].load(Ordering::Relaxed) < 5 {
                tokio::time::sleep(FIRST_LOOK).await;
            }
        };
        tokio::select! {
            _ = waits(0) => {}
            _ = waits(1) => {}
            () = ends => {}
        }
        assert_eq!(looks[1].load(Ordering::Relaxed), 1, "woken for the end of another session");
    }
}
