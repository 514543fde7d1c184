//! What happens in the two programs `fenced_transaction` and `fenced_transaction_mysql`, whichever the database is.
//!
//! Two processes resize a volume that is a row of the database in which the locks are, too. One of them is stopped for three leases
//! between taking the lock and writing. The other one is granted the lock meanwhile and writes. Whatever the first one believes
//! when it goes on, the database refuses its transaction: no clock has a part in that.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use coordination::{Coordinator, FencingToken};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

const LEASE: Duration = Duration::from_secs(1);

/// The program's own connection to the database, and what it does there.
pub(crate) trait Database: Sized {
    /// Connects to the database of the URL. Only the address is used, so a database on this machine.
    async fn connect(url: &str) -> Outcome<Self>;

    /// Makes the table of volumes, with one volume.
    async fn make_table(&mut self) -> Outcome<()>;

    /// Resizes the volume in a transaction that is the holder's, or is not carried out.
    async fn resize(&mut self, token: FencingToken, size: i64) -> Outcome<()>;

    /// The volume's size.
    async fn size(&mut self) -> Outcome<i64>;

    /// Drops the table of volumes.
    async fn drop_table(&mut self) -> Outcome<()>;
}

/// Runs the program: both processes, or the one that is stopped.
pub(crate) async fn run<D: Database>() -> Outcome<()> {
    let url = std::env::var("COORDINATION_URL").map_err(|_| "COORDINATION_URL names a database")?;
    match std::env::args().nth(1).as_deref() {
        Some("slow") => slow::<D>(&url).await,
        _ => both::<D>(&url).await,
    }
}

/// Takes the lock, is stopped for three leases just then, and writes.
async fn slow<D: Database>(url: &str) -> Outcome<()> {
    let mut database = D::connect(url).await?;
    let coordinator = Coordinator::builder().ttl(LEASE).connect(url).await?;
    let guard = coordinator.lock("volume-1")?.acquire(None).await?;
    let token = guard.token();
    println!("{token}");
    // Until it may go on.
    std::io::stdin().read_exact(&mut [0])?;
    match database.resize(token, 20).await {
        Ok(()) => println!("written"),
        Err(error) => println!("refused: {}", innermost(&*error)),
    }
    Ok(())
}

async fn both<D: Database>(url: &str) -> Outcome<()> {
    let mut database = D::connect(url).await?;
    database.make_table().await?;

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
    database.resize(guard.token(), 30).await?;
    println!("  next writes 30");

    child.stdin.take().ok_or("it is piped")?.write_all(b"\n")?;
    signal(&child, "CONT")?;
    let answer = said.next().ok_or("it has ended")??;
    println!("  slow goes on and writes 20: {answer}");
    child.wait()?;
    guard.release().await?;
    coordinator.stop().await?;

    let size = database.size().await?;
    database.drop_table().await?;
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
