//! How long each try to make the first connection of a process may take.

use std::time::{Duration, Instant};

/// The time for making the first connection, for the tries on all servers together. It does not depend on the lease, because no
/// session exists yet that could expire before the connection is made. It is shorter than the time that the user's call of
/// `connect` may take, so that there is time left to open a session on the server that is tried last.
pub(super) const LONGEST: Duration = Duration::from_secs(3);

/// Divides the time for the first connection among the servers.
#[derive(Default)]
pub(super) struct First {
    tries: u32,
    until: Option<Instant>,
}

impl First {
    /// How long the next try may take: the time that is left, divided by the number of servers that are still to be tried before
    /// the first server is tried again. So if a server fails at once, the other servers, which may be far away, get the time that
    /// it did not use. A try has at least an equal share of [`LONGEST`].
    pub(super) fn share(&mut self, servers: usize) -> Duration {
        let servers = u32::try_from(servers).unwrap_or(u32::MAX);
        let share = self.left() / (servers - self.tries % servers);
        self.tries += 1;
        share.max(LONGEST / servers)
    }

    /// How long the lookup of one host's name may take: the time that is left, divided by the number of hosts, but at least a tenth
    /// of [`LONGEST`].
    pub(super) fn lookup(&mut self, hosts: usize) -> Duration {
        let hosts = u32::try_from(hosts).unwrap_or(u32::MAX).max(1);
        (self.left() / hosts).max(LONGEST / 10)
    }

    /// The time that is left, counted from the first try.
    fn left(&mut self) -> Duration {
        let now = Instant::now();
        self.until.get_or_insert(now + LONGEST).saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_for_the_first_connection_is_shared() {
        let mut first = First::default();
        let shares: Vec<_> = (0..8).map(|_| first.share(8)).collect();
        assert!(shares[0].abs_diff(LONGEST / 8) < LONGEST / 100, "{shares:?}");
        // The seven tries before have failed at once, so the last try has nearly all of the time.
        assert!(shares[7] > LONGEST / 2, "{shares:?}");
        first.until = Some(Instant::now());
        assert_eq!(first.share(8), LONGEST / 8);
    }
}
