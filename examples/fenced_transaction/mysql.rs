//! A lock that is checked inside a transaction of MySQL or MariaDB: two processes resize a volume that is a row of the same server.
//!
//! One of them is stopped for three leases between taking the lock and writing (`demo.rs`). What it writes then is refused by the
//! database.
//!
//! `COORDINATION_URL=mysql://user@localhost/database cargo run --example fenced_transaction_mysql --features mysql`

mod demo;

use coordination::FencingToken;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, TxOpts};

use demo::{Database, Outcome};

#[tokio::main]
async fn main() -> Outcome<()> {
    demo::run::<Conn>().await
}

impl Database for Conn {
    async fn connect(url: &str) -> Outcome<Self> {
        let address = url.split('?').next().unwrap_or_default();
        let options = OptsBuilder::from_opts(Opts::from_url(address)?);
        // The locks are in the same database, by default in this one.
        let database = Opts::from_url(address)?.db_name().unwrap_or("coordination").to_owned();
        let mut connection = Self::new(options.db_name(None::<&str>).prefer_socket(false)).await?;
        connection.query_drop(format!("CREATE DATABASE IF NOT EXISTS {database}")).await?;
        connection.query_drop(format!("USE {database}")).await?;
        Ok(connection)
    }

    async fn make_table(&mut self) -> Outcome<()> {
        self.query_drop("DROP TABLE IF EXISTS example_volumes").await?;
        let table = "CREATE TABLE example_volumes (id INT PRIMARY KEY, size BIGINT NOT NULL)";
        self.query_drop(table).await?;
        Ok(self.query_drop("INSERT INTO example_volumes VALUES (1, 10)").await?)
    }

    async fn resize(&mut self, token: FencingToken, size: i64) -> Outcome<()> {
        let mut transaction = self.start_transaction(TxOpts::default()).await?;
        // Fails if this is not the token of who has the lock; if it is, the lock stays where it is until the commit. It has to be
        // the transaction's first statement.
        let fence = "CALL coordination_fence('volume-1', ?)";
        let done = match transaction.exec_drop(fence, (token.value(),)).await {
            Ok(()) => {
                let update = "UPDATE example_volumes SET size = ? WHERE id = 1";
                transaction.exec_drop(update, (size,)).await
            }
            refused => refused,
        };
        // The server itself would go on with a transaction in which a statement has failed.
        match done {
            Ok(()) => Ok(transaction.commit().await?),
            Err(error) => {
                transaction.rollback().await?;
                Err(error.into())
            }
        }
    }

    async fn size(&mut self) -> Outcome<i64> {
        let size = self.query_first("SELECT size FROM example_volumes WHERE id = 1").await?;
        size.ok_or_else(|| "the volume is gone".into())
    }

    async fn drop_table(&mut self) -> Outcome<()> {
        Ok(self.query_drop("DROP TABLE example_volumes").await?)
    }
}
