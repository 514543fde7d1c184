//! F-71: certificates that are replaced in their files.

use std::sync::Arc;

use coordination_tests::faults::tls;
use coordination_tests::harness::{Mysql, Server, rerun_if_starved};

use crate::WORKER;

#[test]
fn f71_certificates_replaced() {
    rerun_if_starved(|| {
        tls::f71_certificates_replaced(
            WORKER,
            |certificates| {
                let options = Mysql::options().tls(certificates, &certificates.server, true);
                let mysql = options.start();
                let at = mysql.authority();
                (Arc::new(mysql), at)
            },
            // The server reads the files themselves when it starts.
            |_| {},
        );
    });
}
