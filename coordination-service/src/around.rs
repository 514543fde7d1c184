//! What is the same for each request: its id, whether a browser may send it, who sends it, and the log.

use std::future::Future;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Instant, SystemTime};

use axum::body::{Body, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::auth::{Names, Principal};
use crate::hold::Hold;
use crate::holds::Found;
use crate::http2::Conduct;
use crate::ids;
use crate::kind::Kind;
use crate::log;
use crate::metrics;
use crate::openstack;
use crate::peer::Peer;
use crate::places::UnderWay;
use crate::problem::{Code, Problem};
use crate::proxies::{self, Client};
use crate::service::{Phase, Shared};
use crate::text::{millis, rfc3339};
use crate::tls::OwnCertificate;
use crate::waited::Waited;

/// Which of our APIs a listener has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    /// Our own, with the page.
    Native,
    /// rdlm's.
    Rdlm,
    /// That of lockable.dev.
    Lockable,
    /// Zaqar's.
    Zaqar,
    /// Only metrics, for whoever comes there.
    Metrics,
}

/// What a handler adds to the log's line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted {
    pub(crate) kind: Option<Kind>,
    pub(crate) name: Option<String>,
    /// All names, if there are several.
    pub(crate) names: Option<Vec<String>>,
    pub(crate) handle: Option<String>,
    /// Of several holds; these are not in the log.
    pub(crate) handles: Vec<String>,
}

impl Noted {
    /// What a request about this hold is about.
    pub(crate) fn of(hold: &Hold) -> Self {
        let (name, handle) = (Some(hold.name.clone()), Some(hold.handle.clone()));
        let several = hold.several.as_ref();
        let names = several.map(|parts| parts.iter().map(|(name, _)| name.clone()).collect());
        Self { kind: Some(hold.kind), name, names, handle, ..Self::default() }
    }

    /// What a request about this name is about.
    pub(crate) fn name(kind: Kind, name: String) -> Self {
        Self { kind: Some(kind), name: Some(name), ..Self::default() }
    }
}

/// Does what is the same for each request.
pub(crate) async fn around(
    State((service, api)): State<(Shared, Api)>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = request_id(request.headers());
    let peer = request.extensions().get::<Peer>().copied();
    let under_way = request.extensions_mut().remove::<Arc<UnderWay>>();
    // Of what changes something the client has to know what became of it.
    let looks = under_way.filter(|_| *request.method() == Method::GET);
    let conduct = request.extensions_mut().remove::<Arc<Conduct>>();
    if let Some(Peer::Address(at)) = peer
        && let Some(client) =
            proxies::client(&service.settings.trusted_proxies, at.ip(), request.headers())
    {
        request.extensions_mut().insert(client);
    }
    let mut line = Line::new(&service, api, &request, &id);
    let checked = check(&service, api, &request);
    let mut response = match checked {
        Err(problem) => problem.into_response(),
        Ok(principal) => {
            line.principal.clone_from(&principal.name);
            request.extensions_mut().insert(principal);
            let (waited, most) = (line.waited.clone(), service.settings.limits.work);
            let changes = !is_safe(request.method()) || api == Api::Lockable;
            let handled = Caught(Box::pin(waited.count(most, next.run(request)))).await;
            match handled {
                Some(Some(response)) => response,
                Some(None) => late(changes).into_response(),
                None => {
                    Problem::new(Code::Internal, "the service failed; its log has the request's id")
                        .into_response()
                }
            }
        }
    };
    let length = response.body().size_hint().exact().unwrap_or_default();
    if looks.is_some_and(|under_way| !under_way.takes_room(length)) {
        let why = "there are too many large answers at once";
        response = Problem::new(Code::Overloaded, why).into_response();
    }
    if let Some(mut problem) = response.extensions_mut().remove::<Problem>() {
        line.code = Some(problem.code.text());
        if problem.code.status().as_u16() >= 400 {
            metrics::refused(problem.code.text());
        }
        // What is left of the request's body may not have been read: another request would not be understood after it.
        if matches!(problem.code, Code::TooLarge | Code::TooSlow | Code::Overloaded) {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        if api == Api::Zaqar {
            let status = openstack::status(problem.code);
            *response.status_mut() = status;
            problem = problem.described().with("status", status.as_u16());
        }
        let text = problem.text(&id);
        *response.body_mut() = Body::from(text);
        if api == Api::Rdlm && problem.code == Code::Unauthenticated {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic"));
        }
    }
    if let Some(noted) = response.extensions().get::<Noted>() {
        line.noted = noted.clone();
    }
    line.status = response.status().as_u16();
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert("request-id", id);
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    // Whoever keeps a connection open finds another instance in time, and not in the middle of a request. But not who holds something:
    // only this instance renews it and takes it back, and another connection may lead elsewhere.
    let is_of_a_hold = matches!(line.route, "/v1/holds/{id}" | "/v1/renew") && line.status < 400;
    let is_stopping = service.phase() != Phase::Serving;
    if is_stopping && !is_of_a_hold {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // In HTTP/2 there is no such header.
    if let Some(conduct) = conduct {
        let lives = |handle: &str| matches!(service.holds.find(handle), Found::Live(_));
        let handles = line.noted.handle.iter().chain(&line.noted.handles);
        handles.filter(|_| line.status < 400).for_each(|handle| conduct.has(handle, lives));
        if is_stopping {
            conduct.leave(lives);
        }
    }
    response
}

/// The answer to a request that was worked on for too long.
fn late(changes: bool) -> Problem {
    let why = "the store took too long for it";
    match changes {
        true => Problem::new(Code::InDoubt, why).with("effect", "unknown"),
        false => Problem::new(Code::StoreAway, why),
    }
}

/// Whether requests with this method change nothing, but by the API of lockable.dev.
fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// The client's own id, if it can stand in a log, else a new one.
fn request_id(headers: &HeaderMap) -> String {
    let is_good = |id: &&str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=64).contains(&id.len()) && id.bytes().all(allowed)
    };
    let own = headers.get("request-id").and_then(|id| id.to_str().ok()).filter(is_good);
    own.map_or_else(|| ids::letters(26), str::to_owned)
}

