//! Who holds what under all names of a recipe, and who waits for it: several names are read at a time.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::election::{self, Candidate};
use super::engine::queue::{Queue, look};
use super::engine::slots::Occupant;
use super::group::Members;
use super::in_use::Recipe;
use super::limiter;
use super::lock::{self, Contender};
use super::semaphore;
use crate::backend::Listing;
use crate::coordinator::Coordinator;
use crate::error::Result;
use crate::session::Sight;

/// So many names are read at a time, and so many are in memory.
const AT_ONCE: usize = 32;

impl Coordinator {
    /// Who holds something of this recipe and who waits for it, under all names in use.
    ///
    /// For operators, and for programs that show it: what [`in_use`](Self::in_use) and, for each name, [`Lock::holders`](crate::Lock::holders)
    /// or the like tell, with the numbers that a semaphore or a limiter has stored. This call lists the names, without the
    /// coordinator's prefix and in order. Then [`Overview::next`] reads one queue for each, 32 at a time.
    ///
    /// # Errors
    ///
    /// Those of [`in_use`](Self::in_use).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{Recipe, Usage};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let _permit = coordinator.semaphore("uploads", 3)?.acquire(None).await?;
    /// let mut overview = coordinator.overview(Recipe::Semaphore).await?;
    /// while let Some(used) = overview.next().await {
    ///     let Usage::Semaphore { occupants, permits } = used.usage? else { continue };
    ///     println!("{}: {} occupants, {permits:?} permits", used.name, occupants.len());
    ///     assert_eq!((&*used.name, occupants.len(), permits), ("uploads", 1, Some(3)));
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn overview(&self, recipe: Recipe) -> Result<Overview> {
        let names = self.names_in_use("in_use", recipe.kind()).await?;
        let (coordinator, read) = (self.clone(), VecDeque::new());
        Ok(Overview { coordinator, recipe, names: names.into(), read })
    }
}

/// Who holds what under all names of a recipe, one name after the other. Made by [`Coordinator::overview`].
///
/// However many names there are, the queues of 32 are in memory at most.
///
/// # Examples
///
/// ```
/// use coordination::Recipe;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let _guard = coordinator.lock("vol-7")?.acquire(None).await?;
/// let overview = coordinator.overview(Recipe::Lock).await?;
/// // Of the others nothing is read.
/// let mut volumes = overview.of_names(|name| name.starts_with("vol-"));
/// let mut names = Vec::new();
/// while let Some(used) = volumes.next().await {
///     names.push(used.name);
/// }
/// assert_eq!(names, ["vol-7"]);
/// # Ok(()) }
/// ```
pub struct Overview {
    coordinator: Coordinator,
    recipe: Recipe,
    /// Those that are not read yet.
    names: VecDeque<String>,
    /// Those that were read.
    read: VecDeque<InUse>,
}

/// A name and what is held under it; an item of an [`Overview`].
///
/// # Examples
///
/// ```
/// use coordination::Recipe;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let _guard = coordinator.lock("vol-7")?.acquire(None).await?;
/// let mut overview = coordinator.overview(Recipe::Lock).await?;
/// while let Some(used) = overview.next().await {
///     match used.usage {
///         Ok(usage) => println!("{}: {usage:?}", used.name),
///         Err(error) => println!("{} cannot be read: {error}", used.name),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct InUse {
    /// The name, without the coordinator's prefix.
    pub name: String,
    /// Who holds it and who waits. An error concerns this name, and perhaps no other one: what is stored under it may be
    /// [damaged](crate::ErrorKind::Corrupt).
    pub usage: Result<Usage>,
}

