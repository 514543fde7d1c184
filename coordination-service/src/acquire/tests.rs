use coordination::{Config, Coordinator};

use super::*;
use crate::auth::{Auth, Principal, make_token};
use crate::delivery::Deliver;
use crate::holds::{End, Hold};
use crate::keys::{self, Asked};
use crate::kind::Kind;
use crate::look;
use crate::service::Service;
use crate::settings::{Cover, Settings};
use crate::wanted::{Places, What};

/// An instance on a store of its own, with another session there.
pub(crate) async fn instance(cover: Cover) -> (Shared, Coordinator) {
    instance_with(Settings::default(), cover).await
}

/// The same with these settings.
pub(crate) async fn instance_with(settings: Settings, cover: Cover) -> (Shared, Coordinator) {
    instance_at(settings, cover, &format!("memory://{}", ids::letters(12))).await
}

async fn instance_at(settings: Settings, cover: Cover, url: &str) -> (Shared, Coordinator) {
    let auth = Auth::new(None, false).expect("there is no file to read");
    let settings = Settings { access_log: false, ..settings };
    let service = Service::new(settings, cover, "memory".to_owned(), auth, None);
    let mut config = Config::default();
    config.url = Some(url.to_owned());
    service.coordinator.send_replace(Some(config.connect().await.expect("it is there")));
    (service, Coordinator::connect(url).await.expect("it is there"))
}

pub(crate) fn wanted(wait: u64) -> Wanted {
    Wanted {
        what: What::Lock { shared: false },
        name: "x".to_owned(),
        wait: Duration::from_millis(wait),
        keep: Duration::ZERO,
        lease: Duration::from_secs(60),
        relies_on_lease: false,
        title: String::new(),
        client: "me".to_owned(),
        who: Arc::new(Principal::nobody()),
    }
}

/// The hold of what is free, once its client was told of it.
async fn delivered(service: &Shared, wanted: Wanted) -> Arc<Hold> {
    let mut granted = acquire(service, wanted, None).await.expect("it is free");
    let hold = granted.hold().expect("it is here").clone();
    granted.deliver();
    hold
}

/// Not how long the request before has waited, whose try it was.
#[tokio::test]
async fn who_is_told_the_outcome_of_anothers_try_is_told_its_own_wait() {
    let (service, _other) = instance(Cover::Any).await;
    let place = Place::<Undelivered>::new();
    place.begin_to_try();
    let waiter = place.wait_at(Duration::ZERO).expect("it is new");
    place.put_off(|_| Problem::new(Code::Busy, "it is held").with("waited_ms", 3_600_000));
    let told = go_on(&service, waiter, &wanted(0), Instant::now()).await.expect("it is told");
    let body: serde_json::Value = match told {
        Ok(_) => panic!("nothing was granted"),
        Err(problem) => serde_json::from_str(&problem.text("r")).expect("it is JSON"),
    };
    assert!(body["waited_ms"].as_u64() < Some(60_000), "{body}");
}

async fn is_soon_free(other: &Coordinator) -> bool {
    let lock = other.lock("x").expect("a name");
    lock.acquire(Some(Duration::from_secs(10))).await.is_ok()
}

/// H6: what was granted while nobody was there any more.
#[tokio::test]
async fn h6_a_grant_that_nobody_received_is_given_up() {
    for cover in [Cover::Any, Cover::Nothing] {
        let (service, other) = instance(cover).await;
        let undelivered = acquire(&service, wanted(0), None).await.expect("it is free");
        assert_eq!(service.holds.count("me"), (1, 1));
        drop(undelivered);
        assert!(is_soon_free(&other).await);
        assert_eq!(service.holds.count("me"), (0, 0));
        let promise = promise::of(&other, "x").expect("a name");
        assert!(promise.read().await.expect("memory answers").is_none(), "its promise is gone");
    }
}

#[tokio::test]
async fn h6_a_wait_that_was_dropped_leaves_no_place() {
    let (service, other) = instance(Cover::Any).await;
    let held = other.lock("x").expect("a name").acquire(None).await.expect("it is free");
    let waiting = tokio::spawn({
        let service = Arc::clone(&service);
        async move { acquire(&service, wanted(60_000), None).await.map(drop) }
    });
    let lock = other.lock("x").expect("a name");
    while lock.holders().await.expect("memory answers").len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    waiting.abort();
    while lock.holders().await.expect("memory answers").len() > 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(service.waits.count(), 0);
    drop(held);
    assert!(is_soon_free(&other).await);
}

