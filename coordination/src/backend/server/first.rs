//! How long each try to make the first connection may take.

use std::time::{Duration, Instant};

/// How long the first connection may take, all servers together: there is nothing yet that could be lost by patience.
/// It is less than connecting may take in all, so that a session can still be opened on the last of them.
pub(super) const LONGEST: Duration = Duration::from_secs(3);

/// The tries to make the first connection.
#[derive(Default)]
pub(super) struct First {
    tries: u32,
    until: Option<Instant>,
}

impl First {
    /// How long the next try may take: its share of what is left, so that one that fails at once leaves its time to servers
    /// that are far away.
    pub(super) fn share(&mut self, servers: usize) -> Duration {
        let servers = u32::try_from(servers).unwrap_or(u32::MAX);
        let share = self.left() / (servers - self.tries % servers);
        self.tries += 1;
        share.max(LONGEST / servers)
    }

    /// How long it may take to look up the name of one of so many hosts.
    pub(super) fn lookup(&mut self, hosts: usize) -> Duration {
        let hosts = u32::try_from(hosts).unwrap_or(u32::MAX).max(1);
        (self.left() / hosts).max(LONGEST / 10)
    }

    /// What is left of the time, from the first try on.
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
        // All before it have failed at once.
        assert!(shares[7] > LONGEST / 2, "{shares:?}");
        first.until = Some(Instant::now());
        assert_eq!(first.share(8), LONGEST / 8);
    }
}
