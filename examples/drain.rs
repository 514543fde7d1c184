//! A small service over HTTP, with axum, that drains: told to end by SIGTERM, it gives out no lock any more and lets requests finish
//! that have one. Then it ends its session, and says what it had to cut off.
//!
//! Run it by `cargo run --example drain --features axum`, send it `curl -X POST http://127.0.0.1:8090/volumes/7` a few times at once,
//! and `kill` it meanwhile.

use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::post;
use coordination::{Coordinator, ErrorKind, synchronized};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
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

    let service = Router::new().route("/volumes/{id}", post(answer));
    // Who connects once the coordinator is being stopped is refused, and goes to another instance.
    let stopped = coordinator.clone();
    let stopped = async move { stopped.stopping().await };
    let serving = axum::serve(listener, service).with_graceful_shutdown(stopped);
    let serving = tokio::spawn(serving.into_future());

    told_to_end.recv().await;
    println!("draining: {} held", coordinator.held());
    let stopped = coordinator.stop_within(GRACE).await;
    for cut_off in &stopped.cut_off {
        println!("cut off: {} {} with token {}", cut_off.recipe, cut_off.name, cut_off.token);
    }
    // Answers that are on their way. A client that reads or writes nothing must not keep the service from ending.
    let _ = timeout(ANSWERS, serving).await;
    stopped.confirmed?;
    println!("drained");
    Ok(())
}

/// `POST /volumes/<id>` resizes a volume.
async fn answer(Path(id): Path<u32>) -> (StatusCode, String) {
    match resize(id).await {
        Ok(id) => (StatusCode::OK, format!("volume {id} was resized")),
        // The client tries again, and reaches another instance.
        Err(error) if error.kind() == ErrorKind::Closed && !error.body_ran() => {
            (StatusCode::SERVICE_UNAVAILABLE, error.to_string())
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}
