//! The stores, and which of them a check is for.

use std::sync::Arc;

use crate::harness::{Consul, Etcd, Mysql, Postgres, Redis, Server, Setup, Zookeeper};

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
    /// `postgres://`
    Postgres,
    /// `mysql://`, whose checks are in the soak only: not every machine can have its server.
    Mysql,
}

/// All of them whose checks the gate has, in the order of the README's tables.
pub const BACKENDS: &[Backend] = &[
    Backend::Memory,
    Backend::File,
    Backend::Etcd,
    Backend::Zookeeper,
    Backend::Consul,
    Backend::Redis,
    Backend::Postgres,
];

/// A store in a setting in which all its checks are to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The store.
    pub backend: Backend,
    /// The setting, in the store's own word; empty: nothing is particular.
    pub setting: &'static str,
}

const NAMED: &str = "named";

impl From<Backend> for Place {
    fn from(backend: Backend) -> Self {
        Self { backend, setting: "" }
    }
}

impl Place {
    /// etcd with users whose tokens end soon.
    pub const ETCD_TOKENS: Self = Self { backend: Backend::Etcd, setting: "tokens" };
    /// etcd with users whose rights change all the time.
    pub const ETCD_JWT: Self = Self { backend: Backend::Etcd, setting: "jwt" };
    /// etcd behind a `grpc-proxy`.
    pub const ETCD_PROXY: Self = Self { backend: Backend::Etcd, setting: "proxy" };

    /// Files, and 64 descriptors for the process.
    pub const FILE_FEW_DESCRIPTORS: Self =
        Self { backend: Backend::File, setting: "few-descriptors" };
    /// Files, while 24 threads connect and stop all the time.
    pub const FILE_CONNECTING: Self = Self { backend: Backend::File, setting: "connecting" };
    /// Redis under three Sentinels, with a master that does nothing without its replica.
    pub const REDIS_SENTINELS: Self = Self { backend: Backend::Redis, setting: "sentinels" };
    /// Redis in a cluster of three masters, between which slots move each second.
    pub const REDIS_CLUSTER: Self = Self { backend: Backend::Redis, setting: "cluster" };

    /// etcd under a name whose first address is silent.
    pub const ETCD_NAMED: Self = Self { backend: Backend::Etcd, setting: NAMED };
    /// ZooKeeper under a name whose first address is silent.
    pub const ZOOKEEPER_NAMED: Self = Self { backend: Backend::Zookeeper, setting: NAMED };
    /// Consul under a name whose first address is silent.
    pub const CONSUL_NAMED: Self = Self { backend: Backend::Consul, setting: NAMED };
    /// Redis under a name whose first address is silent.
    pub const REDIS_NAMED: Self = Self { backend: Backend::Redis, setting: NAMED };

    /// Starts its servers; nothing where it has none.
    pub fn set_up(self) -> Option<Arc<dyn Server>> {
        // It is a setting of what leads to them.
        let setting = if self.is_named() { "" } else { self.setting };
        self.backend.set_up(&Setup::in_setting(setting))
    }

    /// Whether its servers go by a name of which an address is silent.
    pub(crate) fn is_named(self) -> bool {
        self.setting == NAMED
    }
}

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
        $($to)+! { @store $args etcd Etcd most server }
        #[cfg(feature = "zookeeper")]
        $($to)+! { @store $args zookeeper Zookeeper most server }
        #[cfg(feature = "consul")]
        $($to)+! { @store $args consul Consul most server }
        #[cfg(feature = "redis")]
        $($to)+! { @store $args redis Redis all server }
        #[cfg(feature = "postgres")]
        $($to)+! { @store $args postgres Postgres most server }
    };
}

/// The same for each store whose server is optional, and for whose checks the soak has parts of their own; each has
/// everything.
#[macro_export]
macro_rules! optional_stores {
    ([$($to:tt)+] $args:tt) => {
        #[cfg(feature = "mysql")]
        $($to)+! { @store $args mysql Mysql all server }
    };
}

