//! `POST /v1/{recipe}/{name}`: what all recipes have in common, and the fields that each has of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use super::holds::{add_fence, ended, shown};
use super::path::named;
use crate::acquire::place::Waiter;
use crate::acquire::{self, Undelivered, longest_lease};
use crate::around::Noted;
use crate::auth::{Principal, Right};
use crate::bodies::{body, body_within};
use crate::fields::Fields;
use crate::holds::{End, Found, Hold};
use crate::keys::{self, Asked, Ticket};
use crate::kind::Kind;
use crate::problem::{Code, Problem};
use crate::reply::principal;
use crate::service::{Phase, Shared};
use crate::text::{self, LONGEST_WAIT, millis};
use crate::wanted::{Places, Wanted, What};

/// The lease of who does not ask for one.
const LEASE: Duration = Duration::from_secs(20);
/// The longest that a place is kept for who comes back, in milliseconds.
const LONGEST_KEPT: u64 = 60_000;
/// The shortest lease, in milliseconds.
const SHORTEST_LEASE: u64 = 100;
/// The most locks that are acquired together, and the most bytes of such a request.
const MANY: usize = 32;
const MANY_BYTES: usize = 64 * 1024;
/// The most permits that a semaphore has, and the most that one hold has of them.
pub(super) const PERMITS: (u32, u32) = (10_000, 500);
/// The most slots that a limiter has, and the most places on standby.
const PLACES: u32 = 10_000;
/// The most bytes of what a leader or a member says of itself.
pub(super) const VALUE: usize = 4_096;

/// `POST /v1/{recipe}/{name}`
pub(super) async fn acquire(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let (kind, name) = named(&request)?;
    who.needs(Right::Use, &name)?;
    let key = keys::key(request.headers())?;
    let mut fields = Fields::parse(&body(&service, request).await?)?;
    let asked = Instant::now();
    let what = what(kind, &mut fields);
    let wanted = wanted(&service, &who, what, name, fields)?;
    granted(&service, wanted, key, asked).await
}

/// `POST /v1/locks`
pub(super) async fn acquire_several(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let key = keys::key(request.headers())?;
    let mut fields = Fields::parse(&body_within(&service, request, MANY_BYTES).await?)?;
    let asked = Instant::now();
    let mut names = fields.texts("names", 1..=MANY);
    // As the library does it: each once, and in the same order everywhere.
    names.sort_unstable();
    names.dedup();
    let shared = fields.flag("shared").unwrap_or(false);
    let first = names.first().cloned().unwrap_or_default();
    let wanted =
        wanted(&service, &who, What::Locks { names: names.clone(), shared }, first, fields)?;
    for name in &names {
        text::checked(name)?;
        who.needs(Right::Use, name)?;
    }
    granted(&service, wanted, key, asked).await
}

/// The fields of a recipe's own.
fn what(kind: Kind, fields: &mut Fields) -> What {
    match kind {
        Kind::Lock => What::Lock { shared: fields.flag("shared").unwrap_or(false) },
        Kind::Semaphore => {
            fields.needs("permits");
            let permits = fields.count("permits", 1..=PERMITS.0).unwrap_or(PERMITS.0);
            let count = fields.count("count", 1..=permits.min(PERMITS.1)).unwrap_or(1);
            What::Semaphore { permits, count }
        }
        Kind::Limiter => What::Limiter { places: places(fields) },
        Kind::Election => What::Election { value: fields.json("value", VALUE).unwrap_or_default() },
        Kind::Group => {
            fields.needs("member");
            What::Group {
                member: fields.word("member").unwrap_or_default(),
                capabilities: fields.json("capabilities", VALUE).unwrap_or_default(),
                create: fields.flag("create").unwrap_or(true),
            }
        }
    }
}

