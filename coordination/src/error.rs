//! The one error type: what went wrong, where, and whether it may have taken effect.

use crate::serialize::words;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// What the library's calls return.
///
/// # Examples
///
/// ```
/// use coordination::Coordinator;
///
/// async fn is_free(coordinator: &Coordinator, volume: u32) -> coordination::Result<bool> {
///     let lock = coordinator.lock(format!("vol-{volume}"))?;
///     Ok(lock.holders().await?.is_empty())
/// }
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure an [`Error`] is; callers decide by it what to do.
///
/// After the kinds marked *retry*, the same call may succeed later. The others require a change of the
/// configuration, the name or the program.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use coordination::ErrorKind;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let lock = coordinator.lock("vol-7")?;
/// # let _held = lock.acquire(None).await?;
/// match lock.acquire(Some(Duration::from_millis(10))).await {
///     Ok(guard) => println!("held with token {}", guard.token()),
///     Err(error) => match error.kind() {
///         ErrorKind::Timeout => println!("somebody else is busy with it: {error}"),
///         ErrorKind::Unavailable => println!("nobody knows, as the store does not answer"),
///         ErrorKind::Closed => println!("this process is about to end"),
///         kind => panic!("{kind}: {error}"),
///     },
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The URL, an option or a setting is wrong; the message says what is allowed.
    Config,
    /// A lock name, member id or name template is not usable; the source is a [`NameError`].
    Name,
    /// The store, or this build, cannot do what was asked.
    Unsupported,
    /// A host name in the URL does not resolve.
    Dns,
    /// The host is reachable, but nothing accepts connections at that address. *Retry.*
    Refused,
    /// The TLS handshake failed: certificate, host name, or a plain server on a TLS port.
    Tls,
    /// The store does not know the user, or the password is wrong.
    Auth,
    /// The store or the operating system forbids this to this user.
    Permission,
    /// The store is out of space or over a quota. *Retry* when there is room.
    Quota,
    /// The store did not answer in time, or has no quorum, or the task that sends requests panicked. *Retry.*
    Unavailable,
    /// The lock was not free within the time given. *Retry.*
    Timeout,
    /// The lock, or the session with all its locks, is lost. *Retry*: acquire it again.
    Lost,
    /// The coordinator was stopped or dropped, or is being stopped and gives out nothing new; or its runtime has ended, or this is a
    /// forked child of its process.
    Closed,
    /// Another live session has this member id, in the namespace or in the group (Tooz:
    /// `MemberAlreadyExist`).
    MemberExists,
    /// This session has already joined the group under this member id (Tooz: `MemberAlreadyExist`).
    AlreadyJoined,
    /// The group has no member of this id (Tooz: `MemberNotJoined`).
    NotJoined,
    /// The group does not exist: create it first (Tooz: `GroupNotCreated`).
    GroupMissing,
    /// A group of that name already exists (Tooz: `GroupAlreadyExist`).
    GroupExists,
    /// The group has members, so it cannot be deleted (Tooz: `GroupNotEmpty`).
    GroupNotEmpty,
    /// A value cannot be stored: it cannot be written as JSON, or is too large.
    Value,
    /// An argument is out of range; the message says what is allowed.
    Input,
    /// The settings that the store has under this name, such as the number of permits, differ from the caller's; the
    /// message has both.
    Mismatch,
    /// Two different names were mapped to one key of the store; nothing was locked.
    Collision,
    /// What was read from the store is not what this library writes there.
    Corrupt,
    /// Reading or writing a file failed, or the process may have no more files or threads.
    Storage,
    /// The work queue has no live claim with this id: there never was one, or it is over and its items may have been given to
    /// others.
    NoSuchClaim,
    /// No claim has the work item: it was given back.
    NotClaimed,
    /// Another claim has the work item.
    NotClaimedBy,
    /// A claim has the work item, so only that claim may remove the item.
    IsClaimed,
    /// A claim with this id is over, and no other claim may use the id.
    ClaimIdReused,
    /// There is no global coordinator, or another one is already installed.
    Global,
}

