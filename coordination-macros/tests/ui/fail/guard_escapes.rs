#![allow(unused)]

use coordination::{Error, FencingToken, LockGuard, synchronized};

#[synchronized("vol-<id>", guard = guard)]
async fn returned<'a>(id: u32) -> Result<&'a LockGuard, Error> {
    Ok(guard)
}

#[synchronized("vol-<id>", guard = guard)]
fn taken_by_a_thread(id: u32) -> Result<(), Error> {
    std::thread::spawn(move || println!("{}", guard.token()));
    Ok(())
}

#[synchronized("vol-<id>", guard = guard)]
fn released(id: u32) -> Result<(), Error> {
    coordination::blocking::release(*guard)
}

/// Its token can be returned, and a task or thread can have its `loss_watch()`.
#[synchronized("vol-<id>", guard = guard)]
fn what_it_says(id: u32) -> Result<FencingToken, Error> {
    let watch = guard.loss_watch();
    std::thread::spawn(move || println!("{}", watch.is_held()));
    Ok(guard.token())
}

fn main() {}
