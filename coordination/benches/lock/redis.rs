//! Redis, beside a script each way, and beside a list that a process blocks on.

use std::process::Command;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Value};

use crate::Outcome;
use crate::server::{Locking, Server, Store, free_address};

/// A server that was just started and keeps nothing grants nothing before (the library's quarantine).
const QUARANTINE: Duration = Duration::from_secs(12);

const ACQUIRE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 30000) then \
                       return redis.call('INCR', KEYS[2]) end return 0";
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

pub(crate) struct Redis;

impl Store for Redis {
    const NAME: &'static str = "redis";
    const RIVAL: &'static str = "BLPOP";
    const WANTED: (&'static str, &'static str) = ("at most 1.3 wanted", "at least 0.8 wanted");
    const REPEATS: u32 = 1_000;

    async fn start() -> Outcome<Server> {
        let data = Server::directory()?;
        let address = free_address()?;
        let port = address.rsplit(':').next().unwrap_or_default();
        let mut command = Command::new("redis-server");
        command.args(["--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.arg("--dir").arg(data.path());
        let server = Server::spawn(&mut command, address, data)?;
        let server = server.ready(async |address: &str| connect(address).await.is_ok()).await?;
        tokio::time::sleep(QUARANTINE).await;
        Ok(server)
    }

    async fn floor(address: &str) -> Outcome<impl Locking> {
        let mut connection = connect(address).await?;
        let mut hashes = Vec::new();
        for script in [ACQUIRE, RELEASE] {
            let hash = ask(&mut connection, &["SCRIPT", "LOAD", script]).await?;
            let Value::BulkString(hash) = hash else { return Err("no hash".into()) };
            hashes.push(String::from_utf8(hash)?);
        }
        Ok(Floor { connection, hashes })
    }

    async fn rival(address: &str) -> Outcome<impl Locking> {
        let mut connection = connect(address).await?;
        if ask(&mut connection, &["SET", "begun", "1", "NX"]).await? != Value::Nil {
            ask(&mut connection, &["LPUSH", "baton", "1"]).await?;
        }
        Ok(Baton(connection))
    }
}

async fn connect(address: &str) -> Outcome<MultiplexedConnection> {
    let info = format!("redis://{address}").into_connection_info()?;
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await?)
}

async fn ask(connection: &mut impl ConnectionLike, words: &[&str]) -> Outcome<Value> {
    let mut command = Cmd::new();
    for word in words {
        command.arg(*word);
    }
    Ok(command.query_async(connection).await?)
}

/// One script each way.
struct Floor {
    connection: MultiplexedConnection,
    hashes: Vec<String>,
}

impl Locking for Floor {
    async fn acquire(&mut self) -> Outcome {
        let words = ["EVALSHA", &self.hashes[0], "2", "floor", "token", "owner"];
        match ask(&mut self.connection, &words).await? {
            Value::Int(token) if token > 0 => Ok(()),
            _ => Err("the floor's lock is taken".into()),
        }
    }

    async fn release(&mut self) -> Outcome {
        let words = ["EVALSHA", &self.hashes[1], "1", "floor", "owner"];
        ask(&mut self.connection, &words).await.map(drop)
    }
}

/// Whoever has popped it holds the lock; those who block are served in their order.
struct Baton(MultiplexedConnection);

impl Locking for Baton {
    async fn acquire(&mut self) -> Outcome {
        ask(&mut self.0, &["BLPOP", "baton", "30"]).await.map(drop)
    }

    async fn release(&mut self) -> Outcome {
        ask(&mut self.0, &["LPUSH", "baton", "1"]).await.map(drop)
    }
}