#[tokio::test]
async fn a_body_that_was_taken_delivers_its_hold() {
    let (service, other) = instance(Cover::Any).await;
    let granted = acquire(&service, wanted(0), None).await.expect("it is free");
    let taken = axum::body::to_bytes(granted.body("{}".to_owned()), 9).await.expect("a body");
    assert_eq!(taken, "{}");
    let lock = other.lock("x").expect("a name");
    assert!(lock.try_acquire().await.expect("memory answers").is_none(), "it is held");
    // And one that nobody took does not.
    let hold = service.holds.live().pop().expect("it is held");
    drop(service.holds.give_up(&hold, End::Released).await);
    drop(acquire(&service, wanted(0), None).await.expect("it is free").body("{}".to_owned()));
    assert!(is_soon_free(&other).await);
}

#[tokio::test]
async fn h6_a_hold_that_a_repetition_was_told_of_stays() {
    let (service, other) = instance(Cover::Any).await;
    let undelivered = acquire(&service, wanted(0), None).await.expect("it is free");
    let hold = undelivered.hold().expect("it is here").clone();
    assert!(hold.tell(), "it is the first one");
    // Also if that came between the look whether anybody was told and the end: there would be two who hold it.
    service.holds.end_in_background(&hold, End::Undelivered);
    assert!(service.holds.now(&hold).is_ok());
    drop(undelivered);
    tokio::task::yield_now().await;
    let lock = other.lock("x").expect("a name");
    assert!(lock.try_acquire().await.expect("memory answers").is_none(), "it is held");
}

/// H2: of what was kept for longer than its lease all are told the lease, also who is told at the same moment as the first one: it relies
/// on what it is told.
#[tokio::test]
async fn h2_all_are_told_of_the_lease_and_not_of_the_time_kept() {
    let (service, _other) = instance(Cover::Any).await;
    for _ in 0..200 {
        let undelivered = acquire(&service, wanted(0), None).await.expect("it is free");
        let hold = undelivered.hold().expect("it is here").clone();
        service.holds.keep(&hold, Duration::from_secs(3_600));
        let told = || service.holds.told(&hold, true).expect("it is kept").expires_in;
        let both = std::thread::scope(|scope| {
            let (one, two) = (scope.spawn(told), scope.spawn(told));
            [one.join(), two.join()].map(|told| told.expect("no panic"))
        });
        assert!(both.iter().all(|left| *left <= wanted(0).lease), "{both:?}");
        drop(service.holds.give_up(&hold, End::Released).await);
    }
}

/// S1: a client whose clock is slower than ours by as much as A1 allows relies on its hold for no longer than we keep it.
#[tokio::test]
async fn s1_a_slow_clock_relies_on_nothing_that_is_over() {
    let (service, _other) = instance(Cover::Any).await;
    let wanted = Wanted { lease: LONGEST, ..wanted(0) };
    let granted = acquire(&service, wanted, None).await.expect("it is free");
    let now = service.holds.now(granted.hold().expect("it is here")).expect("it is held");
    assert!(now.expires_in.mul_f64(1.005) <= LONGEST, "{now:?}");
    assert!(now.expires_in > LONGEST.mul_f64(0.99), "{now:?}");
}

/// A repetition that finds what is lost by now is told nothing of it, so nobody waits for what was promised.
#[tokio::test]
async fn nobody_is_told_of_what_is_lost() {
    let (service, other) = instance(Cover::Nothing).await;
    let undelivered = acquire(&service, wanted(0), None).await.expect("it is free");
    let hold = undelivered.hold().expect("it is here").clone();
    let lost = End::Lost(coordination::LossReason::ExpiredByServer);
    drop(service.holds.give_up(&hold, lost).await.expect("it was held"));
    let told = service.holds.told(&hold, true).map(|now| now.lease);
    assert_eq!(told, Err(lost));
    assert!(!hold.was_told());
    drop(undelivered);
    assert!(is_soon_gone(&promise::of(&other, "x").expect("a name")).await);
}

/// A request with a key, always the same.
fn begin(service: &Shared, keep: Duration) -> Asked {
    service.keys.begin("me", "k", keys::content(&["x"]), keep)
}

/// Who repeats a request goes on, also if that comes before the first one is let in; and its one try is that of the first one.
#[tokio::test]
async fn who_repeats_a_request_has_come_later() {
    let (service, _other) = instance(Cover::Any).await;
    let Asked::New(ticket) = begin(&service, Duration::ZERO) else { panic!("it is the first") };
    let Asked::Waiting(second) = begin(&service, Duration::ZERO) else { panic!("one waits") };
    let first = acquire(&service, wanted(0), Some(ticket)).await.map(drop);
    assert_eq!(first.map_err(|problem| problem.code), Err(Code::Superseded));
    let second = go_on(&service, second, &wanted(0), Instant::now()).await;
    let second = second.expect("it has an answer").map(drop);
    assert_eq!(second.map_err(|problem| problem.code), Ok(()), "it is free");
}

