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
//! | `parameters` | what the function was given becomes the body's own |
//! | `refusals` | functions that cannot be synchronized as they stand |
//! | `expand` | puts it together again; its documentation shows the generated code |
//! | `nearest` | what an unknown name was probably meant to be |
//! | `errors` | collects faults, so that one build shows all of them |
//!
//! What happens at run time, in which order and what the caller gets, is
//! `coordination/src/private.rs`.
//!
//! # Tests
//!
//! What the attribute does is tested in `tests/tests/suite/gate/macros/` of the workspace. What it refuses, in which words
//! and at which place, is in `tests/ui`; `tests/attribute` compiles that, runs the unit tests that stand beside the code,
//! and says why they are run from there. The examples in the documentation are run by the crate `coordination`.
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
mod nearest;
mod parameters;
mod refusals;
mod template;

use proc_macro::TokenStream;

#[doc = include_str!("synchronized.md")]
#[proc_macro_attribute]
pub fn synchronized(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::synchronized(arguments.into(), item.into()).into()
}
