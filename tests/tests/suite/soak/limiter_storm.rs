//! Thirty-two processes enter and leave one limiter for half a minute, on every store that processes can share.

use std::time::Duration;

use coordination::Coordinator;
use coordination_tests::checks::Backend;
use coordination_tests::faults::Site;
use coordination_tests::harness::Worker;
use coordination_tests::must_hold;
use serde_json::{Value, json};

use crate::WORKER;

const PROCESSES: usize = 32;
const SLOTS: usize = 4;
const STANDBY: usize = 2;
const LENGTH: Duration = Duration::from_secs(30);

/// A stay in a slot, measured from after its grant to before its release.
#[derive(Clone, Copy, Debug)]
struct Stay {
    slot: u64,
    from: u64,
    to: u64,
    token: u64,
}

pub(super) fn storm(backend: Backend) {
    let site = Site::start(backend, 1, WORKER);
    let url = &*site.url;
    let workers: Vec<_> = (0..PROCESSES)
        .map(|index| {
            let worker = Worker::start(&site.worker, url, &[]);
            worker.call(json!({ "command": "connect", "member": format!("process-{index}") }));
            worker
        })
        .collect();
    let command = json!({
        "command": "come_and_go", "limiter": "pool", "slots": SLOTS, "standby": STANDBY,
        "timeout_ms": 10_000, "ms": LENGTH.as_millis() as u64, "hold_us": 5_000,
    });
    let sent: Vec<_> = workers.iter().map(|worker| worker.send(command.clone())).collect();
    let samples = sample(url);
    let mut stays = Vec::new();
    let mut refused = 0;
    for (worker, id) in workers.iter().zip(sent) {
        let told = worker.receive(id, LENGTH).expect("it ends").expect("no error");
        let mine: Vec<Stay> = told["stays"].as_array().expect("a list").iter().map(stay).collect();
        assert!(!mine.is_empty(), "nobody starves");
        stays.extend(mine);
        refused += told["refused"].as_u64().unwrap_or_default();
    }
    assert!(samples > 100, "{samples} samples");
    println!("{url}: {} stays, {refused} refusals, {samples} samples", stays.len());
    judge(stays);
}

fn stay(told: &Value) -> Stay {
    let number = |index: usize| told[index].as_u64().expect("a number");
    Stay { slot: number(0), from: number(1), to: number(2), token: number(3) }
}

/// Inspects the limiter again and again, and asserts that no slot is ever taken twice, and that no more slots and
/// standby places are in use than the limiter has. Returns the number of inspections.
fn sample(url: &str) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let coordinator = Coordinator::connect(url).await.expect("in reach");
        let limiter = coordinator.limiter("pool").expect("a valid name");
        let (begun, mut samples) = (tokio::time::Instant::now(), 0);
        while begun.elapsed() < LENGTH {
            let inside = limiter.inspect().await.expect("in reach");
            let mut slots: Vec<_> = inside.iter().flat_map(|occupant| &occupant.slots).collect();
            let working = slots.len();
            slots.sort_unstable();
            slots.dedup();
            must_hold!(slots.len() == working, "a slot is taken twice: {inside:?}");
            must_hold!(working <= SLOTS, "{inside:?}");
            let waiting = inside.iter().filter(|occupant| occupant.standby).count();
            must_hold!(waiting <= STANDBY, "{inside:?}");
            samples += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        samples
    })
}

/// Asserts that no two stays in one slot overlap, that each slot's tokens rise, and that never more slots are in use
/// than the limiter has.
fn judge(mut stays: Vec<Stay>) {
    stays.sort_by_key(|stay| stay.from);
    let mut in_slot = [None::<Stay>; SLOTS];
    let mut edges = Vec::new();
    for stay in stays {
        let index = usize::try_from(stay.slot - 1).expect("a slot");
        let slot = in_slot.get_mut(index).expect("no more slots than there are");
        if let Some(before) = slot.replace(stay) {
            assert!(before.to < stay.from, "two in one slot: {before:?} {stay:?}");
            must_hold!(before.token < stay.token, "tokens of a slot rise: {before:?} {stay:?}");
        }
        edges.extend([(stay.from, 1_isize), (stay.to, -1)]);
    }
    edges.sort_unstable();
    let most = edges.iter().scan(0, |inside, (_, step)| {
        *inside += step;
        Some(*inside)
    });
    let most = most.max().unwrap_or_default();
    assert!(most >= 2 && most <= SLOTS as isize, "{most} at a time");
}

coordination_tests::each_store!(alone processes storm);
