//! Connections: accepted within limits, with time-outs, and ended when the service stops.

use std::convert::Infallible;
use std::future::{Future, Ready, pending, ready};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::bodies::Free;
use crate::http2::{self, Arriving, Conduct};
use crate::metrics;
use crate::peer::Peer;
use crate::places::{Own, Places};
use crate::problem::{Code, Problem};
use crate::stalled::Stalled;
use crate::taken::Answer;
use crate::tls::{self, Client, EncryptedStream, OwnCertificate, Tls};

/// How long a connection may be without a request, and how long the head of one may take.
const IDLE: Duration = Duration::from_secs(30);
/// The most bytes of a head, and the most headers in it.
const HEAD: (usize, usize) = (16 * 1024, 64);
/// How long nothing is accepted when the system refuses.
const REFUSED: Duration = Duration::from_millis(50);
/// How often it is looked whether somebody makes room, if there is none.
const LOOK: Duration = Duration::from_millis(20);

/// For so long after we were told to stop whoever connects is answered, and whoever is connected may say what it wants: the
/// system resets what nobody has accepted or read.
const LATE: Duration = Duration::from_millis(200);

/// What is the same for all requests of a connection.
#[derive(Clone)]
pub(crate) struct Origin {
    peer: Peer,
    /// What it is encrypted with, whose names are ours for it.
    certificate: Option<OwnCertificate>,
    is_http2: bool,
}

impl From<Peer> for Origin {
    fn from(peer: Peer) -> Self {
        Self { peer, certificate: None, is_http2: false }
    }
}

/// A connection that is ready for use, and who has shown a certificate there.
pub(crate) type Opened<S> = io::Result<(S, Option<Client>)>;

/// Where connections come from.
pub(crate) trait Listener: Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Makes a connection ready for use. The client may have to do something for that, and others are accepted meanwhile.
    type Opening: Future<Output = Opened<Self::Stream>> + Send + 'static;

    /// The next connection, and where it is from.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Opening, Origin)>> + Send;

    /// Whether a connection that is ready was agreed to speak HTTP/2. All others speak HTTP/1.1.
    fn is_http2(_stream: &Self::Stream) -> bool {
        false
    }
}

impl Listener for TcpListener {
    type Stream = Stalled<TcpStream>;
    type Opening = Ready<Opened<Self::Stream>>;

    async fn next(&self) -> io::Result<(Self::Opening, Origin)> {
        let (stream, address) = self.accept().await?;
        prepare(&stream);
        Ok((ready(Ok((Stalled::new(stream), None))), Peer::Address(address).into()))
    }
}

impl Listener for UnixListener {
    type Stream = Stalled<UnixStream>;
    type Opening = Ready<Opened<Self::Stream>>;

    async fn next(&self) -> io::Result<(Self::Opening, Origin)> {
        let (stream, _) = self.accept().await?;
        let user = stream.peer_cred()?.uid();
        Ok((ready(Ok((Stalled::new(stream), None))), Peer::User(user).into()))
    }
}

/// An address whose connections are encrypted.
pub(crate) struct Encrypted(pub(crate) TcpListener, pub(crate) Arc<Tls>);

impl Listener for Encrypted {
    // Beneath TLS, which says of nothing that it was taken until all of it was.
    type Stream = EncryptedStream;
    type Opening = Pin<Box<dyn Future<Output = Opened<Self::Stream>> + Send>>;

    async fn next(&self) -> io::Result<(Self::Opening, Origin)> {
        let (stream, address) = self.0.accept().await?;
        prepare(&stream);
        let (tls, certificate) = (Arc::clone(&self.1), self.1.certificate());
        let own = Some(certificate.own());
        let origin = Origin { peer: Peer::Address(address), certificate: own, is_http2: false };
        Ok((Box::pin(async move { tls.accept(stream, certificate).await }), origin))
    }

    fn is_http2(stream: &EncryptedStream) -> bool {
        tls::is_http2(stream)
    }
}

/// What all listeners share.
#[derive(Clone)]
pub(crate) struct Common {
    /// A permit for each connection that there may be.
    pub(crate) connections: Arc<Semaphore>,
    pub(crate) places: Arc<Places>,
    /// True: to stop.
    pub(crate) stop: watch::Receiver<bool>,
}

