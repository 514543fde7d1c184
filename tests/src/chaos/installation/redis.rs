//! Redis under chaos. Its own faults are that the server drops its cached scripts, and that it closes all connections.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::super::nemesis::Fault;
use super::servers::Own;
use crate::harness::redis::Reply;
use crate::harness::{Redis, Server};

/// A script that returns the sessions of all namespaces whose lease is not over.
const SESSIONS: &str = "
local time, found = redis.call('TIME'), {}
for _, key in ipairs(redis.call('KEYS', '{*}:session:*')) do
  local base = string.match(key, '^{.*}:')
  local offset = redis.call('HGET', base .. 'clock', 'offset') or 0
  local now = time[1] * 1000000 + time[2] + offset
  if tonumber(redis.call('HGET', key, 'expires') or 0) > now then found[#found + 1] = key end
end
return found";

#[derive(Debug)]
pub(super) struct Operator(Redis);

impl Operator {
    pub(super) fn start() -> Self {
        Self(Redis::one())
    }

    /// Sends a command. Returns `None` if the server does not answer.
    fn ask(&self, command: &[&str]) -> Option<Reply> {
        self.0.try_ask(0, command).ok()
    }
}

impl Own for Operator {
    fn server(&self) -> &dyn Server {
        &self.0
    }

    fn data(&self) -> &Path {
        self.0.directory()
    }

    fn strike(&self, fault: Fault, length: Duration) {
        let until = Instant::now() + length;
        while Instant::now() < until {
            match fault {
                Fault::ScriptsFlushed => {
                    self.ask(&["SCRIPT", "FLUSH"]);
                }
                Fault::ConnectionsKilled => {
                    // For this command, connections that have subscribed to channels are of the type `pubsub`, and all
                    // others are `normal`.
                    self.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
                    self.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
                }
                other => unreachable!("{other:?} does not happen on Redis"),
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn mend(&self) -> bool {
        true
    }

    fn is_well(&self) -> bool {
        self.ask(&["PING"]) == Some(Reply::Text("PONG".to_owned()))
    }

    fn sessions(&self) -> Vec<String> {
        self.ask(&["EVAL", SESSIONS, "0"]).map(|found| found.texts()).unwrap_or_default()
    }
}
