//! F-69: a name has several addresses, and nothing comes back from the first ones.

use super::connecting::Traced;
use super::{Site, server};
use crate::harness::Named;

/// F-69: one address is silent, when clients connect and when the server is killed and started again.
///
/// # Panics
///
/// When a row does not hold; likewise below.
pub fn f69_one_address_silent(site: &Site) {
    silent(site, 1);
}

/// F-69: so are two of three.
pub fn f69_two_addresses_silent(site: &Site) {
    silent(site, 2);
}

fn silent(site: &Site, addresses: u32) {
    let nodes = site.server().nodes();
    let ports: Vec<_> = nodes.iter().map(|node| node.address().port()).collect();
    let named = Named::new(addresses, &ports);
    let site = site.at(named.authority(&site.server().authority()));
    connects(&site);
    server::f07_server_restarted(&site);
}

/// F-69: a host whose name has no address is left, whatever the certificate's name is.
pub fn f69_one_name_unknown(site: &Site) {
    let there = site.server().authority();
    // Which is the first may be left to chance.
    for _ in 0..4 {
        connects(&site.at(format!("host.invalid,{there}")));
    }
}

/// A client connects, which has its own limit of time, and all works.
fn connects(site: &Site) {
    Traced::new(&site.worker, &[]).connects(&site.url);
}
