//! What a connection has taken of an answer. Only that was delivered; and in HTTP/2, whose connections are shared, an answer goes on
//! only after that, and not at all if its client takes nothing of it for long.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Buf, Frame, SizeHint};
use tokio::time::{Instant, sleep};

use crate::delivery::{self, Deliver};
use crate::places::UnderWay;
use crate::stalled::STALL;

tokio::task_local! {
    /// That whose request is worked on, in HTTP/2.
    static OF_REQUEST: Arc<Stream>;
}

/// The answers' side of a stream of HTTP/2.
#[derive(Default)]
struct Stream(Mutex<Sent>);

/// What the connection has of a stream.
#[derive(Default)]
struct Sent {
    /// Since when nothing was taken of what there is to take, if there is any.
    untaken_since: Option<Instant>,
    /// Who waits until all of it is taken.
    waits: Option<Waker>,
}

impl Stream {
    fn sent(&self) -> MutexGuard<'_, Sent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is something to take, or some of it was taken.
    fn begin(&self) {
        self.sent().untaken_since = Some(Instant::now());
    }

    /// There is nothing to take any more.
    fn end(&self) {
        let mut sent = self.sent();
        sent.untaken_since = None;
        let waits = sent.waits.take();
        drop(sent);
        if let Some(waits) = waits {
            waits.wake();
        }
    }

    fn untaken_since(&self) -> Option<Instant> {
        self.sent().untaken_since
    }

    /// Ready when there is nothing to take.
    fn poll_taken(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut sent = self.sent();
        if sent.untaken_since.is_none() {
            return Poll::Ready(());
        }
        sent.waits = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Does this, which is all the work for one stream of HTTP/2. If its client takes nothing of the answer for long, the work is dropped,
/// which resets the stream: the connection serves others.
pub(crate) async fn of_stream(work: impl Future<Output = ()>) {
    let stream = Arc::<Stream>::default();
    let mut work = pin!(OF_REQUEST.scope(Arc::clone(&stream), work));
    let mut late = pin!(sleep(STALL));
    poll_fn(|context| {
        if work.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        // There is something to take only after the work was polled: until then no timer is needed.
        let Some(since) = stream.untaken_since() else { return Poll::Pending };
        let until = since + STALL;
        if late.deadline() < until {
            late.as_mut().reset(until);
        }
        late.as_mut().poll(context)
    })
    .await;
}

/// Part of an answer, as it is written to the connection.
pub(crate) struct Part {
    bytes: Bytes,
    /// What the client has when it has all of the bytes. Its drop takes it back.
    given: Option<Box<dyn Deliver>>,
    stream: Option<Arc<Stream>>,
}

impl Part {
    fn new(bytes: Bytes, given: Option<Box<dyn Deliver>>, stream: Option<Arc<Stream>>) -> Self {
        if let Some(stream) = &stream {
            stream.begin();
        }
        let mut part = Self { bytes, given, stream };
        part.look();
        part
    }

    /// Delivers what is given if there is nothing left to take.
    fn look(&mut self) {
        if self.bytes.has_remaining() {
            return;
        }
        if let Some(mut given) = self.given.take() {
            given.deliver();
        }
        if let Some(stream) = self.stream.take() {
            stream.end();
        }
    }
}

impl Buf for Part {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if count > 0
            && let Some(stream) = &self.stream
        {
            stream.begin();
        }
        self.look();
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            stream.end();
        }
    }
}

/// The body of an answer, whose request is under way until this is dropped.
pub(crate) struct Answer {
    body: Body,
    stream: Option<Arc<Stream>>,
    under_way: Arc<UnderWay>,
}

impl Answer {
    /// Of the request that is worked on.
    pub(crate) fn new(body: Body, under_way: Arc<UnderWay>) -> Self {
        let stream = OF_REQUEST.try_with(Arc::clone).ok();
        Self { body, stream, under_way }
    }
}

