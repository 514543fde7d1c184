//! Measures how much memory and how many threads and descriptors the processes have that are never killed.

use std::{
    fs,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

const EVERY: Duration = Duration::from_secs(1);

/// What one process had at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    seconds: f64,
    rss_mib: f64,
    threads: u64,
    descriptors: usize,
}

/// The samples of some processes, a list for each. A background thread takes further samples until this value is
/// dropped.
#[derive(Debug)]
pub(super) struct Sampler(Arc<Mutex<Vec<Vec<Sample>>>>);

/// How the needs of a process changed during the run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// The memory in the first sample and in the last one, in MiB.
    pub rss_mib: (f64, f64),
    /// How fast the memory grew in the second half of the time, in MiB per hour (by least squares).
    pub slope: f64,
    /// The number of threads in the middle sample and in the last one.
    pub threads: (u64, u64),
    /// The number of file descriptors in the middle sample and in the last one.
    pub descriptors: (usize, usize),
}

impl Sampler {
    pub(super) fn start(processes: Vec<u32>) -> Self {
        let samples = Arc::new(Mutex::new(vec![Vec::new(); processes.len()]));
        let taken = Arc::downgrade(&samples);
        let begun = Instant::now();
        thread::spawn(move || {
            while let Some(taken) = taken.upgrade() {
                for (index, process) in processes.iter().enumerate() {
                    if let Some(sample) = sample(*process, begun.elapsed()) {
                        taken.lock().unwrap_or_else(PoisonError::into_inner)[index].push(sample);
                    }
                }
                thread::sleep(EVERY);
            }
        });
        Self(samples)
    }

    /// The needs of each process.
    pub(super) fn needs(&self) -> Vec<Needs> {
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        samples.iter().filter_map(|samples| needs(samples)).collect()
    }
}

fn sample(process: u32, after: Duration) -> Option<Sample> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let number = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse::<u32>().ok()
    };
    Some(Sample {
        seconds: after.as_secs_f64(),
        rss_mib: f64::from(number("VmRSS:")?) / 1_024.0,
        threads: u64::from(number("Threads:")?),
        descriptors: fs::read_dir(format!("/proc/{process}/fd")).ok()?.count(),
    })
}

fn needs(samples: &[Sample]) -> Option<Needs> {
    let second = samples.get(samples.len() / 2..)?;
    let (first, middle, last) = (samples.first()?, second.first()?, samples.last()?);
    Some(Needs {
        rss_mib: (first.rss_mib, last.rss_mib),
        slope: slope(second) * 3_600.0,
        threads: (middle.threads, last.threads),
        descriptors: (middle.descriptors, last.descriptors),
    })
}

/// How fast the memory grew in these samples, in MiB per second (by least squares).
fn slope(samples: &[Sample]) -> f64 {
    let count = samples.len() as f64;
    let mean = |of: fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|sample| sample.seconds), mean(|sample| sample.rss_mib));
    let (above, below) = samples.iter().fold((0.0, 0.0), |(above, below), sample| {
        let dx = sample.seconds - x;
        (above + dx * (sample.rss_mib - y), below + dx * dx)
    });
    if below > 0.0 { above / below } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_that_of_the_second_half() {
        let samples: Vec<_> = (0..100_i32)
            .map(|second| Sample {
                seconds: f64::from(second),
                // The memory grows fast at first, and then by one MiB per hour, with some noise.
                rss_mib: f64::from(second.min(40))
                    + f64::from(second) / 3_600.0
                    + f64::from(second % 2) * 0.001,
                threads: 3,
                descriptors: 20,
            })
            .collect();
        let needs = needs(&samples).expect("there are samples");
        assert!((needs.slope - 1.0).abs() < 0.2, "{needs:?}");
        assert_eq!((needs.threads, needs.descriptors), ((3, 3), (20, 20)));
    }

    #[test]
    fn this_process_can_be_sampled() {
        let taken = sample(std::process::id(), Duration::ZERO).expect("it runs");
        assert!(taken.rss_mib > 0.1 && taken.threads > 0 && taken.descriptors > 2, "{taken:?}");
    }
}
