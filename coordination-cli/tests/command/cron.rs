//! Two crontabs that start the same job too often, while wrappers are killed.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use coordination_tests::harness::wait_until;
use rustix::process::Signal;

use super::{LONG, Store, Wrapper, written};

const RUN: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(200);
/// Contract 2.11: on one host 50 ms, and the rest for processes to start on a busy machine.
const TAKEOVER: Duration = Duration::from_millis(100);

#[test]
fn a_job_never_runs_twice() {
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
        let (start, mut started, mut codes) = (Instant::now(), Vec::new(), Vec::new());
        while start.elapsed() < RUN {
            let mut wrapper = Wrapper::start(&mut store.coordination(words));
            thread::sleep(TICK);
            // Every third one is killed if it works.
            if kills && started.len() % 3 == 2 && wrapper.is_running() {
                wrapper.signal(Signal::KILL);
            }
            started.push(wrapper);
        }
        codes.extend(started.iter_mut().map(Wrapper::code));
        codes
    };
    let codes = thread::scope(|scope| {
        let other = scope.spawn(|| crontab(true));
        let mut codes = crontab(false);
        codes.extend(other.join().expect("it does not panic"));
        codes
    });
    assert!(codes.iter().all(|code| matches!(code, Some(0) | None)), "99 is an overlap: {codes:?}");
    let ran = written(&runs).lines().count();
    assert!(ran >= 20 && ran < codes.len(), "{ran} of {} ran", codes.len());
    println!(
        "{ran} of {} ran, {} were killed",
        codes.len(),
        codes.iter().filter(|code| code.is_none()).count()
    );
}

#[test]
fn the_next_one_takes_over_from_one_that_is_killed() {
    let store = Store::file();
    let mut took = Vec::new();
    for round in 0..20 {
        let (first, second) =
            (store.path(&format!("first-{round}")), store.path(&format!("second-{round}")));
        let script = |path: &std::path::Path, then: &str| {
            let name =
                path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            let text = format!("#!/bin/sh\ndate +%s%N > {}\n{then}\n", path.display());
            store.script(&format!("{name}.sh"), &text)
        };
        let holder = store
            .start(&format!("--singleton job --standby 1 -- {}", script(&first, "exec sleep 60")));
        written(&first);
        let mut standby =
            store.start(&format!("--singleton job --standby 1 -- {}", script(&second, "")));
        thread::sleep(Duration::from_millis(100));
        let killed = nanos(
            &Command::new("date")
                .arg("+%s%N")
                .stdout(Stdio::piped())
                .output()
                .expect("date")
                .stdout,
        );
        holder.signal(Signal::KILL);
        assert_eq!(standby.code(), Some(0));
        assert!(wait_until(LONG, || second.exists()));
        took.push(Duration::from_nanos(nanos(written(&second).as_bytes()).saturating_sub(killed)));
    }
    took.sort_unstable();
    println!(
        "taken over after {:?} in the middle, {:?} at worst",
        took[took.len() / 2],
        took[took.len() - 1]
    );
    assert!(took[took.len() / 2] < TAKEOVER, "{took:?}");
    assert!(took[took.len() - 1] < 10 * TAKEOVER, "{took:?}");
}

fn nanos(text: &[u8]) -> u64 {
    String::from_utf8_lossy(text).trim().parse().expect("a number")
}
