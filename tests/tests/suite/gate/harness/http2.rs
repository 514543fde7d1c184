//! The proxy counts HTTP/2 frames, which are made by hand here.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener},
    thread,
    time::Duration,
};

use coordination_tests::harness::{Direction, Proxy, Unit, rerun_if_starved};

use super::{
    SECOND,
    proxy::{client_of, proxied_echo, rest},
};

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;

fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let header = [&length[1..], &[kind, 0], &stream.to_be_bytes()].concat();
    [&header, payload].concat()
}

/// The bytes that a client sends: two requests, the first with one message and the second with two messages.
fn conversation() -> Vec<u8> {
    [
        PREFACE.to_vec(),
        frame(SETTINGS, 0, &[]),
        frame(HEADERS, 1, b"path"),
        frame(DATA, 1, b"first message"),
        frame(DATA, 1, b""),
        frame(PING, 0, b"12345678"),
        frame(HEADERS, 3, b"path"),
        frame(DATA, 3, &[9; 40_000]),
        frame(DATA, 3, b"third message"),
        // Trailers, which do not open a stream.
        frame(HEADERS, 1, b"trailers"),
    ]
    .concat()
}

#[test]
fn proxy_counts_frames_however_they_are_split() {
    rerun_if_starved(|| {
        for pause_every in [1, 7, 9, 100_000] {
            let (proxy, client) = proxied_echo();
            let all = conversation();
            let (head, tail) = all.split_at(200);
            for piece in head.chunks(pause_every) {
                (&client).write_all(piece).expect("open");
                thread::sleep(Duration::from_micros(200));
            }
            (&client).write_all(tail).expect("open");
            (&client).read_exact(&mut vec![0; all.len()]).expect("open");
            assert_eq!((proxy.requests(), proxy.messages()), (2, 3));
            let streams = proxy.messages_by_stream(Direction::ToServer);
            assert_eq!(Vec::from_iter(streams), [((1, 1), 1), ((1, 3), 2)]);
        }
    });
}

/// A server that drops the client's preface and sends everything else back. So its own bytes begin with a frame, as
/// those of a real server do.
fn server_without_preface() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = &stream;
            let skipped = reader.read_exact(&mut [0; PREFACE.len()]);
            let _ = skipped.and_then(|()| io::copy(&mut reader, &mut &stream));
        }
    });
    address
}

#[test]
fn proxy_counts_frames_of_the_server() {
    rerun_if_starved(|| {
        let proxy = Proxy::start(server_without_preface());
        let client = client_of(&proxy);
        let all = conversation();
        (&client).write_all(&all).expect("open");
        (&client).read_exact(&mut vec![0; all.len() - PREFACE.len()]).expect("open");
        assert_eq!(proxy.messages_in(Direction::ToClient), 3);
    });
}

#[test]
fn proxy_cuts_at_a_frame() {
    rerun_if_starved(|| {
        let all = conversation();
        // These are the ways to cut, each with the number of bytes that reach the server.
        let until_second = PREFACE.len() + 9 + 13 + 22 + 9 + 17 + 13;
        let cases = [
            (true, Unit::Frames, 1, PREFACE.len() + 9),
            (false, Unit::Frames, 1, PREFACE.len()),
            (true, Unit::Requests, 1, PREFACE.len() + 9 + 13),
            (true, Unit::Messages, 1, PREFACE.len() + 9 + 13 + 22),
            (false, Unit::Messages, 2, until_second),
            (true, Unit::Messages, 2, until_second + 9 + 40_000),
            (false, Unit::Requests, 2, until_second - 13),
        ];
        for (inclusive, unit, count, passed) in cases {
            // The server only reads. If it sent the bytes back, it would write to a connection that the proxy has
            // already cut.
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let proxy = Proxy::start(listener.local_addr().expect("bound"));
            match inclusive {
                true => proxy.cut_after(Direction::ToServer, unit, count),
                false => proxy.cut_before(Direction::ToServer, unit, count),
            }
            let client = client_of(&proxy);
            let (server, _) = listener.accept().expect("the proxy connects");
            server.set_read_timeout(Some(30 * SECOND)).expect("not zero");
            // The write may fail if the connection is cut before it ends.
            let _ = (&client).write_all(&all);
            let got = rest(&server).expect("an ordinary end");
            assert_eq!(got.len(), passed, "{unit:?} {count} {inclusive}");
            assert!(!proxy.is_cut_pending());
        }
    });
}
