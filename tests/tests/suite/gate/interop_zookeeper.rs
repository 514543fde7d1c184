//! kazoo, a Python library, on the same ZooKeeper: its locks and ours use one queue.
//!
//! kazoo is installed from PyPI into a virtual environment under `target`, once.
#![cfg(feature = "zookeeper")]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use coordination::Coordinator;
use coordination_tests::harness::{Server, Zookeeper, eventually_async, rerun_on_threads};
use coordination_tests::must_hold;
use tokio::task::block_in_place;

const NAME: &str = "vol-7";
const PATH: &str = "/coordination/lock/vol-7";
const SOON: Duration = Duration::from_secs(10);
const VERSION: &str = "kazoo==2.10.0";

/// A Python program. It acquires a lock of the given kind, prints `held`, and holds the lock until it reads a line;
/// then it releases the lock and prints `released`. When it reads the next line, it starts again.
const PROGRAM: &str = "
import logging, sys
from kazoo.client import KazooClient
logging.disable(logging.CRITICAL)
hosts, kind, path = sys.argv[1:]
client = KazooClient(hosts=hosts, timeout=4)
client.start()
lock = getattr(client, kind)(path, 'kazoo')
while True:
    lock.acquire()
    print('held', flush=True)
    sys.stdin.readline()
    lock.release()
    print('released', flush=True)
    sys.stdin.readline()
";

/// The path of a Python that has kazoo.
fn python() -> PathBuf {
    static INSTALLING: Mutex<()> = Mutex::new(());
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let install = || {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kazoo");
        let python = directory.join("bin/python3");
        let run = |program: &str, arguments: &[&str]| {
            let done = Command::new(program).args(arguments).status();
            assert!(done.is_ok_and(|status| status.success()), "{program} {arguments:?} failed");
        };
        let has_it =
            Command::new(&python).args(["-c", "import kazoo"]).stderr(Stdio::null()).status();
        if !has_it.is_ok_and(|status| status.success()) {
            run("python3", &["-m", "venv", &directory.display().to_string()]);
            run(&python.display().to_string(), &["-m", "pip", "install", "-q", VERSION]);
        }
        python
    };
    PYTHON.get_or_init(install).clone()
}

/// A process that waits for a kazoo lock, and then holds it.
struct Kazoo {
    child: Child,
    says: mpsc::Receiver<String>,
}

impl Kazoo {
    fn start(zookeeper: &Zookeeper, kind: &str) -> Self {
        let mut child = Command::new(python())
            .args(["-c", PROGRAM, &zookeeper.authority(), kind, PATH])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it is installed");
        let output = child.stdout.take().expect("it is piped");
        let (told, says) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = told.send(line);
            }
        });
        Self { child, says }
    }

    fn says(&self, word: &str) {
        let line = block_in_place(|| self.says.recv_timeout(SOON)).expect("it says something");
        assert_eq!(line, word);
    }

    fn is_silent(&self) -> bool {
        block_in_place(|| self.says.recv_timeout(Duration::from_millis(700))).is_err()
    }

    fn release(&mut self) {
        self.tell();
        self.says("released");
    }

    fn tell(&mut self) {
        let input = self.child.stdin.as_mut().expect("it is piped");
        input.write_all(b"\n").expect("it listens");
    }
}

impl Drop for Kazoo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn client(zookeeper: &Zookeeper) -> Coordinator {
    connected(zookeeper, "ours", "").await
}

async fn connected(zookeeper: &Zookeeper, member: &str, options: &str) -> Coordinator {
    let url = format!("zookeeper://{}{options}", zookeeper.authority());
    let builder = Coordinator::builder().member_id(member).ttl(Duration::from_secs(4));
    builder.connect(&url).await.expect("the server is there")
}

/// The members of all entries, in the order of the queue; an entry of another library has an empty member.
async fn members(client: &Coordinator) -> Vec<String> {
    let lock = client.lock(NAME).expect("a good name");
    let holders = lock.holders().await.expect("the store answers");
    holders.into_iter().map(|one| one.member).collect()
}

