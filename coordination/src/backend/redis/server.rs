//! What a server says of itself.

use crate::characteristics::Durability;
use crate::error::{Error, ErrorKind, Result};

/// The server at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// Whether writes that it has acknowledged survive a restart: then every write is synced before it is answered.
    pub(super) keeps: Durability,
    /// Whether the server removes keys when its memory is full.
    pub(super) evicts: bool,
}

impl Server {
    /// Reads the answer to `INFO`. `syncs`: whether the server, if it has a log, syncs it for each write; `None`: not known.
    pub(super) fn read(info: &str, syncs: Option<bool>) -> Result<Self> {
        let line = |name: &str| {
            let value =
                |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
            info.lines().find_map(value)
        };
        let is_cluster = line("redis_mode").is_some_and(|mode| mode == "cluster");
        if line("role").is_some_and(|role| role == "slave") && !is_cluster {
            let message = "this server is a replica: use the master, or Sentinels (`sentinel=`)";
            return Err(Error::new(ErrorKind::Unavailable, "connect", message));
        }
        // The greeting (`greet.lua`) needs these two.
        for name in ["run_id", "master_replid"] {
            if line(name).is_none_or(|id| id.is_empty()) {
                let message = format!("the server does not tell its {name}");
                return Err(Error::new(ErrorKind::Unsupported, "connect", message));
            }
        }
        let keeps = match (line("aof_enabled").as_deref(), syncs) {
            (Some("1"), Some(true)) => Durability::Yes,
            (Some("1"), None) | (None, _) => Durability::Unknown,
            _ => Durability::No,
        };
        let is_bounded = line("maxmemory").is_some_and(|bytes| bytes != "0");
        let evicts = line("maxmemory_policy").is_some_and(|policy| policy != "noeviction");
        Ok(Self { keeps, evicts: is_bounded && evicts })
    }

    /// Why the server may end a session before its lease is over.
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

    const INFO: &str = "# Server\r\nrun_id:abc\r\nmaster_replid:def\r\nrole:master\r\naof_enabled:1\r\n\
                        maxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n";

    #[test]
    fn what_a_server_keeps_is_known_by_its_log() {
        let keeps = |info: &str, syncs| Server::read(info, syncs).map(|server| server.keeps).ok();
        assert_eq!(keeps(INFO, Some(true)), Some(Durability::Yes));
        assert_eq!(keeps(INFO, Some(false)), Some(Durability::No));
        assert_eq!(keeps(INFO, None), Some(Durability::Unknown));
        assert_eq!(keeps(&INFO.replace("enabled:1", "enabled:0"), None), Some(Durability::No));
    }

    #[test]
    fn a_server_says_who_it_is() {
        assert!(Server::read(INFO, None).is_ok_and(|server| server.evicts));
        assert!(Server::read(&INFO.replace("role:master", "role:slave"), None).is_err());
        assert!(Server::read(&INFO.replace("run_id", "id"), None).is_err());
        assert!(Server::read(&INFO.replace("def", ""), None).is_err());
    }
}
