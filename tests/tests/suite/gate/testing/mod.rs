//! `coordination::testing`: a coordinator for each test, and losses on demand.

use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use coordination::testing::{Sandbox, Scope};
use coordination::{
    Config, Coordinator, Effect, Error, ErrorKind, LossReason, Recipe, State, blocking,
    synchronized,
};
use coordination_tests::bounds::PATIENCE;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

// The documentation shows `fixture.rs` and `page.rs` as a user would write them, with `unwrap`.
mod fixture;
#[allow(clippy::unwrap_used)]
mod page;

type Result<T = (), E = Error> = std::result::Result<T, E>;

/// The documentation page that shows the code of `page.rs` and `fixture.rs`.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/testing-your-code.md");
#[test]
fn the_page_shows_the_tests_that_run() {
    let page = std::fs::read_to_string(PAGE).expect("the page is there");
    let code: Vec<_> =
        page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let run = [include_str!("page.rs"), include_str!("fixture.rs")];
    assert_eq!(code, run, "docs/testing-your-code.md differs from page.rs or fixture.rs");
}

#[test]
fn five_tests_of_one_program_do_not_meet() {
    run_the_page(20);
}

/// Runs the five tests of `page.rs` so often, with eight threads, so that all of them run at the same time in one process.
pub(crate) fn run_the_page(times: usize) {
    for _ in 0..times {
        let mut program = Command::new(std::env::current_exe().expect("this program"));
        let output = program.args(["gate::testing::page::", "--test-threads=8"]).output();
        let output = output.expect("this program runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("5 passed"), "{text}");
    }
}

/// The member id of the global coordinator at this place; `None`: there is no global coordinator.
fn global() -> Option<String> {
    Coordinator::global().ok().map(|global| global.member_id().to_owned())
}

fn member(sandbox: &Sandbox) -> Option<String> {
    Some(sandbox.coordinator().member_id().to_owned())
}

#[synchronized("who", guard = guard)]
async fn is_held() -> Result<bool> {
    Ok(guard.is_held())
}

#[synchronized("who", guard = guard)]
fn is_held_here() -> Result<bool> {
    Ok(guard.is_held())
}

#[tokio::test]
async fn the_innermost_scope_counts() -> Result {
    let (outer, inner, thread) = (Sandbox::new()?, Sandbox::new()?, Sandbox::new()?);
    let _entered = thread.enter();
    let nested = outer.run(async {
        let within = inner.run(async { global() }).await;
        let _entered = thread.enter();
        (within, global())
    });
    assert_eq!(nested.await, (member(&inner), member(&outer)), "a task's before a thread's");
    assert_eq!(global(), member(&thread));
    let empty = Scope::new().run(async { is_held().await.map_err(|error| error.kind()) });
    assert_eq!(empty.await, Err(ErrorKind::Global), "no scope around it is asked");
    Ok(())
}

#[test]
fn scopes_are_left_in_any_order() -> Result {
    let (one, other) = (Sandbox::new()?, Sandbox::new()?);
    let _none = Scope::new().enter();
    let first = one.enter();
    let (second, third) = (other.enter(), one.enter());
    assert_eq!(global(), member(&one));
    drop(third);
    assert_eq!(global(), member(&other));
    drop(first);
    assert_eq!(global(), member(&other));
    drop(second);
    assert_eq!(global(), None);
    let panics = || {
        let _entered = one.enter();
        panic!("on purpose");
    };
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert_eq!(global(), None, "a panic leaves a scope");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_test_spawns_sees_its_scope() -> Result {
    let sandbox = Sandbox::new()?;
    let _none = Scope::new().enter();
    let entered = sandbox.enter();
    for _ in 0..20 {
        let spawned = tokio::spawn(async { (global(), is_held().await) });
        let blocking = spawn_blocking(|| (global(), is_held_here()));
        for seen in [spawned.await, blocking.await] {
            let (seen, held) = seen.expect("no panic");
            assert_eq!((seen, held?), (member(&sandbox), true));
        }
    }
    // Another thread, or another runtime, has the scope's global coordinator only if the scope is entered there.
    let elsewhere = |scope: Option<Scope>| {
        let threads = std::thread::spawn(move || {
            let _none = Scope::new().enter();
            let _entered = scope.map(|scope| scope.enter());
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async { tokio::spawn(async { global() }).await.expect("no panic") })
        });
        threads.join().expect("no panic")
    };
    assert_eq!(elsewhere(None), None);
    assert_eq!(elsewhere(Some(sandbox.scope().clone())), member(&sandbox));
    drop(entered);
    assert_eq!(tokio::spawn(async { global() }).await.expect("no panic"), None);
    Ok(())
}

/// Installs and stops a global coordinator within a scope, as a service does at its start and its end.
#[tokio::test]
async fn what_is_installed_in_a_scope_stays_there() -> Result {
    async fn boot(url: &str) -> Result<Coordinator> {
        let coordinator = Coordinator::connect(url).await?;
        coordinator.install().map(|()| coordinator)
    }

    let (sandbox, around) = (Sandbox::new()?, Scope::new());
    let _entered = around.enter();
    let booted = Scope::new().run(async {
        let first = boot(sandbox.url()).await?;
        let second = boot(sandbox.url()).await.map_err(|error| error.kind());
        assert_eq!(second.map(drop), Err(ErrorKind::Global), "one for each scope");
        first.stop().await?;
        let second = boot(sandbox.url()).await?;
        assert_eq!(global().as_deref(), Some(second.member_id()));
        is_held().await
    });
    assert!(booted.await?);
    assert_eq!(global(), None);
    assert_eq!(format!("{around:?}"), "Scope { coordinator: None }");

    let stopped = sandbox.run(async {
        let refused = boot(sandbox.url()).await.map_err(|error| error.kind());
        assert_eq!(refused.map(drop), Err(ErrorKind::Global));
        Coordinator::global()?.stop().await?;
        is_held().await
    });
    assert_eq!(stopped.await.map_err(|error| error.kind()), Err(ErrorKind::Closed));
    Ok(())
}

#[test]
fn a_test_without_a_runtime_has_a_scope_too() -> Result {
    let sandbox = Sandbox::new()?;
    let _entered = sandbox.enter();
    assert!(is_held_here()?);
    let coordinator = blocking::Coordinator::from(sandbox.coordinator().clone());
    let guard = coordinator.lock("who")?.acquire(None)?;
    sandbox.lose_session();
    assert!(!guard.is_held());
    assert!(is_held_here()?, "under the next session");
    Ok(())
}

#[tokio::test]
async fn a_runtime_that_ends_takes_no_session_with_it() -> Result {
    let sandbox = std::thread::spawn(|| {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async { Sandbox::with(Config::default()).await })
    });
    let sandbox = sandbox.join().expect("no panic")?;
    assert!(sandbox.run(is_held()).await?);
    Ok(())
}

