//! Functions that a `macro_rules` macro makes: the literal, the parameters and `self` may come
//! from the macro or from its caller.

use coordination::{Coordinator, Error, synchronized};

macro_rules! by_literal {
    ($name:ident, $template:literal) => {
        #[synchronized($template)]
        async fn $name(id: u8) -> Result<(), Error> {
            Ok(())
        }
    };
}

by_literal!(from_caller, "a-<id>");

macro_rules! method {
    ($template:literal, $timeout:expr, $coordinator:expr, $output:ty) => {
        #[synchronized($template, timeout = $timeout, coordinator = $coordinator)]
        async fn resize(&self, gib: u64) -> $output {
            Ok(gib)
        }
    };
}

struct Volume {
    id: u8,
}

impl Volume {
    method!("vol-<self.id>-<gib>", "5s", Coordinator::global()?, Result<u64, Error>);
}

macro_rules! whole {
    ($function:item) => {
        #[synchronized("whole-<id>", guard = guard)]
        $function
    };
}

whole! {
    fn passed_on(id: u8) -> Result<u8, Error> {
        Ok(id)
    }
}

fn main() {
    drop(from_caller(1));
    drop(Volume { id: 1 }.resize(2));
    let _ = passed_on;
}
