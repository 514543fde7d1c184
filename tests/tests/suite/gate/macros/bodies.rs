//! Ways in which a body ends, and what happens to the lock.

use std::fmt::Display;

use super::*;

#[synchronized("body", coordinator = c)]
async fn leaves(c: &Coordinator, how: &str) -> Result<i32, Failure> {
    if how == "own" {
        return Err(Failure::Own);
    }
    let number: i32 = how.parse()?;
    if number == 0 {
        return Ok(0);
    }
    yield_now().await;
    Ok(number)
}

#[tokio::test]
async fn return_and_question_mark_leave_only_the_body() -> Result {
    let c = connect("leave").await?;
    let lock = c.lock("body")?;
    assert!(matches!(leaves(&c, "own").await, Err(Failure::Own)));
    assert!(is_free(&lock).await?, "released before the caller goes on");
    assert!(matches!(leaves(&c, "x").await, Err(Failure::Parse)));
    assert!(is_free(&lock).await?);
    assert!(matches!(leaves(&c, "0").await, Ok(0)));
    assert!(is_free(&lock).await?);
    assert!(matches!(leaves(&c, "7").await, Ok(7)));
    assert!(is_free(&lock).await?);
    Ok(())
}

#[tokio::test]
async fn a_panic_frees_the_lock() -> Result {
    #[synchronized("panic", coordinator = c)]
    async fn panics(c: Coordinator) -> Result {
        yield_now().await;
        panic!("on purpose")
    }

    #[synchronized("panic", coordinator = c)]
    fn panics_in_a_thread(c: Coordinator) -> Result {
        panic!("on purpose")
    }

    let c = connect("panic").await?;
    assert!(tokio::spawn(panics(c.clone())).await.is_err());
    becomes_free(&c.lock("panic")?).await?;
    let call = c.clone();
    assert!(spawn_blocking(|| panics_in_a_thread(call)).await.is_err());
    becomes_free(&c.lock("panic")?).await
}

#[tokio::test]
async fn a_dropped_future_frees_the_lock() -> Result {
    #[synchronized("dropped", coordinator = c)]
    async fn stays(c: &Coordinator, entered: &Notify) -> Result {
        entered.notify_one();
        pending().await
    }

    let c = connect("dropped").await?;
    let entered = Notify::new();
    tokio::select! {
        _ = stays(&c, &entered) => unreachable!("the body never ends"),
        () = entered.notified() => {}
    }
    becomes_free(&c.lock("dropped")?).await?;

    // The future is dropped while it waits for the lock.
    let holder = c.lock("dropped")?.acquire(None).await?;
    assert!(timeout(Duration::from_millis(50), stays(&c, &entered)).await.is_err());
    holder.release().await?;
    becomes_free(&c.lock("dropped")?).await
}

#[tokio::test]
async fn the_body_may_drop_the_last_coordinator() -> Result {
    #[synchronized("last", coordinator = c)]
    async fn last(c: Coordinator) -> Result {
        drop(c);
        yield_now().await;
        Ok(())
    }

    #[synchronized("last", coordinator = connect("last").await?)]
    async fn temporary() -> Result {
        yield_now().await;
        Ok(())
    }

    last(connect("last").await?).await?;
    temporary().await
}

#[tokio::test]
async fn what_the_body_returns_is_coerced() -> Result {
    #[synchronized("coerced", coordinator = c)]
    async fn boxed(c: &Coordinator) -> Result<Box<dyn Display>> {
        Ok(Box::new(5))
    }

    #[synchronized("coerced", coordinator = c)]
    async fn hidden(c: &Coordinator) -> Result<impl Display + use<>> {
        Ok(6)
    }

    let c = connect("coerced").await?;
    assert_eq!(boxed(&c).await?.to_string(), "5");
    assert_eq!(hidden(&c).await?.to_string(), "6");
    Ok(())
}

#[test]
fn futures_are_send_where_the_body_is() {
    fn send<T: Send>(_: impl FnOnce(&'static Coordinator) -> T) {}
    fn plain<T>(_: impl FnOnce(&'static Coordinator) -> T) {}

    #[synchronized("send-<name>", "other", timeout = "5s", guard = guards, coordinator = c)]
    async fn sendable(c: &Coordinator, name: impl Display + Send) -> Result<usize> {
        yield_now().await;
        drop(name);
        Ok(guards.len())
    }

    #[synchronized("local", coordinator = c)]
    async fn local(c: &Coordinator) -> Result<i32> {
        let number = std::rc::Rc::new(1);
        yield_now().await;
        Ok(*number)
    }

    send(|c| sendable(c, 1));
    plain(local);
}

#[tokio::test]
async fn other_error_types_are_mapped() -> Result {
    #[synchronized("mapped", timeout = "20ms", coordinator = c, map_err = std::io::Error::other)]
    async fn io(c: &Coordinator) -> std::io::Result<u8> {
        Ok(1)
    }

    #[synchronized("mapped", timeout = "20ms", coordinator = c, map_err = |error| error.to_string())]
    fn text(c: &coordination::blocking::Coordinator, own: bool) -> Result<u8, String> {
        if own { Err("own".to_owned()) } else { Ok(1) }
    }

    let c = connect("mapped").await?;
    assert_eq!(io(&c).await.expect("it is free"), 1);
    let holder = c.lock("mapped")?.acquire(None).await?;
    let refused = io(&c).await.expect_err("taken").into_inner().expect("ours");
    let refused = refused.downcast::<Error>().expect("ours");
    assert_eq!(refused.kind(), ErrorKind::Timeout);
    let c = coordination::blocking::Coordinator::from(c);
    let call = c.clone();
    let refused = spawn_blocking(move || text(&call, false)).await.expect("no panic");
    assert!(refused.expect_err("taken").contains("mapped"));
    holder.release().await?;
    let own = spawn_blocking(move || text(&c, true)).await.expect("no panic");
    assert_eq!(own.expect_err("its own"), "own");
    Ok(())
}

#[test]
fn what_main_prints_is_text() {
    // Another test of this process installs a global coordinator. In a new scope, no coordinator is installed.
    let _nothing = coordination::testing::Scope::new().enter();
    let refused = coordination::Coordinator::global().expect_err("nothing is installed here");
    let printed = format!("{refused:?}");
    assert!(
        printed.contains("call Coordinator::connect") && printed.ends_with("[Global, effect None]")
    );
    assert!(!printed.contains("Error {"), "{printed}");
    assert!(format!("{refused:#?}").starts_with("Error {"));
}
