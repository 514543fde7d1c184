//! `file:///dir`: one host, no server.
//!
//! # How it works
//!
//! A queue is a file, `queues/lock.<name>`: a log of changes to entries, and to a value if there is one. The log is read and
//! appended to under the queue's *short lock*, a `flock` that is held for a moment on a descriptor that stays open. Whoever has much
//! to read reads it without the lock (`queue/ahead.rs`). When the log has become long, lines that have no effect any more are
//! dropped. The store's clock is the time since the host was booted.
//!
//! A session is a file too, `sessions/<id>`, which its process keeps locked as long as the session lives. An entry is live as long
//! as its session's file is locked. So when a process dies, the kernel unlocks its files at once, and its entries block nobody; and
//! a process that is paused keeps its entries. Whoever removes an entry wakes the one that waited for it by a datagram to the socket
//! `sockets/<id>` of its session. Others are woken by inotify: by a change of the queue's file, or when a session's file is closed,
//! which the kernel does for a killed process too. In addition, waiters read the file again at long intervals. On systems without
//! inotify they read it at short intervals instead.
//!
//! A file is never unlinked while another process may have it locked. The files of queues stay, one for each name that was ever
//! used, until they are pruned. The files of sessions are removed by a process that has them locked.
//!
//! # Guarantees
//!
//! Locks exclude each other between all processes of the host, and are granted in the order of asking. This depends on no clock:
//! there is no lease that could run out. What a crashed process held is free within 50 ms, and where waiters poll within 100 ms. If
//! the file of a holder's queue was removed or replaced, the holder learns it with its next heartbeat. Tokens are `max(last + 1, wall
//! clock in µs)`, and are kept in the queue's file. Tokens, and the versions of values, survive a loss of power only with
//! `durable=true`.
//!
//! If a process is stopped in the moment in which it has a queue's short lock, no process can use that queue until the stopped process
//! goes on or dies: calls fail as while a server is away, and whoever waits goes on waiting. If a process forks a child that does not exec, and then dies, its session lives on until the
//! child ends too.
//!
//! # Requirements
//!
//! Linux, macOS or FreeBSD, and a directory on a local file system (network ones are refused). All processes that share the directory
//! must run as the user who owns it or, with `mode=0770`, as users of its group. The directory's parent must exist. On macOS and
//! FreeBSD this compiles, and was never run; Android counts as Linux. On other systems connecting fails with `Unsupported`.
//!
//! # URL options
//!
//! * `durable=true`: a grant waits until its token is on the disk, and a write until the value is. Default: false.
//! * `network_filesystem=allow`: accept NFS and other network file systems. Default: `refuse`.
//! * `mode=0770`: the users of the directory's group share it. Default: `0700`, its owner alone.

mod config;
#[cfg(file_store)]
mod directory;
#[cfg(any(not(file_store), test))]
mod elsewhere;
#[cfg(file_store)]
mod entries;
#[cfg(file_store)]
mod error;
#[cfg(file_store)]
mod file_store;
#[cfg(file_store)]
mod floor;
#[cfg(all(test, file_store, coordination_internals))]
mod fuzz;
#[cfg(file_store)]
mod header;
#[cfg(file_store)]
mod held;
#[cfg(linux_kernel)]
mod inotify;
#[cfg(all(test, file_store))]
mod late;
#[cfg(file_store)]
mod liveness;
#[cfg(file_store)]
mod log;
#[cfg(file_store)]
mod open_files;
#[cfg(all(file_store, not(linux_kernel)))]
mod polling;
#[cfg(file_store)]
mod polls;
#[cfg(file_store)]
mod prune;
#[cfg(file_store)]
mod queue;
#[cfg(file_store)]
mod sessions;
#[cfg(linux_kernel)]
mod sockets;
#[cfg(file_store)]
mod store;
#[cfg(file_store)]
mod system;
#[cfg(all(test, file_store))]
mod tests;
#[cfg(file_store)]
mod values;
#[cfg(linux_kernel)]
mod waking;
#[cfg(file_store)]
mod watching;

use self::config::Config;
use super::descriptor::{Connect, Descriptor};
use crate::characteristics::LossDetection;
use crate::url::{Authority, UrlOption};

/// What the library knows of this store before it connects.
pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "file",
    options: &[
        UrlOption::shown("durable"),
        UrlOption::shown("network_filesystem"),
        UrlOption::shown("mode"),
    ],
    authority: Authority::Nothing,
    namespace: |_| None,
    loss_detection: LossDetection::Heartbeat,
    is_in_process: false,
    parse: |url| Ok(to_connect(Config::parse(url)?)),
};

#[cfg(file_store)]
fn to_connect(config: Config) -> Box<dyn Connect> {
    Box::new(config)
}

#[cfg(not(file_store))]
fn to_connect(_config: Config) -> Box<dyn Connect> {
    Box::new(elsewhere::Elsewhere)
}