/// Accepts connections until told to stop, which lets the requests under way end, and those that were sent by then.
pub(crate) async fn serve<L: Listener>(listener: L, router: Router, common: Common) {
    let mut late = std::pin::pin!(stopped(common.stop.clone()));
    loop {
        let next = async { Some((room(&common).await?, listener.next().await)) };
        let next = tokio::select! {
            biased;
            next = next => next,
            () = &mut late => return,
        };
        let Some((permit, accepted)) = next else { return };
        let (opening, mut origin) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Of this connection, or the process has no descriptor left: others end by and by.
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(REFUSED).await;
                continue;
            }
        };
        let own = common.places.take(origin.peer);
        let (router, stop) = (router.clone(), common.stop.clone());
        tokio::spawn(async move {
            let opened = tokio::select! {
                biased;
                opened = opening => opened,
                () = stopped(stop.clone()) => return,
                () = own.needed() => return,
            };
            match opened {
                Ok((stream, client)) => {
                    origin.is_http2 = L::is_http2(&stream);
                    connection(stream, origin, client, own, router, stop).await;
                }
                Err(error) => {
                    metrics::handshake_failed();
                    tracing::debug!(%error, peer = %origin.peer, "a connection was not encrypted");
                }
            }
            drop(permit);
        });
    }
}

/// Waits until we are told to stop, and then until whoever has sent something by then is read: hyper closes a connection of which
/// it has read nothing yet, and what is new is read only when the system has told of it.
async fn stopped(mut stop: watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
    tokio::time::sleep(LATE).await;
}

/// Room for one more connection: if there is none, one that asks for nothing is ended for it. None: there never will be any.
async fn room(common: &Common) -> Option<OwnedSemaphorePermit> {
    let mut room = pin!(Arc::clone(&common.connections).acquire_owned());
    let mut pause = Duration::ZERO;
    loop {
        match tokio::time::timeout(pause, room.as_mut()).await {
            Ok(permit) => return permit.ok(),
            Err(_) => common.places.make_room(),
        }
        pause = LOOK;
    }
}

/// Serves a connection to its end. What waits on one that is cut off ends as if the client had hung up, and what is held by it ends by its
/// lease.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    Origin { peer, certificate, is_http2 }: Origin,
    client: Option<Client>,
    own: Own,
    router: Router,
    stop: watch::Receiver<bool>,
) {
    let service = TowerToHyperService::new(router);
    let (own, conduct) = (Arc::new(own), Arc::<Conduct>::default());
    let (asking, telling) = (Arc::clone(&own), Arc::clone(&conduct));
    let names = client.as_ref().map(Client::names);
    let free = is_http2.then(Free::default);
    let with_peer = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        if let Some(names) = &names {
            request.extensions_mut().insert(Arc::clone(names));
        }
        if let Some(free) = &free {
            request.extensions_mut().insert(free.clone());
        }
        if is_http2 {
            request.extensions_mut().insert(Arc::clone(&telling));
            http2::name_host(&mut request);
        }
        let is_read = !is_http2 || has_body(request.method());
        // In HTTP/1.1 a body that does not arrive in time ends its connection.
        let has_arrived = !is_http2 || !is_read || request.body().is_end_stream();
        let refused = unserved(&request, &asking);
        let (under_way, unanswered) = (Arc::new(asking.begin(has_arrived)), telling.begin());
        if is_http2 {
            request.extensions_mut().insert(Arc::clone(&under_way));
        }
        let request =
            request.map(|body| Arriving::new(is_read.then_some(body), Arc::clone(&under_way)));
        let answer = match refused {
            None => Ok(hyper::service::Service::call(&service, request)),
            Some(refused) => Err(refused),
        };
        async move {
            let answer = match answer {
                Ok(answer) => answer.await,
                Err(refused) => Ok::<Response, Infallible>(refused),
            };
            answer.map(|answer| {
                unanswered.answered();
                answer.map(|body| Answer::new(body, under_way))
            })
        }
    });
    let stream = TokioIo::new(stream);
    let serving = async {
        if is_http2 {
            let mut connection = pin!(http2::builder(HEAD.0).serve_connection(stream, with_peer));
            tokio::select! {
                biased;
                ended = connection.as_mut() => return ended,
                () = http2::over(&own, &conduct, stopped(stop)) => {}
            }
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                biased;
                ended = connection => ended,
                () = http2::left(&own) => Ok(()),
            }
        } else {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new())
                .header_read_timeout(IDLE)
                .max_buf_size(HEAD.0)
                .max_headers(HEAD.1);
            let mut connection = pin!(http.serve_connection(stream, with_peer));
            tokio::select! {
                biased;
                ended = connection.as_mut() => return ended,
                () = stopped(stop) => {}
            }
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    let ended = tokio::select! {
        biased;
        ended = serving => ended,
        () = own.needed() => return,
        () = conduct.refused() => return,
        () = refused(client.as_ref()) => {
            tracing::debug!(%peer, "a client's certificate is not accepted any more");
            return;
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "a connection ended");
    }
}

