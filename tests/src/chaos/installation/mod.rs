//! The store of a run: how clients reach it, and what an operator can do to it.

#[cfg(feature = "consul")]
mod consul;
mod directory;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod servers;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::{path::Path, process::Command, time::Duration};

use super::{Store, things::Group};

pub(super) use directory::Directory;
pub(super) use servers::Servers;

/// The store of a run.
#[derive(Debug)]
pub(super) enum Installation {
    Servers(Box<Servers>),
    File(Directory),
}

impl Installation {
    pub(super) fn new(store: Store, seats: usize) -> Self {
        match Servers::start(store, seats) {
            Some(servers) => Self::Servers(Box::new(servers)),
            None => Self::File(Directory::start()),
        }
    }

    /// The URL of the group for the client in this seat. On stores with servers, it leads through the proxies of the
    /// seat.
    pub(super) fn url(&self, seat: usize, group: Group) -> String {
        match self {
            Self::Servers(servers) => servers.url(seat, group),
            Self::File(directory) => directory.url(group),
        }
    }

    /// The URL of the group for the driver's own clients. It leads through no proxy, so faults of the network do not
    /// affect it.
    pub(super) fn own_url(&self, group: Group) -> String {
        match self {
            Self::Servers(servers) => servers.own_url(group),
            Self::File(directory) => directory.url(group),
        }
    }

    /// L1: after how long a lock of a dead process has to be free.
    pub(super) fn crash_release(&self) -> Duration {
        match self {
            Self::Servers(servers) => servers.crash_release(),
            Self::File(_) => Duration::from_millis(50),
        }
    }

    /// Ends all faults, and waits until the store works again.
    ///
    /// # Errors
    ///
    /// If the store does not work again.
    pub(super) fn heal(&self) -> Result<(), String> {
        match self {
            Self::Servers(servers) => servers.heal(),
            Self::File(_) => Ok(()),
        }
    }

    /// The sessions that still exist at the store. After all clients have stopped, there should be none.
    pub(super) fn sessions(&self) -> Vec<String> {
        match self {
            Self::Servers(servers) => servers.sessions(),
            Self::File(directory) => directory.sessions(),
        }
    }

    /// The directory that has the store's data and logs.
    pub(super) fn data(&self) -> &Path {
        match self {
            Self::Servers(servers) => servers.own.data(),
            Self::File(directory) => directory.disk.path(),
        }
    }
}

/// Copies the directory `from` to `to`, which must not exist yet, so that a failure can be investigated.
///
/// # Errors
///
/// A description of why nothing was copied, or only a part.
pub(super) fn keep(from: &Path, to: &Path) -> Result<(), String> {
    // etcd allocates its log in advance. Without `--sparse`, the copy would have a hundred megabytes of zeros.
    let copied = Command::new("cp").args(["-r", "--sparse=always"]).arg(from).arg(to).output();
    let error = match copied {
        Ok(copied) if copied.status.success() => return Ok(()),
        Ok(copied) => String::from_utf8_lossy(&copied.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Err(format!("{} is not all there: {error}", to.display()))
}
