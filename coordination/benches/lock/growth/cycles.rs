//! Something that is done again and again, and many things at the same time.

use std::ops::Range;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::Outcome;

/// How many values there are of something, and how long it is repeated for one.
const VALUES: usize = 5;
const SLICE: Duration = Duration::from_millis(150);
/// How many things are made at the same time.
const AT_ONCE: usize = 64;

/// Microseconds per repeat: some values, or fewer if one repeat takes long.
pub(super) async fn repeated(mut work: impl AsyncFnMut() -> Outcome) -> Outcome<Vec<f64>> {
    let (all, mut values) = (Instant::now(), Vec::new());
    while values.len() < VALUES && all.elapsed() < 2 * SLICE * VALUES as u32 {
        let (begun, mut repeats) = (Instant::now(), 0.0);
        while begun.elapsed() < SLICE {
            work().await?;
            repeats += 1.0;
        }
        values.push(begun.elapsed().as_secs_f64() * 1e6 / repeats);
    }
    Ok(values)
}

/// Makes things until it is late, many at the same time, and adds them to those that there are.
pub(super) async fn make<T: Send + 'static, F>(
    things: &mut Vec<T>,
    mut numbers: Range<usize>,
    until: Instant,
    make: impl Fn(usize) -> F,
) -> Outcome
where
    F: Future<Output = coordination::Result<T>> + Send + 'static,
{
    let mut making = JoinSet::new();
    loop {
        while making.len() < AT_ONCE
            && Instant::now() < until
            && let Some(number) = numbers.next()
        {
            making.spawn(make(number));
        }
        match making.join_next().await {
            Some(made) => things.push(made??),
            None => return Ok(()),
        }
    }
}
