//! Notifications of changes, by inotify. All waiters of this backend share one inotify descriptor.

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

/// When a process dies, the kernel first notifies the close of its session's file, and then drops the lock of that file. On a busy
/// machine, the dying process may be stopped in between. After the notification, the file may still be locked for up to this long.
const UNLOCKING: Duration = Duration::from_secs(2);
/// The shortest pause between two checks whether a session still lives, after the close of its file was notified.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// How long to wait after the task that reads events has panicked, before it is started again.
const PAUSE: Duration = Duration::from_millis(50);

/// What a waiter waits for. The waiters of one subject are woken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Subject {
    /// A change of a queue's file. The number is the watch descriptor of that file.
    Queue(i32),
    /// The end of this session.
    Session(SessionId),
    /// The end of any session.
    Sessions,
}

/// The waiters of this backend, and the inotify descriptor whose events wake them. Both are created when the first waiter comes.
pub(super) struct Watcher {
    shared: Mutex<Option<Arc<Shared>>>,
    /// Whether the warning was logged that the system grants no more watches. The warning is logged only once.
    has_warned: AtomicBool,
}

struct Shared {
    inotify: AsyncFd<OwnedFd>,
    listeners: Mutex<HashMap<Subject, Listeners>>,
    ended: Mutex<Ended>,
}

/// The times at which this process was notified that sessions ended. The file of a session that has ended may stay locked for up to
/// [`UNLOCKING`], and then the session still seems to live. So the time of its end is remembered for that long.
#[derive(Default)]
struct Ended {
    of: HashMap<SessionId, Instant>,
    /// When the end of any session was last notified, or when notifications were last lost.
    newest: Option<Instant>,
    /// When notifications were last lost. Any session may have ended then.
    unknown: Option<Instant>,
}

struct Listeners {
    changed: Arc<Notify>,
    count: usize,
}

/// A waiter's subscription to changes of one queue and to the end of a session. The subscription begins when this is created, and
/// ends when this is dropped.
pub(super) struct Waiting {
    shared: Arc<Shared>,
    queue: i32,
    /// The session whose end wakes the waiter; `None`: the end of any session does.
    session: Option<SessionId>,
    changed: Arc<Notify>,
    ended: Arc<Notify>,
}

impl Watcher {
    pub(super) fn new() -> Self {
        Self { shared: Mutex::new(None), has_warned: AtomicBool::new(false) }
    }

    /// Starts to listen, on the session's runtime, for changes of the queue and for the end of a session: of `session`, or of any
    /// session if `session` is `None`. Returns `None` if the system grants no more watches.
    ///
    /// If the process has no file descriptor left, this calls `make_room`, which closes idle files and returns whether it has
    /// closed any.
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
        // `NOENT` means that the queue's file was pruned a moment ago. It does not mean that the system grants no more watches.
        let is_shortage = |errno: &&Errno| **errno != Errno::NOENT;
        if let Some(errno) = waiting.as_ref().err().filter(is_shortage) {
            self.warn(*errno, "max_user_watches");
        }
        waiting.ok()
    }

    /// Logs the warning only the first time: a waiter without a watch gets here at each of its polls.
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

/// Registers the inotify descriptor with the runtime, so that tasks can wait for events.
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
        // The mutex is held from here until `join` has counted this waiter. If a file is watched already, the kernel returns the
        // same watch descriptor again, and the last waiter of the file removes the watch. Without the mutex, that waiter could
        // remove the watch between this call and `join`, and this waiter would never be woken.
        let queue = inotify::add_watch(self.inotify.get_ref(), queue, events)?;
        let changed = join(&mut listeners, Subject::Queue(queue));
        let ended = join(&mut listeners, of_session(session));
        drop(listeners);
        Ok(Waiting { shared: self, queue, session, changed, ended })
    }

    /// Wakes those who wait for the end of a session, because the session's file was closed or removed. `file` is the name of that
    /// file, which is the session's id.
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
                // If the file is gone, the kernel has removed the watch already, and this call fails. That does no harm.
                let _ = inotify::remove_watch(self.inotify.get_ref(), descriptor);
            }
        }
    }

    /// How long a waiter waits until it checks again by itself: usually `recheck`. If the session's end was notified lately, the
    /// session's file may still be locked for a moment. Then the pause is as long as the time since that notification, so that each
    /// pause is longer than the one before.
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

    /// When the end of this session was last notified, or when notifications were last lost. If `session` is `None`: when the end
    /// of any session was last notified, or when notifications were last lost.
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
    /// Runs `check`. If `check` returns false, waits for the next notification, or until it is time to check again.
    ///
    /// This begins to listen before it runs `check`, so that no change after `check` has read the state is missed. The kernel
    /// notifies the close of a session's file a moment before it drops the lock of that file, so a check right after the
    /// notification may come too early. Therefore the pauses between checks are short after such a notification, and become longer
    /// and longer. During these pauses a change of the queue still wakes the waiter at once: the session that has ended may be
    /// another one than the waiter waits for, and its end must not delay the waiter.
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

/// Runs [`distribute`], and starts it again whenever it panics. The panic may have lost events, so all waiters are woken after it.
async fn keep_distributing(shared: Weak<Shared>) {
    while caught("watch", distribute(Weak::clone(&shared))).await.is_err() {
        tokio::time::sleep(PAUSE).await;
        shared.upgrade().into_iter().for_each(|shared| shared.notify_all());
    }
}

/// Reads the events of inotify and wakes the waiters that wait for them, until the backend is dropped.
async fn distribute(shared: Weak<Shared>) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        // While this waits, it keeps `shared` from being dropped. So the wait has a limit, after which this task notices that the
        // backend was dropped.
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
        // If there were only one subscriber, `tracing` would ask only the thread that reaches an event first whether it has a
        // subscriber. This first thread could belong to another test, which has no subscriber, and then no warning would be counted
        // here.
        let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
        tracing::subscriber::with_default(warnings.clone(), || {
            let none = watcher.listen(Path::new("/none"), None, Path::new("/"), || false);
            assert!(none.is_none(), "there is no such file");
            assert_eq!(warnings.0.load(Ordering::Relaxed), 0, "that is no shortage");
            (0..10).for_each(|_| watcher.warn(Errno::NOSPC, "max_user_watches"));
        });
        assert_eq!(warnings.0.load(Ordering::Relaxed), 1);
    }

    /// Of several waiters at one queue, the end of a session wakes only the one that waits for that session.
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
