//! What is counted, as OpenMetrics text. No label has a name, a principal or an address.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::holds::End;

/// The bounds of the histograms, in seconds.
const BOUNDS: [f64; 10] = [0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0, 3_600.0];

#[derive(Debug, Default)]
struct Histogram {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

#[derive(Debug, Default)]
struct Counts {
    requests: BTreeMap<(&'static str, String, u16), u64>,
    refused: BTreeMap<&'static str, u64>,
    waits: BTreeMap<&'static str, Histogram>,
    holds: BTreeMap<&'static str, Histogram>,
}

/// Numbers that only rise.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<Counts>);

impl Metrics {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request was answered, or its client had gone: 499.
    pub(crate) fn answered(&self, route: &'static str, method: &str, status: u16) {
        let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"].contains(&method);
        let method = if known { method } else { "other" }.to_owned();
        *self.counts().requests.entry((route, method, status)).or_default() += 1;
    }

    /// A request was refused, for this reason.
    pub(crate) fn refused(&self, reason: &'static str) {
        *self.counts().refused.entry(reason).or_default() += 1;
    }

    /// A wait for a lock has ended.
    pub(crate) fn waited(&self, outcome: &'static str, time: Duration) {
        self.counts().waits.entry(outcome).or_default().add(time);
    }

    /// A hold has ended.
    pub(crate) fn ended(&self, granted: SystemTime, end: End) {
        let time = granted.elapsed().unwrap_or_default();
        self.counts().holds.entry(end.text()).or_default().add(time);
    }

    /// All of it; `gauges` are names and numbers as of now.
    pub(crate) fn text(&self, gauges: &[(&str, &str, f64)]) -> String {
        let mut text = String::new();
        let counts = self.counts();
        header(&mut text, "http_requests", "counter", "Requests that were answered.");
        for ((route, method, status), count) in &counts.requests {
            let labels = format!("route=\"{route}\",method=\"{method}\",status=\"{status}\"");
            let _ = writeln!(text, "coordination_http_requests_total{{{labels}}} {count}");
        }
        header(&mut text, "refused", "counter", "Requests that were refused.");
        for (reason, count) in &counts.refused {
            let _ = writeln!(text, "coordination_refused_total{{reason=\"{reason}\"}} {count}");
        }
        header(&mut text, "wait_seconds", "histogram", "How long requests waited for a lock.");
        for (outcome, histogram) in &counts.waits {
            histogram.write(
                &mut text,
                "wait_seconds",
                &format!("kind=\"lock\",outcome=\"{outcome}\""),
            );
        }
        header(&mut text, "hold_seconds", "histogram", "How long locks were held.");
        for (end, histogram) in &counts.holds {
            histogram.write(&mut text, "hold_seconds", &format!("kind=\"lock\",end=\"{end}\""));
        }
        for (name, help, value) in gauges {
            let family = name.split('{').next().unwrap_or(name);
            header(&mut text, family, "gauge", help);
            let _ = writeln!(text, "coordination_{name} {value}");
        }
        text.push_str("# EOF\n");
        text
    }
}

fn header(text: &mut String, family: &str, kind: &str, help: &str) {
    let _ =
        writeln!(text, "# TYPE coordination_{family} {kind}\n# HELP coordination_{family} {help}");
}

impl Histogram {
    fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        for (bucket, bound) in self.buckets.iter_mut().zip(BOUNDS) {
            *bucket += u64::from(seconds <= bound);
        }
        self.count += 1;
        self.sum += seconds;
    }

    fn write(&self, text: &mut String, family: &str, labels: &str) {
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS) {
            let _ = writeln!(
                text,
                "coordination_{family}_bucket{{{labels},le=\"{bound:?}\"}} {bucket}"
            );
        }
        let _ =
            writeln!(text, "coordination_{family}_bucket{{{labels},le=\"+Inf\"}} {}", self.count);
        let _ = writeln!(text, "coordination_{family}_count{{{labels}}} {}", self.count);
        let _ = writeln!(text, "coordination_{family}_sum{{{labels}}} {}", self.sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_cumulative_and_ends() {
        let metrics = Metrics::default();
        metrics.answered("/v1/locks/{name}", "BREW", 201);
        metrics.waited("granted", Duration::from_millis(20));
        let text = metrics.text(&[("holds{kind=\"lock\"}", "Holds.", 3.0)]);
        for line in [
            "coordination_http_requests_total{route=\"/v1/locks/{name}\",method=\"other\",status=\"201\"} 1",
            "coordination_wait_seconds_bucket{kind=\"lock\",outcome=\"granted\",le=\"0.005\"} 0",
            "coordination_wait_seconds_bucket{kind=\"lock\",outcome=\"granted\",le=\"0.025\"} 1",
            "coordination_wait_seconds_bucket{kind=\"lock\",outcome=\"granted\",le=\"+Inf\"} 1",
            "# TYPE coordination_holds gauge",
            "coordination_holds{kind=\"lock\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
