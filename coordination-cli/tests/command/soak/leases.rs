//! H2, H3: leases end when they are over, not before, and the next client is granted the lock at once. The gate sees a few ends; so many
//! show what goes wrong now and then.

use std::thread;
use std::time::{Duration, Instant};

use coordination_tests::checks::tools::Chance;
use coordination_tests::harness::{Etcd, Redis, SchedulerLag, Server, rerun_alone};
use coordination_tests::must_hold;
use serde_json::json;

use crate::Store;
use crate::http::{Kept, Service, answer, hold, send};

/// How late the next client may have its answer, but for what the machine withholds.
const LATE: Duration = Duration::from_millis(20);
/// The lease that a renewal is to win or lose: the shortest that there is.
const RACED: Duration = Duration::from_millis(100);

/// Four moments of one lease and what came after it, by the clients' clock.
struct Lease {
    length: Duration,
    asked: Instant,
    answered: Instant,
    /// When the next client had its answer.
    next: Instant,
}

impl Lease {
    /// How late the next client was, but for what the machine withheld; it must not be early.
    fn late(&self) -> Duration {
        let after = self.next - self.asked;
        must_hold!(after >= self.length, "a lease of {:?} was over after {after:?}", self.length);
        // It began before its answer was read.
        let took = self.next - self.answered;
        took.saturating_sub(self.length).saturating_sub(SchedulerLag::lately(took))
    }
}

/// All clients at the same time, each with a sequence of its own.
fn at_once<T: Send + 'static>(
    clients: usize,
    check: impl Fn(usize, &mut Chance) -> T + Sync,
) -> Vec<T> {
    let mut chance = Chance::new("leases");
    thread::scope(|scope| {
        let check = &check;
        let begin = |client| {
            let mut chance = chance.fork();
            scope.spawn(move || check(client, &mut chance))
        };
        let clients: Vec<_> = (0..clients).map(begin).collect();
        clients.into_iter().map(|client| client.join().expect("it succeeds")).collect()
    })
}

fn assert_in_time(what: &str, late: Vec<Vec<Duration>>) {
    let mut late: Vec<_> = late.into_iter().flatten().collect();
    late.sort();
    let (median, worst) = (late[late.len() / 2], late[late.len() - 1]);
    let beyond = late.iter().filter(|late| **late > LATE).count();
    println!("{what}: {} ends, {median:?} late, {worst:?} at most", late.len());
    assert_eq!(beyond, 0, "{what}: more than {LATE:?} late, {worst:?} at most");
}

/// H2, RD1: rdlm looks once a second for what is over. A hundred leases of one second by its API.
#[test]
fn h2_a_second_is_a_second_for_rdlms_clients() {
    rerun_alone(|| {
        let store = Store::file();
        let service = Service::start(&store, "--no-access-log");
        let late = at_once(10, |client, chance| {
            let (mut client, path) = (Kept::open(&service.rdlm), format!("/locks/second{client}"));
            // Not all of them in the same millisecond.
            thread::sleep(Duration::from_millis(chance.below(1_000) as u64));
            (0..10).map(|_| rdlms(&mut client, &path)).collect::<Vec<_>>()
        });
        assert_in_time("rdlm's API, file", late);
    });
}

