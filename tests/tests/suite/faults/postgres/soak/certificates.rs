//! F-71: certificates that are replaced in their files.

use std::sync::{Arc, OnceLock};

use coordination_tests::faults::tls;
use coordination_tests::harness::{Postgres, Server, rerun_if_starved};

use crate::WORKER;

#[test]
fn f71_certificates_replaced() {
    rerun_if_starved(|| {
        let started = OnceLock::new();
        tls::f71_certificates_replaced(
            WORKER,
            |certificates| {
                let options = Postgres::options().tls(certificates, &certificates.server, true);
                let postgres = started.get_or_init(|| Arc::new(options.start()));
                let server: Arc<dyn Server> = postgres.clone();
                (server, postgres.authority())
            },
            |certificates| {
                let postgres: &Arc<Postgres> = started.get().expect("it was started");
                postgres.put_certificates(certificates);
            },
        );
    });
}
