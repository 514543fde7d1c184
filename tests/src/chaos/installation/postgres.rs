//! PostgreSQL under chaos. The store's own fault is that the server closes all connections.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::super::nemesis::Fault;
use super::servers::Own;
use crate::harness::{Postgres, Server};

#[derive(Debug)]
pub(super) struct Operator(Postgres);

impl Operator {
    pub(super) fn start() -> Self {
        Self(Postgres::one())
    }

    /// Executes a statement. Returns `None` if the server refuses it or does not answer.
    fn ask(&self, statement: &str) -> Option<String> {
        self.0.try_ask(0, statement).ok()
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
        assert_eq!(fault, Fault::ConnectionsKilled, "no other happens on PostgreSQL");
        let until = Instant::now() + length;
        while Instant::now() < until {
            self.ask(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
            );
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
        let live = "SELECT encode(id, 'escape') FROM coordination.sessions WHERE expires > coordination.clock()";
        let found = self.ask(live).unwrap_or_default();
        found.lines().map(ToOwned::to_owned).collect()
    }
}
