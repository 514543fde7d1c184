//! Each function in four variants: plain and synchronized, async and not. The synchronized variants have to drop their
//! values in the same order as the plain ones.

use std::sync::{Arc, Mutex};

use coordination::{Coordinator, Error, blocking, synchronized};

type Result<T = (), E = Error> = std::result::Result<T, E>;

/// Records the names of dropped values in their order, and whether the lock was held at each drop.
#[derive(Clone)]
struct Log {
    dropped: Arc<Mutex<Vec<&'static str>>>,
    lock: blocking::Lock,
    is_locked: bool,
}

impl Log {
    fn new(coordinator: &blocking::Coordinator, is_locked: bool) -> Result<Self> {
        Ok(Self { dropped: Arc::default(), lock: coordinator.lock("drops")?, is_locked })
    }

    fn noisy(&self, name: &'static str) -> Noisy {
        Noisy { name, log: self.clone() }
    }

    fn pair(&self, left: &'static str, right: &'static str) -> Pair {
        Pair { left: self.noisy(left), right: self.noisy(right) }
    }

    fn say(&self, what: &'static str) {
        self.dropped.lock().expect("no panic").push(what);
    }
}

/// A value that records when it is dropped.
struct Noisy {
    name: &'static str,
    log: Log,
}

impl Noisy {
    /// Returns another value with the name `temporary`. In an expression, it is a temporary that is dropped at the
    /// end.
    fn temporary(&self) -> Noisy {
        self.log.noisy("temporary")
    }

    fn len(&self) -> usize {
        self.name.len()
    }
}

impl Drop for Noisy {
    fn drop(&mut self) {
        if self.log.is_locked {
            let holder = self.log.lock.try_acquire().expect("it is in memory");
            assert!(holder.is_none(), "{} is dropped after the release", self.name);
        }
        self.log.say(self.name);
    }
}

struct Pair {
    left: Noisy,
    right: Noisy,
}

impl Pair {
    fn whole(self) -> usize {
        self.left.len()
    }
}

/// Makes the four variants of a function, and a function `compare` that calls all of them and compares their logs.
/// Each `$argument` is an expression that makes one argument of such a call from the log `$log`.
macro_rules! row {
    ($name:ident, ($($parameters:tt)*), |$log:ident| ($($argument:expr),*), $body:block) => {
        mod $name {
            use super::*;

            async fn plain($($parameters)*) -> Result<usize> $body

            #[synchronized("drops", coordinator = c)]
            async fn locked(c: &Coordinator, $($parameters)*) -> Result<usize> $body

            fn plain_thread($($parameters)*) -> Result<usize> $body

            #[synchronized("drops", coordinator = c)]
            fn locked_thread(c: &blocking::Coordinator, $($parameters)*) -> Result<usize> $body

            pub(super) async fn compare(c: &Coordinator) -> Result {
                let threads = blocking::Coordinator::from(c.clone());
                let row = stringify!($name);
                let $log = Log::new(&threads, false)?;
                plain($($argument),*).await?;
                let expected = std::mem::take(&mut *$log.dropped.lock().expect("no panic"));
                assert!(!expected.is_empty(), "{row}");
                let $log = Log::new(&threads, true)?;
                locked(c, $($argument),*).await?;
                assert_eq!(*$log.dropped.lock().expect("no panic"), expected, "{row}");
                let $log = Log::new(&threads, false)?;
                plain_thread($($argument),*)?;
                let expected = std::mem::take(&mut *$log.dropped.lock().expect("no panic"));
                let $log = Log::new(&threads, true)?;
                let told = $log.clone();
                tokio::task::block_in_place(|| locked_thread(&threads, $($argument),*))?;
                assert_eq!(*told.dropped.lock().expect("no panic"), expected, "{row}, thread");
                Ok(())
            }
        }
    };
}

row!(used, (one: Noisy, two: Noisy), |log| (log.noisy("one"), log.noisy("two")), {
    let _local = one.log.noisy("local");
    Ok(two.len() + one.len())
});

row!(unused, (_one: Noisy, _two: Noisy), |log| (log.noisy("one"), log.noisy("two")), { Ok(1) });

row!(
    one_is_used,
    (_first: Noisy, two: Noisy, _three: Noisy),
    |log| (log.noisy("one"), log.noisy("two"), log.noisy("three")),
    { Ok(two.len()) }
);

row!(ignored, (_: Noisy, two: Noisy, _: Noisy), |log| (log.noisy("one"), log.noisy("two"), log.noisy("three")), {
    let _local = two.log.noisy("local");
    Ok(1)
});

row!(
    taken_apart,
    ((one, _): (Noisy, Noisy), Pair { right, .. }: Pair, whole @ Pair { .. }: Pair),
    |log| ((log.noisy("one"), log.noisy("two")), log.pair("left", "right"), log.pair("l", "r")),
    {
        let _local = one.log.noisy("local");
        Ok(right.len() + whole.left.len())
    }
);

