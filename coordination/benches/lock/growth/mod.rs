//! How costs grow with what there is: waiters, names held, members, tasks that want one lock, sessions.
//!
//! Each curve is measured in a process of its own, which is on one CPU, with a server of its own, which is on another one and has
//! its data in memory. It takes a minute at most; one size may take [`GROWING`] to be reached, and [`POINT`] or so to be measured. Where
//! a store refuses a size, or takes longer than that to reach it, the curve ends with what was reached, and it is recorded why.
//!
//! With the feature `metrics`, heartbeats are timed, too. Requests are counted by the server.

mod crowd;
mod cycles;
mod heard;
mod held;
mod idle;
mod members;
mod sessions;

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::compare::spread;
use crate::machine::stay_in_one_place;
use crate::record::{Measure, Side};
#[cfg(feature = "_network")]
use crate::server::Store;
#[cfg(feature = "_network")]
use crate::uncontended::Place;
use crate::{Outcome, Wanted};

/// How long a curve may take in all, and reaching the next size, and measuring that.
const CURVE: Duration = Duration::from_secs(55);
const GROWING: Duration = Duration::from_secs(20);
const POINT: Duration = Duration::from_secs(3);

const STORES: [&str; 8] =
    ["memory", "file", "etcd", "redis", "consul", "zookeeper", "postgres", "mysql"];

type Tasks = crowd::Crowd<1, false>;
type Cohort = crowd::Crowd<1, true>;
type Waiters = crowd::Crowd<8, false>;

const CURVES: [&str; 6] = [
    Waiters::NAME,
    held::Held::NAME,
    members::Members::NAME,
    Tasks::NAME,
    Cohort::NAME,
    sessions::Sessions::NAME,
];

/// The store on which a curve is measured.
struct Subject {
    name: &'static str,
    url: String,
    /// The server's process.
    server: Option<u32>,
    served: Served,
    /// Where that is asked.
    address: String,
}

/// How many requests the server at an address has served so far; `None`: it does not tell.
type Served = fn(&str) -> Outcome<Option<u64>>;

/// Something that is made larger step by step.
trait Curve: Sized {
    const NAME: &'static str;
    const SIZES: &'static [usize];

    async fn start(subject: &Subject) -> Outcome<Self>;

    fn size(&self) -> usize;

    /// Makes it so large, unless it is `until` before.
    async fn grow(&mut self, size: usize, until: Instant) -> Outcome;

    /// What there is to measure at this size, in some seconds.
    async fn measure(&mut self) -> Outcome<Vec<Figure>>;
}

/// What was measured at one size.
struct Figure {
    what: &'static str,
    unit: &'static str,
    values: Vec<f64>,
}

impl Figure {
    fn new(what: &'static str, unit: &'static str, values: Vec<f64>) -> Self {
        Self { what, unit, values }
    }
}

/// Measures all curves that are asked for by name.
pub(crate) fn all(wanted: &Wanted) -> Outcome {
    for store in STORES.into_iter().filter(|store| is_built_in(store)) {
        for curve in CURVES {
            if !wanted.asks_for(&format!("growth-{store}-{curve}")) {
                continue;
            }
            let mut command = Command::new(std::env::current_exe()?);
            let status = command.args(["grow", store, curve]).status()?;
            if !status.success() {
                println!("{store}, growth, {curve}: {status}");
                let measure = about(store, curve, "", 0);
                measure.cut(Side::Ours, None, &format!("the measurement failed: {status}"))?;
            }
        }
    }
    Ok(())
}

fn is_built_in(store: &str) -> bool {
    match store {
        "etcd" => cfg!(feature = "etcd"),
        "redis" => cfg!(feature = "redis"),
        "consul" => cfg!(feature = "consul"),
        "zookeeper" => cfg!(feature = "zookeeper"),
        "postgres" => cfg!(feature = "postgres"),
        "mysql" => cfg!(feature = "mysql"),
        _ => true,
    }
}

/// Measures a curve on a server that is started for it.
#[cfg(feature = "_network")]
pub(crate) async fn on_server<S: Store>(curve: &str) -> Outcome {
    // Each session may have a connection, and the server has the other ends.
    raise_limit()?;
    let everywhere = stay_in_one_place()?;
    let server = Place::Beside.start::<S>(&everywhere).await?;
    let subject = Subject {
        name: S::NAME,
        url: S::url(&server.address),
        server: server.pid(),
        served: S::served,
        address: server.address.clone(),
    };
    measure(&subject, curve).await
}

/// Measures a curve on a store without a server.
pub(crate) async fn in_process(name: &'static str, url: &str, curve: &str) -> Outcome {
    raise_limit()?;
    stay_in_one_place()?;
    let (url, address) = (url.to_owned(), String::new());
    let subject = Subject { name, url, server: None, served: |_| Ok(None), address };
    measure(&subject, curve).await
}

fn raise_limit() -> Outcome {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

async fn measure(subject: &Subject, curve: &str) -> Outcome {
    heard::install()?;
    match curve {
        Waiters::NAME => run::<Waiters>(subject).await,
        held::Held::NAME => run::<held::Held>(subject).await,
        members::Members::NAME => run::<members::Members>(subject).await,
        Tasks::NAME => run::<Tasks>(subject).await,
        Cohort::NAME => run::<Cohort>(subject).await,
        sessions::Sessions::NAME => run::<sessions::Sessions>(subject).await,
        _ => Err(format!("no such curve: {curve}").into()),
    }
}

async fn run<C: Curve>(subject: &Subject) -> Outcome {
    let end = Instant::now() + CURVE;
    let mut curve = C::start(subject).await?;
    for &size in C::SIZES {
        let until = (Instant::now() + GROWING).min(end - POINT);
        let before = curve.size();
        let begun = Instant::now();
        let failed = within(2 * GROWING, curve.grow(size, until)).await.err();
        let there = curve.size();
        if there > before {
            match within(5 * POINT, curve.measure()).await {
                Ok(figures) => tell::<C>(subject, there, &figures)?,
                Err(error) => return cut::<C>(subject, there, &format!("while measured: {error}")),
            }
        }
        if let Some(error) = failed {
            return cut::<C>(subject, size, &format!("{there} were reached: {error}"));
        }
        if there < size {
            let took = begun.elapsed().as_secs_f64();
            return cut::<C>(subject, size, &format!("{there} were reached after {took:.0} s"));
        }
    }
    Ok(())
}

/// Gives up what does not notice that its time is over.
async fn within<T>(limit: Duration, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    tokio::time::timeout(limit, work).await?
}

fn about<'a>(store: &'a str, curve: &'a str, unit: &'a str, size: usize) -> Measure<'a> {
    Measure { store, part: "growth", measure: curve, unit, parameter: Some(size as f64) }
}

fn tell<C: Curve>(subject: &Subject, size: usize, figures: &[Figure]) -> Outcome {
    // A store without heartbeats has none to time.
    for Figure { what, unit, values } in figures.iter().filter(|figure| !figure.values.is_empty()) {
        let measure = format!("{}: {what}", C::NAME);
        about(subject.name, &measure, unit, size).values(Side::Ours, None, values)?;
        let (median, low, high) = spread(&mut values.clone());
        println!(
            "{}, growth, {} {size}, {what}: {median:.1} {unit} ({low:.1} to {high:.1})",
            subject.name,
            C::NAME
        );
    }
    Ok(())
}

fn cut<C: Curve>(subject: &Subject, size: usize, why: &str) -> Outcome {
    println!("{}, growth, {} {size}: {why}", subject.name, C::NAME);
    about(subject.name, C::NAME, "", size).cut(Side::Ours, None, why)
}
