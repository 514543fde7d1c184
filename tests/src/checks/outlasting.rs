//! L5: a caller that waits without a timeout goes on waiting through an outage, for every kind of wait and every kind
//! of outage.

use std::future::Future;
use std::time::Duration;

use coordination::{
    Admission, ClaimOptions, Coordinator, DoubleBarrier, ErrorKind, Latch, Leadership, Limiter,
    LockGuard, MultiGuard, NewItem, Patience, Permit, Result, Semaphore, SharedValue, WorkQueue,
};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::tools::{ANSWERED, PATIENCE};
use crate::harness::{Mode, Named};

/// How long the store is away. For a request that is not part of a wait, the library would stop its retries earlier.
const AWAY: Duration = Duration::from_secs(7);

/// L5: during the outage, connections are reset and new ones refused.
pub async fn l5_waits_outlast_refusals(store: &TestStore) -> Result<()> {
    let far = store.connect_by_proxy("far").await?;
    let away = || {
        store.proxy().refuse();
        store.proxy().reset_all();
    };
    outlast(&far, &store.connect("near").await?, away, || store.proxy().heal()).await
}

/// L5: during the outage, neither requests nor answers are delivered.
pub async fn l5_waits_outlast_silence(store: &TestStore) -> Result<()> {
    let far = store.connect_by_proxy("far").await?;
    let away = || store.proxy().set_both(Mode::Blackhole);
    outlast(&far, &store.connect("near").await?, away, || store.proxy().heal()).await
}

/// L5: during the outage, the server's name is not found, and nothing listens at its former address.
pub async fn l5_waits_outlast_a_missing_name(store: &TestStore) -> Result<()> {
    let named = Named::new(1, &[store.proxy().address().port()]);
    let url = named.authority(&store.url_by_proxy());
    let far = store.settings().member_id("far").connect(&url).await?;
    let away = || {
        named.vanish();
        store.proxy().refuse();
        store.proxy().reset_all();
    };
    let back = || {
        named.come_back();
        store.proxy().heal();
    };
    outlast(&far, &store.connect("near").await?, away, back).await
}

/// Asserts that waits of the client `far` end once the store is back, whether they began before the outage or during
/// it.
///
/// # Errors
///
/// Errors of the store at `near`, a client for which there is no outage.
///
/// # Panics
///
/// If a wait fails or does not end.
pub async fn outlast(
    far: &Coordinator,
    near: &Coordinator,
    away: impl FnOnce(),
    back: impl FnOnce(),
) -> Result<()> {
    let [before, during] = [Set(near, "before"), Set(near, "during")];
    let kept = [before.keep().await?, during.keep().await?];
    let mut waits = Set(far, before.1).wait()?;
    waits.extend(watches(&Set(far, before.1)).await?);
    sleep(ANSWERED).await;
    away();
    sleep(ANSWERED).await;
    waits.extend(Set(far, during.1).wait()?);
    sleep(AWAY).await;
    for (what, waiting) in &waits {
        assert!(!waiting.is_finished(), "{what} ends while the store is away");
    }
    back();
    let mut coming = Vec::new();
    for (set, kept) in [before, during].iter().zip(kept) {
        set.let_go(kept).await?;
        coming.push(set.come()?);
    }
    for (what, waiting) in waits {
        let end = timeout(PATIENCE, waiting).await;
        let end = end.unwrap_or_else(|_| panic!("{what} goes on waiting"));
        end.expect("no panic").unwrap_or_else(|error| panic!("{what} fails: {error}"));
    }
    for coming in coming {
        coming.abort();
    }
    Ok(())
}

/// Each wait with its name.
type Waits = Vec<(String, JoinHandle<Result<()>>)>;

/// What one client holds so that the other client has to wait.
struct Kept {
    lock: LockGuard,
    shared: LockGuard,
    locks: MultiGuard,
    permit: Permit,
    working: Admission,
    chief: Leadership,
}

/// One object of each kind that can be waited for, with names of its own, as this client's handles. A rate limiter is
/// not included, because its calls do not wait for other clients: they know from the beginning when their permit comes,
/// and fail if the store does not answer.
struct Set<'a>(&'a Coordinator, &'static str);

