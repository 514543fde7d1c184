//! F-36, F-37: a disk that is full or read-only, and a directory that belongs to another user.
//!
//! Mounting requires root, which tests have here and in CI.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{PermissionsExt, chown, symlink},
    process::Command,
    time::{Duration, Instant},
};

use coordination::{
    Admission, ClaimOptions, Coordinator, Effect, ErrorKind, Limiter, NewItem, Patience, WorkSlot,
};
use coordination_tests::must_hold;
use coordination_tests::{
    bounds,
    faults::{HEARTBEAT, LONG, Process, SCHEDULING, Site, crash::since},
    harness::{Mounted, Scratch, log::now_ns, rerun_if_starved, rerun_on_threads, write_script},
};
use tokio::task::block_in_place;

use super::site;
use crate::WORKER;

#[test]
fn f36_disk_full() {
    rerun_if_starved(|| {
        // The disk has room for one 4 KiB page for the file of each session, each member and each lock, for one page
        // for the file of the largest numbers, and for one page more.
        let disk = Mounted::new("size=36k");
        let site = Site::file(&disk.path().join("locks"), WORKER);
        let (holder, other) = (site.process("holder"), site.process("other"));
        let first = holder.acquire("held");
        holder.observe("held");
        // The file of the queue `known` exists, but is empty. So of all that acquiring writes, only the line with the
        // number does not fit on the disk.
        other.acquire("known");
        other.release("known");
        File::options()
            .write(true)
            .open(disk.path().join("locks/coordination/queues/lock.known"))
            .and_then(|file| file.set_len(0))
            .expect("the file is there");
        let filler = disk.fill();
        for lock in ["known", "new"] {
            for client in [&other, &holder] {
                let error = client.acquire_within(lock, Duration::from_secs(1));
                let error = error.expect_err("no grant without a token");
                assert_eq!(error["kind"], "Storage", "{error}");
                assert_eq!(error["effect"], "None", "{error}");
            }
        }
        let late = Process::unconnected(&site);
        let error = late.try_connect(&site, "late");
        println!("F-36 file: connecting to a full disk: {error:?}");
        std::thread::sleep(3 * HEARTBEAT);
        holder.keeps("held");
        assert!(other.try_acquire("held").is_none(), "granted to two");
        holder.release("held");
        fs::remove_file(filler).expect("it is ours");
        for lock in ["known", "new"] {
            other.acquire(lock);
            assert!(holder.try_acquire(lock).is_none(), "granted to two");
        }
        must_hold!(holder.acquire("held").token > first.token);
    });
}

/// One lock is acquired and released again and again, until its file needs another page, which the disk does not have.
#[test]
fn f36_disk_full_while_in_use() {
    rerun_if_starved(|| {
        let disk = Mounted::new("size=28k");
        let site = Site::file(&disk.path().join("locks"), WORKER);
        let (client, other) = (site.process("client"), site.process("other"));
        let mut last = client.acquire("busy").token;
        client.release("busy");
        let filler = disk.fill();
        let mut refused = 0;
        for _ in 0..200 {
            match client.acquire_within("busy", Duration::from_secs(1)) {
                Ok(grant) => {
                    must_hold!(grant.token > last);
                    last = grant.token;
                    assert!(other.holders("busy") == ["client"]);
                    client.release("busy");
                }
                Err(error) => {
                    assert_eq!(error["kind"], "Storage", "{error}");
                    refused += 1;
                }
            }
            assert_eq!(other.holders("busy"), [""; 0], "left behind on a full disk");
        }
        println!("F-36 file: {refused} of 200 acquires were refused");
        fs::remove_file(filler).expect("it is ours");
        must_hold!(other.acquire("busy").token > last);
    });
}

/// Waiters have written their entries before the disk is full. They get the lock when the holder releases it, and
/// also when the holder dies.
#[test]
fn f36_waiters_served_on_a_full_disk() {
    rerun_if_starved(|| {
        let disk = Mounted::new("size=36k");
        let site = Site::file(&disk.path().join("locks"), WORKER);
        let clients = ["first", "second", "third"].map(|member| site.process(member));
        let [first, second, third] = &clients;
        let token = first.acquire("queue").token;
        let waiting = second.wait_for("queue");
        first.sees_contenders("queue", 2);
        let behind = third.wait_for("queue");
        first.sees_contenders("queue", 3);
        disk.fill();
        first.release("queue");
        let next = second.granted(waiting, bounds::served() + SCHEDULING);
        must_hold!(next.token > token);
        let killed_ns = now_ns();
        second.kill();
        let last = third.granted(behind, Duration::from_secs(10));
        let took = since(killed_ns, last.t_ns);
        must_hold!(last.token > next.token);
        assert!(took <= site.crash_release(), "free only {took:?} after the death");
        third.release("queue");
        assert_eq!(first.holders("queue"), [""; 0]);
    });
}