#[tokio::test]
async fn what_another_process_has_ends_with_it() -> Result {
    let sandbox = Sandbox::new()?;
    let other = sandbox.another().await?;
    std::mem::forget(other.lock("a")?.acquire(None).await?);
    other.stop().await?;
    let lock = sandbox.coordinator().lock("a")?;
    lock.acquire(Some(PATIENCE)).await?.release().await
}

#[tokio::test]
async fn a_loss_on_demand_is_a_loss() -> Result {
    let sandbox = Sandbox::with(Coordinator::builder().prefix("a-").into()).await?;
    let (ours, other) = (sandbox.coordinator(), sandbox.another().await?);
    let guard = ours.lock("vol-7")?.acquire(None).await?;
    let theirs = other.lock("vol-8")?.acquire(None).await?;
    let mut states = ours.state();

    sandbox.lose_session();
    assert!(!guard.is_held() && theirs.is_held());
    assert_eq!(guard.lost().await, LossReason::ExpiredByServer);
    assert_eq!(states.changed().await, Some(State::Lost(LossReason::ExpiredByServer)));
    assert_eq!(states.changed().await, Some(State::Connected));
    other.lock("vol-7")?.acquire(Some(PATIENCE)).await?.release().await?;

    assert!(sandbox.delete_entry(Recipe::Lock, "vol-8")?);
    assert_eq!(theirs.lost().await, LossReason::EntryDeleted);
    assert!(!sandbox.delete_entry(Recipe::Lock, "vol-8")?);

    let leads = ours.election("chief")?.campaign("x", None).await?;
    let permit = ours.semaphore("few", 2)?.acquire(None).await?;
    assert!(sandbox.delete_entry(Recipe::Election, "chief")?);
    assert!(sandbox.delete_entry(Recipe::Semaphore, "few")?);
    assert!(!leads.is_held() && !permit.is_held());
    assert_eq!(
        sandbox.delete_entry(Recipe::Lock, "").expect_err("it fails").kind(),
        ErrorKind::Name
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_outage_on_demand_is_an_outage() -> Result {
    let sandbox = Sandbox::on_this_runtime().await?;
    let (ours, other) = (sandbox.coordinator(), sandbox.another().await?);
    let lock = ours.lock("vol-7")?;
    let (guard, free) = (lock.acquire(None).await?, ours.lock("vol-8")?.acquire(None).await?);
    let theirs = other.lock("vol-9")?.acquire(None).await?;

    sandbox.set_reachable(false);
    sandbox.set_reachable(false);
    let waiting = tokio::spawn({
        let lock = other.lock("vol-7")?;
        async move { lock.acquire(None).await }
    });
    let refused = ours.lock("vol-10")?.try_acquire().await.map_err(|error| error.kind());
    assert_eq!(refused.map(drop), Err(ErrorKind::Unavailable));
    let refused = ours.counter("c")?.add(1).await.map_err(|error| error.kind());
    assert_eq!(refused, Err(ErrorKind::Unavailable));
    let error = free.release().await.expect_err("nobody confirms it");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    assert!(guard.is_held() && theirs.is_held());
    // The store is still unreachable, so it learns neither of this drop nor of the stop of `other`.
    drop(guard);
    let error = timeout(PATIENCE, other.stop()).await.expect("bounded").expect_err("not confirmed");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    assert_eq!(waiting.await.expect("no panic").expect_err("it fails").kind(), ErrorKind::Closed);

    sandbox.set_reachable(true);
    sandbox.set_reachable(true);
    for name in ["vol-7", "vol-8", "vol-9"] {
        ours.lock(name)?.acquire(Some(PATIENCE)).await?.release().await?;
    }
    assert_eq!(ours.counter("c")?.add(1).await?, 1);

    sandbox.set_reachable(false);
    let mut states = ours.state();
    sandbox.lose_session();
    while states.current() != State::Lost(LossReason::ExpiredByServer) {
        states.changed().await.expect("it is not stopped");
    }
    sandbox.set_reachable(true);
    ours.lock("vol-7")?.acquire(Some(PATIENCE)).await?.release().await
}

/// When the coordinator of a scope is stopped, a synchronized function in that scope loses its lock, so its body is
/// dropped although it would wait for ever.
#[tokio::test]
async fn a_stop_within_a_scope_loses_what_is_held_there() -> Result {
    #[synchronized("for-ever")]
    async fn for_ever() -> Result {
        pending().await
    }

    let (sandbox, neighbour) = (Sandbox::new()?, Sandbox::new()?);
    let held = neighbour.coordinator().lock("for-ever")?.acquire(None).await?;
    let (stopped, lost) = tokio::join!(sandbox.coordinator().stop(), sandbox.run(for_ever()));
    stopped?;
    assert_eq!(lost.expect_err("it fails").kind(), ErrorKind::Closed);
    assert!(held.is_held(), "each sandbox has a store of its own");
    Ok(())
}
