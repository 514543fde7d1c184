//! The proxy, in front of a server that sends back whatever it receives.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use coordination_tests::harness::{
    Direction, Mode, Proxy, Unit, ports::free_port, rerun_if_starved, wait_until,
};

use super::{MOMENT, SECOND};

fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut reader = &stream;
                let _ = io::copy(&mut reader, &mut &stream);
            });
        }
    });
    address
}

pub(super) fn proxied_echo() -> (Proxy, TcpStream) {
    let proxy = Proxy::start(echo_server());
    let client = client_of(&proxy);
    (proxy, client)
}

pub(super) fn client_of(proxy: &Proxy) -> TcpStream {
    let client = TcpStream::connect(proxy.address()).expect("the proxy accepts");
    client.set_nodelay(true).expect("a TCP socket");
    client.set_read_timeout(Some(30 * SECOND)).expect("not zero");
    client
}

/// Sends `message`, and reads as many bytes back.
fn echo(mut client: &TcpStream, message: &[u8]) -> io::Result<Vec<u8>> {
    client.write_all(message)?;
    let mut answer = vec![0; message.len()];
    client.read_exact(&mut answer)?;
    Ok(answer)
}

/// Whether nothing arrives for a moment.
pub(super) fn is_silent(mut client: &TcpStream) -> bool {
    client.set_read_timeout(Some(MOMENT)).expect("not zero");
    let silent = client.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    client.set_read_timeout(Some(30 * SECOND)).expect("not zero");
    silent
}

/// Reads to the end of the stream; an error means a reset.
pub(super) fn rest(mut client: &TcpStream) -> io::Result<Vec<u8>> {
    let mut rest = Vec::new();
    client.read_to_end(&mut rest)?;
    Ok(rest)
}

#[test]
fn proxy_passes_and_counts() {
    rerun_if_starved(|| {
        let (proxy, client) = proxied_echo();
        let message: Vec<u8> = (0..1_000_000).map(|n: u32| n as u8).collect();
        thread::scope(|scope| {
            scope.spawn(|| (&client).write_all(&message).expect("open"));
            let mut answer = vec![0; message.len()];
            (&client).read_exact(&mut answer).expect("open");
            assert!(answer == message);
        });
        assert_eq!(proxy.bytes(Direction::ToServer), 1_000_000);
        assert_eq!(proxy.bytes(Direction::ToClient), 1_000_000);
        assert_eq!((proxy.connections(), proxy.open_connections()), (1, 1));
        assert_eq!((proxy.requests(), proxy.messages()), (0, 0));
        client.shutdown(std::net::Shutdown::Write).expect("open");
        assert_eq!(rest(&client).expect("an ordinary end"), b"");
        assert!(wait_until(30 * SECOND, || proxy.open_connections() == 0));
    });
}

#[test]
fn proxy_delays_without_lowering_throughput() {
    rerun_if_starved(|| {
        let (proxy, client) = proxied_echo();
        proxy.set(Direction::ToServer, Mode::Delay(MOMENT));
        let start = Instant::now();
        for _ in 0..10 {
            (&client).write_all(b"x").expect("open");
            thread::sleep(Duration::from_millis(5));
        }
        (&client).read_exact(&mut [0; 10]).expect("open");
        let took = start.elapsed();
        assert!(took >= MOMENT && took < 10 * MOMENT, "{took:?}");
    });
}

#[test]
fn proxy_stalls_and_delivers_later() {
    rerun_if_starved(|| {
        for direction in [Direction::ToServer, Direction::ToClient] {
            let (proxy, client) = proxied_echo();
            proxy.set(direction, Mode::Stall);
            (&client).write_all(b"hello").expect("open");
            assert!(is_silent(&client));
            proxy.heal();
            let mut answer = [0; 5];
            (&client).read_exact(&mut answer).expect("open");
            assert_eq!(&answer, b"hello");
        }
    });
}

