//! Notifications of changes, by inotify. All waiters of this backend share one inotify descriptor.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
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
use super::sockets::Sockets;
use crate::backend::SessionId;
use crate::env;
use crate::panics::{caught, on_purpose};

/// When a process dies, the kernel first notifies the close of its session's file, and then drops the lock of that file. On a busy
/// machine, the dying process may be stopped in between. After the notification, the file may still be locked for up to this long.
const UNLOCKING: Duration = Duration::from_secs(2);
/// The shortest pause between two checks whether a session still lives, after the close of its file was notified.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// How many watches that nobody needs stay for those who wait again.
const MOST_IDLE: usize = 8;
/// How long to wait after the task that reads events has panicked, before it is started again.
const PAUSE: Duration = Duration::from_millis(50);

/// What a waiter waits for. The waiters of one subject are woken together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Subject {
    /// A change of a queue's file. The number is the watch descriptor of that file.
    Queue(i32),
    /// A change of a queue's file other than of its text: it was removed or replaced, or its times were set. The number is the watch
    /// descriptor of that file.
    File(i32),
    /// An entry goes from a queue: the name of the queue's file, and the entry's number.
    Entry(Arc<str>, u64),
    /// The end of this session.
    Session(SessionId),
    /// The end of any session.
    Sessions,
}

/// What a waiter waits for.
pub(super) struct Wanted<'a> {
    /// The queue's file: the waiter is woken when it changes.
    pub(super) queue: &'a Path,
    /// The directory of the sessions' files.
    pub(super) sessions: &'a Path,
    /// The waiter is woken when this session ends; `None`: when any session does.
    pub(super) session: Option<SessionId>,
    /// The entry that is waited for, if whoever removes it can tell the waiter alone: then changes of the file's text wake others.
    pub(super) told: Option<Told<'a>>,
}

/// How a waiter is told that an entry goes.
pub(super) struct Told<'a> {
    pub(super) sockets: &'a Sockets,
    /// The waiter's own session.
    pub(super) session: SessionId,
    /// The name of the queue's file, and the number of the entry that is waited for.
    pub(super) file: &'a str,
    pub(super) seq: u64,
}

/// The waiters of this backend, and the inotify descriptor whose events wake them. Both are created when the first waiter comes.
pub(super) struct Watcher {
    shared: Mutex<Option<Arc<Shared>>>,
    /// Whether the warning was logged that the system grants no more watches. The warning is logged only once.
    has_warned: AtomicBool,
}

struct Shared {
    inotify: AsyncFd<OwnedFd>,
    listeners: Mutex<AllListeners>,
    ended: Mutex<Ended>,
}

#[derive(Default)]
struct AllListeners {
    by_subject: HashMap<Subject, Listeners>,
    /// The watches that report changes of a file's text.
    of_text: HashSet<i32>,
    /// Watches that nobody needs at the moment, the oldest first. They report nothing unless a file is removed, replaced or touched,
    /// and whoever waits at one queue again and again would otherwise add and remove a watch each time.
    idle: VecDeque<i32>,
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
    /// The session whose end wakes the waiter; `None`: the end of any session does.
    session: Option<SessionId>,
    changed: (Subject, Arc<Notify>),
    ended: (Subject, Arc<Notify>),
    /// The end of the entry that is waited for, where that is told to this waiter alone.
    told: Option<(Subject, Arc<Notify>)>,
}

impl Watcher {
    pub(super) fn new() -> Self {
        Self { shared: Mutex::new(None), has_warned: AtomicBool::new(false) }
    }

    /// Starts to listen on the session's runtime. Returns `None` if the system grants no more watches.
    ///
    /// If the process has no file descriptor left, this calls `make_room`, which closes idle files and returns whether it has
    /// closed any.
    pub(super) fn listen(
        &self,
        wanted: &Wanted<'_>,
        make_room: impl FnOnce() -> bool,
    ) -> Option<Waiting> {
        let shared = match self.shared(wanted.sessions) {
            Err(errno) if wants_descriptors(errno) && make_room() => self.shared(wanted.sessions),
            shared => shared,
        };
        let shared = shared.inspect_err(|errno| self.warn(*errno, "max_user_instances"));
        let waiting = shared.ok()?.listen(wanted);
        // `NOENT` means that the queue's file was pruned a moment ago. It does not mean that the system grants no more watches.
        let is_shortage = |errno: &&Errno| **errno != Errno::NOENT;
        if let Some(errno) = waiting.as_ref().err().filter(is_shortage) {
            self.warn(*errno, "max_user_watches");
        }
        waiting.ok()
    }

    /// Wakes those who wait for this entry of this process's own queue to go.
    pub(super) fn tell(&self, queue: &str, seq: u64) {
        let slot = self.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(shared) = &*slot {
            shared.notify(&Subject::Entry(queue.into(), seq));
        }
    }

