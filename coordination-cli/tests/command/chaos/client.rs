//! A client, which writes down what it was told and until when it may rely on that.

use std::io;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use coordination_history::{Event, NO_SLOT, Record, Why, now};
use coordination_tests::checks::tools::Chance;
use serde_json::{Value, json};

use super::instance::Instance;
use super::{HEARTBEAT, NAMES, Story, TTL, World, doze, nanos};
use crate::LONG;
use crate::http::{Answer, hold};

/// How much later than it was promised an answer may be, beside what the machine withholds.
const LATE: Duration = Duration::from_millis(1_000);

pub(super) struct Client<'w> {
    world: &'w World,
    chance: Chance,
    number: u32,
    /// The number of the present acquire.
    attempt: u64,
    story: Story,
}

/// What it was granted.
struct Held<'w> {
    instance: &'w Instance,
    /// Which start of the instance granted it.
    start: u32,
    object: u32,
    path: String,
    fence: u64,
    lease: Duration,
    /// Until when it may rely on that.
    until: u64,
}

/// A request's answer, and when it was sent.
struct Answered {
    sent: u64,
    answer: io::Result<Answer>,
}

impl<'w> Client<'w> {
    pub(super) fn new(world: &'w World, chance: Chance) -> Self {
        Self { world, chance, number: world.number(), attempt: 0, story: Story::default() }
    }

    /// One thing after the other until it is over.
    pub(super) fn run(mut self, is_over: impl Fn() -> bool) -> Story {
        while !is_over() {
            self.turn();
            doze(&mut self.chance, 60);
        }
        self.story
    }

    /// Once all is well again each lock is there for whoever wants it, and at each instance.
    pub(super) fn last_words(mut self) -> Story {
        let world = self.world;
        for instance in &world.instances {
            for object in 1..=NAMES.len() as u32 {
                let lease = Duration::from_secs(2);
                match self.acquire(instance, object, LONG, lease, 2 * LONG) {
                    Some(held) => self.release(held),
                    None => {
                        self.late("nothing is broken any more, and it is not granted".to_owned())
                    }
                }
            }
        }
        self.story
    }

    fn turn(&mut self) {
        let world = self.world;
        let object = 1 + self.chance.below(NAMES.len() as u64) as u32;
        let instance = &world.instances[self.chance.below(world.instances.len() as u64)];
        let wait = Duration::from_millis([0, 0, 300, 2_500][self.chance.below(4)]);
        let lease = Duration::from_millis(300 + self.chance.below(700) as u64);
        // One of eight dies before it has its answer, or hangs up just then.
        let dies = self.chance.below(8) == 0;
        let patience = match dies {
            true => Duration::from_millis(self.chance.below(wait.as_millis() as u64 + 50) as u64),
            false => wait + LONG,
        };
        match self.acquire(instance, object, wait, lease, patience) {
            Some(held) => self.hold(held),
            None => doze(&mut self.chance, 100),
        }
    }

