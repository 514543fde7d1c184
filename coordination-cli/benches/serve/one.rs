//! One client that acquires and releases, and two between which a lock changes hands.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::client::{Api, Client, Wanted};
use crate::figures::{Figures, micros, timed};
use crate::instance::Instance;
use crate::library::Library;
use crate::store::Store;
use crate::{Bench, Outcome, STORES};

/// After one that warms up.
const ROUNDS: usize = 15;
/// So many hand-overs have one median.
const HAND_OVERS: usize = 20;
/// By then who waits has its place in the queue.
pub(crate) const SETTLED: Duration = Duration::from_millis(10);

/// So that a round takes some tenths of a second.
fn repeats(store: &str) -> u32 {
    match store {
        "memory" => 1_000,
        "etcd" => 100,
        _ => 500,
    }
}

/// A row's end: what is to be reached.
fn wanted_of(store: &str) -> &'static str {
    match store {
        "memory" | "file" => "at most 1.5 × `GET /livez` twice",
        _ => "at most 150 µs over the library's",
    }
}

pub(crate) fn cycles(bench: &Bench) -> Outcome {
    println!(
        "\n| acquire + release, µs | over HTTP | the library's own | `GET /livez` twice | × `GET /livez` twice | × the library's | over the library's | to reach |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for name in bench.wanted(&STORES) {
        let store = Store::start(bench, name)?;
        let instance = Instance::start(bench, &store.url)?;
        let library = Library::connect(&store.url)?;
        let mut client = instance.client()?;
        let (lock, repeats) = (Wanted::lock(Api::Native, "one", 20, 20), repeats(name));
        let (mut http, mut own, mut plain) =
            (Figures::default(), Figures::default(), Figures::default());
        for round in 0..=ROUNDS {
            let figures = (
                timed(repeats, || client.cycle(&lock))?,
                library.cycles(repeats)?,
                timed(repeats, || live_twice(&mut client))?,
            );
            if round > 0 {
                http.add(figures.0);
                own.add(figures.1);
                plain.add(figures.2);
            }
        }
        library.stop()?;
        println!(
            "| {name} | {http:.0} | {own:.0} | {plain:.0} | {:.2} | {:.2} | {:.0} | {} |",
            http.with(&plain, |http, plain| http / plain),
            http.with(&own, |http, own| http / own),
            http.with(&own, |http, own| http - own),
            wanted_of(name),
        );
    }
    Ok(())
}

fn live_twice(client: &mut Client) -> Outcome {
    for _ in 0..2 {
        client.ask("GET", "/livez", "")?.must_be(200)?;
    }
    Ok(())
}

pub(crate) fn hand_overs(bench: &Bench) -> Outcome {
    println!("\n| hand-over, µs | over HTTP | the library's own | over the library's | to reach |");
    println!("| --- | --- | --- | --- | --- |");
    for name in bench.wanted(&STORES) {
        let store = Store::start(bench, name)?;
        let instance = Instance::start(bench, &store.url)?;
        let library = Library::connect(&store.url)?;
        let mut clients = [instance.client()?, instance.client()?];
        let lock = Wanted::lock(Api::Native, "handed-over", 20, 20);
        let (mut http, mut own) = (Figures::default(), Figures::default());
        for round in 0..=ROUNDS {
            let (mut some, mut some_own) = (Figures::default(), Figures::default());
            for _ in 0..HAND_OVERS {
                some.add(micros(handed_over(&mut clients, &lock)?));
                some_own.add(micros(library.hand_over()?));
            }
            if round > 0 {
                http.add(some.median());
                own.add(some_own.median());
            }
        }
        library.stop()?;
        println!(
            "| {name} | {http:.0} | {own:.0} | {:.0} | at most 200 over the library's |",
            http.with(&own, |http, own| http - own),
        );
    }
    Ok(())
}

/// From one client's release until the other one has its answer.
fn handed_over([one, other]: &mut [Client; 2], lock: &Wanted) -> Outcome<Duration> {
    let held = one.acquire(lock)?;
    other.want(lock)?;
    sleep(SETTLED);
    let begun = Instant::now();
    one.send("DELETE", &held, "")?;
    let next = other.granted()?;
    let took = begun.elapsed();
    one.answer()?.must_be(204)?;
    other.release(&next)?;
    Ok(took)
}
