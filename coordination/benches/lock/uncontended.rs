//! A lock that nobody else wants, on a store with a server.

use std::path::Path;

use coordination::Coordinator;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::compare::{Comparison, compare};
use crate::machine::{last, stay_in_one_place};
use crate::record::{self, Measure};
use crate::server::{Ours, Server, Store, cycle};
use crate::{Outcome, Wanted, contention, killed, peers};

/// Where the server is.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// On our CPU, its data in memory: what we add shows most.
    Here,
    /// On a CPU of its own, its data on a disk: what a service has.
    There,
    /// On a CPU of its own, its data in memory: what the server's processor has to do shows most.
    Beside,
}

impl Place {
    fn shown(self) -> &'static str {
        match self {
            Self::Here => "one CPU, data in memory",
            Self::There => "a CPU each, data on disk",
            Self::Beside => "a CPU each, data in memory",
        }
    }

    /// Starts the server there; its process stays where the thread is that starts it.
    pub(crate) async fn start<S: Store>(self, allowed: &CpuSet) -> Outcome<Server> {
        let own = sched_getaffinity(None)?;
        let memory = Path::new("/dev/shm");
        let data = match self {
            Self::Here | Self::Beside if memory.is_dir() => tempfile::tempdir_in(memory)?,
            _ => tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?,
        };
        if let Self::There | Self::Beside = self {
            sched_setaffinity(None, &last(allowed)?)?;
        }
        let server = S::start(data).await;
        sched_setaffinity(None, &own)?;
        server
    }
}

/// Everything that is measured of a store, or what is wanted of that.
pub(crate) async fn all<S: Store>(wanted: &Wanted) -> Outcome {
    if wanted.part(S::NAME, "uncontended") {
        for place in [Place::Here, Place::There] {
            let everywhere = stay_in_one_place()?;
            let server = place.start::<S>(&everywhere).await?;
            uncontended::<S>(&server, place, true, "on the caller's runtime", S::WANTED.0).await?;
            let why = "the price of heartbeats that nothing blocks";
            uncontended::<S>(&server, place, false, "on a thread of its own (the default)", why)
                .await?;
            drop(server);
            sched_setaffinity(None, &everywhere)?;
        }
    }
    let start = async || Place::Here.start::<S>(&sched_getaffinity(None)?).await;
    if wanted.part(S::NAME, "contended") {
        contention::contended::<S>(&start().await?)?;
    }
    if wanted.part(S::NAME, "apart") {
        contention::apart::<S>(&start().await?)?;
    }
    if wanted.part(S::NAME, "killed") {
        killed::killed::<S>(&start().await?, killed::AT_ONCE).await?;
    }
    Ok(())
}

async fn uncontended<S: Store>(
    server: &Server,
    place: Place,
    current: bool,
    how: &str,
    wanted: &str,
) -> Outcome {
    let address = &server.address;
    let builder = Coordinator::builder().heartbeat_on_current_runtime(current);
    let coordinator = builder.connect(&S::url(address)).await?;
    let mut ours = Ours::new(&coordinator, "vol-7")?;
    let mut floor = S::floor(address, "floor").await?;
    let mut peers = Vec::new();
    // Once for each place, as they have no such choice.
    if current && record::is_wanted() {
        if let Some(name) = S::PEER {
            peers.push(peers::Peer::of_crate(name, S::rival(address).await?, S::REPEATS));
        }
        peers.extend(peers::programs(S::NAME, address).await?);
    }
    let measure = format!("{how}, {}", place.shown());
    let what = Comparison {
        measure: Measure {
            store: S::NAME,
            part: "uncontended",
            measure: &measure,
            unit: "µs",
            parameter: None,
        },
        title: &format!("{}, acquire + release, {measure}", S::NAME),
        wanted,
        repeats: S::REPEATS,
    };
    let ours = async || cycle(&mut ours).await;
    compare(&what, ours, async || cycle(&mut floor).await, &mut peers).await?;
    Ok(coordinator.stop().await?)
}