#[test]
fn locks_take_turns() {
    rerun_on_threads(async || {
        let zookeeper = block_in_place(Zookeeper::one);
        let client = client(&zookeeper).await;
        let lock = client.lock(NAME).expect("a good name");
        for kind in ["Lock", "WriteLock"] {
            let first = lock.acquire(Some(SOON)).await.expect("free");
            let mut second = Kazoo::start(&zookeeper, kind);
            eventually_async(SOON, async || members(&client).await == ["ours", ""]).await;
            let third = tokio::spawn({
                let lock = lock.clone();
                async move { lock.acquire(Some(3 * SOON)).await }
            });
            eventually_async(SOON, async || members(&client).await == ["ours", "", "ours"]).await;
            assert!(second.is_silent(), "{kind}: granted to two");
            let token = first.token();
            first.release().await.expect("the store confirms");
            second.says("held");
            assert!(!third.is_finished(), "{kind}: granted to two");
            assert!(lock.try_acquire().await.expect("the store answers").is_none());
            second.release();
            let third = third.await.expect("no panic").expect("it was released");
            must_hold!(third.token() > token);
            third.release().await.expect("the store confirms");
        }
    });
}

#[test]
fn shares_take_turns_with_writers() {
    rerun_on_threads(async || {
        let zookeeper = block_in_place(Zookeeper::one);
        let client = client(&zookeeper).await;
        let lock = client.lock(NAME).expect("a good name");
        // Readers of both libraries share the lock, and writers of both wait.
        let share = lock.acquire_shared(Some(SOON)).await.expect("free");
        let mut reader = Kazoo::start(&zookeeper, "ReadLock");
        reader.says("held");
        assert!(lock.try_acquire().await.expect("the store answers").is_none());
        let mut writer = Kazoo::start(&zookeeper, "WriteLock");
        eventually_async(SOON, async || members(&client).await == ["ours", "", ""]).await;
        share.release().await.expect("the store confirms");
        assert!(writer.is_silent(), "granted beside a reader");
        // A reader that comes after a waiting writer gets the lock after that writer.
        let waiting = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire_shared(Some(3 * SOON)).await }
        });
        eventually_async(SOON, async || members(&client).await == ["", "", "ours"]).await;
        reader.release();
        writer.says("held");
        assert!(!waiting.is_finished(), "granted beside a writer");
        writer.release();
        let share = waiting.await.expect("no panic").expect("the writer has gone");
        // Not checked: a lock that our library has downgraded from exclusive to shared keeps the name of its node. So a
        // kazoo reader takes the node for a writer's, and waits until it is gone, which is safe and documented.
        share.release().await.expect("the store confirms");
    });
}

/// The server removes the container node of an empty queue. A kazoo lock object creates the node only once, so it
/// goes on working only if our library has made the node persistent.
#[test]
fn its_lock_objects_last() {
    rerun_on_threads(async || {
        let options = Zookeeper::options().property("znode.container.checkIntervalMs=100");
        let zookeeper = block_in_place(|| options.start());
        let client = connected(&zookeeper, "ours", "?parents=persistent").await;
        let passing = connected(&zookeeper, "passing", "").await;
        let cycle = async |client: &Coordinator, name: &str| {
            let lock = client.lock(name).expect("a good name");
            let guard = lock.acquire(Some(SOON)).await.expect("free");
            guard.release().await.expect("the store confirms");
        };
        // The queue's node has to be one that our library has created, because the server never removes a node that
        // kazoo has created. So our library acquires the lock before kazoo does.
        let guard =
            client.lock(NAME).expect("a good name").acquire(Some(SOON)).await.expect("free");
        let mut kazoo = Kazoo::start(&zookeeper, "Lock");
        eventually_async(SOON, async || members(&client).await == ["ours", ""]).await;
        guard.release().await.expect("the store confirms");
        kazoo.says("held");
        kazoo.release();
        // The server looks for empty nodes from time to time. After `passing` was removed twice, the server has
        // surely looked at the node of `NAME` too, which was empty all the time.
        for _ in 0..2 {
            cycle(&passing, "passing").await;
            let is_removed = || zookeeper.look("/coordination/lock/passing").is_none();
            eventually_async(3 * SOON, async || block_in_place(is_removed)).await;
        }
        kazoo.tell();
        kazoo.says("held");
        kazoo.release();
        cycle(&client, NAME).await;
    });
}

/// After kazoo's process was killed, its session ends in time.
#[test]
fn kazoo_dies() {
    rerun_on_threads(async || {
        let zookeeper = block_in_place(Zookeeper::one);
        let client = client(&zookeeper).await;
        let other = Kazoo::start(&zookeeper, "Lock");
        other.says("held");
        drop(other);
        let lock = client.lock(NAME).expect("a good name");
        lock.acquire(Some(SOON))
            .await
            .expect("free after its lease")
            .release()
            .await
            .expect("ours");
    });
}