#[test]
fn proxy_holds_what_is_sent_and_delivers_it_after_the_client() {
    rerun_if_starved(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let proxy = Proxy::start(listener.local_addr().expect("bound"));
        let client = client_of(&proxy);
        let (server, _) = listener.accept().expect("the proxy connects");
        server.set_read_timeout(Some(30 * SECOND)).expect("not zero");
        proxy.hold();
        (&client).write_all(b"late").expect("open");
        assert!(wait_until(30 * SECOND, || proxy.bytes(Direction::ToServer) == 4));
        assert!(is_silent(&server));
        // While the proxy holds back the client's bytes, bytes from the server pass.
        (&server).write_all(b"x").expect("open");
        (&client).read_exact(&mut [0]).expect("open");
        proxy.part();
        assert_eq!(rest(&client).expect("an ordinary end"), b"");
        drop(client);
        let second = client_of(&proxy);
        let (other, _) = listener.accept().expect("the proxy connects");
        (&second).write_all(b"early").expect("open");
        let mut read = [0; 5];
        (&other).read_exact(&mut read).expect("new connections pass");
        assert_eq!(&read, b"early");
        assert!(is_silent(&server));
        proxy.let_go();
        (&server).read_exact(&mut read[..4]).expect("delivered");
        assert_eq!(&read[..4], b"late");
        // The server does not learn that the client has closed its connection.
        assert!(is_silent(&server));
        proxy.close_all();
        assert_eq!(rest(&server).expect("an ordinary end"), b"");
    });
}

#[test]
fn proxy_holds_nothing_once_it_has_let_go() {
    rerun_if_starved(|| {
        let (proxy, client) = proxied_echo();
        proxy.hold();
        (&client).write_all(b"hello").expect("open");
        assert!(is_silent(&client));
        proxy.let_go();
        let mut answer = [0; 5];
        (&client).read_exact(&mut answer).expect("open");
        assert_eq!(&answer, b"hello");
        assert_eq!(echo(&client, b"again").expect("open"), b"again");
    });
}

#[test]
fn proxy_swallows_for_good_on_a_connection_with_a_hole() {
    rerun_if_starved(|| {
        for direction in [Direction::ToServer, Direction::ToClient] {
            let (proxy, client) = proxied_echo();
            proxy.set(direction, Mode::Blackhole);
            (&client).write_all(b"lost").expect("open");
            assert!(is_silent(&client));
            proxy.heal();
            (&client).write_all(b"lost too").expect("open");
            assert!(is_silent(&client));
            assert_eq!(echo(&client_of(&proxy), b"found").expect("open"), b"found");
        }
    });
}

#[test]
fn proxy_half_closes() {
    rerun_if_starved(|| {
        for direction in [Direction::ToServer, Direction::ToClient] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let proxy = Proxy::start(listener.local_addr().expect("bound"));
            let client = client_of(&proxy);
            let (server, _) = listener.accept().expect("the proxy connects");
            server.set_read_timeout(Some(30 * SECOND)).expect("not zero");
            let (mut from, mut to, other) = match direction {
                Direction::ToServer => (&client, &server, Direction::ToClient),
                Direction::ToClient => (&server, &client, Direction::ToServer),
            };
            proxy.set(direction, Mode::HalfClose);
            from.write_all(b"lost").expect("open");
            assert_eq!(rest(to).expect("an ordinary end"), b"");
            // The other direction still works. The sender of the closed direction does not learn that its bytes are
            // dropped.
            to.write_all(b"hello").expect("open");
            let mut answer = [0; 5];
            from.read_exact(&mut answer).expect("open");
            assert_eq!(&answer, b"hello");
            assert_eq!(proxy.bytes(other), 5);
            from.write_all(b" too").expect("open");
            assert!(wait_until(30 * SECOND, || proxy.bytes(direction) == 8), "{direction:?}");
            assert_eq!(proxy.open_connections(), 1, "{direction:?}");
        }
    });
}

#[test]
fn a_blackhole_hides_the_client_from_the_server() {
    rerun_if_starved(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let proxy = Proxy::start(listener.local_addr().expect("bound"));
        let client = client_of(&proxy);
        let (server, _) = listener.accept().expect("the proxy connects");
        proxy.set(Direction::ToServer, Mode::Blackhole);
        drop(client);
        assert!(is_silent(&server));
        proxy.close_all();
        assert_eq!(rest(&server).expect("an ordinary end"), b"");
    });
}