/// Whether the request may be served at all, and who sends it.
fn check(service: &Shared, api: Api, request: &Request) -> Result<Arc<Principal>, Problem> {
    let headers = request.headers();
    let path = request.uri().path();
    if is_health(path) {
        return Ok(Arc::new(Principal::nobody()));
    }
    check_host(service, request)?;
    // The API of lockable.dev changes state by GET.
    if (!is_safe(request.method()) || api == Api::Lockable) && !is_own_origin(headers) {
        return Err(Problem::new(Code::Forbidden, "a page of another origin may not send this"));
    }
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(Problem::new(Code::Encoding, "send the body as it is"));
    }
    // Whoever set it up has opened them to all who can reach it.
    if api == Api::Metrics {
        return Ok(Arc::new(Principal::nobody()));
    }
    // The page asks for a token itself, and what the API is like is no secret.
    if api == Api::Native && matches!(path, "/" | "/favicon.ico" | "/openapi.json") {
        return Ok(Arc::new(Principal::nobody()));
    }
    // rdlm's clients send no credentials with a lock's URL: the id in it is enough.
    let is_a_lock = path.starts_with("/locks/") && *request.method() != Method::POST;
    if api == Api::Rdlm && is_a_lock && !headers.contains_key(header::AUTHORIZATION) {
        return Ok(Arc::new(Principal::nobody()));
    }
    // Whoever could stop us or read our tokens needs none.
    let own = rustix::process::geteuid().as_raw();
    if let Some(&Peer::User(user)) = request.extensions().get::<Peer>()
        && (user == 0 || user == own)
        && !headers.contains_key(header::AUTHORIZATION)
    {
        return Ok(Arc::new(Principal::administrator(format!("uid:{user}"))));
    }
    let with_token;
    let headers = match api {
        Api::Zaqar => {
            with_token = openstack::authorized(headers);
            &with_token
        }
        Api::Native | Api::Rdlm | Api::Lockable | Api::Metrics => headers,
    };
    // A certificate goes with each connection, whereas a token was put into this request.
    match request.extensions().get::<Names>() {
        Some(names) if !headers.contains_key(header::AUTHORIZATION) => {
            service.auth.certified(names)
        }
        _ => service.auth.principal(headers),
    }
}

pub(crate) fn is_health(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz")
}

/// Another name that leads to us may be an attacker's page: DNS can be made to say anything.
fn check_host(service: &Shared, request: &Request) -> Result<(), Problem> {
    let mut given = request.headers().get_all(header::HOST).iter();
    let (first, more) = (given.next(), given.next());
    let host = first.and_then(|host| host.to_str().ok()).filter(|_| more.is_none());
    // Whoever speaks to us without encryption could be led here by any name in a certificate for many.
    let certificate = request.extensions().get::<OwnCertificate>();
    let is_ours = host.is_some_and(|host| {
        let name = host_name(host);
        let address = name.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        let listens = service.listening.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let at = |ip: IpAddr| {
            ip.is_loopback() || listens.iter().any(|at| at.ip() == ip || at.ip().is_unspecified())
        };
        name.eq_ignore_ascii_case("localhost")
            || address.is_some_and(at)
            || service
                .settings
                .hosts
                .iter()
                .any(|known| known.eq_ignore_ascii_case(name) || known.eq_ignore_ascii_case(host))
            || certificate.is_some_and(|own| own.is_for(name.trim_matches(['[', ']'])))
    });
    let refused = || Problem::new(Code::WrongHost, "name the service's hosts by --host NAME");
    if is_ours { Ok(()) } else { Err(refused()) }
}