/// The fields with the places of a limiter.
pub(super) fn places(fields: &mut Fields) -> Places {
    let latest_wins = fields.flag("latest_wins").unwrap_or(false);
    // Of those who stand by the latest wins only where one does, for one slot.
    let (slots, standby) = match latest_wins {
        true => (1..=1, 1..=1),
        false => (1..=PLACES, 0..=PLACES),
    };
    let (one, least) = (*slots.start(), *standby.start());
    let slots = fields.count("slots", slots).unwrap_or(one);
    let standby = fields.count("standby", standby).unwrap_or(least);
    Places { slots, standby, latest_wins }
}

/// The fields that all recipes have; the end of the fields.
fn wanted(
    service: &Shared,
    who: &Arc<Principal>,
    what: What,
    name: String,
    mut fields: Fields,
) -> Result<Wanted, Problem> {
    let (wait, keep, lease) = (Duration::ZERO, Duration::ZERO, LEASE);
    let (title, client) = (String::new(), who.name.clone());
    let relies_on_lease = false;
    let who = Arc::clone(who);
    let mut wanted = Wanted { what, name, wait, keep, lease, relies_on_lease, title, client, who };
    let longest = millis(longest_lease(service, &wanted.locks()));
    // Nobody waits to join a group.
    let longest_wait = if matches!(wanted.what, What::Group { .. }) { 0 } else { LONGEST_WAIT };
    wanted.wait = fields.millis("wait_ms", 0..=longest_wait).unwrap_or_default();
    wanted.keep = fields.millis("keep_place_ms", 0..=LONGEST_KEPT).unwrap_or_default();
    let lease = fields.millis("lease_ms", SHORTEST_LEASE..=longest.max(SHORTEST_LEASE));
    wanted.lease = lease.unwrap_or(LEASE.min(Duration::from_millis(longest)));
    wanted.title = fields.title("title").unwrap_or_default();
    fields.done()?;
    Ok(wanted)
}

/// Waits for what is wanted, and answers the hold; or answers the one that an earlier request with this key was granted.
async fn granted(
    service: &Shared,
    wanted: Wanted,
    key: Option<String>,
    asked: Instant,
) -> Result<Response, Problem> {
    let Some(key) = key else {
        if !wanted.keep.is_zero() {
            let why = "`keep_place_ms` needs an Idempotency-Key, by which the place is found again";
            return Err(Problem::new(Code::Invalid, why));
        }
        let granted = acquire::acquire(service, wanted, None).await?;
        return first_told(service, granted, asked, None);
    };
    let mut waited = Duration::ZERO;
    loop {
        let granted = match repeated(service, &wanted, &key)? {
            Repeated::Of(hold) => return created(service, &hold, asked, Body::from),
            Repeated::Not(ticket) => {
                acquire::acquire_after(service, wanted, Some(ticket), waited).await?
            }
            Repeated::Waits(waiter) => {
                match acquire::go_on(service, waiter, &wanted, asked).await {
                    Some(granted) => granted?,
                    None => {
                        // What it has waited there counts.
                        waited = asked.elapsed();
                        continue;
                    }
                }
            }
        };
        return first_told(service, granted, asked, Some(key.as_str()));
    }
}

/// The answer to a grant that nobody was told of yet. What is over by now has not ended for its client, which never had it: it asks
/// again, with the same key.
fn first_told(
    service: &Shared,
    granted: Undelivered,
    asked: Instant,
    key: Option<&str>,
) -> Result<Response, Problem> {
    let hold = granted.hold()?.clone();
    match created(service, &hold, asked, |text| granted.body(text)) {
        // A repetition may have been told of it.
        Err(problem) if problem.code == Code::Ended && !hold.was_told() => {
            if let Some(key) = key {
                service.keys.forget(&hold.client, key, &hold.handle);
            }
            Err(acquire::lost())
        }
        answer => answer,
    }
}

/// What a key makes of a request.
enum Repeated {
    /// It was granted this before.
    Of(Arc<Hold>),
    /// It is new.
    Not(Ticket),
    /// It waits already, at this place.
    Waits(Waiter<Undelivered>),
}

