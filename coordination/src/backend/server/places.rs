//! The places of a URL's servers: each host at each of the addresses that its name has.
//!
//! Of the addresses of one name, some may answer and some not. So each address is tried as if it were a server of its own, with the
//! full time to answer. A host's name is looked up when the host is the next one to connect to. After all places have failed, the
//! name is looked up anew, as it may have other addresses by then.

use std::collections::HashSet;
use std::net::SocketAddr;

/// A host of the URL, at one of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The index of the host in the URL.
    pub(crate) host: usize,
    /// `None`: the host's name has to be looked up first, either for the first time, or again because all places have failed.
    pub(crate) address: Option<SocketAddr>,
}

/// All places, each with the number of failures since a server last answered there, and the place to connect to next.
#[derive(Debug)]
pub(super) struct Places {
    all: Vec<(Place, u32)>,
    /// The index of the place to connect to.
    current: usize,
    hosts: usize,
    /// The places where a server has answered. After a new lookup these are tried first.
    answered: HashSet<Place>,
}

impl Places {
    /// The places of `hosts` hosts, at least one.
    pub(super) fn new(hosts: usize) -> Self {
        let mut places =
            Self { all: Vec::new(), current: 0, hosts: hosts.max(1), answered: HashSet::new() };
        places.forget();
        places
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Whether `is_so` is true for all places.
    pub(super) fn all(&self, is_so: impl Fn(&Place) -> bool) -> bool {
        self.all.iter().all(|(place, _)| is_so(place))
    }

    /// The place to connect to.
    pub(super) fn current(&self) -> Place {
        // Invariant: there is at least one place for each host, and `current` is the index of a place.
        self.all[self.current].0
    }

    /// To be called when the name of the current place's host was looked up. Replaces the current place by one place for each of
    /// these addresses. If there are none, the current place stays.
    pub(super) fn found(&mut self, addresses: &[SocketAddr]) {
        let Place { host, .. } = self.current();
        let at = |address: &SocketAddr| Place { host, address: Some(*address) };
        let mut found: Vec<_> = addresses.iter().map(at).collect();
        self.answered.retain(|place| place.host != host || found.contains(place));
        // Addresses where a server has answered come first. The sort is stable, so all others stay in the order of the system's
        // resolver.
        found.sort_by_key(|place| !self.answered.contains(place));
        if !found.is_empty() {
            let found = found.into_iter().map(|place| (place, 0));
            self.all.splice(self.current..=self.current, found);
        }
    }

    /// Notes that the current place has failed. The next place is the one with the fewest failures since a server last answered
    /// there. Among places with equally few failures, those where a server has ever answered come first. If several are left, it is
    /// the one that comes next in the list.
    pub(super) fn failed(&mut self) {
        self.all[self.current].1 += 1;
        let count = self.all.len();
        let in_turn = (1..=count).map(|step| (self.current + step) % count);
        let next = in_turn.min_by_key(|index| {
            let (place, failures) = &self.all[*index];
            (*failures, !self.answered.contains(place))
        });
        self.current = next.unwrap_or_default();
    }

    /// Notes that a server has answered at the current place.
    pub(super) fn answered(&mut self) {
        self.all[self.current].1 = 0;
        self.answered.insert(self.current());
    }

    /// Called when all places have failed. Forgets all addresses, so that each host's name is looked up anew when its turn comes.
    /// The current host is still the next one to connect to.
    pub(super) fn forget(&mut self) {
        let host = self.all.get(self.current).map_or(0, |(place, _)| place.host);
        let unknown = |host| (Place { host, address: None }, 0);
        self.all = (0..self.hosts).map(unknown).collect();
        self.current = host;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 1))
    }

    fn at(host: usize, last: u8) -> Place {
        Place { host, address: Some(address(last)) }
    }

    #[test]
    fn each_address_has_its_turn_and_the_other_hosts_too() {
        let mut places = Places::new(2);
        assert_eq!(places.current(), Place { host: 0, address: None });
        places.found(&[address(1), address(2)]);
        assert_eq!((places.current(), places.count()), (at(0, 1), 3));
        places.failed();
        assert_eq!(places.current(), at(0, 2));
        places.failed();
        assert_eq!(places.current(), Place { host: 1, address: None });
        places.found(&[address(3)]);
        assert_eq!(places.current(), at(1, 3));
        places.failed();
        assert_eq!(places.current(), at(0, 1));
    }

    #[test]
    fn a_name_that_is_looked_up_anew_is_tried_first_where_somebody_has_answered() {
        let mut places = Places::new(1);
        places.found(&[address(1), address(2)]);
        places.failed();
        places.answered();
        places.failed();
        places.forget();
        assert_eq!((places.current(), places.count()), (Place { host: 0, address: None }, 1));
        places.found(&[address(1), address(2)]);
        assert_eq!(places.current(), at(0, 2));
        // The next lookup finds other addresses.
        places.forget();
        places.found(&[address(4), address(5)]);
        assert_eq!(places.current(), at(0, 4));
        assert!(places.answered.is_empty());
    }

    #[test]
    fn a_place_that_has_never_answered_is_not_before_one_that_has() {
        let mut places = Places::new(1);
        places.found(&[address(1), address(2), address(3)]);
        places.failed();
        places.answered();
        places.failed();
        assert_eq!(places.current(), at(0, 3), "it has not failed yet");
        places.failed();
        assert_eq!(places.current(), at(0, 2), "its connection broke, and it may be there again");
        places.failed();
        assert_eq!(places.current(), at(0, 3));
    }
}
