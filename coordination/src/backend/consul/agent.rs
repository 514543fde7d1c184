//! What an agent says about its own configuration.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::client::Connections;
use super::request::Request;
use crate::error::Result;

/// Consul's default for `session_ttl_min`.
const DEFAULT_MIN_TTL: Duration = Duration::from_secs(10);

/// The part of an agent's configuration that the store's characteristics need: whether the agent keeps its data only in memory
/// (`-dev`), and the shortest lease that it grants. `None`: the agent does not say it, or the token may not read the
/// configuration.
#[derive(Debug, Default)]
pub(super) struct Agent {
    pub(super) is_in_memory: Option<bool>,
    pub(super) min_ttl: Option<Duration>,
}

impl Agent {
    /// Connects, and reads the agent's configuration.
    pub(super) async fn greet(connections: &Arc<Connections>) -> Result<Self> {
        connections.greet(|pool| async move { pool.leader().await }).await?;
        let answer = connections.send_urgently("connect", Request::get("agent/self")).await?;
        // The token may lack the right to read the configuration. That is no reason not to connect.
        match answer.status {
            200 => Ok(Self::read(&answer.body)),
            _ => Ok(Self::default()),
        }
    }

    pub(super) fn read(body: &[u8]) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "PascalCase")]
        struct Told {
            dev_mode: Option<bool>,
            #[serde(rename = "SessionTTLMin")]
            session_ttl_min: Option<String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Said {
            debug_config: Option<Told>,
        }
        let said = serde_json::from_slice::<Said>(body).ok().and_then(|said| said.debug_config);
        let Told { dev_mode, session_ttl_min } = said.unwrap_or_default();
        let min_ttl = session_ttl_min.and_then(|text| crate::duration::parse(&text).ok());
        // If the agent has Consul's default, the answer has 0 as `session_ttl_min`.
        let min_ttl = min_ttl.filter(|ttl| !ttl.is_zero()).or(dev_mode.map(|_| DEFAULT_MIN_TTL));
        Self { is_in_memory: dev_mode, min_ttl }
    }
}
