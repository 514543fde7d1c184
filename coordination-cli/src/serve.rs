//! `coordination serve`: the service over HTTP, of which this is the command line, the signals and the log.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use coordination_service::{ClientFiles, Failure as Ended, Settings, TlsFiles, Told, make_token};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::args::{ClientAuth, Listen, Serve, Store};
use crate::exit::{self, Failure, Outcome, print, say};
use crate::{settings, stderr};

/// So many descriptors are left to the store and to what else the service opens.
const OWN: usize = 128;

pub(crate) async fn serve(asked: &Serve, store: &Store) -> Outcome<u8> {
    if let Some(name) = &asked.make_token {
        let (token, lines) = make_token(name, &asked.uses);
        print(&format!("# The token, which is shown only now: {token}\n{lines}"))?;
        return Ok(0);
    }
    let mut config = settings::read(store)?;
    // Its handlers share our thread with clients: a session's heartbeats are to depend on none of them.
    config.heartbeat_on_current_runtime = false;
    tracing_subscriber::fmt().with_writer(|| Log).with_ansi(false).init();
    let (listen, unix) = listens(&asked.listen)?;
    let mut settings = Settings {
        listen,
        unix,
        rdlm: asked.rdlm,
        lockable: asked.lockable,
        zaqar: asked.zaqar,
        metrics: asked.metrics,
        hosts: asked.host.clone(),
        trusted_proxies: asked.trusted_proxy.clone(),
        tokens: asked.tokens.clone(),
        tls: tls_files(asked),
        allow_anonymous: asked.allow_anonymous,
        allow_plaintext: asked.allow_plaintext,
        drain: asked.drain,
        access_log: !asked.no_access_log,
        fresh: asked.fresh,
        ..Settings::default()
    };
    settings.long.extend(asked.long.iter().cloned());
    limit(&mut settings.limits.connections, store.quiet);
    let told = Told {
        stops: told_by(&[SignalKind::terminate(), SignalKind::interrupt()])?,
        reloads: told_by(&[SignalKind::hangup()])?,
    };
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let quiet = store.quiet;
    let serving = coordination_service::serve(settings, config, told, |started| {
        if !quiet {
            let others = [
                ("rdlm", started.rdlm),
                ("lockable", started.lockable),
                ("zaqar", started.zaqar),
                ("metrics", started.metrics),
            ];
            let others = others.into_iter().filter_map(|(api, at)| Some((api, at?)));
            let others: String = others.map(|(api, at)| format!(", {api} on {at}")).collect();
            let unix = started.unix.as_ref().map(|path| format!("unix:{}", path.display()));
            let native = started.native.map(|at| format!("{scheme}://{at}"));
            let own: Vec<_> = native.into_iter().chain(unix).collect();
            let own = own.join(", and on ");
            say(format_args!(
                "serving {} as {} on {own}{others}",
                started.scheme, started.instance
            ));
        }
    });
    serving.await.map(|()| 0).map_err(|ended| match ended {
        Ended::Settings(why) => Failure::usage(why),
        Ended::Listen(at, error) => {
            Failure::new(exit::SYSTEM, format!("cannot listen on {at}: {error}"))
        }
    })
}

/// The address and the path where the service listens.
fn listens(asked: &[Listen]) -> Outcome<(Option<SocketAddr>, Option<PathBuf>)> {
    let (mut address, mut path) = (None, None);
    for listen in asked {
        let before = match listen {
            Listen::Address(at) => address.replace(*at).map(|_| ()),
            Listen::Unix(at) => path.replace(at.clone()).map(|_| ()),
        };
        if before.is_some() {
            return Err(Failure::usage("--listen takes one address and one unix:PATH".to_owned()));
        }
    }
    Ok((address, path))
}

/// As many descriptors as the system lets us have at most: a shell and systemd begin with fewer than there may be connections.
fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    // Where that is refused, as some systems do if there is no limit, all stays as it was.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let limit = if raised.is_ok() { limit.maximum } else { limit.current };
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// No more connections than there are descriptors for.
fn limit(most: &mut usize, quiet: bool) {
    let room = most_connections(descriptors());
    if room < *most {
        if !quiet {
            let of = "the hard limit of descriptors leaves room for";
            say(format_args!("{of} {room} connections instead of {most}: see ulimit -Hn"));
        }
        *most = room;
    }
}

/// How many connections there may be with so many descriptors: without one for itself the store cannot be asked.
fn most_connections(descriptors: usize) -> usize {
    descriptors.saturating_sub(OWN).max(descriptors / 2)
}

/// Where warnings are written: to stderr, whose reader may have stopped, and no client is to wait for that.
struct Log;

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        stderr::write(String::from_utf8_lossy(line).into_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn tls_files(asked: &Serve) -> Option<TlsFiles> {
    let (certificate, key) = (asked.tls_cert.clone()?, asked.tls_key.clone()?);
    let clients = asked.client_ca.clone().map(|authorities| ClientFiles {
        authorities,
        revoked: asked.client_crl.clone(),
        required: asked.client_auth != Some(ClientAuth::Optional),
    });
    Some(TlsFiles { certificate, key, clients })
}

/// A word for each signal of these kinds.
fn told_by(kinds: &[SignalKind]) -> Outcome<mpsc::Receiver<()>> {
    let (told, words) = mpsc::channel(2);
    for kind in kinds {
        let failed = |error| Failure::system("cannot receive signals", &error);
        let (mut signals, told) = (signal(*kind).map_err(failed)?, told.clone());
        tokio::spawn(async move {
            while signals.recv().await.is_some() && told.send(()).await.is_ok() {}
        });
    }
    Ok(words)
}