row!(one_field_is_used, (pair: Pair, _last: Noisy), |log| (log.pair("left", "right"), log.noisy("last")), {
    Ok(pair.right.len())
});

row!(moved_in_part, (pair: Pair, other: Noisy), |log| (log.pair("left", "right"), log.noisy("other")), {
    drop(pair.right);
    Ok(other.len())
});

row!(moved, (pair: Pair, other: Noisy), |log| (log.pair("left", "right"), log.noisy("other")), {
    let _other = other;
    Ok(pair.whole())
});

row!(changed, (mut pair: Pair, other: Noisy), |log| (log.pair("left", "right"), log.noisy("other")), {
    pair.left = pair.right.log.noisy("new");
    Ok(other.len())
});

row!(returned_early, (one: Noisy, _: Noisy), |log| (log.noisy("one"), log.noisy("two")), {
    if one.len() == 3 {
        return Ok(1);
    }
    Ok(2)
});

// Edition 2024 drops the temporary of a last expression before the body's local variables, and earlier editions drop
// it after them.
row!(last_temporary, (one: Noisy, _two: Noisy), |log| (log.noisy("one"), log.noisy("two")), {
    let _local = one.log.noisy("local");
    Ok(one.temporary().len())
});

row!(last_match, (one: Noisy, _two: Noisy), |log| (log.noisy("one"), log.noisy("two")), {
    let _local = one.log.noisy("local");
    match one.temporary().len() {
        0 => Ok(0),
        len => Ok(len),
    }
});

row!(last_condition, (one: Noisy, _two: Noisy), |log| (log.noisy("one"), log.noisy("two")), {
    if let Some(first) = one.temporary().name.get(..1) {
        one.log.say("then");
        Ok(first.len())
    } else {
        one.log.say("else");
        Ok(0)
    }
});

/// Compares the variants of each function.
pub(super) async fn compare(c: &Coordinator) -> Result {
    used::compare(c).await?;
    unused::compare(c).await?;
    one_is_used::compare(c).await?;
    ignored::compare(c).await?;
    taken_apart::compare(c).await?;
    one_field_is_used::compare(c).await?;
    moved_in_part::compare(c).await?;
    moved::compare(c).await?;
    changed::compare(c).await?;
    returned_early::compare(c).await?;
    last_temporary::compare(c).await?;
    last_match::compare(c).await?;
    last_condition::compare(c).await?;
    methods::compare(c).await?;
    names::compare(c).await
}

mod methods {
    use super::*;

    struct Owner {
        coordinator: Coordinator,
        pair: Pair,
    }

    impl Owner {
        async fn plain(self, _last: Noisy) -> Result<usize> {
            Ok(self.pair.left.len())
        }

        #[synchronized("drops", coordinator = self.coordinator)]
        async fn locked(self, _last: Noisy) -> Result<usize> {
            Ok(self.pair.left.len())
        }

        #[synchronized("drops", coordinator = blocking::Coordinator::from(self.coordinator.clone()))]
        fn locked_thread(self, _last: Noisy) -> Result<usize> {
            Ok(self.pair.left.len())
        }
    }

    pub(super) async fn compare(c: &Coordinator) -> Result {
        let threads = blocking::Coordinator::from(c.clone());
        let owner = |log: &Log| Owner { coordinator: c.clone(), pair: log.pair("left", "right") };
        let log = Log::new(&threads, false)?;
        owner(&log).plain(log.noisy("last")).await?;
        let expected = std::mem::take(&mut *log.dropped.lock().expect("no panic"));
        let log = Log::new(&threads, true)?;
        owner(&log).locked(log.noisy("last")).await?;
        assert_eq!(*log.dropped.lock().expect("no panic"), expected, "self");
        let log = Log::new(&threads, true)?;
        let (owner, last) = (owner(&log), log.noisy("last"));
        tokio::task::block_in_place(|| owner.locked_thread(last))?;
        assert_eq!(*log.dropped.lock().expect("no panic"), expected, "self, thread");
        Ok(())
    }
}

/// Names of locks that are made from variables in a parameter's pattern.
mod names {
    use super::*;

    #[synchronized("<two>", coordinator = c)]
    async fn locked(
        c: &Coordinator,
        _first: Noisy,
        (one, two, _): (Noisy, &str, Noisy),
        _: Noisy,
    ) -> Result<usize> {
        Ok(one.len())
    }

    pub(super) async fn compare(c: &Coordinator) -> Result {
        let log = Log::new(&blocking::Coordinator::from(c.clone()), true)?;
        let apart = (log.noisy("one"), "drops", log.noisy("three"));
        locked(c, log.noisy("first"), apart, log.noisy("last")).await?;
        assert_eq!(*log.dropped.lock().expect("no panic"), ["last", "one", "three", "first"]);
        Ok(())
    }
}