impl HttpBody for Answer {
    type Data = Part;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Part>, Self::Error>>> {
        if let Some(stream) = &self.stream {
            ready!(stream.poll_taken(context));
        }
        let body = Pin::new(&mut self.body);
        let (frame, given) = delivery::asked(|| body.poll_frame(context));
        if self.body.is_end_stream() {
            self.under_way.answer();
        }
        let stream = self.stream.clone();
        let part = |bytes| Part::new(bytes, given, stream);
        frame.map_ok(|frame| frame.map_data(part))
    }

    fn is_end_stream(&self) -> bool {
        // Else hyper would be done with a stream of which nothing was taken yet, and nobody could end it.
        let is_taken = |stream: &Arc<Stream>| stream.untaken_since().is_none();
        self.stream.as_ref().is_none_or(is_taken) && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Peer;
    use crate::places::Places;

    /// Tells what became of it: whether it was delivered.
    struct Given(Option<Arc<Mutex<Vec<bool>>>>);

    impl Given {
        fn tell(&mut self, is_delivered: bool) {
            if let Some(told) = self.0.take() {
                told.lock().expect("no panic").push(is_delivered);
            }
        }
    }

    impl Deliver for Given {
        fn deliver(&mut self) {
            self.tell(true);
        }
    }

    impl Drop for Given {
        fn drop(&mut self) {
            self.tell(false);
        }
    }

    /// What gives something away with this text, and is asked for it.
    async fn part(told: &Arc<Mutex<Vec<bool>>>, text: &str) -> (Answer, Part) {
        let under_way = Arc::new(Arc::<Places>::default().take(Peer::User(1)).begin(true));
        let body = delivery::body(text.to_owned(), Given(Some(Arc::clone(told))));
        let mut answer = Answer::new(body, under_way);
        let frame = poll_fn(|context| Pin::new(&mut answer).poll_frame(context)).await;
        let frame = frame.expect("there is some").expect("no error");
        (answer, frame.into_data().ok().expect("it is text"))
    }

    /// H6: what was asked for and not written was not delivered, nor is that of which only some was written.
    #[tokio::test]
    async fn h6_only_what_is_written_is_delivered() {
        let told = Arc::<Mutex<Vec<bool>>>::default();
        let become_of = || std::mem::take(&mut *told.lock().expect("no panic"));
        let (answer, whole) = part(&told, "text").await;
        drop(answer);
        assert!(become_of().is_empty());
        drop(whole);
        assert_eq!(become_of(), [false]);
        let (_answer, mut half) = part(&told, "text").await;
        half.advance(2);
        assert_eq!((half.chunk(), half.remaining()), (&b"xt"[..], 2));
        assert!(become_of().is_empty());
        drop(half);
        assert_eq!(become_of(), [false]);
        let (_answer, mut all) = part(&told, "text").await;
        all.advance(4);
        assert_eq!(become_of(), [true]);
        drop(all);
        assert!(become_of().is_empty());
        drop(part(&told, "").await);
        assert_eq!(become_of(), [true], "there is nothing to write");
    }

    /// H8: a stream whose client takes some now and then goes on, and one whose client takes nothing ends.
    #[tokio::test(start_paused = true)]
    async fn h8_a_stream_of_which_nothing_is_taken_ends() {
        let told = Arc::<Mutex<Vec<bool>>>::default();
        let begun = Instant::now();
        of_stream(async {
            let (mut answer, mut slow) = part(&told, "text").await;
            assert!(!answer.is_end_stream());
            for _ in 0..4 {
                sleep(STALL / 2).await;
                slow.advance(1);
            }
            assert!(answer.is_end_stream());
            // Nothing is left to take: for as long as there is no more.
            sleep(4 * STALL).await;
            let end = poll_fn(|context| Pin::new(&mut answer).poll_frame(context)).await;
            assert!(end.is_none());
            let (_answer, _untaken) = part(&told, "text").await;
            std::future::pending::<()>().await;
        })
        .await;
        assert_eq!(*told.lock().expect("no panic"), [true, false]);
        assert!(begun.elapsed() >= 7 * STALL, "{:?}", begun.elapsed());
    }
}