/// A host without its port.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit())
                && !name.is_empty()
                && (!name.contains(':') || name.ends_with(']')) =>
        {
            name
        }
        _ => host,
    }
}

/// Whether no browser sends this for a page of somebody else.
fn is_own_origin(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(site) = text("sec-fetch-site")
        && !matches!(site, "none" | "same-origin")
    {
        return false;
    }
    match (text("origin"), text("host")) {
        (None, _) => true,
        (Some(origin), Some(host)) => {
            origin.split_once("://").is_some_and(|(_, own)| own.eq_ignore_ascii_case(host))
        }
        (Some(_), None) => false,
    }
}

/// A handler whose panic is its own end and nobody else's.
struct Caught<F>(Pin<Box<F>>);

impl<F: Future> Future for Caught<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // What the handler shares with others is behind mutexes that are used after a panic, too.
        match catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))) {
            Ok(poll) => poll.map(Some),
            Err(_) => Poll::Ready(None),
        }
    }
}

/// A line of the log; written when it is dropped, also if the client has gone.
struct Line {
    service: Shared,
    api: Api,
    begun: Instant,
    waited: Waited,
    at: SystemTime,
    request: String,
    method: String,
    route: &'static str,
    principal: String,
    peer: Option<Peer>,
    /// Whom a trusted proxy, which is the peer, has named.
    client: Option<Client>,
    agent: String,
    noted: Noted,
    status: u16,
    code: Option<&'static str>,
}

/// The status of a request whose client had gone.
const GONE: u16 = 499;

impl Line {
    fn new(service: &Shared, api: Api, request: &Request, id: &str) -> Self {
        let agent = request.headers().get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        Self {
            service: Arc::clone(service),
            api,
            begun: Instant::now(),
            waited: Waited::default(),
            at: SystemTime::now(),
            request: id.to_owned(),
            method: request.method().to_string(),
            route: route(api, request.uri().path()),
            principal: String::new(),
            peer: request.extensions().get::<Peer>().copied(),
            client: request.extensions().get::<Client>().copied(),
            agent: agent.unwrap_or_default().chars().take(100).collect(),
            noted: Noted::default(),
            status: GONE,
            code: None,
        }
    }
}

/// The path, without what is in it: no id, and no name.
fn route(api: Api, path: &str) -> &'static str {
    let known: &[(&str, &'static str)] = match api {
        Api::Native => &[
            ("/v1/locks/", "/v1/locks/{name}"),
            ("/v1/locks", "/v1/locks"),
            ("/v1/semaphores/", "/v1/semaphores/{name}"),
            ("/v1/semaphores", "/v1/semaphores"),
            ("/v1/limiters/", "/v1/limiters/{name}"),
            ("/v1/limiters", "/v1/limiters"),
            ("/v1/elections/", "/v1/elections/{name}"),
            ("/v1/elections", "/v1/elections"),
            ("/v1/groups/", "/v1/groups/{name}"),
            ("/v1/groups", "/v1/groups"),
            ("/v1/rates/", "/v1/rates/{name}"),
            ("/v1/rates", "/v1/rates"),
            ("/v1/values/", "/v1/values/{name}"),
            ("/v1/values", "/v1/values"),
            ("/v1/counters/", "/v1/counters/{name}"),
            ("/v1/counters", "/v1/counters"),
            ("/v1/once/", "/v1/once/{name}"),
            ("/v1/once", "/v1/once"),
            ("/v1/holds/", "/v1/holds/{id}"),
            ("/v1/renew", "/v1/renew"),
            ("/v1/info", "/v1/info"),
            ("/v1/history", "/v1/history"),
            ("/v1/events", "/v1/events"),
            ("/openapi.json", "/openapi.json"),
            ("/metrics", "/metrics"),
            ("/problems/", "/problems/{code}"),
        ],
        Api::Rdlm => &[
            ("/locks/", "rdlm:/locks/{name}"),
            ("/resources/", "rdlm:/resources/{name}"),
            ("/resources", "rdlm:/resources"),
        ],
        Api::Lockable => &[
            ("/v1/acquire/", "lockable:/v1/acquire/{name}"),
            ("/v1/heartbeat/", "lockable:/v1/heartbeat/{name}"),
            ("/v1/release/", "lockable:/v1/release/{name}"),
        ],
        Api::Zaqar => {
            &[("/v2/queues/", "zaqar:/v2/queues/{queue}"), ("/v2/ping", "zaqar:/v2/ping")]
        }
        Api::Metrics => &[("/metrics", "metrics:/metrics")],
    };
    if let Some(of_all) = ["/", "/livez", "/readyz"].into_iter().find(|of_all| *of_all == path) {
        return of_all;
    }
    known.iter().find(|(prefix, _)| path.starts_with(prefix)).map_or("other", |(_, route)| route)
}

