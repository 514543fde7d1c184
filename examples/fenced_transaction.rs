//! A lock that is checked inside a transaction: two processes resize a volume that is a row of the same database.
//!
//! One of them is stopped for three leases between taking the lock and writing. The other one is granted the lock meanwhile and
//! writes. Whatever the first one believes when it goes on, the database refuses its transaction: no clock has a part in that.
//!
//! `COORDINATION_URL=postgres://user@host/database cargo run --example fenced_transaction --features postgres`

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use coordination::{Coordinator, FencingToken};
use tokio::net::TcpStream;
use tokio_postgres::{Client, NoTls};

type Outcome<T> = Result<T, Box<dyn Error>>;

const LEASE: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Outcome<()> {
    let url = std::env::var("COORDINATION_URL").map_err(
        |_| "COORDINATION_URL names a database, as in postgres://user@localhost/database",
    )?;
    match std::env::args().nth(1).as_deref() {
        Some("slow") => slow(&url).await,
        _ => both(&url).await,
    }
}

/// The program's own connection to the database. Only the address of the URL is used, so a database on this machine.
async fn database(url: &str) -> Outcome<Client> {
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

/// Resizes the volume in a transaction that is the holder's, or is not carried out.
async fn resize(database: &mut Client, token: FencingToken, size: i64) -> Outcome<()> {
    let transaction = database.transaction().await?;
    let token = i64::try_from(token.value())?;
    // Fails if this is not the token of who has the lock; if it is, the lock stays where it is until the commit.
    transaction
        .execute("SELECT coordination.coordination_fence('volume-1', $1)", &[&token])
        .await?;
    transaction.execute("UPDATE example_volumes SET size = $1 WHERE id = 1", &[&size]).await?;
    transaction.commit().await?;
    Ok(())
}

/// Takes the lock, is stopped for three leases just then, and writes.
async fn slow(url: &str) -> Outcome<()> {
    let mut database = database(url).await?;
    let coordinator = Coordinator::builder().ttl(LEASE).connect(url).await?;
    let guard = coordinator.lock("volume-1")?.acquire(None).await?;
    let token = guard.token();
    println!("{token}");
    // Until it may go on.
    std::io::stdin().read_exact(&mut [0])?;
    match resize(&mut database, token, 20).await {
        Ok(()) => println!("written"),
        Err(error) => println!("refused: {}", innermost(&*error)),
    }
    Ok(())
}

async fn both(url: &str) -> Outcome<()> {
    let mut database = database(url).await?;
    let table = "DROP TABLE IF EXISTS example_volumes;
                 CREATE TABLE example_volumes (id integer PRIMARY KEY, size bigint NOT NULL);
                 INSERT INTO example_volumes VALUES (1, 10)";
    database.batch_execute(table).await?;

    let mut child = Command::new(std::env::current_exe()?)
        .arg("slow")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = BufReader::new(child.stdout.take().ok_or("it is piped")?).lines();
    let old = said.next().ok_or("it has ended")??;
    println!("slow has the lock, token {old}, and is stopped");
    signal(&child, "STOP")?;
    tokio::time::sleep(3 * LEASE).await;

    let coordinator = Coordinator::builder().ttl(LEASE).connect(url).await?;
    let guard = coordinator.lock("volume-1")?.acquire(None).await?;
    println!("next has the lock, token {}", guard.token());
    resize(&mut database, guard.token(), 30).await?;
    println!("  next writes 30");

    child.stdin.take().ok_or("it is piped")?.write_all(b"\n")?;
    signal(&child, "CONT")?;
    let answer = said.next().ok_or("it has ended")??;
    println!("  slow goes on and writes 20: {answer}");
    child.wait()?;
    guard.release().await?;
    coordinator.stop().await?;

    let row = database.query_one("SELECT size FROM example_volumes WHERE id = 1", &[]).await?;
    let size: i64 = row.get(0);
    database.batch_execute("DROP TABLE example_volumes").await?;
    println!("the volume has {size}");
    if !answer.starts_with("refused") || size != 30 {
        return Err("FAILED: what next wrote is lost".into());
    }
    println!("PASSED: nothing is lost");
    Ok(())
}

fn signal(child: &Child, name: &str) -> Outcome<()> {
    Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status()?;
    Ok(())
}

/// What the database says: the client's error is around it.
fn innermost<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    while let Some(cause) = error.source() {
        error = cause;
    }
    error
}
