//! A peer that takes nothing of what it is sent: its connection ends, as what it does not take is kept for it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long it may take nothing.
pub(crate) const STALL: Duration = Duration::from_millis(if cfg!(test) { 2_000 } else { 20_000 });

/// A connection whose writes fail when its peer has taken nothing for long.
pub(crate) struct Stalled<S> {
    stream: S,
    /// Until when it has to take something, since it does not.
    until: Option<Pin<Box<Sleep>>>,
}

impl<S: Unpin> Stalled<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, until: None }
    }

    fn write<T>(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let written = write(Pin::new(&mut self.stream), context);
        if written.is_ready() {
            self.until = None;
            return written;
        }
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(STALL)));
        ready!(until.as_mut().poll(context));
        let why = "the peer takes nothing of what it is sent";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalled<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalled<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream, context| stream.poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(context, S::poll_flush)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(context, S::poll_shutdown)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{UnixListener, UnixStream};
    use tokio::sync::{Semaphore, watch};

    use super::*;
    use crate::places::Places;
    use crate::{ids, listen};

    /// H8: a peer that does not read its answer has its connection ended, and one that is slow does not.
    #[tokio::test]
    async fn h8_a_peer_that_reads_nothing_is_gone_in_time() {
        let path = std::env::temp_dir().join(format!("coordination-{}", ids::letters(12)));
        let listener = UnixListener::bind(&path).expect("there is room");
        let length = 1 << 21;
        let router = Router::new().route("/", get(move || async move { vec![b'x'; length] }));
        let (_running, stop) = watch::channel(false);
        let connections = Arc::new(Semaphore::new(2));
        // No connection makes room for another one here.
        let places = Arc::new(Places::keeping(Duration::from_secs(3_600)));
        let common = listen::Common { connections, places, stop };
        tokio::spawn(listen::serve(listener, router, common));
        let ask = async || {
            let mut stream = UnixStream::connect(&path).await.expect("somebody listens");
            stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it is taken");
            stream
        };
        let mut slow = ask().await;
        let reading = async {
            let (mut some, mut read) = (vec![0; 1 << 17], 0);
            while read < length {
                read += slow.read(&mut some).await.expect("it goes on");
                tokio::time::sleep(STALL / 8).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), reading).await.expect("it reads all of it");
        drop(slow);
        let silent = [ask().await, ask().await];
        // There is no place for this one until theirs are free.
        let gone = async {
            let mut after = ask().await;
            after.read_exact(&mut [0; 9]).await.expect("there is an answer");
        };
        tokio::time::timeout(15 * STALL, gone).await.expect("places are free again");
        drop(silent);
        drop(std::fs::remove_file(&path));
    }
}
