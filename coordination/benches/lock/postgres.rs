//! PostgreSQL, beside two committed statements, and beside a fair queue whose next waiter is woken by NOTIFY.

use std::ffi::OsStr;
use std::fs;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Statement};

use crate::Outcome;
use crate::server::{Locking, Server, Store, free_address, number_from};

/// The locks of the floor: rows, whose owner is written by one statement and removed by another.
const FLOOR: &str = "CREATE TABLE floor (name text PRIMARY KEY, owner text, token bigint NOT NULL) WITH (fillfactor = 50)";
const MAKE: &str = "INSERT INTO floor VALUES ($1, NULL, 0) ON CONFLICT DO NOTHING";
const TAKE: &str = "UPDATE floor SET owner = $2, token = token + 1 WHERE name = $1 AND owner IS NULL RETURNING token";
const GIVE_BACK: &str =
    "UPDATE floor SET owner = NULL WHERE name = $1 AND owner = $2 RETURNING token";
/// The lock of the rival: a queue, in which each waiter is told by NOTIFY when nobody is before him any more. The lock of the
/// table's row makes the order of commits the order of the queue. It knows no leases: if a process dies, everybody behind it waits
/// for ever.
const RIVAL: &str = "CREATE TABLE gate (name text PRIMARY KEY);
INSERT INTO gate VALUES ('lock');
CREATE TABLE queue (seq bigserial PRIMARY KEY, channel text NOT NULL);
CREATE FUNCTION enter_queue(of_channel text) RETURNS TABLE (place bigint, is_first boolean) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM gate WHERE name = 'lock' FOR UPDATE;
  INSERT INTO queue (channel) VALUES (of_channel) RETURNING seq INTO place;
  is_first := NOT EXISTS (SELECT FROM queue WHERE seq < place);
  RETURN NEXT;
END $$;
CREATE FUNCTION leave_queue(place bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM gate WHERE name = 'lock' FOR UPDATE;
  DELETE FROM queue WHERE seq = place;
  PERFORM pg_notify(q.channel, q.seq::text) FROM (SELECT channel, seq FROM queue ORDER BY seq LIMIT 1) q;
END $$";

pub(crate) struct Postgres;

impl Store for Postgres {
    const NAME: &'static str = "postgres";
    const USER: &'static str = "postgres@";
    const RIVAL: &'static str = "a queue in a table, and NOTIFY to wait";
    const WANTED: (&'static str, &'static str) = ("at most 1.3 wanted", "at least 0.8 wanted");
    const REPEATS: u32 = 100;
    const FREE_AFTER: f64 = 10.0;

    async fn start(data: TempDir) -> Outcome<Server> {
        let address = free_address()?;
        let port = address.rsplit(':').next().unwrap_or_default();
        // PostgreSQL refuses to run as root, so the directory is given to the user that runs it instead.
        if is_root() {
            run(Command::new("chown").arg("nobody:nogroup").arg(data.path()))?;
        }
        let directory = data.path().join("data");
        let mut command = as_server(&binary("initdb")?);
        command.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        run(command.arg("-D").arg(&directory))?;
        let mut command = as_server(&binary("postgres")?);
        command.arg("-D").arg(directory).args(["-p", port, "-h", "127.0.0.1", "-k", ""]);
        // More than sessions are measured: no setting of ours is to be their limit.
        command.args(["-c", "max_connections=3000"]);
        let server = Server::spawn(&mut command, address, data)?;
        let server = server.ready(async |address: &str| connect(address).await.is_ok()).await?;
        let (client, _) = connect(&server.address).await?;
        client.batch_execute(&format!("{FLOOR}; {RIVAL}")).await?;
        Ok(server)
    }

    fn served(address: &str) -> Outcome<Option<u64>> {
        let (host, port) = address.rsplit_once(':').ok_or("an address is HOST:PORT")?;
        let mut command = Command::new("psql");
        command.args(["-X", "-A", "-t", "-h", host, "-p", port, "-U", "postgres", "-c"]);
        // Each request of this library is a transaction.
        number_from(command.arg("SELECT sum(xact_commit) FROM pg_stat_database")).map(Some)
    }

    async fn floor(address: &str, name: &str) -> Outcome<impl Locking> {
        let (client, _) = connect(address).await?;
        client.execute(MAKE, &[&name]).await?;
        let prepared = [client.prepare(TAKE).await?, client.prepare(GIVE_BACK).await?];
        let owner = std::process::id().to_string();
        Ok(Floor { client, prepared, name: name.to_owned(), owner })
    }

    async fn rival(address: &str) -> Outcome<impl Locking> {
        let (client, told) = connect(address).await?;
        let channel = format!("waiter_{}", std::process::id());
        client.batch_execute(&format!("LISTEN {channel}")).await?;
        Ok(Told { client, told, channel, place: 0 })
    }
}

/// A client, and the texts of the notifications that come for it.
async fn connect(address: &str) -> Outcome<(Client, mpsc::UnboundedReceiver<String>)> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (client, mut connection) =
        Config::new().user("postgres").connect_raw(stream, NoTls).await?;
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                // Nobody may listen any more.
                let _ = tell.send(notification.payload().to_owned());
            }
        }
    });
    Ok((client, told))
}

/// Two statements, which are prepared, and each of which is a transaction.
struct Floor {
    client: Client,
    prepared: [Statement; 2],
    name: String,
    owner: String,
}

impl Floor {
    async fn ask(&self, statement: usize) -> Outcome<bool> {
        let rows = self.client.query(&self.prepared[statement], &[&self.name, &self.owner]).await?;
        Ok(!rows.is_empty())
    }
}

impl Locking for Floor {
    async fn acquire(&mut self) -> Outcome {
        self.ask(0).await?.then_some(()).ok_or("the floor's lock is taken".into())
    }

    async fn release(&mut self) -> Outcome {
        self.ask(1).await?.then_some(()).ok_or("the floor's lock was lost".into())
    }
}

/// A place in the rival's queue.
struct Told {
    client: Client,
    told: mpsc::UnboundedReceiver<String>,
    channel: String,
    place: i64,
}

impl Locking for Told {
    async fn acquire(&mut self) -> Outcome {
        let entered = "SELECT place, is_first FROM enter_queue($1)";
        let row = self.client.query_typed_one(entered, &[(&self.channel, Type::TEXT)]).await?;
        self.place = row.try_get("place")?;
        let mut is_first: bool = row.try_get("is_first")?;
        while !is_first {
            let told = tokio::time::timeout(Duration::from_secs(10), self.told.recv()).await?;
            is_first = told.ok_or("the connection ended")? == self.place.to_string();
        }
        Ok(())
    }

    async fn release(&mut self) -> Outcome {
        let left = "SELECT leave_queue($1)";
        self.client.query_typed(left, &[(&self.place, Type::INT8)]).await?;
        Ok(())
    }
}

/// A command that runs `program` as a user whom PostgreSQL accepts, and that ends with this process.
fn as_server(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if is_root() {
        command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]);
    }
    command.args([
        OsStr::new("--pdeathsig"),
        OsStr::new("KILL"),
        OsStr::new("--"),
        program.as_os_str(),
    ]);
    command.current_dir("/");
    command
}

/// Debian installs these programs outside `PATH`, in a folder for each version.
fn binary(name: &str) -> Outcome<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql")?.flatten();
    let newest =
        versions.map(|version| version.path()).max().ok_or("PostgreSQL is not installed")?;
    Ok(newest.join("bin").join(name))
}

fn run(command: &mut Command) -> Outcome {
    let done = command.output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&done.stderr).into()),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
