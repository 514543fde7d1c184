//! Connections of the client crate, over sockets of our own, with or without TLS, which keep the error that a server may send before
//! it closes the connection.
//!
//! A server with too many clients sends an error and closes the connection at once, before it has read anything. Then writing our
//! first request may fail, upon which the client crate stops and never reads the server's error. Or the crate reads that error, but
//! drops it together with the requests that have no answer. So these sockets do two things. If a write fails, they pretend that it
//! succeeded; the next read then returns the server's error first, and after it the end of the connection. And they keep the first
//! line that the server has sent, so that `over` can return the error in it if setting up the connection fails.

use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, RedisFuture, Value,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};

use crate::backend::server::tls::{Tls, secured};
use crate::env::{local_socket, names};
use crate::url::Host;

/// How many bytes of the server's first line are kept. An error is shorter.
const LONGEST_LINE: usize = 512;

/// A connection of the client crate. It is closed when its last clone is dropped, even if requests are in flight.
#[derive(Clone)]
pub(super) struct RawConnection {
    redis: MultiplexedConnection,
    /// The task that reads and writes on the socket, so that the last clone can end it.
    _task: Arc<Task>,
}

struct Task(AbortHandle);

/// A socket that does not report a failed write, but pretends that it succeeded: the caller learns of the end of the connection
/// when it reads. Also copies the first line that the server sends to `said`.
struct HeardOut<S> {
    socket: S,
    said: Arc<FirstLine>,
    /// Set when a write has failed because the other side has closed the connection. From then on, what is to be written is
    /// dropped.
    is_closed: bool,
}

#[derive(Default)]
struct FirstLine(Mutex<Vec<u8>>);

impl RawConnection {
    /// Connects to `host` and logs in, with TLS if `tls` is `Some`. If `address` is given, connects to that address only; otherwise
    /// tries all addresses of the host, and uses the first that answers.
    pub(super) async fn by_tcp(
        (host, address): (&Host, Option<SocketAddr>),
        login: &RedisConnectionInfo,
        tls: Option<&Tls>,
        config: AsyncConnectionConfig,
    ) -> Result<Self, RedisError> {
        let socket = dial(host, address).await?;
        // Turns off Nagle's algorithm: the kernel then sends each request at once. A caller waits for the answer to each.
        socket.set_nodelay(true)?;
        match tls {
            None => Self::over(socket, login, config).await,
            Some(tls) => Self::over(secured(socket, tls, &host.name).await?, login, config).await,
        }
    }

    pub(super) async fn by_socket(
        path: &Path,
        login: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<Self, RedisError> {
        Self::over(local_socket::connect(path).await?, login, config).await
    }

    async fn over<S>(
        socket: S,
        login: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<Self, RedisError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let said = Arc::new(FirstLine::default());
        let socket = HeardOut { socket, said: Arc::clone(&said), is_closed: false };
        let made = MultiplexedConnection::new_with_config(login, socket, config).await;
        let (redis, work) = made.map_err(|error| match error.kind() {
            redis::ErrorKind::Io => said.refusal().unwrap_or(error),
            _ => error,
        })?;
        let task = Task(tokio::spawn(work).abort_handle());
        Ok(Self { redis, _task: Arc::new(task) })
    }
}

/// Connects to `address` if it is given, and otherwise to all addresses of the host at the same time. Returns the first socket that
/// is connected, and drops the others.
async fn dial(host: &Host, address: Option<SocketAddr>) -> io::Result<TcpStream> {
    let addresses = match address {
        Some(address) => vec![address],
        None => names::addresses(&host.name, host.port.unwrap_or_default()).await?,
    };
    let mut dialing: JoinSet<_> = addresses.into_iter().map(TcpStream::connect).collect();
    let mut failed = None;
    while let Some(outcome) = dialing.join_next().await {
        match outcome.map_err(io::Error::other).flatten() {
            Ok(socket) => return Ok(socket),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| io::Error::other("the host has no address")))
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Deref for RawConnection {
    type Target = MultiplexedConnection;

    fn deref(&self) -> &MultiplexedConnection {
        &self.redis
    }
}

impl DerefMut for RawConnection {
    fn deref_mut(&mut self) -> &mut MultiplexedConnection {
        &mut self.redis
    }
}

impl ConnectionLike for RawConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.redis.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.redis.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.redis.get_db()
    }
}