/// On a full disk, recipes other than locks return an error. Values that were written earlier stay, and a counter
/// does not count an addition that could not be written.
#[test]
fn f36_recipes_on_a_full_disk() {
    rerun_on_threads(recipes_on_a_full_disk);
}

async fn recipes_on_a_full_disk() {
    let disk = Mounted::new("size=68k");
    let site = Site::file(&disk.path().join("locks"), WORKER);
    let client = site.client("client").await;
    let value = client.value::<String>("text").expect("a good name");
    let counter = client.counter("number").expect("a good name");
    value.set(&"short".to_owned()).await.expect("there is room");
    counter.add(7).await.expect("there is room");
    let filler = disk.fill();
    let long = "x".repeat(10_000);
    let new = client.value::<String>("new").expect("a good name");
    for value in [&value, &new] {
        let error = value.set(&long).await.expect_err("there is no room");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Storage, Effect::None), "{error}");
    }
    let present = value.read().await.expect("reading takes no room");
    assert_eq!(present.map(|present| present.value).as_deref(), Some("short"));
    let error = client.group("people").expect("a good name").create().await;
    assert_eq!(error.expect_err("there is no room").kind(), ErrorKind::Storage);
    let error = client.semaphore("permits", 2).expect("a good name").acquire(None).await;
    assert_eq!(error.expect_err("there is no room").kind(), ErrorKind::Storage);
    fs::remove_file(filler).expect("it is ours");
    assert_eq!(counter.add(1).await.expect("there is room again"), 8);
    value.set(&long).await.expect("there is room again");
    let permit = client.semaphore("permits", 2).expect("a good name").acquire_many(2, None).await;
    permit.expect("none was lost").release().await.expect("the store confirms");
}

/// A waiter for permits or for a slot has to write one more line than a waiter for a lock. It gets its permits or its
/// slot on a full disk nevertheless.
#[test]
fn f36_permits_and_slots_are_served_on_a_full_disk() {
    rerun_on_threads(permits_and_slots_are_served_on_a_full_disk);
}

