//! ZooKeeper, beside a node made and removed, and beside the client crate's own lock.

use std::process::Command;

use tempfile::TempDir;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

use crate::Outcome;
use crate::server::{Locking, Server, Store, free_address, said};

const JARS: &str = "/usr/share/java";
const CLASS_PATH: [&str; 15] = [
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "slf4j-simple",
    "netty-all",
    "netty-common",
    "netty-handler",
    "netty-transport",
    "netty-buffer",
    "netty-codec",
    "netty-resolver",
    "netty-transport-native-epoll",
    "netty-transport-native-unix-common",
    "snappy-java",
    "metrics-core",
];

pub(crate) struct Zookeeper;

impl Store for Zookeeper {
    const NAME: &'static str = "zookeeper";
    const RIVAL: &'static str = "the client crate's lock";
    const WANTED: (&'static str, &'static str) = ("at most 1.3 wanted", "at least 0.8 wanted");
    const PEER: Option<&'static str> = Some("zookeeper-client lock recipe");
    const REPEATS: u32 = 200;
    const FREE_AFTER: f64 = 13.0;

    async fn start(data: TempDir) -> Outcome<Server> {
        let client = free_address()?;
        let port = client.rsplit(':').next().unwrap_or_default().to_owned();
        let lines = [
            format!("dataDir={}", data.path().join("data").display()),
            format!("clientPort={port}"),
            "clientPortAddress=127.0.0.1".to_owned(),
            "tickTime=2000".to_owned(),
            "maxClientCnxns=0".to_owned(),
            "admin.enableServer=false".to_owned(),
            "4lw.commands.whitelist=mntr".to_owned(),
        ];
        let configuration = data.path().join("zoo.cfg");
        std::fs::write(&configuration, lines.join("\n"))?;
        let mut command = Command::new("java");
        command
            .args(["-Xmx256m", "-XX:+UseSerialGC", "-cp"])
            .arg(CLASS_PATH.map(|jar| format!("{JARS}/{jar}.jar")).join(":"))
            .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(&configuration);
        let server = Server::spawn(&mut command, client, data)?;
        server.ready(async |address: &str| Client::connect(address).await.is_ok()).await
    }

    fn served(address: &str) -> Outcome<Option<u64>> {
        let statistics = said(address, "mntr")?;
        let count = statistics.lines().find_map(|line| line.strip_prefix("zk_packets_received\t"));
        Ok(Some(count.ok_or("no count")?.trim().parse()?))
    }

    async fn floor(address: &str, name: &str) -> Outcome<impl Locking> {
        let client = Client::connect(address).await?;
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let parent = format!("/{name}");
        client.mkdir(&parent, &options).await?;
        Ok(Floor { client, parent, path: String::new() })
    }

    async fn rival(address: &str) -> Outcome<impl Locking> {
        let client = Client::connect(address).await?;
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.mkdir("/rival", &options).await?;
        Ok(Recipe { client, held: None })
    }
}

/// A node made and its siblings listed, in one round trip, and the node removed.
struct Floor {
    client: Client,
    parent: String,
    path: String,
}

impl Locking for Floor {
    async fn acquire(&mut self) -> Outcome {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = format!("{}/n-", self.parent);
        let create = self.client.create(&prefix, b"owner", &options);
        let list = self.client.list_children(&self.parent);
        let ((_, number), siblings) = tokio::try_join!(create, list)?;
        self.path = format!("{prefix}{number}");
        match siblings.len() {
            1 => Ok(()),
            _ => Err("the floor's lock is taken".into()),
        }
    }

    async fn release(&mut self) -> Outcome {
        Ok(self.client.delete(&self.path, None).await?)
    }
}

/// What the client crate offers.
struct Recipe {
    client: Client,
    held: Option<OwnedLockClient>,
}

impl Locking for Recipe {
    async fn acquire(&mut self) -> Outcome {
        let prefix = LockPrefix::new_curator("/rival", "lock-")?;
        let options = LockOptions::new(Acls::anyone_all());
        self.held = Some(self.client.lock(prefix, b"", options).await?.into_owned());
        Ok(())
    }

    async fn release(&mut self) -> Outcome {
        let held = self.held.take().ok_or("released, and not held")?;
        // Dropping it would remove the node in the background: whoever counts changes wants to know when.
        let path = held.lock_path().to_owned();
        self.client.delete(&path, None).await?;
        std::mem::forget(held);
        Ok(())
    }
}