    /// Wakes all waiters of this process.
    pub(super) fn wake_all(&self) {
        let slot = self.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        slot.iter().for_each(|shared| shared.wake_all());
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
    fn listen(self: Arc<Self>, wanted: &Wanted<'_>) -> Result<Waiting, Errno> {
        let told = wanted.told.as_ref().filter(|told| self.opens(told));
        // What is told to this waiter alone need not wake it at each change of the queue.
        let file = WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        let events = if told.is_some() { file } else { file | WatchFlags::MODIFY };
        let mut listeners = self.listeners();
        // The mutex is held from here until `join` has counted this waiter. If a file is watched already, the kernel returns the
        // same watch descriptor again, and the last waiter of the file removes the watch. Without the mutex, that waiter could
        // remove the watch between this call and `join`, and this waiter would never be woken.
        let added = events | WatchFlags::MASK_ADD;
        let add = || inotify::add_watch(self.inotify.get_ref(), wanted.queue, added);
        let queue = match add() {
            Err(Errno::NOSPC) if !listeners.idle.is_empty() => {
                for idle in listeners.idle.drain(..) {
                    let _ = inotify::remove_watch(self.inotify.get_ref(), idle);
                }
                add()
            }
            added => added,
        }?;
        listeners.idle.retain(|idle| *idle != queue);
        if events.contains(WatchFlags::MODIFY) {
            listeners.of_text.insert(queue);
        }
        let mut join = |subject: Subject| {
            let notify = join(&mut listeners.by_subject, subject.clone());
            (subject, notify)
        };
        let subject = told.map_or(Subject::Queue(queue), |_| Subject::File(queue));
        let (changed, ended) = (join(subject), join(of_session(wanted.session)));
        let told = told.map(|told| join(Subject::Entry(told.file.into(), told.seq)));
        drop(listeners);
        Ok(Waiting { shared: self, session: wanted.session, changed, ended, told })
    }

    /// Opens the socket at which the waiter is told that the entry goes, unless it is open. Returns false if there is none.
    fn opens(self: &Arc<Self>, told: &Told<'_>) -> bool {
        let shared = Arc::downgrade(self);
        told.sockets.open(told.session, move |heard| {
            let Some(shared) = shared.upgrade() else { return };
            match heard {
                Some((queue, seq)) => shared.notify(&Subject::Entry(queue.into(), seq)),
                None => shared.notify_all(),
            }
        })
    }

    /// Wakes those who wait for the end of a session, because the session's file was closed or removed. `file` is the name of that
    /// file, which is the session's id.
    fn notify_end(&self, file: &CStr) {
        let Some(session) = file.to_str().ok().and_then(SessionId::parse) else { return };
        self.ended().note(session);
        self.notify(&Subject::Session(session));
        self.notify(&Subject::Sessions);
    }

    fn notify(&self, subject: &Subject) {
        if let Some(listeners) = self.listeners().by_subject.get(subject) {
            listeners.changed.notify_waiters();
        }
    }

    fn notify_all(&self) {
        self.ended().note_unknown();
        self.wake_all();
    }

    fn wake_all(&self) {
        self.listeners()
            .by_subject
            .values()
            .for_each(|listeners| listeners.changed.notify_waiters());
    }

    fn leave(&self, subject: &Subject) {
        let mut listeners = self.listeners();
        let Some(entry) = listeners.by_subject.get_mut(subject) else { return };
        entry.count -= 1;
        if entry.count == 0 {
            listeners.by_subject.remove(subject);
            if let Subject::Queue(watch) | Subject::File(watch) = *subject
                && let Some(unused) = listeners.unused_after(watch)
            {
                // If the file is gone, the kernel has removed the watch already, and this call fails. That does no harm.
                let _ = inotify::remove_watch(self.inotify.get_ref(), unused);
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

    fn listeners(&self) -> MutexGuard<'_, AllListeners> {
        self.listeners.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl AllListeners {
    /// Which watch is to be removed after a waiter of this one has left.
    fn unused_after(&mut self, watch: i32) -> Option<i32> {
        let is_in_use = |subject| self.by_subject.contains_key(&subject);
        if is_in_use(Subject::Queue(watch)) || is_in_use(Subject::File(watch)) {
            return None;
        }
        if self.of_text.remove(&watch) {
            return Some(watch);
        }
        self.idle.push_back(watch);
        if self.idle.len() > MOST_IDLE { self.idle.pop_front() } else { None }
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
    /// Runs `check`. If `check` returns false, waits for the next notification, or until it is time to check again. Returns true
    /// without another check if this waiter alone was told that the wait is over.
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
        let (changed, ended) = (self.changed.1.notified(), self.ended.1.notified());
        let told = self.told.as_ref().map(|(_, told)| told.notified());
        tokio::pin!(changed, ended, told);
        changed.as_mut().enable();
        ended.as_mut().enable();
        if let Some(told) = told.as_mut().as_pin_mut() {
            told.enable();
        }
        let patience = self.shared.patience(self.session, recheck);
        let look = async {
            if check.await? {
                return Ok(true);
            }
            let told = async {
                match told.as_mut().as_pin_mut() {
                    Some(told) => told.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed => Ok(false),
                () = ended => Ok(false),
                () = told => Ok(true),
            }
        };
        tokio::time::timeout(patience, look).await.unwrap_or(Ok(false))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let subjects = [Some(&self.changed), Some(&self.ended), self.told.as_ref()];
        subjects.into_iter().flatten().for_each(|(subject, _)| self.shared.leave(subject));
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
                    None => {
                        shared.notify(&Subject::Queue(event.wd()));
                        if event.events() != ReadFlags::MODIFY {
                            shared.notify(&Subject::File(event.wd()));
                        }
                    }
                },
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        ready.clear_ready();
    }
}
