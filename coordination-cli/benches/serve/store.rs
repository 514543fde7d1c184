//! A store that is new, in a directory or on a server of its own.

use std::any::Any;

use coordination_tests::harness::{Etcd, Redis, Scratch, Server};

use crate::{Bench, Outcome};

pub(crate) struct Store {
    pub(crate) url: String,
    /// Removed, or ended, with this value.
    _kept: Box<dyn Any>,
}

impl Store {
    pub(crate) fn start(bench: &Bench, name: &str) -> Outcome<Self> {
        bench.processors.there(|| match name {
            "memory" => Ok(Self { url: "memory://serve".to_owned(), _kept: Box::new(()) }),
            "file" => {
                let scratch = Scratch::new("serve");
                let url = format!("file://{}", scratch.join("locks").display());
                Ok(Self { url, _kept: Box::new(scratch) })
            }
            "etcd" => Ok(Self::on(Etcd::one())),
            "redis" => Ok(Self::on(Redis::one())),
            _ => Err(format!("no store of ours: {name}").into()),
        })
    }

    fn on<S: Server + 'static>(server: S) -> Self {
        let url = server.url(&Server::authority(&server), "serve");
        Self { url, _kept: Box::new(server) }
    }
}
