//! From settings to a coordinator: what collects them in code, and what a [`Config`] can do that was read from a file.

use std::time::Duration;

use crate::backend::registry;
use crate::characteristics::LossDetection;
use crate::config::Config;
use crate::coordinator::Coordinator;
use crate::error::Result;

impl Coordinator {
    /// A builder for settings that are not in the URL.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// use std::time::Duration;
    ///
    /// let coordinator = coordination::Coordinator::builder()
    ///     .member_id("host-1")
    ///     .prefix("manila-")
    ///     .ttl(Duration::from_secs(30))
    ///     .connect("memory://")
    ///     .await?;
    /// assert_eq!(coordinator.member_id(), "manila-host-1");
    /// assert_eq!(coordinator.lock("share-1")?.name(), "manila-share-1");
    /// # Ok(()) }
    /// ```
    pub fn builder() -> Builder {
        Builder::default()
    }
}

/// Collects settings for [`Coordinator::builder`]. Each method sets the [`Config`] field of its name.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use coordination::{Config, Coordinator};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// let coordinator = Coordinator::builder()
///     .member_id("host-1")
///     .ttl(Duration::from_secs(15))
///     .heartbeat(Duration::from_secs(3))
///     .connect("memory://")
///     .await?;
/// assert_eq!(coordinator.member_id(), "host-1");
///
/// // It can also begin with what a service has read from its configuration.
/// let config: Config = serde_json::from_str(r#"{"prefix": "app-"}"#).expect("it can be read");
/// let coordinator = coordination::Builder::from(config).connect("memory://").await?;
/// assert_eq!(coordinator.lock("vol-7")?.name(), "app-vol-7");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Builder(Config);

impl Builder {
    /// Sets [`Config::member_id`].
    pub fn member_id(mut self, id: impl Into<String>) -> Self {
        self.0.member_id = Some(id.into());
        self
    }

    /// Sets [`Config::prefix`].
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.0.prefix = prefix.into();
        self
    }

    /// Sets [`Config::namespace`].
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.0.namespace = Some(namespace.into());
        self
    }

    /// Sets [`Config::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.0.ttl = Some(ttl);
        self
    }

    /// Sets [`Config::heartbeat`].
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.0.heartbeat = Some(interval);
        self
    }

    /// Sets [`Config::initial_reconnect_backoff`].
    pub fn initial_reconnect_backoff(mut self, delay: Duration) -> Self {
        self.0.initial_reconnect_backoff = Some(delay);
        self
    }

    /// Sets [`Config::max_reconnect_backoff`].
    pub fn max_reconnect_backoff(mut self, delay: Duration) -> Self {
        self.0.max_reconnect_backoff = Some(delay);
        self
    }

    /// Sets [`Config::long_wait`].
    pub fn long_wait(mut self, limit: Duration) -> Self {
        self.0.long_wait = Some(limit);
        self
    }

    /// Adds to [`Config::require`].
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{Coordinator, ErrorKind};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// let needing = Coordinator::builder().require("fifo").require("hosts");
    /// let error = needing.connect("memory://").await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Unsupported, "it does not reach other hosts");
    /// # Ok(()) }
    /// ```
    pub fn require(mut self, characteristic: impl Into<String>) -> Self {
        self.0.require.push(characteristic.into());
        self
    }

    /// Sets [`Config::max_name_bytes`].
    pub fn max_name_bytes(mut self, max: usize) -> Self {
        self.0.max_name_bytes = Some(max);
        self
    }

    /// Sets [`Config::heartbeat_on_current_runtime`].
    pub fn heartbeat_on_current_runtime(mut self, yes: bool) -> Self {
        self.0.heartbeat_on_current_runtime = yes;
        self
    }

    /// Connects; see [`Coordinator::connect`].
    ///
    /// # Errors
    ///
    /// Those of [`Coordinator::connect`].
    ///
    /// # Cancel safety
    ///
    /// That of [`Coordinator::connect`].
    pub async fn connect(self, url: &str) -> Result<Coordinator> {
        Coordinator::connect_with(url, self.0).await
    }
}

impl From<Config> for Builder {
    fn from(config: Config) -> Self {
        Self(config)
    }
}

impl From<Builder> for Config {
    fn from(builder: Builder) -> Self {
        builder.0
    }
}

impl Config {
    /// Connects to the store that `url` names.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) when `url` is not set; otherwise those of
    /// [`Coordinator::connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up connecting; if a session is opened after that, it is closed again.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::Config;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// // As a service reads it from its configuration.
    /// let config: Config = serde_json::from_str(r#"{"url": "memory://", "member_id": "host-1"}"#)
    ///     .expect("it can be read");
    /// assert_eq!(config.connect().await?.member_id(), "host-1");
    /// # Ok(()) }
    /// ```
    pub async fn connect(self) -> Result<Coordinator> {
        let url = self.named_url()?.to_owned();
        Coordinator::connect_with(&url, self).await
    }

    /// How the store that `url` names tells a holder that its lock was taken away: as
    /// [`Characteristics::loss_detection`](crate::Characteristics::loss_detection) of a coordinator that is connected to it.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Config`](crate::ErrorKind::Config): there is no URL, or it cannot be read.
    /// * [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): the scheme's feature is off.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{Config, LossDetection};
    ///
    /// let mut config = Config::default();
    /// config.url = Some("memory://".to_owned());
    /// assert_eq!(config.loss_detection()?, LossDetection::Heartbeat);
    /// # Ok::<_, coordination::Error>(())
    /// ```
    pub fn loss_detection(&self) -> Result<LossDetection> {
        registry::loss_detection(self.named_url()?)
    }
}
