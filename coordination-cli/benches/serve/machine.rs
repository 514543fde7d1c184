//! Processors, and what the kernel says of a process.

use std::fs;
use std::thread::available_parallelism;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Outcome;

/// Where clients run, and where all that they ask.
pub(crate) struct Processors {
    clients: CpuSet,
    servers: CpuSet,
}

impl Processors {
    /// The first and the last of those that we may use, which may be one; from now on this thread, and all that it starts, has the
    /// first.
    pub(crate) fn apart() -> Outcome<Self> {
        let all = sched_getaffinity(None)?;
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu));
        let first = allowed.next().ok_or("no processor")?;
        let last = allowed.next_back().unwrap_or(first);
        let apart = Self { clients: only(first), servers: only(last) };
        sched_setaffinity(None, &apart.clients)?;
        Ok(apart)
    }

    /// What this starts has the last one.
    pub(crate) fn there<T>(&self, start: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        sched_setaffinity(None, &self.servers)?;
        let started = start();
        sched_setaffinity(None, &self.clients)?;
        started
    }
}

fn only(cpu: usize) -> CpuSet {
    let mut one = CpuSet::new();
    one.set(cpu);
    one
}

/// What this is measured on.
pub(crate) fn name() -> String {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("processors", |model| model.trim_start_matches([':', ' ', '\t']));
    let count = available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{count} × {model}, Linux {}", kernel.trim())
}

/// The memory that a process has, in MiB.
pub(crate) fn resident(process: u32) -> Outcome<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 =
        line.and_then(|line| line.split_whitespace().next()).ok_or("no size")?.parse()?;
    Ok(kib / 1_024.0)
}

/// For how long the threads of a process, all those that live, have run.
pub(crate) fn ran_for(process: u32) -> Outcome<Duration> {
    let mut nanos = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread may end meanwhile.
        let told = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        nanos += told.split_whitespace().next().map_or(Ok(0), str::parse::<u64>)?;
    }
    Ok(Duration::from_nanos(nanos))
}
