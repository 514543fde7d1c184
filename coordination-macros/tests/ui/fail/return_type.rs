#![allow(unused)]

use std::future::Future;
use std::pin::Pin;

use async_trait::async_trait;
use coordination::{Error, synchronized};

#[synchronized("a")]
async fn nothing() {}

#[synchronized("a")]
async fn unit() -> () {}

#[synchronized("a")]
async fn number() -> u32 {
    1
}

#[synchronized("a")]
fn blocking() -> Option<u32> {
    None
}

#[synchronized("a")]
async fn tuple() -> (u32, Result<(), Error>) {
    (1, Ok(()))
}

#[synchronized("a")]
async fn reference(text: &str) -> &str {
    text
}

#[synchronized("a")]
async fn never() -> ! {
    panic!()
}

type Maybe = std::ops::ControlFlow<u32, u32>;

#[synchronized("a")]
async fn other_name() -> Maybe {
    Maybe::Continue(1)
}

#[synchronized("a")]
fn future() -> Pin<Box<dyn Future<Output = u32>>> {
    Box::pin(async move { 1 })
}

#[synchronized("a")]
fn passed_on() -> impl Future<Output = Result<(), Error>> {
    std::future::ready(Ok(()))
}

#[async_trait]
trait Store {
    #[synchronized("a")]
    async fn count(&self) -> u32 {
        1
    }
}

fn main() {}
