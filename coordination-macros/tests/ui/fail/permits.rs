#![allow(unused)]

use coordination::{Coordinator, Error, Lock, LockGuard, Permit, Result, synchronized};

#[synchronized("a", permits = "3")]
async fn text() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", permits = -1)]
async fn negative() -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", permits = count)]
fn other_type(count: usize) -> Result<(), Error> {
    Ok(())
}

#[synchronized("a", permits = 3, guard = guard)]
async fn a_permit_is_no_lock() -> Result<(), Error> {
    let guard: &LockGuard = guard;
    Ok(())
}

struct LocksOnly;

impl LocksOnly {
    fn lock(&self, name: String) -> Result<Lock> {
        Coordinator::global()?.lock(name)
    }
}

#[synchronized("a", permits = 3, coordinator = LocksOnly)]
async fn no_semaphores() -> Result<(), Error> {
    Ok(())
}

fn main() {}
