//! A lock that is checked inside a transaction of PostgreSQL: two processes resize a volume that is a row of the same database.
//!
//! One of them is stopped for three leases between taking the lock and writing (`demo.rs`). What it writes then is refused by the
//! database.
//!
//! `COORDINATION_URL=postgres://user@localhost/database cargo run --example fenced_transaction --features postgres`

mod demo;

use coordination::FencingToken;
use tokio::net::TcpStream;
use tokio_postgres::{Client, NoTls};

use demo::{Database, Outcome};

#[tokio::main]
async fn main() -> Outcome<()> {
    demo::run::<Client>().await
}

impl Database for Client {
    async fn connect(url: &str) -> Outcome<Self> {
        let address = url.split('?').next().unwrap_or_default();
        let config: tokio_postgres::Config = address.parse()?;
        let host = match config.get_hosts().first() {
            Some(tokio_postgres::config::Host::Tcp(host)) => host.clone(),
            _ => "localhost".to_owned(),
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let stream = TcpStream::connect((host, port)).await?;
        let (client, connection) = config.connect_raw(stream, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    async fn make_table(&mut self) -> Outcome<()> {
        let table = "DROP TABLE IF EXISTS example_volumes;
                     CREATE TABLE example_volumes (id integer PRIMARY KEY, size bigint NOT NULL);
                     INSERT INTO example_volumes VALUES (1, 10)";
        Ok(self.batch_execute(table).await?)
    }

    async fn resize(&mut self, token: FencingToken, size: i64) -> Outcome<()> {
        let transaction = self.transaction().await?;
        let token = i64::try_from(token.value())?;
        // Fails if this is not the token of who has the lock; if it is, the lock stays where it is until the commit.
        transaction
            .execute("SELECT coordination.coordination_fence('volume-1', $1)", &[&token])
            .await?;
        transaction.execute("UPDATE example_volumes SET size = $1 WHERE id = 1", &[&size]).await?;
        transaction.commit().await?;
        Ok(())
    }

    async fn size(&mut self) -> Outcome<i64> {
        let row = self.query_one("SELECT size FROM example_volumes WHERE id = 1", &[]).await?;
        Ok(row.try_get(0)?)
    }

    async fn drop_table(&mut self) -> Outcome<()> {
        Ok(self.batch_execute("DROP TABLE example_volumes").await?)
    }
}
