//! 999 clients that wait for one lock, each on a connection of its own. One principal may have a thousand waits, and the client that is
//! served meanwhile has the last one.

use std::thread::sleep;
use std::time::{Duration, Instant};

use coordination_tests::harness::{Certificates, wait_until};

use crate::client::{Api, Client, Wanted};
use crate::figures::{Figures, millis};
use crate::instance::Instance;
use crate::machine::{ran_for, resident};
use crate::store::Store;
use crate::{Bench, Outcome};

pub(crate) const WAITS: usize = 999;
/// Each with an instance of its own, as memory is not given back.
pub(crate) const ROUNDS: usize = 5;
/// For so long it is seen what the service does while nothing happens.
const QUIET: Duration = Duration::from_secs(5);
/// For so long another client is served.
const SERVED: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(60);

pub(crate) fn waits(bench: &Bench) -> Outcome {
    println!(
        "\n| {WAITS} waits on `file://` | MiB of the idle service | MiB over that | processor, ms in {} s, idle | with them | an answer to another client, ms | the longest in {} s | to reach |",
        QUIET.as_secs(),
        SERVED.as_secs(),
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let certificates = Certificates::new();
    for (how, wanted) in [("plain", "at most 32 MiB"), ("encrypted", "at most 80 MiB")] {
        let mut seen = Seen::default();
        for _ in 0..ROUNDS {
            let store = Store::start(bench, "file")?;
            let instance = match how {
                "plain" => Instance::start(bench, &store.url)?,
                _ => Instance::encrypted(bench, &store.url, &certificates)?,
            };
            seen.look(&instance)?;
        }
        let Seen { idle, more, idle_ran, ran, usual, longest } = seen;
        println!(
            "| {how} | {idle:.1} | {more:.1} | {idle_ran:.1} | {ran:.1} | {usual:.2} | {longest:.1} | {wanted}, no processor time |"
        );
    }
    Ok(())
}

#[derive(Default)]
struct Seen {
    idle: Figures,
    more: Figures,
    idle_ran: Figures,
    ran: Figures,
    usual: Figures,
    longest: Figures,
}

impl Seen {
    fn look(&mut self, instance: &Instance) -> Outcome {
        let (mut client, other) = (instance.client()?, Wanted::lock(Api::Native, "other", 20, 20));
        // What is made once is no wait's.
        client.cycle(&other)?;
        client.gauge("coordination_waiting")?;
        let idle = resident(instance.id())?;
        let idle_ran = ran_while_quiet(instance)?;
        let crowd = Crowd::gather(Api::Native, || instance.client())?;
        let mut count = || client.gauge("coordination_waiting").unwrap_or_default();
        if !wait_until(LONG, || count() == WAITS as f64) {
            return Err(format!("{} wait, of {WAITS}", count()).into());
        }
        self.more.add(resident(instance.id())? - idle);
        self.ran.add(ran_while_quiet(instance)?);
        self.idle.add(idle);
        self.idle_ran.add(idle_ran);
        let answers = answers(&mut client, &other)?;
        self.usual.add(answers.median());
        self.longest.add(answers.greatest());
        drop(crowd);
        Ok(())
    }
}

/// Milliseconds for which it runs, though nobody asks for anything.
fn ran_while_quiet(instance: &Instance) -> Outcome<f64> {
    let before = ran_for(instance.id())?;
    sleep(QUIET);
    Ok(millis(ran_for(instance.id())?.saturating_sub(before)))
}

/// Those who wait, until this is dropped, and who holds the lock.
pub(crate) struct Crowd(Vec<Client>);

impl Crowd {
    /// Each with what this connects; some of them may not be in the queue yet.
    pub(crate) fn gather(api: Api, connect: impl Fn() -> Outcome<Client>) -> Outcome<Self> {
        let mut holder = connect()?;
        holder.acquire(&Wanted::lock(api, "crowd", 20, 600))?;
        let mut crowd = Self(vec![holder]);
        let lock = Wanted::lock(api, "crowd", 600, 600);
        for _ in 0..WAITS {
            let mut client = connect()?;
            client.want(&lock)?;
            crowd.0.push(client);
        }
        Ok(crowd)
    }
}

/// How long each answer takes, in milliseconds, while this client acquires and releases.
pub(crate) fn answers(client: &mut Client, lock: &Wanted) -> Outcome<Figures> {
    let (mut answers, end) = (Figures::default(), Instant::now() + SERVED);
    while Instant::now() < end {
        let begun = Instant::now();
        let held = client.acquire(lock)?;
        let granted = Instant::now();
        client.release(&held)?;
        answers.add(millis(granted - begun));
        answers.add(millis(granted.elapsed()));
    }
    Ok(answers)
}
