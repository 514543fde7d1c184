//! The storm on memory: several threads, each with a runtime and a coordinator of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use coordination::Coordinator;
use coordination_history::Event;
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::client::Client;
use crate::diary::Diary;
use crate::options::Options;
use crate::remains::{self, is_soon};
use crate::{Complaint, ENDING, Progress};

pub(crate) async fn run(options: &Options) -> Result<(), Complaint> {
    // The memory store exists only as long as a client is connected, so this client stays connected until all checks
    // are done.
    let witness = Coordinator::connect(&options.url()).await.expect("memory is always there");
    let (granted, over) = (Arc::default(), Arc::default());
    let threads: Vec<_> = (1..=options.clients)
        .map(|id| {
            let client = Client {
                id,
                seed: options.seed,
                diary: diary(options, id),
                load: options.load,
                targets: options.targets(),
                granted: Arc::clone(&granted),
                over: Arc::clone(&over),
            };
            let (url, tasks) = (options.url(), options.tasks);
            thread::spawn(move || storm(client, &url, tasks))
        })
        .collect();
    await_grants(&granted, options.grants).await?;
    over.store(true, Ordering::Relaxed);
    let driver = diary(options, 0);
    driver.note_of_client(0, Event::Healed);
    if !is_soon(ENDING, || threads.iter().all(thread::JoinHandle::is_finished)).await {
        return Err(format!("some waiter was not served within {ENDING:?} after the storm"));
    }
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")??;
    }
    remains::look(&witness, options, &driver).await?;
    witness.stop().await.map_err(|error| error.to_string())
}

/// Waits until the number of grants has reached `wanted`.
async fn await_grants(granted: &AtomicU64, wanted: u64) -> Result<(), Complaint> {
    let mut progress = Progress::new();
    while progress.granted < wanted {
        sleep(Duration::from_millis(20)).await;
        progress.saw(granted.load(Ordering::Relaxed))?;
    }
    Ok(())
}

fn storm(client: Client, url: &str, tasks: u32) -> Result<(), Complaint> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        client.run(url, tasks).await.map_err(|error| error.to_string())?;
        // The library's background tasks have to end with their coordinator.
        let metrics = Handle::current().metrics();
        match is_soon(ENDING, || metrics.num_alive_tasks() == 0).await {
            true => Ok(()),
            false => Err(format!("{} tasks are left in a thread", metrics.num_alive_tasks())),
        }
    })
}

fn diary(options: &Options, id: u32) -> Diary {
    Diary::open(&options.histories(), id, &options.targets()).expect("the directory is ours")
}
