//! Bodies of requests: read within a time and a size, and all that are large within a size together.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::problem::{Code, Problem};
use crate::service::Shared;
use crate::waited::waiting;

/// The most bytes of a body, where nothing larger is asked for.
const MOST: usize = 16 * 1024;
/// What the bodies of a connection may have without taking room from others: in HTTP/1.1 it has one at a time, in HTTP/2 many. A renewal that
/// comes alone is never refused for want of room.
const SMALL: usize = 64 * 1024;
/// The most bytes of all larger bodies together that arrive, or whose requests are under way.
const ALL: usize = if cfg!(test) { 1 } else { 64 } * 1024 * 1024;
/// How long a body may take to arrive.
const ARRIVES: Duration = Duration::from_secs(10);

/// The room for large bodies.
pub(crate) struct Bodies(Arc<Semaphore>);

impl Default for Bodies {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ALL)))
    }
}

/// What a connection has for its bodies alone; in the extensions of its requests, if it may have several at a time.
#[derive(Clone)]
pub(crate) struct Free(Arc<Semaphore>);

impl Default for Free {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(SMALL)))
    }
}

/// What a body takes: of what its connection has, and of what all have.
#[derive(Default)]
struct Room {
    own: Option<OwnedSemaphorePermit>,
    shared: Option<OwnedSemaphorePermit>,
}

/// A body; what it takes of the room is free again when this is dropped.
struct Kept {
    bytes: Vec<u8>,
    _room: Room,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the whole body, within a time and a size.
pub(crate) async fn body(service: &Shared, request: Request) -> Result<Bytes, Problem> {
    body_within(service, request, MOST).await
}

/// The same of a body that may have so many bytes. Who needs what it says for long keeps the body for as long.
pub(crate) async fn body_within(
    service: &Shared,
    request: Request,
    most: usize,
) -> Result<Bytes, Problem> {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > most) {
        return Err(too_large(most));
    }
    let free = request.extensions().get::<Free>().cloned().unwrap_or_default();
    let reading = service.bodies.read(request.into_body(), most, &free);
    let late = || Problem::new(Code::TooSlow, "the body did not arrive within 10 s");
    // A client that is slow to send it is not worked for meanwhile.
    waiting(tokio::time::timeout(ARRIVES, reading)).await.map_err(|_| late())?
}

fn too_large(most: usize) -> Problem {
    Problem::new(Code::TooLarge, format!("a body may have {most} bytes here"))
}

impl Bodies {
    async fn read(&self, mut body: Body, most: usize, free: &Free) -> Result<Bytes, Problem> {
        let (mut bytes, mut room) = (Vec::new(), Room::default());
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            // Broken off, or not as HTTP has it.
            let frame = frame.map_err(|_| Problem::new(Code::Invalid, "the body is not whole"))?;
            // Trailers say nothing to us.
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > most {
                return Err(too_large(most));
            }
            // What has arrived counts, and not what was announced: that costs its sender nothing.
            self.extend(&mut room, free, data.len())?;
            bytes.extend_from_slice(&data);
        }
        Ok(Bytes::from_owner(Kept { bytes, _room: room }))
    }

    /// Takes room for a body that has grown by so much: first of what its connection has.
    fn extend(&self, room: &mut Room, free: &Free, more: usize) -> Result<(), Problem> {
        let full = |_: TryAcquireError| {
            Problem::new(Code::Overloaded, "there are too many large bodies at once")
        };
        let own = free.0.available_permits().min(more);
        // Another body of the connection may have taken it by now.
        let own = take(&mut room.own, &free.0, own).map_or(0, |()| own);
        take(&mut room.shared, &self.0, more - own).map_err(full)
    }
}

/// Takes so many bytes more.
fn take(
    taken: &mut Option<OwnedSemaphorePermit>,
    of: &Arc<Semaphore>,
    more: usize,
) -> Result<(), TryAcquireError> {
    if more == 0 {
        return Ok(());
    }
    let more = u32::try_from(more).unwrap_or(u32::MAX);
    let added = Arc::clone(of).try_acquire_many_owned(more)?;
    match taken {
        Some(taken) => taken.merge(added),
        None => *taken = Some(added),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::task::{Context, Poll};

    use hyper::body::Frame;
    use tokio::time::{Sleep, sleep};

    use super::*;
    use crate::acquire::tests::instance;
    use crate::settings::Cover;
    use crate::waited::Waited;

    /// A body that ends only after a time.
    struct Slow(Pin<Box<Sleep>>);

    impl HttpBody for Slow {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0.as_mut().poll(context).map(|()| None)
        }
    }

    /// The time in which a client sends its body is none in which its request is worked on.
    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_waited_for() {
        let (service, _other) = instance(Cover::Any).await;
        let (waited, time) = (Waited::default(), Duration::from_millis(50));
        let slow = Request::new(Body::new(Slow(Box::pin(sleep(time)))));
        let read = waited.count(Duration::from_secs(60), body(&service, slow)).await;
        assert_eq!(read.expect("it ends").expect("it is empty").len(), 0);
        assert!(waited.time() >= time / 2, "{:?}", waited.time());
    }

    fn request(length: usize) -> Request {
        Request::new(Body::from(vec![b'x'; length]))
    }

    /// H8: many large bodies at once are refused, and small ones are not.
    #[tokio::test]
    async fn h8_large_bodies_take_no_more_room_than_there_is() {
        let (service, _other) = instance(Cover::Any).await;
        let large = ALL / 3 + SMALL;
        let read = async |length| body_within(&service, request(length), large).await;
        let code = |read: Result<Bytes, Problem>| read.map(drop).map_err(|problem| problem.code);
        let mut kept = Vec::new();
        for _ in 0..3 {
            kept.push(read(large).await.expect("there is room for three"));
        }
        assert_eq!(code(read(large).await), Err(Code::Overloaded));
        let renewals = body_within(&service, request(SMALL), SMALL).await;
        assert_eq!(renewals.expect("small ones need none").len(), SMALL);
        assert_eq!(code(body(&service, request(MOST + 1)).await), Err(Code::TooLarge));
        kept.pop();
        assert_eq!(code(read(large).await), Ok(()));
        assert_eq!(code(read(large).await), Ok(()), "what is dropped frees its room");
    }

    /// H8: the many bodies that a connection of HTTP/2 has at a time take no more for nothing than one of HTTP/1.1 does.
    #[tokio::test]
    async fn h8_the_bodies_of_a_connection_share_what_it_has() {
        let (service, _other) = instance(Cover::Any).await;
        let read = async |free: &Free| {
            let mut asked = request(SMALL);
            asked.extensions_mut().insert(free.clone());
            body_within(&service, asked, SMALL).await.map_err(|problem| problem.code)
        };
        let free = Free::default();
        let mut kept = Vec::new();
        for _ in 0..=ALL / SMALL {
            kept.push(read(&free).await.expect("there is room"));
        }
        assert_eq!(read(&free).await.map(drop), Err(Code::Overloaded));
        assert_eq!(read(&Free::default()).await.map(drop), Ok(()), "another one has its own");
        kept.remove(0);
        assert_eq!(read(&free).await.map(drop), Ok(()), "what is dropped frees its room");
    }
}