    /// Asks for a lock, and writes down what came of it.
    fn acquire(
        &mut self,
        instance: &'w Instance,
        object: u32,
        wait: Duration,
        lease: Duration,
        patience: Duration,
    ) -> Option<Held<'w>> {
        self.attempt += 1;
        let path = format!("/v1/locks/{}", NAMES[object as usize - 1]);
        let body = json!({ "wait_ms": millis(wait), "lease_ms": millis(lease) }).to_string();
        let start = instance.start_number();
        self.record(object, Event::Call { shared: false, timeout: nanos(wait) });
        let is_killed = patience < wait + LONG;
        // One try has the time of a heartbeat.
        let within = (wait.max(HEARTBEAT), patience);
        let Answered { sent, answer } = self.ask(instance, ("POST", &path), &body, within);
        let refused = match answer {
            Ok(answer) if answer.status == 201 => {
                let told = answer.json();
                let fence = told["fence"].as_u64().expect("a number");
                self.world.grants.fetch_add(1, Ordering::Relaxed);
                self.record(object, Event::Granted { token: fence, slot: NO_SLOT });
                let until = relied_on(sent, &told);
                let path = hold(&told);
                return Some(Held { instance, start, object, path, fence, lease, until });
            }
            Ok(answer) => match (answer.status, &*answer.code()) {
                (409, "busy") => Event::Refused { why: Why::NotFree },
                (503, "store-away" | "draining" | "in-doubt") => {
                    Event::Refused { why: Why::Unavailable }
                }
                _ => {
                    self.wrong(&format!("POST {path} {body}: {answer:?}"));
                    Event::Cancelled
                }
            },
            Err(error) => {
                if !is_killed {
                    self.excuse(instance, start, sent, &error);
                }
                Event::Cancelled
            }
        };
        self.record(object, refused);
        None
    }

    /// Holds it for a while, renews it, and releases it or not.
    fn hold(&mut self, mut held: Held<'w>) {
        for _ in 0..self.chance.below(4) {
            doze(&mut self.chance, held.lease.as_millis() as u64 / 2);
            if now() >= held.until || !self.renew(&mut held) {
                break;
            }
        }
        doze(&mut self.chance, 100);
        match self.chance.below(4) {
            // It dies, or forgets it.
            0 => self.relied(&held, held.until),
            1 => {
                sleep(Duration::from_nanos(held.until.saturating_sub(now())));
                self.release(held);
            }
            _ => self.release(held),
        }
    }

    /// Whether it is still held.
    fn renew(&mut self, held: &mut Held<'w>) -> bool {
        let within = (Duration::ZERO, LONG);
        let Answered { sent, answer } = self.ask(held.instance, ("PUT", &held.path), "", within);
        match answer {
            Ok(answer) if answer.status == 200 => {
                let told = answer.json();
                if told["fence"].as_u64() != Some(held.fence) {
                    self.wrong(&format!("another fence than {}: {answer:?}", held.fence));
                }
                held.until = held.until.max(relied_on(sent, &told));
                true
            }
            Ok(answer) => {
                self.check_end(held, &answer);
                false
            }
            Err(error) => {
                self.excuse(held.instance, held.start, sent, &error);
                false
            }
        }
    }

    fn release(&mut self, held: Held<'w>) {
        self.relied(&held, held.until.min(now()));
        self.record(held.object, Event::ReleaseCall);
        let within = (TTL, LONG);
        let Answered { sent, answer } = self.ask(held.instance, ("DELETE", &held.path), "", within);
        let outcome = match answer {
            Ok(answer) if answer.status == 204 => 0,
            Ok(answer) if answer.status == 202 => 2,
            Ok(answer) => {
                self.check_end(&held, &answer);
                1
            }
            Err(error) => {
                self.excuse(held.instance, held.start, sent, &error);
                return;
            }
        };
        self.record(held.object, Event::ReleaseReturn { outcome });
    }

    /// What is held ends as was promised: not before its time, but for a loss, and unless another instance is there now.
    fn check_end(&mut self, held: &Held<'w>, answer: &Answer) {
        let is_another = held.instance.start_number() != held.start;
        let is_fine = match (answer.status, &*answer.code()) {
            (421, "wrong-instance") => is_another,
            (410, "ended") => match answer.json()["reason"].as_str() {
                Some("lost") => true,
                Some("expired") => now() >= held.until,
                _ => false,
            },
            _ => false,
        };
        if !is_fine {
            let left = held.until as i64 - now() as i64;
            self.wrong(&format!("{left} ns before its end {}: {answer:?}", held.path));
        }
    }

    /// Asks, and sees whether the answer comes within the first time of these; hangs up after the second.
    fn ask(
        &mut self,
        instance: &Instance,
        (method, path): (&str, &str),
        body: &str,
        (within, patience): (Duration, Duration),
    ) -> Answered {
        let sent = now();
        let answer = instance.ask(method, path, body, patience);
        let took = Duration::from_nanos(now() - sent);
        let excused = instance.away_between(sent, now());
        let allowed = within + LATE + excused + self.world.lag.allowance(sent, now());
        if took > allowed {
            let told = format!("{method} {path} {body}: {took:?} for {within:?}: {answer:?}");
            self.late(told);
        }
        Answered { sent, answer }
    }

    /// An answer that does not come is wrong, unless the instance has failed meanwhile.
    fn excuse(&mut self, instance: &Instance, start: u32, sent: u64, error: &io::Error) {
        if instance.away_between(sent, now()).is_zero() && instance.start_number() == start {
            self.late(format!("no answer of an instance that runs: {error}"));
        }
    }

    /// Until when it relied on the hold.
    fn relied(&mut self, held: &Held<'w>, until: u64) {
        let event = Event::Probe { before: until, held: true };
        self.add(held.object, until, event);
    }

    fn record(&mut self, object: u32, event: Event) {
        self.add(object, now(), event);
    }

    fn add(&mut self, object: u32, at: u64, event: Event) {
        let (client, attempt) = (self.number, self.attempt);
        self.story.records.push(Record { at, client, attempt, object, event });
    }

    fn wrong(&mut self, what: &str) {
        self.story.wrong.push(format!("client {}: {what}", self.number));
    }

    fn late(&mut self, what: String) {
        self.story.late.push(what);
    }
}

/// Until when its client may rely on it, by the client's own clock.
fn relied_on(sent: u64, told: &Value) -> u64 {
    let millis = |name: &str| told[name].as_u64().unwrap_or_default() * 1_000_000;
    sent + millis("took_ms") / 1_000 * 995 + millis("expires_in_ms")
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