words! { ErrorKind:
    Config = "config",
    Name = "name",
    Unsupported = "unsupported",
    Dns = "dns",
    Refused = "refused",
    Tls = "tls",
    Auth = "auth",
    Permission = "permission",
    Quota = "quota",
    Unavailable = "unavailable",
    Timeout = "timeout",
    Lost = "lost",
    Closed = "closed",
    MemberExists = "member_exists",
    AlreadyJoined = "already_joined",
    NotJoined = "not_joined",
    GroupMissing = "group_missing",
    GroupExists = "group_exists",
    GroupNotEmpty = "group_not_empty",
    Value = "value",
    Input = "input",
    Mismatch = "mismatch",
    Collision = "collision",
    Corrupt = "corrupt",
    Storage = "storage",
    NoSuchClaim = "no_such_claim",
    NotClaimed = "not_claimed",
    NotClaimedBy = "not_claimed_by",
    IsClaimed = "is_claimed",
    ClaimIdReused = "claim_id_reused",
    Global = "global",
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a failed operation took effect.
///
/// For a call, the effect says what became of the call at the store. For a function with `#[synchronized]`, for
/// [`protect`](crate::Grant::protect), and for a guard that was lost, it says how far the *body* was: the code that was to
/// run under the lock.
///
/// # Examples
///
/// ```
/// use coordination::{Counter, Effect};
///
/// /// Adds one; if nobody knows whether it was added, it is not added again.
/// async fn count(counter: &Counter) -> coordination::Result<()> {
///     loop {
///         match counter.add(1).await {
///             Err(error) if error.is_transient() && error.effect() == Effect::None => continue,
///             outcome => return outcome.map(drop),
///         }
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// # let counter = coordinator.counter("visits")?;
/// # count(&counter).await?;
/// # assert_eq!(counter.read().await?, 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The operation certainly had no effect: nothing changed. The body never began.
    None,
    /// The operation may have had an effect: the answer was lost, or the session ended before it came. While the session lasts, the
    /// library goes on in the background to undo or to finish the operation. The body began and did not end.
    Unknown,
    /// The operation certainly had its effect, but a later step failed. The body ended.
    Applied,
}

words! { Effect:
    None = "none",
    Unknown = "unknown",
    Applied = "applied",
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a session, or one lock, can no longer be relied on.
///
/// # Examples
///
/// ```
/// use coordination::LossReason;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let lock = coordinator.lock("vol-7")?;
/// let guard = lock.acquire(None).await?;
/// lock.break_lock().await?;
///
/// match guard.lost().await {
///     LossReason::EntryDeleted => println!("an operator took the lock away"),
///     LossReason::Closed => println!("this process stops"),
///     reason => println!("the session is over: {reason}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// No heartbeat was confirmed before the local deadline.
    DeadlinePassed,
    /// The store says that the session is over.
    ExpiredByServer,
    /// The entry of this lock is gone from the store: an operator broke the lock or removed it.
    EntryDeleted,
    /// The connection that carried the lock ended, and the lock with it.
    ConnectionLost,
    /// The session was revoked at the store.
    Revoked,
    /// The coordinator was stopped or dropped, or this is a forked child of its process.
    Closed,
    /// The runtime on which the session lived has ended. With `memory://` or `heartbeat_on_current_runtime`, that is the
    /// runtime that called `Coordinator::connect`; in tests, often that of the test that connected first.
    RuntimeEnded,
}

words! { LossReason:
    DeadlinePassed = "deadline_passed",
    ExpiredByServer = "expired_by_server",
    EntryDeleted = "entry_deleted",
    ConnectionLost = "connection_lost",
    Revoked = "revoked",
    Closed = "closed",
    RuntimeEnded = "runtime_ended",
}

impl LossReason {
    /// Each of them. Their order is nobody's business outside of this process.
    pub(crate) const ALL: [Self; 7] = [
        Self::DeadlinePassed,
        Self::ExpiredByServer,
        Self::EntryDeleted,
        Self::ConnectionLost,
        Self::Revoked,
        Self::Closed,
        Self::RuntimeEnded,
    ];
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeadlinePassed => "no heartbeat was confirmed before the deadline",
            Self::ExpiredByServer => "the store ended the session",
            Self::EntryDeleted => "its entry was removed from the store",
            Self::ConnectionLost => "its connection ended",
            Self::Revoked => "the session was revoked",
            Self::Closed => "the coordinator was stopped",
            Self::RuntimeEnded => "the runtime on which the session lived has ended",
        })
    }
}

