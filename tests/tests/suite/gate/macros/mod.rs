//! `#[synchronized]` at run time, on the memory store.
//!
//! Code that the attribute refuses to compile is in `coordination-macros/tests/ui/`.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use coordination::{Coordinator, Error, ErrorKind, Lock, LockGuard, LossWatch, synchronized};
use coordination_tests::bounds::PATIENCE;
use tokio::sync::Notify;
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::{sleep, timeout};

mod bodies;
mod by_hand;
mod drops;
mod loss;
mod manners;
mod several;
mod signatures;
mod sizes;
mod templates;
mod threads;

const HEARTBEAT: Duration = Duration::from_millis(50);

type Result<T = (), E = Error> = std::result::Result<T, E>;

/// Connects to a store of this name; each test has its own store, and each call opens another session.
async fn connect(store: &str) -> Result<Coordinator> {
    Coordinator::builder().heartbeat(HEARTBEAT).connect(&format!("memory://macros-{store}")).await
}

async fn is_free(lock: &Lock) -> Result<bool> {
    match lock.try_acquire().await? {
        Some(guard) => guard.release().await.map(|()| true),
        None => Ok(false),
    }
}

/// Waits until the lock is free, because releases may happen in the background.
async fn becomes_free(lock: &Lock) -> Result {
    lock.acquire(Some(PATIENCE)).await?.release().await
}

/// Counts the bodies that run at the same time.
#[derive(Default)]
struct Room {
    inside: AtomicUsize,
    most: AtomicUsize,
    visits: AtomicUsize,
}

impl Room {
    async fn visit(&self) {
        self.enter();
        for _ in 0..5 {
            yield_now().await;
        }
        sleep(Duration::from_millis(2)).await;
        self.leave();
    }

    fn enter(&self) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.visits.fetch_add(1, Ordering::SeqCst);
    }
}

