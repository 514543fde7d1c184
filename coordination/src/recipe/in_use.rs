//! The names in use: those under which there is an entry.

use crate::coordinator::Coordinator;
use crate::error::Result;
use crate::serialize::{shown_as_word, words};

/// A recipe whose contenders can be listed, for [`Coordinator::in_use`].
///
/// # Examples
///
/// ```
/// use coordination::Recipe;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let _permit = coordinator.semaphore("uploads", 3)?.acquire(None).await?;
/// for recipe in [Recipe::Lock, Recipe::Semaphore, Recipe::Election] {
///     for name in coordinator.in_use(recipe).await? {
///         println!("{recipe} {name}");
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Recipe {
    /// [`Coordinator::lock`]: held, shared or waited for.
    Lock,
    /// [`Coordinator::semaphore`]: somebody holds permits or waits for them.
    Semaphore,
    /// [`Coordinator::limiter`]: somebody works or is on standby.
    Limiter,
    /// [`Coordinator::election`]: somebody leads or waits to lead.
    Election,
    /// [`Coordinator::group`]: the group has a member. [`Coordinator::groups`] also lists empty groups.
    Group,
}

words! { Recipe:
    Lock = "lock",
    Semaphore = "semaphore",
    Limiter = "limiter",
    Election = "election",
    Group = "group",
}

shown_as_word! { Recipe }

impl Recipe {
    /// The kind of the recipe's queues.
    pub(crate) fn kind(self) -> &'static str {
        self.as_str()
    }
}

impl Coordinator {
    /// The names under which somebody holds something of this recipe or waits for it, without the
    /// coordinator's prefix, in order.
    ///
    /// For operators who do not know the names; [`Lock::holders`](crate::Lock::holders) and the like say who
    /// holds a name. Names that do not begin with the coordinator's prefix are left out. A name that is acquired or
    /// released during the call may be listed or not, so the result is for people to look at, not for
    /// programs to decide by.
    ///
    /// A crashed process counts until the store ends its session. If a name is stored as a hash and only contenders
    /// of other libraries have it, the name is left out, because these libraries do not store the full name.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
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
        self.names_in_use("in_use", recipe.kind()).await
    }
}
