//! Shares and permits: in async and plain functions, with one name and with several.

#![deny(warnings)]

use coordination::{Coordinator, Error, LockGuard, Permit, blocking, synchronized};

#[synchronized("a-<id>", shared, guard = share)]
async fn share(id: u8) -> Result<bool, Error> {
    let share: &LockGuard = share;
    Ok(share.is_shared())
}

#[synchronized(shared, "a", "b", guard = shares, coordinator = coordinator)]
fn shares(coordinator: &blocking::Coordinator) -> Result<usize, Error> {
    let shares: &[LockGuard] = shares;
    Ok(shares.len())
}

#[synchronized("a", permits = limit * 2, guard = permit)]
async fn permit(limit: u32) -> Result<u32, Error> {
    let permit: &Permit = permit;
    Ok(permit.slot())
}

#[synchronized("a", "<permits>", permits = permits, guard = held, coordinator = coordinator)]
fn permits(coordinator: &blocking::Coordinator, permits: u32) -> Result<usize, Error> {
    let held: &[Permit] = held;
    Ok(held.len())
}

struct Pool {
    coordinator: Coordinator,
    size: u32,
}

impl Pool {
    #[synchronized("a", coordinator = self.coordinator, permits = self.size, timeout = "1s")]
    async fn method(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn size(&self) -> Result<u32, Error> {
        Ok(self.size)
    }

    #[synchronized("a", permits = self.size().await?)]
    async fn asked(&self) -> Result<(), Error> {
        Ok(())
    }
}

fn is_send(_: impl Send) {}

fn main() {
    is_send(share(1));
    is_send(permit(2));
    let (_, _) = (shares, permits);
    let (_, _) = (Pool::method, Pool::asked);
}
