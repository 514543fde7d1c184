//! Consul under chaos. It has only the faults that all servers have.

use std::{path::Path, time::Duration};

use super::super::nemesis::Fault;
use super::servers::Own;
use crate::harness::{Consul, Server};

#[derive(Debug)]
pub(super) struct Operator(Consul);

impl Operator {
    pub(super) fn start(nodes: usize) -> Self {
        Self(Consul::options().nodes(nodes).start())
    }
}

impl Own for Operator {
    fn server(&self) -> &dyn Server {
        &self.0
    }

    fn data(&self) -> &Path {
        self.0.directory()
    }

    fn strike(&self, fault: Fault, _length: Duration) {
        unreachable!("{fault:?} does not happen on Consul");
    }

    fn mend(&self) -> bool {
        true
    }

    fn is_well(&self) -> bool {
        self.0.is_well()
    }

    fn sessions(&self) -> Vec<String> {
        self.0.sessions().iter().map(|session| format!("session {session}")).collect()
    }
}
