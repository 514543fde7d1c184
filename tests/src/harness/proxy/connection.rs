//! One connection of the proxy. It has a task for each direction, and lasts until both directions have ended or the
//! proxy ends it.

use std::{
    collections::BTreeSet,
    io,
    net::{Shutdown, SocketAddr, TcpStream as StdStream},
    os::fd::AsFd,
    sync::{Mutex, OnceLock},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};

use super::{
    Direction, Kept, Mode, Senders, Shared,
    frames::{Edge, Parser},
    lane::{Lane, Then},
    lock, member,
};

/// How the proxy ends a connection that neither side has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The proxy sends a FIN to both sides.
    Close,
    /// The proxy sends a RST to both sides.
    Reset,
}

/// A command to end connections: their numbers, and how they are to end.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    pub(super) end: End,
    pub(super) whose: BTreeSet<u64>,
}

/// How many chunks of one direction may be read and not written yet. When there are this many, because the receiver is
/// slow, the proxy reads no more, the kernel's buffers fill up, and the sender blocks.
const AHEAD: usize = 64;
const CHUNK: usize = 16 * 1024;
/// How long connecting to the server may take. On loopback a server accepts or refuses at once, unless it is paused and
/// the queue of its listening socket is full.
const CONNECT: Duration = Duration::from_secs(30);

/// Forwards the accepted connection with this number until it ends.
pub(super) async fn run(
    mut client: TcpStream,
    target: SocketAddr,
    number: u64,
    shared: &Shared,
    mut ending: watch::Receiver<Option<Ending>>,
) {
    if shared.senders == Senders::ByHeader {
        let sender = tokio::select! {
            sender = member::sender(&client) => sender,
            _ = told(&mut ending, number) => return reset(&client),
        };
        if !shared.admits(number, sender) {
            return reset(&client);
        }
    }
    let server = tokio::select! {
        server = timeout(CONNECT, TcpStream::connect(target)) => server,
        _ = told(&mut ending, number) => return reset(&client),
    };
    let Ok(Ok(mut server)) = server else {
        return reset(&client);
    };
    // Without this setting, the kernel would join bytes that are written one by one into one packet.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let client_side = client.as_fd().try_clone_to_owned().map(StdStream::from);
    let end = tokio::select! {
        end = exchange(&mut client, &mut server, number, shared) => end.err(),
        end = told(&mut ending, number) => Some(end),
        end = part(client_side, number, shared) => end,
    };
    if end == Some(End::Reset) {
        reset(&client);
        reset(&server);
    }
}

/// Makes the stream send a RST when it is closed.
fn reset(stream: &TcpStream) {
    // This fails only if the stream is closed already.
    let _ = stream.set_zero_linger();
}

/// Waits until the proxy commands that the connection with this number ends; returns how.
async fn told(ending: &mut watch::Receiver<Option<Ending>>, number: u64) -> End {
    loop {
        // This cannot fail, because the connection's `Shared`, which has the sender, lives longer.
        let _ = ending.changed().await;
        let told = ending.borrow_and_update();
        if let Some(Ending { end, .. }) = told.as_ref().filter(|told| told.whose.contains(&number))
        {
            return *end;
        }
    }
}

/// Closes the client's side of the connection when [`Proxy::part`](super::Proxy::part) is called. It never returns: the
/// server's side stays open, so the connection has not ended.
async fn part(client: io::Result<StdStream>, number: u64, shared: &Shared) -> Option<End> {
    let mut kept = shared.kept.subscribe();
    // This cannot fail, because the connection's `Shared`, which has the sender, lives longer.
    if kept.wait_for(|kept| kept.parted >= number).await.is_ok() {
        // This fails if the client has closed the connection already.
        let _ = client.and_then(|client| client.shutdown(Shutdown::Both));
    }
    std::future::pending().await
}

async fn exchange(
    client: &mut TcpStream,
    server: &mut TcpStream,
    number: u64,
    shared: &Shared,
) -> Result<(), End> {
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let common = Common { greeting: OnceLock::new(), memory: Mutex::new(Memory::new()) };
    tokio::try_join!(
        pump(from_client, to_server, Direction::ToServer, number, shared, &common),
        pump(from_server, to_client, Direction::ToClient, number, shared, &common),
    )?;
    Ok(())
}

/// What both directions of a connection share.
struct Common {
    /// The first chunk that the server sent on this connection.
    greeting: OnceLock<Vec<u8>>,
    memory: Mutex<Memory>,
}

/// What a load balancer would remember of a connection: when bytes last arrived, and whether it was idle for too long.
struct Memory {
    /// When bytes last arrived on the connection, in either direction.
    said: Instant,
    is_forgotten: bool,
}

impl Memory {
    fn new() -> Self {
        Self { said: Instant::now(), is_forgotten: false }
    }