/// The same for each setting of a store that is built in; each has everything.
#[macro_export]
macro_rules! settings {
    ([$($to:tt)+] $args:tt) => {
        $($to)+! { @store $args file_few_descriptors FILE_FEW_DESCRIPTORS all file }
        $($to)+! { @store $args file_connecting FILE_CONNECTING all file }
        #[cfg(feature = "etcd")]
        $($to)+! { @store $args etcd_tokens ETCD_TOKENS all server }
        #[cfg(feature = "etcd")]
        $($to)+! { @store $args etcd_jwt ETCD_JWT all server }
        #[cfg(feature = "etcd")]
        $($to)+! { @store $args etcd_proxy ETCD_PROXY all server }
        #[cfg(feature = "redis")]
        $($to)+! { @store $args redis_sentinels REDIS_SENTINELS all server }
        #[cfg(feature = "redis")]
        $($to)+! { @store $args redis_cluster REDIS_CLUSTER all server }
        #[cfg(feature = "etcd")]
        $($to)+! { @store $args etcd_named ETCD_NAMED all server }
        #[cfg(feature = "zookeeper")]
        $($to)+! { @store $args zookeeper_named ZOOKEEPER_NAMED all server }
        #[cfg(feature = "consul")]
        $($to)+! { @store $args consul_named CONSUL_NAMED all server }
        #[cfg(feature = "redis")]
        $($to)+! { @store $args redis_named REDIS_NAMED all server }
    };
}

/// A store, or a store in a setting, by its name: a `Backend` or a `Place`.
#[macro_export]
macro_rules! place {
    (ETCD_TOKENS) => {
        $crate::checks::Place::ETCD_TOKENS
    };
    (ETCD_JWT) => {
        $crate::checks::Place::ETCD_JWT
    };
    (ETCD_PROXY) => {
        $crate::checks::Place::ETCD_PROXY
    };
    (FILE_FEW_DESCRIPTORS) => {
        $crate::checks::Place::FILE_FEW_DESCRIPTORS
    };
    (FILE_CONNECTING) => {
        $crate::checks::Place::FILE_CONNECTING
    };
    (REDIS_SENTINELS) => {
        $crate::checks::Place::REDIS_SENTINELS
    };
    (REDIS_CLUSTER) => {
        $crate::checks::Place::REDIS_CLUSTER
    };
    (ETCD_NAMED) => {
        $crate::checks::Place::ETCD_NAMED
    };
    (ZOOKEEPER_NAMED) => {
        $crate::checks::Place::ZOOKEEPER_NAMED
    };
    (CONSUL_NAMED) => {
        $crate::checks::Place::CONSUL_NAMED
    };
    (REDIS_NAMED) => {
        $crate::checks::Place::REDIS_NAMED
    };
    ($backend:ident) => {
        $crate::checks::Backend::$backend
    };
}

/// Makes tests on several stores of functions that take a [`Backend`]: `each_store!(servers a b)`, or
/// `processes` for all that processes can share. Each store has a module of its own. With `alone` before the group
/// nothing else runs beside such a test, which leaves others no time.
#[macro_export]
macro_rules! each_store {
    (@store [$judge:ident $group:ident $($test:ident)+] $module:ident $backend:ident $share:ident memory) => {};
    (@store [$judge:ident servers $($test:ident)+] $module:ident $backend:ident $share:ident file) => {};
    (@store [$judge:ident $group:ident $($test:ident)+] $module:ident $backend:ident $share:ident $kind:ident) => {
        mod $module {
            $(
                #[test]
                fn $test() {
                    $crate::harness::$judge(|| super::$test($crate::checks::Backend::$backend));
                }
            )+
        }
    };
    (alone $group:ident $($test:ident)+) => {
        $crate::each_store! { @judged judged_alone $group $($test)+ }
    };
    (@judged $judge:ident $group:ident $($test:ident)+) => {
        // Used, also where no such store is built in.
        const _: &[fn($crate::checks::Backend)] = &[$($test),+];
        $crate::stores! { [$crate::each_store] [$judge $group $($test)+] }
    };
    ($group:ident $($test:ident)+) => {
        $crate::each_store! { @judged judged $group $($test)+ }
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
            Self::Postgres => Arc::new(Postgres::set_up(setup)),
            Self::Mysql => Arc::new(Mysql::set_up(setup)),
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
