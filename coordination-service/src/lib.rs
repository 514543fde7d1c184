//! Locks and other recipes over HTTP for programs in any language, and a page that shows who holds what: `coordination serve`.
//!
//! An *instance* is one process with one session on one store. A *hold* is what a client was granted through an instance: the
//! library's guard, a lease that the client renews, and an id that only the client knows. `docs/service.md` is for users, and
//! says what is built of it and what is not.
//!
//! * `service` is what all requests share; `hold` is one grant, of a recipe (`kind`) by one of the library's guards (`guard`), `holds` are all of them and their ends, `wanted` is what is asked for, `acquire` leads to a hold, and `promise` keeps
//!   leases that outlive their instance, and `undeleted` removes what the store did not let us delete at once, `ended` knows what has ended. `keys` recognise a request that is sent again, `queued` finds who waits for what.
//! * `around` is what is the same for each request, `waited` tells its waits from its work and bounds that, `auth` says who may what (`auth/file.rs` reads the file of tokens), `proxies` where a request comes from that a proxy has passed on, `problem` is every answer that is not what was
//!   asked for, `bodies` reads bodies, and `fields` what they say.
//! * `v1/` is our own API (`claims` are those of jobs that are done once per period), and `openapi` describes it; `rdlm` and `lockable` are those of others, over the same holds; `renewed_once` tells of clients that stop renewing.
//! * `mirror` has what the page shows, `refresh` and `look` ask the store for it, `history` has the hand-overs.
//! * `listen` accepts (at a path: `unix`; encrypted: `tls`, which computes in `turns` and asks for certificates in `tls/client.rs`; without the features for it `no_tls`), `http2` has what only HTTP/2 needs, `taken` tells what a connection has taken of an answer, `stalled` ends what nobody reads, `places` who asks for nothing while others want in, `reload` reads files again, `store` connects, [`serve`] starts all of it, and `stop` ends it in order: `finishing` is what that waits for, and `phase` how far it has come. `notify`
//!   tells a supervisor.
#![forbid(unsafe_code)]

mod acquire;
mod around;
mod auth;
mod bodies;
mod claims;
mod delivery;
mod ended;
mod ends;
mod fields;
mod finishing;
mod guard;
mod history;
mod hold;
mod holds;
mod http2;
mod ids;
mod kept;
mod keys;
mod kind;
mod listen;
mod lockable;
mod log;
mod look;
mod metrics;
mod mirror;
mod notify;
mod openapi;
mod openstack;
mod page;
mod peer;
mod phase;
mod places;
mod problem;
mod promise;
mod proxies;
mod queued;
mod queues;
mod rates;
mod rdlm;
mod refresh;
mod reload;
mod renewed_once;
mod reply;
mod service;
mod settings;
mod stalled;
mod stop;
mod store;
mod taken;
mod text;
#[cfg_attr(not(feature = "_tls"), path = "no_tls.rs")]
mod tls;
#[cfg(feature = "_tls")]
mod turns;
mod undeleted;
mod unix;
mod v1;
mod waited;
mod wanted;
mod zaqar;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Router;
use coordination::Config;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use crate::auth::Auth;
pub use crate::auth::make_token;
use crate::listen::Encrypted;
pub use crate::proxies::Network;
use crate::service::{Service, Shared};
use crate::settings::Cover;
pub use crate::settings::{ClientFiles, Limits, Settings, TlsFiles};
use crate::tls::Tls;

/// The shortest lease that a store has to cover, which is the shortest that a client may ask for.
const SHORTEST_COVER: Duration = Duration::from_millis(100);
/// How long connections have to end after the last phase.
const CLOSING: Duration = Duration::from_secs(2);
/// How often handles that nobody uses are forgotten.
const TIDIED: Duration = Duration::from_secs(60);

/// Why the service did not start, or why it ended.
#[derive(Debug)]
pub enum Failure {
    /// Settings, a URL or a file are wrong; the sentence says how.
    Settings(String),
    /// The system did not let us listen, there.
    Listen(String, std::io::Error),
}

/// What the caller of [`serve`] tells the service while it runs, such as what signals say. Who drops a sender says nothing more.
#[derive(Debug)]
pub struct Told {
    /// To stop; the second time, to end at once.
    pub stops: mpsc::Receiver<()>,
    /// To read the files of tokens and of TLS again now, whether or not they have changed.
    pub reloads: mpsc::Receiver<()>,
}

/// Where the service listens, for the caller of [`serve`].
#[derive(Clone, Debug)]
pub struct Started {
    /// The service's own API and the page.
    pub native: Option<SocketAddr>,
    /// The same, at a Unix socket.
    pub unix: Option<PathBuf>,
    /// rdlm's API.
    pub rdlm: Option<SocketAddr>,
    /// lockable.dev's API.
    pub lockable: Option<SocketAddr>,
    /// Zaqar's API.
    pub zaqar: Option<SocketAddr>,
    /// Metrics alone.
    pub metrics: Option<SocketAddr>,
    /// The instance's tag, with which its holds' ids begin.
    pub instance: String,
    /// The scheme of the store's URL.
    pub scheme: String,
}

