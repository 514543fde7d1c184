//! MySQL and MariaDB under chaos. The store's own fault is that the server closes all connections.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::super::nemesis::Fault;
use super::servers::Own;
use crate::harness::{Mysql, Server};

#[derive(Debug)]
pub(super) struct Operator(Mysql);

impl Operator {
    pub(super) fn start() -> Self {
        Self(Mysql::one())
    }

    /// Executes a statement. Returns `None` if the server refuses it or does not answer.
    fn ask(&self, statement: &str) -> Option<String> {
        self.0.try_ask(statement).ok()
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
        assert_eq!(fault, Fault::ConnectionsKilled, "no other happens on MySQL");
        let until = Instant::now() + length;
        while Instant::now() < until {
            let ours = "SELECT id FROM information_schema.processlist WHERE db = 'coordination'";
            for id in self.ask(ours).unwrap_or_default().lines() {
                self.ask(&format!("KILL {id}"));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn mend(&self) -> bool {
        true
    }

    fn is_well(&self) -> bool {
        self.ask("SELECT 1").is_some()
    }

    fn sessions(&self) -> Vec<String> {
        let live = "SELECT id FROM coordination.coordination_sessions
                      WHERE expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
        let found = self.ask(live).unwrap_or_default();
        found.lines().map(ToOwned::to_owned).collect()
    }
}
