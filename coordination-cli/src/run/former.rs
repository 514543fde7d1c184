//! The wait for a former holder from whom `break` has taken away what we hold now, and the word of one whose command has ended. See
//! [`broken`].

use std::cell::Cell;
use std::future::pending;
use std::time::Duration;

use coordination::{Coordinator, State};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::locks::patiently;
use super::progress::Progress;
use super::wanted::{Hold, Wanted};
use crate::broken::{self, Granted, Mark, Marks, Part};
use crate::exit::{Outcome, say};

/// How long a store has for each answer before the command starts.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the command's start, or our end, may be put off by the removal of marks.
const REMOVING: Duration = Duration::from_secs(3);
/// How long the store may be out of reach until it is not told: a failed heartbeat is repeated sooner.
const REACHING: Duration = Duration::from_secs(1);
/// How often it is looked whether the marks are gone.
const LOOK: Duration = Duration::from_millis(100);

/// Who waits for former holders.
pub(super) struct Former {
    marks: Marks,
    /// What we hold, and how much of each.
    ours: Vec<Granted>,
    part: Part,
    /// The lease that we ask for.
    lease: Option<Duration>,
    is_quiet: bool,
}

impl Former {
    pub(super) fn new(
        coordinator: &Coordinator,
        ours: Vec<Granted>,
        part: Part,
        lease: Option<Duration>,
        is_quiet: bool,
    ) -> Outcome<Self> {
        Ok(Self { marks: broken::marks(coordinator)?, ours, part, lease, is_quiet })
    }

    /// Waits until no former holder's command runs any more. Without the store's word about that the command does not run.
    pub(super) async fn wait(&self) -> Outcome {
        let found = patiently(PATIENCE, async || broken::read(&self.marks).await).await??;
        let (begun, now) = (Instant::now(), broken::now());
        // Of a mark that comes later the holder was granted the same beside us, and whoever follows that one waits.
        let before = found.into_iter().filter(|mark| self.is_kept_out_by(mark));
        let left: Vec<_> = before.map(|mark| (begun + mark.wait(now, self.lease), mark)).collect();
        let Some((end, last)) = left.iter().max_by_key(|(end, _)| *end).cloned() else {
            return Ok(());
        };
        let (what, token) = (shown(&last.granted), last.granted.token());
        let how = async || {
            let left = end.saturating_duration_since(Instant::now()).as_secs();
            format!(
                "it was taken away from the holder with token {token}, whose command may run for {left} s more"
            )
        };
        let over = told(&what, self.is_quiet, how, self.ended(left)).await;
        if !over.is_empty() {
            let removing = broken::unmark(&self.marks, |mark| over.contains(mark));
            // If it fails, whoever follows waits as long, which does no harm.
            let _ = timeout(REMOVING, removing).await;
        }
        Ok(())
    }

    fn is_kept_out_by(&self, mark: &Mark) -> bool {
        self.ours.iter().any(|ours| mark.keeps_out(ours, &self.part))
    }

    /// Waits until all of these are gone, or their time is over; answers those that nobody has removed.
    async fn ended(&self, mut left: Vec<(Instant, Mark)>) -> Vec<Mark> {
        let mut over = Vec::new();
        loop {
            let now = Instant::now();
            over.extend(left.extract_if(.., |(end, _)| *end <= now).map(|(_, mark)| mark));
            let Some(next) = left.iter().map(|(end, _)| *end).min() else { return over };
            sleep_until(next.min(now + LOOK)).await;
            // The time goes on though the store may not answer.
            if let Ok(Ok(found)) = timeout_at(next, broken::read(&self.marks)).await {
                left.retain(|(_, mark)| found.contains(mark));
            }
        }
    }
}

/// The end of the command before, in messages.
fn shown(granted: &Granted) -> String {
    let recipe = match granted.recipe() {
        "limiter" => "singleton",
        recipe => recipe,
    };
    format!("the former command under {recipe} {:?}", granted.name())
}

