//! What the library knows of a store before it connects to it. Each store has one descriptor, and the [registry](super::registry)
//! lists all descriptors.

use std::sync::Arc;

use async_trait::async_trait;

use super::Store;
use crate::characteristics::LossDetection;
use crate::config::Settings;
use crate::error::Result;
use crate::url::{Authority, Url, UrlOption};

/// What the library knows of a store before it connects to it.
pub(crate) struct Descriptor {
    /// The store's name, for errors and logs.
    pub(crate) name: &'static str,
    /// The store's own options in URLs, besides those that all stores have. Error messages list them in this order.
    pub(crate) options: &'static [UrlOption],
    /// What the store's URLs have between `://` and the path: hosts, for instance. The parser of URLs needs this.
    pub(crate) authority: Authority,
    /// Returns the namespace, if the URL has it elsewhere than in the option `namespace`: in its path, for instance.
    pub(crate) namespace: fn(&Url) -> Option<String>,
    /// How a holder finds out that another client has removed its entry or ended its session.
    pub(crate) loss_detection: LossDetection,
    /// Whether the store exists only in the memory of this process.
    pub(crate) is_in_process: bool,
    /// Takes the store's own options out of the URL, and checks everything that can be checked without a connection.
    pub(crate) parse: fn(&mut Url) -> Result<Box<dyn Connect>>,
}

/// The parsed configuration from a URL of one store, with which the library connects.
#[async_trait]
pub(crate) trait Connect: Send + Sync {
    /// Connects to the store. To be called on the runtime on which the session will live.
    async fn connect(self: Box<Self>, settings: &Settings) -> Result<Arc<dyn Store>>;
}