async fn permits_and_slots_are_served_on_a_full_disk() {
    let disk = Mounted::new("size=1m");
    let site = Site::file(&disk.path().join("locks"), WORKER);
    let clients = [site.client("1").await, site.client("2").await, site.client("3").await];
    let [one, two, three] = &clients;
    let permits = clients.each_ref().map(|client| client.semaphore("it", 40).expect("a good name"));
    let limiter = |client: &Coordinator| {
        client.limiter("it").expect("a good name").standby(2).patience(Patience::Forever)
    };
    let newcomer = limiter(one).patience(Patience::Never);
    let held = permits[0].acquire_many(40, None).await.expect("there is room");
    let working = works(limiter(one)).await;
    let mut waiting = Vec::new();
    for (index, client) in [two, three].into_iter().enumerate() {
        let (semaphore, limiter) = (permits[index + 1].clone(), limiter(client));
        let waits = tokio::spawn(async move { semaphore.acquire_many(40, Some(LONG)).await });
        let stands_by = tokio::spawn(works(limiter));
        waiting.push((waits, stands_by));
        while permits[0].holders().await.expect("the disk works").len() < index + 2
            || newcomer.inspect().await.expect("the disk works").len() < index + 2
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    disk.fill();
    // Each call that fails to acquire still writes two lines. So repeated calls use up the room that is left in the
    // files.
    let asks = async || permits[0].try_acquire_many(40).await.map(drop);
    until_refused(asks).await;
    until_refused(async || newcomer.enter().await.map(drop)).await;
    held.release().await.expect("leaving takes no room");
    working.release().await.expect("leaving takes no room");
    for (waits, stands_by) in waiting {
        let permit =
            waits.await.expect("no panic").expect("a full disk keeps nobody from his turn");
        permit.release().await.expect("leaving takes no room");
        stands_by.await.expect("no panic").release().await.expect("leaving takes no room");
    }
}

/// While the disk is full, a claim cannot be renewed. If there is room again before the claim ends, it is renewed,
/// and goes on.
#[test]
fn f36_a_claim_outlasts_a_full_disk() {
    rerun_on_threads(a_claim_outlasts_a_full_disk);
}

async fn a_claim_outlasts_a_full_disk() {
    let disk = Mounted::new("size=1m");
    let site = Site::file(&disk.path().join("locks"), WORKER);
    let client = site.client("client").await;
    let jobs = client.queue("jobs").expect("a good name");
    jobs.post(&[NewItem::new("job")]).await.expect("there is room");
    let ttl = Duration::from_secs(12);
    let options = ClaimOptions::default().limit(1).ttl(ttl);
    let mut claim = jobs.claim(options).await.expect("there is room").expect("one is ready");
    let filler = disk.fill();
    until_refused(async || claim.renew(None, None).await.map(drop)).await;
    claim.keep_alive();
    // The first renewal is due after a third of the ttl.
    tokio::time::sleep(ttl / 2).await;
    fs::remove_file(filler).expect("it is ours");
    tokio::time::sleep(ttl).await;
    assert!(claim.is_held());
    assert_eq!(claim.ack_all().await.expect("there is room again"), 1);
}

/// Repeats a call until it fails because there is no room.
async fn until_refused(asks: impl AsyncFn() -> coordination::Result<()>) {
    for _ in 0..1_000 {
        if let Err(error) = asks().await {
            return assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
        }
    }
    panic!("there is room for ever");
}

/// Waits until the limiter has a slot, and returns that slot.
async fn works(limiter: Limiter) -> WorkSlot {
    match limiter.enter().await.expect("a full disk keeps nobody from his turn") {
        Admission::Working(slot) => slot,
        Admission::Refused(refusal) => panic!("{refusal:?}"),
    }
}

/// Pruning deletes the files of unused queues. On a full disk it frees room, and needs no room itself.
#[test]
fn f36_pruning_frees_a_full_disk() {
    rerun_on_threads(async || {
        let disk = Mounted::new("size=1m");
        let site = Site::file(&disk.path().join("locks"), WORKER);
        block_in_place(|| {
            // The room of a deleted file becomes free only when no process has the file open, so this process ends
            // before the pruning.
            let client = site.process("client");
            for number in 0..20 {
                client.acquire(&format!("vol-{number}"));
                client.release(&format!("vol-{number}"));
            }
        });
        let operator = site.client("operator").await;
        disk.fill();
        let lock = operator.lock("new").expect("a good name");
        let refused = lock.try_acquire().await.expect_err("there is no room");
        assert_eq!(refused.kind(), ErrorKind::Storage, "{refused}");
        assert_eq!(operator.prune(Duration::ZERO).await.expect("it needs no room"), 20);
        assert!(lock.try_acquire().await.expect("there is room again").is_some());
    });
}

#[test]
fn f37_read_only() {
    rerun_if_starved(|| {
        for is_new in [true, false] {
            let disk = Mounted::new("size=1m");
            let site = Site::file(&disk.path().join("locks"), WORKER);
            if !is_new {
                site.process("before").acquire("lock");
            }
            disk.remount("ro");
            refused(&site, "Permission");
        }
    });
}

#[test]
fn f37_missing_parent() {
    rerun_if_starved(|| {
        let (scratch, _) = site();
        let site = Site::file(&scratch.join("missing/locks"), WORKER);
        let message = refused(&site, "Config");
        assert!(message.contains("missing"), "{message}");
        assert!(!scratch.join("missing").exists());
    });
}

#[test]
fn f37_not_a_directory() {
    rerun_if_starved(|| {
        let (scratch, site) = site();
        File::create(scratch.join("locks")).expect("the scratch directory is ours");
        refused(&site, "Config");
    });
}

#[test]
fn f37_writable_by_everybody() {
    rerun_if_starved(|| {
        let (scratch, site) = site();
        let locks = scratch.join("locks");
        fs::create_dir(&locks).expect("the scratch directory is ours");
        fs::set_permissions(&locks, Permissions::from_mode(0o777)).expect("it is ours");
        refused(&site, "Permission");
        fs::set_permissions(&locks, Permissions::from_mode(0o1777)).expect("it is ours");
        site.process("client").acquire("lock");
    });
}

#[test]
fn f37_directory_of_another_user() {
    rerun_if_starved(|| {
        let (scratch, site) = site();
        site.process("client").acquire("lock");
        for directory in ["", "queues", "sessions", "members"] {
            let path = scratch.join("locks/coordination").join(directory);
            chown(&path, Some(12_345), None).expect("tests run as root");
            refused(&site, "Permission");
            chown(&path, Some(0), None).expect("tests run as root");
        }
        site.process("client").acquire("lock");
    });
}

/// Writes a script that runs the worker as this user, in this group, with this umask.
fn as_user(scratch: &Scratch, (user, group, umask): (u32, u32, &str)) -> String {
    let program = scratch.join(format!("worker-{user}-{group}"));
    let script = format!(
        "#!/bin/sh\numask {umask}\nexec setpriv --reuid {user} --regid {group} --clear-groups {WORKER} \"$@\"\n"
    );
    write_script(&program, &script);
    program.display().to_string()
}

/// Users who are in the group of the directory can share it, whatever their umask. Other users get an error that
/// names the directory's owner.
#[test]
fn f37_users_of_one_group() {
    rerun_if_starved(|| {
        let (scratch, _) = site();
        fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).expect("it is ours");
        let locks = scratch.join("locks");
        fs::create_dir(&locks).expect("the scratch directory is ours");
        chown(&locks, Some(12_345), Some(23_456)).expect("tests run as root");
        fs::set_permissions(&locks, Permissions::from_mode(0o2770)).expect("it is ours");
        let site_of = |user, group, umask, option: &str| {
            let site = Site::file(&locks, as_user(&scratch, (user, group, umask)));
            if option.is_empty() { site } else { site.with_option(option) }
        };
        let one = site_of(12_345, 23_456, "022", "mode=0770").process("one");
        let other = site_of(12_346, 23_456, "077", "mode=0770").process("other");
        one.acquire("it");
        let waiting = other.wait_for("it");
        one.sees_contenders("it", 2);
        one.release("it");
        other.granted(waiting, LONG);
        let again = one.wait_for("it");
        other.sees_contenders("it", 2);
        // A process that belongs to another user is killed. This user's process can remove everything that it leaves
        // behind.
        drop(other);
        one.granted(again, LONG);
        let message = refused(&site_of(12_347, 34_567, "022", "mode=0770"), "Permission");
        assert!(message.contains("Permission denied"), "{message}");
        let message = refused(&site_of(12_346, 23_456, "022", ""), "Permission");
        assert!(message.contains("12345") && message.contains("mode=0770"), "{message}");
        chown(locks.join("coordination"), Some(1), Some(1)).expect("tests run as root");
        let message = refused(&Site::file(&locks, WORKER), "Permission");
        assert!(message.contains("daemon (1)") && message.contains("root (0)"), "{message}");
    });
}

