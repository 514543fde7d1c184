//! Other libraries on the same etcd: `etcdctl lock` uses Go's `concurrency.Mutex`.
#![cfg(feature = "etcd")]

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use coordination::Coordinator;
use coordination_tests::harness::{Etcd, eventually_async, rerun_on_threads};
use coordination_tests::must_hold;
use tokio::task::block_in_place;

const NAME: &str = "vol-7";
const PREFIX: &str = "coordination/lock/vol-7";
const SOON: Duration = Duration::from_secs(5);

/// An `etcdctl lock` process: it waits for the lock, and holds it until the process ends.
struct Etcdctl(Child);

impl Etcdctl {
    fn lock(etcd: &Etcd, prefix: &str) -> Self {
        let child = Command::new("etcdctl")
            .arg(format!("--endpoints={}", etcd.authority()))
            .args(["lock", "--ttl=2", prefix])
            .env("ETCDCTL_API", "3")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("etcdctl is installed: checked at start"))
    }

    /// Interrupts `etcdctl` as Ctrl-C does, so that it releases the lock.
    fn interrupt(&self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
    }
}

impl Drop for Etcdctl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn client(etcd: &Etcd) -> Coordinator {
    let url = format!("etcd://{}", etcd.authority());
    let builder = Coordinator::builder().member_id("ours").ttl(Duration::from_secs(2));
    builder.connect(&url).await.expect("the server is there")
}

/// The members of all entries, in the order of the queue; an entry of another library has an empty member.
async fn members(client: &Coordinator) -> Vec<String> {
    let lock = client.lock(NAME).expect("a good name");
    let holders = lock.holders().await.expect("the store answers");
    assert!(holders.iter().enumerate().all(|(index, one)| one.holding == (index == 0)));
    holders.into_iter().map(|one| one.member).collect()
}

#[test]
fn etcdctl_excludes_us() {
    rerun_on_threads(async || {
        let etcd = block_in_place(Etcd::one);
        let client = client(&etcd).await;
        let lock = client.lock(NAME).expect("a good name");
        let other = Etcdctl::lock(&etcd, PREFIX);
        eventually_async(SOON, async || members(&client).await == [""]).await;
        assert!(lock.try_acquire().await.expect("the store answers").is_none());
        let waiting = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire(Some(SOON)).await }
        });
        eventually_async(SOON, async || members(&client).await == ["", "ours"]).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!waiting.is_finished(), "granted to two");
        let held = lock.holders().await.expect("the store answers");
        other.interrupt();
        let guard = waiting.await.expect("no panic").expect("it was released");
        must_hold!(guard.token() > held[0].token);
        assert_eq!(members(&client).await, ["ours"]);
    });
}

/// After `etcdctl` was killed, its lease ends within two seconds.
#[test]
fn etcdctl_dies() {
    rerun_on_threads(async || {
        let etcd = block_in_place(Etcd::one);
        let client = client(&etcd).await;
        let other = Etcdctl::lock(&etcd, PREFIX);
        eventually_async(SOON, async || members(&client).await == [""]).await;
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

#[test]
fn we_exclude_etcdctl() {
    rerun_on_threads(async || {
        let etcd = block_in_place(Etcd::one);
        let client = client(&etcd).await;
        let guard =
            client.lock(NAME).expect("a good name").acquire(Some(SOON)).await.expect("free");
        let _other = Etcdctl::lock(&etcd, PREFIX);
        eventually_async(SOON, async || members(&client).await == ["ours", ""]).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(members(&client).await, ["ours", ""]);
        guard.release().await.expect("the store confirms");
        eventually_async(SOON, async || members(&client).await == [""]).await;
    });
}

/// Clients of `etcdctl` and of the library get the lock in the order in which they asked for it.
#[test]
fn both_stand_in_one_queue() {
    rerun_on_threads(async || {
        let etcd = block_in_place(Etcd::one);
        let client = client(&etcd).await;
        let lock = client.lock(NAME).expect("a good name");
        let first = lock.acquire(Some(SOON)).await.expect("free");
        let second = Etcdctl::lock(&etcd, PREFIX);
        eventually_async(SOON, async || members(&client).await == ["ours", ""]).await;
        let third = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire(Some(2 * SOON)).await }
        });
        eventually_async(SOON, async || members(&client).await == ["ours", "", "ours"]).await;
        first.release().await.expect("the store confirms");
        eventually_async(SOON, async || members(&client).await == ["", "ours"]).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!third.is_finished(), "granted to two");
        second.interrupt();
        third.await.expect("no panic").expect("its turn").release().await.expect("confirmed");
    });
}

/// Our library can break a lock that another library holds.
#[test]
fn we_break_etcdctls_lock() {
    rerun_on_threads(async || {
        let etcd = block_in_place(Etcd::one);
        let client = client(&etcd).await;
        let _other = Etcdctl::lock(&etcd, PREFIX);
        eventually_async(SOON, async || members(&client).await == [""]).await;
        let lock = client.lock(NAME).expect("a good name");
        let broken = lock.break_lock().await.expect("the store answers").expect("it was held");
        assert_eq!(broken.member, "");
        assert!(lock.acquire(Some(SOON)).await.is_ok());
    });
}

/// Two locks are independent even if the name of one is the beginning of the other's name.
#[test]
fn other_names_do_not_matter() {
    rerun_on_threads(async || {
        let etcd = block_in_place(Etcd::one);
        let client = client(&etcd).await;
        let _other = Etcdctl::lock(&etcd, PREFIX);
        eventually_async(SOON, async || members(&client).await == [""]).await;
        for name in ["vol", "vol-", "vol-77", "vol-7/x"] {
            let lock = client.lock(name).expect("a good name");
            let free = lock.try_acquire().await.expect("the store answers");
            assert!(free.is_some(), "{name} is not {NAME}");
        }
    });
}
