//! What the clients do.

mod grants;
pub(crate) mod held;
mod values;

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

use crate::stage::{Process, Stage};

/// Starts a process and its tasks.
pub(crate) async fn start(stage: &Arc<Stage>) -> Arc<Process> {
    let process = stage.start().await;
    for _ in 0..stage.plan.tasks {
        stage.expect(&process, process.client.spawn(work(Arc::clone(stage), Arc::clone(&process))));
    }
    process
}

/// One task: does one thing after the other until the run is over.
async fn work(stage: Arc<Stage>, process: Arc<Process>) {
    while !stage.is_over() {
        let think = stage.up_to(stage.plan.think);
        if !think.is_zero() {
            tokio::time::sleep(think).await;
        }
        match stage.draw(|random| random.random_range(0..10)) {
            0 => values::operate(&stage, &process).await,
            _ => grants::attempt(&stage, &process).await,
        }
        // A store within the process never lets time pass by itself.
        if !stage.plan.traits.is_remote && stage.draw(|random| random.random_ratio(1, 10)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