impl FirstLine {
    fn hear(&self, bytes: &[u8]) {
        let mut line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if line.len() < LONGEST_LINE && !line.contains(&b'\n') {
            line.extend(bytes.iter().take(LONGEST_LINE));
        }
    }

    /// The error that the server's first line has; `None`: the line is not complete, or is no error.
    fn refusal(&self) -> Option<RedisError> {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let end = said.iter().position(|byte| *byte == b'\n')?;
        let line = said.get(..=end).filter(|line| line.starts_with(b"-"))?;
        redis::parse_redis_value(line).and_then(Value::extract_error).err()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeardOut<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = ready!(Pin::new(&mut self.socket).poll_read(context, into));
        self.said.hear(into.filled().get(before..).unwrap_or_default());
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeardOut<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_closed {
            return Poll::Ready(Ok(bytes.len()));
        }
        match ready!(Pin::new(&mut self.socket).poll_write(context, bytes)) {
            Err(error) if is_end(&error) => {
                self.is_closed = true;
                Poll::Ready(Ok(bytes.len()))
            }
            written => Poll::Ready(written),
        }
    }

    /// With TLS, what was written may reach the socket only here.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_closed {
            return Poll::Ready(Ok(()));
        }
        match ready!(Pin::new(&mut self.socket).poll_flush(context)) {
            Err(error) if is_end(&error) => {
                self.is_closed = true;
                Poll::Ready(Ok(()))
            }
            flushed => Poll::Ready(flushed),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

/// Whether a write failed because the other side has closed the connection. Such an error need not be reported: reads first return
/// what the other side sent before, and then report the end.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Connects to a server that sends `said` and closes the connection, and returns the error with which connecting fails. If
    /// `is_first`, the server sends `said` at once; otherwise only after it has received the first bytes.
    async fn refused(said: &'static str, is_first: bool, database: i64) -> RedisError {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let serving = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.expect("somebody comes");
            if !is_first {
                socket.read_exact(&mut [0; 8]).await.expect("something is sent");
            }
            socket.write_all(said.as_bytes()).await.expect("it is taken");
        });
        let login = RedisConnectionInfo::default().set_db(database);
        let host = Host { name: "127.0.0.1".to_owned(), port: Some(address.port()) };
        let config = AsyncConnectionConfig::new();
        let made = RawConnection::by_tcp((&host, Some(address)), &login, None, config).await;
        serving.await.expect("no panic");
        made.err().expect("it is refused")
    }

    #[tokio::test]
    async fn what_the_server_said_before_it_hung_up_is_told() {
        for is_first in [true, false] {
            for _ in 0..20 {
                let error = refused("-ERR max number of clients reached\r\n", is_first, 3).await;
                assert!(error.to_string().contains("max number of clients"), "{error}");
            }
            let error = refused("", is_first, 3).await;
            assert_eq!(error.kind(), redis::ErrorKind::Io, "{error}");
        }
    }

    #[tokio::test]
    async fn a_connection_ends_with_its_last_clone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let host = Host { name: "127.0.0.1".to_owned(), port: Some(address.port()) };
        let login = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new();
        let made = RawConnection::by_tcp((&host, Some(address)), &login, None, config).await;
        let connection = made.expect("nothing is to be asked");
        let (mut socket, _) = listener.accept().await.expect("it has come");
        let mut other = connection.clone();
        let asking = tokio::spawn(async move { redis::cmd("PING").exec_async(&mut other).await });
        socket.read_exact(&mut [0; 8]).await.expect("something is sent");
        asking.abort();
        drop(connection);
        // The server sends no answer, so the request stays in flight.
        let mut rest = Vec::new();
        let ended =
            tokio::time::timeout(std::time::Duration::from_secs(5), socket.read_to_end(&mut rest));
        ended.await.expect("the connection ends").expect("nothing breaks");
    }
}
