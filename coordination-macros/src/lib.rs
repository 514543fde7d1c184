//! The `#[synchronized]` attribute of the [`coordination`](https://docs.rs/coordination) crate.
//!
//! Use it from there: `coordination::synchronized`. The code that it generates calls
//! `coordination::__private`, and the two crates are released together.
//!
//! # Where things are
//!
//! | module | |
//! | --- | --- |
//! | `args` | reads what stands in the parentheses: templates and `key = value` |
//! | `template` | from a name template to a `format!` |
//! | `function` | takes a function apart: its body, what it returns, which names are in scope |
//! | `expand` | puts it together again; its documentation shows the generated code |
//! | `errors` | collects faults, so that one build shows all of them |
//!
//! What happens at run time, in which order and what the caller gets, is
//! `coordination/src/private.rs`.
//!
//! # Tests
//!
//! Parsing is tested beside the code. What the attribute does is tested in
//! `tests/tests/macros/` of the workspace, and what it refuses, in which words and at which place, in `tests/ui`.
//!
//! # To add an argument
//!
//! A key in `args::KEYS`, a field in `Args`, its reading in `Args::value`, its use in `expand`; a
//! case for each way to get it wrong in `tests/ui/fail/arguments.rs`; a row in the documentation below.

#![forbid(unsafe_code)]

mod args;
mod errors;
mod expand;
mod function;
#[cfg(test)]
mod fuzz;
mod template;

use proc_macro::TokenStream;

