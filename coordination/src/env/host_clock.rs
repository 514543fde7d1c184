//! The host's clock since boot: the same for all its processes, containers included.

use std::fs;
use std::time::Duration;

use crate::time::BootInstant;

/// What is needed to read the host's clock.
#[derive(Clone, Copy)]
pub(crate) struct HostClock {
    /// A number that differs from boot to boot and from host to host.
    epoch: u64,
    /// By how many nanoseconds this process' clock is ahead of the host's. Not zero in a time namespace, which has the host's boot
    /// id but a clock of its own.
    ahead: i128,
}

impl HostClock {
    /// `None` if the system does not say which boot this is, or by how much its clock is ahead.
    pub(crate) fn find() -> Option<Self> {
        #[cfg(all(coordination_internals, feature = "memory"))]
        if let Some(epoch) = super::simulated::host() {
            return Some(Self { epoch, ahead: 0 });
        }
        if super::is_plain() {
            return None;
        }
        Some(Self { epoch: boot_id()?, ahead: ahead()? })
    }

    pub(crate) fn epoch(self) -> u64 {
        self.epoch
    }

    /// What the host's clock shows when our own clock shows `moment`.
    pub(crate) fn at(self, moment: BootInstant) -> Duration {
        let shown = i128::from(moment.as_nanos()) - self.ahead;
        Duration::from_nanos(u64::try_from(shown).unwrap_or_default())
    }

    /// What our own clock shows when the host's clock shows `shown`.
    pub(crate) fn moment(self, shown: Duration) -> Option<BootInstant> {
        let nanos = i128::try_from(shown.as_nanos()).ok()? + self.ahead;
        u64::try_from(nanos).ok().map(BootInstant::from_nanos)
    }
}

/// The kernel's id of this boot, as a number.
fn boot_id() -> Option<u64> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).ok()
}

fn ahead() -> Option<i128> {
    let Ok(own) = fs::read_link("/proc/self/ns/time") else {
        // Before Linux 5.6 there are no time namespaces, so our clock is the host's.
        return Some(0);
    };
    // The file has the offsets of the namespace that new children get. They apply to our own clock only if that namespace is our
    // own.
    let is_same = fs::read_link("/proc/self/ns/time_for_children").is_ok_and(|its| its == own);
    let offsets = fs::read_to_string("/proc/self/timens_offsets").ok().filter(|_| is_same);
    parse(&offsets?)
}

/// The offset of the clock since boot, in nanoseconds. Its line has the clock's name, seconds, and nanoseconds, which are not
/// negative.
fn parse(offsets: &str) -> Option<i128> {
    let mut lines = offsets.lines().map(str::split_whitespace);
    let mut words = lines.find_map(|mut words| (words.next()? == "boottime").then_some(words))?;
    let mut number = || words.next()?.parse::<i64>().ok().map(i128::from);
    Some(number()? * 1_000_000_000 + number()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_the_kernel_shows_them() {
        let shown = "monotonic           0         0\nboottime       950400         7\n";
        assert_eq!(parse(shown), Some(950_400_000_000_007));
        let before = "monotonic  0 0\nboottime  -11 500000000\n";
        assert_eq!(parse(before), Some(-10_500_000_000));
        for odd in ["", "boottime", "boottime 1", "boottime x 0", "monotonic 0 0"] {
            assert_eq!(parse(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn it_goes_on() {
        let Some(clock) = HostClock::find() else {
            return assert!(super::super::is_plain(), "Linux tells");
        };
        let moments = [BootInstant::now(), BootInstant::now()];
        let [before, after] = moments.map(|moment| clock.at(moment));
        assert!(before <= after && before > Duration::ZERO);
        assert_eq!(moments.map(|moment| clock.moment(clock.at(moment))), moments.map(Some));
    }
}
