//! RL1: eight processes take as many permits as they get for twenty seconds, on all stores at the same time.

use std::time::{Duration, Instant};

use coordination_tests::checks::Backend;
use coordination_tests::checks::rate_limiter::{assert_kept, command, slots_in};
use coordination_tests::faults::Site;
use coordination_tests::harness::Worker;
use serde_json::{Value, json};

use crate::WORKER;

const PERMITS: u32 = 5;
const WINDOW: Duration = Duration::from_millis(800);
const LENGTH: Duration = Duration::from_secs(20);
const PROCESSES: usize = 8;
/// How many windows may be too short, because the store may make an answer late, which the test cannot see. If a
/// limiter gave too many permits, more windows than these would be too short.
const LATE_ANSWERS: usize = 2;

/// For each permit in a worker's answer: its slot, which is the time for which the limiter has reserved it, and the
/// time at which the worker got it. Both are by one clock for all processes.
fn receipts(answer: &Value) -> impl Iterator<Item = (Duration, Duration)> {
    let permits = answer["permits"].as_array().expect("permits").iter();
    slots_in(answer)
        .into_iter()
        .zip(permits.map(|permit| Duration::from_micros(permit[1].as_u64().expect("a time"))))
}

pub(super) fn t5_saturated(backend: Backend) {
    let site = Site::start(backend, 1, WORKER);
    let name = site.name();
    let workers: Vec<_> = (0..PROCESSES)
        .map(|number| {
            let worker = Worker::start(&site.worker, &site.url, &[]);
            worker.call(json!({ "command": "connect", "member": format!("client-{number}") }));
            worker
        })
        .collect();
    let start = Instant::now();
    let mut take = command(PERMITS, WINDOW);
    take["ms"] = json!(LENGTH.as_millis() as u64);
    let calls: Vec<_> = workers.iter().map(|worker| worker.send(take.clone())).collect();
    let (mut permits, mut late, mut withheld) = (Vec::new(), Duration::ZERO, Duration::ZERO);
    for (worker, call) in workers.iter().zip(calls) {
        let answer = worker.receive(call, 2 * LENGTH).expect("it ends").expect("no error");
        permits.extend(receipts(&answer));
        let time = |name: &str| Duration::from_micros(answer[name].as_u64().expect("a time"));
        late = late.max(time("late"));
        withheld += time("withheld") / PROCESSES as u32;
    }
    let took = start.elapsed();

    // By the limiter's own times, no window has more than five permits.
    permits.sort_unstable();
    let mut slots: Vec<_> = permits.iter().map(|permit| permit.0).collect();
    assert_kept(&mut slots, PERMITS, WINDOW);

    // By the callers' clock, windows have no more than five permits either, apart from the delay of responses, which no
    // limiter can avoid. The first permits are left out: they are late, because the queue is created for them.
    let first_ones = PERMITS as usize;
    let mut received: Vec<_> = permits.iter().map(|permit| permit.1).collect();
    received.sort_unstable();
    let distance = |window: &[Duration]| window[window.len() - 1] - window[0];
    let mut distances: Vec<_> =
        received[first_ones..].windows(PERMITS as usize + 1).map(distance).collect();
    distances.sort_unstable();
    let shortest = distances[LATE_ANSWERS];
    let missing = WINDOW.saturating_sub(shortest);

    // The permits of the first window come at once, so they are not included.
    let real = received[received.len() - 1] - received[0];
    let allowed = f64::from(PERMITS) * real.as_secs_f64() / WINDOW.as_secs_f64();
    let share = (permits.len() as f64 - f64::from(PERMITS)) / allowed;
    eprintln!(
        "RL1 {name}: {} permits in {real:?} (whole run {took:?}), {:.1} % of what is allowed; \
         shortest distance of six returns but {LATE_ANSWERS} {shortest:?}, {missing:?} less than a window; \
         the machine kept a process waiting for {late:?} at most, and for {withheld:?} in all",
        permits.len(),
        100.0 * share,
    );
    // While the machine withholds processor time, fewer permits can be taken, so the demanded share is lowered by the
    // share of time that was withheld.
    let starved = withheld.as_secs_f64() / took.as_secs_f64();
    assert!(share >= 0.95 - starved, "{share}, starved by {starved}");
    // An answer may be late because a timer is late, and because its process has waited for a processor.
    assert!(missing <= Duration::from_millis(20) + 2 * late, "{missing:?}");
}

coordination_tests::each_store!(processes t5_saturated);
