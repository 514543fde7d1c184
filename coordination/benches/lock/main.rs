//! How long a lock takes, beside the least that the store itself asks for it; and what a work queue costs.
//!
//! `cargo bench -p coordination --bench lock`, and with `--features etcd` the same for etcd, for which it
//! starts a server of its own from the `etcd` binary; likewise for the other stores.
//!
//! What is compared runs in turn within one process, pinned to one CPU, on current-thread runtimes, and
//! what counts is the ratio: absolute times change from machine to machine and from minute to minute.
//! Contention runs in processes of its own, on all CPUs, and counts changes of the owner; likewise processes that have a lock
//! each, and count what they do. Last, holders are killed, and it is measured when the next one has their lock. With arguments such as
//! `etcd` or `etcd-contended` only that is measured.
//!
//! Work queues are measured on all CPUs, too, with the argument `work`, or `work-redis` and the like; see `work.rs`. With `growth`,
//! `growth-etcd` or `growth-etcd-held` it is measured how costs grow; see `growth/mod.rs`. With the argument `overhead` it is
//! measured what log and metrics cost; see `overhead.rs`.
//!
//! `tests/performance` runs all of it and makes a page of what is [recorded](record).

mod compare;
#[cfg(feature = "consul")]
mod consul;
mod contention;
#[cfg(feature = "etcd")]
mod etcd;
mod file;
mod growth;
mod killed;
mod machine;
#[cfg(feature = "mysql")]
mod mysql;
mod overhead;
mod peers;
#[cfg(feature = "postgres")]
mod postgres;
mod record;
#[cfg(feature = "redis")]
mod redis;
mod server;
#[cfg(feature = "_network")]
mod uncontended;
mod work;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::error::Error;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// What the arguments name: words with which the names of what is measured begin.
struct Wanted(Vec<String>);

impl Wanted {
    /// Whether this part of a store's measurements is wanted; all are if no argument is given.
    fn part(&self, store: &str, part: &str) -> bool {
        self.0.is_empty() || self.asks_for(&format!("{store}-{part}"))
    }

    /// Whether what takes minutes is asked for by name.
    fn asks_for(&self, name: &str) -> bool {
        self.0.iter().any(|word| name.starts_with(word))
    }
}

fn main() -> Outcome {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["contend", store, contender] => return runtime.block_on(contend(store, contender)),
        ["hold", url, name] => return runtime.block_on(killed::hold(url, name)),
        ["grow", store, curve] => return runtime.block_on(grow(store, curve)),
        ["cycle", store, log] => return runtime.block_on(overhead::cycle(store, log)),
        ["overhead"] => return overhead::compare(None),
        ["overhead", other] => return overhead::compare(Some(other)),
        _ => {}
    }
    let wanted = Wanted(arguments);
    runtime.block_on(file::all(&wanted))?;
    #[cfg(feature = "etcd")]
    runtime.block_on(uncontended::all::<etcd::Etcd>(&wanted))?;
    #[cfg(feature = "redis")]
    runtime.block_on(uncontended::all::<redis::Redis>(&wanted))?;
    #[cfg(feature = "consul")]
    runtime.block_on(uncontended::all::<consul::Consul>(&wanted))?;
    #[cfg(feature = "zookeeper")]
    runtime.block_on(uncontended::all::<zookeeper::Zookeeper>(&wanted))?;
    #[cfg(feature = "postgres")]
    runtime.block_on(uncontended::all::<postgres::Postgres>(&wanted))?;
    #[cfg(feature = "mysql")]
    runtime.block_on(uncontended::all::<mysql::Mysql>(&wanted))?;
    growth::all(&wanted)?;
    if wanted.asks_for("work-memory") {
        runtime.block_on(work::memory())?;
    }
    if wanted.asks_for("work-file") {
        runtime.block_on(work::file())?;
    }
    #[cfg(feature = "redis")]
    if wanted.asks_for("work-redis") {
        runtime.block_on(work::server::<redis::Redis>())?;
    }
    #[cfg(feature = "etcd")]
    if wanted.asks_for("work-etcd") {
        runtime.block_on(work::server::<etcd::Etcd>())?;
    }
    Ok(())
}

/// One of the processes that want locks.
async fn contend(store: &str, contender: &str) -> Outcome {
    match store {
        "file" => contention::contend::<file::File>(contender).await,
        #[cfg(feature = "etcd")]
        "etcd" => contention::contend::<etcd::Etcd>(contender).await,
        #[cfg(feature = "redis")]
        "redis" => contention::contend::<redis::Redis>(contender).await,
        #[cfg(feature = "consul")]
        "consul" => contention::contend::<consul::Consul>(contender).await,
        #[cfg(feature = "zookeeper")]
        "zookeeper" => contention::contend::<zookeeper::Zookeeper>(contender).await,
        #[cfg(feature = "postgres")]
        "postgres" => contention::contend::<postgres::Postgres>(contender).await,
        #[cfg(feature = "mysql")]
        "mysql" => contention::contend::<mysql::Mysql>(contender).await,
        _ => Err(format!("no store of this build: {store}").into()),
    }
}

/// A process that measures a curve of [growth].
async fn grow(store: &str, curve: &str) -> Outcome {
    match store {
        "memory" => growth::in_process("memory", "memory://growth", curve).await,
        "file" => {
            let directory = tempfile::tempdir()?;
            let url = format!("file://{}/locks", directory.path().display());
            growth::in_process("file", &url, curve).await
        }
        #[cfg(feature = "etcd")]
        "etcd" => growth::on_server::<etcd::Etcd>(curve).await,
        #[cfg(feature = "redis")]
        "redis" => growth::on_server::<redis::Redis>(curve).await,
        #[cfg(feature = "consul")]
        "consul" => growth::on_server::<consul::Consul>(curve).await,
        #[cfg(feature = "zookeeper")]
        "zookeeper" => growth::on_server::<zookeeper::Zookeeper>(curve).await,
        #[cfg(feature = "postgres")]
        "postgres" => growth::on_server::<postgres::Postgres>(curve).await,
        #[cfg(feature = "mysql")]
        "mysql" => growth::on_server::<mysql::Mysql>(curve).await,
        _ => Err(format!("no store of this build: {store}").into()),
    }
}