/// Why a name, member id or template was refused.
///
/// # Examples
///
/// ```
/// use std::error::Error;
///
/// use coordination::NameError;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let error = coordinator.lock("x".repeat(2_000)).unwrap_err();
/// let reason = error.source().and_then(|source| source.downcast_ref::<NameError>());
/// assert_eq!(reason, Some(&NameError::TooLong { len: 2_000, max: 1_024 }));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameError {
    /// The name is empty, or a template rendered to nothing.
    Empty,
    /// Several locks were asked for, but the list of names is empty.
    NoNames,
    /// The name has `len` bytes and may have `max`.
    TooLong {
        /// Bytes in the refused name, with the coordinator's prefix.
        len: usize,
        /// How many bytes a name may have, with the prefix.
        max: usize,
    },
    /// A placeholder names something that the value does not have.
    MissingField {
        /// The whole path of the placeholder, as written.
        path: String,
        /// The names that exist at the point where the path leaves the value.
        known: Vec<String>,
    },
    /// A placeholder names a list, a map or nothing at all: no text for a name.
    NotScalar {
        /// The whole path of the placeholder, as written.
        path: String,
        /// What the value has at that path: for instance a list.
        found: &'static str,
    },
    /// The template itself is malformed.
    Template {
        /// Byte offset of the fault in the template.
        at: usize,
        /// What is wrong and what is allowed.
        problem: String,
    },
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the name is empty; it needs at least one byte"),
            Self::NoNames => f.write_str("there is no name in the list; it needs at least one"),
            Self::TooLong { len, max } => {
                write!(f, "the name has {len} bytes, and at most {max} are allowed")
            }
            Self::MissingField { path, known } if known.is_empty() => {
                write!(f, "the template asks for `{path}`, which the value does not have")
            }
            Self::MissingField { path, known } => write!(
                f,
                "the template asks for `{path}`, which the value does not have; it has {}",
                known.join(", ")
            ),
            Self::NotScalar { path, found } => write!(
                f,
                "the template asks for `{path}`, which is {found}; a name takes text, numbers and booleans"
            ),
            Self::Template { at, problem } => write!(f, "template, byte {at}: {problem}"),
        }
    }
}

impl StdError for NameError {}

