//! `with`: the same as the attribute, for a block. Most of this is about what compiles.

use std::num::ParseIntError;

use super::*;

/// How many bytes a `with` may add to the future at each level of calls; the attribute may add as many.
const MOST: usize = 512;

#[tokio::test]
async fn a_question_mark_converts_other_errors() -> Result<(), Failure> {
    async fn read(lock: &Lock, text: &str) -> Result<i32, Failure> {
        lock.with(Some(PATIENCE), async |_| {
            let number = text.parse::<i32>()?;
            yield_now().await;
            if number < 0 { Err(Failure::Own) } else { Ok(number) }
        })
        .await
    }

    let lock = connect("by-hand-errors").await?.lock("a")?;
    assert_eq!(read(&lock, "7").await?, 7);
    assert!(is_free(&lock).await?, "released before the caller goes on");
    assert!(matches!(read(&lock, "x").await, Err(Failure::Parse)));
    assert!(is_free(&lock).await?);
    assert!(matches!(read(&lock, "-1").await, Err(Failure::Own)));
    assert!(is_free(&lock).await?);
    let holder = lock.acquire(None).await?;
    let late = lock.with(Some(Duration::ZERO), async |_| Err::<(), _>(Failure::Own)).await;
    assert!(matches!(late, Err(Failure::Lock(error)) if error.kind() == ErrorKind::Timeout));
    // If the body returns a `Result` whose error type cannot hold our errors, `with_value` returns this `Result` as a
    // plain value.
    let parsed: Result<i32, ParseIntError> = holder.with_value(async |_| "x".parse()).await?;
    assert!(parsed.is_err() && is_free(&lock).await?);
    Ok(())
}

#[tokio::test]
async fn the_body_borrows_from_its_surroundings() -> Result {
    async fn named(guard: &LockGuard) -> Result<String> {
        yield_now().await;
        Ok(guard.name().to_owned())
    }

    let c = connect("by-hand-borrows").await?;
    let (mut seen, name) = (Vec::new(), String::from("vol"));
    for number in 0..3 {
        // The `Lock` is a temporary value, and the future does not need it.
        let added = c.lock(format!("{name}-{number}"))?.with(None, async |guard| {
            yield_now().await;
            assert!(guard.name().starts_with(&name));
            seen.push(guard.name().to_owned());
            Ok::<_, Error>(seen.len())
        });
        assert_eq!(added.await?, number + 1);
    }
    assert_eq!(seen, ["vol-0", "vol-1", "vol-2"]);
    // A function is a body, too.
    assert_eq!(c.lock("by-name")?.with(None, named).await?, "by-name");
    let nested = c.lock("outer")?.with(None, async |outer| {
        c.locks(["b", "a"])?
            .with(None, async |inner| Ok::<_, Error>(outer.name().len() + inner.len()))
            .await
    });
    assert_eq!(nested.await?, 7);
    Ok(())
}

