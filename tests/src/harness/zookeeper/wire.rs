//! The part of ZooKeeper's protocol that an administrator's commands need: one session, with one call at a time.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::bounds::ANSWER;

/// The lease of an administrator's session.
const LEASE_MS: i32 = 4_000;
/// The constant from which every server computes the password of a session, together with the session's id
/// (`SessionTrackerImpl`, `ZooKeeperServer`).
const SECRET: i64 = 0xB341_5C00;

/// The result codes of servers.
pub(super) mod code {
    pub(in super::super) const OK: i32 = 0;
    pub(super) const NO_NODE: i32 = -101;
}

/// The rights in an access control list.
pub(super) mod right {
    pub(in super::super) const ADMIN: i32 = 16;
    pub(in super::super) const ALL: i32 = 31;
    /// The rights, by the names that `zkCli.sh` gives them.
    pub(in super::super) const BY_NAME: [(&str, i32); 4] =
        [("read", 1), ("write", 2), ("create", 4), ("delete", 8)];
}

mod operation {
    pub(super) const CREATE: i32 = 1;
    pub(super) const DELETE: i32 = 2;
    pub(super) const DATA: i32 = 4;
    pub(super) const SET_ACL: i32 = 7;
    pub(super) const CHILDREN: i32 = 8;
    pub(super) const AUTH: i32 = 100;
    pub(super) const CLOSE: i32 = -11;
}

/// A connection with a session.
pub(super) struct Wire {
    stream: TcpStream,
    last: i32,
}

impl Wire {
    /// Opens a session of our own. The session ends when this value is dropped.
    pub(super) fn open(address: SocketAddr) -> io::Result<Self> {
        Self::connect(address, 0, [0; 16])
    }

    /// Takes over the session of another client.
    pub(super) fn resume(address: SocketAddr, session: i64) -> io::Result<Self> {
        Self::connect(address, session, password(session))
    }

    fn connect(address: SocketAddr, session: i64, password: [u8; 16]) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_nodelay(true)?;
        let mut wire = Self { stream, last: 0 };
        let mut hello = vec![0; 12];
        hello.extend(LEASE_MS.to_be_bytes());
        hello.extend(session.to_be_bytes());
        hello.extend(16_i32.to_be_bytes());
        hello.extend(password);
        hello.push(0);
        wire.send(&hello)?;
        let answer = wire.receive()?;
        // The answer begins with protocol, lease and session.
        let lease = i32::from_be_bytes(part(&answer, 4)?);
        if lease == 0 {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such session"));
        }
        Ok(wire)
    }

    /// The names of a node's children, sorted. `None` if the node does not exist.
    pub(super) fn children(&mut self, path: &str) -> Option<Vec<String>> {
        let body = self.call(operation::CHILDREN, &[&text(path.as_bytes()), &[0]]).ok()?;
        let mut rest = &body[..];
        let count = i32::from_be_bytes(part(take(&mut rest, 4)?, 0).ok()?);
        let mut names = Vec::new();
        for _ in 0..count {
            let length = u32::from_be_bytes(part(take(&mut rest, 4)?, 0).ok()?) as usize;
            names.push(String::from_utf8_lossy(take(&mut rest, length)?).into_owned());
        }
        names.sort();
        Some(names)
    }

    /// The data of a node, the number of the transaction that created it, and the session that owns it.
    pub(super) fn data(&mut self, path: &str) -> Option<(Vec<u8>, u64, i64)> {
        let body = self.call(operation::DATA, &[&text(path.as_bytes()), &[0]]).ok()?;
        let mut rest = &body[..];
        let length = i32::from_be_bytes(part(take(&mut rest, 4)?, 0).ok()?);
        let data = take(&mut rest, usize::try_from(length).unwrap_or_default())?.to_vec();
        let made = u64::from_be_bytes(part(rest, 0).ok()?);
        // The session of the owner comes after four numbers of 64 bits and three of 32 bits.
        let owner = i64::from_be_bytes(part(rest, 44).ok()?);
        Some((data, made, owner))
    }

    /// Creates a persistent node on which everybody has all rights. Returns the server's result code.
    pub(super) fn create(&mut self, path: &str, data: &[u8]) -> i32 {
        let acl = everything_to(b"world", b"anyone");
        let parts = [&text(path.as_bytes())[..], &text(data), &acl, &[0; 4]];
        self.call(operation::CREATE, &parts).map_or_else(|code| code, |_| code::OK)
    }

    /// Removes a node. Returns the server's result code.
    pub(super) fn delete(&mut self, path: &str) -> i32 {
        let call = self.call(operation::DELETE, &[&text(path.as_bytes()), &(-1_i32).to_be_bytes()]);
        call.map_or_else(|code| code, |_| code::OK)
    }

    /// Authenticates the session as this user, written as `user:password`, in addition to its other users. Returns the
    /// server's result code.
    pub(super) fn be(&mut self, user: &str) -> i32 {
        let parts = [&[0; 4][..], &text(b"digest"), &text(user.as_bytes())];
        self.call(operation::AUTH, &parts).map_or_else(|code| code, |_| code::OK)
    }

    /// Gives all rights on a node to everybody, or only to the users of this session. Returns the server's result code.
    pub(super) fn allow(&mut self, path: &str, to_anyone: bool) -> i32 {
        match to_anyone {
            true => self.set_acl(path, &everything_to(b"world", b"anyone")),
            false => self.set_acl(path, &everything_to(b"auth", b"")),
        }
    }

    /// Gives everybody exactly these rights on a node. Returns the server's result code.
    pub(super) fn permit(&mut self, path: &str, rights: i32) -> i32 {
        self.set_acl(path, &acl(rights, b"world", b"anyone"))
    }

    fn set_acl(&mut self, path: &str, acl: &[u8]) -> i32 {
        let parts = [&text(path.as_bytes())[..], acl, &(-1_i32).to_be_bytes()];
        self.call(operation::SET_ACL, &parts).map_or_else(|code| code, |_| code::OK)
    }

    /// Ends the session. Returns true if the server has confirmed it.
    pub(super) fn close(&mut self) -> bool {
        self.call(operation::CLOSE, &[]).is_ok()
    }

    /// Sends a request and waits for the answer. An error is the result code of the server, or `NO_NODE` if there is no
    /// answer.
    fn call(&mut self, operation: i32, parts: &[&[u8]]) -> Result<Vec<u8>, i32> {
        self.last += 1;
        let mut request = [self.last.to_be_bytes(), operation.to_be_bytes()].concat();
        request.extend(parts.concat());
        let answer = self.send(&request).and_then(|()| self.receive());
        // The answer begins with the number of the request, the number of the transaction, and the result code.
        let Ok(mut answer) = answer else { return Err(code::NO_NODE) };
        let code = part(&answer, 12).map_or(code::NO_NODE, i32::from_be_bytes);
        if code != code::OK {
            return Err(code);
        }
        Ok(answer.split_off(16))
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.stream.write_all(&text(message))
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut message = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut message)?;
        Ok(message)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.close();
    }
}

