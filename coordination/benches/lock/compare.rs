//! Two things in turn, and the ratio of what they take; and in turn with them what others use.

use std::time::Instant;

use crate::Outcome;
use crate::peers::Peer;
use crate::record::{Measure, Side};

const ROUNDS: usize = 15;

/// What is compared.
pub(crate) struct Comparison<'a> {
    pub(crate) measure: Measure<'a>,
    pub(crate) title: &'a str,
    pub(crate) wanted: &'a str,
    /// How often it is done in each round.
    pub(crate) repeats: u32,
}

/// Times `ours` and `floor` in turn and prints the median ratio of the pairs.
pub(crate) async fn compare(
    what: &Comparison<'_>,
    mut ours: impl AsyncFnMut() -> Outcome,
    mut floor: impl AsyncFnMut() -> Outcome,
    peers: &mut [Peer<'_>],
) -> Outcome {
    let (mut ratios, mut own, mut least) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let repeats = what.repeats;
        let (a, b) = (timed(repeats, &mut ours).await?, timed(repeats, &mut floor).await?);
        // The first pair warms up.
        let counts = round > 0;
        if counts {
            ratios.push(a / b);
            own.push(a);
            least.push(b);
        }
        for peer in &mut *peers {
            peer.run(counts).await;
        }
    }
    what.measure.values(Side::Ours, None, &own)?;
    what.measure.values(Side::Floor, None, &least)?;
    let (ratio, low, high) = spread(&mut ratios);
    let floor = spread(&mut least).0;
    println!(
        "{}: {ratio:.2} × the floor ({low:.2} to {high:.2}; {}) — {:.1} µs beside {floor:.1} µs",
        what.title,
        what.wanted,
        spread(&mut own).0,
    );
    peers.iter().try_for_each(|peer| peer.tell(what, floor))
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
