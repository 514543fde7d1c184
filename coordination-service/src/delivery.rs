//! Answers that give something away: it is taken back unless the connection takes the answer.
//!
//! Hyper asks for the text of an answer before the connection can take it: in HTTP/2 the client may not let it be sent for long, and
//! may reset the stream meanwhile. So what is given goes along with the text, as [`taken`](crate::taken) has it.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

/// What was given away. Its drop takes it back, unless it was delivered before.
pub(crate) trait Deliver: Send + Unpin + 'static {
    /// The connection has the answer.
    fn deliver(&mut self);
}

tokio::task_local! {
    /// What is given with the text that is asked for at this moment.
    static GIVEN: RefCell<Option<Box<dyn Deliver>>>;
}

/// Does this, which asks a body for some of its text, and answers what is given with that, too.
pub(crate) fn asked<T>(ask: impl FnOnce() -> T) -> (T, Option<Box<dyn Deliver>>) {
    GIVEN.sync_scope(RefCell::default(), || {
        let text = ask();
        (text, GIVEN.with(RefCell::take))
    })
}

/// Has this go along with the text, or delivers it at once, if nobody who asks takes it along.
fn go_along(mut given: Box<dyn Deliver>) {
    match GIVEN.try_with(|_| ()) {
        Ok(()) => drop(GIVEN.with(|along| along.replace(Some(given)))),
        Err(_) => given.deliver(),
    }
}

/// A body that delivers what is given when the connection has taken the text; if it is read by anybody else, then at once.
pub(crate) fn body(text: String, given: impl Deliver) -> Body {
    Body::new(Answer { text: Some(Bytes::from(text)), given: Some(Box::new(given)) })
}

struct Answer {
    text: Option<Bytes>,
    given: Option<Box<dyn Deliver>>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(given) = self.given.take() {
            go_along(given);
        }
        Poll::Ready(self.text.take().map(|text| Ok(Frame::data(text))))
    }

    fn is_end_stream(&self) -> bool {
        self.text.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.text.as_ref().map_or(0, |text| text.len() as u64))
    }
}
