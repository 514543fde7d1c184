//! Volumes on disk, and the function that must not run twice at once for one of them.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs, io};

use coordination::{ErrorKind, FencingToken, synchronized};
use serde::{Deserialize, Serialize};

use crate::journal::Journal;

/// Makes the volume larger by `gib`.
///
/// Nobody else resizes this volume meanwhile, in no process that uses the same store. When the lock is
/// lost half-way, the body stops at its next await and the caller gets the error.
#[synchronized("vol-<volume.id>", guard = guard)]
pub(crate) async fn resize(volume: &Volume, gib: u64, journal: &Journal) -> Result<()> {
    volume.grow(gib, Some(guard.token()), journal).await
}

/// The same without the lock, to show what it is for.
pub(crate) async fn resize_unlocked(volume: &Volume, gib: u64, journal: &Journal) -> Result<()> {
    volume.grow(gib, None, journal).await
}

/// How many volumes there are.
pub(crate) const VOLUMES: u32 = 3;

/// What a resize takes; long enough that processes which do not wait for each other collide.
pub(crate) const WORK: Duration = Duration::from_millis(300);

/// A volume: a file that says how large it is.
pub(crate) struct Volume {
    pub(crate) id: u32,
    path: PathBuf,
}

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Content {
    pub(crate) gib: u64,
    /// How often it was resized.
    pub(crate) resizes: u64,
    /// The fencing token of the last resize.
    pub(crate) token: Option<FencingToken>,
}

impl Content {
    /// Of a new volume.
    pub(crate) const NEW: Self = Self { gib: 10, resizes: 0, token: None };
}

impl Volume {
    /// All volumes of a directory.
    pub(crate) fn all(directory: &Path) -> Vec<Self> {
        let volume = |id| Self { id, path: directory.join(format!("vol-{id}.json")) };
        (1..=VOLUMES).map(volume).collect()
    }

    pub(crate) fn create(&self) -> Result<()> {
        self.replace(&Content::NEW)
    }

    pub(crate) fn read(&self) -> Result<Content> {
        Ok(serde_json::from_slice(&fs::read(&self.path)?).map_err(io::Error::from)?)
    }

    /// Read, modify, write: what one process must not do while another one does.
    async fn grow(&self, gib: u64, token: Option<FencingToken>, journal: &Journal) -> Result<()> {
        let section = journal.begin(self.id, token);
        let from = self.read()?;
        tokio::time::sleep(WORK).await;
        let to = Content { gib: from.gib + gib, resizes: from.resizes + 1, token };
        section.write(from, to);
        self.write(&to)?;
        section.done(from, to);
        Ok(())
    }

    /// Writes, unless somebody with a later grant of the lock did so before.
    ///
    /// Without an await: a body that is cancelled has written all or nothing. A real disk compares the
    /// token in the same atomic step as it writes.
    fn write(&self, content: &Content) -> Result<()> {
        let stored = self.read()?.token;
        if content.token.is_some() && content.token < stored {
            return Err(StorageError::Stale { token: content.token, stored });
        }
        self.replace(content)
    }

    fn replace(&self, content: &Content) -> Result<()> {
        let new = self.path.with_extension(format!("new-{}", std::process::id()));
        fs::write(&new, serde_json::to_vec(content).map_err(io::Error::from)?)?;
        Ok(fs::rename(new, &self.path)?)
    }
}

pub(crate) type Result<T, E = StorageError> = std::result::Result<T, E>;

/// The service's own error. That it is `From<coordination::Error>` is all that `#[synchronized]` asks.
#[derive(Debug)]
pub(crate) enum StorageError {
    /// The lock was not granted, or was lost.
    Lock(coordination::Error),
    /// A later holder wrote before.
    Stale { token: Option<FencingToken>, stored: Option<FencingToken> },
    /// The disk failed.
    Disk(io::Error),
}

impl StorageError {
    /// Whether to go on: the store of the locks is unwell, or we were late. A resize may be made twice, so also if the lock was lost
    /// while it was made.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Lock(error) => error.is_transient() || error.kind() == ErrorKind::Lost,
            Self::Stale { .. } => true,
            Self::Disk(_) => false,
        }
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Stale { token, stored } => write!(f, "token {token:?} is older than {stored:?}"),
            Self::Disk(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StorageError {}

impl From<coordination::Error> for StorageError {
    fn from(error: coordination::Error) -> Self {
        Self::Lock(error)
    }
}

impl From<io::Error> for StorageError {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}
