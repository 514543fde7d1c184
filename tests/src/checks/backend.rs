//! The stores, and which of them a check is for: what follows from the [table of stores](crate::stores).

use std::sync::Arc;

use crate::harness::{Server, Setup};

/// How a store is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is nothing but memory of a process: a name is enough.
    InProcess,
    /// It is a directory.
    Files,
    /// It has servers.
    Server,
}

/// The kind by the table's word.
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

/// The servers of a store, started, by the table's word for its kind; nothing where it has none.
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
        /// A store.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Backend {
            $(
                #[doc = concat!("`", stringify!($name), "://`")]
                $backend,
            )+
        }

        impl Backend {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$backend),+];

            /// What it is called in lists and URLs: `etcd`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$backend => stringify!($name),)+
                }
            }

            /// How it is set up.
            pub fn kind(self) -> Kind {
                match self {
                    $(Self::$backend => kind!($kind),)+
                }
            }

            /// Whether the gate has its checks; otherwise the soak has all of them.
            pub fn is_in_gate(self) -> bool {
                match self {
                    $(Self::$backend => stringify!($script) == "gate",)+
                }
            }

            /// Whether one script has all checks of it; otherwise the gate leaves some to the soak.
            pub fn has_all_at_once(self) -> bool {
                match self {
                    $(Self::$backend => stringify!($share) == "all",)+
                }
            }

            /// Whether building it needs nothing but Rust, so that every build has it.
            pub fn needs_only_rust(self) -> bool {
                let features: &[&str] = match self {
                    $(Self::$backend => &[$(stringify!($built))?],)+
                };
                features.is_empty()
            }

            /// Whether this build has it.
            pub fn is_built_in(self) -> bool {
                match self {
                    $(Self::$backend => true $(&& cfg!($built))?,)+
                }
            }

            /// Starts its servers; nothing where it has none.
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
    /// The store of this name, [`name`](Self::name).
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|backend| backend.name() == name)
    }

    /// All of them whose checks the gate has.
    pub fn in_gate() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|backend| backend.is_in_gate())
    }

    /// Whether it is nothing but memory of this process.
    pub fn is_in_process(self) -> bool {
        self.kind() == Kind::InProcess
    }

    /// Whether it has servers.
    pub fn has_servers(self) -> bool {
        self.kind() == Kind::Server
    }

    /// Whether it is in one of these groups of stores: `everywhere`; `processes`, which is all that processes
    /// can share; `in_process`, the others; `servers`, all that have one; `own_server`, the same with a server for
    /// nobody else; `no_server`, the others; or the name of one.
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

/// A store in a setting in which all its checks are to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// The store.
    pub backend: Backend,
    /// The setting, in the store's own word; empty: nothing is particular.
    pub word: &'static str,
}

const NAMED: &str = "named";

macro_rules! settings {
    ($($(#[$doc:meta])+
        $name:ident $setting:ident $backend:ident $word:literal $kind:ident $(if $built:meta)?;)+) => {
        /// Every store, and every store in a setting, by its name in the tables.
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
    /// Starts its servers; nothing where it has none.
    pub fn set_up(self) -> Option<Arc<dyn Server>> {
        // It is a setting of what leads to them.
        let word = if self.is_named() { "" } else { self.word };
        self.backend.set_up(&Setup::in_setting(word))
    }

    /// Whether its servers go by a name of which an address is silent.
    pub(crate) fn is_named(self) -> bool {
        self.word == NAMED
    }
}
