//! etcd, beside a transaction and a delete, and beside its own lock service.

use std::process::Command;

use etcd_client::{Client, Compare, CompareOp, LockOptions, PutOptions, Txn, TxnOp};
use tempfile::TempDir;

use crate::Outcome;
use crate::server::{Locking, Server, Store, free_address, said};
use crate::work::{Plain, Requests};

pub(crate) struct Etcd;

impl Store for Etcd {
    const NAME: &'static str = "etcd";
    const RIVAL: &'static str = "etcd's lock service";
    const WANTED: (&'static str, &'static str) =
        ("at most 1.25 wanted", "at least 400 a second wanted");
    const PEER: Option<&'static str> = Some("etcd-client lock()");
    const REPEATS: u32 = 200;
    const FREE_AFTER: f64 = 11.0;

    async fn start(data: TempDir) -> Outcome<Server> {
        let [client, peer] = [free_address()?, free_address()?];
        let [client_url, peer_url] = [format!("http://{client}"), format!("http://{peer}")];
        let mut command = Command::new("etcd");
        command
            .arg("--data-dir")
            .arg(data.path().join("data"))
            .args(["--log-level", "error", "--logger", "zap", "--name", "bench"])
            .args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("bench={peer_url}")]);
        let server = Server::spawn(&mut command, client, data)?;
        let is_ready = async |address: &str| match Client::connect([address], None).await {
            Ok(mut client) => client.get("ready", None).await.is_ok(),
            Err(_) => false,
        };
        server.ready(is_ready).await
    }

    fn served(address: &str) -> Outcome<Option<u64>> {
        let metrics = said(address, "GET /metrics HTTP/1.0\r\n\r\n")?;
        // Messages, as a stream such as that of heartbeats is one call with many of them.
        let count = |line: &str| -> Option<f64> {
            let line = line.strip_prefix("grpc_server_msg_received_total{")?;
            line.rsplit(' ').next()?.parse().ok()
        };
        Ok(Some(metrics.lines().filter_map(count).sum::<f64>() as u64))
    }

    async fn floor(address: &str, name: &str) -> Outcome<impl Locking> {
        Ok(Floor { at: Leased::new(address).await?, key: name.to_owned() })
    }

    async fn rival(address: &str) -> Outcome<impl Locking> {
        Ok(Service { at: Leased::new(address).await?, key: Vec::new() })
    }
}

/// A client under a standing lease.
struct Leased {
    client: Client,
    lease: i64,
}

impl Leased {
    async fn new(address: &str) -> Outcome<Self> {
        let client = Client::connect([address], None).await?;
        let lease = client.lease_client().grant(60, None).await?.id();
        Ok(Self { client, lease })
    }
}

/// One transaction and one delete.
struct Floor {
    at: Leased,
    key: String,
}

impl Locking for Floor {
    async fn acquire(&mut self) -> Outcome {
        let key = self.key.as_str();
        let put = PutOptions::new().with_lease(self.at.lease);
        let put = TxnOp::put(key, "owner", Some(put));
        let free = Compare::create_revision(key, CompareOp::Equal, 0);
        let take = Txn::new().when([free]).and_then([put, TxnOp::get(key, None)]);
        match self.at.client.txn(take.or_else([TxnOp::get(key, None)])).await?.succeeded() {
            true => Ok(()),
            false => Err("the floor's lock is taken".into()),
        }
    }

    async fn release(&mut self) -> Outcome {
        self.at.client.delete(self.key.as_str(), None).await?;
        Ok(())
    }
}

/// What etcd itself offers.
struct Service {
    at: Leased,
    key: Vec<u8>,
}

impl Locking for Service {
    async fn acquire(&mut self) -> Outcome {
        let options = LockOptions::new().with_lease(self.at.lease);
        self.key = self.at.client.lock("rival", Some(options)).await?.key().to_vec();
        Ok(())
    }

    async fn release(&mut self) -> Outcome {
        self.at.client.unlock(self.key.as_slice()).await?;
        Ok(())
    }
}

impl Plain for Etcd {
    async fn plain(address: &str) -> Outcome<impl Requests> {
        Ok(Key(Client::connect([address], None).await?))
    }
}

/// A key that is written, and a short one that is read.
struct Key(Client);

impl Requests for Key {
    async fn read(&mut self) -> Outcome {
        self.0.get("short", None).await?;
        Ok(())
    }

    async fn write(&mut self, data: &str) -> Outcome {
        self.0.put("plain", data, None).await?;
        Ok(())
    }
}
