//! What a server says about itself in the answer to `INFO`.

use crate::characteristics::{Durability, ServerInfo, ahead_ms};
use crate::error::{Error, ErrorKind, Result};

/// What is known of the server at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// Whether writes that the server has acknowledged survive a restart. They do if the server has a log and syncs it for each
    /// write before it answers.
    pub(super) keeps: Durability,
    /// Whether the server may evict keys of ours when its memory is full. An evicted key is a lock that ends early.
    pub(super) evicts: bool,
    pub(super) info: ServerInfo,
}

impl Server {
    /// Reads the answer to `INFO`, which has come just now. `syncs` is what the server's settings say: whether it syncs its log for each write, if it has a
    /// log; `None`: the settings could not be read.
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
        // The script `greet.lua` needs these two lines of `INFO`, so connecting fails if the server does not have them.
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
        // Valkey also tells the version of Redis that it stands for.
        let version = line("valkey_version").or_else(|| line("redis_version"));
        let clock = line("server_time_usec").and_then(|micros| micros.parse().ok());
        let info = ServerInfo { version, clock_ahead_ms: clock.map(ahead_ms) };
        Ok(Self { keeps, evicts: is_bounded && evicts, info })
    }

    /// The reason why the server may end a session before its lease is over, for users.
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
    fn a_server_tells_its_version_and_its_clock() {
        let info = |info: &str| Server::read(info, None).expect("a master").info;
        assert_eq!(info(INFO), ServerInfo::default());
        let later = crate::env::unix_micros() + 3_600_000_000;
        let told = format!("{INFO}redis_version:7.0.15\r\nserver_time_usec:{later}\r\n");
        let told = info(&told);
        assert_eq!(told.version.as_deref(), Some("7.0.15"));
        let ahead = told.clock_ahead_ms.expect("it was told");
        assert!((3_500_000..=3_600_000).contains(&ahead), "{ahead}");
        let behind = info(&format!("{INFO}server_time_usec:1\r\n")).clock_ahead_ms;
        assert!(behind.is_some_and(|ahead| ahead < 0), "{behind:?}");
    }

    #[test]
    fn a_server_says_who_it_is() {
        assert!(Server::read(INFO, None).is_ok_and(|server| server.evicts));
        assert!(Server::read(&INFO.replace("role:master", "role:slave"), None).is_err());
        assert!(Server::read(&INFO.replace("run_id", "id"), None).is_err());
        assert!(Server::read(&INFO.replace("def", ""), None).is_err());
    }
}