/// Whether we ask requests with this method for their body.
fn has_body(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}

/// The answer to a request that is one too many, or has too much. It has no text: its client could leave that untaken as well.
fn unserved<B>(request: &Request<B>, own: &Own) -> Option<Response> {
    // In HTTP/1.1 hyper looks at that.
    if request.headers().len() > HEAD.1 {
        return Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response());
    }
    if own.has_room() {
        return None;
    }
    metrics::refused(Code::Overloaded.text());
    Some(Problem::new(Code::Overloaded, "there are too many requests at a time").into_response())
}

/// Waits until the client's certificate is not accepted any more, if it has shown one.
async fn refused(client: Option<&Client>) {
    match client {
        Some(client) => client.refused().await,
        None => pending().await,
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
            let connections = Arc::new(Semaphore::new(2_000));
            let common = Common { connections, places: Arc::default(), stop };
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
                // An answer may be some bytes shorter than the first one, which may have said that it took a second.
                let mut read = 0;
                while read < cut && !is_whole(&answer[..read]) {
                    let count = stream.read(&mut answer[read..cut]).await.expect("an answer");
                    assert!(count > 0, "it ends after {read} of {cut}");
                    read += count;
                }
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

    /// Whether this is all of an answer.
    fn is_whole(answer: &[u8]) -> bool {
        let text = String::from_utf8_lossy(answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        length.is_some_and(|length| length.parse() == Ok(body.len()))
    }

    /// H10: who had sent its request when we were told to stop is answered, though nobody had accepted its connection.
    #[tokio::test]
    async fn h10_what_the_system_has_taken_is_answered() {
        let (service, _other) = instance(Cover::Any).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("it listens");
        let mut stream = TcpStream::connect(at).await.expect("the system takes it");
        let text = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
        stream.write_all(text).await.expect("it is taken");
        let (_stopping, stop) = watch::channel(true);
        let connections = Arc::new(Semaphore::new(9));
        let common = Common { connections, places: Arc::default(), stop };
        let serving = tokio::spawn(serve(listener, v1::routes(&service), common));
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 200");
        tokio::time::timeout(LONG, serving).await.expect("it ends").expect("it does not panic");
    }

    /// H8: who is connected and asks for nothing keeps nobody out, and who waits for an answer keeps its place.
    #[tokio::test]
    async fn h8_who_asks_for_nothing_keeps_nobody_out() {
        let (service, other) = instance(Cover::Any).await;
        let path = std::env::temp_dir().join(format!("coordination-{}", ids::letters(12)));
        let listener = UnixListener::bind(&path).expect("there is room");
        let (_running, stop) = watch::channel(false);
        let connections = Arc::new(Semaphore::new(3));
        let common = Common { connections, places: Arc::default(), stop };
        tokio::spawn(serve(listener, v1::routes(&service), common));
        let ask = async |text: &str| {
            let mut stream = UnixStream::connect(&path).await.expect("somebody listens");
            stream.write_all(text.as_bytes()).await.expect("it is taken");
            stream
        };
        let _taken = other.lock("x").expect("a name").acquire(None).await.expect("it is free");
        let _waiting = ask(
            "POST /v1/locks/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 17\r\n\r\n{\"wait_ms\":60000}",
        )
        .await;
        let begun = async {
            while service.waits.count() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, begun).await.expect("it begins to wait");
        // One that says nothing, and one that does not come to the end of its first line.
        let mut silent = [ask("").await, ask("GET /li").await];
        let mut open = Vec::new();
        for _ in 0..3 {
            let mut late = ask("GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
            let mut answer = [0; 12];
            let answered = tokio::time::timeout(LONG, late.read_exact(&mut answer)).await;
            answered.expect("there is a place").expect("an answer");
            assert_eq!(&answer, b"HTTP/1.1 200");
            open.push(late);
        }
        for silent in &mut silent {
            let end = tokio::time::timeout(LONG, silent.read(&mut [0; 9])).await;
            assert!(!matches!(end.expect("it has ended"), Ok(1..)), "nothing was asked for");
        }
        assert_eq!(service.waits.count(), 1);
        drop(std::fs::remove_file(&path));
    }
}
