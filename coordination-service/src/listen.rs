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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::runtime::Handle;

    use super::*;
    use crate::acquire::tests::instance;
    use crate::settings::Cover;
    use crate::{ids, v1};

    /// How long whoever has gone may have a task.
    const LONG: Duration = Duration::from_secs(20);

    /// H6: a connection that ends after any byte of a request, or of an answer, leaves no hold, no wait and no task.
    #[tokio::test]
    async fn h6_a_connection_that_is_cut_anywhere_leaves_no_task() {
        for with in ["", "idempotency-key: k\r\n"] {
            let (service, other) = instance(Cover::Any).await;
            let path = std::env::temp_dir().join(format!("coordination-{}", ids::letters(12)));
            let listener = UnixListener::bind(&path).expect("there is room");
            let (_running, stop) = watch::channel(false);
            let common = Common { connections: Arc::new(Semaphore::new(2_000)), stop };
            tokio::spawn(serve(listener, v1::routes(&service), common));
            let ask = async |name: usize, length: usize| {
                let body = r#"{"lease_ms":60000,"wait_ms":60000}"#;
                let text = format!(
                    "POST /v1/locks/{name} HTTP/1.1\r\nhost: localhost\r\n{with}content-length: {}\r\n\r\n{body}",
                    body.len()
                )
                .replace(": k\r", &format!(": k{name}\r"));
                let mut stream = UnixStream::connect(&path).await.expect("somebody listens");
                let length = length.min(text.len());
                stream.write_all(&text.as_bytes()[..length]).await.expect("it is taken");
                (stream, length < text.len())
            };
            // One that somebody has already, for those who are to wait.
            let taken = other.lock("0").expect("a name").acquire(None).await.expect("it is free");
            let before = Handle::current().metrics().num_alive_tasks();
            let mut cut = 1;
            while ask(0, cut).await.1 {
                cut += 1;
            }
            let mut answer = vec![0; 4_096];
            let whole = ask(1, usize::MAX).await.0.read(&mut answer).await.expect("an answer");
            for cut in 0..=whole {
                let (mut stream, _) = ask(cut + 2, usize::MAX).await;
                stream.read_exact(&mut answer[..cut]).await.expect("an answer");
            }
            // What was sent, and perhaps read, is held for as long as its lease: so it is given up here.
            let gone = async {
                while Handle::current().metrics().num_alive_tasks() > before
                    || service.waits.count() > 0
                {
                    for hold in service.holds.live() {
                        service.holds.end_in_background(&hold, crate::holds::End::Released);
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let gone = tokio::time::timeout(LONG, gone).await;
            let now = Handle::current().metrics().num_alive_tasks();
            assert!(gone.is_ok(), "{now} tasks after {before}, {} waits", service.waits.count());
            assert!(service.under_way.is_over(), "something is under way");
            assert!(taken.is_held());
            drop(std::fs::remove_file(&path));
        }
    }
}