    /// Records that bytes arrived at `came`. Returns whether this connection was ever idle for longer than `idle`, so
    /// that a load balancer has forgotten it.
    fn forgets(&mut self, came: Instant, idle: Option<Duration>) -> bool {
        let is_late = |idle| came.saturating_duration_since(self.said) > idle;
        self.is_forgotten |= idle.is_some_and(is_late);
        self.said = self.said.max(came);
        self.is_forgotten
    }
}

/// Forwards one direction. One task reads and another writes, so that delayed writing does not slow down the reading.
async fn pump(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    direction: Direction,
    number: u64,
    shared: &Shared,
    common: &Common,
) -> Result<(), End> {
    let lane = shared.lane(direction);
    let (sender, events) = mpsc::channel(AHEAD);
    let reader = async {
        let parser = shared.protocol.parser(direction);
        read(from, parser, sender, lane, number, Dropper::new(direction, number, shared)).await;
        Ok(())
    };
    // `number` is used to hold bytes back. Only bytes from the client can be held back, so it is `None` in the other
    // direction.
    let number = (direction == Direction::ToServer).then_some(number);
    tokio::try_join!(reader, Writer::new(to, lane, shared, number, common).run(events))?;
    Ok(())
}

/// What was read from the sender, and when it arrived.
struct Event {
    came: Instant,
    what: What,
}

enum What {
    Data(Vec<u8>, Vec<Edge>),
    /// The sender has closed its side (FIN).
    Finished,
    /// The sender has reset the connection.
    Broken,
}

async fn read(
    mut from: ReadHalf<'_>,
    mut parser: Box<dyn Parser>,
    events: mpsc::Sender<Event>,
    lane: &Lane,
    number: u64,
    mut dropper: Dropper<'_>,
) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let what = match from.read(&mut buffer).await {
            Ok(0) => What::Finished,
            Ok(length) => {
                let data = buffer[..length].to_vec();
                let edges = parser.parse(&data);
                lane.count(number, length, &edges);
                match dropper.dropped() {
                    Some(stream) => What::Data(dropper.without(stream, &data, &edges), Vec::new()),
                    None => What::Data(data, edges),
                }
            }
            Err(_) => What::Broken,
        };
        let last = !matches!(what, What::Data(..));
        let came = Instant::now();
        let sent = events.send(Event { came, what }).await;
        if last || sent.is_err() {
            return;
        }
    }
}

/// Leaves out the frames of one stream: see [`Proxy::drop_stream`](super::Proxy::drop_stream).
struct Dropper<'a> {
    shared: &'a Shared,
    /// The number of the connection. `None` in the direction to the server, where nothing is left out.
    number: Option<u64>,
    /// Whether a frame that is left out has begun in an earlier chunk.
    is_inside: bool,
}

impl<'a> Dropper<'a> {
    fn new(direction: Direction, number: u64, shared: &'a Shared) -> Self {
        let number = (direction == Direction::ToClient).then_some(number);
        Self { shared, number, is_inside: false }
    }

    /// The stream of this connection whose frames are left out.
    fn dropped(&self) -> Option<u32> {
        let dropped = *lock(&self.shared.dropped);
        dropped.filter(|(number, _)| self.number == Some(*number)).map(|(_, stream)| stream)
    }

    /// The chunk without the frames of this stream. A frame that had begun before is left as it is.
    fn without(&mut self, stream: u32, data: &[u8], edges: &[Edge]) -> Vec<u8> {
        let (mut rest, mut from) = (Vec::new(), 0);
        for edge in edges.iter().filter(|edge| edge.frame.stream == stream) {
            if !edge.end {
                rest.extend_from_slice(&data[from..edge.offset]);
                self.is_inside = true;
            } else if std::mem::take(&mut self.is_inside) {
                from = edge.offset;
            }
        }
        if !self.is_inside {
            rest.extend_from_slice(&data[from..]);
        }
        rest
    }
}

struct Writer<'a> {
    to: WriteHalf<'a>,
    lane: &'a Lane,
    mode: watch::Receiver<Mode>,
    kept: watch::Receiver<Kept>,
    /// The number of the connection. `None` in the direction to the client, where bytes are never held back.
    number: Option<u64>,
    shared: &'a Shared,
    common: &'a Common,
    /// A second connection to the server, which takes over the client's session after the client's side of the first
    /// one was closed.
    resumed: Option<TcpStream>,
}

impl<'a> Writer<'a> {
    fn new(
        to: WriteHalf<'a>,
        lane: &'a Lane,
        shared: &'a Shared,
        number: Option<u64>,
        common: &'a Common,
    ) -> Self {
        let (mode, kept) = (lane.mode.subscribe(), shared.kept.subscribe());
        Self { to, lane, mode, kept, number, shared, common, resumed: None }
    }

