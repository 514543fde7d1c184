//! Two crontabs that start the same job too often, while wrappers are killed.

use std::thread;
use std::time::{Duration, Instant};

use coordination_tests::harness::rerun_if_starved;
use rustix::process::Signal;

use crate::crontab::{Case, as_promised};
use crate::{Store, Wrapper, written};

const RUN: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(200);
/// The code of who died of SIGKILL.
const KILLED: i32 = 128 + 9;

#[test]
fn each_line_runs_as_often_as_promised() {
    rerun_if_starved(|| as_promised(&Case::all(&[0, 500, 2_000], &[100, 1_300, 5_000])));
}

#[test]
fn a_job_never_runs_twice() {
    rerun_if_starved(|| {
        let store = Store::file();
        let (alive, runs) = (store.path("alive"), store.path("runs"));
        // As long as it lives it has a lock of the kernel's; 99 is an overlap.
        let text = format!(
            "#!/bin/sh\nexec flock -n -E 99 {} sh -c 'echo run >> {}; sleep 0.$(($(od -An -N1 -tu1 /dev/urandom) % 5))'\n",
            alive.display(),
            runs.display()
        );
        let job = store.script("job", &text);
        let words = ["run", "--singleton", "job", "--if-busy", "skip", "--", &job];
        let crontab = |kills: bool| {
            let (start, mut started) = (Instant::now(), Vec::new());
            while start.elapsed() < RUN {
                let mut wrapper = Wrapper::start(&mut store.coordination(words));
                thread::sleep(TICK);
                // Every third one is killed if it works.
                let kill = kills && started.len() % 3 == 2 && wrapper.is_running();
                if kill {
                    wrapper.signal(Signal::KILL);
                }
                started.push((wrapper, kill));
            }
            let ends = started.iter_mut().map(|(wrapper, kill)| (wrapper.code(), *kill));
            ends.collect::<Vec<_>>()
        };
        let ends = thread::scope(|scope| {
            let other = scope.spawn(|| crontab(true));
            let mut ends = crontab(false);
            ends.extend(other.join().expect("it does not panic"));
            ends
        });
        // Whoever is killed dies of that, unless it has ended just before.
        let is_right = |end: &(Option<i32>, bool)| match end {
            (Some(code), true) => [0, KILLED].contains(code),
            (code, false) => *code == Some(0),
            (None, true) => false,
        };
        let wrong: Vec<_> = ends.iter().filter(|end| !is_right(end)).collect();
        assert!(wrong.is_empty(), "99 is an overlap: {wrong:?} of {}", ends.len());
        let ran = written(&runs).lines().count();
        assert!(ran >= 20 && ran < ends.len(), "{ran} of {} ran", ends.len());
        let killed = ends.iter().filter(|(code, _)| *code == Some(KILLED)).count();
        println!("{ran} of {} ran, {killed} were killed", ends.len());
        assert!(killed > 0, "nobody was killed");
    });
}