fn repeated(service: &Shared, wanted: &Wanted, key: &str) -> Result<Repeated, Problem> {
    let lease = wanted.lease.as_millis().to_string();
    let what = format!("{:?}", wanted.what);
    let content = keys::content(&[&what, &wanted.name, &lease, &wanted.title]);
    loop {
        let handle = match service.keys.begin(&wanted.client, key, content, wanted.keep) {
            Asked::New(ticket) => return Ok(Repeated::Not(ticket)),
            Asked::Waiting(waiter) => return Ok(Repeated::Waits(waiter)),
            Asked::Reused => {
                let why = "this key stands for a request of another name or with other fields";
                return Err(Problem::new(Code::KeyReused, why));
            }
            Asked::Granted(handle) => handle,
        };
        match service.holds.find(&handle) {
            Found::Live(hold) => {
                match service.holds.told(&hold, service.phase() != Phase::Ending) {
                    Ok(_) => return Ok(Repeated::Of(hold)),
                    Err(end) if hold.was_told() && end != End::Undelivered => {
                        return Err(ended(end));
                    }
                    // For its client, which never had it, nothing has ended.
                    Err(_) => service.keys.forget(&wanted.client, key, &handle),
                }
            }
            Found::Ended(hold, end) if hold.was_told() && end != End::Undelivered => {
                return Err(ended(end));
            }
            // Nobody ever had it, or it is too long ago.
            Found::Ended(..) | Found::Unknown => {
                service.keys.forget(&wanted.client, key, &handle);
            }
        }
    }
}

