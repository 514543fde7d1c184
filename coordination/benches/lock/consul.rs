//! Consul, beside two plain requests, and beside its own way to wait for a key's session to end.

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use reqwest::{Client, Response};
use tempfile::TempDir;

use crate::Outcome;
use crate::server::{Locking, Server, Store, free_address};

const WANTED_SESSION: &str = r#"{"LockDelay":"0s","NodeChecks":[],"Checks":[]}"#;
const LONGEST_WAIT: &str = "30s";

pub(crate) struct Consul;

impl Store for Consul {
    const NAME: &'static str = "consul";
    const RIVAL: &'static str = "Consul's own, a blocking query and a PUT, which is not fair";
    const WANTED: (&'static str, &'static str) = ("at most 1.3 wanted", "at least 0.8 wanted");
    const REPEATS: u32 = 100;
    const FREE_AFTER: f64 = 20.0;

    async fn start(data: TempDir) -> Outcome<Server> {
        let http = free_address()?;
        let port = |address: &str| address.rsplit(':').next().unwrap_or_default().to_owned();
        let gossip = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        // All sessions that are measured come from one address: no setting of ours is to be their limit.
        let config = format!(
            r#"{{"server":true,"bootstrap_expect":1,"bind_addr":"127.0.0.1","node_name":"bench",
            "performance":{{"raft_multiplier":1}},"disable_update_check":true,
            "limits":{{"http_max_conns_per_client":30000}},"ports":{{"http":{},
            "server":{},"serf_lan":{gossip},"serf_wan":-1,"dns":-1,"grpc":-1}}}}"#,
            port(&http),
            port(&free_address()?),
        );
        let file = data.path().join("config.json");
        std::fs::write(&file, config)?;
        let mut command = Command::new("consul");
        command.arg("agent").arg("-config-file").arg(file);
        command.arg("-data-dir").arg(data.path().join("data"));
        let server = Server::spawn(&mut command, http, data)?;
        server.ready(async |address: &str| Key::new(address, "ready").await.is_ok()).await
    }

    async fn floor(address: &str, name: &str) -> Outcome<impl Locking> {
        Key::new(address, name).await.map(Floor)
    }

    async fn rival(address: &str) -> Outcome<impl Locking> {
        Key::new(address, "rival").await.map(Waiting)
    }
}

/// A key, and a session that may lock it.
struct Key {
    client: Client,
    url: String,
    session: String,
}

impl Key {
    async fn new(address: &str, name: &str) -> Outcome<Self> {
        let builder = Client::builder().no_proxy();
        // Without TLS there are no certificates to leave unread.
        #[cfg(feature = "_tls")]
        let builder = builder.tls_certs_only([]);
        let client = builder.build()?;
        let create = format!("http://{address}/v1/session/create");
        let created = client.put(create).body(WANTED_SESSION).send().await?;
        let created: serde_json::Value = serde_json::from_slice(&created.bytes().await?)?;
        let session = created["ID"].as_str().ok_or("no session")?.to_owned();
        Ok(Self { client, url: format!("http://{address}/v1/kv/{name}"), session })
    }

    /// Whether it was done.
    async fn put(&self, what: &str) -> Outcome<bool> {
        let url = format!("{}?{what}={}", self.url, self.session);
        let answer = self.client.put(url).body("owner").send().await?;
        Ok(answer.bytes().await?.starts_with(b"true"))
    }
}

/// A PUT each.
struct Floor(Key);

impl Locking for Floor {
    async fn acquire(&mut self) -> Outcome {
        self.0.put("acquire").await?.then_some(()).ok_or("the floor's lock is taken".into())
    }

    async fn release(&mut self) -> Outcome {
        self.0.put("release").await?.then_some(()).ok_or("the floor's lock was lost".into())
    }
}

/// A PUT, and where that is in vain a query until the key has no session.
struct Waiting(Key);

impl Waiting {
    /// The index, and whether somebody has it.
    async fn look(&self, query: &str) -> Outcome<(String, bool)> {
        let url = format!("{}?{query}", self.0.url);
        let answer: Response = self.0.client.get(url).send().await?;
        let index = answer.headers().get("X-Consul-Index").ok_or("no index")?.to_str()?.to_owned();
        let body = String::from_utf8_lossy(&answer.bytes().await?).into_owned();
        Ok((index, body.contains("\"Session\"")))
    }
}

impl Locking for Waiting {
    async fn acquire(&mut self) -> Outcome {
        while !self.0.put("acquire").await? {
            let (mut index, mut is_held) = self.look("consistent").await?;
            while is_held {
                let query = format!("index={index}&wait={LONGEST_WAIT}");
                let limit = Duration::from_secs(60);
                (index, is_held) = tokio::time::timeout(limit, self.look(&query)).await??;
            }
        }
        Ok(())
    }

    async fn release(&mut self) -> Outcome {
        self.0.put("release").await?.then_some(()).ok_or("the rival's lock was lost".into())
    }
}
