//! How long a lock takes, beside the least that the store itself asks for it; and what a work queue costs.
//!
//! `cargo bench -p coordination --bench lock`, and with `--features etcd` the same for etcd, for which it
//! starts a server of its own from the `etcd` binary; likewise for the other stores.
//!
//! What is compared runs in turn within one process, pinned to one CPU, on current-thread runtimes, and
//! what counts is the ratio: absolute times change from machine to machine and from minute to minute.
//! Contention runs in processes of its own, on all CPUs, and counts changes of the owner. Work queues are measured on
//! all CPUs, too, with the argument `work`, or `work-redis` and the like; see `work.rs`. With the argument `overhead` it is
//! measured what log and metrics cost; see `overhead.rs`.

mod compare;
#[cfg(feature = "consul")]
mod consul;
#[cfg(feature = "_network")]
mod contention;
#[cfg(feature = "etcd")]
mod etcd;
mod file;
#[cfg(feature = "mysql")]
mod mysql;
mod overhead;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "_network")]
mod server;
mod work;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::error::Error;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    #[cfg(feature = "_network")]
    if let [mode, store, contender] = arguments.as_slice()
        && mode == "contend"
    {
        return runtime.block_on(contend(store, contender));
    }
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["cycle", store, log] => return runtime.block_on(overhead::cycle(store, log)),
        ["overhead"] => return overhead::compare(None),
        ["overhead", other] => return overhead::compare(Some(other)),
        _ => {}
    }
    let wanted =
        |name: &str| arguments.is_empty() || arguments.iter().any(|word| name.starts_with(word));
    if wanted("file") {
        runtime.block_on(file::uncontended())?;
    }
    #[cfg(feature = "etcd")]
    if wanted("etcd") {
        runtime.block_on(server::all::<etcd::Etcd>())?;
    }
    #[cfg(feature = "redis")]
    if wanted("redis") {
        runtime.block_on(server::all::<redis::Redis>())?;
    }
    #[cfg(feature = "consul")]
    if wanted("consul") {
        runtime.block_on(server::all::<consul::Consul>())?;
    }
    #[cfg(feature = "zookeeper")]
    if wanted("zookeeper") {
        runtime.block_on(server::all::<zookeeper::Zookeeper>())?;
    }
    #[cfg(feature = "postgres")]
    if wanted("postgres") {
        runtime.block_on(server::all::<postgres::Postgres>())?;
    }
    #[cfg(feature = "mysql")]
    if wanted("mysql") {
        runtime.block_on(server::all::<mysql::Mysql>())?;
    }
    // Work queues take minutes, and so are measured only if they are asked for by name.
    let wanted = |name: &str| arguments.iter().any(|word| name.starts_with(word));
    if wanted("work-memory") {
        runtime.block_on(work::memory())?;
    }
    if wanted("work-file") {
        runtime.block_on(work::file())?;
    }
    #[cfg(feature = "redis")]
    if wanted("work-redis") {
        runtime.block_on(work::server::<redis::Redis>())?;
    }
    #[cfg(feature = "etcd")]
    if wanted("work-etcd") {
        runtime.block_on(work::server::<etcd::Etcd>())?;
    }
    Ok(())
}

/// One of the processes that want the same lock.
#[cfg(feature = "_network")]
async fn contend(store: &str, contender: &str) -> Outcome {
    match store {
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
