//! The demo: starts the workers, kills one in the middle of a resize, shows the next one take over.

use std::error::Error;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use coordination::Liveness;

use crate::journal::{Event, Step};
use crate::storage::{VOLUMES, Volume, WORK};
use crate::verdict::Verdict;
use crate::worker::{self, LEASE, settings};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

const WORKERS: usize = 4;

/// When a worker is killed: as soon as one is in the middle of a resize that another waits for.
const KILL_AFTER: Duration = Duration::from_millis(1500);

/// How long it all goes on, ...
const RUN: Duration = Duration::from_secs(5);

/// ... at least this long after somebody took over from the killed worker, ...
const AFTERMATH: Duration = Duration::from_secs(1);

/// ... and at most so long, whatever happens.
const LIMIT: Duration = Duration::from_secs(10);

/// How often we look whether it is time to stop, and how late that may be on a machine that is only busy.
const TURN: Duration = Duration::from_millis(50);
const LATE: Duration = Duration::from_millis(500);

/// Runs the demo and says whether the verdict is good.
pub(crate) fn run(unlocked: bool, metrics: bool) -> Result<bool> {
    let mut scratch = Scratch::create()?;
    let own = format!("file://{}/locks", escaped(&scratch.path));
    let url = std::env::var("COORDINATION_URL").unwrap_or(own);
    introduce(&url, unlocked)?;

    let volumes = Volume::all(&scratch.path);
    volumes.iter().try_for_each(Volume::create)?;
    let mut demo = Demo::start(&scratch.path, &url, unlocked)?;
    demo.watch()?;
    demo.stop()?;

    if metrics {
        println!("{}", scraped(&scratch.path)?);
    }
    let verdict = Verdict::reach(&demo.seen, &volumes, demo.incidents)?;
    println!("{verdict}");
    match (verdict.is_good(), unlocked) {
        (true, _) => println!("PASSED in {:.1} s", demo.start.elapsed().as_secs_f64()),
        (false, true) => println!("FAILED, as it should: this is what happens without the lock."),
        (false, false) => scratch.keep(&demo.seen)?,
    }
    Ok(verdict.is_good())
}

/// What was scraped from the first worker that came to its end.
fn scraped(directory: &Path) -> Result<String> {
    let mut scrapes = (1..=WORKERS).map(|number| worker::scrape(directory, number));
    let scrape = scrapes.find(|scrape| scrape.is_file()).ok_or("no worker was scraped")?;
    Ok(std::fs::read_to_string(scrape)?)
}

/// The path as it is written in a URL.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace('%', "%25").replace('?', "%3F").replace('#', "%23")
}

/// Connects once, so that a wrong URL is one clear error and not four.
#[tokio::main]
async fn introduce(url: &str, unlocked: bool) -> Result<()> {
    let coordinator = settings().connect(url).await?;
    let freed = match coordinator.characteristics().liveness {
        Liveness::Process => "a killed worker's locks are free at once".to_owned(),
        _ => format!("a killed worker's locks are free when its lease of {LEASE:?} ends"),
    };
    coordinator.stop().await?;
    // Not the whole URL: it may hold a password.
    let scheme = url.split(':').next().unwrap_or_default();
    println!("{WORKERS} workers, {VOLUMES} volumes, locks by {scheme}: {freed}");
    if unlocked {
        println!("--unlocked: but nobody takes a lock");
    }
    println!();
    Ok(())
}

struct Demo {
    unlocked: bool,
    start: Instant,
    workers: Vec<Child>,
    /// Our end of the journal's pipe, to note a kill in it; `None` when it is too late to kill.
    journal: Option<PipeWriter>,
    events: mpsc::Receiver<Event>,
    seen: Vec<Event>,
    /// The last step of each worker, and when we read of it.
    doing: Vec<Option<(Event, Instant)>>,
    victim: Option<Victim>,
    /// When somebody took over.
    takeover: Option<Instant>,
    /// The longest time in which we were to run and did not.
    stood_still: Duration,
    /// What went wrong that no journal tells.
    incidents: Vec<String>,
}

