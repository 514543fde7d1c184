//! Two things in turn, and the ratio of what they take.

use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Outcome;

const ROUNDS: usize = 15;

/// Puts this thread, and all that it starts, on one CPU; answers where it was allowed before.
pub(crate) fn stay_in_one_place() -> Outcome<CpuSet> {
    let all = sched_getaffinity(None)?;
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).ok_or("no CPU")?;
    sched_setaffinity(None, &only(first))?;
    Ok(all)
}

/// One CPU.
pub(crate) fn only(cpu: usize) -> CpuSet {
    let mut one = CpuSet::new();
    one.set(cpu);
    one
}

/// Times `ours` and `floor` in turn and prints the median ratio of the pairs.
pub(crate) async fn compare(
    title: &str,
    repeats: u32,
    wanted: &str,
    mut ours: impl AsyncFnMut() -> Outcome,
    mut floor: impl AsyncFnMut() -> Outcome,
) -> Outcome {
    let (mut ratios, mut own, mut least) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (a, b) = (timed(repeats, &mut ours).await?, timed(repeats, &mut floor).await?);
        // The first pair warms up.
        if round > 0 {
            ratios.push(a / b);
            own.push(a);
            least.push(b);
        }
    }
    let (ratio, low, high) = spread(&mut ratios);
    println!(
        "{title}: {ratio:.2} × the floor ({low:.2} to {high:.2}; {wanted}) — {:.1} µs beside {:.1} µs",
        spread(&mut own).0,
        spread(&mut least).0
    );
    Ok(())
}

/// Microseconds per repeat.
pub(crate) async fn timed(repeats: u32, work: &mut impl AsyncFnMut() -> Outcome) -> Outcome<f64> {
    let start = Instant::now();
    for _ in 0..repeats {
        work().await?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(repeats))
}

/// Median, least and greatest.
pub(crate) fn spread(figures: &mut [f64]) -> (f64, f64, f64) {
    figures.sort_by(f64::total_cmp);
    (figures[figures.len() / 2], figures[0], figures[figures.len() - 1])
}
