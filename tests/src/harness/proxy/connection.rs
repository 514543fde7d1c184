//! One connection of the proxy: a pump for each direction, until both have ended or one is cut.

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

/// How a connection ends unless both sides close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By FIN, to both sides.
    Close,
    /// By RST, to both sides.
    Reset,
}

/// Whose connections end, and how.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    pub(super) end: End,
    pub(super) whose: BTreeSet<u64>,
}

/// Chunks read ahead of the writer; beyond them, a stalled sender fills the kernel's buffers.
const AHEAD: usize = 64;
const CHUNK: usize = 16 * 1024;
/// A target on loopback accepts or refuses at once, unless it is paused and its backlog is full.
const CONNECT: Duration = Duration::from_secs(30);

/// Carries the accepted connection `number` to its end.
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
    // Without it, bytes written one by one would be sent together.
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

/// Makes the coming close of the stream a reset.
fn reset(stream: &TcpStream) {
    // Fails only on a stream that is gone.
    let _ = stream.set_zero_linger();
}

/// Waits until the proxy tells the connection of this number to end.
async fn told(ending: &mut watch::Receiver<Option<Ending>>, number: u64) -> End {
    loop {
        // The sender lives as long as the connection's `Shared`.
        let _ = ending.changed().await;
        let told = ending.borrow_and_update();
        if let Some(Ending { end, .. }) = told.as_ref().filter(|told| told.whose.contains(&number))
        {
            return *end;
        }
    }
}

/// Closes the client's side when the two are to be parted. That is not the connection's end.
async fn part(client: io::Result<StdStream>, number: u64, shared: &Shared) -> Option<End> {
    let mut kept = shared.kept.subscribe();
    // The sender lives as long as the connection's `Shared`.
    if kept.wait_for(|kept| kept.parted >= number).await.is_ok() {
        // Fails when the client has gone already.
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

/// What both directions of a connection know.
struct Common {
    /// What the server said first.
    greeting: OnceLock<Vec<u8>>,
    memory: Mutex<Memory>,
}

/// What a balancer knows of a connection.
struct Memory {
    /// When something was said last.
    said: Instant,
    is_forgotten: bool,
}

impl Memory {
    fn new() -> Self {
        Self { said: Instant::now(), is_forgotten: false }
    }

    /// Something is said at this time: whether the connection is forgotten by then.
    fn forgets(&mut self, came: Instant, idle: Option<Duration>) -> bool {
        let is_late = |idle| came.saturating_duration_since(self.said) > idle;
        self.is_forgotten |= idle.is_some_and(is_late);
        self.said = self.said.max(came);
        self.is_forgotten
    }
}

/// One direction. Reading and writing are apart so that a delay does not lower the throughput.
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
        read(from, shared.protocol.parser(direction), sender, lane, number).await;
        Ok(())
    };
    // What the server says is never kept back.
    let number = (direction == Direction::ToServer).then_some(number);
    tokio::try_join!(reader, Writer::new(to, lane, shared, number, common).run(events))?;
    Ok(())
}

/// What came, and when.
struct Event {
    came: Instant,
    what: What,
}

enum What {
    Data(Vec<u8>, Vec<Edge>),
    /// The sender sends no more.
    Finished,
    /// The sender's side was reset.
    Broken,
}

async fn read(
    mut from: ReadHalf<'_>,
    mut parser: Box<dyn Parser>,
    events: mpsc::Sender<Event>,
    lane: &Lane,
    number: u64,
) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let what = match from.read(&mut buffer).await {
            Ok(0) => What::Finished,
            Ok(length) => {
                let data = buffer[..length].to_vec();
                let edges = parser.parse(&data);
                lane.count(number, length, &edges);
                What::Data(data, edges)
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

struct Writer<'a> {
    to: WriteHalf<'a>,
    lane: &'a Lane,
    mode: watch::Receiver<Mode>,
    kept: watch::Receiver<Kept>,
    /// The connection's, where what comes may have to be kept.
    number: Option<u64>,
    shared: &'a Shared,
    common: &'a Common,
    /// Another connection of the same session.
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
        // Set when the stream has a hole, or the receiver has gone: the rest is read and dropped.
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
                // Fails only when the receiver has gone, which ends this direction too.
                let _ = self.to.shutdown().await;
                deaf = true;
                continue;
            }
            match event.what {
                What::Data(data, edges) => deaf = self.forward(&data, &edges).await?.is_err(),
                // It is the proxy that has closed the client's side: the server is not to know.
                What::Finished | What::Broken if self.is_parted() => {}
                What::Finished => deaf = self.to.shutdown().await.is_err(),
                What::Broken => return Err(End::Reset),
            }
        }
        if let Some(mut resumed) = self.resumed {
            // Until the server has read all, and the client has come back once more.
            let _ = timeout(CONNECT, tokio::io::copy(&mut resumed, &mut tokio::io::sink())).await;
        }
        Ok(())
    }

    /// Waits until what came is no longer held.
    async fn let_go(&mut self) {
        if let Some(number) = self.number {
            // The sender lives as long as the connection's `Shared`.
            let _ = self.kept.wait_for(|kept| !kept.holds(number)).await;
        }
    }

    /// Whether a balancer would not know the connection any more, on which something comes at this time.
    fn is_forgotten(&self, came: Instant) -> bool {
        lock(&self.common.memory).forgets(came, *lock(&self.shared.forgets))
    }

    fn is_parted(&self) -> bool {
        self.number.is_some_and(|number| self.kept.borrow().parted >= number)
    }

    /// Waits until what came at that time may go on; false when it is to be dropped.
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

    /// Writes a chunk, or what comes before a cut in it: then that is the connection's end, or the rest
    /// waits for another mode.
    ///
    /// The inner error is the receiver's, which the other direction notices by itself, or stands for a hole.
    async fn forward(&mut self, data: &[u8], edges: &[Edge]) -> Result<io::Result<()>, End> {
        match self.lane.cut_offset(data.len(), edges) {
            None => Ok(self.write(data).await),
            Some((offset, Then::End)) => {
                // The connection ends now whether this succeeds or not.
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

    /// A new connection of the same session, whose first one a server closes when its client comes back; `None`: servers
    /// of this protocol do not.
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
            // Gives the receiver a chance to read it alone.
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
