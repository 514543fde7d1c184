use std::future::Ready;
use std::io;
use std::path::PathBuf;

use axum::body::Body;
use coordination::Coordinator;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use super::frames::{Client, Said, beginning, endless, filling, in_parts, request, reset};
use super::*;
use crate::acquire::tests::instance;
use crate::holds::End;
use crate::listen::{self, Common, Listener, Opened, Origin};
use crate::places::{ANSWERS, REQUESTS};
use crate::service::{Phase, Shared};
use crate::settings::Cover;
use crate::stalled::{STALL, Stalled};
use crate::{ids, v1};

/// Longer than anything takes.
pub(super) const LONG: Duration = Duration::from_secs(60);
/// The window that HTTP/2 begins with.
const OPEN: u32 = 65_535;
/// What a client asks for that waits for long, and has it for long.
const WAIT: &str = r#"{"lease_ms":3600000,"wait_ms":3600000}"#;

/// A path at which HTTP/2 is spoken without TLS.
struct Plain(UnixListener);

impl Listener for Plain {
    type Stream = Stalled<UnixStream>;
    type Opening = Ready<Opened<Self::Stream>>;

    async fn next(&self) -> io::Result<(Self::Opening, Origin)> {
        self.0.next().await
    }

    fn is_http2(_stream: &Self::Stream) -> bool {
        true
    }
}

/// A service that is there until this is dropped, and another session on its store.
struct Site {
    service: Shared,
    other: Coordinator,
    path: PathBuf,
    stop: watch::Sender<bool>,
}

impl Site {
    async fn open() -> Self {
        Self::of(2_000).await
    }

    /// With so many connections.
    async fn of(connections: usize) -> Self {
        let (service, other) = instance(Cover::Any).await;
        let path = std::env::temp_dir().join(format!("coordination-{}", ids::letters(12)));
        let listener = UnixListener::bind(&path).expect("there is room");
        let (stop, stopped) = watch::channel(false);
        let connections = Arc::new(Semaphore::new(connections));
        let common = Common { connections, places: Arc::default(), stop: stopped };
        tokio::spawn(listen::serve(Plain(listener), v1::routes(&service), common));
        Self { service, other, path, stop }
    }

    fn waits(&self) -> usize {
        self.service.waits.count()
    }

    fn holds(&self) -> usize {
        self.service.holds.live().len()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.path));
    }
}

