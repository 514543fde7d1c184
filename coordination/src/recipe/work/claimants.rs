//! Who has which claims, and taking one away: for operators, who know no claim's name.

use std::time::Duration;

use serde::Serialize;

use super::WorkQueue;
use super::claim::release;
use super::draft::{Draft, Outcome, Step, corrupt};
use super::ids::ClaimId;
use super::layout::Micros;
use super::types::duration;
use crate::error::Result;
use crate::serialize;
use crate::token::FencingToken;

/// Who has a live claim of a queue, as listed by [`WorkQueue::claims`]. It does not say the claim's id, by which anybody could
/// acknowledge its items.
///
/// # Examples
///
/// ```
/// use coordination::{ClaimOptions, NewItem};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let jobs = coordinator.queue("resize-jobs")?;
/// jobs.post(&[NewItem::new("vol-7")]).await?;
/// let claim = jobs.claim(ClaimOptions::default()).await?.expect("one is ready");
/// for claimant in jobs.claims().await? {
///     println!("{} has {} items with token {}", claimant.member, claimant.items, claimant.token);
/// }
/// # drop(claim);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Claimant {
    /// The member id of the process with whose session the claim ends; empty: the claim ends by its ttl only, as it was made by
    /// [`WorkQueue::claim_as`] or [detached](crate::WorkClaim::detach).
    pub member: String,
    /// The claim's token, by which it can be [taken away](WorkQueue::break_claim).
    pub token: FencingToken,
    /// How many items the claim was made of. Some of them may be done by now.
    pub items: usize,
    /// How long ago the claim was made or last renewed.
    #[serde(serialize_with = "serialize::seconds::serialize")]
    pub age: Duration,
    /// How long the claim still lasts unless it is renewed.
    #[serde(serialize_with = "serialize::seconds::serialize")]
    pub expires_in: Duration,
}

/// A live claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Live {
    pub(super) id: ClaimId,
    pub(super) fence: u64,
    /// The entry with which the claim ends.
    pub(super) holder: Option<u64>,
    pub(super) items: usize,
    pub(super) age: Micros,
    pub(super) expires_in: Micros,
}

/// The claims that are live, in the order in which they were made; without those of processes that are gone.
pub(super) fn live_claims(draft: &mut Draft<'_>) -> Step<Vec<Live>> {
    let now = draft.now;
    let buckets = draft.head.live.all_buckets();
    draft.want(buckets.iter().map(|bucket| draft.bucket_name_of(*bucket)))?;
    let mut all = Vec::new();
    for bucket in buckets {
        let claims = draft.bucket(bucket)?.iter().filter(|(_, claim)| claim.is_live(now));
        all.extend(claims.map(|(id, claim)| Live {
            id: *id,
            fence: claim.fence,
            holder: claim.holder,
            items: claim.ranks.len(),
            age: now.saturating_sub(claim.touched),
            expires_in: claim.expires.saturating_sub(now),
        }));
    }
    all.retain(|claim| claim.holder.is_none_or(|holder| draft.is_there(holder)));
    all.sort_unstable_by_key(|claim| claim.fence);
    Ok(all)
}

/// Ends the claim of this name if it is live and has this token; false: it is over.
pub(super) fn take_away(draft: &mut Draft<'_>, id: ClaimId, fence: u64) -> Step<Outcome<bool>> {
    let now = draft.now;
    let claim = draft.claims(id)?.get(&id);
    if !claim.is_some_and(|claim| claim.fence == fence && claim.is_live(now)) {
        return Ok(Outcome::Done(false));
    }
    Ok(release(draft, id)?.map(|_| true))
}

impl WorkQueue {
    /// Who has live claims of the queue, in the order in which the claims were made: for operators. The claims' ids stay secret.
    ///
    /// It reads all that the queue has of claims.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// As for [`list`](Self::list).
    pub async fn claims(&self) -> Result<Vec<Claimant>> {
        let all = self.claimants("list").await?;
        Ok(all.into_iter().map(|(_, claimant)| claimant).collect())
    }

    /// Takes away exactly the claim with this token, and returns who had it; `None` if no live claim has this token any more.
    ///
    /// For operators, when a worker hangs. The claim's items can be claimed again at once. The worker learns of the loss when it next
    /// renews the claim, which [`keep_alive`](crate::WorkClaim::keep_alive) does after a third of the ttl, or when it acknowledges
    /// an item, which is refused. Until then it may go on with its work beside the next one who claims the items, and only fencing
    /// stops its writes.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer;
    /// [`effect`](crate::Error::effect) says whether it may have been taken away.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the claim may or may not be taken away.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ClaimOptions, ErrorKind, NewItem};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let jobs = coordinator.queue("resize-jobs")?;
    /// jobs.post(&[NewItem::new("vol-7")]).await?;
    /// let hanging = jobs.claim(ClaimOptions::default()).await?.expect("one is ready");
    ///
    /// let claimants = jobs.claims().await?;
    /// assert_eq!(claimants[0].token, hanging.token());
    /// assert!(jobs.break_claim(claimants[0].token).await?.is_some());
    ///
    /// let next = jobs.claim(ClaimOptions::default()).await?.expect("it is ready again");
    /// let refused = hanging.ack(hanging.items()[0].id()).await;
    /// assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoSuchClaim);
    /// assert!(!hanging.is_held());
    /// assert_eq!(next.ack_all().await?, 1);
    /// # Ok(()) }
    /// ```
    pub async fn break_claim(&self, token: FencingToken) -> Result<Option<Claimant>> {
        let mut all = self.claimants("break").await?.into_iter();
        let Some((id, claimant)) = all.find(|(_, claimant)| claimant.token == token) else {
            return Ok(None);
        };
        let (queue, fence) = (&self.engine.queue, token.value());
        queue.session.about(&queue.key).breaks(&claimant.member, fence);
        let is_done = self.run("break", move |draft| take_away(draft, id, fence)).await?;
        Ok(is_done.then_some(claimant))
    }

    async fn claimants(&self, operation: &'static str) -> Result<Vec<(ClaimId, Claimant)>> {
        let live = self.look(operation, live_claims).await?;
        let listing = self.engine.queue.read(operation).await?;
        let mut all = Vec::new();
        for claim in live {
            let member = match claim.holder.map(|holder| listing.entry(holder)) {
                None => String::new(),
                Some(Some(entry)) => entry.member.to_string(),
                // The process has ended meanwhile, and the claim with it.
                Some(None) => continue,
            };
            let token = FencingToken::new(claim.fence).ok_or_else(corrupt);
            let (age, expires_in) = (duration(claim.age), duration(claim.expires_in));
            let token = self.engine.queue.named(token)?;
            all.push((claim.id, Claimant { member, token, items: claim.items, age, expires_in }));
        }
        Ok(all)
    }
}