/// Who holds something and who waits for it, as of one moment; part of an [`Overview`].
///
/// # Examples
///
/// ```
/// use coordination::{Recipe, Usage};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let _guard = coordinator.lock("vol-7")?.acquire(None).await?;
/// let mut overview = coordinator.overview(Recipe::Lock).await?;
/// let used = overview.next().await.expect("a lock is held");
/// let Usage::Lock(contenders) = used.usage? else { unreachable!("only locks were asked for") };
/// assert!(contenders[0].holding);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Usage {
    /// As [`Lock::holders`](crate::Lock::holders) tells.
    Lock(Vec<Contender>),
    /// As [`Semaphore::holders`](crate::Semaphore::holders) and [`stored_permits`](crate::Semaphore::stored_permits) tell.
    Semaphore {
        /// Who has permits, and who waits for some.
        occupants: Vec<Occupant>,
        /// How many permits there are for all.
        permits: Option<u32>,
    },
    /// As [`Limiter::inspect`](crate::Limiter::inspect) and [`stored_slots`](crate::Limiter::stored_slots) tell.
    Limiter {
        /// Who works, and who stands by.
        occupants: Vec<Occupant>,
        /// How many slots there are for all.
        slots: Option<u32>,
    },
    /// As [`Election::candidates`](crate::Election::candidates) tells.
    Election(Vec<Candidate>),
    /// As [`Group::members`](crate::Group::members) tells.
    Group(Members),
}

impl Overview {
    /// The same of only those names for which `is_wanted` is true: of the others nothing is read.
    pub fn of_names(mut self, mut is_wanted: impl FnMut(&str) -> bool) -> Self {
        self.names.retain(|name| is_wanted(name));
        self.read.retain(|used| is_wanted(&used.name));
        self
    }

    /// The next name that somebody has or waits for; `None`: there are no more. A name that has become free meanwhile is left out.
    ///
    /// # Cancel safety
    ///
    /// No name is left out when the future is dropped.
    pub async fn next(&mut self) -> Option<InUse> {
        while self.read.is_empty() && !self.names.is_empty() {
            let count = self.names.len().min(AT_ONCE);
            self.read = self.read_ahead(count).await;
            self.names.drain(..count);
        }
        self.read.pop_front()
    }

    /// Reads this many queues at a time.
    async fn read_ahead(&self, count: usize) -> VecDeque<InUse> {
        let kind = self.recipe.kind();
        let names = self.names.iter().take(count).cloned();
        let reads: Vec<_> = names
            .map(|name| {
                let begun = self.coordinator.queue_of(kind, &name).map(begin_read);
                (name, begun)
            })
            .collect();
        let mut read = VecDeque::new();
        for (name, begun) in reads {
            let found = match begun {
                Ok((queue, reading)) => queue.named(reading.await).and_then(|listing| {
                    let is_used = !listing.entries.is_empty();
                    is_used.then(|| usage_of(self.recipe, &queue, listing)).transpose()
                }),
                Err(error) => Err(error),
            };
            if let Some(usage) = found.transpose() {
                read.push_back(InUse { name, usage });
            }
        }
        read
    }
}

/// Begins to read this queue at once; the future is for the outcome. The task that reads keeps the session only, and so ends whatever
/// becomes of the coordinator.
fn begin_read(queue: Queue) -> (Queue, impl Future<Output = Result<Listing>>) {
    let (session, key) = (Arc::clone(&queue.session), queue.key.clone());
    let reader = Arc::clone(&session);
    let read = async move { look(&reader, "list", &key, Sight::Moment).await };
    let begun = session.check_open("list").map(|()| session.spawn(read));
    let outcome = async move {
        let read = begun?.await;
        read.unwrap_or_else(|ended| Err(session.unanswered("list", ended)))
    };
    (queue, outcome)
}

fn usage_of(recipe: Recipe, queue: &Queue, listing: Listing) -> Result<Usage> {
    Ok(match recipe {
        Recipe::Lock => {
            let contenders = lock::listed(listing.entries).into_iter();
            Usage::Lock(contenders.map(|(_, contender)| contender).collect())
        }
        Recipe::Semaphore => {
            let (occupants, permits) = semaphore::listed(queue, &listing)?;
            Usage::Semaphore { occupants, permits }
        }
        Recipe::Limiter => {
            let (occupants, slots) = limiter::listed(queue, &listing)?;
            Usage::Limiter { occupants, slots }
        }
        Recipe::Election => Usage::Election(election::listed(&listing)),
        Recipe::Group => Usage::Group(Members::of(&listing)),
    })
}

impl fmt::Debug for Overview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overview")
            .field("recipe", &self.recipe)
            .field("left", &(self.names.len() + self.read.len()))
            .finish()
    }
}
