use std::sync::atomic::AtomicUsize;

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::*;

fn wanted<'a>(queue: &'a Path, session: Option<SessionId>, sessions: &'a Path) -> Wanted<'a> {
    Wanted { queue, sessions, session, told: None }
}

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
        let none = watcher.listen(&wanted(Path::new("/none"), None, Path::new("/")), || false);
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
            let waiting = watcher.listen(&wanted(&queue, Some(ids[index]), &sessions), || false);
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
        // Once more each time: whoever stands still for longer than a lock may go late does not look again by itself.
        while looks[0].load(Ordering::Relaxed) < 5 {
            std::fs::File::create(sessions.join(ids[0].to_string())).expect("it is ours");
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
