//! Ten thousand holds on as many names.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Api, Client, Wanted};
use crate::figures::Figures;
use crate::instance::Instance;
use crate::machine::resident;
use crate::store::Store;
use crate::{Bench, Outcome};

/// As many as one principal may have.
const HOLDS: usize = 10_000;
/// As many as one request renews.
const TOGETHER: usize = 1_000;
const ROUNDS: usize = 3;
/// What the store covers, and longer than it takes to acquire all of them.
const LEASE: u32 = 27;
/// The last one: so short that all end together, and longer than it takes to renew all of them.
const LAST: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(60);

pub(crate) fn holds(bench: &Bench) -> Outcome {
    println!(
        "\n| {HOLDS} holds | MiB of the idle service | MiB over that | renewed by {} requests, s | all gone after their end, s | to reach |",
        HOLDS / TOGETHER,
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for name in bench.wanted(&["file", "redis"]) {
        let (mut idle, mut more) = (Figures::default(), Figures::default());
        let (mut renewed, mut gone) = (Figures::default(), Figures::default());
        for _ in 0..ROUNDS {
            let store = Store::start(bench, name)?;
            let instance = Instance::start(bench, &store.url)?;
            let mut client = instance.client()?;
            client.cycle(&Wanted::lock(Api::Native, "first", 20, 20))?;
            client.gauge("coordination_held")?;
            let before = resident(instance.id())?;
            let ids = acquired(&mut client)?;
            idle.add(before);
            more.add(resident(instance.id())? - before);
            renewed.add(renew(&mut client, &ids, Duration::from_secs(LEASE.into()))?.as_secs_f64());
            renew(&mut client, &ids, LAST)?;
            gone.add(gone_after(&mut client, Instant::now() + LAST)?.as_secs_f64());
        }
        println!(
            "| {name} | {idle:.1} | {more:.1} | {renewed:.2} | {gone:.2} | at most 60 MiB, 1 s, 2 s |"
        );
    }
    Ok(())
}

/// The ids of all of them.
fn acquired(client: &mut Client) -> Outcome<Vec<String>> {
    let ids = (0..HOLDS).map(|number| {
        let path =
            client.acquire(&Wanted::lock(Api::Native, &format!("held-{number}"), 20, LEASE))?;
        Outcome::Ok(path.rsplit('/').next().ok_or("no id")?.to_owned())
    });
    ids.collect()
}

/// How long that takes for all of them.
fn renew(client: &mut Client, ids: &[String], lease: Duration) -> Outcome<Duration> {
    let bodies =
        ids.chunks(TOGETHER).map(|ids| json!({ "ids": ids, "lease_ms": lease.as_millis() as u64 }));
    let bodies: Vec<_> = bodies.map(|body| body.to_string()).collect();
    let begun = Instant::now();
    let mut answers = Vec::new();
    for body in &bodies {
        answers.push(client.ask("POST", "/v1/renew", body)?.must_be(200)?);
    }
    let took = begun.elapsed();
    for answer in answers {
        let told: Value = serde_json::from_str(&answer.body)?;
        if told["held"].as_array().map(Vec::len) != Some(TOGETHER) {
            return Err(
                format!("not all were renewed: {} and {}", told["ended"], told["failed"]).into()
            );
        }
    }
    Ok(took)
}

/// How long after their end none is held any more.
fn gone_after(client: &mut Client, end: Instant) -> Outcome<Duration> {
    sleep(end.saturating_duration_since(Instant::now()));
    while client.gauge("coordination_held")? > 0.0 {
        if end.elapsed() > LONG {
            return Err("they are still held".into());
        }
        sleep(Duration::from_millis(10));
    }
    Ok(end.elapsed())
}