/// Of a request that is refused, whoever has repeated it meanwhile is told at once: it would wait where nobody asks for anything.
#[tokio::test]
async fn who_repeats_a_request_that_is_refused_is_refused() {
    let limits = crate::settings::Limits { waits: (0, 0), ..crate::settings::Limits::default() };
    let settings = Settings { limits, ..Settings::default() };
    let (service, _other) = instance_with(settings, Cover::Any).await;
    let Asked::New(ticket) = begin(&service, Duration::ZERO) else { panic!("it is the first") };
    let Asked::Waiting(second) = begin(&service, Duration::ZERO) else { panic!("one waits") };
    let first = acquire(&service, wanted(20_000), Some(ticket)).await.map(drop);
    assert_eq!(first.map_err(|problem| problem.code), Err(Code::TooMany));
    let second = go_on(&service, second, &wanted(20_000), Instant::now()).await;
    let second = second.expect("it has an answer").map(drop);
    assert_eq!(second.map_err(|problem| problem.code), Err(Code::TooMany));
}

/// H9: whose token is taken out of the file loses its place, also one that is only kept; whoever has come in its stead with a token that is
/// still there goes on.
#[tokio::test]
async fn h9_a_place_is_lost_with_its_token() {
    let (service, other) = instance(Cover::Any).await;
    let file = std::env::temp_dir().join(format!("coordination-{}", ids::letters(12)));
    let [first, second] = [(); 2].map(|()| make_token("me", &["x".to_owned()]));
    let known = |lines: &str| {
        std::fs::write(&file, lines).expect("there is room");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).expect("it is ours");
        service.auth.reload(&file).expect("as it was made");
        service.auth.look_again();
    };
    known(&format!("{}{}", first.1, second.1));
    let [first_one, second_one] = [&first, &second].map(|(token, _)| {
        let mut headers = axum::http::HeaderMap::new();
        let text = format!("Bearer {token}").parse().expect("a header");
        headers.insert(axum::http::header::AUTHORIZATION, text);
        service.auth.principal(&headers).expect("it is known")
    });
    let lock = other.lock("x").expect("a name");
    let _held = lock.acquire(None).await.expect("it is free");
    let queue = async |count: usize| {
        let reached = async {
            while lock.holders().await.expect("memory answers").len() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), reached).await.expect("as many");
    };
    let of = |who: &Arc<Principal>| Wanted { who: Arc::clone(who), ..wanted(60_000) };
    let ask = |wanted: Wanted, ticket: Option<Ticket>| {
        let service = Arc::clone(&service);
        tokio::spawn(async move {
            let told = acquire(&service, wanted, ticket).await.map(drop);
            told.map_err(|problem| problem.code)
        })
    };
    let (waits, stays) = (ask(of(&first_one), None), ask(of(&second_one), None));
    // One try, whose place is kept.
    let long = Duration::from_secs(3_600);
    let begin = |key: &str| service.keys.begin("me", key, keys::content(&["x"]), long);
    let polled = Wanted { wait: Duration::ZERO, keep: long, ..of(&first_one) };
    let Asked::New(ticket) = begin("kept") else { panic!("it is the first") };
    assert_eq!(ask(polled, Some(ticket)).await.expect("no panic"), Err(Code::Busy));
    // And one that is repeated with the other token.
    let Asked::New(ticket) = begin("repeated") else { panic!("it is the first") };
    let before = ask(of(&first_one), Some(ticket));
    queue(5).await;
    let Asked::Waiting(waiter) = begin("repeated") else { panic!("one waits") };
    let repeated = tokio::spawn({
        let (service, wanted) = (Arc::clone(&service), of(&second_one));
        async move { go_on(&service, waiter, &wanted, Instant::now()).await.map(drop) }
    });
    assert_eq!(before.await.expect("no panic"), Err(Code::Superseded));
    known(&second.1);
    assert_eq!(waits.await.expect("no panic"), Err(Code::Unauthenticated));
    queue(3).await;
    assert!(!stays.is_finished() && !repeated.is_finished(), "they may wait");
    // A right that is gone ends a wait, too.
    known(&second.1.replace("\"x\"", "\"y\""));
    assert_eq!(stays.await.expect("no panic"), Err(Code::Forbidden));
    queue(1).await;
    assert!(matches!(begin("kept"), Asked::New(_)), "whoever comes back begins anew");
    assert!(repeated.await.is_ok());
    drop(std::fs::remove_file(&file));
}

