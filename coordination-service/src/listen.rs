//! Connections: accepted within limits, with time-outs, and ended when the service stops.

use std::future::Future;
use std::io;
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

use crate::around::Peer;
use crate::stalled::Stalled;

/// How long a connection may be without a request, and how long the head of one may take.
const IDLE: Duration = Duration::from_secs(30);
/// The most bytes of a head, and the most headers in it.
const HEAD: (usize, usize) = (16 * 1024, 64);
/// How long nothing is accepted when the system refuses.
const REFUSED: Duration = Duration::from_millis(50);

/// Where connections come from.
pub(crate) trait Listener: Send + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, ready for use, and where it is from.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<(TcpStream, Peer)> {
        let (stream, address) = self.accept().await?;
        prepare(&stream);
        Ok((stream, Peer::Address(address)))
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<(UnixStream, Peer)> {
        let (stream, _) = self.accept().await?;
        let user = stream.peer_cred()?.uid();
        Ok((stream, Peer::User(user)))
    }
}

/// Accepts connections until told to stop, which lets the requests under way end.
pub(crate) async fn serve(
    listener: impl Listener,
    router: Router,
    connections: Arc<Semaphore>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        let accepted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            accepted = listener.next() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Of this connection, or the process has no descriptor left: others end by and by.
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(REFUSED).await;
                continue;
            }
        };
        let (router, stop) = (router.clone(), stop.clone());
        tokio::spawn(async move {
            connection(stream, peer, router, stop).await;
            drop(permit);
        });
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let service = TowerToHyperService::new(router);
    let with_peer =
        hyper::service::service_fn(move |mut request: Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(peer);
            hyper::service::Service::call(&service, request)
        });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(HEAD.0)
        .max_headers(HEAD.1);
    let mut connection =
        std::pin::pin!(http.serve_connection(TokioIo::new(Stalled::new(stream)), with_peer));
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
