//! Fencing tokens, and the check that a protected resource makes with them.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

/// A number that rises with every grant of the same lock, for ever.
///
/// A later grant has the strictly larger token, whatever happened in between to clients, network or
/// store, as long as the store kept its data (each backend's page says what its token survives). So a
/// resource that refuses every token smaller than the largest it has seen never applies a write of
/// a holder that was paused, lost its lock and does not know yet. See [`Fence`].
///
/// A token is an order, not a secret: whoever talks to the resource must still be authenticated.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let lock = coordinator.lock("vol-7")?;
/// let first = lock.acquire(None).await?;
/// let token = first.token();
/// first.release().await?;
/// assert!(lock.acquire(None).await?.token() > token);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(NonZeroU64);

impl FencingToken {
    /// The token with this number; `None` for zero, which no grant has.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::FencingToken;
    ///
    /// // As a resource reads it from a request.
    /// let token = "7".parse().ok().and_then(FencingToken::new);
    /// assert_eq!(token.map(FencingToken::value), Some(7));
    /// assert!(FencingToken::new(0).is_none());
    /// ```
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The number, as a resource stores it.
    pub const fn value(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.value()
    }
}

/// The resource's side of fencing: remembers the largest token and refuses smaller ones.
///
/// For a resource that lives in one process. Elsewhere the same comparison belongs where the data
/// is, in the same atomic step as the write: `UPDATE … WHERE fence <= $1` in SQL, a conditional
/// write in an object store, an HTTP header `Fencing-Token`.
///
/// # Examples
///
/// ```
/// use coordination::{Fence, FencingToken};
///
/// let fence = Fence::new();
/// let (old, new) = (FencingToken::new(7).unwrap(), FencingToken::new(9).unwrap());
/// assert!(fence.check(old).is_ok());
/// assert!(fence.check(new).is_ok());
/// assert_eq!(fence.check(old).unwrap_err().highest, new);
/// ```
#[derive(Debug, Default)]
pub struct Fence {
    highest: Mutex<Option<FencingToken>>,
}

impl Fence {
    /// A fence that has seen no token.
    pub const fn new() -> Self {
        Self { highest: Mutex::new(None) }
    }

    /// Accepts the token and remembers it, unless a larger one was seen before.
    ///
    /// # Errors
    ///
    /// [`Stale`] with the largest token seen: the caller is no longer the holder and must not write.
    pub fn check(&self, token: FencingToken) -> Result<(), Stale> {
        // A panic elsewhere cannot leave the number half written.
        let mut highest = self.highest.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match *highest {
            Some(highest) if token < highest => Err(Stale { token, highest }),
            _ => {
                *highest = Some(token);
                Ok(())
            }
        }
    }
}

/// A token came too late: a larger one was accepted before.
///
/// # Examples
///
/// ```
/// use coordination::{Fence, FencingToken, Stale};
///
/// let fence = Fence::new();
/// let (old, new) = (FencingToken::new(7).unwrap(), FencingToken::new(9).unwrap());
/// fence.check(new)?;
/// assert_eq!(fence.check(old), Err(Stale { token: old, highest: new }));
/// # Ok::<_, Stale>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The refused token.
    pub token: FencingToken,
    /// The largest token accepted so far.
    pub highest: FencingToken,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fencing token {} is stale: {} was accepted", self.token, self.highest)
    }
}

impl std::error::Error for Stale {}