async fn becomes(is: impl Fn() -> bool) {
    let becomes = async {
        while !is() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, becomes).await.expect("in time");
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// H6: hyper asks for an answer's text before its client lets it be sent. A stream that is reset by then leaves no hold, and one whose
/// answer was sent leaves its hold.
#[tokio::test]
async fn h6_a_stream_that_is_reset_leaves_no_hold() {
    let site = Site::open().await;
    let mut client = Client::open(&site.path, 0).await;
    client.ask(1, "POST", "/v1/locks/x", WAIT).await;
    assert_eq!(client.hear().await, Said::Head(1));
    assert_eq!(site.holds(), 1);
    client.say(&reset(1)).await;
    becomes(|| site.holds() == 0).await;
    client.ask(3, "POST", "/v1/locks/x", WAIT).await;
    assert_eq!(client.hear().await, Said::Head(3));
    client.allow(3, OPEN).await;
    let answer = client.answer(3).await;
    assert!(answer.contains("fence"), "{answer}");
    client.say(&reset(3)).await;
    sleep(Duration::from_millis(50)).await;
    assert_eq!(site.holds(), 1, "its client was told of it");
    // That of a connection that ends is taken back as well.
    client.ask(5, "POST", "/v1/locks/y", WAIT).await;
    assert_eq!(client.hear().await, Said::Head(5));
    assert_eq!(site.holds(), 2);
    drop(client);
    becomes(|| site.holds() == 1).await;
}

/// H8: a stream whose client lets nothing of its answer be sent ends in time, gives back what it was to tell of, and no other ends with it.
#[tokio::test]
async fn h8_a_stream_of_which_nothing_is_taken_ends_alone() {
    let site = Site::open().await;
    let mut client = Client::open(&site.path, 0).await;
    client.ask(1, "POST", "/v1/locks/x", WAIT).await;
    client.ask(3, "GET", "/livez", "").await;
    client.allow(3, OPEN).await;
    let (mut is_reset, mut is_served) = (false, false);
    while !(is_reset && is_served) {
        match client.hear().await {
            Said::Reset(1) => is_reset = true,
            Said::Text(3, ..) => is_served = true,
            Said::Head(1 | 3) => {}
            said => panic!("{said:?}"),
        }
    }
    becomes(|| site.holds() == 0).await;
    client.ask(5, "GET", "/livez", "").await;
    client.allow(5, OPEN).await;
    loop {
        match client.hear().await {
            Said::Text(5, ..) => break,
            said => assert_ne!(said, Said::Nothing, "the connection goes on"),
        }
    }
}

/// H6: whoever has renewed what the head of an answer has told of keeps it, though the text was not taken: it relies on that.
#[tokio::test]
async fn h6_a_stream_that_is_reset_ends_no_hold_that_was_renewed() {
    let site = Site::open().await;
    let mut client = Client::open(&site.path, 0).await;
    client.ask(1, "POST", "/v1/locks/x", WAIT).await;
    assert_eq!(client.hear().await, Said::Head(1));
    let hold = site.service.holds.live().pop().expect("it is granted");
    client.ask(3, "PUT", &format!("/v1/holds/{}", hold.id()), "{}").await;
    assert_eq!(client.hear().await, Said::Head(3));
    client.say(&reset(1)).await;
    client.ask(5, "GET", "/livez", "").await;
    assert_eq!(client.hear().await, Said::Head(5));
    sleep(Duration::from_millis(50)).await;
    assert_eq!(site.holds(), 1, "it was renewed");
}

/// H6: so does whoever has looked at it by its id, or follows it.
#[tokio::test]
async fn h6_a_stream_that_is_reset_ends_no_hold_that_was_looked_at() {
    for path in ["", "/events"] {
        let site = Site::open().await;
        let mut client = Client::open(&site.path, 0).await;
        client.ask(1, "POST", "/v1/locks/x", WAIT).await;
        assert_eq!(client.hear().await, Said::Head(1));
        let hold = site.service.holds.live().pop().expect("it is granted");
        client.ask(3, "GET", &format!("/v1/holds/{}{path}", hold.id()), "").await;
        assert_eq!(client.hear().await, Said::Head(3));
        client.say(&reset(1)).await;
        client.ask(5, "GET", "/livez", "").await;
        loop {
            match client.hear().await {
                Said::Head(5) => break,
                said => assert_ne!(said, Said::Nothing, "the connection goes on"),
            }
        }
        sleep(Duration::from_millis(50)).await;
        assert_eq!(site.holds(), 1, "its client was told that it holds");
    }
}

/// H6: a wait ends with its stream, and all of them end with their connection.
#[tokio::test]
async fn h6_who_takes_a_request_back_waits_no_more() {
    let site = Site::open().await;
    let _taken = site.other.lock("x").expect("a name").acquire(None).await.expect("it is free");
    let before = tasks();
    let mut client = Client::open(&site.path, OPEN).await;
    client.ask(1, "POST", "/v1/locks/x", WAIT).await;
    becomes(|| site.waits() == 1).await;
    client.ask(3, "GET", "/livez", "").await;
    assert_eq!(client.answer(3).await, "ok\n", "one that waits holds up no other");
    client.say(&reset(1)).await;
    becomes(|| site.waits() == 0).await;
    for stream in [5, 7, 9] {
        client.ask(stream, "POST", "/v1/locks/x", WAIT).await;
    }
    becomes(|| site.waits() == 3).await;
    drop(client);
    becomes(|| site.waits() == 0 && tasks() <= before).await;
    assert!(site.service.under_way.is_over(), "something is under way");
}

/// H6: a connection that ends after any byte of a request, or in an answer, leaves no hold, no wait and no task.
#[tokio::test]
async fn h6_a_connection_that_is_cut_anywhere_leaves_no_task() {
    let site = Site::open().await;
    let _taken = site.other.lock("0").expect("a name").acquire(None).await.expect("it is free");
    let before = tasks();
    let of = |name: usize| {
        let path = format!("/v1/locks/{name}");
        let asked = request(1, ("POST", path.as_str()), &[(":authority", "localhost")], WAIT);
        [beginning(OPEN), asked].concat()
    };
    let whole = of(0);
    for cut in 1..=whole.len() {
        Client::saying(&site.path, &whole[..cut]).await;
    }
    // Of an answer: fewer bytes than it has with its head and what is said before.
    for cut in (0..400).step_by(7) {
        let mut client = Client::saying(&site.path, &of(cut + 1)).await;
        let read = timeout(LONG, client.bytes(cut)).await.expect("there are so many");
        assert_eq!(read, cut);
    }
    // What was sent is held for as long as its lease: so it is given up here.
    let is_gone = || {
        for hold in site.service.holds.live() {
            site.service.holds.end_in_background(&hold, End::Released);
        }
        tasks() <= before && site.waits() == 0
    };
    becomes(is_gone).await;
    assert!(site.service.under_way.is_over(), "something is under way");
}

/// H8: a body that nobody reads keeps no other one from arriving: many clients may share a connection, behind a proxy.
#[tokio::test]
async fn h8_a_body_that_is_not_read_holds_up_no_other() {
    let site = Site::open().await;
    let mut client = Client::open(&site.path, OPEN).await;
    let known = [(":authority", "localhost"), ("if-none-match", "\"0\""), ("prefer", "wait=60")];
    // Nearly all that a stream may send, on two of them.
    for stream in [1, 5] {
        client.say(&filling(stream, ("GET", "/v1/counters/x"), &known, 60 * 1024)).await;
        // By its answer the client has been told that there is room again.
        client.ask(stream + 2, "GET", "/livez", "").await;
        assert_eq!(client.answer(stream + 2).await, "ok\n");
    }
    let large = format!("{}{{\"add\":2}}", " ".repeat(8 * 1024));
    client.ask(9, "POST", "/v1/counters/y", &large).await;
    assert_eq!(client.answer(9).await, r#"{"value":2}"#);
}

/// H8: a connection has so many requests at a time, and one more is refused.
#[tokio::test]
async fn h8_a_connection_has_no_more_requests_than_that() {
    let site = Site::open().await;
    let _taken = site.other.lock("x").expect("a name").acquire(None).await.expect("it is free");
    let mut client = Client::open(&site.path, OPEN).await;
    for number in 0..=STREAMS {
        client.ask(1 + 2 * number, "POST", "/v1/locks/x", WAIT).await;
    }
    assert_eq!(client.hear().await, Said::Reset(1 + 2 * STREAMS));
    let most = usize::try_from(STREAMS).expect("a small number");
    becomes(|| site.waits() == most).await;
    client.say(&reset(1)).await;
    becomes(|| site.waits() == most - 1).await;
    client.ask(3 + 2 * STREAMS, "POST", "/v1/locks/x", WAIT).await;
    becomes(|| site.waits() == most).await;
}

/// H8: however many connections there are, they have no more requests together, but for a few of each.
#[tokio::test]
async fn h8_all_connections_have_no_more_requests_than_that() {
    let site = Site::open().await;
    let _taken = site.other.lock("x").expect("a name").acquire(None).await.expect("it is free");
    let (all, own) = REQUESTS;
    let mut full = Vec::new();
    while site.waits() < all {
        let mut client = Client::open(&site.path, OPEN).await;
        let before = site.waits();
        for number in 0..STREAMS {
            client.ask(1 + 2 * number, "POST", "/v1/locks/x", WAIT).await;
        }
        let most = usize::try_from(STREAMS).expect("a small number");
        becomes(|| site.waits() == before + most).await;
        full.push(client);
    }
    let mut client = Client::open(&site.path, OPEN).await;
    for stream in (1..).step_by(2).take(own - 1) {
        client.say(&endless(stream, ("POST", "/v1/locks/y"))).await;
    }
    client.ask(101, "GET", "/livez", "").await;
    assert_eq!(client.answer(101).await, "ok\n", "each has some");
    client.say(&endless(103, ("POST", "/v1/locks/y"))).await;
    client.ask(105, "GET", "/livez", "").await;
    assert_eq!(client.hear().await, Said::Head(105));
    let more = timeout(Duration::from_millis(50), client.hear()).await;
    assert!(more.is_err(), "it was not served: {more:?}");
}

/// H8: large answers that a client does not take have no more room than there is, and others are answered.
#[tokio::test]
async fn h8_large_answers_that_are_not_taken_have_a_bound() {
    let site = Site::open().await;
    // Of each answer it takes so much.
    let window = 1_024;
    let mut client = Client::open(&site.path, window).await;
    let large =
        |stream| request(stream, ("GET", "/openapi.json"), &[(":authority", "localhost")], "");
    // One more than its own one, and those for which there is room, if they have no more bytes than a large one has.
    let all = (1..).step_by(2).take(2 + ANSWERS.1 / ANSWERS.0);
    client.say(&all.flat_map(large).collect::<Vec<_>>()).await;
    loop {
        match client.hear().await {
            Said::Text(_, text, _) if String::from_utf8_lossy(&text).contains("overloaded") => {
                break;
            }
            said => assert_ne!(said, Said::Nothing, "one is refused"),
        }
    }
    let mut other = Client::open(&site.path, window).await;
    other.say(&large(1)).await;
    assert_eq!(other.hear().await, Said::Head(1));
    let Said::Text(1, text, false) = other.hear().await else { panic!("it is answered") };
    let text = String::from_utf8_lossy(&text);
    assert!(!text.contains("overloaded"), "it has one of its own: {text}");
}

/// H8: so many may come at once, however their bodies are cut.
#[tokio::test]
async fn h8_a_connection_may_send_all_its_requests_at_once() {
    let site = Site::open().await;
    let _taken = site.other.lock("x").expect("a name").acquire(None).await.expect("it is free");
    let mut client = Client::open(&site.path, OPEN).await;
    let (all, wait) = (0..STREAMS, r#"{"wait_ms":60000}"#);
    let bytes = all.flat_map(|number| in_parts(1 + 2 * number, ("POST", "/v1/locks/x"), wait));
    client.say(&bytes.collect::<Vec<_>>()).await;
    let most = usize::try_from(STREAMS).expect("a small number");
    becomes(|| site.waits() == most).await;
}

/// H8: whoever always has requests whose bodies do not arrive, or whose answers it does not take, keeps nobody out; and whoever waits for an
/// answer keeps its place.
#[tokio::test]
async fn h8_what_is_not_sent_and_not_taken_keeps_nobody_out() {
    let site = Site::of(3).await;
    let _taken = site.other.lock("x").expect("a name").acquire(None).await.expect("it is free");
    let mut waiting = Client::open(&site.path, OPEN).await;
    waiting.ask(1, "POST", "/v1/locks/x", WAIT).await;
    becomes(|| site.waits() == 1).await;
    let mut greedy = [Client::open(&site.path, 0).await, Client::open(&site.path, 0).await];
    let asking = async {
        let host = [(":authority", "localhost")];
        for stream in (1..).step_by(2) {
            greedy[0].try_say(&request(stream, ("GET", "/livez"), &host, "")).await;
            greedy[1].try_say(&endless(stream, ("POST", "/v1/locks/y"))).await;
            // More often than a stream ends of which nothing is taken.
            sleep(STALL / 4).await;
        }
    };
    let served = async {
        // Each needs a place, and keeps it.
        let mut others = Vec::new();
        for waits in [2, 3] {
            let mut other = Client::open(&site.path, OPEN).await;
            other.ask(1, "POST", "/v1/locks/x", WAIT).await;
            becomes(|| site.waits() == waits).await;
            others.push(other);
        }
        others
    };
    let others = tokio::select! {
        others = served => others,
        () = asking => unreachable!("there is always a next stream"),
    };
    assert_eq!(site.waits(), 1 + others.len(), "the first one waits still");
}

/// H8: a client that takes its requests back all the time is not served any more, whether or not they had begun; others are.
#[tokio::test]
async fn h8_who_resets_all_the_time_is_not_served() {
    let site = Site::open().await;
    let _taken = site.other.lock("x").expect("a name").acquire(None).await.expect("it is free");
    let mut client = Client::open(&site.path, OPEN).await;
    let most = u32::try_from(TAKEN_BACK.0).expect("a small number");
    for number in 0..=most {
        client.ask(1 + 2 * number, "POST", "/v1/locks/x", WAIT).await;
        becomes(|| site.waits() == 1).await;
        client.say(&reset(1 + 2 * number)).await;
        becomes(|| site.waits() == 0).await;
    }
    client.end().await;
    let mut bytes = beginning(OPEN);
    for number in 0..100 {
        let stream = 1 + 2 * number;
        bytes.extend(request(
            stream,
            ("POST", "/v1/locks/x"),
            &[(":authority", "localhost")],
            WAIT,
        ));
        bytes.extend(reset(stream));
    }
    Client::saying(&site.path, &bytes).await.end().await;
    becomes(|| site.waits() == 0).await;
    let mut good = Client::open(&site.path, OPEN).await;
    good.ask(1, "GET", "/livez", "").await;
    assert_eq!(good.answer(1).await, "ok\n");
}

/// As many as is bearable are.
#[tokio::test(start_paused = true)]
async fn requests_may_be_taken_back_now_and_then() {
    let conduct = Arc::<Conduct>::default();
    let (most, within) = TAKEN_BACK;
    let is_refused = async || timeout(Duration::from_secs(1), conduct.refused()).await.is_ok();
    for _ in 0..3 {
        (0..most).for_each(|_| drop(conduct.begin()));
        assert!(!is_refused().await);
        sleep(within).await;
    }
    (0..2 * most).for_each(|_| conduct.begin().answered());
    assert!(!is_refused().await, "they were answered");
    (0..=most).for_each(|_| drop(conduct.begin()));
    assert!(is_refused().await);
}

/// H8: a client that does not begin, or asks for nothing, is gone in time.
#[tokio::test]
async fn h8_who_asks_for_nothing_is_gone_in_time() {
    let site = Site::open().await;
    let asks = request(1, ("GET", "/livez"), &[(":authority", "localhost")], "");
    let whole = [beginning(OPEN), asks].concat();
    // Nothing; part of what a client says first; that; and some of the head of a request.
    let (preface, all) = (beginning(OPEN).len(), whole.len());
    let mut silent = Vec::new();
    for said in [0, 9, preface, preface + 4, all - 4] {
        silent.push(Client::saying(&site.path, &whole[..said]).await);
    }
    for mut client in silent {
        client.end().await;
    }
    let mut client = Client::open(&site.path, OPEN).await;
    client.ask(1, "GET", "/livez", "").await;
    assert_eq!(client.answer(1).await, "ok\n");
    assert_eq!(client.hear().await, Said::GoAway, "it is told first");
    client.end().await;
}

/// H6: a host that vanishes while it waits is noticed, though its connection does not end.
#[tokio::test]
async fn h6_who_answers_no_ping_waits_no_more() {
    let site = Site::open().await;
    let _taken = site.other.lock("x").expect("a name").acquire(None).await.expect("it is free");
    let mut client = Client::open(&site.path, OPEN).await;
    client.ask(1, "POST", "/v1/locks/x", WAIT).await;
    becomes(|| site.waits() == 1).await;
    becomes(|| site.waits() == 0).await;
}

/// H10: whoever had asked by the time of a stop is answered, and then the connection ends.
#[tokio::test]
async fn h10_a_stop_ends_streams_in_order() {
    let site = Site::open().await;
    let taken = site.other.lock("x").expect("a name").acquire(None).await.expect("it is free");
    let mut client = Client::open(&site.path, OPEN).await;
    client.ask(1, "POST", "/v1/locks/x", WAIT).await;
    becomes(|| site.waits() == 1).await;
    site.stop.send_replace(true);
    assert_eq!(client.hear().await, Said::GoAway);
    taken.release().await.expect("memory answers");
    let mut text = Vec::new();
    loop {
        match client.hear().await {
            Said::Text(1, more, _) => text.extend(more),
            Said::Head(1) | Said::GoAway => {}
            Said::Nothing => break,
            said => panic!("{said:?}"),
        }
    }
    let answer = String::from_utf8(text).expect("a text");
    assert!(answer.contains("fence"), "{answer}");
}

/// Whoever holds something keeps its connection during a stop, and all others are sent to another instance: also who has held something.
#[tokio::test]
async fn who_holds_nothing_is_sent_elsewhere_by_a_stop() {
    let (service, _other) = instance(Cover::Any).await;
    let routes = TowerToHyperService::new(v1::routes(&service));
    let conduct = Arc::<Conduct>::default();
    let ask = async |method: &str, path: &str, body: String| {
        let asked = Request::builder().method(method).uri(path).header("host", "localhost");
        let mut asked = asked.body(Body::from(body)).expect("a request");
        asked.extensions_mut().insert(Arc::clone(&conduct));
        let answer = routes.call(asked).await.expect("an answer");
        axum::body::to_bytes(answer.into_body(), 65_536).await.expect("a body")
    };
    let is_sent =
        async || timeout(Duration::from_millis(50), conduct.leaves.notified()).await.is_ok();
    let text = ask("POST", "/v1/locks/x", String::new()).await;
    let told: serde_json::Value = serde_json::from_slice(&text).expect("it is JSON");
    let id = told["id"].as_str().expect("an id");
    let path = format!("/v1/holds/{id}");
    let look = async || ask("GET", "/livez", String::new()).await;
    look().await;
    assert!(!is_sent().await, "it does not stop yet");
    service.phase.send_replace(Phase::Draining);
    look().await;
    ask("PUT", &path, String::new()).await;
    ask("POST", "/v1/renew", format!("{{\"ids\":[\"{id}\"]}}")).await;
    assert!(!is_sent().await, "it holds something");
    ask("DELETE", &path, String::new()).await;
    assert!(is_sent().await);
    look().await;
    assert!(is_sent().await);
}

/// Of many that a client has had on its connection, few are remembered.
#[test]
fn what_a_client_has_had_is_forgotten() {
    let conduct = Conduct::default();
    for number in 0..10_000 {
        conduct.has(&number.to_string(), |handle| handle == "0");
    }
    let handles = conduct.handles();
    assert!(handles.contains("0") && handles.len() < 1_000, "{}", handles.len());
}

/// H9: the host is that of the request's address, and no other one may be named besides. H8: headers have the limits of HTTP/1.1.
#[tokio::test]
async fn h9_a_request_names_its_host_once() {
    let site = Site::open().await;
    let mut client = Client::open(&site.path, OPEN).await;
    let (ours, own, evil) =
        ((":authority", "localhost:1"), ("host", "localhost:1"), ("host", "evil.example"));
    for (stream, headers, is_served) in [
        (1, vec![ours], true),
        (3, vec![own], true),
        (5, vec![ours, own], true),
        (7, vec![(":authority", "evil.example")], false),
        (9, vec![evil], false),
        (11, vec![ours, evil], false),
        (13, vec![], false),
    ] {
        client.say(&request(stream, ("GET", "/v1/info"), &headers, "")).await;
        let answer = client.answer(stream).await;
        assert_eq!(!answer.contains("wrong-host"), is_served, "{headers:?}: {answer}");
    }
    let mut many = vec![ours];
    many.extend([("a", "b"); 64]);
    client.say(&request(15, ("GET", "/livez"), &many, "")).await;
    assert_eq!(client.hear().await, Said::Head(15));
    client.ask(17, "GET", "/livez", "").await;
    assert_eq!(client.answer(17).await, "ok\n", "it was not served");
}
