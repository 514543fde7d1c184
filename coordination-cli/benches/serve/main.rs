//! What a lock costs by `coordination serve`: the table "Measured" of `docs/service.md`, in Markdown.
//!
//! ```sh
//! (. tests/features && cargo bench -p coordination-cli --bench serve)
//! ```
//!
//! The harness of the tests, which `tests/features` is for, starts etcd and Redis, with their data in memory. The service is the one
//! that this build makes, optimised as this program is; a path after `--`, such as `target/release/coordination`, is that of another
//! one. Words choose stores (`memory`, `file`, `etcd`, `redis`) and parts:
//!
//! * `cycle`: acquire and release by one client, beside the library's own in this process and beside two `GET /livez`;
//! * `hand-over`: from a release until the next client has its answer, beside the library's own;
//! * `waits`: 999 that wait, plain and encrypted: memory, processor time, and the longest answer to others meanwhile;
//! * `holds`: ten thousand: memory, how long they take to renew, and until all are gone when their leases are over;
//! * `clients`: eight with a lock each, beside rdlm 0.4.2, which is installed from PyPI where its Tornado can be built (see `rdlm.rs`).
//!
//! What is compared runs in turn. Clients, and the library, have the first processor that we may use, and the service, the servers of
//! stores and rdlm have the last one. Each number is the median of the rounds, with the least and the greatest beside it.
//!
//! Not measured here: the program's start, with and without `serve` (`benches/start.rs`; its size is in our first line), and ten
//! thousand holds that are lost with their instance.

mod client;
mod clients;
mod figures;
mod holds;
mod instance;
mod library;
mod machine;
mod one;
mod rdlm;
mod store;
mod waits;

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use coordination_tests::harness::descriptors::limit;

use crate::machine::Processors;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const STORES: [&str; 4] = ["memory", "file", "etcd", "redis"];
/// A name and what it measures.
type Part = (&'static str, fn(&Bench) -> Outcome);
const PARTS: [Part; 5] = [
    ("cycle", one::cycles),
    ("hand-over", one::hand_overs),
    ("waits", waits::waits),
    ("holds", holds::holds),
    ("clients", clients::clients),
];
/// Those who wait, and what else is open.
const DESCRIPTORS: u64 = 2_000;

/// What is measured, and where.
struct Bench {
    program: PathBuf,
    processors: Processors,
    /// Stores and parts; all, if none of their kind is named.
    words: Vec<String>,
}

impl Bench {
    /// Those of these names that are wanted.
    fn wanted<'a>(&self, names: &[&'a str]) -> Vec<&'a str> {
        let is_named = |name: &str| self.words.iter().any(|word| word == name);
        let is_any_named = names.iter().any(|name| is_named(name));
        names.iter().copied().filter(|name| !is_any_named || is_named(name)).collect()
    }
}

fn main() -> Outcome {
    let parts = PARTS.map(|(name, _)| name);
    let is_known =
        |word: &String| STORES.contains(&word.as_str()) || parts.contains(&word.as_str());
    let words = env::args().skip(1).filter(|word| word != "--bench");
    let (words, paths): (Vec<_>, Vec<_>) = words.partition(is_known);
    // Cargo runs us in the package's directory.
    let program = match paths.first() {
        Some(path) => std::path::absolute(Path::new("..").join(path))?,
        None => env!("CARGO_BIN_EXE_coordination").into(),
    };
    limit(DESCRIPTORS);
    println!("{}: {} bytes; {}", program.display(), fs::metadata(&program)?.len(), machine::name());
    let bench = Bench { program, processors: Processors::apart()?, words };
    let wanted = bench.wanted(&parts);
    for (name, measure) in PARTS {
        if wanted.contains(&name) {
            measure(&bench)?;
        }
    }
    Ok(())
}
