//! The stores, and which of them a check is for.

use std::sync::Arc;

use crate::harness::{Etcd, Server, Setup};

/// A store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backend {
    /// `memory://`
    Memory,
    /// `file://`
    File,
    /// `etcd://`
    Etcd,
}

/// All of them, in the order of the README's tables.
pub const BACKENDS: &[Backend] = &[Backend::Memory, Backend::File, Backend::Etcd];

impl Backend {
    /// Starts its servers; nothing where it has none.
    pub fn set_up(self, setup: &Setup) -> Option<Arc<dyn Server>> {
        Some(match self {
            Self::Memory | Self::File => return None,
            Self::Etcd => Arc::new(Etcd::set_up(setup)),
        })
    }

    /// What it is called in lists: `etcd`.
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Whether it is in one of these groups of stores: `everywhere`; `processes`, which is all that processes
    /// can share; `servers`, all that have one; `own_server`, the same with a server for nobody else; or the
    /// name of one.
    pub fn is_in(self, groups: &[&str]) -> bool {
        groups.iter().any(|group| match *group {
            "everywhere" => true,
            "processes" => self != Self::Memory,
            "servers" | "own_server" => !matches!(self, Self::Memory | Self::File),
            name => name == self.name(),
        })
    }
}