    async fn run(mut self, mut events: mpsc::Receiver<Event>) -> Result<(), End> {
        // True if the receiver has missed some bytes or is gone. From then on, everything is read and dropped.
        let mut deaf = false;
        while let Some(event) = events.recv().await {
            self.let_go().await;
            if self.is_forgotten(event.came) {
                if self.number.is_some() {
                    return Err(End::Reset);
                }
                deaf = true;
            }
            deaf = deaf || !self.admit(event.came).await;
            if deaf {
                continue;
            }
            if *self.mode.borrow() == Mode::HalfClose {
                // This fails only if the receiver is gone. Then this direction has ended anyway.
                let _ = self.to.shutdown().await;
                deaf = true;
                continue;
            }
            match event.what {
                What::Data(data, edges) => deaf = self.forward(&data, &edges).await?.is_err(),
                // The proxy itself has closed the client's side (`part`), so this end is not the client's, and the
                // server must not notice it.
                What::Finished | What::Broken if self.is_parted() => {}
                What::Finished => deaf = self.to.shutdown().await.is_err(),
                What::Broken => return Err(End::Reset),
            }
        }
        if let Some(mut resumed) = self.resumed {
            // Waits until the server closes this second connection. The client has resumed the session on a connection
            // of its own, so the server closes this one after it has read everything from it.
            let _ = timeout(CONNECT, tokio::io::copy(&mut resumed, &mut tokio::io::sink())).await;
        }
        Ok(())
    }

    /// Waits as long as the bytes of this connection are held back.
    async fn let_go(&mut self) {
        if let Some(number) = self.number {
            // This cannot fail, because the connection's `Shared`, which has the sender, lives longer.
            let _ = self.kept.wait_for(|kept| !kept.holds(number)).await;
        }
    }

    /// Whether a load balancer would have forgotten the connection before bytes arrived at this time.
    fn is_forgotten(&self, came: Instant) -> bool {
        lock(&self.common.memory).forgets(came, *lock(&self.shared.forgets))
    }

    fn is_parted(&self) -> bool {
        self.number.is_some_and(|number| self.kept.borrow().parted >= number)
    }

    /// Waits until bytes that arrived at this time may be forwarded. Returns false if they have to be dropped.
    async fn admit(&mut self, came: Instant) -> bool {
        loop {
            let mode = *self.mode.borrow_and_update();
            let due = match mode {
                Mode::Pass | Mode::Dribble | Mode::HalfClose => return true,
                Mode::Blackhole => return false,
                Mode::Delay(delay) => Some(came + delay),
                Mode::Stall => None,
            };
            tokio::select! {
                () = reached(due) => return true,
                _ = self.mode.changed() => {}
            }
        }
    }

    /// Writes a chunk. If a cut falls into the chunk, writes only the bytes before the cut. After that, the connection
    /// ends if the cut is an `End`. If the cut is a `Stall`, the rest of the chunk waits until the mode changes.
    ///
    /// The inner error means that the rest of this direction has to be dropped: either the receiver is gone, which the
    /// other direction notices by itself, or bytes were dropped.
    async fn forward(&mut self, data: &[u8], edges: &[Edge]) -> Result<io::Result<()>, End> {
        match self.lane.cut_offset(data.len(), edges) {
            None => Ok(self.write(data).await),
            Some((offset, Then::End)) => {
                // The connection ends now, whether or not this write succeeds.
                let _ = self.write(&data[..offset]).await;
                Err(End::Close)
            }
            Some((offset, Then::Stall)) => {
                if let Err(error) = self.write(&data[..offset]).await {
                    return Ok(Err(error));
                }
                match self.admit(Instant::now()).await {
                    true => Ok(self.write(&data[offset..]).await),
                    false => Ok(Err(io::ErrorKind::BrokenPipe.into())),
                }
            }
        }
    }

    /// Returns a second connection to the server, on which the client's held bytes are delivered after the client's
    /// side was closed. The first connection cannot be used for this: the server closes it as soon as the client
    /// resumes its session on a connection of its own. So the second connection also resumes the client's session.
    /// `None` if the protocol has no such sessions.
    async fn resumed(&mut self) -> io::Result<Option<&mut TcpStream>> {
        let greeting = self.common.greeting.get().filter(|_| self.resumed.is_none());
        if let Some(request) = greeting.and_then(|greeting| self.shared.protocol.resume(greeting)) {
            let mut stream = TcpStream::connect(self.to.peer_addr()?).await?;
            stream.write_all(&request).await?;
            self.resumed = Some(stream);
        }
        Ok(self.resumed.as_mut())
    }

    async fn write(&mut self, data: &[u8]) -> io::Result<()> {
        if self.number.is_none() {
            self.common.greeting.get_or_init(|| data.to_vec());
        } else if self.is_parted()
            && let Some(to) = self.resumed().await?
        {
            return to.write_all(data).await;
        }
        let mode = *self.mode.borrow();
        if mode != Mode::Dribble {
            return self.to.write_all(data).await;
        }
        for byte in data {
            self.to.write_all(std::slice::from_ref(byte)).await?;
            // Lets the receiver read this byte before the next one is written.
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

async fn reached(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
