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

/// The token of a turn of a [`Cohort`](crate::Cohort): the number of the cohort's entry at the store, and which turn under that
/// entry it is.
///
/// Such tokens are ordered by number, then by turn. The token of a grant without a cohort counts as the first turn of its number
/// ([`From`]); no number is given twice. So the tokens of all grants of the lock rise strictly, whoever has it. A resource that
/// compares both parts refuses late writes of a task that has passed the lock on within its process, too. In SQL that is
/// `WHERE (fence, turn) <= ($1, $2)`.
///
/// A resource that compares the number alone cannot tell the tasks of one cohort apart. There, use the lock without a cohort.
///
/// # Examples
///
/// ```
/// use coordination::{Fence, FencingToken, TurnToken};
///
/// let (earlier, later) = (FencingToken::new(7).unwrap(), FencingToken::new(8).unwrap());
/// let fence = Fence::new();
/// for token in [TurnToken::new(earlier, 0), TurnToken::new(earlier, 1), later.into()] {
///     assert!(fence.check(token).is_ok());
/// }
/// let late = fence.check(TurnToken::new(earlier, 1)).unwrap_err();
/// assert_eq!(late.to_string(), "fencing token 7.1 is stale: 8.0 was accepted");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TurnToken {
    // Tokens are compared by these fields, in their order.
    number: FencingToken,
    turn: u32,
}

impl TurnToken {
    /// The token of this turn, counted from zero, under the entry with this number: as a resource reads it from a request.
    pub const fn new(number: FencingToken, turn: u32) -> Self {
        Self { number, turn }
    }

    /// The number that the store gave: the token by which [`Lock::holders`](crate::Lock::holders) lists the cohort, and by which
    /// [`Lock::break_grant`](crate::Lock::break_grant) takes the lock away from it.
    pub const fn number(self) -> FencingToken {
        self.number
    }

    /// Which turn under that number it is, counted from zero.
    pub const fn turn(self) -> u32 {
        self.turn
    }
}

impl From<FencingToken> for TurnToken {
    fn from(number: FencingToken) -> Self {
        Self::new(number, 0)
    }
}

impl fmt::Display for TurnToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.number, self.turn)
    }
}

/// The resource's side of fencing: remembers the largest token and refuses smaller ones.
///
/// The tokens are [`FencingToken`]s, or [`TurnToken`]s where holders are tasks of a [`Cohort`](crate::Cohort).
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
#[derive(Debug)]
pub struct Fence<Token = FencingToken> {
    highest: Mutex<Option<Token>>,
}

impl<Token> Fence<Token> {
    /// A fence that has seen no token.
    pub const fn new() -> Self {
        Self { highest: Mutex::new(None) }
    }
}

impl<Token> Default for Fence<Token> {
    fn default() -> Self {
        Self::new()
    }
}

impl<Token: Copy + Ord> Fence<Token> {
    /// Accepts the token and remembers it, unless a larger one was seen before.
    ///
    /// # Errors
    ///
    /// [`Stale`] with the largest token seen: the caller is no longer the holder and must not write.
    pub fn check(&self, token: Token) -> Result<(), Stale<Token>> {
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
pub struct Stale<Token = FencingToken> {
    /// The refused token.
    pub token: Token,
    /// The largest token accepted so far.
    pub highest: Token,
}

impl<Token: fmt::Display> fmt::Display for Stale<Token> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fencing token {} is stale: {} was accepted", self.token, self.highest)
    }
}

impl<Token: fmt::Debug + fmt::Display> std::error::Error for Stale<Token> {}
