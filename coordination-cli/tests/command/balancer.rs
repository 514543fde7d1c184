//! A balancer before several instances: it gives requests to those that are ready, one after the other, and those about a hold to
//! the instance that has it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::LONG;
use crate::http::{Service, try_ask};

/// How often it asks who is ready.
const LOOK: Duration = Duration::from_millis(20);

/// Ends when it is dropped.
pub(crate) struct Balancer {
    at: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    backends: Mutex<Vec<Backend>>,
    next: AtomicUsize,
    is_over: AtomicBool,
}

#[derive(Clone)]
struct Backend {
    at: String,
    tag: String,
    is_ready: bool,
}

impl Balancer {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let at = listener.local_addr().expect("it listens");
        let shared = Arc::<Shared>::default();
        let (accepting, looking) = (Arc::clone(&shared), Arc::clone(&shared));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (stream, shared) = (stream.expect("a connection"), Arc::clone(&accepting));
                std::thread::spawn(move || shared.pass(stream));
            }
        });
        std::thread::spawn(move || {
            while !looking.is_over.load(Ordering::Relaxed) {
                looking.look();
                std::thread::sleep(LOOK);
            }
        });
        Self { at, shared }
    }

    /// Where clients find it.
    pub(crate) fn at(&self) -> String {
        self.at.to_string()
    }

    /// One instance more.
    pub(crate) fn add(&self, service: &Service) {
        let tag = service.get("/v1/info").json()["instance"].as_str().expect("a tag").to_owned();
        let at = service.native.clone();
        self.shared.backends().push(Backend { at, tag, is_ready: true });
    }

    /// One that has ended.
    pub(crate) fn remove(&self, service: &Service) {
        self.shared.backends().retain(|backend| backend.at != service.native);
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.at));
    }
}

impl Shared {
    fn backends(&self) -> MutexGuard<'_, Vec<Backend>> {
        self.backends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self) {
        let backends = self.backends().clone();
        for backend in backends {
            let answer = try_ask(&backend.at, "GET", "/readyz", "", LONG);
            let is_ready = answer.is_ok_and(|answer| answer.status == 200);
            let mut backends = self.backends();
            let same = backends.iter_mut().find(|other| other.at == backend.at);
            same.into_iter().for_each(|same| same.is_ready = is_ready);
        }
    }

    /// Those that this request may go to, the best one first.
    fn choice(&self, request: &str) -> Vec<String> {
        let mut backends = self.backends().clone();
        let path = request.split(' ').nth(1).unwrap_or_default();
        if let Some(id) = path.strip_prefix("/v1/holds/") {
            backends.retain(|backend| id.starts_with(&backend.tag));
        } else {
            backends.retain(|backend| backend.is_ready);
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            let count = backends.len().max(1);
            backends.rotate_left(next % count);
        }
        backends.into_iter().map(|backend| backend.at).collect()
    }

    /// Passes a request on to the first instance that takes the connection, and its answer back. One that was sent in full is
    /// not sent again: it may have been carried out.
    fn pass(&self, mut client: TcpStream) {
        let Some(request) = whole(&mut client) else { return };
        let choice = self.choice(&request);
        let connected = choice.iter().find_map(|at| TcpStream::connect(at).ok());
        let mut answer = Vec::new();
        if let Some(mut instance) = connected {
            let _ = instance.write_all(request.as_bytes());
            let _ = instance.read_to_end(&mut answer);
        }
        if answer.is_empty() {
            answer = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n".to_vec();
        }
        let _ = client.write_all(&answer);
    }
}

/// A request, its body with it.
fn whole(client: &mut TcpStream) -> Option<String> {
    let (mut bytes, mut some) = (Vec::new(), [0; 4_096]);
    loop {
        let count = client.read(&mut some).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&some[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        if body.len() >= length.and_then(|length| length.parse().ok()).unwrap_or(0) {
            return Some(text);
        }
    }
}
