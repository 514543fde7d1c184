//! The tests of `#[synchronized]` that need the library: what rustc says of it, and what its parsers make of any text.
//!
//! They are here and not beside the code, whose unit tests would build the library, and all that it depends on, a second
//! time: cargo builds whatever the unit tests of a procedural macro need apart from everything else.

#[path = "../../src/args.rs"]
mod args;
#[path = "../../src/errors.rs"]
mod errors;
#[path = "../../src/expand.rs"]
mod expand;
#[path = "../../src/function.rs"]
mod function;
mod fuzz;
#[path = "../../src/nearest.rs"]
mod nearest;
#[path = "../../src/parameters.rs"]
mod parameters;
#[path = "../../src/refusals.rs"]
mod refusals;
#[path = "../../src/template.rs"]
mod template;
mod ui;
