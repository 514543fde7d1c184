//! A client of `coordination serve`: plain HTTP/1.1 over a socket, so that a test can also send what no library would.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::{LONG, Store, Wrapper};

/// An instance that runs; killed when dropped.
pub(crate) struct Service {
    pub(crate) process: Wrapper,
    /// Host and port of each listener.
    pub(crate) native: String,
    pub(crate) rdlm: String,
    pub(crate) lockable: String,
    pub(crate) zaqar: String,
    pub(crate) metrics: Option<String>,
    /// What it wrote to stdout and stderr, line by line.
    pub(crate) lines: mpsc::Receiver<String>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Whether all of the body is there, as far as that can be told.
    fn is_whole(&self) -> bool {
        let length = self.header("content-length").and_then(|length| length.parse::<usize>().ok());
        length.is_none_or(|length| self.body.len() == length)
    }

    /// The code of a problem.
    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl Service {
    /// On this store, on free ports, when it is ready; `words` are further options.
    pub(crate) fn start(store: &Store, words: &str) -> Self {
        let service = Self::begin(store, words);
        let is_ready = || service.get("/readyz").status == 200;
        assert!(crate::wait_until(LONG, is_ready), "not ready");
        service
    }

    /// The same, as soon as it listens.
    pub(crate) fn begin(store: &Store, words: &str) -> Self {
        let any = "127.0.0.1:0";
        let mut command =
            store.coordination(["serve", "--listen", any, "--rdlm", any, "--lockable", any]);
        command.args(["--zaqar", any]);
        command.args(words.split(' ').filter(|word| !word.is_empty()));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("it was built");
        let lines = lines(&mut child);
        let process = Wrapper(child);
        let mut before = String::new();
        let first = loop {
            match lines.recv_timeout(LONG) {
                Ok(line) if line.contains(" on http") => break line,
                Ok(line) => before.push_str(&line),
                Err(_) => panic!("it does not say where it listens: {before}"),
            }
        };
        let after = |mark: &str| {
            let (_, rest) =
                first.split_once(mark).unwrap_or_else(|| panic!("no {mark} in {first}"));
            rest.split(',').next().unwrap_or_default().trim().to_owned()
        };
        Self {
            native: after("://"),
            rdlm: after("rdlm on "),
            lockable: after("lockable on "),
            zaqar: after("zaqar on "),
            metrics: first.contains("metrics on ").then(|| after("metrics on ")),
            process,
            lines,
        }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "")
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        self.ask("POST", path, body)
    }

    pub(crate) fn put(&self, path: &str, body: &str) -> Answer {
        self.ask("PUT", path, body)
    }

    pub(crate) fn delete(&self, path: &str) -> Answer {
        self.ask("DELETE", path, "")
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        ask(&self.native, method, path, &[], body)
    }

    /// Acquires a lock and answers the hold.
    pub(crate) fn acquire(&self, name: &str, body: &str) -> Value {
        let answer = self.post(&format!("/v1/locks/{name}"), body);
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()
    }

    /// Tells it to stop.
    pub(crate) fn terminate(&self) {
        self.process.signal(Signal::TERM);
    }

    /// All that it has written so far.
    pub(crate) fn written(&self) -> String {
        self.lines.try_iter().collect()
    }

    /// All that it has written and that was not asked for before. To be called when it has ended: reads to the end.
    pub(crate) fn written_to_the_end(&self) -> String {
        let mut written = String::new();
        while let Ok(line) = self.lines.recv_timeout(LONG) {
            written += &line;
        }
        written
    }
}

/// What it writes to its two pipes, line by line.
pub(crate) fn lines(child: &mut Child) -> mpsc::Receiver<String> {
    let (told, lines) = mpsc::channel();
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let pipes: [Box<dyn Read + Send>; 2] =
        [Box::new(output.expect("a pipe")), Box::new(errors.expect("a pipe"))];
    for pipe in pipes {
        let told = told.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if told.send(line + "\n").is_err() {
                    return;
                }
            }
        });
    }
    lines
}

/// The URL's path of a hold.
pub(crate) fn hold(answer: &Value) -> String {
    format!("/v1/holds/{}", answer["id"].as_str().expect("an id"))
}

/// A request that is sent and whose answer is not read yet.
pub(crate) fn send(
    at: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> TcpStream {
    raw(at, &request(at, method, path, headers, body))
}

/// A request's bytes.
fn request(at: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "Host") {
        text.push_str(&format!("Host: {at}\r\n"));
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() || matches!(method, "POST" | "PUT") {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    format!("{text}\r\n{body}")
}

/// The same with bytes as they are.
pub(crate) fn raw(at: &str, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(at).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    stream.write_all(text.as_bytes()).expect("it reads");
    stream
}

/// Reads an answer to its end.
pub(crate) fn answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // A connection that is reset after its answer has told what it had to.
    let _ = stream.read_to_end(&mut bytes);
    answered(&bytes)
}

/// The answer that was read.
pub(crate) fn answered(bytes: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

pub(crate) fn ask(
    at: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    answer(send(at, method, path, headers, body))
}

/// The same for who expects that it fails: no whole answer is an error, as is none within `patience`, after which it hangs up.
pub(crate) fn try_ask(
    at: &str,
    method: &str,
    path: &str,
    body: &str,
    patience: Duration,
) -> io::Result<Answer> {
    let address: SocketAddr = at.parse().map_err(io::Error::other)?;
    // A time-out of zero is none.
    let patience = patience.max(Duration::from_millis(1));
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(request(at, method, path, &[], body).as_bytes())?;
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    let answer = answered(&bytes);
    let is_whole = answer.status > 0 && answer.is_whole();
    match read {
        Err(error) if !is_whole => Err(error),
        _ if is_whole => Ok(answer),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A connection that stays open from one request to the next.
pub(crate) struct Kept {
    at: String,
    stream: TcpStream,
}

impl Kept {
    pub(crate) fn open(at: &str) -> Self {
        Self { at: at.to_owned(), stream: raw(at, "") }
    }

    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &str) -> Answer {
        let (host, length) = (&self.at, body.len());
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        self.stream.write_all(text.as_bytes()).expect("it reads");
        let (mut bytes, mut some) = (Vec::new(), [0; 4_096]);
        loop {
            let count = self.stream.read(&mut some).expect("it answers");
            assert!(count > 0, "it was closed after {:?}", String::from_utf8_lossy(&bytes));
            bytes.extend_from_slice(&some[..count]);
            let answer = answered(&bytes);
            if String::from_utf8_lossy(&bytes).contains("\r\n\r\n") && answer.is_whole() {
                return answer;
            }
        }
    }
}
