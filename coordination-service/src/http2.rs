//! HTTP/2, which is spoken over TLS only: a connection has many requests at a time, and its client may take each of them back.
//!
//! Hyper serves it, and bounds what arrives and how many requests there are. What it does not bound is here: how often requests are taken
//! back, and how long a connection is there without any.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper_util::rt::TokioTimer;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::places::{Own, UnderWay};
use crate::taken;

#[cfg(test)]
mod frames;
#[cfg(test)]
mod tests;

/// How many requests a connection may have at a time.
const STREAMS: u32 = 250;
/// How long nothing may arrive until the client is asked for a sign of life, and how long that may take.
const PING: Duration = Duration::from_secs(if cfg!(test) { 4 } else { 15 });
/// How many bytes of a request's body may have arrived and not be read yet: as much as a small body may have.
const WINDOW: u32 = 64 * 1024;
/// The same of all requests of a connection. `h2` ends a connection if the frames of bodies that were not read yet lack more than half of that to
/// 256 bytes each; the last frame of a body does not count. Many clients send a body in one frame and its end in another, and all requests that
/// a connection may have can arrive before any of it is read.
const WINDOW_OF_ALL: u32 = 2 * 256 * STREAMS;
/// How many requests a client may take back within a time before they are answered: four times as many as it may have.
const TAKEN_BACK: (usize, Duration) =
    if cfg!(test) { (20, Duration::from_secs(60)) } else { (1_000, Duration::from_secs(1)) };
/// How long a connection may be without a request.
const IDLE: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 30 });
/// How long a client that was told to go may ask for nothing before its connection is closed: shorter than what a stop waits for.
const LEAVING: Duration = Duration::from_secs(1);

/// How each connection is served; heads may have so many bytes.
pub(crate) fn builder(head: usize) -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(Streams);
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX))
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW_OF_ALL);
    builder
}

/// Where the work for each stream is done: in a task of its own.
#[derive(Clone)]
pub(crate) struct Streams;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        tokio::spawn(taken::of_stream(stream));
    }
}

/// Has the request name its host as in HTTP/1.1. One that names two is refused as it is there.
pub(crate) fn name_host<B>(request: &mut Request<B>) {
    let authority = request.uri().authority();
    let host = authority.and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    if let Some(host) = host
        && request.headers().get(header::HOST) != Some(&host)
    {
        request.headers_mut().append(header::HOST, host);
    }
}

/// Waits until the client is to ask for nothing more on this connection: it has not for long, or it is to ask another instance, or all
/// connections end.
pub(crate) async fn over(own: &Own, conduct: &Conduct, stopped: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = own.silent_for(IDLE) => {}
        () = conduct.leaves.notified() => {}
        () = stopped => {}
    }
}

/// Waits until a client that was told so asks for nothing any more, though it has not ended the connection.
pub(crate) async fn left(own: &Own) {
    tokio::time::sleep(LEAVING).await;
    own.silent_for(LEAVING).await;
}

/// The body of a request, which has arrived with the end of this. None, of a request that nobody asks for its body: what is not read takes
/// from the window of the connection, and others would not arrive while such a request waits.
pub(crate) struct Arriving {
    body: Option<Incoming>,
    under_way: Arc<UnderWay>,
}

impl Arriving {
    pub(crate) fn new(body: Option<Incoming>, under_way: Arc<UnderWay>) -> Self {
        Self { body, under_way }
    }
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(&mut *body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || body.is_end_stream() {
            self.under_way.arrive();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), Incoming::size_hint)
    }
}

/// How a client uses its connection; in the extensions of its requests.
#[derive(Default)]
pub(crate) struct Conduct {
    /// How many requests it has taken back, and since when.
    taken_back: Mutex<Option<(Instant, usize)>>,
    /// Told when these are too many.
    refused: Notify,
    /// The handles of what it was granted, or has renewed, on this connection, and of what has ended since.
    handles: Mutex<HashSet<String>>,
    /// Told when it is to ask another instance.
    leaves: Notify,
}

/// A request that is not answered; taken back when this is dropped.
pub(crate) struct Unanswered(Option<Arc<Conduct>>);

impl Conduct {
    /// A request begins.
    pub(crate) fn begin(self: &Arc<Self>) -> Unanswered {
        Unanswered(Some(Arc::clone(self)))
    }

    /// Waits until the client has taken back so many requests that it is not served any more.
    pub(crate) async fn refused(&self) {
        self.refused.notified().await;
    }

    fn handles(&self) -> MutexGuard<'_, HashSet<String>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has the hold of this handle. Those of which this says that they do not live any more are forgotten before more room is needed.
    pub(crate) fn has(&self, handle: &str, lives: impl Fn(&str) -> bool) {
        let mut handles = self.handles();
        if handles.len() == handles.capacity() {
            handles.retain(|handle| lives(handle));
            // So that this is done again only when there are twice as many.
            let living = handles.len();
            handles.reserve(living);
        }
        handles.insert(handle.to_owned());
    }

    /// It is to ask another instance for what it wants next, unless it has something that lives. That is renewed on this connection: another
    /// one may lead to an instance that cannot.
    pub(crate) fn leave(&self, lives: impl Fn(&str) -> bool) {
        if !self.handles().iter().any(|handle| lives(handle)) {
            self.leaves.notify_one();
        }
    }

    /// A request was taken back.
    fn count(&self) {
        let (most, within) = TAKEN_BACK;
        let mut taken_back = self.taken_back.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, count) = match *taken_back {
            Some((since, count)) if since.elapsed() < within => (since, count + 1),
            _ => (Instant::now(), 1),
        };
        *taken_back = Some((since, count));
        if count > most {
            self.refused.notify_one();
        }
    }
}

impl Unanswered {
    /// It is.
    pub(crate) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(conduct) = self.0.take() {
            conduct.count();
        }
    }
}
