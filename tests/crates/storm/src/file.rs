//! The storm on `file://`: several processes use one directory, and the driver kills one of them each second.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use coordination::Coordinator;
use coordination_history::Event;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::sleep;

use crate::client::Client;
use crate::diary::Diary;
use crate::options::Options;
use crate::remains::{self, is_soon};
use crate::{Complaint, ENDING, Progress};

/// The time between two kills.
const KILLING: Duration = Duration::from_secs(1);
/// The time between two reports of a process about its number of grants.
const REPORTING: Duration = Duration::from_millis(20);

/// A client process, as the driver sees it. The process ends when its standard input is closed, so it also ends if the
/// driver is killed.
struct Process {
    id: u32,
    child: Child,
    input: Option<ChildStdin>,
    /// The number of grants that the process has reported. If the process is killed, its grants after the last report
    /// are not counted.
    granted: Arc<AtomicU64>,
    listener: Option<JoinHandle<()>>,
}

/// The driver of the storm: it starts and kills the client processes.
struct Driver<'a> {
    options: &'a Options,
    diary: Diary,
    processes: Vec<Process>,
    started: u32,
    /// The number of grants that killed processes had reported.
    granted: u64,
}

pub(crate) async fn run(options: &Options) -> Result<(), Complaint> {
    let diary = Diary::open(&options.histories(), 0, &options.targets());
    let diary = diary.expect("the directory is ours");
    let mut driver = Driver { options, diary, processes: Vec::new(), started: 0, granted: 0 };
    for _ in 0..options.clients {
        driver.start();
    }
    driver.storm().await?;
    driver.end().await?;
    let witness = Coordinator::connect(&options.url()).await.map_err(|error| error.to_string())?;
    remains::look(&witness, options, &driver.diary).await?;
    remains::look_at_files(options)?;
    witness.stop().await.map_err(|error| error.to_string())
}

impl Driver<'_> {
    fn start(&mut self) {
        self.started += 1;
        self.processes.push(Process::start(self.options, self.started));
    }

    /// Kills processes and starts others until there were enough grants.
    async fn storm(&mut self) -> Result<(), Complaint> {
        let mut random = StdRng::seed_from_u64(self.options.seed);
        let mut next_kill = Instant::now() + KILLING;
        let mut progress = Progress::new();
        while progress.granted < self.options.grants {
            sleep(REPORTING).await;
            progress.saw(self.granted())?;
            for process in &mut self.processes {
                if let Ok(Some(status)) = process.child.try_wait() {
                    return Err(format!("process {} ended by itself: {status}", process.id));
                }
            }
            if Instant::now() >= next_kill {
                next_kill += KILLING;
                let victim = random.random_range(0..self.processes.len());
                self.kill(victim);
                self.start();
            }
        }
        Ok(())
    }

    fn kill(&mut self, index: usize) {
        let mut process = self.processes.swap_remove(index);
        self.diary.note_of_client(process.id, Event::Fault { kind: 0 });
        process.child.kill().expect("it is ours");
        process.child.wait().expect("it is ours");
        self.diary.note_of_client(process.id, Event::Crash);
        self.diary.note_of_client(process.id, Event::FaultEnd { kind: 0 });
        self.granted += process.told();
    }

    fn granted(&self) -> u64 {
        let living = self.processes.iter().map(|process| process.granted.load(Ordering::Relaxed));
        self.granted + living.sum::<u64>()
    }

    /// Tells all processes to end, and waits until they have ended.
    async fn end(&mut self) -> Result<(), Complaint> {
        for process in &mut self.processes {
            process.input = None;
        }
        self.diary.note_of_client(0, Event::Healed);
        let all_ended = || self.processes.iter().all(Process::has_ended);
        if !is_soon(ENDING, all_ended).await {
            return Err(format!("some waiter was not served within {ENDING:?} after the storm"));
        }
        for process in &mut self.processes {
            let status = process.child.wait().expect("it is ours");
            if !status.success() {
                return Err(format!("process {} ended with {status}", process.id));
            }
        }
        Ok(())
    }
}