/// The error type of a user.
#[derive(Debug)]
enum Failure {
    Lock(Error),
    Parse,
    Own,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

impl From<std::num::ParseIntError> for Failure {
    fn from(_: std::num::ParseIntError) -> Self {
        Self::Parse
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_with_one_name_exclude_each_other() -> Result {
    #[synchronized("room-<number>", coordinator = coordinator)]
    async fn visit(coordinator: Coordinator, number: u32, room: Arc<Room>) -> Result {
        room.visit().await;
        Ok(())
    }

    let room = Arc::new(Room::default());
    let (one, other) = (connect("exclusion").await?, connect("exclusion").await?);
    let visits: Vec<_> = (0..12)
        .map(|n| if n % 2 == 0 { one.clone() } else { other.clone() })
        .map(|coordinator| tokio::spawn(visit(coordinator, 1, room.clone())))
        .collect();
    for visit in visits {
        visit.await.expect("the body does not panic")?;
    }
    assert_eq!(room.most.load(Ordering::SeqCst), 1);
    assert_eq!(room.visits.load(Ordering::SeqCst), 12);
    Ok(())
}

#[tokio::test]
async fn calls_with_different_names_run_together() -> Result {
    #[synchronized("meet-{side}", coordinator = coordinator)]
    async fn meet(coordinator: &Coordinator, side: &str, all: &tokio::sync::Barrier) -> Result {
        all.wait().await;
        Ok(())
    }

    let coordinator = connect("together").await?;
    let all = tokio::sync::Barrier::new(2);
    let both = async {
        tokio::try_join!(meet(&coordinator, "left", &all), meet(&coordinator, "right", &all))
    };
    timeout(PATIENCE, both).await.expect("neither waits for the other")?;
    Ok(())
}

#[tokio::test]
async fn the_global_coordinator_is_the_default() -> Result {
    #[synchronized("global", guard = guard)]
    async fn name() -> Result<String> {
        Ok(guard.name().to_owned())
    }

    #[synchronized("global", guard = guard)]
    fn name_blocking() -> Result<String> {
        Ok(guard.name().to_owned())
    }

    let missing = name().await.expect_err("nothing is installed");
    assert_eq!(missing.kind(), ErrorKind::Global);
    connect("global").await?.install()?;
    assert_eq!(name().await?, "global");
    let name = spawn_blocking(name_blocking).await.expect("the body does not panic")?;
    assert_eq!(name, "global");
    Ok(())
}

mod timeouts {
    use super::*;

    #[synchronized("door", timeout = "80ms", coordinator = c)]
    async fn literal(c: &Coordinator) -> Result {
        Ok(())
    }

    #[synchronized("door", timeout = limit * 2, coordinator = c)]
    async fn expression(c: &Coordinator, limit: Duration) -> Result {
        Ok(())
    }

    #[synchronized("door", timeout = "80ms", coordinator = c)]
    fn thread(c: Coordinator) -> Result {
        Ok(())
    }

    #[tokio::test]
    async fn the_caller_gets_a_timeout() -> Result {
        let c = connect("timeout").await?;
        let holder = c.lock("door")?.acquire(None).await?;
        let start = tokio::time::Instant::now();
        assert_eq!(literal(&c).await.expect_err("taken").kind(), ErrorKind::Timeout);
        assert!(start.elapsed() >= Duration::from_millis(80));
        let late = expression(&c, Duration::from_millis(20)).await;
        assert_eq!(late.expect_err("taken").kind(), ErrorKind::Timeout);
        let late = spawn_blocking({
            let c = c.clone();
            move || thread(c)
        })
        .await;
        let late = late.expect("the body does not panic");
        assert_eq!(late.expect_err("taken").kind(), ErrorKind::Timeout);
        holder.release().await?;
        literal(&c).await
    }

    #[tokio::test]
    async fn zero_tries_once() -> Result {
        let c = connect("try").await?;
        let holder = c.lock("door")?.acquire(None).await?;
        let tried = timeout(PATIENCE, expression(&c, Duration::ZERO)).await;
        let tried = tried.expect("it does not wait");
        assert_eq!(tried.expect_err("taken").kind(), ErrorKind::Timeout);
        holder.release().await?;
        expression(&c, Duration::ZERO).await
    }
}

mod guards {
    use super::*;

    #[tokio::test]
    async fn the_guard_has_a_rising_token() -> Result {
        #[synchronized("token", guard = held, coordinator = c)]
        async fn token(c: &Coordinator) -> Result<u64> {
            let guard: &LockGuard = held;
            assert!(guard.is_held());
            Ok(guard.token().into())
        }

        let c = connect("token").await?;
        let (first, second) = (token(&c).await?, token(&c).await?);
        assert!(first < second, "{first} {second}");
        Ok(())
    }

    #[tokio::test]
    async fn names_of_the_generated_code_do_not_clash() -> Result {
        #[synchronized("<held>-<locks>-<outcome>-<ran>", coordinator = coordinator, guard = guard)]
        async fn clash(
            coordinator: &Coordinator,
            held: u8,
            locks: u8,
            outcome: u8,
            ran: u8,
            error: u8,
            never: u8,
        ) -> Result<(String, u8)> {
            Ok((guard.name().to_owned(), held + locks + outcome + ran + error + never))
        }

        let c = connect("clash").await?;
        assert_eq!(clash(&c, 1, 2, 3, 4, 5, 6).await?, ("1-2-3-4".to_owned(), 21));
        Ok(())
    }

    #[tokio::test]
    async fn the_coordinator_is_any_expression() -> Result {
        struct Node {
            shared: Arc<Coordinator>,
        }

        impl Node {
            async fn coordinator(&self) -> Result<Arc<Coordinator>> {
                yield_now().await;
                Ok(self.shared.clone())
            }

            #[synchronized("any", coordinator = self.shared)]
            async fn field(&self) -> Result {
                Ok(())
            }

            #[synchronized("any", "other", coordinator = self.coordinator().await?)]
            async fn call(&self) -> Result {
                Ok(())
            }
        }

        let node = Node { shared: Arc::new(connect("expression").await?) };
        node.field().await?;
        node.call().await
    }
}
