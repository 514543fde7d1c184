//! Connections: accepted within limits, with time-outs, and ended when the service stops.

use std::future::{Future, Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::server::TlsStream;

use crate::around::Peer;
use crate::metrics;
use crate::stalled::Stalled;
use crate::tls::{Certificate, Tls};

/// How long a connection may be without a request, and how long the head of one may take.
const IDLE: Duration = Duration::from_secs(30);
/// The most bytes of a head, and the most headers in it.
const HEAD: (usize, usize) = (16 * 1024, 64);
/// How long nothing is accepted when the system refuses.
const REFUSED: Duration = Duration::from_millis(50);

/// What is the same for all requests of a connection.
#[derive(Clone)]
pub(crate) struct Origin {
    peer: Peer,
    /// What it is encrypted with, whose names are ours for it.
    certificate: Option<Certificate>,
}

impl From<Peer> for Origin {
    fn from(peer: Peer) -> Self {
        Self { peer, certificate: None }
    }
}

/// Where connections come from.
pub(crate) trait Listener: Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Makes a connection ready for use. The client may have to do something for that, and others are accepted meanwhile.
    type Opening: Future<Output = io::Result<Self::Stream>> + Send + 'static;

    /// The next connection, and where it is from.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Opening, Origin)>> + Send;
}

impl Listener for TcpListener {
    type Stream = Stalled<TcpStream>;
    type Opening = Ready<io::Result<Self::Stream>>;

    async fn next(&self) -> io::Result<(Self::Opening, Origin)> {
        let (stream, address) = self.accept().await?;
        prepare(&stream);
        Ok((ready(Ok(Stalled::new(stream))), Peer::Address(address).into()))
    }
}

impl Listener for UnixListener {
    type Stream = Stalled<UnixStream>;
    type Opening = Ready<io::Result<Self::Stream>>;

    async fn next(&self) -> io::Result<(Self::Opening, Origin)> {
        let (stream, _) = self.accept().await?;
        let user = stream.peer_cred()?.uid();
        Ok((ready(Ok(Stalled::new(stream))), Peer::User(user).into()))
    }
}

/// An address whose connections are encrypted.
pub(crate) struct Encrypted(pub(crate) TcpListener, pub(crate) Arc<Tls>);

impl Listener for Encrypted {
    // Beneath TLS, which says of nothing that it was taken until all of it was.
    type Stream = TlsStream<Stalled<TcpStream>>;
    type Opening = Pin<Box<dyn Future<Output = io::Result<Self::Stream>> + Send>>;

    async fn next(&self) -> io::Result<(Self::Opening, Origin)> {
        let (stream, address) = self.0.accept().await?;
        prepare(&stream);
        let (tls, certificate) = (Arc::clone(&self.1), self.1.certificate());
        let origin =
            Origin { peer: Peer::Address(address), certificate: Some(certificate.clone()) };
        Ok((Box::pin(async move { tls.accept(stream, certificate).await }), origin))
    }
}

/// What all listeners share.
#[derive(Clone)]
pub(crate) struct Common {
    /// A permit for each connection that there may be.
    pub(crate) connections: Arc<Semaphore>,
    /// True: to stop.
    pub(crate) stop: watch::Receiver<bool>,
}

/// Accepts connections until told to stop, which lets the requests under way end.
pub(crate) async fn serve(listener: impl Listener, router: Router, mut common: Common) {
    loop {
        let Ok(permit) = Arc::clone(&common.connections).acquire_owned().await else { return };
        let accepted = tokio::select! {
            biased;
            _ = common.stop.wait_for(|stop| *stop) => return,
            accepted = listener.next() => accepted,
        };
        let (opening, origin) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Of this connection, or the process has no descriptor left: others end by and by.
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(REFUSED).await;
                continue;
            }
        };
        let (router, mut stop) = (router.clone(), common.stop.clone());
        tokio::spawn(async move {
            let opened = tokio::select! {
                biased;
                opened = opening => opened,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            match opened {
                Ok(stream) => connection(stream, origin, router, stop).await,
                Err(error) => {
                    metrics::handshake_failed();
                    tracing::debug!(%error, peer = %origin.peer, "a connection was not encrypted");
                }
            }
            drop(permit);
        });
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    Origin { peer, certificate }: Origin,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let service = TowerToHyperService::new(router);
    let with_peer =
        hyper::service::service_fn(move |mut request: Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(peer);
            if let Some(certificate) = &certificate {
                request.extensions_mut().insert(certificate.clone());
            }
            hyper::service::Service::call(&service, request)
        });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(HEAD.0)
        .max_headers(HEAD.1);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), with_peer));
    let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = stopped => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "a connection ended");
    }
}

/// A host that vanished without a packet is noticed within 30 seconds.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let set = || -> io::Result<()> {
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, Duration::from_secs(15))?;
        sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
        sockopt::set_tcp_keepcnt(stream, 3)?;
        // Other systems have no such limit for what was sent and is not acknowledged.
        #[cfg(target_os = "linux")]
        sockopt::set_tcp_user_timeout(stream, 30_000)?;
        Ok(())
    };
    if let Err(error) = set() {
        tracing::debug!(%error, "a connection keeps the system's time-outs");
    }
}