#[tokio::test]
async fn the_future_is_send_where_the_body_is() -> Result {
    #[async_trait::async_trait]
    trait Works {
        async fn work(&self, name: &str) -> Result<usize, Failure>;
    }

    struct Worker {
        coordinator: Coordinator,
        text: String,
    }

    #[async_trait::async_trait]
    impl Works for Worker {
        async fn work(&self, name: &str) -> Result<usize, Failure> {
            let mut read = 0;
            let lock = self.coordinator.lock(name)?;
            lock.with(None, async |guard| {
                yield_now().await;
                read += self.text.len() + guard.name().len();
                yield_now().await;
                Ok::<_, Failure>(())
            })
            .await?;
            self.coordinator
                .semaphore(name, 2)?
                .with_value(None, async |_| yield_now().await)
                .await?;
            Ok(read)
        }
    }

    let coordinator = connect("by-hand-send").await?;
    let worker = Worker { coordinator: coordinator.clone(), text: "text".to_owned() };
    let worked = tokio::spawn(async move { worker.work("vol").await }).await.expect("no panic");
    assert!(matches!(worked, Ok(7)));

    let text = String::from("owned");
    let lock = coordinator.lock("vol")?;
    let spawned = tokio::spawn(lock.with(None, async move |guard| {
        yield_now().await;
        Ok::<_, Error>(text.len() + guard.name().len())
    }));
    assert_eq!(spawned.await.expect("no panic")?, 8);
    let guard = lock.acquire(None).await?;
    let spawned = tokio::spawn(guard.with_value(async |guard| {
        yield_now().await;
        guard.is_held()
    }));
    assert!(spawned.await.expect("no panic")?);

    // This body is not `Send`. It runs on the thread that awaits it.
    let number = std::rc::Rc::new(1);
    let local = lock.with(None, async |_| {
        let number = number.clone();
        yield_now().await;
        Ok::<_, Error>(*number)
    });
    assert_eq!(local.await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_level_costs_at_most_512_bytes() -> Result {
    async fn plain(depth: usize) -> Result<u8> {
        let bytes = std::hint::black_box([depth as u8; 1024]);
        yield_now().await;
        Ok(bytes[3])
    }

    macro_rules! levels {
        ($plain:ident $locked:ident = $lower:ident $lower_locked:ident) => {
            async fn $plain(depth: usize) -> Result<u8> {
                $lower(depth).await
            }
            async fn $locked(lock: &Lock, depth: usize) -> Result<u8> {
                lock.with(None, async |_| $lower_locked(lock, depth).await).await
            }
        };
    }

    async fn locked(lock: &Lock, depth: usize) -> Result<u8> {
        lock.with(None, async |_| plain(depth).await).await
    }
    levels!(plain1 locked1 = plain locked);
    levels!(plain2 locked2 = plain1 locked1);
    levels!(plain3 locked3 = plain2 locked2);
    levels!(plain4 locked4 = plain3 locked3);

    let c = connect("by-hand-size").await?;
    let lock = c.lock("a")?;
    let plain_sizes = [
        size_of_val(&plain(1)),
        size_of_val(&plain1(1)),
        size_of_val(&plain2(1)),
        size_of_val(&plain3(1)),
        size_of_val(&plain4(1)),
    ];
    let locked_sizes = [
        size_of_val(&locked(&lock, 1)),
        size_of_val(&locked1(&lock, 1)),
        size_of_val(&locked2(&lock, 1)),
        size_of_val(&locked3(&lock, 1)),
        size_of_val(&locked4(&lock, 1)),
    ];
    eprintln!("by hand: {locked_sizes:?}, plain {plain_sizes:?}");
    for (level, (locked, plain)) in locked_sizes.into_iter().zip(plain_sizes).enumerate() {
        assert!(locked <= plain + MOST * (level + 1), "level {level}: {locked}, plain {plain}");
    }
    assert_eq!(lock.with(None, async |_| plain(7).await).await?, 7);
    Ok(())
}

/// What a body owns is not part of the future of `with`. If a helper gets a future as its argument and awaits it under
/// a lock, the helper's future contains the argument at most twice, apart from `MOST` bytes.
#[tokio::test]
async fn what_a_body_owns_is_kept_once() -> Result {
    async fn guarded<F: Future<Output = Result<u8>>>(lock: &Lock, work: F) -> Result<u8> {
        lock.with(None, async move |_| work.await).await
    }

    let lock = connect("by-hand-owned").await?.lock("a")?;
    let bytes = std::hint::black_box([7; 4096]);
    let work = lock.with(None, async move |_| {
        yield_now().await;
        Ok::<u8, Error>(bytes[3])
    });
    assert!(size_of_val(&work) <= MOST, "{}", size_of_val(&work));
    assert_eq!(work.await?, 7);
    let leaf = async move {
        yield_now().await;
        Ok(bytes[3])
    };
    let size = size_of_val(&leaf);
    let work = guarded(&lock, leaf);
    assert!(size_of_val(&work) <= 2 * size + MOST, "{} for {size}", size_of_val(&work));
    assert_eq!(work.await?, 7);
    Ok(())
}

#[tokio::test]
async fn what_a_body_owns_is_dropped_under_the_guard_although_it_never_ran() -> Result {
    struct Writer(LossWatch, Arc<AtomicBool>);

    impl Drop for Writer {
        fn drop(&mut self) {
            self.1.store(self.0.is_held(), Ordering::SeqCst);
        }
    }

    let lock = connect("by-hand-dropped").await?.lock("a")?;
    let (guard, was_held) = (lock.acquire(None).await?, Arc::new(AtomicBool::new(false)));
    let writer = Writer(guard.loss_watch(), Arc::clone(&was_held));
    drop(guard.with_value(async move |_| {
        let _writes = &writer;
        yield_now().await;
    }));
    assert!(was_held.load(Ordering::SeqCst), "a writer may still write when it is dropped");
    Ok(())
}

#[tokio::test]
async fn by_hand_excludes_the_attribute() -> Result {
    #[synchronized("vol-<id>", coordinator = c, timeout = "20ms")]
    async fn resize(c: &Coordinator, id: u32) -> Result<u32> {
        Ok(id)
    }

    let c = connect("by-hand-attribute").await?;
    let (lock, other) = (c.lock("vol-7")?, connect("by-hand-attribute").await?);
    let refused = lock.with(None, async |_| resize(&other, 7).await).await;
    let refused = refused.expect_err("it is held by hand");
    assert_eq!((refused.kind(), refused.body_ran()), (ErrorKind::Timeout, false));
    assert_eq!(resize(&other, 7).await?, 7);
    Ok(())
}

#[test]
fn a_thread_needs_no_runtime() -> Result {
    use coordination::blocking;

    let c = blocking::Coordinator::connect("memory://macros-by-hand-thread")?;
    let (lock, mut seen) = (c.lock("vol-7")?, String::new());
    lock.with(Some(PATIENCE), |guard| {
        seen.push_str(guard.name());
        assert!(lock.try_acquire()?.is_none());
        Ok::<_, Error>(())
    })?;
    assert_eq!(seen, "vol-7");
    let number = lock.with(None, |_| Ok::<_, Failure>("x".parse::<u32>()?));
    assert!(matches!(number, Err(Failure::Parse)));
    assert_eq!(lock.with_value(Some(Duration::ZERO), |_| 7)?, 7);
    let uploads = c.semaphore("uploads", 2)?;
    let slots = uploads.with(None, |one| {
        let other = uploads.with_value(None, |other| other.slot())?;
        Ok::<_, Error>((one.slot(), other))
    })?;
    assert_eq!(slots, (0, 1));
    c.stop()
}
