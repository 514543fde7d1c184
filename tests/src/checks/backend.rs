//! The stores, and which of them a check is for.

use std::sync::Arc;

use crate::harness::{Consul, Etcd, Redis, Server, Setup, Zookeeper};

/// A store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backend {
    /// `memory://`
    Memory,
    /// `file://`
    File,
    /// `etcd://`
    Etcd,
    /// `zookeeper://`
    Zookeeper,
    /// `consul://`
    Consul,
    /// `redis://`
    Redis,
}

/// All of them, in the order of the README's tables.
pub const BACKENDS: &[Backend] = &[
    Backend::Memory,
    Backend::File,
    Backend::Etcd,
    Backend::Zookeeper,
    Backend::Consul,
    Backend::Redis,
];

/// Hands each store that is built in to a macro: `stores! { [MACRO] ARGS }` calls
/// `MACRO! { @store ARGS MODULE BACKEND SHARE KIND }`.
///
/// The share is how much of the [conformance](crate::conformance) checks the gate has: `all` or `most`. The kind is
/// `memory`, `file` or `server`.
#[macro_export]
macro_rules! stores {
    ([$($to:tt)+] $args:tt) => {
        $($to)+! { @store $args memory Memory all memory }
        $($to)+! { @store $args file File most file }
        #[cfg(feature = "etcd")]
        $($to)+! { @store $args etcd Etcd all server }
        #[cfg(feature = "zookeeper")]
        $($to)+! { @store $args zookeeper Zookeeper most server }
        #[cfg(feature = "consul")]
        $($to)+! { @store $args consul Consul most server }
        #[cfg(feature = "redis")]
        $($to)+! { @store $args redis Redis most server }
    };
}

/// Makes tests on several stores of functions that take a [`Backend`]: `each_store!(servers a b)`, or
/// `processes` for all that processes can share. Each store has a module of its own.
#[macro_export]
macro_rules! each_store {
    (@store [$group:ident $($test:ident)+] $module:ident $backend:ident $share:ident memory) => {};
    (@store [servers $($test:ident)+] $module:ident $backend:ident $share:ident file) => {};
    (@store [$group:ident $($test:ident)+] $module:ident $backend:ident $share:ident $kind:ident) => {
        mod $module {
            $(
                #[test]
                fn $test() {
                    $crate::harness::judged(|| super::$test($crate::checks::Backend::$backend));
                }
            )+
        }
    };
    ($group:ident $($test:ident)+) => {
        // Used, also where no such store is built in.
        const _: &[fn($crate::checks::Backend)] = &[$($test),+];
        $crate::stores! { [$crate::each_store] [$group $($test)+] }
    };
}

impl Backend {
    /// The store of this name, [`name`](Self::name).
    pub fn named(name: &str) -> Option<Self> {
        BACKENDS.iter().copied().find(|backend| backend.name() == name)
    }

    /// Starts its servers; nothing where it has none.
    pub fn set_up(self, setup: &Setup) -> Option<Arc<dyn Server>> {
        Some(match self {
            Self::Memory | Self::File => return None,
            Self::Etcd => Arc::new(Etcd::set_up(setup)),
            Self::Zookeeper => Arc::new(Zookeeper::set_up(setup)),
            Self::Consul => Arc::new(Consul::set_up(setup)),
            Self::Redis => Arc::new(Redis::set_up(setup)),
        })
    }

    /// What it is called in lists: `etcd`.
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Whether it is nothing but memory of this process.
    pub fn is_in_process(self) -> bool {
        self == Self::Memory
    }

    /// Whether it is in one of these groups of stores: `everywhere`; `processes`, which is all that processes
    /// can share; `in_process`, the others; `servers`, all that have one; `own_server`, the same with a server for
    /// nobody else; `no_server`, the others; or the name of one.
    pub fn is_in(self, groups: &[&str]) -> bool {
        groups.iter().any(|group| match *group {
            "everywhere" => true,
            "in_process" => self.is_in_process(),
            "processes" => !self.is_in_process(),
            "servers" | "own_server" => !self.is_in(&["no_server"]),
            "no_server" => self.is_in_process() || self == Self::File,
            name => name == self.name(),
        })
    }
}
