//! What a server says of itself.

use std::time::{Duration, Instant};

use crate::characteristics::Durability;
use crate::error::{Error, ErrorKind, Result};

/// The server at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// Another one for each start of its process.
    pub(super) run_id: String,
    /// When it started, at the earliest.
    pub(super) started: Option<Instant>,
    /// Whether it still has all that it answered after its process ended: each answer waits for the disk.
    pub(super) keeps: Durability,
    /// May remove keys when its memory is full.
    pub(super) evicts: bool,
}

impl Server {
    /// Reads the answer to `INFO`, and what `CONFIG GET appendfsync` said where it may be asked.
    pub(super) fn read(info: &str, fsync: Option<&str>) -> Result<Self> {
        let line = |name: &str| {
            let value =
                |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
            info.lines().find_map(value)
        };
        if line("role").is_some_and(|role| role == "slave") {
            let message = "this server is a replica: use the master, or Sentinels (`sentinel=`)";
            return Err(Error::new(ErrorKind::Unavailable, "connect", message));
        }
        let run_id = line("run_id").filter(|id| !id.is_empty()).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "connect", "the server does not tell its run_id")
        })?;
        let up = line("uptime_in_seconds").and_then(|seconds| seconds.parse().ok());
        let keeps = match (line("aof_enabled").as_deref(), fsync) {
            (Some("1"), Some("always")) => Durability::Yes,
            (Some("1"), None) | (None, _) => Durability::Unknown,
            _ => Durability::No,
        };
        let is_bounded = line("maxmemory").is_some_and(|bytes| bytes != "0");
        let evicts = line("maxmemory_policy").is_some_and(|policy| policy != "noeviction");
        // Whole seconds of a clock that both counts down and was rounded.
        let up = Duration::from_secs(up.unwrap_or(0u64)).saturating_sub(Duration::from_secs(1));
        Ok(Self {
            run_id,
            started: Instant::now().checked_sub(up),
            keeps,
            evicts: is_bounded && evicts,
        })
    }

    /// How long it has been up, at least.
    pub(super) fn uptime(&self) -> Duration {
        // Before the first moment that this machine can tell: long enough.
        self.started.map_or(Duration::from_secs(365 * 24 * 60 * 60), |started| started.elapsed())
    }

    /// Why it may end a session before its lease is over.
    pub(super) fn early_expiry(&self) -> &'static str {
        if self.evicts {
            "Redis may evict keys (`maxmemory-policy` is not `noeviction`), and judges leases by its wall clock"
        } else {
            "Redis judges leases by its wall clock: where that is set forward, they end early"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nrun_id:abc\r\nuptime_in_seconds:7\r\nrole:master\r\naof_enabled:1\r\n\
                        maxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n";

    #[test]
    fn what_a_server_keeps_is_known_by_its_log() {
        let keeps = |info: &str, fsync| Server::read(info, fsync).map(|server| server.keeps).ok();
        assert_eq!(keeps(INFO, Some("always")), Some(Durability::Yes));
        assert_eq!(keeps(INFO, Some("everysec")), Some(Durability::No));
        assert_eq!(keeps(INFO, None), Some(Durability::Unknown));
        assert_eq!(keeps(&INFO.replace("enabled:1", "enabled:0"), None), Some(Durability::No));
    }

    #[test]
    fn a_server_is_known_by_its_run() {
        let server = Server::read(INFO, None).expect("a master");
        assert_eq!(server.run_id, "abc");
        assert!((6..7).contains(&server.uptime().as_secs()), "{:?}", server.uptime());
        assert!(server.evicts);
        assert!(Server::read(&INFO.replace("master", "slave"), None).is_err());
        assert!(Server::read("", None).is_err());
    }
}
