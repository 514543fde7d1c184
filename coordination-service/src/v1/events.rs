//! Streams of events: what happens to one hold, and to all that the caller may see.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use data_encoding::HEXLOWER;
use hyper::body::Frame;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::holds::{add_fences, ended, found};
use super::info::state;
use crate::around::Noted;
use crate::auth::{Principal, Right};
use crate::kind::Kind;
use crate::mirror::{Changes, Of};
use crate::problem::{Code, Problem};
use crate::reply::{principal, rest};
use crate::service::{Phase, Shared};
use crate::text::{self, millis};

/// Time between signs of life.
const BEAT: Duration = Duration::from_secs(2);
/// Changes are told this often at most.
const PACE: Duration = Duration::from_millis(250);
/// How long a reader may take nothing.
const STALL: Duration = Duration::from_secs(20);
/// Rows in one event, and their bytes, unless one row alone has more.
const ROWS: usize = 200;
const BYTES: usize = 256 * 1024;
/// A row of so many bytes is sent as it is, without a copy for each stream.
const LARGE: usize = 16 * 1024;

/// The text of a stream, as it comes.
struct Stream(mpsc::Receiver<Bytes>);

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|text| text.map(|text| Ok(Frame::data(text))))
    }
}

/// Where events are written. A reader that is slow holds up its own stream, and nothing else.
struct Events(mpsc::Sender<Bytes>);

impl Events {
    fn new() -> (Self, Response) {
        let (sender, receiver) = mpsc::channel(1);
        let headers = [(header::CONTENT_TYPE, "text/event-stream")];
        (Self(sender), (headers, Body::new(Stream(receiver))).into_response())
    }

    /// False: nobody reads it any more.
    async fn send(&self, event: &str, data: &Value) -> bool {
        self.send_at(event, "", data).await
    }

    /// The same as an event of this id, if there is one.
    async fn send_at(&self, event: &str, id: &str, data: &Value) -> bool {
        self.write(format!("{}{data}\n\n", head(event, id))).await
    }

    /// The same with these rows as data, after and before what is around them.
    async fn send_rows(&self, event: &str, id: &str, around: [&str; 2], rows: &[Bytes]) -> bool {
        let mut text = format!("{}{}", head(event, id), around[0]).into_bytes();
        for (number, row) in rows.iter().enumerate() {
            if number > 0 {
                text.push(b',');
            }
            if row.len() < LARGE {
                text.extend_from_slice(row);
            } else if !self.write(std::mem::take(&mut text)).await || !self.write(row.clone()).await
            {
                return false;
            }
        }
        text.extend_from_slice(around[1].as_bytes());
        text.extend_from_slice(b"\n\n");
        self.write(text).await
    }

    /// Waits until nobody reads it any more.
    async fn closed(&self) {
        self.0.closed().await;
    }

    async fn write(&self, text: impl Into<Bytes>) -> bool {
        matches!(tokio::time::timeout(STALL, self.0.send(text.into())).await, Ok(Ok(())))
    }
}

/// What stands before the data of an event.
fn head(event: &str, id: &str) -> String {
    match id {
        "" => format!("event: {event}\ndata: "),
        id => format!("event: {event}\nid: {id}\ndata: "),
    }
}

