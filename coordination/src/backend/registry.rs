//! The list of all stores, and how the store that a URL names is found in this list.

use std::fmt;
use std::sync::Arc;

use super::Store;
use super::descriptor::{Connect, Descriptor};
use crate::characteristics::LossDetection;
use crate::config::{Config, Settings};
use crate::error::{Error, ErrorKind, Result};
use crate::url::{Authority, COMMON_OPTIONS, Url};

/// Makes the list of stores. Each line has the store's cargo feature, its module, which that feature turns on, and the schemes of
/// its URLs. A build without the feature knows the schemes too, so that an error can say which feature to turn on.
macro_rules! stores {
    ($($feature:literal $module:ident [$($scheme:literal),+];)+) => {
        const STORES: &[Listed] = &[$(Listed {
            feature: $feature,
            schemes: &[$($scheme),+],
            descriptor: {
                #[cfg(feature = $feature)]
                {
                    Some(&super::$module::DESCRIPTOR)
                }
                #[cfg(not(feature = $feature))]
                {
                    None
                }
            },
        }),+];
    };
}

stores! {
    "memory" memory ["memory"];
    "file" file ["file"];
    "etcd" etcd ["etcd", "etcds", "etcd3+http", "etcd3+https"];
    "zookeeper" zookeeper ["zookeeper", "zk", "kazoo", "zookeeper+tls", "zk+tls", "kazoo+tls"];
    "consul" consul ["consul", "consul+https"];
    "redis" redis ["redis", "rediss", "redis+unix", "unix"];
    "postgres" postgres ["postgres", "postgresql"];
    "mysql" mysql ["mysql", "mariadb"];
}

struct Listed {
    feature: &'static str,
    schemes: &'static [&'static str],
    /// The store's descriptor; `None`: the store's feature is off in this build.
    descriptor: Option<&'static Descriptor>,
}

/// The descriptor of the store that simulations use; empty until a simulation has begun in this process.
#[cfg(all(coordination_internals, feature = "memory"))]
static SIMULATED: std::sync::OnceLock<&'static Descriptor> = std::sync::OnceLock::new();

/// Sets the descriptor of a simulation's store, so that [`descriptor`] finds it. The scheme of its URLs is the name in the
/// descriptor.
#[cfg(all(coordination_internals, feature = "memory"))]
pub(crate) fn offer_simulated(descriptor: &'static Descriptor) {
    SIMULATED.get_or_init(|| descriptor);
}

/// The store that a URL names, with its parsed configuration. Everything was checked that can be checked without a connection.
pub(crate) struct Target {
    shown: String,
    descriptor: &'static Descriptor,
    connect: Box<dyn Connect>,
}

impl Target {
    /// Parses a URL, and combines its options with `config` into the settings.
    pub(crate) fn parse(url: &str, config: Config) -> Result<(Self, Settings)> {
        let (mut url, descriptor) = read(url)?;
        let shown = url.shown(descriptor.options).to_string();
        let path_namespace = (descriptor.namespace)(&url);
        let settings = Settings::resolve(config, &mut url, path_namespace)?;
        let connect = (descriptor.parse)(&mut url)?;
        url.finish(COMMON_OPTIONS.iter().chain(descriptor.options))?;
        Ok((Self { shown, descriptor, connect }, settings))
    }

    /// Whether the store exists only in the memory of this process.
    pub(crate) fn is_in_process(&self) -> bool {
        self.descriptor.is_in_process
    }

    /// Connects to the store. To be called on the runtime on which the session will live.
    pub(crate) async fn connect(self, settings: &Settings) -> Result<Arc<dyn Store>> {
        self.connect.connect(settings).await
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// How a holder finds out about a loss, on the store that this URL names.
pub(crate) fn loss_detection(url: &str) -> Result<LossDetection> {
    Ok(read(url)?.1.loss_detection)
}

/// Parses a URL according to its store, and finds that store's descriptor.
fn read(url: &str) -> Result<(Url, &'static Descriptor)> {
    let descriptor = descriptor(&Url::scheme(url)?);
    // If the URL has a mistake, this function returns that error first. An unknown scheme, or one whose feature is off, is returned
    // as the error only if the rest of the URL is correct.
    let authority = descriptor.as_ref().map_or(Authority::Hosts, |store| store.authority);
    Ok((Url::parse(url, authority)?, descriptor?))
}

/// The descriptor of the store with this scheme. Fails if the scheme is unknown, or if the store's feature is off in this build.
fn descriptor(scheme: &str) -> Result<&'static Descriptor> {
    #[cfg(all(coordination_internals, feature = "memory"))]
    if let Some(simulated) = SIMULATED.get().filter(|simulated| simulated.name == scheme) {
        return Ok(simulated);
    }
    let Some(listed) = STORES.iter().find(|listed| listed.schemes.contains(&scheme)) else {
        let known: Vec<_> = STORES.iter().flat_map(|listed| listed.schemes).copied().collect();
        return Err(Error::config(format!(
            "unknown scheme {scheme:?}; known are {}",
            known.join(", ")
        )));
    };
    listed.descriptor.ok_or_else(|| {
        let feature = listed.feature;
        let message = format!(
            "this build has no {scheme}://; turn on the cargo feature `{feature}` of coordination"
        );
        Error::new(ErrorKind::Unsupported, "configure", message)
    })
}
