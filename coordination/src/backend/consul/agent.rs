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
/// (`-dev`), and the shortest lease that it grants; and its version. `None`: the agent does not say it, or the token may not read the
/// configuration.
#[derive(Debug, Default)]
pub(super) struct Agent {
    pub(super) is_in_memory: Option<bool>,
    pub(super) min_ttl: Option<Duration>,
    pub(super) version: Option<String>,
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
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "PascalCase")]
        struct Known {
            version: Option<String>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "PascalCase")]
        struct Said {
            debug_config: Option<Told>,
            config: Option<Known>,
        }
        let Said { debug_config, config } = serde_json::from_slice(body).unwrap_or_default();
        let Told { dev_mode, session_ttl_min } = debug_config.unwrap_or_default();
        let min_ttl = session_ttl_min.and_then(|text| crate::duration::parse(&text).ok());
        // If the agent has Consul's default, the answer has 0 as `session_ttl_min`.
        let min_ttl = min_ttl.filter(|ttl| !ttl.is_zero()).or(dev_mode.map(|_| DEFAULT_MIN_TTL));
        Self { is_in_memory: dev_mode, min_ttl, version: config.unwrap_or_default().version }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_says_is_read_and_the_rest_is_unknown() {
        let body = br#"{"Config": {"Datacenter": "dc1", "Version": "1.15.2"},
            "DebugConfig": {"DevMode": true, "SessionTTLMin": "2s"}}"#;
        let agent = Agent::read(body);
        assert_eq!((agent.version.as_deref(), agent.is_in_memory), (Some("1.15.2"), Some(true)));
        assert_eq!(agent.min_ttl, Some(Duration::from_secs(2)));
        for body in ["", "[]", "{}", r#"{"Config": null}"#] {
            let agent = Agent::read(body.as_bytes());
            assert_eq!((agent.version, agent.is_in_memory, agent.min_ttl), (None, None, None));
        }
    }
}