/// Whoever comes back to a place that was lost meanwhile is told so, and does not replace who has replaced it.
#[tokio::test]
async fn what_became_of_a_kept_place_is_told_to_who_comes_back() {
    let (service, other) = instance(Cover::Any).await;
    let places = Places { slots: 1, standby: 1, latest_wins: true };
    let long = Duration::from_secs(60);
    let limiter = places.of(&other, "x").expect("a name");
    let limiter = limiter.patience(coordination::Patience::Timeout(long));
    let _works = limiter.enter().await.expect("memory answers");
    let polled = Wanted { what: What::Limiter { places }, keep: long, ..wanted(0) };
    let Asked::New(ticket) = begin(&service, long) else { panic!("it is the first") };
    let told = acquire(&service, polled.clone(), Some(ticket)).await.map(drop);
    assert_eq!(told.map_err(|problem| problem.code), Err(Code::Busy));
    while limiter.inspect().await.expect("memory answers").len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let newer = limiter.clone();
    let newer = tokio::spawn(async move { newer.enter().await.map(drop) });
    // If it takes longer than that, who comes back is told all the same.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let Asked::Waiting(waiter) = begin(&service, long) else { panic!("it is kept") };
    let again = Wanted { wait: Duration::from_secs(20), ..polled };
    let told = go_on(&service, waiter, &again, Instant::now()).await;
    let told = told.expect("it has an answer").map(drop);
    assert_eq!(told.map_err(|problem| problem.code), Err(Code::Replaced));
    assert!(!newer.is_finished(), "it stands by");
    newer.abort();
    assert!(matches!(begin(&service, long), Asked::New(_)), "that was the end of its place");
}

/// Who waits with a key is told, as without one, if nobody else is in the way.
#[tokio::test]
async fn who_waits_for_the_store_is_not_told_of_somebody_else() {
    let (service, _other) = instance(Cover::Any).await;
    for (is_blocked, code) in [(true, Code::Busy), (false, Code::StoreAway)] {
        assert_eq!(not_yet(&service, is_blocked, Instant::now(), Duration::ZERO).code, code);
    }
}

/// Where nobody can stand by there is no place that could be kept, and nobody is told so.
#[tokio::test]
async fn no_place_is_kept_where_nobody_waits() {
    let (service, other) = instance(Cover::Any).await;
    let places = Places { slots: 1, standby: 0, latest_wins: false };
    let limiter = places.of(&other, "x").expect("a name");
    let _works = limiter.enter().await.expect("memory answers");
    let keep = Duration::from_secs(60);
    let polled = Wanted { what: What::Limiter { places }, keep, ..wanted(0) };
    let Asked::New(ticket) = begin(&service, keep) else { panic!("it is the first") };
    let told = acquire(&service, polled, Some(ticket)).await.map(drop);
    let told = told.expect_err("all slots are taken");
    assert_eq!(told.code, Code::Busy);
    assert!(!told.text("request").contains("place_kept_ms"));
}

/// Who is told that a hold has ended takes its work for done; of this grant nobody was told.
#[tokio::test]
async fn a_grant_that_was_lost_at_once_has_not_ended() {
    let (_service, other) = instance(Cover::Any).await;
    let guard = other.lock("x").expect("a name").acquire(None).await.expect("it is free");
    other.lock("x").expect("a name").break_grant(guard.token()).await.expect("memory answers");
    let lost = guard.protect(std::future::pending::<()>()).await.expect_err("it was taken away");
    assert_eq!(lost.kind(), coordination::ErrorKind::Lost);
    assert_eq!(ungranted(lost.into(), Instant::now()).code, Code::StoreAway);
}

/// A promise of an instance that is dead by now.
async fn left_behind(other: &Coordinator, lease: Duration) {
    let value = promise::of(other, "x").expect("a name");
    let handle = ids::handle("deadbeef");
    let left = Promise::new(value, 1, &handle).write(None, lease).await;
    assert!(left.expect("memory answers"), "nobody else writes");
}