struct Victim {
    worker: usize,
    volume: u32,
    at: Instant,
    /// The journal has come to the kill.
    noted: bool,
}

impl Demo {
    fn start(directory: &Path, url: &str, unlocked: bool) -> Result<Self> {
        let (reader, journal) = std::io::pipe()?;
        let workers = (1..=WORKERS)
            .map(|number| {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["--worker", &number.to_string()]).arg(directory);
                command.args(unlocked.then_some("--unlocked"));
                command.env("COORDINATION_URL", url);
                // They stop when their standard input ends: when we say so, and when we die.
                command.stdin(Stdio::piped()).stdout(journal.try_clone()?).spawn()
            })
            .collect::<std::io::Result<Vec<Child>>>()?;
        Ok(Self {
            unlocked,
            start: Instant::now(),
            workers,
            journal: Some(journal),
            events: follow(reader),
            seen: Vec::new(),
            doing: vec![None; WORKERS],
            victim: None,
            takeover: None,
            stood_still: Duration::ZERO,
            incidents: Vec::new(),
        })
    }

    /// Shows what happens until it is time to stop.
    fn watch(&mut self) -> Result<()> {
        while !self.is_over()? {
            let turn = Instant::now();
            match self.events.recv_timeout(TURN) {
                Ok(event) => self.see(event)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.stood_still = self.stood_still.max(turn.elapsed().saturating_sub(TURN));
        }
        if self.takeover.is_none() && !self.unlocked {
            let what = match &self.victim {
                Some(victim) => {
                    let (worker, since) = (victim.worker, victim.at.elapsed().as_secs_f64());
                    format!("nobody took over from w{worker} within {since:.1} s of its death")
                }
                None => {
                    "nobody was killed: in no resize was it seen in time that another waits".into()
                }
            };
            self.incidents.push(format!("{what}{}", self.excuse()));
        }
        Ok(())
    }

    /// Why it may be, if not for the locks.
    fn excuse(&self) -> String {
        match self.stood_still > LATE {
            true => format!(
                "; this machine stood still for {:.1} s meanwhile",
                self.stood_still.as_secs_f64()
            ),
            false => String::new(),
        }
    }

    fn is_over(&mut self) -> Result<bool> {
        let mut running = 0;
        for worker in &mut self.workers {
            running += usize::from(worker.try_wait()?.is_none());
        }
        let time = self.start.elapsed();
        let shown = self.unlocked || self.takeover.is_some_and(|at| at.elapsed() > AFTERMATH);
        Ok(running == 0 || time > LIMIT || (time > RUN && shown))
    }

    fn see(&mut self, event: Event) -> Result<()> {
        self.show(&event);
        match event.step {
            Step::Killed => self.see_kill(),
            _ => self.doing[event.worker - 1] = Some((event.clone(), Instant::now())),
        }
        if let Step::Begins { .. } = event.step {
            self.see_takeover(&event);
        }
        self.seen.push(event);
        self.kill_perhaps()
    }

    fn show(&self, event: &Event) {
        let Event { worker, volume, step } = event;
        let what = match step {
            Step::Done { from, to } => {
                let token = to.token.map_or("no token".into(), |token| format!("token {token}"));
                format!("{:>3} -> {:>3} GiB   {token}", from.gib, to.gib)
            }
            Step::GaveUp => "stopped in the middle of a resize".into(),
            Step::Failed { error } => format!("failed: {error}"),
            Step::Waits | Step::Begins { .. } | Step::Writes { .. } | Step::Killed => return,
        };
        self.say(*worker, *volume, &what);
    }

    fn say(&self, worker: usize, volume: u32, what: &str) {
        println!("{:6.2} s  w{worker}  vol-{volume}  {what}", self.start.elapsed().as_secs_f64());
    }

    /// Kills a worker in the middle of a resize, if it is time for that and somebody waits for it.
    fn kill_perhaps(&mut self) -> Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        if self.victim.is_some() || self.start.elapsed() < KILL_AFTER {
            return Ok(());
        }
        let fits = |(event, at): &&(Event, Instant)| {
            matches!(event.step, Step::Begins { .. })
                && at.elapsed() < WORK / 2
                && (self.unlocked || !self.waiting(event.volume).is_empty())
        };
        let Some((event, _)) = self.doing.iter().flatten().find(fits) else { return Ok(()) };
        let Event { worker, volume, .. } = *event;
        // The note first: who begins before it in the journal did not inherit from the dead.
        Event { worker, volume, step: Step::Killed }.append(journal)?;
        self.workers[worker - 1].kill()?;
        self.victim = Some(Victim { worker, volume, at: Instant::now(), noted: false });
        self.workers[worker - 1].wait()?;
        Ok(())
    }

    /// The journal has come to the kill: now it is known what the victim was doing.
    fn see_kill(&mut self) {
        let Some(Victim { worker, volume, .. }) = self.victim else { return };
        let last = self.doing[worker - 1].take().map(|(event, _)| event.step);
        if matches!(last, Some(Step::Begins { .. } | Step::Writes { .. })) {
            let waiting = match self.waiting(volume).as_slice() {
                [] => String::new(),
                waiting => format!("; waiting: {}", waiting.join(" ")),
            };
            self.say(worker, volume, &format!("KILLED in the middle of a resize{waiting}"));
            self.victim = self.victim.take().map(|victim| Victim { noted: true, ..victim });
        } else {
            self.say(worker, volume, "killed a moment too late, it had finished; once more");
            self.victim = None;
        }
    }

    /// The first to begin in the killed worker's volume.
    fn see_takeover(&mut self, begins: &Event) {
        let Some(victim) = self.victim.as_ref().filter(|victim| victim.noted) else { return };
        if self.takeover.is_some() || victim.volume != begins.volume || self.unlocked {
            return;
        }
        let after = victim.at.elapsed().as_secs_f64() * 1e3;
        let what = format!("TAKES OVER from w{}, {after:.1} ms after its death", victim.worker);
        self.say(begins.worker, begins.volume, &what);
        self.takeover = Some(Instant::now());
    }

    /// Who waits for a volume.
    fn waiting(&self, volume: u32) -> Vec<String> {
        let last = self.doing.iter().flatten().map(|(event, _)| event);
        last.filter(|event| event.volume == volume && matches!(event.step, Step::Waits))
            .map(|event| format!("w{}", event.worker))
            .collect()
    }

    /// Lets the workers finish what they do, and reads the journal to its end.
    fn stop(&mut self) -> Result<()> {
        for worker in &mut self.workers {
            drop(worker.stdin.take());
        }
        self.journal = None;
        let mut statuses = Vec::new();
        for worker in &mut self.workers {
            statuses.push(worker.wait()?);
        }
        while let Ok(event) = self.events.recv() {
            self.see(event)?;
        }
        for (worker, status) in (1..).zip(statuses) {
            let killed =
                |event: &Event| event.worker == worker && matches!(event.step, Step::Killed);
            if !status.success() && !self.seen.iter().any(killed) {
                self.incidents.push(format!("w{worker} ended with {status}{}", self.excuse()));
            }
        }
        Ok(())
    }
}

/// Reads the journal on a thread of its own, so that nobody waits for ever for a line.
fn follow(journal: PipeReader) -> mpsc::Receiver<Event> {
    let (sender, events) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(journal).lines().map_while(Result::ok) {
            let Ok(event) = serde_json::from_str(&line) else {
                eprintln!("not a line of the journal: {line}");
                continue;
            };
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    events
}

/// The demo's directory: volumes and, by default, locks. Removed at the end, unless it is evidence.
struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    fn create() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("coordination-resize-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { path, keep: false })
    }

    fn keep(&mut self, seen: &[Event]) -> Result<()> {
        self.keep = true;
        let mut journal = std::fs::File::create(self.path.join("journal"))?;
        seen.iter().try_for_each(|event| event.append(&mut journal))?;
        println!("FAILED; the journal and the volumes are in {}", self.path.display());
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