fn everything_to(scheme: &[u8], id: &[u8]) -> Vec<u8> {
    acl(right::ALL, scheme, id)
}

/// An access control list with one entry.
fn acl(rights: i32, scheme: &[u8], id: &[u8]) -> Vec<u8> {
    [&1_i32.to_be_bytes()[..], &rights.to_be_bytes(), &text(scheme), &text(id)].concat()
}

/// The answer to a four-letter command such as `ruok`, which servers accept without a session.
pub(super) fn four_letters(address: SocketAddr, word: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    // This fails if the server has closed the connection already, which does not matter.
    let _ = stream.shutdown(Shutdown::Both);
    Ok(answer)
}

/// The password of a session: the first bytes that `java.util.Random` returns if its seed is the session's id combined
/// with [`SECRET`].
fn password(session: i64) -> [u8; 16] {
    const MULTIPLIER: u64 = 0x5_DEEC_E66D;
    const MASK: u64 = (1 << 48) - 1;
    let mut seed = ((session ^ SECRET).cast_unsigned() ^ MULTIPLIER) & MASK;
    let mut password = [0; 16];
    for bytes in password.chunks_mut(4) {
        seed = (seed.wrapping_mul(MULTIPLIER).wrapping_add(0xB)) & MASK;
        // The upper 32 of the 48 bits, with the lowest byte first.
        let number = (seed >> 16) as u32;
        bytes.copy_from_slice(&number.to_le_bytes());
    }
    password
}

/// Encodes bytes as ZooKeeper does: with their length before them.
fn text(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("it is short");
    [&length.to_be_bytes(), bytes].concat()
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> io::Result<[u8; N]> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_those_that_servers_make() {
        // In Java the password of this session is: `Random r = new Random(0x100000000000001L ^ 0xB3415C00L);
        // r.nextBytes(new byte[16])`. This test only checks that two sessions have different passwords.
        let bytes = password(0x0100_0000_0000_0001);
        assert_eq!(bytes.len(), 16);
        assert_ne!(bytes, password(0x0100_0000_0000_0002));
    }
}
