//! Eight clients with a lock each, and one beside many that wait: ours, by both APIs, beside rdlm.

use std::any::Any;
use std::path::Path;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::client::{Api, Client, Wanted};
use crate::figures::Figures;
use crate::instance::Instance;
use crate::rdlm::{self, Rdlm};
use crate::store::Store;
use crate::waits::{Crowd, ROUNDS, WAITS, answers};
use crate::{Bench, Outcome};

const CLIENTS: usize = 8;
const SECONDS: u32 = 2;
/// By then all have asked: rdlm does not say how many wait.
const GATHERED: Duration = Duration::from_secs(2);

/// Whose locks they are.
#[derive(Clone, Copy)]
enum Server<'a> {
    /// A service on this store.
    Ours(&'static str),
    /// rdlm, which this Python has.
    Rdlm(&'a Path),
}

/// What was started, until this is dropped, and where it listens.
struct Running {
    at: String,
    _kept: Box<dyn Any>,
}

impl Server<'_> {
    fn start(self, bench: &Bench, api: Api) -> Outcome<Running> {
        match self {
            Self::Ours(store) => {
                let store = Store::start(bench, store)?;
                let instance = Instance::start(bench, &store.url)?;
                let at = instance.address(api).to_owned();
                Ok(Running { at, _kept: Box::new((instance, store)) })
            }
            Self::Rdlm(python) => {
                let rdlm = Rdlm::start(bench, python)?;
                Ok(Running { at: rdlm.at.clone(), _kept: Box::new(rdlm) })
            }
        }
    }
}

pub(crate) fn clients(bench: &Bench) -> Outcome {
    let python = rdlm::python();
    let mut rows = vec![
        ("`/v1`, memory", Server::Ours("memory"), Api::Native),
        ("`/v1`, file", Server::Ours("file"), Api::Native),
        ("rdlm's API, memory", Server::Ours("memory"), Api::Rdlm),
        ("rdlm's API, file", Server::Ours("file"), Api::Rdlm),
    ];
    match &python {
        Ok(python) => rows.push(("rdlm 0.4.2", Server::Rdlm(python), Api::Rdlm)),
        Err(why) => println!("\nrdlm 0.4.2 is not measured: {why}"),
    }
    let mut figures: Vec<_> = rows.iter().map(|_| <[Figures; 3]>::default()).collect();
    for _ in 0..ROUNDS {
        for ((_, server, api), [rates, usual, longest]) in rows.iter().zip(&mut figures) {
            let running = server.start(bench, *api)?;
            rates.add(rate(&running.at, *api)?);
            let crowd = Crowd::gather(*api, || Client::connect(&running.at))?;
            sleep(GATHERED);
            let mut client = Client::connect(&running.at)?;
            let answers = answers(&mut client, &Wanted::lock(*api, "other", 20, 20))?;
            usual.add(answers.median());
            longest.add(answers.greatest());
            drop(crowd);
        }
    }
    println!(
        "\n| {CLIENTS} clients, a lock each | requests a second | an answer while {WAITS} wait, ms | the longest of them |"
    );
    println!("| --- | --- | --- | --- |");
    for ((title, ..), [rates, usual, longest]) in rows.iter().zip(&figures) {
        println!("| {title} | {rates:.0} | {usual:.2} | {longest:.1} |");
    }
    Ok(())
}

/// How many requests a second all of them are answered.
fn rate(at: &str, api: Api) -> Outcome<f64> {
    let end = Instant::now() + Duration::from_secs(SECONDS.into());
    let requests = |number: usize| -> Outcome<u32> {
        let mut client = Client::connect(at)?;
        let lock = Wanted::lock(api, &format!("own{number}"), 20, 20);
        let mut count = 0;
        while Instant::now() < end {
            client.cycle(&lock)?;
            count += 2;
        }
        Ok(count)
    };
    let counts: Outcome<Vec<u32>> = thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || requests(number))).collect();
        let joined = clients.into_iter().map(|client| client.join().map_err(|_| "it panicked")?);
        joined.collect()
    });
    Ok(f64::from(counts?.iter().sum::<u32>()) / f64::from(SECONDS))
}
