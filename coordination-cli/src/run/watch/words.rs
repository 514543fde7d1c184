//! What the wrapper tells the watch.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::Pid;

/// What the watch is told, a message each: eight bytes, and with a process eight more, which say when that began, in the kernel's
/// ticks. Zero: nobody knows. What is read late may be of a number that another process has by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The process group of this process is watched.
    Group(Pid, u64),
    /// This process is watched.
    Single(Pid, u64),
    /// What is watched has no number any more: another process may have it by now.
    Numberless,
    /// It must not live beyond this moment, in nanoseconds on the clock since boot.
    Deadline(u64),
    /// It may live as long as it likes.
    NoDeadline,
    /// It descends from the command, and cannot be told by anything else once we are dead.
    Left(Pid, u64),
    /// With this comes a file that is to be open until what is watched is dead.
    Keep,
    /// Nothing more is to be watched.
    Goodbye,
}

impl Word {
    const GROUP: u64 = 1 << 63;
    const SINGLE: u64 = 1 << 62;
    const NO_DEADLINE: u64 = Self::SINGLE - 1;
    const KEEP: u64 = Self::GROUP | Self::SINGLE;
    const NUMBERLESS: u64 = Self::GROUP;
    const GOODBYE: u64 = 0;

    /// The number of its message, and when its process began.
    fn numbers(self) -> (u64, Option<u64>) {
        let id = |pid: Pid| u64::from(pid.as_raw_nonzero().get().unsigned_abs());
        match self {
            Self::Group(pid, started) => (Self::GROUP | id(pid), Some(started)),
            Self::Single(pid, started) => (Self::SINGLE | id(pid), Some(started)),
            Self::Left(pid, started) => (Self::KEEP | id(pid), Some(started)),
            Self::Deadline(nanos) => (nanos.clamp(1, Self::NO_DEADLINE - 1), None),
            Self::NoDeadline => (Self::NO_DEADLINE, None),
            Self::Keep => (Self::KEEP, None),
            Self::Numberless => (Self::NUMBERLESS, None),
            Self::Goodbye => (Self::GOODBYE, None),
        }
    }

    pub(super) fn bytes(self) -> Vec<u8> {
        let (number, started) = self.numbers();
        [number].into_iter().chain(started).flat_map(u64::to_ne_bytes).collect()
    }

    /// `None`: no word of ours.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        let (number, started) = bytes.split_first_chunk()?;
        let number = u64::from_ne_bytes(*number);
        let of = |tag: u64, word: fn(Pid, u64) -> Self| {
            let pid = i32::try_from(number & !tag).ok().and_then(Pid::from_raw)?;
            Some(word(pid, u64::from_ne_bytes(started.try_into().ok()?)))
        };
        match number {
            Self::GOODBYE => Some(Self::Goodbye),
            Self::NO_DEADLINE => Some(Self::NoDeadline),
            Self::KEEP => Some(Self::Keep),
            Self::NUMBERLESS => Some(Self::Numberless),
            _ if number & Self::KEEP == Self::KEEP => of(Self::KEEP, Self::Left),
            _ if number & Self::GROUP != 0 => of(Self::GROUP, Self::Group),
            _ if number & Self::SINGLE != 0 => of(Self::SINGLE, Self::Single),
            nanos => Some(Self::Deadline(nanos)),
        }
    }
}

/// Sends a word, and with it a file, without waiting.
pub(super) fn send(socket: impl AsFd, word: Word, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = SendAncillaryBuffer::new(&mut space);
    if let Some(file) = &file {
        files.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(file)));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(&word.bytes())], &mut files, flags)?;
    Ok(())
}

/// `None`: the other side has ended, or says nothing that we know.
pub(super) fn receive(socket: impl AsFd, kept: &mut Vec<OwnedFd>) -> io::Result<Option<Word>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 16];
    let mut into = [IoSliceMut::new(&mut bytes)];
    let length = recvmsg(socket, &mut into, &mut files, RecvFlags::CMSG_CLOEXEC)?.bytes;
    for message in files.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            kept.extend(files);
        }
    }
    Ok(bytes.get(..length).and_then(Word::of))
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::process::getpid;

    use super::*;

    #[test]
    fn words_come_back() {
        let pid = Pid::from_raw(i32::MAX).expect("not zero");
        for word in [
            Word::Group(pid, 1),
            Word::Single(getpid(), u64::MAX),
            Word::Left(pid, 0),
            Word::Left(getpid(), 7),
            Word::Numberless,
            Word::Deadline(1),
            Word::Deadline(Word::NO_DEADLINE - 1),
            Word::NoDeadline,
            Word::Keep,
            Word::Goodbye,
        ] {
            assert_eq!(Word::of(&word.bytes()), Some(word));
        }
        assert_eq!(Word::Deadline(u64::MAX).bytes(), Word::Deadline(Word::NO_DEADLINE - 1).bytes());
        assert_eq!(Word::of(&[0; 7]), None);
        assert_eq!(Word::of(&Word::Left(pid, 7).bytes()[..8]), None, "another process may have it");
    }

    #[test]
    fn a_file_comes_with_its_word() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a socket");
        let (reader, writer) = io::pipe().expect("a pipe");
        send(&ours, Word::Keep, Some(writer.as_fd())).expect("there is room");
        drop(writer);
        send(&ours, Word::Deadline(7), None).expect("there is room");
        drop(ours);
        let mut kept = Vec::new();
        let said: Vec<_> = (0..3).map(|_| receive(&theirs, &mut kept).expect("a socket")).collect();
        assert_eq!(said, [Some(Word::Keep), Some(Word::Deadline(7)), None]);
        assert_eq!(kept.len(), 1);
        drop(kept);
        assert_eq!(io::read_to_string(reader).expect("it is closed"), "");
    }
}
