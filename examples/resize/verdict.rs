//! The verdict: replays the journal and compares it with the disk.
//!
//! Each resize must have read exactly what the one before it had written, and the disk must have what
//! the last one wrote. Only a worker that died between saying that it writes and saying that it
//! has done so leaves two possibilities; the next read tells which of them it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use coordination::FencingToken;

use crate::journal::{Event, Step};
use crate::storage::{Content, Result, Volume};

/// What the demo ends with.
pub(crate) struct Verdict {
    volumes: Vec<Audit>,
    killed: BTreeSet<usize>,
    incidents: Vec<String>,
}

/// What became of one volume.
struct Audit {
    volume: u32,
    disk: Content,
    /// What the disk should have.
    expected: Content,
    /// What it may have instead, as somebody stopped while writing.
    perhaps: Option<Content>,
    /// Who is in the middle of a resize, with what it is about to write.
    inside: BTreeMap<usize, Option<Content>>,
    /// Resizes that were reported as done, or seen to be by the next one.
    resizes: u64,
    /// Resizes that started from something else than what the last one had written.
    misread: u64,
    /// Steps taken while another worker was inside.
    overlaps: u64,
    /// Grants by worker, and all tokens in order.
    grants: BTreeMap<usize, u64>,
    tokens: Vec<FencingToken>,
}

impl Verdict {
    pub(crate) fn reach(
        events: &[Event],
        volumes: &[Volume],
        incidents: Vec<String>,
    ) -> Result<Self> {
        let mut killed = BTreeSet::new();
        let mut audits: BTreeMap<u32, Audit> =
            volumes.iter().map(|volume| (volume.id, Audit::new(volume.id))).collect();
        for event in events {
            if let Step::Killed = event.step {
                killed.insert(event.worker);
            }
            if let Some(audit) = audits.get_mut(&event.volume) {
                audit.replay(event, &killed);
            }
        }
        for volume in volumes {
            if let Some(audit) = audits.get_mut(&volume.id) {
                audit.close(volume.read()?);
            }
        }
        Ok(Self { volumes: audits.into_values().collect(), killed, incidents })
    }

    pub(crate) fn is_good(&self) -> bool {
        let sound = |audit: &Audit| {
            audit.lost() == 0 && audit.misread == 0 && audit.overlaps == 0 && audit.tokens_rise()
        };
        self.incidents.is_empty() && self.volumes.iter().all(sound)
    }

    fn sum(&self, of: impl Fn(&Audit) -> u64) -> u64 {
        self.volumes.iter().map(of).sum()
    }
}

impl Audit {
    fn new(volume: u32) -> Self {
        Self {
            volume,
            disk: Content::NEW,
            expected: Content::NEW,
            perhaps: None,
            inside: BTreeMap::new(),
            resizes: 0,
            misread: 0,
            overlaps: 0,
            grants: BTreeMap::new(),
            tokens: Vec::new(),
        }
    }

    fn replay(&mut self, event: &Event, killed: &BTreeSet<usize>) {
        let worker = event.worker;
        match &event.step {
            Step::Begins { token } => {
                self.bury(killed);
                self.overlaps += u64::from(!self.inside.is_empty());
                self.inside.insert(worker, None);
                *self.grants.entry(worker).or_default() += 1;
                self.tokens.extend(token);
            }
            Step::Writes { from, to } => {
                self.settle(*from);
                self.misread += u64::from(*from != self.expected);
                // Not inside any more: it was dead, and somebody else has begun.
                self.overlaps += u64::from(self.inside.insert(worker, Some(*to)).is_none());
            }
            Step::Done { to, .. } => {
                self.overlaps += u64::from(self.inside.remove(&worker).is_none());
                self.expected = *to;
                self.resizes += 1;
            }
            Step::GaveUp => self.leave(worker),
            Step::Waits | Step::Failed { .. } | Step::Killed => {}
        }
    }

