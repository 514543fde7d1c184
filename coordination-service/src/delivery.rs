//! Answers that give something away: it is taken back unless the connection takes the answer.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

/// What was given away. Its drop takes it back, unless it was delivered before.
pub(crate) trait Deliver: Send + Unpin + 'static {
    /// The connection has the answer.
    fn deliver(&mut self);
}

/// A body that delivers what is given when the connection has taken the text.
pub(crate) fn body(text: String, given: impl Deliver) -> Body {
    Body::new(Answer { text: Some(Bytes::from(text)), given })
}

struct Answer<G> {
    text: Option<Bytes>,
    given: G,
}

impl<G: Deliver> HttpBody for Answer<G> {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let text = self.text.take();
        if text.is_some() {
            self.given.deliver();
        }
        Poll::Ready(text.map(|text| Ok(Frame::data(text))))
    }

    fn is_end_stream(&self) -> bool {
        self.text.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.text.as_ref().map_or(0, |text| text.len() as u64))
    }
}
