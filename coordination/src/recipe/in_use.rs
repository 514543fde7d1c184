//! What is in use: names that somebody has an entry under, for those who do not know them.

use std::fmt;

use crate::coordinator::Coordinator;
use crate::error::Result;

/// A recipe whose contenders can be listed, for [`Coordinator::in_use`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Recipe {
    /// [`Coordinator::lock`]: held, shared or waited for.
    Lock,
    /// [`Coordinator::semaphore`]: somebody has permits or waits for some.
    Semaphore,
    /// [`Coordinator::limiter`]: somebody works or stands by.
    Limiter,
    /// [`Coordinator::election`]: somebody leads or stands.
    Election,
    /// [`Coordinator::group`]: it has a member. [`Coordinator::groups`] lists the empty ones too.
    Group,
}

impl Recipe {
    /// The kind of its queues.
    fn kind(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Semaphore => "semaphore",
            Self::Limiter => "limiter",
            Self::Election => "election",
            Self::Group => "group",
        }
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.kind())
    }
}

impl Coordinator {
    /// The names under which somebody holds something of this recipe or waits for it, without the prefix, in
    /// order.
    ///
    /// For operators who do not know the names: `Lock::holders` and its like tell who it is. Names that do
    /// not begin with the coordinator's prefix are left out. What is taken or given back meanwhile may be listed
    /// or not, so that an answer is good for looking at and not for deciding.
    ///
    /// Who has crashed counts until the store ends its session. A name that is stored as a hash is left out where
    /// only contenders of other libraries have it: they do not say it.
    ///
    /// # Errors
    ///
    /// Those of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Only reads.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{Coordinator, Recipe};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// let coordinator = Coordinator::connect("memory://").await?;
    /// let guard = coordinator.lock("vol-7")?.acquire(None).await?;
    ///
    /// for name in coordinator.in_use(Recipe::Lock).await? {
    ///     let contenders = coordinator.lock(&name)?.holders().await?;
    ///     println!("{} {name}: {} there", Recipe::Lock, contenders.len());
    /// }
    /// assert_eq!(coordinator.in_use(Recipe::Lock).await?, ["vol-7"]);
    /// assert!(coordinator.in_use(Recipe::Election).await?.is_empty());
    ///
    /// guard.release().await?;
    /// assert!(coordinator.in_use(Recipe::Lock).await?.is_empty());
    /// # Ok(()) }
    /// ```
    pub async fn in_use(&self, recipe: Recipe) -> Result<Vec<String>> {
        self.queues("in_use", recipe.kind()).await
    }
}