/// How late the end of a lease of a second is by rdlm's API.
fn rdlms(client: &mut Kept, path: &str) -> Duration {
    let asked = Instant::now();
    let first = client.ask("POST", path, r#"{"lifetime":1,"wait":0,"title":""}"#);
    let answered = Instant::now();
    assert_eq!(first.status, 201, "{first:?}");
    let second = client.ask("POST", path, r#"{"lifetime":60,"wait":30,"title":""}"#);
    let next = Instant::now();
    assert_eq!(second.status, 201, "{second:?}");
    let url = second.header("location").expect("it has one");
    let late = Lease { length: Duration::from_secs(1), asked, answered, next }.late();
    let lock = url.find("/locks/").map_or("", |begin| &url[begin..]);
    assert_eq!(client.ask("DELETE", lock, "").status, 204, "{url}");
    late
}

/// H3: ten thousand on memory, where nothing but the service is slow.
#[test]
fn h3_ten_thousand_leases_end_in_time() {
    rerun_alone(|| {
        ends("memory", &Store::at("memory://".to_owned()), "--fresh --no-access-log", 20, 500);
    });
}

/// H3: a thousand on each of three stores that are asked at the end of each lease.
#[test]
fn h3_leases_end_in_time_on_each_store() {
    rerun_alone(|| {
        ends("file", &Store::file(), "--no-access-log", 10, 100);
        let etcd = Etcd::one();
        let store = Store::at(etcd.url(&etcd.authority(), "leases"));
        ends("etcd", &store, "--no-access-log", 10, 100);
        let redis = Redis::one();
        let store = Store::at(redis.url(&redis.authority(), "leases"));
        ends("redis", &store, "--no-access-log", 10, 100);
    });
}

/// So many clients let so many leases each end, of 100 to 500 ms.
fn ends(what: &str, store: &Store, words: &str, clients: usize, each: usize) {
    let service = Service::start(store, words);
    let late = at_once(clients, |client, chance| {
        let (mut client, path) = (Kept::open(&service.native), format!("/v1/locks/lease{client}"));
        let late = |_| end(&mut client, &path, 100 + chance.below(401));
        (0..each).map(late).collect::<Vec<_>>()
    });
    assert_in_time(what, late);
}

/// How late the end of a lease of so many milliseconds is.
fn end(client: &mut Kept, path: &str, length: usize) -> Duration {
    let asked = Instant::now();
    let first = client.ask("POST", path, &json!({ "lease_ms": length }).to_string());
    let answered = Instant::now();
    assert_eq!(first.status, 201, "{first:?}");
    let second = client.ask("POST", path, r#"{"wait_ms":20000}"#);
    let next = Instant::now();
    assert_eq!(second.status, 201, "{second:?}");
    let length = Duration::from_millis(length as u64);
    let late = Lease { length, asked, answered, next }.late();
    assert_eq!(client.ask("DELETE", &hold(&second.json()), "").status, 204);
    late
}

/// H3: of a renewal and the end of the lease one wins, and whoever waits is granted the lock when the lease that won is over.
#[test]
fn h3_of_a_renewal_and_the_end_one_wins() {
    rerun_alone(|| {
        races(&Store::at("memory://".to_owned()), "--fresh --no-access-log");
        races(&Store::file(), "--no-access-log");
    });
}

fn races(store: &Store, words: &str) {
    let service = Service::start(store, words);
    let won = at_once(8, |client, chance| {
        let (mut client, path) = (Kept::open(&service.native), format!("/v1/locks/race{client}"));
        let won = |_| is_renewed(&service.native, &mut client, &path, chance);
        (0..60).map(won).collect::<Vec<_>>()
    });
    let won: Vec<_> = won.into_iter().flatten().collect();
    let renewals = won.iter().filter(|is_renewed| **is_renewed).count();
    println!("{}: {renewals} of {} renewals won", store.url, won.len());
    assert!((1..won.len()).contains(&renewals), "no race: {renewals} of {} won", won.len());
}

/// Renews at about the end of the lease, while somebody waits; whether the renewal won.
fn is_renewed(at: &str, client: &mut Kept, path: &str, chance: &mut Chance) -> bool {
    let body = json!({ "lease_ms": RACED.as_millis() as u64 }).to_string();
    let asked = Instant::now();
    let first = client.ask("POST", path, &body);
    let answered = Instant::now();
    assert_eq!(first.status, 201, "{first:?}");
    let waiter = send(at, "POST", path, &[], r#"{"wait_ms":20000}"#);
    // From a tenth before the end until a little after it.
    let moment = RACED.mul_f64(0.9) + Duration::from_micros(chance.below(15_000) as u64);
    thread::sleep(moment.saturating_sub(answered.elapsed()));
    let renewing = Instant::now();
    let renewed = client.ask("PUT", &hold(&first.json()), "");
    let next = answer(waiter);
    let granted = Instant::now();
    assert_eq!(next.status, 201, "{next:?}");
    let is_renewed = match renewed.status {
        200 => true,
        _ => {
            let reason = renewed.json()["reason"].clone();
            assert_eq!((renewed.status, reason), (410, json!("expired")), "{renewed:?}");
            false
        }
    };
    let after = granted - if is_renewed { renewing } else { asked };
    must_hold!(after >= RACED, "renewed: {is_renewed}, and the next one came after {after:?}");
    let (fence, before) = (next.json()["fence"].as_u64(), first.json()["fence"].as_u64());
    must_hold!(before.is_some() && fence > before, "{fence:?} after {before:?}");
    assert_eq!(client.ask("DELETE", &hold(&next.json()), "").status, 204);
    is_renewed
}