/// Serves until `told` says to stop; when it says so a second time, the service ends at once. `started` is called once, when
/// connections are accepted.
///
/// # Errors
///
/// Faults that waiting cannot mend. If the store cannot be reached, the service waits for it instead.
///
/// # Cancel safety
///
/// Dropping the future ends the service like a crash: what it holds is free when the store notices.
pub async fn serve(
    settings: Settings,
    config: Config,
    told: Told,
    started: impl FnOnce(&Started),
) -> Result<(), Failure> {
    if let Some(refusal) = settings.refusal(&config) {
        return Err(Failure::Settings(refusal));
    }
    let (config, cover) = settings::leased(config);
    if matches!(cover, Cover::Lease(cover) if cover < SHORTEST_COVER) {
        let why = "`ttl` is too short for a service: what is left of it beside the heartbeats covers no lease of a client";
        return Err(Failure::Settings(why.to_owned()));
    }
    // What can be checked without the store, before we listen.
    config.loss_detection().map_err(|error| Failure::Settings(error.to_string()))?;
    // Before the session is opened: the library's own numbers are part of the page.
    metrics::listen();
    let shows = settings.tls.as_ref().is_some_and(|files| files.clients.is_some());
    let auth = Auth::new(settings.tokens.as_deref(), shows).map_err(Failure::Settings)?;
    let tls = settings.tls.clone().map(Tls::new).transpose().map_err(Failure::Settings)?;
    let url = config.url.as_deref().unwrap_or_default();
    let scheme = settings::scheme(url);
    let service = Service::new(settings, cover, scheme, auth, tls);

    let connections = Arc::new(Semaphore::new(service.settings.limits.connections));
    let (ended, stopped) = watch::channel(false);
    let own = v1::routes(&service);
    let native = bind_some(&service, service.settings.listen).await?;
    let unix = service.settings.unix.as_deref().map(|path| {
        let failed = |error| Failure::Listen(path.display().to_string(), error);
        unix::bind(path, &service.tag).map_err(failed)
    });
    let (unix, _socket) = unix.transpose()?.unzip();
    let rdlm = bind_some(&service, service.settings.rdlm).await?;
    let lockable = bind_some(&service, service.settings.lockable).await?;
    let zaqar = bind_some(&service, service.settings.zaqar).await?;
    let scraped = bind_some(&service, service.settings.metrics).await?;
    let at = |listener: &TcpListener| listener.local_addr().ok();
    let places = Started {
        native: native.as_ref().and_then(at),
        unix: service.settings.unix.clone(),
        rdlm: rdlm.as_ref().and_then(at),
        lockable: lockable.as_ref().and_then(at),
        zaqar: zaqar.as_ref().and_then(at),
        metrics: scraped.as_ref().and_then(at),
        instance: service.tag.clone(),
        scheme: service.scheme.clone(),
    };
    let common = listen::Common {
        connections: Arc::clone(&connections),
        places: Arc::default(),
        stop: stopped,
    };
    let mut accepting = JoinSet::new();
    if let Some(listener) = unix {
        accepting.spawn(listen::serve(listener, own.clone(), common.clone()));
    }
    if let Some(listener) = rdlm {
        // Its clients can do no TLS.
        accepting.spawn(listen::serve(listener, rdlm::routes(&service), common.clone()));
    }
    let mut listen = |listener: TcpListener, router: Router| match service.tls.clone() {
        Some(tls) => {
            accepting.spawn(listen::serve(Encrypted(listener, tls), router, common.clone()))
        }
        None => accepting.spawn(listen::serve(listener, router, common.clone())),
    };
    if let Some(listener) = native {
        listen(listener, own);
    }
    if let Some(listener) = lockable {
        listen(listener, lockable::routes(&service));
    }
    if let Some(listener) = zaqar {
        listen(listener, zaqar::routes(&service));
    }
    if let Some(listener) = scraped {
        listen(listener, v1::routes_of_metrics(&service));
    }
    started(&places);
    notify::ready();
    tokio::spawn(refresh::run(Arc::clone(&service)));
    tokio::spawn(tidy_up(Arc::clone(&service)));
    let Told { mut stops, reloads } = told;
    tokio::spawn(reload::follow(Arc::clone(&service), reloads));

    let mut session = tokio::spawn(store::connect(Arc::clone(&service), config));
    tokio::select! {
        biased;
        () = stop::told(&mut stops) => {}
        // It ends by itself only where the settings are wrong: nobody else stops the session.
        ended = &mut session => if let Ok(Err(error)) = ended {
            return Err(Failure::Settings(error.to_string()));
        },
    }
    notify::stopping();
    stop::drain(&service, &mut stops).await;
    let _ = ended.send(true);
    let all = u32::try_from(service.settings.limits.connections).unwrap_or(u32::MAX);
    let coordinator = service.coordinator.borrow().clone();
    match coordinator {
        Some(coordinator) => stop::end(&coordinator).await,
        // The store has never answered.
        None => session.abort(),
    }
    let closed = async {
        // Whoever wants all places comes before those who want one, so those who accept end first.
        while accepting.join_next().await.is_some() {}
        drop(connections.acquire_many(all).await);
    };
    drop(tokio::time::timeout(CLOSING, closed).await);
    log::finish().await;
    Ok(())
}

async fn bind(service: &Service, at: SocketAddr) -> Result<TcpListener, Failure> {
    let failed = |error| Failure::Listen(at.to_string(), error);
    let listener = TcpListener::bind(at).await.map_err(failed)?;
    let real = listener.local_addr().map_err(failed)?;
    service.listening.lock().unwrap_or_else(PoisonError::into_inner).push(real);
    Ok(listener)
}

async fn bind_some(
    service: &Service,
    at: Option<SocketAddr>,
) -> Result<Option<TcpListener>, Failure> {
    match at {
        Some(at) => bind(service, at).await.map(Some),
        None => Ok(None),
    }
}

/// Forgets handles of the library that nobody uses any more, for as long as the service runs: each follows its changes at the store.
async fn tidy_up(service: Shared) {
    loop {
        tokio::time::sleep(TIDIED).await;
        service.rates.tidy();
        service.queues.tidy();
    }
}