    /// The dead have left, whatever they were doing.
    fn bury(&mut self, killed: &BTreeSet<usize>) {
        killed.iter().for_each(|worker| self.leave(*worker));
    }

    /// Leaves without having said that it is done; it may have written all the same.
    fn leave(&mut self, worker: usize) {
        if let Some(Some(content)) = self.inside.remove(&worker) {
            self.perhaps = Some(content);
        }
    }

    /// Somebody has read the volume: was there a last write that nobody reported?
    fn settle(&mut self, read: Content) {
        if self.perhaps.take() == Some(read) {
            self.expected = read;
            self.resizes += 1;
        }
    }

    fn close(&mut self, disk: Content) {
        let inside: Vec<usize> = self.inside.keys().copied().collect();
        inside.into_iter().for_each(|worker| self.leave(worker));
        self.settle(disk);
        self.misread += u64::from(disk != self.expected);
        self.disk = disk;
    }

    /// Resizes that were reported and are not on the disk.
    fn lost(&self) -> u64 {
        self.resizes.abs_diff(self.disk.resizes)
    }

    fn tokens_rise(&self) -> bool {
        self.tokens.is_sorted_by(|earlier, later| earlier < later)
            && self.tokens.len() as u64 == self.grants.values().sum::<u64>()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        writeln!(
            f,
            "volume  resizes  on disk  lost      size  {:<35}   held by (times)",
            "tokens"
        )?;
        for audit in &self.volumes {
            audit.row(f, &self.killed)?;
        }
        if !self.killed.is_empty() {
            writeln!(f, "{:73}+ killed", "")?;
        }
        writeln!(f)?;
        self.judge(f)
    }
}

impl Verdict {
    fn judge(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (resizes, lost) = (self.sum(|audit| audit.resizes), self.sum(Audit::lost));
        let grants = self.sum(|audit| audit.grants.values().sum());
        match (lost, self.sum(|audit| audit.misread)) {
            (0, 0) => writeln!(
                f,
                "no update lost   each of {resizes} resizes read what the one before had written, and is on disk"
            ),
            (lost, misread) => writeln!(
                f,
                "UPDATES LOST     {lost} of {resizes} resizes were reported as done and are not on disk; {misread} started from an old size"
            ),
        }?;
        match self.sum(|audit| audit.overlaps) {
            0 => writeln!(
                f,
                "no overlap       never two workers in the middle of a resize of one volume"
            ),
            overlaps => writeln!(
                f,
                "OVERLAP          {overlaps} times a worker changed a volume with another in the middle of it"
            ),
        }?;
        match self.volumes.iter().all(Audit::tokens_rise) {
            true => writeln!(
                f,
                "tokens rise      each of {grants} grants has a larger token than the one before"
            ),
            false if self.volumes.iter().all(|audit| audit.tokens.is_empty()) => {
                writeln!(f, "NO TOKENS        {grants} times a worker began without a grant")
            }
            false => writeln!(f, "TOKENS FELL      a later grant has a smaller token"),
        }?;
        self.incidents.iter().try_for_each(|incident| writeln!(f, "BESIDES          {incident}"))
    }
}

impl Audit {
    fn row(&self, f: &mut fmt::Formatter<'_>, killed: &BTreeSet<usize>) -> fmt::Result {
        let tokens = match (self.tokens.first(), self.tokens.last()) {
            (Some(first), Some(last)) => format!("{first} .. {last}"),
            _ => "none".into(),
        };
        let mark = |worker| if killed.contains(worker) { "+" } else { "" };
        let grants: Vec<String> = self
            .grants
            .iter()
            .map(|(worker, grants)| format!("w{worker}{}: {grants}", mark(worker)))
            .collect();
        writeln!(
            f,
            "vol-{:<2}  {:>7}  {:>7}  {:>4}  {:>4} GiB  {tokens:<36}  {}",
            self.volume,
            self.resizes,
            self.disk.resizes,
            self.lost(),
            self.disk.gib,
            grants.join("  ")
        )
    }
}
