//! Parameters that the attribute uses beside the body.

#![deny(warnings)]

use std::fmt::Display;

use async_trait::async_trait;
use coordination::{Coordinator, Error, blocking, synchronized};

/// What is allowed of a parameter, or whether it is there, may depend on how it is built.
#[synchronized("a-<id>", coordinator = c)]
async fn attributes(
    c: &Coordinator,
    #[cfg_attr(any(), cfg(any()))] id: u8,
    #[cfg_attr(all(), cfg(any()))] absent: Absent,
    #[cfg_attr(all(), cfg(any()))] (no, one): Absent,
    #[cfg_attr(all(), expect(unused_variables))] spare: u8,
) -> Result<u8, Error> {
    Ok(id)
}

/// A name that is an expression borrows what it is made of, as a template does.
#[synchronized(name = text, shared(name = other), coordinator = c)]
fn borrowed(c: &blocking::Coordinator, text: String, other: Box<str>) -> Result<usize, Error> {
    let _moved = other;
    Ok(text.into_bytes().len())
}

/// A parameter that is only the width of another one.
#[synchronized(name = format!("{id:>width$}"), coordinator = c)]
async fn padded(c: &Coordinator, id: u8, width: usize) -> Result<u8, Error> {
    Ok(id)
}

#[synchronized(name = format!("{:>width$}", 7), coordinator = c)]
async fn padded_to_a_part(c: &Coordinator, (width, by): (usize, u8)) -> Result<u8, Error> {
    Ok(by)
}

#[synchronized("<id>", coordinator = c)]
async fn hidden(c: &Coordinator, id: u8) -> Result<[impl Display + use<>; 2], Error> {
    Ok([id, 2])
}

#[synchronized("a", coordinator = c)]
fn hidden_in_a_slice(c: &blocking::Coordinator) -> Result<Box<[impl Display + use<>]>, Error> {
    Ok(Box::new([1, 2]))
}

struct Disk {
    coordinator: Coordinator,
    id: String,
}

impl Disk {
    fn id(&self) -> &str {
        &self.id
    }
}

#[async_trait]
trait Store {
    async fn rename(&mut self, by: u8) -> Result<u8, Error>;
    async fn merge(&mut self, pair: (u8, u8), text: String) -> Result<u8, Error>;
    async fn remove(self, other: (String, u8)) -> Result<usize, Error>;
}

#[async_trait]
impl Store for Disk {
    #[synchronized(name = self.id(), coordinator = self.coordinator, timeout = "1s")]
    async fn rename(&mut self, mut by: u8) -> Result<u8, Error> {
        by += 1;
        self.id.clear();
        Ok(by)
    }

    #[synchronized("<by>", name = self.id(), name = text)]
    async fn merge(&mut self, (by, _at): (u8, u8), text: String) -> Result<u8, Error> {
        self.id.clear();
        self.id = text;
        Ok(by)
    }

    #[synchronized(name = other, shared(name = self.id()), coordinator = self.coordinator)]
    async fn remove(self, (other, _): (String, u8)) -> Result<usize, Error> {
        Ok(other.len() + self.id.len())
    }
}

fn main() {
    let _ = (borrowed, hidden_in_a_slice, Disk::rename, Disk::merge, Disk::remove);
    fn is_send(_: impl Send) {}
    fn call(c: &'static Coordinator) {
        is_send(attributes(c, 1, 2));
        is_send(padded(c, 1, 2));
        is_send(padded_to_a_part(c, (1, 2)));
        is_send(hidden(c, 1));
    }
    let _ = call;
}