/// `GET /v1/holds/{id}/events`
pub(super) async fn of_hold(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let id = rest(&request, "/v1/holds/").strip_suffix("/events").unwrap_or_default();
    let (hold, end) = found(&service, &who, id)?;
    if let Some(end) = end {
        return Err(ended(end));
    }
    let most = service.settings.limits.streams;
    let watching = service.mirror.watching(most, &[]).ok_or_else(too_many)?;
    // Whoever has its id relies on what it is told here.
    service.holds.told(&hold, false).map_err(ended)?;
    let (events, mut response) = Events::new();
    response.extensions_mut().insert(Noted::of(&hold));
    tokio::spawn(async move {
        let (mut changes, mut phases) = (hold.changes(), service.phase.subscribe());
        while service.auth.knows(&who) {
            match service.holds.now(&hold) {
                Ok(now) => {
                    let mut data = json!({ "expires_in_ms": millis(now.expires_in) });
                    add_fences(&mut data, &hold);
                    if !events.send("held", &data).await {
                        break;
                    }
                }
                Err(end) => {
                    let event = if end.text() == "lost" { "lost" } else { "ended" };
                    events.send(event, &json!({ "reason": end.text() })).await;
                    break;
                }
            }
            let alive = loop {
                tokio::select! {
                    biased;
                    () = events.closed() => break false,
                    changed = changes.changed() => break changed.is_ok(),
                    _ = phases.changed() => {
                        if !events.send("draining", &json!({})).await { break false }
                    }
                    () = tokio::time::sleep(BEAT) => {
                        if !service.auth.knows(&who) || !events.write(":\n\n".to_owned()).await {
                            break false;
                        }
                    }
                }
            };
            if !alive {
                break;
            }
        }
        drop(watching);
    });
    Ok(response)
}

pub(super) fn too_many() -> Problem {
    Problem::new(Code::Overloaded, "there are too many event streams")
}

/// The recipes of `?kinds=`: words with commas between them; locks, if it is not there.
fn kinds(query: &[(String, String)]) -> Result<Vec<Kind>, Problem> {
    let unknown = || Problem::new(Code::Invalid, "`kinds` are words such as `lock,semaphore`");
    let Some((_, words)) = query.iter().find(|(key, _)| key == "kinds") else {
        return Ok(vec![Kind::Lock]);
    };
    let kinds = words.split(',').map(Kind::of).collect::<Option<BTreeSet<_>>>();
    Ok(kinds.ok_or_else(unknown)?.into_iter().collect())
}

