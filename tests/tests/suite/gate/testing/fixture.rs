use coordination::testing::{Entered, Sandbox};

/// To be called within the test's runtime.
fn sandbox() -> coordination::Result<(Sandbox, Entered)> {
    let sandbox = Sandbox::new()?;
    let entered = sandbox.enter();
    Ok((sandbox, entered))
}

#[tokio::test]
async fn a_fixture_enters_for_its_test() -> coordination::Result<()> {
    let (sandbox, _entered) = sandbox()?;

    let global = coordination::Coordinator::global()?;
    assert_eq!(global.member_id(), sandbox.coordinator().member_id());
    Ok(())
}
