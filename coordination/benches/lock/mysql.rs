//! MariaDB, beside two committed statements, and beside the lock of Tooz, which looks once a second.

use std::process::Command;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder};
use tempfile::TempDir;

use crate::Outcome;
use crate::server::{Locking, Server, Store, free_address, number_from};

/// Whoever may do everything, and the locks of the floor: rows, whose owner is written by one statement and removed by another.
const SETUP: &str = "CREATE USER 'bench'@'%';
GRANT ALL ON *.* TO 'bench'@'%';
CREATE DATABASE bench;
CREATE TABLE bench.floor (name VARBINARY(64) PRIMARY KEY, owner VARBINARY(64), token BIGINT NOT NULL) ENGINE = InnoDB;
";
/// How long Tooz pauses between two looks.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Mysql;

impl Store for Mysql {
    const NAME: &'static str = "mysql";
    const USER: &'static str = "bench@";
    const RIVAL: &'static str = "Tooz's, GET_LOCK once a second";
    const WANTED: (&'static str, &'static str) = ("at most 1.3 wanted", "at least 20 wanted");
    const REPEATS: u32 = 50;
    const FREE_AFTER: f64 = 10.0;

    async fn start(data: TempDir) -> Outcome<Server> {
        let address = free_address()?;
        let at = |name: &str| data.path().join(name).display().to_string();
        let port = address.rsplit(':').next().unwrap_or_default();
        let user =
            if rustix::process::geteuid().is_root() { "--user=root" } else { "--user=mysql" };
        let mut command = Command::new("mariadb-install-db");
        command.args(["--no-defaults", &format!("--datadir={}", at("data")), user]);
        command.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
        let made = command.args(["--skip-name-resolve"]).output()?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).into());
        }
        let setup = at("setup.sql");
        std::fs::write(&setup, SETUP)?;
        let mut command = Command::new("/usr/sbin/mariadbd");
        command.args(["--no-defaults", user, "--bind-address=127.0.0.1", "--skip-name-resolve"]);
        // As many as three connections for each session that is measured: no setting of ours is to be their limit.
        command.arg("--max-connections=30000");
        for (name, value) in [
            ("datadir", at("data")),
            ("tmpdir", at("")),
            ("socket", at("s")),
            ("pid-file", at("pid")),
            ("port", port.to_owned()),
            ("init-file", setup),
        ] {
            command.arg(format!("--{name}={value}"));
        }
        let server = Server::spawn(&mut command, address, data)?;
        server.ready(async |address: &str| connect(address).await.is_ok()).await
    }

    fn served(address: &str) -> Outcome<Option<u64>> {
        let (host, port) = address.rsplit_once(':').ok_or("an address is HOST:PORT")?;
        let mut command = Command::new("mariadb");
        command.args(["--no-defaults", "-h", host, "-P", port, "-u", "bench", "-N", "-B", "-e"]);
        number_from(command.arg("SHOW GLOBAL STATUS LIKE 'Questions'")).map(Some)
    }

    async fn floor(address: &str, name: &str) -> Outcome<impl Locking> {
        let mut conn = connect(address).await?;
        conn.query_drop(format!("INSERT IGNORE INTO floor VALUES ('{name}', NULL, 0)")).await?;
        Ok(Floor { conn, name: name.to_owned(), owner: std::process::id() })
    }

    async fn rival(address: &str) -> Outcome<impl Locking> {
        connect(address).await.map(Tooz)
    }
}

async fn connect(address: &str) -> Outcome<Conn> {
    let (host, port) = address.rsplit_once(':').ok_or("an address is HOST:PORT")?;
    let options = OptsBuilder::default().ip_or_hostname(host).tcp_port(port.parse()?);
    let options = options.user(Some("bench")).db_name(Some("bench")).prefer_socket(false);
    Ok(Conn::new(options).await?)
}

/// Two statements, each of which is a transaction.
struct Floor {
    conn: Conn,
    name: String,
    owner: u32,
}

impl Floor {
    async fn change(&mut self, set: &str, when: &str) -> Outcome {
        let change = format!("UPDATE floor SET {set} WHERE name = '{}' AND {when}", self.name);
        self.conn.query_drop(change).await?;
        (self.conn.affected_rows() == 1).then_some(()).ok_or("the floor's lock is another's".into())
    }
}

impl Locking for Floor {
    async fn acquire(&mut self) -> Outcome {
        // The token comes back as the id that was inserted last.
        let set = format!("owner = '{}', token = LAST_INSERT_ID(token + 1)", self.owner);
        self.change(&set, "owner IS NULL").await?;
        self.conn.last_insert_id().map(drop).ok_or("no token".into())
    }

    async fn release(&mut self) -> Outcome {
        let when = format!("owner = '{}'", self.owner);
        self.change("owner = NULL", &when).await
    }
}

/// A connection that has the server's own lock of one name, or looks whether it is free.
struct Tooz(Conn);

impl Locking for Tooz {
    async fn acquire(&mut self) -> Outcome {
        while self.0.query_first("SELECT GET_LOCK('rival', 0)").await? != Some(1) {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn release(&mut self) -> Outcome {
        match self.0.query_first("SELECT RELEASE_LOCK('rival')").await? {
            Some(1) => Ok(()),
            _ => Err("the lock was lost".into()),
        }
    }
}
