//! Redis, beside a script each way, and beside the same with a list that those who wait block on.

use std::process::Command;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Value};
use tempfile::TempDir;

use crate::Outcome;
use crate::server::{Locking, Server, Store, free_address, said};
use crate::work::{Plain, Requests};

const ACQUIRE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 30000) then \
                       return redis.call('INCR', KEYS[2]) end return 0";
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
const RELEASE_AND_CALL: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
                                redis.call('DEL', KEYS[1]) redis.call('LPUSH', KEYS[2], '') return 1";

pub(crate) struct Redis;

impl Store for Redis {
    const NAME: &'static str = "redis";
    /// Nobody else knows that the server is new.
    const OPTIONS: &'static str = "?quarantine=off";
    const RIVAL: &'static str = "the same scripts, and BLPOP to wait";
    const WANTED: (&'static str, &'static str) = ("at most 1.3 wanted", "at least 0.8 wanted");
    const REPEATS: u32 = 1_000;
    const FREE_AFTER: f64 = 10.0;

    async fn start(data: TempDir) -> Outcome<Server> {
        let address = free_address()?;
        let port = address.rsplit(':').next().unwrap_or_default();
        let mut command = Command::new("redis-server");
        command.args(["--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        // More than sessions are measured: no setting of ours is to be their limit.
        command.args(["--maxclients", "30000"]);
        command.arg("--dir").arg(data.path());
        let server = Server::spawn(&mut command, address, data)?;
        server.ready(async |address: &str| connect(address).await.is_ok()).await
    }

    fn served(address: &str) -> Outcome<Option<u64>> {
        let statistics = said(address, "INFO commandstats\r\nQUIT\r\n")?;
        // All requests of this library are scripts. What those do is counted as other commands.
        let count = |line: &str| -> Option<u64> {
            let (_, calls) = line.strip_prefix("cmdstat_eval")?.split_once(":calls=")?;
            calls.split(',').next()?.parse().ok()
        };
        Ok(Some(statistics.lines().filter_map(count).sum()))
    }

    async fn floor(address: &str, name: &str) -> Outcome<impl Locking> {
        Scripts::new(address, name, RELEASE).await.map(Floor)
    }

    async fn rival(address: &str) -> Outcome<impl Locking> {
        Scripts::new(address, "rival", RELEASE_AND_CALL).await.map(Blocking)
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

/// A lock of one script each way, in which an owner releases only what is its own.
struct Scripts {
    connection: MultiplexedConnection,
    hashes: [String; 2],
    /// The keys of the lock and of its token.
    keys: [String; 2],
    owner: String,
}

impl Scripts {
    async fn new(address: &str, name: &str, release: &str) -> Outcome<Self> {
        let mut connection = connect(address).await?;
        let hashes = [load(&mut connection, ACQUIRE).await?, load(&mut connection, release).await?];
        let keys = [name.to_owned(), format!("{name}:token")];
        Ok(Self { connection, hashes, keys, owner: std::process::id().to_string() })
    }

    async fn try_acquire(&mut self) -> Outcome<bool> {
        let [lock, token] = &self.keys;
        let words = ["EVALSHA", &self.hashes[0], "2", lock, token, &self.owner];
        match ask(&mut self.connection, &words).await? {
            Value::Int(token) => Ok(token > 0),
            _ => Err("not a token".into()),
        }
    }

    /// With one key more for the script, or without.
    async fn release(&mut self, more: Option<&str>) -> Outcome {
        let count = if more.is_some() { "2" } else { "1" };
        let mut words = vec!["EVALSHA", &self.hashes[1], count, &self.keys[0]];
        words.extend(more);
        words.push(&self.owner);
        match ask(&mut self.connection, &words).await? {
            Value::Int(1) => Ok(()),
            _ => Err("the lock was lost".into()),
        }
    }
}

/// Answers its hash.
async fn load(connection: &mut MultiplexedConnection, script: &str) -> Outcome<String> {
    match ask(connection, &["SCRIPT", "LOAD", script]).await? {
        Value::BulkString(hash) => Ok(String::from_utf8(hash)?),
        _ => Err("no hash".into()),
    }
}

struct Floor(Scripts);

impl Locking for Floor {
    async fn acquire(&mut self) -> Outcome {
        self.0.try_acquire().await?.then_some(()).ok_or("the floor's lock is taken".into())
    }

    async fn release(&mut self) -> Outcome {
        self.0.release(None).await
    }
}

/// The floor's lock, whose release wakes the first of those who block on a list: they are served in their order.
struct Blocking(Scripts);

impl Locking for Blocking {
    async fn acquire(&mut self) -> Outcome {
        while !self.0.try_acquire().await? {
            // Who has missed a call looks for himself.
            ask(&mut self.0.connection, &["BLPOP", "call", "1"]).await?;
        }
        Ok(())
    }

    async fn release(&mut self) -> Outcome {
        self.0.release(Some("call")).await
    }
}

impl Plain for Redis {
    async fn plain(address: &str) -> Outcome<impl Requests> {
        connect(address).await.map(Key)
    }
}

/// One key, of which the first kibibyte is read.
struct Key(MultiplexedConnection);

impl Requests for Key {
    async fn read(&mut self) -> Outcome {
        ask(&mut self.0, &["GETRANGE", "plain", "0", "1023"]).await.map(drop)
    }

    async fn write(&mut self, data: &str) -> Outcome {
        ask(&mut self.0, &["SET", "plain", data]).await.map(drop)
    }
}
