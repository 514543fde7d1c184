use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::super::config::Config;
use super::super::directory::Directory;
use super::super::file_store::FileStore;
use super::super::tests::{enter, key, leave, new_entry, store, update};
use super::*;
use crate::backend::{Blocker, Mode, NewEntry, NewSession, Sessions, Watching};

/// How long a test waits at most for something that has to happen.
const SOON: Duration = Duration::from_secs(30);
/// Long enough that no waiter looks again by itself.
const LONG: Duration = Duration::from_secs(3_600);

/// Holders and waiters of one queue, each of a process of its own.
struct Line {
    directory: TempDir,
    queue: QueueKey,
}

struct Member {
    store: FileStore,
    own: NewEntry,
    seq: u64,
}

impl Line {
    fn new() -> Self {
        Self { directory: TempDir::new().expect("a directory"), queue: key("a") }
    }

    async fn enter(&self, mode: Mode) -> Member {
        let config = Config {
            directory: self.directory.path().into(),
            durable: false,
            network_allowed: true,
            is_for_group: false,
        };
        let store = FileStore {
            store: std::sync::Mutex::new(Arc::new(store(self.directory.path()))),
            config,
            namespace: "test".into(),
            lines: Default::default(),
        };
        let id = SessionId::random();
        let session = NewSession { id, member: id.to_string().into(), ttl: Duration::ZERO };
        store.open(&session).await.expect("nobody else has the id");
        let own = NewEntry { mode, ..new_entry(id, &self.queue) };
        let seq = enter(&store.store(), &own);
        Member { store, own, seq }
    }

    fn socket(&self, member: &Member) -> PathBuf {
        self.directory.path().join("test/sockets").join(member.own.session.to_string())
    }
}

impl Member {
    /// Waits until this entry, which blocks the other one, is gone.
    async fn gone_for(&self, waiter: &Member) {
        let blocker = Blocker { id: self.own.entry_ref.id.clone(), seq: self.seq };
        let gone = waiter.store.unblocked(&waiter.own, &blocker, LONG);
        tokio::time::timeout(SOON, gone).await.expect("it is told").expect("the disk works");
    }

    fn leave(&self) {
        leave(&self.store.store(), &self.own, self.seq);
    }

    /// How often this process has looked whether somebody else's session lives.
    fn looks(&self) -> usize {
        self.store.store().sessions.probes.load(Ordering::Relaxed)
    }

    async fn has_looked(&self, before: usize) {
        let begun = Instant::now();
        while self.looks() == before {
            assert!(begun.elapsed() < SOON, "it does not begin to wait");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn who_leaves_wakes_only_the_next() {
    let line = Line::new();
    let [holder, next, last] = [
        line.enter(Mode::Exclusive).await,
        line.enter(Mode::Exclusive).await,
        line.enter(Mode::Exclusive).await,
    ];
    let (before, later) = (next.looks(), last.looks());
    let waits = next.gone_for(&last);
    let leaves = async {
        tokio::join!(next.has_looked(before), last.has_looked(later));
        let looks = last.looks();
        // Others come and go behind them.
        let other = line.enter(Mode::Exclusive).await;
        other.leave();
        holder.leave();
        looks
    };
    tokio::select! {
        () = waits => panic!("its predecessor is still there"),
        (looks, ()) = async { tokio::join!(leaves, holder.gone_for(&next)) } => {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(last.looks(), looks);
        }
    }
}

#[tokio::test]
async fn all_who_share_are_woken_by_the_one_before_them() {
    let line = Line::new();
    let holder = line.enter(Mode::Exclusive).await;
    let (one, other) = (line.enter(Mode::Shared).await, line.enter(Mode::Shared).await);
    let exclusive = line.enter(Mode::Exclusive).await;
    let (before, later) = (one.looks(), other.looks());
    tokio::join!(holder.gone_for(&one), holder.gone_for(&other), async {
        tokio::join!(one.has_looked(before), other.has_looked(later));
        let shared = NewEntry { mode: Mode::Shared, ..holder.own.clone() };
        assert!(update(&holder.store.store(), &shared, holder.seq));
    });
    // Then the last of them is the one that the next waits for.
    tokio::join!(other.gone_for(&exclusive), async {
        exclusive.has_looked(0).await;
        one.leave();
        other.leave();
    });
}

#[tokio::test]
async fn a_waiter_whose_socket_is_gone_is_woken_nevertheless() {
    let line = Line::new();
    let (holder, waiter) = (line.enter(Mode::Exclusive).await, line.enter(Mode::Exclusive).await);
    tokio::join!(holder.gone_for(&waiter), async {
        waiter.has_looked(0).await;
        std::fs::remove_file(line.socket(&waiter)).expect("it waits at it");
        holder.leave();
        // Its next heartbeat finds out.
        waiter.store.renew(waiter.own.session, &[], &|_| {}).await.expect("the session is well");
    });
    // And from then on it has another one.
    let (holder, before) = (line.enter(Mode::Exclusive).await, waiter.looks());
    tokio::select! {
        () = holder.gone_for(&waiter) => panic!("it is there"),
        () = waiter.has_looked(before) => assert!(line.socket(&waiter).exists()),
    }
}

/// Another process may put a link there, which must not lead to a file of ours.
#[test]
fn no_link_is_given_a_mode() {
    let directory = TempDir::new().expect("a directory");
    let config = Config {
        directory: directory.path().join("shared"),
        durable: false,
        network_allowed: true,
        is_for_group: true,
    };
    let shared = Directory::open(&config, "test").expect("it is ours");
    let other = directory.path().join("other");
    std::fs::write(&other, "").expect("it is ours");
    let mode = || std::fs::metadata(&other).expect("it is there").permissions().mode();
    let (path, before) = (directory.path().join("shared/test/socket"), mode());
    std::os::unix::fs::symlink(&other, &path).expect("its name is free");
    shared.share_socket("socket").expect_err("it is a link");
    assert_eq!(mode(), before);
    std::fs::remove_file(&path).expect("it is ours");
    let _socket = UnixDatagram::bind(&path).expect("its name is free");
    shared.share_socket("socket").expect("it is a socket of ours");
    let stat = std::fs::metadata(&path).expect("it is there");
    assert_eq!(stat.permissions().mode() & 0o777, 0o660);
}

#[tokio::test]
async fn a_waiter_whose_socket_is_full_is_woken_nevertheless() {
    let line = Line::new();
    let (holder, waiter) = (line.enter(Mode::Exclusive).await, line.enter(Mode::Exclusive).await);
    tokio::join!(holder.gone_for(&waiter), async {
        waiter.has_looked(0).await;
        let sender = UnixDatagram::unbound().expect("there is room");
        sender.set_nonblocking(true).expect("it is ours");
        // Nothing is received meanwhile: this is the only thread.
        while sender.send_to(b"nonsense", line.socket(&waiter)).is_ok() {}
        holder.leave();
    });
}

#[tokio::test]
async fn sockets_end_with_their_sessions() {
    let line = Line::new();
    let (holder, waiter) = (line.enter(Mode::Exclusive).await, line.enter(Mode::Exclusive).await);
    tokio::join!(holder.gone_for(&waiter), async {
        waiter.has_looked(0).await;
        holder.leave();
    });
    let socket = line.socket(&waiter);
    assert!(socket.exists() && !line.socket(&holder).exists());
    waiter.store.close(waiter.own.session).await.expect("it is open");
    assert!(!socket.exists());
    // What a killed process has left goes when somebody comes.
    drop(UnixDatagram::bind(&socket).expect("its name is free"));
    line.enter(Mode::Exclusive).await;
    assert!(!socket.exists());
}
