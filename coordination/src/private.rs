//! What `#[synchronized]` calls: the attribute leaves a few lines in a function, the rest is here.
//!
//! Not part of the public API, and free to change with the attribute: the two crates are released
//! together. In the order of the calls:
//!
//! 1. [`outcome`], or [`mapped`]: how errors of the library become errors of the function.
//! 2. [`run`]: polls the body, which acquires the locks itself before any code of the user runs. So all parameters of the
//!    function are owned by the body, and are dropped there, while the locks are held.
//! 3. In the body, [`global`], or the coordinator that the attribute names.
//! 4. [`in_order`]: locks, [shared](shared) locks, or semaphores; sorted by name and each once, so that
//!    two functions that name the same locks in opposite orders cannot wait for each other.
//! 5. [`Held::acquire`]: acquires one after the other, with one deadline for all. From there on the body has begun, and
//!    [`run`] polls the body and the loss of each lock.
//! 6. When the body has ended, [`run`] decides what the caller gets, and releases in reverse order.
//!
//! A plain `fn` calls the same steps in [`blocking`]. The code for several locks at once is in
//! `recipe/multi.rs`; what runs a body, by the attribute or by a `with`, is in `recipe/body.rs`.

pub use crate::recipe::body::{Held, OnLost, Outcomes, Run, mapped, only, run};
use crate::recipe::multi;
pub use crate::recipe::multi::{InEither, Shared, Take};
use crate::{Coordinator, Error, Result};

/// The return type of a synchronized function: a `Result` that can hold our error.
#[diagnostic::on_unimplemented(
    message = "a synchronized function cannot return `{Self}`",
    label = "this is not a `Result<T, E>` with `E: From<coordination::Error>`",
    note = "taking a lock can fail: say how that becomes an error of yours, as in `map_err = std::io::Error::other` or `map_err = |error| error.to_string()`",
    note = "or implement `From<coordination::Error>` for the error type, if that is a type of your own crate"
)]
pub trait Outcome {
    /// Whether the body succeeded.
    fn is_success(&self) -> bool;

    /// The result of a body that did not run to its end.
    fn failed(error: Error) -> Self;
}

// Without the attribute, rustc would only say which `From` is missing, and not what for.
#[diagnostic::do_not_recommend]
impl<T, E: From<Error>> Outcome for Result<T, E> {
    fn is_success(&self) -> bool {
        self.is_ok()
    }

    fn failed(error: Error) -> Self {
        Err(error.into())
    }
}

/// The errors of a function whose error type can be made from the library's error.
///
/// The only place that requires [`Outcome`], so that a wrong return type is a single compile error.
pub fn outcome<R: Outcome>() -> Outcomes<R> {
    Outcomes { is_success: R::is_success, failed: R::failed }
}

/// The coordinator of functions that do not name one: the global coordinator.
pub fn global() -> Result<Coordinator> {
    Coordinator::global()
}

/// Asks for the lock in shared mode instead of exclusively.
pub fn shared<L>(lock: Result<L>) -> Result<Shared<L>> {
    lock.map(Shared)
}

/// Asks for the lock exclusively, in a function that asks for another one in shared mode.
pub fn whole<L>(lock: Result<L>) -> Result<InEither<L>> {
    lock.map(InEither::Whole)
}

/// Asks for the lock in shared mode, in a function that asks for another one exclusively.
pub fn share<L>(lock: Result<L>) -> Result<InEither<L>> {
    lock.map(|lock| InEither::Share(Shared(lock)))
}

/// The locks or permits to be acquired, sorted by name, each name once. Their names were made of these templates.
pub fn in_order<T: Take, const N: usize>(
    templates: [Option<&'static str>; N],
    wanted: [Result<T>; N],
) -> Result<Vec<T>> {
    let made_of = |(wanted, template): (Result<T>, Option<_>)| match template {
        Some(template) => wanted.map(|wanted| wanted.made_of(template)),
        None => wanted,
    };
    let wanted = wanted.into_iter().zip(templates).map(made_of);
    wanted.collect::<Result<_>>().map(multi::in_order)
}

/// The same steps for a plain `fn`. Its body cannot be stopped: a loss is reported when the body has ended.
pub mod blocking {
    pub use crate::blocking::with::{acquire, run};
}
