//! URL scheme → backend: the only list of them.

use std::fmt;
use std::sync::Arc;

use super::Backend;
#[cfg(feature = "consul")]
use super::consul;
#[cfg(feature = "etcd")]
use super::etcd;
#[cfg(feature = "file")]
use super::file;
#[cfg(feature = "memory")]
use super::memory;
#[cfg(feature = "redis")]
use super::redis;
#[cfg(feature = "zookeeper")]
use super::zookeeper;
use crate::config::{COMMON_OPTIONS, Config, Settings};
use crate::error::{Error, ErrorKind, Result};
use crate::url::Url;

/// Every scheme there is: its aliases, and the cargo feature that brings it.
const SCHEMES: [(&str, &[&str], bool); 6] = [
    ("memory", &["memory"], cfg!(feature = "memory")),
    ("file", &["file"], cfg!(feature = "file")),
    ("etcd", &["etcd", "etcds", "etcd3+http", "etcd3+https"], cfg!(feature = "etcd")),
    (
        "zookeeper",
        &["zookeeper", "zk", "kazoo", "zookeeper+tls", "zk+tls", "kazoo+tls"],
        cfg!(feature = "zookeeper"),
    ),
    ("consul", &["consul", "consul+https"], cfg!(feature = "consul")),
    ("redis", &["redis", "rediss", "redis+unix", "unix"], cfg!(feature = "redis")),
];

/// How a simulation connects the client that is running, if there is one.
#[cfg(all(coordination_internals, feature = "memory"))]
type Connect = fn() -> Option<Arc<dyn Backend>>;

#[cfg(all(coordination_internals, feature = "memory"))]
static SIMULATED: std::sync::OnceLock<Connect> = std::sync::OnceLock::new();

/// Makes `simulation://` a store of this process.
#[cfg(all(coordination_internals, feature = "memory"))]
pub(crate) fn offer_simulated(connect: Connect) {
    SIMULATED.get_or_init(|| connect);
}

#[cfg(all(coordination_internals, feature = "memory"))]
fn simulated(scheme: &str) -> Option<Arc<dyn Backend>> {
    (scheme == "simulation").then(|| SIMULATED.get()?()).flatten()
}

/// A store that a URL names, with everything checked that can be without asking it.
pub(crate) struct Target {
    shown: String,
    kind: Kind,
}

enum Kind {
    #[cfg(all(coordination_internals, feature = "memory"))]
    Simulated(Arc<dyn Backend>),
    #[cfg(feature = "memory")]
    Memory(memory::Config),
    #[cfg(feature = "file")]
    File(file::Config),
    #[cfg(feature = "etcd")]
    Etcd(etcd::Config),
    #[cfg(feature = "redis")]
    Redis(redis::Config),
    #[cfg(feature = "consul")]
    Consul(consul::Config),
    #[cfg(feature = "zookeeper")]
    Zookeeper(zookeeper::Config),
}

impl Target {
    /// Reads a URL and the settings that go with it.
    pub(crate) fn parse(url: &str, config: Config) -> Result<(Self, Settings)> {
        let mut url = Url::parse(url)?;
        let shown = url.to_string();
        let (kind, settings) = parse_kind(&mut url, config)?;
        Ok((Self { shown, kind }, settings))
    }

    /// Whether the store is nothing but memory of this process.
    pub(crate) fn is_in_process(&self) -> bool {
        match &self.kind {
            #[cfg(feature = "memory")]
            Kind::Memory(_) => true,
            #[cfg(all(coordination_internals, feature = "memory"))]
            Kind::Simulated(_) => true,
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// Connects, on the runtime on which the session will live.
    pub(crate) async fn connect(self, settings: &Settings) -> Result<Arc<dyn Backend>> {
        let _ = settings;
        match self.kind {
            #[cfg(all(coordination_internals, feature = "memory"))]
            Kind::Simulated(backend) => Ok(backend),
            #[cfg(feature = "memory")]
            Kind::Memory(config) => Ok(Arc::new(memory::Memory::new(&config, settings))),
            #[cfg(feature = "file")]
            Kind::File(config) => Ok(Arc::new(file::FileStore::open(&config, settings)?)),
            #[cfg(feature = "etcd")]
            Kind::Etcd(config) => Ok(Arc::new(etcd::Etcd::connect(config, settings).await?)),
            #[cfg(feature = "redis")]
            Kind::Redis(config) => Ok(Arc::new(redis::Redis::connect(config, settings).await?)),
            #[cfg(feature = "consul")]
            Kind::Consul(config) => Ok(Arc::new(consul::Consul::connect(config, settings).await?)),
            #[cfg(feature = "zookeeper")]
            Kind::Zookeeper(config) => {
                Ok(Arc::new(zookeeper::Zookeeper::connect(config, settings).await?))
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

fn parse_kind(url: &mut Url, config: Config) -> Result<(Kind, Settings)> {
    let scheme = url.scheme.clone();
    #[cfg(all(coordination_internals, feature = "memory"))]
    if let Some(backend) = simulated(&scheme) {
        let settings = Settings::resolve(config, url, None)?;
        return Ok((Kind::Simulated(backend), settings));
    }
    let Some((name, _, _)) =
        SCHEMES.iter().find(|(_, aliases, _)| aliases.contains(&scheme.as_str()))
    else {
        let known: Vec<_> =
            SCHEMES.iter().flat_map(|(_, aliases, _)| aliases.iter().copied()).collect();
        return Err(Error::config(format!(
            "unknown scheme {scheme:?}; known are {}",
            known.join(", ")
        )));
    };
    let parsed: (Kind, Settings, &[&str]) = match *name {
        #[cfg(feature = "memory")]
        "memory" => {
            let settings = Settings::resolve(config, url, None)?;
            (Kind::Memory(memory::Config::parse(url)?), settings, memory::OPTIONS)
        }
        #[cfg(feature = "file")]
        "file" => {
            let settings = Settings::resolve(config, url, None)?;
            (Kind::File(file::Config::parse(url)?), settings, file::OPTIONS)
        }
        #[cfg(feature = "etcd")]
        "etcd" => {
            let settings = Settings::resolve(config, url, etcd::Config::namespace(url))?;
            (Kind::Etcd(etcd::Config::parse(url)?), settings, etcd::OPTIONS)
        }
        #[cfg(feature = "redis")]
        "redis" => {
            let settings = Settings::resolve(config, url, None)?;
            (Kind::Redis(redis::Config::parse(url)?), settings, redis::OPTIONS)
        }
        #[cfg(feature = "consul")]
        "consul" => {
            let settings = Settings::resolve(config, url, consul::Config::namespace(url))?;
            (Kind::Consul(consul::Config::parse(url)?), settings, consul::OPTIONS)
        }
        #[cfg(feature = "zookeeper")]
        "zookeeper" => {
            let settings = Settings::resolve(config, url, zookeeper::Config::namespace(url))?;
            (Kind::Zookeeper(zookeeper::Config::parse(url)?), settings, zookeeper::OPTIONS)
        }
        feature => {
            let message = format!(
                "this build has no {scheme}://; turn on the cargo feature `{feature}` of coordination"
            );
            return Err(Error::new(ErrorKind::Unsupported, "configure", message));
        }
    };
    let (kind, settings, own_options) = parsed;
    url.finish(&[&COMMON_OPTIONS, own_options].concat())?;
    Ok((kind, settings))
}
