//! What the kernel says of a process, and where threads run.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Outcome;

/// Puts this thread, and all that it starts, on one CPU; answers where it was allowed before.
pub(crate) fn stay_in_one_place() -> Outcome<CpuSet> {
    let all = sched_getaffinity(None)?;
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).ok_or("no CPU")?;
    sched_setaffinity(None, &only(first))?;
    Ok(all)
}

/// The last of these CPUs: another than that of [`stay_in_one_place`], if there are two.
#[cfg(feature = "_network")]
pub(crate) fn last(allowed: &CpuSet) -> Outcome<CpuSet> {
    let last = (0..CpuSet::MAX_CPU).rfind(|cpu| allowed.is_set(*cpu)).ok_or("no CPU")?;
    Ok(only(last))
}

fn only(cpu: usize) -> CpuSet {
    let mut one = CpuSet::new();
    one.set(cpu);
    one
}

/// How many bytes of memory a process has.
pub(crate) fn resident(process: u32) -> Outcome<u64> {
    Ok(status(process, "VmRSS:")? * 1024)
}

/// How many threads a process has.
pub(crate) fn threads(process: u32) -> Outcome<u64> {
    status(process, "Threads:")
}

fn status(process: u32, field: &str) -> Outcome<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next()).ok_or("no figure")?;
    Ok(number.parse()?)
}

/// How many bytes of memory a process and its children have for themselves: PostgreSQL has a process for each connection, and
/// what they share counts once.
pub(crate) fn memory_of_all(process: u32) -> Outcome<u64> {
    let mut sum = 0;
    for process in family(process)? {
        // Who may not read this is told what the process shares, too. A child may end meanwhile.
        sum += proportional(process).or_else(|_| resident(process)).unwrap_or_default();
    }
    Ok(sum)
}

fn proportional(process: u32) -> Outcome<u64> {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).ok_or("no figure")?;
    Ok(line.split_whitespace().next().ok_or("no figure")?.parse::<u64>()? * 1024)
}

/// For how long a process and its children, all those that live, have run.
pub(crate) fn time_of_all(process: u32) -> Outcome<Duration> {
    let mut sum = 0;
    for process in family(process)? {
        // Children and threads may end meanwhile.
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
        sum += threads.flatten().filter_map(|thread| ran_for(&thread.path())).sum::<u64>();
    }
    match sum {
        0 => Err("the kernel does not tell for how long threads have run".into()),
        sum => Ok(Duration::from_nanos(sum)),
    }
}

fn ran_for(thread: &Path) -> Option<u64> {
    fs::read_to_string(thread.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()
}

fn family(process: u32) -> Outcome<Vec<u32>> {
    let mut all = vec![process];
    for entry in fs::read_dir("/proc")? {
        let Ok(number) = entry?.file_name().to_string_lossy().parse::<u32>() else { continue };
        if status(number, "PPid:").is_ok_and(|parent| parent == u64::from(process)) {
            all.push(number);
        }
    }
    Ok(all)
}
