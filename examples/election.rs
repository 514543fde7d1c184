//! Three candidates, one leader at a time: it ends, and the next leads under a higher term.
//!
//! `cargo run --example election`, or with `COORDINATION_URL` naming another store.

use std::time::Duration;

use coordination::{Coordinator, Election, ElectionEvent, ErrorKind, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://election".into());
    let observer = Coordinator::connect(&url).await?;
    let election = observer.election("scheduler")?;
    let observing = tokio::spawn(observe(election.clone()));

    // Three processes would do the same as these three tasks.
    let mut candidates = Vec::new();
    for (place, member) in ["red", "green", "blue"].into_iter().enumerate() {
        let coordinator = Coordinator::builder().member_id(member).connect(&url).await?;
        let candidate = tokio::spawn(stand(coordinator, place));
        // Until it stands. On a slow machine it may have led and resigned already, or have failed; then it has finished.
        while !candidate.is_finished()
            && election.candidates().await?.iter().all(|candidate| candidate.member != member)
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        candidates.push(candidate);
    }
    for candidate in election.candidates().await? {
        let does = if candidate.leading { "leads" } else { "waits" };
        println!("{:<5} {does}", candidate.member);
    }
    for candidate in candidates {
        candidate.await.expect("the task does not panic")?;
    }
    observer.stop().await?;
    observing.await.expect("the task does not panic")
}

/// What a service does: stand, lead while it is the leader, and stop working when it is not.
async fn stand(coordinator: Coordinator, place: usize) -> Result<()> {
    let election = coordinator.election("scheduler")?;
    let address = format!("http://{}:8080", coordinator.member_id());
    let leadership = election.campaign(&address, None).await?;

    // `protect` drops the work at its next await if the leadership is lost. Whatever the work writes goes
    // with the term, for the resource to refuse a former leader.
    leadership.protect(schedule(leadership.term().value())).await?;
    leadership.proclaim(&format!("{address} is about to end")).await?;
    tokio::time::sleep(Duration::from_millis(50)).await;

    match place {
        0 => leadership.resign().await,
        // Dropping it resigns in the background.
        1 => {
            drop(leadership);
            Ok(())
        }
        // And so does the end of the client; a killed process is followed when its lease ends.
        _ => coordinator.stop().await,
    }
}

async fn schedule(term: u64) {
    println!("        working under term {term}");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// What everybody else does: follow who leads, until the client is stopped.
async fn observe(election: Election) -> Result<()> {
    let (mut terms, mut last) = (election.observe(), None);
    loop {
        match terms.next().await {
            Ok(ElectionEvent::Leader(term)) => {
                let value = term.value::<String>()?;
                println!("told:   {} leads under term {}: {value}", term.leader, term.term);
                assert!(Some(term.term) >= last, "terms never go back");
                last = Some(term.term);
            }
            Ok(ElectionEvent::NoLeader) => println!("told:   nobody leads"),
            Err(error) if error.kind() == ErrorKind::Closed => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