/// Whoever looks is told that the lock is held for somebody who waits for the end of a promise.
#[tokio::test]
async fn who_looks_is_told_that_a_promise_is_sat_out() {
    let (service, other) = instance(Cover::Nothing).await;
    left_behind(&other, Duration::from_secs(3_600)).await;
    let waiting = tokio::spawn({
        let service = Arc::clone(&service);
        async move { acquire(&service, wanted(600_000), None).await.map(drop) }
    });
    let coordinator = service.coordinator().expect("it is connected");
    let told = async {
        loop {
            let entries = look::entries(&service, &coordinator, Kind::Lock, "x", look::SAID).await;
            let entries = entries.expect("memory answers");
            if entries.iter().any(|entry| entry["sitting_out"] == true) {
                return entries;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(20), told).await.expect("it is told");
    assert_eq!((told.len(), &told[0]["state"]), (1, &"held".into()));
    waiting.abort();
}

/// H2, RD13: a promise of another instance is sat out, and one of ours is written before the answer.
#[tokio::test]
async fn a_promise_of_a_dead_instance_is_sat_out() {
    let (service, other) = instance(Cover::Nothing).await;
    let lease = Duration::from_millis(300);
    left_behind(&other, lease).await;
    let begun = Instant::now();
    let tried = acquire(&service, wanted(0), None).await.map(drop);
    assert_eq!(tried.map_err(|problem| problem.code), Err(Code::Busy));
    let granted = acquire(&service, wanted(10_000), None).await.expect("the promise ends");
    assert!(begun.elapsed() >= lease, "{:?}", begun.elapsed());
    assert_eq!(granted.hold().expect("it is here").covered, Covered::Http);
}

/// H2: who shares the lock would have it beside the one to whom it was promised alone.
#[tokio::test]
async fn a_promise_of_a_dead_instance_is_sat_out_by_who_shares() {
    let (service, other) = instance(Cover::Nothing).await;
    let lease = Duration::from_millis(300);
    left_behind(&other, lease).await;
    let shared = |wait| Wanted { what: What::Lock { shared: true }, ..wanted(wait) };
    let begun = Instant::now();
    let tried = acquire(&service, shared(0), None).await.map(drop);
    assert_eq!(tried.map_err(|problem| problem.code), Err(Code::Busy));
    let one = acquire(&service, shared(10_000), None).await.expect("the promise ends");
    assert!(begun.elapsed() >= lease, "{:?}", begun.elapsed());
    assert_eq!(one.hold().expect("it is here").covered, Covered::Nobody, "none is written");
    // The old promise is gone, so that another instance does not sit it out once more.
    let promise = promise::of(&other, "x").expect("a name");
    assert!(promise.read().await.expect("memory answers").is_none());
    assert!(acquire(&service, shared(0), None).await.is_ok(), "they share");
}

/// H2: the same goes for who acquires several locks, whichever of them was promised; and all of them are acquired, or none.
#[tokio::test]
async fn a_promise_of_a_dead_instance_is_sat_out_by_who_acquires_several_locks() {
    let (service, other) = instance(Cover::Nothing).await;
    let lease = Duration::from_millis(300);
    left_behind(&other, lease).await;
    let several = |wait| {
        let names = ["a", "x"].map(str::to_owned).into();
        Wanted { what: What::Locks { names, shared: false }, name: "a".to_owned(), ..wanted(wait) }
    };
    let begun = Instant::now();
    let tried = acquire(&service, several(0), None).await.map(drop);
    assert_eq!(tried.map_err(|problem| problem.code), Err(Code::Busy));
    let a = other.lock("a").expect("a name");
    drop(a.acquire(Some(Duration::from_secs(10))).await.expect("it was given up"));
    let both = acquire(&service, several(10_000), None).await.expect("the promise ends");
    assert!(begun.elapsed() >= lease, "{:?}", begun.elapsed());
    let hold = both.hold().expect("it is here").clone();
    assert_eq!((hold.covered, hold.parts().len()), (Covered::Http, 2));
    // Each is promised, with its own fence, and for longer if the lease is renewed into a longer one.
    let renewed = crate::v1::holds::renewed(&service, &hold, Some(2 * wanted(0).lease)).await;
    assert!(renewed.is_ok());
    for (name, fence) in hold.parts() {
        let promise = promise::of(&other, name).expect("a name");
        let found = promise.read().await.expect("memory answers").expect("it is promised");
        assert!(found.value.is_of(fence, 2 * wanted(0).lease), "{name}: {found:?}");
    }
    // It is found by each of its names, and by nothing else.
    for (name, fence) in hold.parts() {
        assert!(service.holds.of_fence(Kind::Lock, name, fence).is_some(), "{name}");
        assert!(service.holds.of_fence(Kind::Lock, name, fence + 1).is_none(), "{name}");
        assert!(service.holds.of_fence(Kind::Semaphore, name, fence).is_none(), "{name}");
    }
    drop(both);
    assert!(service.holds.now(&hold).is_ok(), "whoever has renewed it was told of it");
    service.holds.end_in_background(&hold, End::Released);
    for name in ["a", "x"] {
        let lock = other.lock(name).expect("a name");
        assert!(lock.acquire(Some(Duration::from_secs(10))).await.is_ok(), "{name}");
        assert!(service.holds.of_name(Kind::Lock, name, |_| true).is_none(), "{name}");
        let promise = promise::of(&other, name).expect("a name");
        assert!(promise.read().await.expect("memory answers").is_none(), "{name}");
    }
}

/// A hold of three locks that its client was told of, and their promises as another session sees them.
async fn three_promised(
    service: &Shared,
    other: &Coordinator,
) -> (Arc<Hold>, [SharedValue<Promised>; 3]) {
    let names = ["x", "y", "z"];
    let what = What::Locks { names: names.map(str::to_owned).into(), shared: false };
    let hold = delivered(service, Wanted { what, ..wanted(0) }).await;
    (hold, names.map(|name| promise::of(other, name).expect("a name")))
}

/// H2: promises of several locks outlive the loss of their hold, all of them, and go when its client says so, all of them.
#[tokio::test]
async fn promises_of_several_locks_stay_and_go_together() {
    let (service, other) = instance(Cover::Nothing).await;
    let (hold, promises) = three_promised(&service, &other).await;
    let lost = End::Lost(coordination::LossReason::ExpiredByServer);
    drop(service.holds.give_up(&hold, lost).await.expect("it was held"));
    for promise in &promises {
        assert!(promise.read().await.expect("memory answers").is_some(), "{}", promise.name());
    }
    service.holds.take_back(&hold);
    for promise in &promises {
        assert!(is_soon_gone(promise).await, "{}", promise.name());
    }
}

/// A promise whose deletion hangs keeps no other one at the store, nor the locks themselves for long.
#[tokio::test]
async fn promises_of_several_locks_are_deleted_at_the_same_time() {
    let (service, other) = instance(Cover::Nothing).await;
    let (hold, promises) = three_promised(&service, &other).await;
    let hanging = hold.promises[0].hang().await;
    let releasing = tokio::spawn({
        let (holds, hold) = (Arc::clone(&service.holds), Arc::clone(&hold));
        async move { holds.give_up(&hold, End::Released).await }
    });
    for promise in &promises[1..] {
        assert!(is_soon_gone(promise).await, "{}", promise.name());
    }
    let told = tokio::time::timeout(Duration::from_secs(60), releasing).await;
    let told = told.expect("it has a bound").expect("no panic");
    assert!(matches!(told, Ok(Ok(()))), "the locks themselves are within reach");
    assert!(is_soon_free(&other).await && !service.holds.undeleted.is_empty());
    drop(hanging);
    assert!(is_soon_gone(&promises[0]).await);
}

/// H2: a client was told until when it holds, whatever has become of this instance's session since.
#[tokio::test]
async fn a_promise_outlives_the_loss_of_its_hold() {
    use coordination::LossReason::{DeadlinePassed, EntryDeleted, ExpiredByServer, Revoked};
    for (reason, stays) in
        [(DeadlinePassed, true), (ExpiredByServer, true), (Revoked, true), (EntryDeleted, false)]
    {
        let (service, other) = instance(Cover::Nothing).await;
        let hold = delivered(&service, wanted(0)).await;
        service
            .holds
            .give_up(&hold, End::Lost(reason))
            .await
            .expect("it was held")
            .expect("released");
        let promise = promise::of(&other, "x").expect("a name");
        let left = promise.read().await.expect("memory answers");
        assert_eq!(left.is_some(), stays, "{reason}");
    }
}

/// When its lease is over its client does not rely on it any more, and nobody is to wait for that once more.
#[tokio::test]
async fn a_promise_of_a_lost_hold_is_deleted_when_its_lease_is_over() {
    let (service, other) = instance(Cover::Nothing).await;
    let lease = Duration::from_secs(2);
    let begun = Instant::now();
    let hold = delivered(&service, Wanted { lease, ..wanted(0) }).await;
    let lost = End::Lost(coordination::LossReason::ExpiredByServer);
    drop(service.holds.give_up(&hold, lost).await.expect("it was held"));
    let promise = promise::of(&other, "x").expect("a name");
    assert!(is_soon_gone(&promise).await);
    assert!(begun.elapsed() >= lease, "after {:?}", begun.elapsed());
}

/// A store in a directory, of which a file can be put out of reach.
pub(crate) struct Disk(pub(crate) std::path::PathBuf);

impl Disk {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("coordination-{}", ids::letters(12)));
        std::fs::create_dir(&path).expect("there is room");
        Self(path)
    }

    pub(crate) async fn instance(&self) -> (Shared, Coordinator) {
        instance_at(Settings::default(), Cover::Nothing, &format!("file://{}/x", self.0.display()))
            .await
    }

    /// The file with this in its name.
    fn file(&self, word: &str) -> std::path::PathBuf {
        let queues = self.0.join("x/coordination/queues");
        let files = std::fs::read_dir(queues).expect("it is there");
        let mut paths = files.map(|file| file.expect("it is there").path());
        let is_meant = |path: &std::path::PathBuf| path.to_string_lossy().contains(word);
        paths.find(is_meant).expect("it was written")
    }

    /// Nobody can read or write the file with this in its name until what is returned is dropped: the store does not answer.
    fn lock(&self, word: &str) -> std::fs::File {
        let file = std::fs::File::open(self.file(word)).expect("it is there");
        file.lock().expect("nobody has it for long");
        file
    }

    /// A link to itself in its place: the store refuses to read and to write it at once. One takes the other's place in one step
    /// each way, as a promise that is not there for a moment counts as deleted.
    pub(crate) fn take(&self, word: &str) -> std::path::PathBuf {
        let (path, link) = (self.file(word), self.0.join("link"));
        std::fs::hard_link(&path, self.0.join("taken")).expect("there is room");
        std::os::unix::fs::symlink(&path, &link).expect("there is room");
        std::fs::rename(&link, &path).expect("there is room");
        path
    }

    pub(crate) fn give_back(&self, path: &std::path::Path) {
        std::fs::rename(self.0.join("taken"), path).expect("there is room");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// H2: the lock that is free at the store is not to be refused for as long as was promised.
#[tokio::test]
async fn a_promise_that_could_not_be_deleted_is_deleted_when_the_store_lets_us() {
    let disk = Disk::new();
    let (service, other) = disk.instance().await;
    let hold = delivered(&service, wanted(0)).await;
    let path = disk.take("promise");
    let released = service.holds.give_up(&hold, End::Released).await.expect("it was held");
    released.expect("the lock itself is within reach");
    disk.give_back(&path);
    let promise = promise::of(&other, "x").expect("a name");
    assert!(is_soon_gone(&promise).await);
    assert!(acquire(&service, wanted(0), None).await.is_ok());
}

/// H10: a store that falls silent when the library has granted the lock holds nobody up for longer than a wait lasts, and what is granted
/// after that is given up.
#[tokio::test]
async fn h10_a_promise_that_is_not_read_ends_a_wait_in_time() {
    let disk = Disk::new();
    let (service, other) = disk.instance().await;
    left_behind(&other, Duration::ZERO).await;
    let silent = disk.lock("promise");
    let begun = Instant::now();
    let told = acquire(&service, wanted(200), None).await.map(drop);
    let took = begun.elapsed();
    assert_eq!(told.map_err(|problem| problem.code), Err(Code::StoreAway), "nobody is in the way");
    // The library reads for 5 s.
    assert!(took >= Duration::from_millis(200) && took < Duration::from_secs(3), "{took:?}");
    drop(silent);
    assert!(is_soon_free(&other).await);
    assert_eq!((service.holds.count("me"), service.waits.count()), ((0, 0), 0));
    assert!(acquire(&service, wanted(10_000), None).await.is_ok());
}

/// Whether it was written is not known: the answer was an error, and it is there all the same.
#[tokio::test]
async fn a_promise_that_was_perhaps_written_is_deleted() {
    let disk = Disk::new();
    let (service, other) = disk.instance().await;
    let coordinator = service.coordinator().expect("it is there");
    let (value, lease) = (promise::of(&other, "x").expect("a name"), Duration::from_secs(60));
    let twin = Promise::new(value.clone(), 1, "tag.one");
    assert!(twin.write(None, lease).await.expect("the store answers"));
    let path = disk.take("promise");
    let ours = promise::of(&coordinator, "x").expect("a name");
    let ours = Arc::new(Promise::new(ours, 1, "tag.one"));
    assert!(written(&service, ours, None, lease).await.is_err());
    disk.give_back(&path);
    assert!(is_soon_gone(&value).await);
}

/// A lock that is lost while a promise is sat out may be somebody else's when that is over.
#[tokio::test]
async fn who_loses_the_lock_while_a_promise_is_sat_out_is_granted_nothing() {
    let (service, other) = instance(Cover::Nothing).await;
    left_behind(&other, Duration::from_secs(3_600)).await;
    let waiting = tokio::spawn({
        let service = Arc::clone(&service);
        async move { acquire(&service, wanted(3_000_000), None).await.map(drop) }
    });
    let lock = other.lock("x").expect("a name");
    let holder = loop {
        if let Some(holder) = lock.holders().await.expect("memory answers").pop() {
            break holder;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    let broken = lock.break_grant(holder.token).await.expect("memory answers");
    assert!(broken.is_some());
    let told = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    let told = told.expect("it is not sat out any more").expect("no panic");
    assert_eq!(told.map_err(|problem| problem.code), Err(Code::StoreAway));
}

/// What is lost before its promise is written, and while.
#[tokio::test]
async fn a_lock_that_was_lost_is_promised_to_nobody() {
    let (service, other) = instance(Cover::Nothing).await;
    let coordinator = service.coordinator().expect("it is there");
    let lock = coordinator.lock("x").expect("a name");
    let guard = lock.acquire(None).await.expect("it is free");
    lock.break_grant(guard.token()).await.expect("memory answers");
    guard.lost().await;
    let promise = promise::of(&other, "x").expect("a name");
    let place = Promising { value: promise.clone(), over: None, fence: guard.token().value() };
    let waited = Waited { guard: guard.into(), places: vec![place] };
    let told = grant(&service, wanted(0), waited, SystemTime::now()).await.map(drop);
    assert_eq!(told.map_err(|problem| problem.code), Err(Code::StoreAway));
    assert!(promise.read().await.expect("memory answers").is_none());
    assert_eq!(service.holds.count("me"), (0, 0));
}

/// Nobody was told of it, so nobody relies on it, although the session is lost.
#[tokio::test]
async fn a_promise_of_a_lost_hold_that_nobody_received_is_deleted() {
    let (service, other) = instance(Cover::Nothing).await;
    let granted = acquire(&service, wanted(0), None).await.expect("it is free");
    let hold = granted.hold().expect("it is here").clone();
    let lost = End::Lost(coordination::LossReason::ExpiredByServer);
    drop(service.holds.give_up(&hold, lost).await.expect("it was held"));
    let promise = promise::of(&other, "x").expect("a name");
    assert!(promise.read().await.expect("memory answers").is_some(), "its client may rely on it");
    drop(granted);
    assert!(is_soon_gone(&promise).await);
}

pub(crate) async fn is_soon_gone(promise: &coordination::SharedValue<promise::Promised>) -> bool {
    let begun = Instant::now();
    while promise.read().await.expect("the store answers").is_some() {
        if begun.elapsed() > Duration::from_secs(10) {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}

#[tokio::test]
async fn too_many_waits_and_holds_are_refused() {
    let (service, other) = instance(Cover::Any).await;
    let waits = Arc::clone(&service.waits);
    let one = waits.enter("me", 1, (3, 2)).map(drop).map_err(|problem| problem.code);
    assert_eq!(one, Ok(()));
    let _held = [waits.enter("me", 1, (3, 2)), waits.enter("me", 1, (3, 2))];
    let code = |client| waits.enter(client, 1, (3, 2)).map(drop).map_err(|problem| problem.code);
    assert_eq!((code("me"), code("other")), (Err(Code::TooMany), Ok(())));
    let _other = waits.enter("other", 1, (3, 2));
    assert_eq!(code("third"), Err(Code::Overloaded));
    drop(other);
}

/// One of each recipe, of which there is room for one.
fn each() -> Vec<What> {
    let places = Places { slots: 1, standby: 1, latest_wins: false };
    let member = What::Group { member: "m".to_owned(), capabilities: 1.into(), create: true };
    vec![
        What::Lock { shared: false },
        What::Locks { names: vec!["x".to_owned(), "y".to_owned()], shared: false },
        What::Semaphore { permits: 1, count: 1 },
        What::Limiter { places },
        What::Election { value: "here".into() },
        member,
    ]
}

/// H6: what was granted while nobody was there any more, and a place in a queue that was given up, of each recipe.
#[tokio::test]
async fn h6_of_each_recipe_nothing_is_left_by_a_client_that_has_gone() {
    for what in each() {
        let (service, other) = instance(Cover::Any).await;
        let of = |wait| Wanted { what: what.clone(), ..wanted(wait) };
        let undelivered = acquire(&service, of(0), None).await.expect("it is free");
        let kind = undelivered.hold().expect("it is here").kind;
        let count = async || {
            let entries = look::entries(&service, &other, kind, "x", look::SAID).await;
            entries.expect("memory answers").len()
        };
        assert_eq!(count().await, 1, "{what:?}");
        if kind != Kind::Group {
            let waiting = tokio::spawn({
                let (service, wanted) = (Arc::clone(&service), of(60_000));
                async move { acquire(&service, wanted, None).await.map(drop) }
            });
            while count().await < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            waiting.abort();
            while count().await > 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        drop(undelivered);
        while count().await > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!((service.holds.count("me"), service.waits.count()), ((0, 0), 0), "{what:?}");
        // And somebody else gets it.
        assert!(acquire(&service, of(10_000), None).await.is_ok(), "{what:?}");
    }
}

/// What a leader proclaims is dropped when its hold ends, and neither keeps the other from its end.
#[tokio::test]
async fn a_hold_that_is_changed_is_released_all_the_same() {
    let (service, other) = instance(Cover::Any).await;
    let what = What::Election { value: "before".into() };
    let hold = delivered(&service, Wanted { what, ..wanted(0) }).await;
    let election = other.election("x").expect("a name");
    let seen = async || {
        let leader = election.leader().await.expect("memory answers");
        leader.map(|term| term.value::<String>().expect("a text"))
    };
    assert_eq!(seen().await.as_deref(), Some("before"));
    let told = service.holds.tell(&hold, &"after".into()).await;
    assert!(matches!(told, Ok(Ok(()))));
    assert_eq!(seen().await.as_deref(), Some("after"));

    let changing = hold.changing.lock().await;
    let late = tokio::spawn({
        let (holds, hold) = (Arc::clone(&service.holds), Arc::clone(&hold));
        async move { holds.tell(&hold, &"late".into()).await }
    });
    let releasing = tokio::spawn({
        let (holds, hold) = (Arc::clone(&service.holds), Arc::clone(&hold));
        async move { holds.give_up(&hold, End::Released).await }
    });
    while service.holds.count("me").0 > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(seen().await.as_deref(), Some("after"), "it waits for what is changed");
    drop(changing);
    assert!(matches!(late.await.expect("no panic"), Err(End::Released)));
    assert!(matches!(releasing.await.expect("no panic"), Ok(Ok(()))));
    assert_eq!(seen().await, None);
}
