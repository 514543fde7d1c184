//! Runs chaos for a given time: `chaos --store STORE --seconds N [--seed N] [--clients N] [--keep DIRECTORY]`. The
//! client processes run this program too: the first process starts them as `chaos client`.

use std::{env, path::PathBuf, process::ExitCode, time::Duration};

use coordination_tests::chaos::{Chaos, Store, client, run::default_keep};

const USAGE: &str = "\
chaos --store STORE --seconds N [--seed N] [--clients N] [--keep DIRECTORY]

  --store    what the clients contend by; file mounts a tmpfs, which takes root
  --seconds  for how long; two minutes and more are made of rounds of one, each with the next seed
  --seed     which faults; the process id by default
  --clients  how many client processes, 4 at least; 5 by default
  --keep     where a failed round leaves its history, logs and data; target/chaos by default";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments == ["client"] {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime can be built");
        runtime.block_on(client::main());
        return ExitCode::SUCCESS;
    }
    let chaos = match parse(&arguments) {
        Ok(chaos) => chaos,
        Err(error) => {
            eprintln!("{error}\n\n{USAGE}");
            return ExitCode::from(64);
        }
    };
    println!(
        "{} for {} s, seed {}, {} clients",
        chaos.store.name(),
        chaos.length.as_secs(),
        chaos.seed,
        chaos.clients
    );
    let outcome = chaos.run();
    println!("{}{} failures", outcome.summary, outcome.failures.len());
    if outcome.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(arguments: &[String]) -> Result<Chaos, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let (mut store, mut length) = (None, None);
    let (mut seed, mut clients, mut keep) = (u64::from(std::process::id()), 5, default_keep());
    let mut arguments = arguments.iter();
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name}: no number: {value}"));
        match name.as_str() {
            "--store" => store = Store::named(value),
            "--seconds" => length = Some(Duration::from_secs(number()?)),
            "--seed" => seed = number()?,
            "--clients" => clients = usize::try_from(number()?).map_err(|e| e.to_string())?,
            "--keep" => keep = PathBuf::from(value),
            _ => return Err(format!("unknown: {name}")),
        }
    }
    let store = store.ok_or_else(|| format!("--store is one of {}", names()))?;
    let length = length.ok_or("--seconds is missing")?;
    if clients < 4 {
        return Err("--clients is 4 at least".to_owned());
    }
    Ok(Chaos { store, length, seed, clients, keep, program })
}

/// The names of all stores in this build, for the usage message.
fn names() -> String {
    Store::ALL.iter().map(|store| store.name()).collect::<Vec<_>>().join(", ")
}