impl Set<'_> {
    fn name(&self, what: &str) -> String {
        format!("{}-{what}", self.1)
    }

    fn semaphore(&self) -> Result<Semaphore> {
        self.0.semaphore(self.name("permits"), 1)
    }

    fn limiter(&self) -> Result<Limiter> {
        Ok(self.0.limiter(self.name("job"))?.standby(3).patience(Patience::Forever))
    }

    fn double(&self) -> Result<DoubleBarrier> {
        self.0.double_barrier(self.name("double"), 2)
    }

    fn latch(&self) -> Result<Latch> {
        self.0.latch(self.name("latch"), 1)
    }

    fn value(&self) -> Result<SharedValue<u32>> {
        self.0.value(self.name("value"))
    }

    fn queue(&self) -> Result<WorkQueue> {
        self.0.queue(self.name("jobs"))
    }

    async fn keep(&self) -> Result<Kept> {
        let Self(client, _) = self;
        client.barrier(self.name("barrier"))?.close().await?;
        self.value()?.set(&0).await?;
        Ok(Kept {
            lock: client.lock(self.name("lock"))?.acquire(Some(PATIENCE)).await?,
            shared: client.lock(self.name("shared"))?.acquire(Some(PATIENCE)).await?,
            locks: client.locks(self.both())?.acquire(Some(PATIENCE)).await?,
            permit: self.semaphore()?.acquire(Some(PATIENCE)).await?,
            working: self.limiter()?.enter().await?,
            chief: client.election(self.name("chief"))?.campaign("near", Some(PATIENCE)).await?,
        })
    }

    fn both(&self) -> [String; 2] {
        ["one", "two"].map(|name| self.name(name))
    }

    async fn let_go(&self, kept: Kept) -> Result<()> {
        kept.lock.release().await?;
        kept.shared.release().await?;
        kept.locks.release().await?;
        kept.permit.release().await?;
        drop(kept.working);
        kept.chief.resign().await?;
        self.0.barrier(self.name("barrier"))?.open().await?;
        self.latch()?.count_down().await?;
        self.value()?.set(&1).await?;
        self.queue()?.post(&[NewItem::new("job")]).await?;
        Ok(())
    }

    /// Enters the double barrier again and again, as the partner of the client that waits. A client that was cut off
    /// may still be counted until its old session has ended. So the first round may complete with this old session, and
    /// the waiting client needs a later round.
    fn come(&self) -> Result<JoinHandle<Result<()>>> {
        let double = self.double()?;
        Ok(tokio::spawn(async move {
            loop {
                match double.enter(Some(Duration::from_secs(1))).await {
                    Ok(inside) => inside.leave(Some(PATIENCE)).await?,
                    Err(error) if error.kind() == ErrorKind::Timeout => {}
                    Err(error) => return Err(error),
                }
            }
        }))
    }

    /// Starts a wait for each object, without a timeout.
    fn wait(&self) -> Result<Waits> {
        let Self(client, _) = self;
        let (lock, shared) = (client.lock(self.name("lock"))?, client.lock(self.name("shared"))?);
        let locks = client.locks(self.both())?;
        let (semaphore, new) = (self.semaphore()?, client.semaphore(self.name("new"), 3)?);
        let (limiter, election) = (self.limiter()?, client.election(self.name("chief"))?);
        let (barrier, double, latch) =
            (client.barrier(self.name("barrier"))?, self.double()?, self.latch()?);
        let queue = self.queue()?;
        let mut waits = Vec::new();
        let mut add = |what, waiting| waits.push((self.name(what), waiting));
        add("lock", begin(async move { lock.acquire(None).await?.release().await }));
        add("shared", begin(async move { shared.acquire_shared(None).await?.release().await }));
        add("locks", begin(async move { locks.acquire(None).await?.release().await }));
        add("permit", begin(async move { semaphore.acquire(None).await?.release().await }));
        if self.1 == "during" {
            add("first permit", begin(async move { new.acquire(None).await?.release().await }));
        }
        add("slot", begin(async move { limiter.enter().await.map(drop) }));
        add("chief", begin(async move { election.campaign("far", None).await?.resign().await }));
        add("barrier", begin(async move { barrier.wait(None).await }));
        add("double", begin(async move { double.enter(None).await?.leave(None).await }));
        add("latch", begin(async move { latch.wait(None).await }));
        add(
            "job",
            begin(async move { queue.claim_wait(ClaimOptions::default(), None).await.map(drop) }),
        );
        Ok(waits)
    }
}

/// Starts to follow each object that can be watched, until it has changed.
async fn watches(set: &Set<'_>) -> Result<Waits> {
    let (mut values, mut terms) =
        (set.value()?.watch(), set.0.election(set.name("chief"))?.observe());
    values.next().await?;
    let chief = terms.next().await?.into_term().map(|term| term.term);
    let value = async move {
        while values.next().await?.into_value().is_none_or(|value| value.value != 1) {}
        Ok(())
    };
    let term = async move {
        while terms.next().await?.into_term().map(|term| term.term) == chief {}
        Ok(())
    };
    Ok(vec![(set.name("value"), begin(value)), (set.name("term"), begin(term))])
}

fn begin(waits: impl Future<Output = Result<()>> + Send + 'static) -> JoinHandle<Result<()>> {
    tokio::spawn(waits)
}
