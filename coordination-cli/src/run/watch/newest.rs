//! The newest deadline, in memory that the wrapper shares with the watch.
//!
//! While the watch stands still its socket fills with deadlines, and there is no room then for the newest. When the watch goes on,
//! what it reads there is old, and it would kill a command whose lock is good. So it looks here first.
//!
//! In the same memory the watch notes how the command's end came: before its deadline, or by the watch, at the deadline. A wrapper that
//! stood still meanwhile cannot know that by itself.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use rustix::fs::{MemfdFlags, memfd_create};

use super::words::Word;

/// How often it is read while it is being written.
const TRIES: usize = 1_000;
/// Where it is noted how the command's end came, behind the word, which is there twice.
const END: u64 = 16;
const IN_TIME: u8 = 1;
const BY_WATCH: u8 = 2;

/// The last of some words, whichever the socket had room for. `None`: this kernel has no such memory.
pub(super) struct Newest(Option<File>);

impl Newest {
    pub(super) fn new() -> Self {
        Self(memfd_create("coordination", MemfdFlags::CLOEXEC).ok().map(File::from))
    }

    /// That of who has started us, by our stdout.
    pub(super) fn of_parent() -> Self {
        Self(io::stdout().as_fd().try_clone_to_owned().ok().map(File::from))
    }

    /// For the stdout of who is to read it.
    pub(super) fn shared(&self) -> Stdio {
        let file = self.0.as_ref().and_then(|file| file.try_clone().ok());
        file.map_or_else(Stdio::null, |file| OwnedFd::from(file).into())
    }

    /// This is the newest from now on.
    pub(super) fn set(&self, word: Word) {
        let bytes = word.bytes();
        let twice = [bytes.as_slice(), &bytes].concat();
        // It has no length to run out of; and the socket has the word as well.
        let _ = self.0.as_ref().map(|file| file.write_all_at(&twice, 0));
    }

    /// `None`: there is none, or it cannot be read.
    pub(super) fn get(&self) -> Option<Word> {
        let file = self.0.as_ref()?;
        let mut bytes = [0; 16];
        for _ in 0..TRIES {
            file.read_exact_at(&mut bytes, 0).ok()?;
            let (one, other) = bytes.split_at(8);
            // Else it is being written at this moment.
            if one == other {
                return Word::of(one);
            }
            std::thread::yield_now();
        }
        None
    }

    /// The command has ended before its deadline.
    pub(super) fn note_end(&self) {
        self.note(IN_TIME);
    }

    /// The command lives at its deadline, and is about to be ended.
    pub(super) fn note_kill(&self) {
        self.note(BY_WATCH);
    }

    fn note(&self, how: u8) {
        // Where there is no word yet, the gap before the note would read as one. If it fails, nobody knows how the end came.
        if self.get().is_some() {
            let _ = self.0.as_ref().map(|file| file.write_all_at(&[how], END));
        }
    }

    /// Whether the command is known to have ended before its deadline.
    pub(super) fn has_end(&self) -> bool {
        self.has_note(IN_TIME)
    }

    /// Whether the watch has ended the command at its deadline.
    pub(super) fn has_kill(&self) -> bool {
        self.has_note(BY_WATCH)
    }

    fn has_note(&self, how: u8) -> bool {
        let mut noted = [0];
        let read = self.0.as_ref().map(|file| file.read_exact_at(&mut noted, END));
        matches!(read, Some(Ok(()))) && noted == [how]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_is_the_newest() {
        let (ours, none) = (Newest::new(), Newest(None));
        let theirs = Newest(ours.0.as_ref().map(|file| file.try_clone().expect("a descriptor")));
        theirs.note_end();
        assert_eq!((theirs.get(), theirs.has_end()), (None, false), "nothing was said");
        for word in
            [Word::Deadline(7), Word::NoDeadline, Word::Deadline(u64::MAX / 8), Word::Goodbye]
        {
            ours.set(word);
            none.set(word);
            assert_eq!((theirs.get(), none.get()), (Some(word), None));
            assert!(!ours.has_end(), "nobody has noted it");
        }
        theirs.note_end();
        none.note_end();
        assert_eq!((ours.has_end(), none.has_end()), (true, false));
        assert!(!ours.has_kill());
        theirs.note_kill();
        assert_eq!((ours.has_end(), ours.has_kill()), (false, true));
        assert_eq!(ours.get(), Some(Word::Goodbye), "the word is left as it was");
    }
}