/// Runs a function under a lock, or several, or under shares of locks or permits of semaphores.
///
/// The lock is taken before the body and released after it. Its name is made from the arguments of
/// the call, so calls about different things do not wait for each other.
///
/// ```
/// use coordination::synchronized;
/// # type StorageError = coordination::Error;
///
/// #[synchronized("vol-<id>")]
/// async fn resize(id: u64, gib: u64) -> Result<(), StorageError> { // From<coordination::Error>
///     // Nobody else resizes this volume, on any host that uses the same store.
///     # let _ = gib;
///     # Ok(())
/// }
/// ```
///
/// # The function
///
/// * `async fn`, free or as a method with any kind of `self`, generic or not, in an
///   `#[async_trait]` impl or trait. Its future is `Send` where the body is.
/// * Plain `fn` that ends in `Box::pin(async move { .. })` or `async move { .. }` and returns such a
///   future. The lock is taken when the future runs, not when the function is called.
/// * Any other plain `fn`. It waits for the lock on its thread, so it is not for code that runs on
///   an async executor; see `coordination::blocking`.
///
/// It returns a `Result<T, E>`, under this or another name, with `E: From<coordination::Error>`. The
/// body is a block of its own: `return` and `?` leave it, and the lock is released.
///
/// Attributes that turn an `async fn` into a plain one, such as `#[tokio::main]`, go below this one.
///
/// # Templates
///
/// One string literal or several. Placeholders are written `<path>` or `{path}`:
///
/// | path | |
/// | --- | --- |
/// | `id` | a parameter, also `self`, also one bound by a pattern |
/// | `f_name` | the name of the function, unless a parameter has this name |
/// | `share.id`, `pair.0` | a field |
/// | `share.id()` | what a method returns; without arguments |
/// | `list[0]` | an element, `list[0]` |
/// | `snap[name]` | the element with a text as key, `snap["name"]`; written without quotes |
///
/// A format spec may follow after a colon, as in `format!`: `{id:08x}`. Its width and precision may be
/// parameters, `{id:>width$}`. A spec that has `>` in it needs the form with braces.
/// `<<`, `>>`, `{{` and `}}` are the characters themselves.
///
/// What a path stands for must implement [`Display`](std::fmt::Display), or the trait of its format
/// spec. It is borrowed, and before the body runs: the body owns its parameters as usual.
///
/// Different arguments can make the same name, as `("a-b", "c")` and `("a", "b-c")` do in `<x>-<y>`.
/// They then share a lock, which costs time and is otherwise harmless.
///
/// With several templates, the names are sorted, each is taken once, one after the other, and they are
/// released in the opposite order. Functions that name the same locks in different orders do not
/// deadlock. This does not extend to a synchronized function that calls another: **locks are not
/// re-entrant**, and a body that asks for its own lock waits for itself.
///
/// ```
/// # use coordination::synchronized;
/// # type BankError = coordination::Error;
/// #[synchronized("account-<from>", "account-<to>", timeout = "5s")]
/// async fn transfer(from: u64, to: u64, amount: u64) -> Result<(), BankError> {
///     # let _ = amount;
///     # Ok(())
/// }
/// ```
///
/// # Arguments
///
/// After, before or between the templates, each at most once:
///
/// | argument | | default |
/// | --- | --- | --- |
/// | `timeout = "5s"` | how long to wait for all locks together | for ever |
/// | `shared` | a share of each lock, beside others who have one | each for oneself |
/// | `permits = 3` | a permit of a semaphore with so many, instead of a lock | a lock |
/// | `coordinator = self.coordinator` | whose locks they are | the global one |
/// | `guard = guard` | a name for the guard inside the body | none |
/// | `on_lost = "finish"` | what becomes of the body when a lock is lost | `"cancel"` |
/// | `crate = path` | where the crate `coordination` is, for re-exports | `::coordination` |
///
/// * **`timeout`** is `500ms`, `5s`, `2m`, `1h` or a number of seconds, or any expression of type
///   [`Duration`](std::time::Duration), which may use the parameters. Zero means to try once.
/// * **`shared`** lets any number of such calls run at once, and none beside a call that has the lock for
///   itself: readers and writers. Whoever waits for a lock for himself goes before those who ask for a share
///   later.
/// * **`permits`** lets at most so many calls run at once: an expression of type `u32`, which may use the
///   parameters, `?` and, in an `async fn`, `await`. Every caller must say the same number, which is stored
///   with the semaphore's first use. A semaphore and a lock of one name are apart. Not with `shared`.
/// * **`coordinator`** is any expression with a method `lock(name)`, for permits `semaphore(name, permits)`, as
///   `coordination::Coordinator` has them, or in a plain `fn` `coordination::blocking::Coordinator`. It is
///   borrowed. It may use the parameters, `?` and, in an `async fn`, `await`.
/// * **`guard`** binds `&LockGuard`, for permits `&Permit`; with several templates a slice of them, sorted by
///   name, where equal names count once. It has the fencing token that writes should carry.
/// * **`on_lost`**: see below.
///
/// ```
/// # use coordination::{Coordinator, FencingToken, synchronized};
/// # type StorageError = coordination::Error;
/// # struct Disk;
/// # impl Disk {
/// #     async fn wipe(&self, _: FencingToken) -> Result<(), StorageError> { Ok(()) }
/// # }
/// # struct Volume { id: u64, coordinator: Coordinator }
/// # impl Volume {
/// #[synchronized("vol-{self.id}", coordinator = self.coordinator, guard = guard, timeout = "1m")]
/// async fn format(&self, disk: &Disk) -> Result<(), StorageError> {
///     disk.wipe(guard.token()).await
/// }
/// # }
/// ```
///
/// Several readers or one writer, and at most four uploads at once:
///
/// ```
/// # use coordination::synchronized;
/// # type StorageError = coordination::Error;
/// #[synchronized("catalogue", shared)]
/// async fn search(word: &str) -> Result<Vec<String>, StorageError> {
///     # let _ = word;
///     # Ok(Vec::new())
/// }
///
/// #[synchronized("catalogue")]
/// async fn rebuild() -> Result<(), StorageError> {
///     # Ok(())
/// }
///
/// #[synchronized("uploads", permits = 4, guard = permit)]
/// async fn upload(path: &str) -> Result<u32, StorageError> {
///     # let _ = path;
///     // Nobody else has this slot, one of four.
///     Ok(permit.slot())
/// }
/// ```
///
/// # When a lock is lost
///
/// What follows is about shares and permits, too.
///
/// A lock is lost when its session is: the store could not be reached for too long, says so, or an
/// operator broke the lock. Somebody else may then hold it.
///
/// * `on_lost = "cancel"`: the body is dropped at the await where it stands, and the caller gets the
///   error. A body that has no more awaits ends, and its success is replaced by the error.
/// * `on_lost = "finish"`: the body goes on, and the caller gets its result. For bodies that must not
///   stop half-way and whose writes are fenced.
///
/// A plain `fn` cannot be stopped: with `"cancel"` a success is replaced by the error.
///
/// The body's own error is never replaced, neither by a loss nor by a failed release.
///
/// # Errors
///
/// The function returns what the body returns, or a `coordination::Error`, turned into `E`, of the kind
///
/// * `Global`: there is no `coordinator` argument and no global coordinator. Install one at boot.
/// * `Name`: the rendered name is empty or too long.
/// * `Mismatch`, `Input`: the semaphore was made with another number of permits, or the number is none.
/// * `Timeout`: not all locks were free in time. The body did not run; what was taken is released.
/// * `Lost`, `Closed`: a lock was lost, or the coordinator stopped, after the body began. It may have
///   run in part or, in the cases above, to its end.
/// * any other that acquiring a lock has. The body did not run.
///
/// A release whose success is not known does not fail the call: it is logged as a warning and goes on
/// in the background.
///
/// # Cancel safety
///
/// Dropping the future drops the body where it stands, as without the attribute; the locks, or the
/// places in their queues, are given up in the background. So they are when the body panics.
///
/// # Not guaranteed
///
/// Cancelling stops a body at an await only. A body that computes, blocks or is paused, and a request
/// that is already on its way, go on after a loss and may overlap with the next holder. Where this
/// matters, pass the fencing token on with each write, and let the resource refuse older ones.
///
/// # Compile errors
///
/// Placeholders that start with no parameter, malformed templates, unknown or repeated arguments and
/// unusable return types are errors at the place of the fault, all in one build. The function is then
/// compiled without the lock, so that its callers and its body are still checked.
#[proc_macro_attribute]
pub fn synchronized(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::synchronized(arguments.into(), item.into()).into()
}