/// The answer to a grant.
fn created(
    service: &Shared,
    hold: &Arc<Hold>,
    asked: Instant,
    body: impl FnOnce(String) -> Body,
) -> Result<Response, Problem> {
    // Before it is looked at what is left: a client adds the two, and what passes in between must not count twice.
    let took = asked.elapsed();
    let now = service.holds.now(hold).map_err(ended)?;
    let mut answer = shown(service, hold, &now);
    answer["id"] = hold.id().into();
    answer["took_ms"] = millis(took).into();
    let mut response = Response::new(body(answer.to_string()));
    *response.status_mut() = StatusCode::CREATED;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/holds/{}", hold.id())) {
        headers.insert(header::LOCATION, location);
    }
    add_fence(&mut response, hold);
    response.extensions_mut().insert(Noted::of(hold));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use coordination::Coordinator;
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;
    use serde_json::Value;

    use super::*;
    use crate::acquire::tests::{instance, wanted};
    use crate::settings::Cover;
    use crate::v1;

    /// How long what has to come may take.
    const LONG: Duration = Duration::from_secs(20);

    /// Asks for the lock `x` with a key, always the same.
    async fn ask(service: Shared, wait: u64, keep: u64) -> (u16, Value) {
        ask_for(service, wait, keep, 60_000).await
    }

    /// The same with this lease.
    async fn ask_for(service: Shared, wait: u64, keep: u64, lease: u64) -> (u16, Value) {
        let routes = TowerToHyperService::new(v1::routes(&service));
        let body = format!("{{\"wait_ms\":{wait},\"keep_place_ms\":{keep},\"lease_ms\":{lease}}}");
        let request = Request::post("/v1/locks/x").header("host", "localhost");
        let request = request.header("idempotency-key", "k").body(Body::from(body));
        let answer = routes.call(request.expect("a request")).await.expect("an answer");
        let status = answer.status().as_u16();
        let text = axum::body::to_bytes(answer.into_body(), 65_536).await.expect("a body");
        (status, serde_json::from_slice(&text).expect("it is JSON"))
    }

    /// Waits until so many hold `x` or wait for it.
    async fn contend(other: &Coordinator, count: usize) {
        let lock = other.lock("x").expect("a name");
        let reached = async {
            while lock.holders().await.expect("memory answers").len() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, reached).await.expect("as many as there should be");
    }

    /// Waits until what nobody waits for any more is over.
    async fn over(service: &Shared) {
        let over = async {
            while !service.under_way.is_over() || service.holds.count("anonymous").0 > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, over).await.expect("nothing is left");
    }

    /// Whoever polls keeps its place, before those who have come later.
    #[tokio::test]
    async fn a_place_is_kept_between_two_polls() {
        let (service, other) = instance(Cover::Any).await;
        let poll = |wait| ask(Arc::clone(&service), wait, 60_000);
        let held = other.lock("x").expect("a name").acquire(None).await.expect("it is free");
        let (status, told) = poll(0).await;
        assert_eq!((status, &told["code"]), (409, &"busy".into()), "{told}");
        assert_eq!(told["place_kept_ms"], 60_000);
        contend(&other, 2).await;
        let later = tokio::spawn({
            let lock = other.lock("x").expect("a name");
            async move { lock.acquire(None).await }
        });
        contend(&other, 3).await;
        for wait in [0, 20] {
            let (status, told) = poll(wait).await;
            assert_eq!((status, &told["place_kept_ms"]), (409, &60_000.into()), "{told}");
            assert!(told["waited_ms"].as_u64() >= Some(wait), "{told}");
        }
        contend(&other, 3).await;
        let (next, ()) = tokio::join!(poll(60_000), async { drop(held) });
        assert_eq!(next.0, 201, "{}", next.1);
        assert!(!later.is_finished(), "it has come later");
        later.abort();
    }

    /// Whoever polls is told that its place was taken away between two polls.
    #[tokio::test]
    async fn a_place_that_is_taken_away_between_two_polls_is_told() {
        let (service, other) = instance(Cover::Any).await;
        let lock = other.lock("x").expect("a name");
        let _held = lock.acquire(None).await.expect("it is free");
        assert_eq!(ask(Arc::clone(&service), 0, 60_000).await.0, 409);
        contend(&other, 2).await;
        let fence = lock.holders().await.expect("memory answers")[1].token.value();
        // It knows its entry a moment after the store does.
        let taken = async {
            while !service.queued.take_away(Kind::Lock, "x", fence) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, taken).await.expect("it is ours");
        contend(&other, 1).await;
        let (status, told) = ask(Arc::clone(&service), 0, 60_000).await;
        assert_eq!((status, &told["code"]), (409, &"broken".into()), "{told}");
        // Once: now it is asked for anew.
        let (status, told) = ask(service, 0, 0).await;
        assert_eq!((status, &told["code"]), (409, &"busy".into()), "{told}");
    }

    /// Who waits for half a second or longer is told how many there were before it, whether or not its place is kept.
    #[tokio::test]
    async fn who_waits_is_told_how_many_are_ahead() {
        // An answer to the look that takes longer than half a second comes too late.
        for _ in 0..20 {
            let (service, other) = instance(Cover::Any).await;
            let _held = other.lock("x").expect("a name").acquire(None).await.expect("it is free");
            let kept = ask(Arc::clone(&service), 2_000, 60_000);
            let plain = crate::acquire::acquire(&service, wanted(4_000), None);
            let later = async {
                contend(&other, 2).await;
                plain.await
            };
            let ((status, told), plain) = tokio::join!(kept, later);
            assert_eq!(status, 409, "{told}");
            let plain = plain.map(drop).expect_err("it is held").text("request");
            if told.get("ahead").is_some() && plain.contains("\"ahead\":") {
                assert_eq!(told["ahead"], 1, "{told}");
                assert!(plain.contains("\"ahead\":2"), "{plain}");
                let (status, told) = ask(Arc::clone(&service), 20, 0).await;
                return assert_eq!((status, told.get("ahead")), (409, None), "{told}");
            }
        }
        panic!("they are never told");
    }

    /// So is who goes on at a kept place, where always a bit less is left than it asked for.
    #[tokio::test]
    async fn who_goes_on_is_told_how_many_are_ahead() {
        let (service, other) = instance(Cover::Any).await;
        let _held = other.lock("x").expect("a name").acquire(None).await.expect("it is free");
        assert_eq!(ask(Arc::clone(&service), 0, 60_000).await.0, 409);
        contend(&other, 2).await;
        // An answer to the look that takes longer than an eighth of a second comes too late.
        for _ in 0..20 {
            let (status, told) = ask(Arc::clone(&service), 500, 60_000).await;
            assert_eq!(status, 409, "{told}");
            if let Some(ahead) = told.get("ahead") {
                return assert_eq!(ahead, 1);
            }
        }
        panic!("it is never told");
    }

    /// Who sends its request again while it waits has the place that it had.
    #[tokio::test]
    async fn a_repetition_goes_on_at_the_place_of_the_first_one() {
        let (service, other) = instance(Cover::Any).await;
        let held = other.lock("x").expect("a name").acquire(None).await.expect("it is free");
        let first = tokio::spawn(ask(Arc::clone(&service), 60_000, 0));
        contend(&other, 2).await;
        let later = tokio::spawn({
            let lock = other.lock("x").expect("a name");
            async move { lock.acquire(None).await }
        });
        contend(&other, 3).await;
        let second = tokio::spawn(ask(Arc::clone(&service), 60_000, 0));
        let first = first.await.expect("no panic");
        assert_eq!((first.0, &first.1["code"]), (409, &"superseded".into()));
        contend(&other, 3).await;
        drop(held);
        assert_eq!(second.await.expect("no panic").0, 201);
        assert!(!later.is_finished(), "it has come later");
        later.abort();
    }

    /// A client that has gone has its place for as long as it asked for, and no longer.
    #[tokio::test]
    async fn a_place_is_given_up_after_its_time() {
        let (service, other) = instance(Cover::Any).await;
        let _held = other.lock("x").expect("a name").acquire(None).await.expect("it is free");
        let begun = Instant::now();
        assert_eq!(ask(Arc::clone(&service), 0, 200).await.0, 409);
        over(&service).await;
        assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
        contend(&other, 1).await;
        for keep in [0, 60_000] {
            let waiting = tokio::spawn(ask(Arc::clone(&service), 60_000, keep));
            contend(&other, 2).await;
            // The client hangs up.
            waiting.abort();
            drop(waiting.await);
            if keep == 0 {
                contend(&other, 1).await;
                over(&service).await;
            }
        }
        let (status, told) = ask(Arc::clone(&service), 0, 0).await;
        assert_eq!((status, told.get("place_kept_ms")), (409, None), "{told}");
        // Its last word is that it does not come back.
        contend(&other, 1).await;
        over(&service).await;
    }

    /// What is granted while nobody waits is there for who comes back in time, and is taken back else.
    #[tokio::test]
    async fn a_grant_is_kept_for_who_comes_back() {
        let (service, other) = instance(Cover::Any).await;
        for (keep, comes_back) in [(60_000, true), (500, false)] {
            let held = other.lock("x").expect("a name").acquire(None).await.expect("it is free");
            assert_eq!(ask(Arc::clone(&service), 0, keep).await.0, 409);
            drop(held);
            if comes_back {
                let granted = async {
                    while service.holds.count("anonymous").0 == 0 {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                };
                tokio::time::timeout(LONG, granted).await.expect("it is free");
                let (status, told) = ask(Arc::clone(&service), 0, keep).await;
                assert_eq!(status, 201, "{told}");
                let hold = service.holds.live().pop().expect("it is held");
                assert_eq!(told["id"], hold.id());
                drop(service.holds.give_up(&hold, End::Released).await);
                service.keys.forget("anonymous", "k", &hold.handle);
            }
            over(&service).await;
            let lock = other.lock("x").expect("a name");
            drop(lock.acquire(Some(LONG)).await.expect("it is free again"));
        }
    }

    /// Waits until something was granted.
    async fn granted_to_nobody(service: &Shared) -> Arc<Hold> {
        let granted = async {
            loop {
                if let Some(hold) = service.holds.live().pop() {
                    return hold;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, granted).await.expect("it is free")
    }

    /// What is kept for longer than its lease is there until then: the lease begins when its client is told.
    #[tokio::test]
    async fn a_grant_is_kept_for_longer_than_its_lease() {
        let (service, other) = instance(Cover::Any).await;
        let poll = || ask_for(Arc::clone(&service), 0, 60_000, 1_000);
        let held = other.lock("x").expect("a name").acquire(None).await.expect("it is free");
        assert_eq!(poll().await.0, 409);
        drop(held);
        let hold = granted_to_nobody(&service).await;
        tokio::time::sleep(Duration::from_millis(1_300)).await;
        let (status, told) = poll().await;
        assert_eq!((status, &told["id"]), (201, &hold.id().into()), "{told}");
        assert!(told["expires_in_ms"].as_u64().is_some_and(|left| left <= 1_000), "{told}");
    }

    /// What was lost before its client was told of it has not ended for that client.
    #[tokio::test]
    async fn a_kept_grant_that_was_lost_is_asked_for_anew() {
        let (service, other) = instance(Cover::Any).await;
        let held = other.lock("x").expect("a name").acquire(None).await.expect("it is free");
        assert_eq!(ask(Arc::clone(&service), 0, 60_000).await.0, 409);
        drop(held);
        let hold = granted_to_nobody(&service).await;
        let lost = End::Lost(coordination::LossReason::ExpiredByServer);
        service.holds.end_in_background(&hold, lost);
        let (status, told) = ask(Arc::clone(&service), 20_000, 60_000).await;
        assert_eq!(status, 201, "{told}");
        assert_ne!(told["id"], hold.id());
    }

    /// H10: a place that is kept does not put off a stop, and neither does what was granted to nobody.
    #[tokio::test]
    async fn h10_a_stop_leaves_kept_places() {
        for is_granted in [false, true] {
            let (service, other) = instance(Cover::Any).await;
            let held = other.lock("x").expect("a name").acquire(None).await.expect("it is free");
            assert_eq!(ask(Arc::clone(&service), 0, 60_000).await.0, 409);
            contend(&other, 2).await;
            let _held = (!is_granted).then_some(held);
            if is_granted {
                contend(&other, 1).await;
            }
            service.phase.send_replace(Phase::Draining);
            over(&service).await;
            let (status, told) = ask(Arc::clone(&service), 0, 60_000).await;
            assert_eq!((status, &told["code"]), (503, &"draining".into()), "{told}");
        }
    }

    /// Without a key nobody could say whose place it is.
    #[tokio::test]
    async fn a_place_is_kept_by_a_key() {
        let (service, _other) = instance(Cover::Any).await;
        let keep = Duration::from_secs(1);
        let refused = granted(&service, Wanted { keep, ..wanted(0) }, None, Instant::now()).await;
        assert_eq!(refused.map(drop).map_err(|problem| problem.code), Err(Code::Invalid));
    }

    /// An instance that stood still between the grant and its answer tells nobody of the end of what nobody had, and grants it to who
    /// asks again.
    #[tokio::test]
    async fn a_grant_that_is_over_before_its_answer_has_not_ended() {
        let (service, _other) = instance(Cover::Any).await;
        let begin = || service.keys.begin("me", "k", keys::content(&["x"]), Duration::ZERO);
        let Asked::New(ticket) = begin() else { panic!("nobody has asked before") };
        let granted = acquire::acquire(&service, wanted(0), Some(ticket)).await;
        let granted = granted.expect("it is free");
        let hold = granted.hold().expect("it is here").clone();
        assert!(matches!(begin(), Asked::Granted(_)));
        service.holds.end_in_background(&hold, End::Expired);
        let told = first_told(&service, granted, Instant::now(), Some("k")).map(drop);
        assert_eq!(told.map_err(|problem| problem.code), Err(Code::StoreAway));
        assert!(matches!(begin(), Asked::New(_)), "it may be asked for again");
    }
}
