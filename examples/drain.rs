//! A small service over HTTP that drains: told to end by SIGTERM, it gives out no lock any more and lets requests finish that have
//! one. Then it ends its session, and says what it had to cut off.
//!
//! Run it by `cargo run --example drain`, send it `curl -X POST http://127.0.0.1:8090/volumes/7` a few times at once, and
//! `kill` it meanwhile. With an HTTP framework it is the same: stop accepting, as by axum's `with_graceful_shutdown`, while
//! `stop_within` runs.

use std::io;
use std::time::Duration;

use coordination::{Coordinator, ErrorKind, synchronized};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How long a resize takes.
const WORK: Duration = Duration::from_millis(500);
/// How long requests may go on after SIGTERM: less than what the service's manager allows before it kills.
const GRACE: Duration = Duration::from_secs(20);
/// How long answers may take to be sent after that.
const ANSWERS: Duration = Duration::from_secs(2);

#[synchronized("vol-<id>", timeout = "5s")]
async fn resize(id: u32) -> coordination::Result<u32> {
    sleep(WORK).await;
    Ok(id)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://".into());
    let address = std::env::var("ADDRESS").unwrap_or_else(|_| "127.0.0.1:8090".into());
    let coordinator = Coordinator::connect(&url).await?;
    coordinator.install()?;
    let mut told_to_end = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);

    let mut requests = JoinSet::new();
    loop {
        tokio::select! {
            _ = told_to_end.recv() => break,
            accepted = listener.accept() => drop(requests.spawn(answer(accepted?.0))),
            Some(_) = requests.join_next() => {}
        }
    }
    // Who connects from here on is refused, and goes to another instance.
    drop(listener);
    println!("draining: {} held", coordinator.held());
    let stopped = coordinator.stop_within(GRACE).await;
    for cut_off in &stopped.cut_off {
        println!("cut off: {} {} with token {}", cut_off.recipe, cut_off.name, cut_off.token);
    }
    // Answers that are on their way. A client that reads or writes nothing must not keep the service from ending.
    let _ = timeout(ANSWERS, async { while requests.join_next().await.is_some() {} }).await;
    stopped.confirmed?;
    println!("drained");
    Ok(())
}

/// `POST /volumes/<id>` resizes a volume.
async fn answer(mut stream: TcpStream) -> io::Result<()> {
    let (mut head, mut piece) = (Vec::new(), [0; 1024]);
    while head.len() < 8 * piece.len() && !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut piece).await? {
            0 => return Ok(()),
            read => head.extend_from_slice(&piece[..read]),
        }
    }
    let head = String::from_utf8_lossy(&head);
    let id = head.strip_prefix("POST /volumes/").and_then(|rest| rest.split(' ').next());
    let (status, text) = match id.and_then(|id| id.parse().ok()) {
        None => ("404 Not Found", "no such volume".to_owned()),
        Some(id) => match resize(id).await {
            Ok(id) => ("200 OK", format!("volume {id} was resized")),
            // The client tries again, and reaches another instance.
            Err(error) if error.kind() == ErrorKind::Closed && !error.body_ran() => {
                ("503 Service Unavailable", error.to_string())
            }
            Err(error) => ("500 Internal Server Error", error.to_string()),
        },
    };
    let length = text.len();
    let answer =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}");
    stream.write_all(answer.as_bytes()).await
}