/// What failed: a kind, the operation, the store and the key, and the cause beneath.
///
/// Cloneable, so that several waiters can get the same failure. No password, token or private key is ever part of it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use coordination::{Effect, ErrorKind};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let lock = coordinator.lock("vol-7")?;
/// let _held = lock.acquire(None).await?;
///
/// let error = lock.acquire(Some(Duration::ZERO)).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Timeout);
/// assert_eq!(error.effect(), Effect::None);
/// assert_eq!((error.operation(), error.key()), ("acquire", Some("vol-7")));
/// assert!(error.is_transient(), "it may be free later");
/// println!("{error}");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    effect: Effect,
    operation: &'static str,
    backend: Option<&'static str>,
    key: Option<String>,
    message: String,
    reason: Option<LossReason>,
    /// Whether the body, that is, the code that was to run under a grant, had begun.
    body_ran: bool,
    retry_after: Option<Duration>,
    source: Option<std::sync::Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(
        kind: ErrorKind,
        operation: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self(Box::new(Inner {
            kind,
            effect: Effect::None,
            operation,
            backend: None,
            key: None,
            message: message.into(),
            reason: None,
            body_ran: false,
            retry_after: None,
            source: None,
        }))
    }

    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, "configure", message)
    }

    pub(crate) fn lost(operation: &'static str, reason: LossReason) -> Self {
        let kind = match reason {
            LossReason::Closed | LossReason::RuntimeEnded => ErrorKind::Closed,
            _ => ErrorKind::Lost,
        };
        let mut error = Self::new(kind, operation, reason.to_string());
        error.0.reason = Some(reason);
        error
    }

    pub(crate) fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(std::sync::Arc::new(source));
        self
    }

    pub(crate) fn with_retry_after(mut self, wait: Duration) -> Self {
        self.0.retry_after = Some(wait);
        self
    }

    pub(crate) fn with_effect(mut self, effect: Effect) -> Self {
        self.0.effect = effect;
        self
    }

    /// Says how far the body had come, that is, the code that was to run under a grant.
    pub(crate) fn with_body(mut self, stood: Effect) -> Self {
        self.0.body_ran = stood != Effect::None;
        self.with_effect(stood)
    }

    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    /// Names the server in the message.
    #[cfg(feature = "_network")]
    pub(crate) fn at(mut self, server: &str) -> Self {
        self.0.message = format!("{server}: {}", self.0.message);
        self
    }

    /// Names another call as the one that failed.
    #[cfg(feature = "_network")]
    pub(crate) fn during(mut self, operation: &'static str) -> Self {
        self.0.operation = operation;
        self
    }

    pub(crate) fn on_backend(mut self, backend: &'static str) -> Self {
        self.0.backend.get_or_insert(backend);
        self
    }

    pub(crate) fn on_key(mut self, key: impl Into<String>) -> Self {
        self.0.key = Some(key.into());
        self
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the operation took effect; for what runs under a lock, whether it began, and whether it ended.
    pub fn effect(&self) -> Effect {
        self.0.effect
    }

    /// Whether the body, that is, the code that was to run under the lock, had begun when the lock was lost.
    /// [`effect`](Self::effect) says whether the body ended.
    ///
    /// It can be true for the errors of a function with `#[synchronized]`, of [`with`](crate::Lock::with) and `with_value`, of
    /// [`protect`](crate::Grant::protect), and of `release` on a guard that was lost. If it is true, repeat the
    /// call only if its body may run twice. An error that a body returned itself, from a call within it, speaks of that call only.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{Error, ErrorKind};
    ///
    /// /// For a body that may run twice, because it checks what it has done already.
    /// fn is_worth_a_retry(error: &Error) -> bool {
    ///     error.is_transient() || error.kind() == ErrorKind::Lost
    /// }
    /// ```
    pub fn body_ran(&self) -> bool {
        self.0.body_ran
    }

    /// The call that failed, as a verb: `acquire`, `release`, `connect`.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The scheme of the store's URL, if a store was involved.
    pub fn backend(&self) -> Option<&'static str> {
        self.0.backend
    }

    /// The name that the call was about, if there is one.
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }

    /// Why the session or the lock was lost, for [`ErrorKind::Lost`] and [`ErrorKind::Closed`].
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ErrorKind, LossReason};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let guard = coordinator.lock("vol-7")?.acquire(None).await?;
    /// coordinator.stop().await?;
    ///
    /// let error = guard.release().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Closed);
    /// assert_eq!(error.loss_reason(), Some(LossReason::Closed));
    /// # Ok(()) }
    /// ```
    pub fn loss_reason(&self) -> Option<LossReason> {
        self.0.reason
    }

    /// How long the wait would have been, if a call failed with [`ErrorKind::Timeout`] without waiting,
    /// because it knew that the wait would be too long.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let minute = Duration::from_secs(60);
    /// let api = coordinator.rate_limiter("api", 1, minute)?;
    /// api.acquire(1, None).await?;
    ///
    /// // It fails at once, as the next permit is further away than a second.
    /// let error = api.acquire(1, Some(Duration::from_secs(1))).await.unwrap_err();
    /// assert!(error.retry_after().is_some_and(|wait| wait <= minute));
    /// # Ok(()) }
    /// ```
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Whether the same call, repeated as it is, may succeed later: the kinds marked *retry*.
    ///
    /// False if the lock was lost after the body had begun (see [`body_ran`](Self::body_ran)), since then the body would run a
    /// second time. Whoever has a body that may run twice repeats the call if this is true, or the kind is [`ErrorKind::Lost`].
    ///
    /// For a call that writes, [`effect`](Self::effect) says whether the write may have happened.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let lock = coordinator.lock("vol-7")?;
    /// let held = lock.acquire(None).await?;
    /// let busy = lock.acquire(Some(Duration::ZERO)).await.unwrap_err();
    /// assert!(busy.is_transient(), "it may be free later");
    ///
    /// coordinator.stop().await?;
    /// let stopped = lock.acquire(None).await.unwrap_err();
    /// assert!(!stopped.is_transient(), "it stays stopped");
    /// # drop(held);
    /// # Ok(()) }
    /// ```
    pub fn is_transient(&self) -> bool {
        match self.0.kind {
            ErrorKind::Refused | ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Quota => {
                true
            }
            ErrorKind::Lost => !self.0.body_ran,
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.operation)?;
        if let Some(key) = &self.0.key {
            // Debug formatting escapes control characters: a name cannot forge a log line.
            write!(f, " {key:?}")?;
        }
        if let Some(backend) = self.0.backend {
            write!(f, " on {backend}")?;
        }
        write!(f, ": {}", self.0.message)?;
        f.write_str(match (self.0.effect, self.0.body_ran) {
            (Effect::Unknown, false) => " (it may have taken effect)",
            (Effect::Unknown, true) => " (what ran under it was stopped on its way)",
            (Effect::Applied, true) => " (what ran under it had ended)",
            (Effect::None | Effect::Applied, _) => "",
        })
    }
}

/// Prints the error in words, because this is what `main` prints of an error that it returns. `{:#?}` prints the fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            write!(f, "{self} [{:?}, effect {:?}]", self.0.kind, self.0.effect)?;
            return write_causes(self, f);
        }
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("effect", &self.0.effect)
            .field("message", &self.to_string())
            .field("source", &self.0.source)
            .finish()
    }
}

fn write_causes(error: &dyn StdError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Some(cause) = error.source() else { return Ok(()) };
    write!(f, "; caused by: {cause}")?;
    write_causes(cause, f)
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

impl From<NameError> for Error {
    fn from(error: NameError) -> Self {
        Self::new(ErrorKind::Name, "name", error.to_string()).with_source(error)
    }
}