/// Waits for so long in all, and until no former holder's command runs any more.
pub(super) async fn sleep_out(length: Duration, former: Option<&Former>) -> Outcome {
    let begun = Instant::now();
    if let Some(former) = former {
        former.wait().await?;
    }
    sleep(length.saturating_sub(begun.elapsed())).await;
    Ok(())
}

/// On one host: waits until the commands have ended whose locks were broken, as [`Wanted::follow`] does, and tells whoever reads that.
pub(super) async fn follow(wanted: &Wanted, hold: &mut Hold, is_quiet: bool) -> Outcome {
    let what = format!("the former command under {}", wanted.shown());
    let how = async || "the lock was broken, and its holder may stand still".to_owned();
    told(&what, is_quiet, how, wanted.follow(hold)).await
}

/// Waits for this, and tells whoever reads that for what, and how it stands.
async fn told<T>(
    what: &str,
    is_quiet: bool,
    how: impl AsyncFn() -> String,
    wait: impl Future<Output = T>,
) -> T {
    let (start, was_told) = (Instant::now(), Cell::new(false));
    let ended = tokio::select! {
        biased;
        ended = wait => ended,
        () = Progress::tell(what, is_quiet, &was_told, how) => pending().await,
    };
    if was_told.get() {
        say(format_args!("waited {} s for {what}", start.elapsed().as_secs()));
    }
    ended
}

/// Whether the store is within reach, for all that we know. A heartbeat may just have failed, as one does that was under way when we were
/// stopped, or when the network was cut: the next one comes soon.
pub(super) async fn is_within_reach(coordinator: &Coordinator) -> bool {
    let mut states = coordinator.state();
    let reached = async {
        while states.current() == State::Suspended && states.changed().await.is_some() {}
        states.current() == State::Connected
    };
    timeout(REACHING, reached).await.unwrap_or(false)
}

/// Tells those who follow that no command runs any more under these grants, which were lost. A store that is out of reach is not told:
/// then they wait until our lease is over.
pub(super) async fn tell_end(coordinator: &Coordinator, lost: &[Granted]) {
    if let Ok(marks) = broken::marks(coordinator)
        && is_within_reach(coordinator).await
    {
        let removing = broken::unmark(&marks, |mark| lost.contains(&mark.granted));
        let _ = timeout(REMOVING, removing).await;
    }
}

/// The same of a command that never began, if it was to run under what is lost by now. Answers how the wait for it has ended.
pub(super) async fn told_if_lost(
    waited: Outcome,
    hold: &Hold,
    coordinator: &Coordinator,
) -> Outcome {
    if waited.is_err() && !hold.is_held() {
        tell_end(coordinator, &hold.granted()).await;
    }
    waited
}

#[cfg(all(test, coordination_internals))]
mod tests {
    use coordination::Error;
    use coordination::simulation::{Clocks, Run, Traits, Weather, World};

    use super::*;

    /// As of one who goes on after he stood still: otherwise those who follow would wait for his lease.
    #[tokio::test(start_paused = true)]
    async fn a_store_that_answers_the_next_heartbeat_is_within_reach() -> Result<(), Error> {
        let _run = Run::begin(1);
        let world = World::new(1, Traits::SERVER);
        let settings = Coordinator::builder().ttl(Duration::from_secs(60));
        let coordinator = world.client(Clocks::default()).connect(settings.into()).await?;
        let falls_silent = async || {
            world.set_weather(Weather { lost_request: 1_000_000, ..Weather::calm() });
            let mut states = coordinator.state();
            while states.current() != State::Suspended && states.changed().await.is_some() {}
        };
        falls_silent().await;
        world.set_weather(Weather::calm());
        assert!(is_within_reach(&coordinator).await);
        falls_silent().await;
        let begun = Instant::now();
        assert!(!is_within_reach(&coordinator).await);
        assert!(begun.elapsed() <= 2 * REACHING, "{:?}", begun.elapsed());
        Ok(())
    }
}