impl Drop for Line {
    fn drop(&mut self) {
        let time = self.begun.elapsed().saturating_sub(self.waited.time());
        metrics::answered(self.route, &self.method, self.status, time);
        if !self.service.settings.access_log || is_health(self.route) {
            return;
        }
        log::write(&json!({
            "time": rfc3339(self.at), "request": self.request, "method": self.method, "route": self.route,
            "kind": self.noted.kind.map(Kind::text), "name": self.noted.name, "names": self.noted.names,
            "handle": self.noted.handle, "status": self.status, "code": self.code,
            "ms": millis(self.begun.elapsed()), "waited_ms": millis(self.waited.time()), "principal": self.principal, "agent": self.agent,
            "peer": self.peer.map(|peer| peer.to_string()), "instance": self.service.tag,
            "client": self.client.map(|Client(address)| address.to_string()),
            "api": format!("{:?}", self.api).to_lowercase(),
        }));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::StatusCode;
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;
    use serde_json::Value;

    use super::*;
    use crate::acquire::acquire;
    use crate::acquire::tests::{instance, instance_with, wanted};
    use crate::auth::{Auth, Right, make_token};
    use crate::delivery::Deliver;
    use crate::service::Service as Instance;
    use crate::settings::{Cover, Limits, Settings};
    use crate::v1;
    use crate::wanted::{Wanted, What};

    /// H10: a request is answered whatever the store does, and leaves nothing that holds others up.
    #[tokio::test]
    async fn h10_a_request_that_does_not_end_is_answered() {
        let limits = Limits { work: Duration::from_millis(200), ..Limits::default() };
        let settings = Settings { limits, ..Settings::default() };
        let (service, _other) = instance_with(settings, Cover::Any).await;
        let (what, client) = (What::Election { value: 1.into() }, "anonymous".to_owned());
        let wanted = Wanted { what, client, ..wanted(0) };
        let mut granted = acquire(&service, wanted, None).await.expect("it is free");
        let hold = granted.hold().expect("it is here").clone();
        granted.deliver();
        let changing = hold.changing.lock().await;
        let routes = TowerToHyperService::new(v1::routes(&service));
        let asked = Request::put(format!("/v1/holds/{}", hold.id())).header("host", "localhost");
        let asked = asked.body(Body::from(r#"{"value":2}"#)).expect("a request");
        let told = tokio::time::timeout(Duration::from_secs(60), routes.call(asked)).await;
        let told = told.expect("it has a bound").expect("an answer");
        assert_eq!(told.status(), StatusCode::SERVICE_UNAVAILABLE);
        let text = axum::body::to_bytes(told.into_body(), 9_999).await.expect("a body");
        let told: Value = serde_json::from_slice(&text).expect("it is JSON");
        assert_eq!((&told["code"], &told["effect"]), (&"in-doubt".into(), &"unknown".into()));
        assert_eq!(late(false).code, Code::StoreAway, "who only looks changes nothing");
        drop(changing);
        assert!(matches!(service.holds.tell(&hold, &3.into()).await, Ok(Ok(()))));
    }

    /// H9: at a Unix socket, too, whoever is neither root nor our own user is asked for a token.
    #[tokio::test]
    async fn h9_only_root_and_our_own_user_need_no_token() {
        let (service, _other) = instance(Cover::Any).await;
        let who = |user: u32| {
            let request = Request::builder().header("host", "localhost").uri("/v1/info");
            let mut request = request.body(Body::empty()).expect("a request");
            request.extensions_mut().insert(Peer::User(user));
            check(&service, Api::Native, &request)
        };
        let is_administrator = |user: u32| {
            let principal = who(user).expect("it is let in");
            assert_eq!(principal.name == format!("uid:{user}"), principal.may(Right::Admin, "x"));
            principal.may(Right::Admin, "x")
        };
        let own = rustix::process::geteuid().as_raw();
        assert!(is_administrator(0) && is_administrator(own) && !is_administrator(own + 1));
        let file = std::env::temp_dir().join(format!("coordination-{}", ids::letters(12)));
        let (_, lines) = make_token("ci", &["*".to_owned()]);
        std::fs::write(&file, lines).expect("there is room");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).expect("it is ours");
        service.auth.reload(&file).expect("as it was made");
        assert!(is_administrator(0) && is_administrator(own));
        let refused = who(own + 1).map_err(|problem| problem.code);
        assert_eq!(refused.map(drop), Err(Code::Unauthenticated));
        drop(std::fs::remove_file(&file));
    }

    /// H9: whoever shows a certificate and sends a token is the one with the token, or nobody.
    #[tokio::test]
    async fn h9_a_token_goes_before_a_certificate() {
        let settings = Settings { access_log: false, ..Settings::default() };
        let file = std::env::temp_dir().join(format!("coordination-{}", ids::letters(12)));
        let (token, lines) = make_token("ci", &["*".to_owned()]);
        let shown = "[[certificate]]\nname = \"host\"\nsan = \"dns:a.example\"\nuse = [\"*\"]\n";
        std::fs::write(&file, format!("{lines}{shown}")).expect("there is room");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).expect("it is ours");
        let refused = Auth::new(Some(&file), false).map(drop).expect_err("nobody can show it");
        assert!(refused.contains("--client-ca"), "{refused}");
        let auth = Auth::new(Some(&file), true).expect("it is right");
        let service = Instance::new(settings, Cover::Any, "memory".to_owned(), auth, None);
        let who = |api: Api, header: Option<(&str, &str)>, name: Option<&str>| {
            let mut request = Request::builder().header("host", "localhost").uri("/v1/info");
            if let Some((header, text)) = header {
                request = request.header(header, text);
            }
            let mut request = request.body(Body::empty()).expect("a request");
            if let Some(name) = name {
                request.extensions_mut().insert(Names::from([name.to_owned()]));
            }
            let who = check(&service, api, &request);
            who.map(|who| who.name.clone()).map_err(|problem| problem.code)
        };
        let (bearer, refused) = (format!("Bearer {token}"), Err(Code::Unauthenticated));
        let known = Some("dns:a.example");
        let (right, wrong) = (Some(("authorization", &bearer[..])), ("authorization", "Bearer x"));
        assert_eq!(who(Api::Native, None, known), Ok("host".to_owned()));
        assert_eq!(who(Api::Lockable, None, known), Ok("host".to_owned()));
        assert_eq!(who(Api::Native, right, known), Ok("ci".to_owned()));
        assert_eq!(who(Api::Zaqar, Some(("x-auth-token", &token[..])), known), Ok("ci".to_owned()));
        assert_eq!(who(Api::Native, right, Some("dns:b.example")), Ok("ci".to_owned()));
        assert_eq!(who(Api::Native, Some(wrong), known), refused);
        assert_eq!(who(Api::Native, None, Some("dns:b.example")), refused);
        assert_eq!(who(Api::Native, None, None), refused);
        drop(std::fs::remove_file(&file));
    }

    #[test]
    fn a_host_is_told_from_its_port() {
        for (host, name) in [
            ("localhost:8420", "localhost"),
            ("localhost", "localhost"),
            ("[::1]:8420", "[::1]"),
            ("[::1]", "[::1]"),
            ("127.0.0.1:1", "127.0.0.1"),
            ("::1", "::1"),
        ] {
            assert_eq!(host_name(host), name);
        }
    }

    #[test]
    fn pages_of_others_are_told_by_their_headers() {
        let is_own = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(name, value)| {
                (name.parse().expect("a header"), HeaderValue::from_static(value))
            });
            is_own_origin(&HeaderMap::from_iter(pairs))
        };
        assert!(is_own(&[("host", "localhost:1")]));
        assert!(is_own(&[("host", "localhost:1"), ("origin", "http://localhost:1")]));
        assert!(!is_own(&[("host", "localhost:1"), ("origin", "http://evil.example")]));
        assert!(!is_own(&[("host", "localhost:1"), ("origin", "null")]));
        assert!(!is_own(&[("host", "localhost:1"), ("sec-fetch-site", "cross-site")]));
    }

    #[tokio::test]
    async fn a_panic_is_caught() {
        assert_eq!(Caught(Box::pin(async { 1 })).await, Some(1));
        assert_eq!(Caught(Box::pin(async { panic!("on purpose") })).await, None::<()>);
    }
}