/// `GET /v1/events?kinds=&prefix=`
pub(super) async fn all(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, Problem> {
    let who = principal(&request)?;
    let query = text::query(request.uri().query());
    let kinds = kinds(&query)?;
    let prefix = query.into_iter().find(|(key, _)| key == "prefix").map(|(_, prefix)| prefix);
    let most = service.settings.limits.streams;
    let watching = service.mirror.watching(most, &kinds).ok_or_else(too_many)?;
    let (events, response) = Events::new();
    let prefix = prefix.unwrap_or_default();
    let view = view(&kinds, &prefix, &who);
    let known = request.headers().get("last-event-id").and_then(|id| id.to_str().ok());
    let known = known.and_then(|id| change(&service, &view, id));
    tokio::spawn(async move {
        let follower = Follower { service, who, kinds, prefix, view, known, events };
        follower.follow().await;
        drop(watching);
    });
    Ok(response)
}

/// What a stream tells of, in short: who may see other rows, or wants to, cannot go on where this one has ended.
fn view(kinds: &[Kind], prefix: &str, who: &Principal) -> String {
    let hash = Sha256::digest(format!("{:?}", (kinds, prefix, who)));
    HEXLOWER.encode(&hash[..8])
}

/// The last change of which a stream of this view has told, by the id of its last event. `None`: that is no id of such a stream of this
/// instance.
fn change(service: &Shared, view: &str, id: &str) -> Option<u64> {
    let (tag, rest) = id.split_once('.')?;
    let (number, of) = rest.split_once('.')?;
    let number = number.parse().ok()?;
    (tag == service.tag && of == view && number <= service.mirror.last()).then_some(number)
}

struct Follower {
    service: Shared,
    who: Arc<Principal>,
    kinds: Vec<Kind>,
    prefix: String,
    view: String,
    /// The last change of which the reader was told by an earlier stream.
    known: Option<u64>,
    events: Events,
}

impl Follower {
    /// Tells what is there, and then what changes, until nobody reads it any more.
    async fn follow(&self) -> Option<()> {
        let service = &self.service;
        // Before anything is read: what changes while a slow reader takes that is told afterwards.
        let (mut changes, mut phases) = (service.mirror.changes(), service.phase.subscribe());
        let mut session = service.session.subscribe();
        self.told(self.events.write("retry: 2000\n\n".to_owned()).await)?;
        self.store().await?;
        let mut fresh = pin!(service.mirror.fresh(&self.kinds));
        // The last change that was told; none, before the rows were.
        let mut last = None;
        // Whoever goes on may have been told of some by the stream before.
        let mut unread = self.known.is_none().then(Vec::new);
        // Through all turns of the loop: changes of which nothing is told put off no sign of life.
        let mut beat = pin!(tokio::time::sleep(BEAT));
        loop {
            tokio::select! {
                biased;
                () = self.events.closed() => return None,
                _ = phases.changed() => self.told(self.events.send("draining", &json!({})).await)?,
                _ = session.changed() => self.store().await?,
                () = &mut beat => {
                    let age = service.mirror.age(&self.kinds).map(millis);
                    self.told(service.auth.knows(&self.who))?;
                    // Whoever is told of nothing for long goes on from here.
                    let id = last.map(|last| self.id(last)).unwrap_or_default();
                    self.told(self.events.send_at("beat", &id, &json!({ "age_ms": age })).await)?;
                    if last.is_some() {
                        self.unread(&mut unread).await?;
                    }
                    beat.as_mut().reset(tokio::time::Instant::now() + BEAT);
                }
                () = &mut fresh, if last.is_none() => {
                    self.unread(&mut unread).await?;
                    last = Some(self.begin().await?);
                }
                changed = changes.changed(), if last.is_some() => {
                    changed.ok()?;
                    last = Some(self.changes(last.unwrap_or_default()).await?);
                    tokio::time::sleep(PACE).await;
                }
            }
            if *phases.borrow() == Phase::Ending {
                return None;
            }
        }
    }

    fn told(&self, is_told: bool) -> Option<()> {
        is_told.then_some(())
    }

    fn may_see(&self, (kind, name): &Of) -> bool {
        self.kinds.contains(kind)
            && name.starts_with(&self.prefix)
            && self.who.may(Right::Read, name)
    }

    async fn store(&self) -> Option<()> {
        let since = self.service.session.borrow().as_ref().map(|session| session.since);
        let data = json!({
            "scheme": self.service.scheme, "state": state(&self.service), "instance": self.service.tag,
            "since_ms": since.map(|since: Instant| millis(since.elapsed())),
            "left_ms": self.service.holds.good_for().map(millis),
        });
        self.told(self.events.send("store", &data).await)
    }

    /// Tells of which recipes not all could be read, if these are others than were told.
    async fn unread(&self, told: &mut Option<Vec<Kind>>) -> Option<()> {
        let unread = self.service.mirror.unread(&self.kinds);
        if told.as_ref() == Some(&unread) {
            return Some(());
        }
        let kinds: Vec<_> = unread.iter().map(|kind| kind.text()).collect();
        *told = Some(unread);
        self.told(self.events.send("unread", &json!({ "kinds": kinds })).await)
    }

    /// Tells of rows as long as the reader may see them: a slow one takes them long after its token was taken out.
    async fn rows(&self, event: &str, id: &str, around: [&str; 2], rows: &[Bytes]) -> Option<()> {
        self.told(self.service.auth.knows(&self.who))?;
        self.told(self.events.send_rows(event, id, around, rows).await)
    }

    /// By which a later stream goes on after this change.
    fn id(&self, last: u64) -> String {
        format!("{}.{last}.{}", self.service.tag, self.view)
    }

    /// Goes on where an earlier stream has ended, if that is known still; else tells of all rows.
    async fn begin(&self) -> Option<u64> {
        let Some(changes) = self.known.and_then(|known| self.service.mirror.since(known)) else {
            return self.snapshot().await;
        };
        let last = changes.last;
        let count = self.tell(changes).await?;
        let live = json!({ "count": count, "resumed": true });
        self.told(self.events.send_at("live", &self.id(last), &live).await)?;
        Some(last)
    }

    async fn snapshot(&self) -> Option<u64> {
        let changes = self.service.mirror.since(0)?;
        let rows = changes.rows.into_iter().filter(|(of, _)| self.may_see(of));
        let rows: Vec<_> = rows.map(|(_, row)| row).collect();
        let mut left = rows.as_slice();
        while !left.is_empty() {
            let (some, others) = left.split_at(in_one_event(left));
            self.rows("snapshot", "", ["{\"rows\":[", "]}"], some).await?;
            left = others;
        }
        let (id, live) = (self.id(changes.last), json!({ "count": rows.len() }));
        self.told(self.events.send_at("live", &id, &live).await)?;
        Some(changes.last)
    }

    async fn changes(&self, last: u64) -> Option<u64> {
        let Some(changes) = self.service.mirror.since(last) else {
            return self.snapshot().await;
        };
        let last = changes.last;
        self.tell(changes).await?;
        Some(last)
    }

    /// Tells of these changes; of how many. Only the last event has an id: they are not told in the order of their numbers.
    async fn tell(&self, changes: Changes) -> Option<usize> {
        let gone: Vec<_> = changes.gone.iter().filter(|of| self.may_see(of)).collect();
        let rows = changes.rows.into_iter().filter(|(of, _)| self.may_see(of));
        let rows: Vec<_> = rows.map(|(_, row)| row).collect();
        let count = gone.len() + rows.len();
        let id = |number: usize| match number + 1 == count {
            true => self.id(changes.last),
            false => String::new(),
        };
        for (number, of) in gone.iter().enumerate() {
            let gone = json!({ "kind": of.0.text(), "name": of.1 });
            self.told(self.events.send_at("gone", &id(number), &gone).await)?;
        }
        for (number, row) in rows.into_iter().enumerate() {
            self.rows("row", &id(gone.len() + number), [""; 2], &[row]).await?;
        }
        Some(count)
    }
}

/// How many of these rows one event has: one at least.
fn in_one_event(rows: &[Bytes]) -> usize {
    let mut bytes = 0;
    let fit = rows.iter().take(ROWS).take_while(|row| {
        bytes += row.len();
        bytes <= BYTES
    });
    fit.count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &Bytes) -> &str {
        std::str::from_utf8(bytes).expect("a text")
    }

    /// However many streams there are, a large row is there once.
    #[tokio::test]
    async fn a_large_row_is_sent_without_a_copy() {
        let large = Bytes::from(format!("\"{}\"", "x".repeat(LARGE)));
        let rows = [Bytes::from("1"), large.clone(), Bytes::from("2"), Bytes::from("3")];
        let (sender, mut reader) = mpsc::channel(9);
        assert!(Events(sender).send_rows("snapshot", "", ["[", "]"], &rows).await);
        let mut told = Vec::new();
        while let Some(some) = reader.recv().await {
            told.push(some);
        }
        assert_eq!(told.len(), 3);
        assert_eq!(told[1].as_ptr(), large.as_ptr());
        let ends = [text(&told[0]), text(&told[2])];
        assert_eq!(ends, ["event: snapshot\ndata: [1,", ",2,3]\n\n"]);
    }

    #[test]
    fn an_event_has_rows_up_to_a_size() {
        let rows = |count: usize, bytes: usize| vec![Bytes::from(vec![b'x'; bytes]); count];
        assert_eq!(in_one_event(&rows(ROWS + 1, 1)), ROWS);
        assert_eq!(in_one_event(&rows(9, BYTES / 4)), 4);
        assert_eq!(in_one_event(&rows(2, BYTES + 1)), 1);
    }
    use crate::acquire::tests::{Disk, instance};
    use crate::refresh;
    use crate::settings::Cover;

    /// Somebody who follows these recipes, under this prefix, and what that one is told.
    fn follow(
        service: &Shared,
        kinds: &[Kind],
        prefix: &str,
    ) -> (tokio::task::JoinHandle<Option<()>>, mpsc::Receiver<Bytes>) {
        go_on(service, kinds, prefix, "")
    }

    /// The same by the id of the last event of an earlier stream.
    fn go_on(
        service: &Shared,
        kinds: &[Kind],
        prefix: &str,
        id: &str,
    ) -> (tokio::task::JoinHandle<Option<()>>, mpsc::Receiver<Bytes>) {
        let (sender, reader) = mpsc::channel(1);
        let who = service.auth.principal(&header::HeaderMap::new()).expect("anybody");
        let view = view(kinds, prefix, &who);
        let follower = Follower {
            service: Arc::clone(service),
            who,
            kinds: kinds.to_owned(),
            prefix: prefix.to_owned(),
            known: change(service, &view, id),
            view,
            events: Events(sender),
        };
        (tokio::spawn(async move { follower.follow().await }), reader)
    }

    /// A stream of which nothing changes on a service that is in use has its signs of life, and ends with its reader.
    #[tokio::test]
    async fn changes_of_others_put_nothing_off() {
        let (service, _other) = instance(Cover::Any).await;
        service.mirror.completed(service.mirror.begin_round(), &[Kind::Lock]);
        let (following, mut reader) = follow(&service, &[Kind::Lock], "quiet/");
        let changing = tokio::spawn(async move {
            for number in 0.. {
                let row = [json!({ "fence": number, "state": "held" })];
                service.mirror.put(Kind::Lock, "x", &row);
                tokio::time::sleep(PACE / 2).await;
            }
        });
        let beats = async {
            let mut beats = 0;
            while beats < 3 {
                let told = reader.recv().await.expect("it goes on");
                beats += usize::from(text(&told).starts_with("event: beat"));
            }
        };
        tokio::time::timeout(30 * BEAT, beats).await.expect("there are beats");
        drop(reader);
        // Before the next sign of life would fail. Counted in turns of this thread, of which the one that follows has its share, however
        // busy the machine is.
        for _ in 0..40 {
            if following.is_finished() {
                break;
            }
            tokio::time::sleep(PACE / 10).await;
        }
        assert!(following.is_finished(), "nobody reads it any more");
        assert_eq!(following.await.expect("it does not panic"), None);
        changing.abort();
    }

    /// What changes while a reader is slow to take what was there is told to it afterwards.
    #[tokio::test]
    async fn a_change_while_the_rows_are_sent_is_told_after_them() {
        let (service, _other) = instance(Cover::Any).await;
        let row = |fence| [json!({ "fence": fence, "state": "held" })];
        for number in 0..2 * ROWS + 1 {
            service.mirror.put(Kind::Lock, &number.to_string(), &row(1));
        }
        let (following, mut reader) = follow(&service, &[Kind::Lock], "");
        let mut next = async || loop {
            // Whoever waits for a round gets one.
            service.mirror.completed(service.mirror.begin_round(), &[Kind::Lock]);
            let taken = tokio::time::timeout(Duration::from_millis(10), reader.recv()).await;
            if let Ok(event) = taken {
                break event.expect("it goes on");
            }
        };
        while !text(&next().await).starts_with("event: snapshot") {}
        // Of a recipe that the stream is not about nothing is told.
        service.mirror.put(Kind::Group, "0", &row(3));
        service.mirror.put(Kind::Lock, "0", &row(2));
        while !text(&next().await).starts_with("event: live") {}
        let mut told = next().await;
        // A sign of life may be due by now.
        while text(&told).starts_with("event: beat") {
            told = next().await;
        }
        let told = text(&told);
        assert!(told.starts_with("event: row") && told.contains("\"fence\":2"), "{told}");
        following.abort();
    }

    /// Whoever comes back with the id of the last event that it has read is told what has changed since, and not what it knows; by any other id
    /// it is told all.
    #[tokio::test]
    async fn a_stream_goes_on_where_another_one_has_ended() {
        let (service, _other) = instance(Cover::Any).await;
        let put = |name: &str, fences: &[u64]| {
            let row: Vec<_> = fences.iter().map(|fence| json!({ "fence": fence })).collect();
            service.mirror.put(Kind::Lock, name, &row);
        };
        let until = async |reader: &mut mpsc::Receiver<Bytes>, wanted: &str| {
            let mut all = String::new();
            while !all.split_once(wanted).is_some_and(|(_, after)| after.ends_with("\n\n")) {
                // Whoever waits for a round gets one.
                service.mirror.completed(service.mirror.begin_round(), &[Kind::Lock]);
                let taken = tokio::time::timeout(Duration::from_millis(10), reader.recv()).await;
                if let Ok(event) = taken {
                    all.push_str(text(&event.expect("it goes on")));
                }
            }
            all
        };
        let id_of = |told: &str| {
            let (_, id) = told.rsplit_once("\nid: ").expect("an id");
            id.lines().next().expect("a line").to_owned()
        };
        ["a/stays", "a/goes", "b/stays"].into_iter().for_each(|name| put(name, &[1]));
        let (following, mut reader) = follow(&service, &[Kind::Lock], "a/");
        let first = id_of(&until(&mut reader, "event: live").await);
        put("a/later", &[1]);
        let told = until(&mut reader, "event: row").await;
        let later = id_of(&told);
        assert!(told.contains("a/later") && first != later, "{told}");
        following.abort();
        put("a/goes", &[]);
        put("a/new", &[2]);
        put("b/new", &[2]);
        let resumed = async |id: &str, prefix: &str| {
            let (following, mut reader) = go_on(&service, &[Kind::Lock], prefix, id);
            let told = until(&mut reader, "event: live").await;
            following.abort();
            told
        };
        let told = resumed(&later, "a/").await;
        assert!(!told.contains("event: snapshot") && told.contains("\"resumed\":true"), "{told}");
        assert!(told.contains("event: gone") && told.contains("a/goes"), "{told}");
        assert!(
            told.contains("a/new") && !told.contains("stays") && !told.contains("b/"),
            "{told}"
        );
        assert!(!told.contains("a/later"), "{told}");
        assert!(
            told.contains("event: unread\ndata: {\"kinds\":[]}"),
            "there may have been some: {told}"
        );
        let earlier = resumed(&first, "a/").await;
        assert!(earlier.contains("a/later") && earlier.contains("a/new"), "{earlier}");
        let (view, future) = (&later[later.rfind('.').expect("a view")..], u64::MAX);
        for (id, prefix) in [
            (later.clone(), ""),
            (format!("other.1{view}"), "a/"),
            (format!("{}.{future}{view}", service.tag), "a/"),
            ("x".to_owned(), "a/"),
        ] {
            let told = resumed(&id, prefix).await;
            assert!(told.contains("event: snapshot") && !told.contains("resumed"), "{id}: {told}");
        }
    }

    /// Whoever follows a recipe that cannot be read is told so, and is told of the others.
    #[tokio::test]
    async fn a_recipe_that_cannot_be_read_is_told_as_such() {
        let disk = Disk::new();
        let (service, other) = disk.instance().await;
        let election = other.election("of-all").expect("a name");
        let _leads = election.campaign(&(), None).await.expect("nobody else is there");
        let out_of_reach = disk.0.join("x/coordination/queues/lock.y");
        std::os::unix::fs::symlink(&out_of_reach, &out_of_reach).expect("there is room");
        let _watching = service.mirror.watching(1, &Kind::ALL).expect("nobody else looks");
        tokio::spawn(refresh::run(Arc::clone(&service)));
        let (following, mut reader) = follow(&service, &Kind::ALL, "");
        let mut all = String::new();
        let mut until = async |wanted: &str| {
            while !all.contains(wanted) {
                let told = tokio::time::timeout(8 * BEAT, reader.recv()).await;
                all.push_str(text(&told.expect("it goes on").expect("it goes on")));
            }
            std::mem::take(&mut all)
        };
        let told = until("event: live").await;
        assert!(told.contains("of-all"), "{told}");
        assert!(told.contains("event: unread\ndata: {\"kinds\":[\"lock\"]}"), "{told}");
        std::fs::remove_file(&out_of_reach).expect("it is there");
        until("event: unread\ndata: {\"kinds\":[]}").await;
        following.abort();
    }
}
