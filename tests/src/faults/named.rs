//! F-69: a host name has several addresses, and the first ones never answer.

use super::connecting::Traced;
use super::{Site, server};
use crate::harness::Named;

/// F-69: one of two addresses never answers, neither when clients connect nor when they reconnect after the server
/// was killed and started again.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f69_one_address_silent(site: &Site) {
    silent(site, 1);
}

/// F-69: two of three addresses never answer, neither when clients connect nor when they reconnect after the server
/// was killed and started again.
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

/// F-69: if one host's name has no address, clients connect to the other host, whatever name its certificate has.
pub fn f69_one_name_unknown(site: &Site) {
    let there = site.server().authority();
    // The client connects several times, because it may begin with either host.
    for _ in 0..4 {
        connects(&site.at(format!("host.invalid,{there}")));
    }
}

/// Asserts that a client connects, within the time limit that connecting has, and that it can use the store.
fn connects(site: &Site) {
    Traced::new(&site.worker, &[]).connects(&site.url);
}
