//! [`Backend`], the stores under test, and on which of them a check runs; generated from the [table of
//! stores](crate::stores).

use std::sync::Arc;

use crate::harness::{Server, Setup};

/// What it takes to set up a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The store is in the memory of one process, so it needs nothing but a name.
    InProcess,
    /// The store is a directory.
    Files,
    /// The store has servers.
    Server,
}

/// Translates a kind in the table to the [`Kind`].
macro_rules! kind {
    (in_process) => {
        Kind::InProcess
    };
    (files) => {
        Kind::Files
    };
    (server) => {
        Kind::Server
    };
}

/// Starts the servers of a store whose kind in the table is `server`; `None` for other kinds.
macro_rules! start {
    (server $backend:ident $setup:ident) => {
        Some(Arc::new(crate::harness::$backend::set_up($setup)))
    };
    ($kind:ident $backend:ident $setup:ident) => {
        None
    };
}

macro_rules! backends {
    ($($name:ident $backend:ident $share:ident $kind:ident $script:ident $(if $built:meta)?;)+) => {
        /// A store under test.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Backend {
            $(
                #[doc = concat!("`", stringify!($name), "://`")]
                $backend,
            )+
        }

        impl Backend {
            /// All stores of the table.
            pub const ALL: &[Self] = &[$(Self::$backend),+];

            /// The name in lists and URLs: `etcd`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$backend => stringify!($name),)+
                }
            }

            /// What it takes to set up the store.
            pub fn kind(self) -> Kind {
                match self {
                    $(Self::$backend => kind!($kind),)+
                }
            }

            /// Whether the gate runs checks of this store; otherwise the soak runs all of them.
            pub fn is_in_gate(self) -> bool {
                match self {
                    $(Self::$backend => stringify!($script) == "gate",)+
                }
            }

            /// Whether one script runs all checks of this store; otherwise the gate leaves some of them to the soak.
            pub fn has_all_at_once(self) -> bool {
                match self {
                    $(Self::$backend => stringify!($share) == "all",)+
                }
            }

            /// Whether the store needs no feature, so that every build has it.
            pub fn needs_only_rust(self) -> bool {
                let features: &[&str] = match self {
                    $(Self::$backend => &[$(stringify!($built))?],)+
                };
                features.is_empty()
            }

            /// Whether this build has the store.
            pub fn is_built_in(self) -> bool {
                match self {
                    $(Self::$backend => true $(&& cfg!($built))?,)+
                }
            }

            /// Starts the store's servers; `None` if it has none.
            pub fn set_up(self, setup: &Setup) -> Option<Arc<dyn Server>> {
                match self {
                    $(Self::$backend => start!($kind $backend setup),)+
                }
            }
        }
    };
}

crate::store_table! { [backends] [] }

impl Backend {
    /// The store with this [`name`](Self::name).
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|backend| backend.name() == name)
    }

    /// All stores whose checks the gate runs.
    pub fn in_gate() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|backend| backend.is_in_gate())
    }

    /// Whether the store is only memory of this process.
    pub fn is_in_process(self) -> bool {
        self.kind() == Kind::InProcess
    }

    /// Whether the store has servers.
    pub fn has_servers(self) -> bool {
        self.kind() == Kind::Server
    }

    /// Whether the store is in one of these groups: `everywhere`; `processes`, the stores that processes can share;
    /// `in_process`, the others; `servers`, the stores with a server; `own_server`, the same stores, but the check gets
    /// a server that no other check uses; `no_server`, the stores without one; or the name of a store.
    pub fn is_in(self, groups: &[&str]) -> bool {
        groups.iter().any(|group| match *group {
            "everywhere" => true,
            "in_process" => self.is_in_process(),
            "processes" => !self.is_in_process(),
            "servers" | "own_server" => self.has_servers(),
            "no_server" => !self.has_servers(),
            name => name == self.name(),
        })
    }
}

/// A store with its servers configured in a certain way, a *setting*, in which all checks of the store have to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// The store.
    pub backend: Backend,
    /// The name that the store's harness gives to the setting; empty for the usual configuration.
    pub word: &'static str,
}

const NAMED: &str = "named";

macro_rules! settings {
    ($($(#[$doc:meta])+
        $name:ident $setting:ident $backend:ident $word:literal $kind:ident $in:ident $(if $built:meta)?;)+) => {
        /// Each store, and each setting of a store, as a constant, by its name in the tables.
        pub mod settings {
            use super::Setting;

            pub use super::Backend::*;

            $(
                $(#[$doc])+
                pub const $setting: Setting = Setting { backend: $backend, word: $word };
            )+
        }
    };
}

crate::setting_table! { [settings] [] }

impl From<Backend> for Setting {
    fn from(backend: Backend) -> Self {
        Self { backend, word: "" }
    }
}

impl Setting {
    /// Starts the store's servers; `None` if it has none.
    pub fn set_up(self) -> Option<Arc<dyn Server>> {
        // `named` is no setting of the servers, but of the host name by which clients reach them.
        let word = if self.is_named() { "" } else { self.word };
        self.backend.set_up(&Setup::in_setting(word))
    }

    /// Whether clients reach the servers by a host name with an address that does not answer.
    pub(crate) fn is_named(self) -> bool {
        self.word == NAMED
    }
}
