//! Runs one seed, and collects everything that was wrong in the run.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use coordination::simulation::{Run, nanos};
use coordination_history::{Event, NEVER, Record, Report, Rules, check, encode};
use tokio::runtime::Builder;
use tokio::task::JoinHandle;

use crate::nemesis;
use crate::plan::{Fault, Plan};
use crate::stage::{EVERYTHING, Process, Stage};
use crate::work;

/// The longest simulated time of a run. A run that takes longer counts as hanging.
const LONGEST: Duration = Duration::from_secs(3_600);

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) records: Vec<Record>,
    pub(crate) report: Report,
    /// Descriptions of everything that was wrong in the run; empty if nothing was.
    pub(crate) wrong: Vec<String>,
    /// How often the simulated network misbehaved by chance, for instance lost, delayed or repeated a message. Faults of
    /// the run's plan are not counted.
    pub(crate) mishaps: u64,
    /// For each promise, how often the run would have noticed that the promise is broken.
    pub(crate) judged: BTreeMap<&'static str, u64>,
}

impl Outcome {
    /// A hash by which two runs are compared: it is equal if both runs had the same events and results.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.records.iter().for_each(|record| encode(record).hash(&mut hasher));
        // `judged` and `wrong` are included because most recipes leave no records in the history.
        (&self.judged, &self.wrong).hash(&mut hasher);
        hasher.finish()
    }
}

/// Runs a seed.
pub(crate) fn run(seed: u64) -> Outcome {
    let mut builder = Builder::new_current_thread();
    // Tokio draws random numbers too, for instance for the order in which a `watch` channel wakes its receivers. With
    // this seed it draws the same ones in each run of the seed.
    #[cfg(tokio_unstable)]
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
    let runtime = builder.enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime can be made");
    let stage = runtime.block_on(async {
        let _run = Run::begin(seed);
        let stage = Stage::new(Plan::of(seed));
        if tokio::time::timeout(LONGEST, live(&stage)).await.is_err() {
            stage.broken(format!("the run did not end within {LONGEST:?}"));
        }
        let abandoned = stage.take_tasks();
        abandoned.into_iter().for_each(|(_, task)| task.abort());
        stage
    });
    let mishaps = stage.world.faults().values().sum();
    let records = stage.take_records();
    let report = check(&records, &rules(&stage.plan));
    let mut wrong = stage.take_broken();
    wrong.extend(report.violations.iter().map(ToString::to_string));
    let unjudged =
        [(report.misfits, "records fit nowhere"), (report.undecided, "searches were given up")];
    let unjudged = unjudged.into_iter().filter(|(count, _)| *count > 0);
    wrong.extend(unjudged.map(|(count, what)| format!("not judged: {count} {what}")));
    Outcome { records, report, wrong, mishaps, judged: stage.take_judged() }
}

fn rules(plan: &Plan) -> Rules {
    let recovery = plan.recovery().as_nanos() as u64;
    // The longest time that a waiter may have to wait. In `recovery` the loss of a session is noticed, a new session is
    // opened, and a dead holder's lease ends. In `turns` all waiters before this one hold and release.
    let turns = u64::from(plan.clients * plan.tasks) * (plan.hold.as_nanos() as u64 + 300_000_000);
    Rules {
        faults: Fault::ALL.iter().map(|fault| format!("{fault:?}")).collect(),
        untimed: Fault::UNTIMED.map(Fault::number).to_vec(),
        wait_bound: recovery + turns,
        // C2, that entries are removed at once, can be checked only if nothing keeps the library from removing an
        // entry.
        entry_bound: if plan.traits.is_remote || !plan.faults.is_empty() {
            NEVER
        } else {
            100_000_000
        },
        ..Rules::new(Stage::objects())
    }
}

/// Starts the clients and the faults. When enough was granted, ends the faults and then the clients.
async fn live(stage: &Arc<Stage>) {
    for _ in 0..stage.plan.clients {
        work::start(stage).await;
    }
    let rage = tokio::spawn(nemesis::rage(Arc::clone(stage)));
    while stage.grants() < stage.plan.grants && nanos() < 600_000_000_000 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stage.end();
    if rage.await.is_err() {
        stage.broken("the nemesis failed".to_owned());
    }
    stage.record(0, 0, 0, Event::Healed);
    for (process, task) in stage.take_tasks() {
        if !process.client.is_dead() {
            finish(stage, &process, task).await;
        }
    }
    work::conclude(stage).await;
    settle(stage).await;
    for process in stage.processes() {
        stop(stage, &process).await;
    }
    if stage.world.entries() > 0 {
        stage.broken("entries are left of coordinators that were stopped".to_owned());
    }
}

async fn finish(stage: &Stage, process: &Process, task: JoinHandle<()>) {
    match tokio::time::timeout(Duration::from_secs(300), task).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let text = format!("a task of process {} ended: {error}", process.number);
            stage.broken(text);
        }
        Err(_) => stage.broken(format!("a task of process {} hangs", process.number)),
    }
}

/// Waits until no entry is left at the store. The sessions still live, but all calls have ended, so the library has to
/// remove all entries. Then records how many entries are left.
async fn settle(stage: &Stage) {
    let bound = nanos() + 3 * stage.plan.ttl.as_nanos() as u64 + 5_000_000_000;
    while stage.world.entries() > 0 && nanos() < bound {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stage.record(0, EVERYTHING, 0, Event::Remains { entries: stage.world.entries() });
}

/// L6: checks that a stop returns in time and without an error, which means that the store has confirmed it.
async fn stop(stage: &Stage, process: &Arc<Process>) {
    let begun = nanos();
    let coordinator = process.coordinator.clone();
    let stopped = process.client.spawn(async move { coordinator.stop().await }).await;
    let limit = stage.plan.ttl.min(Duration::from_secs(5)) + Duration::from_millis(100);
    let took = Duration::from_nanos(nanos() - begun);
    if took > limit || !matches!(stopped, Ok(Ok(()))) {
        stage.broken(format!("L6: stop of process {} took {took:?}: {stopped:?}", process.number));
    }
}