#[test]
fn proxy_dribbles() {
    rerun_if_starved(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let proxy = Proxy::start(listener.local_addr().expect("bound"));
        proxy.set(Direction::ToServer, Mode::Dribble);
        let mut client = client_of(&proxy);
        let (mut server, _) = listener.accept().expect("the proxy connects");
        client.write_all(&[7; 10_000]).expect("open");
        let mut buffer = [0; 10_000];
        let (mut read, mut pieces) = (0, 0);
        while read < buffer.len() {
            read += server.read(&mut buffer).expect("open");
            pieces += 1;
        }
        // A slow reader may get several bytes with one read, so there may be fewer pieces than bytes.
        assert!(pieces > 10, "{pieces}");
    });
}

#[test]
fn proxy_resets_and_closes() {
    rerun_if_starved(|| {
        let (proxy, client) = proxied_echo();
        echo(&client, b"x").expect("open");
        proxy.reset_all();
        assert_eq!(proxy.open_connections(), 0);
        let error = rest(&client).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let client = client_of(&proxy);
        echo(&client, b"x").expect("open");
        proxy.close_all();
        assert_eq!(rest(&client).expect("an ordinary end"), b"");
        assert_eq!(echo(&client_of(&proxy), b"y").expect("open"), b"y");
    });
}

#[test]
fn proxy_refuses_and_accepts() {
    rerun_if_starved(|| {
        let (proxy, client) = proxied_echo();
        echo(&client, b"x").expect("open");
        proxy.refuse();
        assert_refused(proxy.address());
        assert_eq!(echo(&client, b"still").expect("open"), b"still");
        proxy.accept();
        assert_eq!(echo(&client_of(&proxy), b"again").expect("open"), b"again");
    });
}

/// Repeats `work` while another thread starts processes. Until its own program begins, such a process has copies of
/// all our sockets, including listening ones, and so may keep a port or a connection open.
fn while_processes_start(mut work: impl FnMut()) {
    let starting = thread::spawn(|| {
        for _ in 0..500 {
            Command::new("true").status().expect("it can be started");
        }
    });
    while !starting.is_finished() {
        work();
    }
}

fn assert_refused(address: SocketAddr) {
    let refused = TcpStream::connect(address).expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn proxy_refuses_while_processes_start() {
    rerun_if_starved(|| {
        let (proxy, _client) = proxied_echo();
        while_processes_start(|| {
            proxy.refuse();
            assert_refused(proxy.address());
            proxy.accept();
        });
    });
}

#[test]
fn proxy_that_is_dropped_refuses_while_processes_start() {
    rerun_if_starved(|| {
        let server = echo_server();
        while_processes_start(|| {
            let proxy = Proxy::start(server);
            let address = proxy.address();
            drop(proxy);
            assert_refused(address);
        });
    });
}

#[test]
fn proxy_resets_clients_of_a_dead_server() {
    rerun_if_starved(|| {
        let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], free_port())));
        let error = rest(&client_of(&proxy)).expect_err("nobody listens");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn proxy_cuts_at_a_byte() {
    rerun_if_starved(|| {
        let (proxy, client) = proxied_echo();
        proxy.cut_after(Direction::ToClient, Unit::Bytes, 7);
        echo(&client, b"abcd").expect("not yet");
        assert!(proxy.is_cut_pending());
        (&client).write_all(b"efgh").expect("open");
        assert_eq!(rest(&client).expect("an ordinary end"), b"efg");
        assert!(!proxy.is_cut_pending());
        let client = client_of(&proxy);
        proxy.cut_before(Direction::ToClient, Unit::Bytes, 3);
        (&client).write_all(b"abcd").expect("open");
        assert_eq!(rest(&client).expect("an ordinary end"), b"ab");
    });
}

#[test]
fn proxy_stalls_after_a_byte() {
    rerun_if_starved(|| {
        let (proxy, client) = proxied_echo();
        proxy.stall_after(Direction::ToClient, Unit::Bytes, 3);
        (&client).write_all(b"abcdef").expect("open");
        let mut read = [0; 3];
        (&client).read_exact(&mut read).expect("forwarded");
        assert_eq!(&read, b"abc");
        assert!(!proxy.is_cut_pending());
        client.set_read_timeout(Some(Duration::from_millis(50))).expect("not zero");
        assert!((&client).read(&mut read).is_err(), "kept back");
        client.set_read_timeout(Some(Duration::from_secs(10))).expect("not zero");
        proxy.heal();
        (&client).read_exact(&mut read).expect("forwarded");
        assert_eq!(&read, b"def");
    });
}
