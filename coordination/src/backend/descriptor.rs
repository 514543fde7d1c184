//! What is known of a store before connecting to it. Each store has one descriptor, and the [registry](super::registry) lists all
//! of them.

use std::sync::Arc;

use async_trait::async_trait;

use super::Store;
use crate::characteristics::LossDetection;
use crate::config::Settings;
use crate::error::Result;
use crate::url::{Authority, Url, UrlOption};

/// What is known of a store before connecting to it.
pub(crate) struct Descriptor {
    /// The store's name, for errors and logs.
    pub(crate) name: &'static str,
    /// The options beyond the common ones, in the order in which errors list them.
    pub(crate) options: &'static [UrlOption],
    /// What the store's URLs have between `://` and the path: hosts, for instance.
    pub(crate) authority: Authority,
    /// The namespace that a URL names elsewhere than in the option `namespace`: in its path, for instance.
    pub(crate) namespace: fn(&Url) -> Option<String>,
    /// How a holder finds out that another client removed its entry, or ended its session.
    pub(crate) loss_detection: LossDetection,
    /// Whether the store exists in the memory of this process only.
    pub(crate) is_in_process: bool,
    /// Takes the store's own options out of the URL, and checks all that can be checked without asking the store.
    pub(crate) parse: fn(&mut Url) -> Result<Box<dyn Connect>>,
}

/// A parsed URL of one store, with which to connect.
#[async_trait]
pub(crate) trait Connect: Send + Sync {
    /// Connects, on the runtime on which the session will live.
    async fn connect(self: Box<Self>, settings: &Settings) -> Result<Arc<dyn Store>>;
}