/// The store works for a user whose umask takes rights even from the owner of new files.
#[test]
fn f37_umask() {
    rerun_if_starved(|| {
        let (scratch, _) = site();
        fs::set_permissions(scratch.path(), Permissions::from_mode(0o777)).expect("it is ours");
        let program = as_user(&scratch, (12_345, 23_456, "0277"));
        let site = Site::file(&scratch.join("locks"), program);
        let one = site.process("one");
        one.acquire("it");
        one.release("it");
        site.process("other").acquire("it");
        let mode = fs::metadata(scratch.join("locks")).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o700, "{mode:o}");
    });
}

#[test]
fn f37_lock_file_planted() {
    rerun_if_starved(|| {
        let (scratch, site) = site();
        let client = site.process("client");
        client.acquire("foreign");
        client.release("foreign");
        let queues = scratch.join("locks/coordination/queues");
        let victim = scratch.join("victim");
        fs::write(&victim, "precious").expect("the scratch directory is ours");
        chown(queues.join("lock.foreign"), Some(12_345), None).expect("tests run as root");
        symlink(&victim, queues.join("lock.symlink")).expect("the directory is ours");
        fs::hard_link(&victim, queues.join("lock.hardlink")).expect("the directory is ours");
        fs::create_dir(queues.join("lock.directory")).expect("the directory is ours");
        let fifo = queues.join("lock.fifo");
        assert!(Command::new("mkfifo").arg(fifo).status().is_ok_and(|status| status.success()));
        // This needs a new process, because `client` has checked the directory of queues already and does not check
        // it again.
        let other = site.process("other");
        for lock in ["foreign", "symlink", "hardlink", "directory", "fifo"] {
            let begun = Instant::now();
            let error = other.acquire_within(lock, Duration::from_secs(2)).expect_err("planted");
            assert!(
                ["Permission", "Storage"].contains(&error["kind"].as_str().unwrap_or("")),
                "{error}"
            );
            assert!(begun.elapsed() < Duration::from_secs(1), "{lock}: retried in vain");
        }
        assert_eq!(fs::read_to_string(victim).expect("it is there"), "precious");
    });
}

/// Asserts that connecting fails at once with an error of this kind, whose effect is `None`. Returns the message.
fn refused(site: &Site, kind: &str) -> String {
    let client = Process::unconnected(site);
    let begun = Instant::now();
    let error = client.try_connect(site, "client").expect_err("it should be refused");
    assert!(begun.elapsed() <= bounds::connected());
    assert_eq!(error["kind"], kind, "{error}");
    assert_eq!(error["effect"], "None", "{error}");
    error["message"].as_str().unwrap_or_default().to_owned()
}
