//! The part of Redis' protocol that an administrator's commands need.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long to wait for an answer. A paused server accepts connections, but never answers.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The null value.
    Nil,
    /// A status, or a string.
    Text(String),
    /// A number.
    Number(i64),
    /// A list of answers.
    List(Vec<Reply>),
    /// An error: the server refuses the command.
    Error(String),
}

impl Reply {
    /// All strings and numbers in the answer, including those in nested lists.
    pub fn texts(&self) -> Vec<String> {
        match self {
            Self::Text(text) => vec![text.clone()],
            Self::Number(number) => vec![number.to_string()],
            Self::List(replies) => replies.iter().flat_map(Self::texts).collect(),
            Self::Nil | Self::Error(_) => Vec::new(),
        }
    }

    /// The first string or number in the answer.
    pub fn text(&self) -> Option<String> {
        self.texts().into_iter().next()
    }
}

/// A connection on which an administrator's commands are sent.
#[derive(Debug)]
pub struct Operator {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Operator {
    /// Connects to the server at this address.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let answers = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, answers })
    }

    /// Sends a command and returns the answer. If the server refuses the command, that is an `Ok` with
    /// [`Reply::Error`].
    pub fn ask(&mut self, command: &[&str]) -> io::Result<Reply> {
        self.stream.write_all(&encode(command))?;
        read(&mut self.answers)
    }
}

/// Sends one command on a new connection. If `login` is given, logs in first with this user and password.
pub fn ask(
    address: SocketAddr,
    login: Option<(&str, &str)>,
    command: &[&str],
) -> io::Result<Reply> {
    let mut operator = Operator::connect(address)?;
    if let Some((user, password)) = login {
        operator.ask(&["AUTH", user, password])?;
    }
    operator.ask(command)
}

fn encode(command: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len());
    for word in command {
        bytes += &format!("${}\r\n{word}\r\n", word.len());
    }
    bytes.into_bytes()
}

fn read(from: &mut impl BufRead) -> io::Result<Reply> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end();
    let (kind, rest) = line.split_at_checked(1).ok_or_else(|| io::Error::other("no reply"))?;
    let count = || rest.parse::<i64>().map_err(io::Error::other);
    Ok(match kind {
        "+" => Reply::Text(rest.to_owned()),
        "-" => Reply::Error(rest.to_owned()),
        ":" => Reply::Number(count()?),
        "$" => match usize::try_from(count()?) {
            Err(_) => Reply::Nil,
            Ok(length) => {
                let mut bytes = vec![0; length + 2];
                from.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
            }
        },
        "*" => match usize::try_from(count()?) {
            Err(_) => Reply::Nil,
            Ok(length) => Reply::List((0..length).map(|_| read(from)).collect::<Result<_, _>>()?),
        },
        _ => return Err(io::Error::other(format!("no reply: {line}"))),
    })
}