impl Process {
    fn start(options: &Options, id: u32) -> Self {
        let program = std::env::current_exe().expect("it runs");
        let mut child = std::process::Command::new(program)
            .args(options.command_line().split(' '))
            .args(["--client".to_owned(), id.to_string(), "--directory".to_owned()])
            .arg(&options.directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it is this program");
        let granted = Arc::new(AtomicU64::new(0));
        let (output, told) = (child.stdout.take(), Arc::clone(&granted));
        let listener = thread::spawn(move || {
            let output = BufReader::new(output.expect("it is piped"));
            // A killed process may leave an incomplete last line, which is not counted if it is no number.
            for count in output.lines().map_while(Result::ok).filter_map(|line| line.parse().ok()) {
                told.fetch_max(count, Ordering::Relaxed);
            }
        });
        Self { id, input: child.stdin.take(), child, granted, listener: Some(listener) }
    }

    /// Whether the process has ended. When the process ends, its output ends too, and so does the thread that listens
    /// to it.
    fn has_ended(&self) -> bool {
        self.listener.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the output of the process has ended, and returns the number of grants that it has reported.
    fn told(&mut self) -> u64 {
        let listened = self.listener.take().map(JoinHandle::join);
        listened.transpose().expect("it only reads");
        self.granted.load(Ordering::Relaxed)
    }
}

/// Runs one client process of the storm.
pub(crate) fn client(options: &Options, id: u32) -> ExitCode {
    match storm(options, id) {
        Ok(()) => ExitCode::SUCCESS,
        Err(complaint) => {
            eprintln!("process {id}: {complaint}");
            ExitCode::FAILURE
        }
    }
}

fn storm(options: &Options, id: u32) -> Result<(), Complaint> {
    let (granted, over): (Arc<AtomicU64>, Arc<AtomicBool>) = Default::default();
    report(&granted);
    let targets = options.targets();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let before = Own::count()?;
        end_with_input(&over);
        let diary = Diary::open(&options.histories(), id, &targets);
        let diary = diary.map_err(|error| error.to_string())?;
        let (seed, load) = (options.seed, options.load);
        let client = Client { id, seed, load, diary, targets, granted, over };
        client.run(&options.url(), options.tasks).await.map_err(|error| error.to_string())?;
        let is_clean = || Own::count().is_ok_and(|now| before.covers(now));
        match is_soon(ENDING, is_clean).await {
            true => Ok(()),
            false => Err(format!("{:?} where there were {before:?} before", Own::count())),
        }
    })
}

/// Starts a thread that keeps printing the number of grants to standard output.
fn report(granted: &Arc<AtomicU64>) {
    let granted = Arc::clone(granted);
    thread::spawn(move || {
        loop {
            // Printing fails if the driver was killed. The error is ignored, because standard input is closed too when
            // the driver is killed, and this process ends when it sees that.
            let _ = writeln!(std::io::stdout(), "{}", granted.load(Ordering::Relaxed));
            thread::sleep(REPORTING);
        }
    });
}

fn end_with_input(over: &Arc<AtomicBool>) {
    let over = Arc::clone(over);
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        over.store(true, Ordering::Relaxed);
    });
}

/// How many threads and file descriptors this process has. At the end it must not have more than at the beginning.
#[derive(Clone, Copy, Debug)]
struct Own {
    threads: usize,
    descriptors: usize,
}

impl Own {
    fn count() -> Result<Self, Complaint> {
        Ok(Self { threads: count("/proc/self/task")?, descriptors: count("/proc/self/fd")? })
    }

    fn covers(self, now: Self) -> bool {
        now.threads <= self.threads && now.descriptors <= self.descriptors
    }
}

fn count(directory: &str) -> Result<usize, Complaint> {
    let files = fs::read_dir(directory).map_err(|error| format!("{directory}: {error}"))?;
    Ok(files.count())
}

impl Drop for Process {
    fn drop(&mut self) {
        // If all went well, the process has ended already and these calls do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
