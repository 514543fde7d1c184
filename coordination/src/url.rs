//! The URL that chooses a store, parsed once into a typed form that keeps its secrets.
//!
//! Only listed parts of a URL are printed: the scheme, the hosts, the path and the values of options
//! that are [`UrlOption::shown`]. Any other part shows as `***`. A URL that cannot be parsed does not
//! show at all, because any part of it may be a password.

use std::fmt;
use std::net::Ipv6Addr;

use percent_encoding::percent_decode_str;

use crate::error::{Error, Result};

/// The options that every URL takes, in the order in which errors list them.
pub(crate) const COMMON_OPTIONS: &[UrlOption] = &[
    UrlOption::shown("namespace"),
    UrlOption::shown("ttl"),
    UrlOption::shown("heartbeat"),
    UrlOption::shown("initial_reconnect_backoff"),
    UrlOption::shown("max_reconnect_backoff"),
    UrlOption::shown("long_wait"),
    UrlOption::shown("require"),
];

/// An option of a URL, and whether its value may be printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UrlOption {
    name: &'static str,
    is_shown: bool,
}

impl UrlOption {
    /// An option whose value may be printed.
    pub(crate) const fn shown(name: &'static str) -> Self {
        Self { name, is_shown: true }
    }

    /// An option whose value shows as `***`: it is a secret, or might be one.
    #[cfg(feature = "_network")]
    pub(crate) const fn hidden(name: &'static str) -> Self {
        Self { name, is_shown: false }
    }
}

/// What stands between `://` and the path of a store's URLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(any(test, all(feature = "file", feature = "memory"))),
    expect(dead_code, reason = "each is named where its store is built")
)]
pub(crate) enum Authority {
    /// Hosts, after a user and a password if the store has such.
    Hosts,
    /// A name of the store, which is no address: colons and commas are part of it.
    Name,
    /// Nothing: the URL has a path, and the path says all.
    Nothing,
}

/// No scheme or option of ours is as long as this. A secret that was pasted in the place of a name is often longer, and is then not
/// shown.
const MAX_SHOWN_NAME: usize = 32;

/// `scheme://user:password@host:port,host:port/path?option=value`, taken apart and decoded.
///
/// Percent-encoding is undone everywhere, and a `+` is a plus. A user name or password that
/// has a `/`, `?`, `#` or `%` needs it encoded; an `@` may stand as it is.
#[derive(Clone)]
pub(crate) struct Url {
    /// The scheme, in lower case.
    pub(crate) scheme: String,
    /// The user's name; `None` if it is empty, as in `redis://:password@host`.
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    /// The hosts; empty if the URL has none: then the store has a default or needs no host.
    pub(crate) hosts: Vec<Host>,
    /// The path, decoded, with its leading `/`; empty if the URL has none. Segments that were separated by an encoded `/` can no
    /// longer be told from others.
    pub(crate) path: String,
    query: Vec<(String, String)>,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Host {
    /// A name or an address; IPv6 without its brackets, which [`Display`](fmt::Display) adds.
    pub(crate) name: String,
    pub(crate) port: Option<u16>,
}

/// Text that is never printed, and overwritten when dropped as well as safe code can.
#[derive(Clone, PartialEq)]
pub(crate) struct Secret(String);

impl Url {
    /// The scheme of a URL, in lower case.
    ///
    /// Failures are of kind `Config`; their messages show nothing of the URL.
    pub(crate) fn scheme(text: &str) -> Result<String> {
        Ok(split(text)?.0)
    }

    /// Reads a URL in full, so that nothing downstream has to look at its text.
    ///
    /// Failures are of kind `Config`; their messages show nothing of the URL but its scheme.
    pub(crate) fn parse(text: &str, authority: Authority) -> Result<Self> {
        let (scheme, rest) = split(text)?;
        Self::parse_rest(&scheme, rest, authority)
            .map_err(|problem| Error::config(format!("in the `{scheme}` URL, {problem}")))
    }

    /// Reads a URL with the authority that the store of its scheme has.
    #[cfg(test)]
    pub(crate) fn parse_by_scheme(text: &str) -> Result<Self> {
        let authority = match Self::scheme(text).as_deref() {
            Ok("memory") => Authority::Name,
            Ok("file") => Authority::Nothing,
            _ => Authority::Hosts,
        };
        Self::parse(text, authority)
    }

    fn parse_rest(scheme: &str, rest: &str, kind: Authority) -> Parsed<Self> {
        refuse_anywhere(rest)?;
        let (before_query, query) = rest.split_once('?').unwrap_or((rest, ""));
        let authority_end = before_query.find('/').unwrap_or(before_query.len());
        let (authority, path) = before_query.split_at(authority_end);
        let leads_to = Leads::parse(kind, authority)?;
        match kind {
            Authority::Nothing if path.is_empty() => return Err(NO_DIRECTORY),
            Authority::Nothing => {}
            Authority::Hosts | Authority::Name => {
                refuse_late_at(path)?;
                refuse_late_at(query)?;
            }
        }
        Ok(Self {
            scheme: scheme.to_owned(),
            user: leads_to.user,
            password: leads_to.password,
            hosts: leads_to.hosts,
            path: decode_printable(path)?,
            query: parse_query(query)?,
        })
    }

    /// Removes an option, wherever and however often it is given; the last one wins, as in Tooz.
    pub(crate) fn take_option(&mut self, name: &str) -> Option<String> {
        let mut last = None;
        for (_, value) in self.query.extract_if(.., |(key, _)| key == name) {
            last = Some(value);
        }
        last
    }

    /// Whether the URL has an option that no store has taken so far.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn has_option(&self, name: &str) -> bool {
        self.query.iter().any(|(key, _)| key == name)
    }

    /// Fails if an option is left that no store has taken, because a misspelt option must not go unnoticed.
    pub(crate) fn finish<'a>(&self, known: impl IntoIterator<Item = &'a UrlOption>) -> Result<()> {
        let Some((unknown, _)) = self.query.first() else {
            return Ok(());
        };
        let (scheme, unknown) = (&self.scheme, shown_option(unknown));
        let known = known.into_iter().map(|option| option.name).collect::<Vec<_>>().join(", ");
        Err(Error::config(format!("the `{scheme}` store has no option {unknown}; it has {known}")))
    }

    /// The parts of the URL that may be printed, if the scheme's store has these options besides the common ones.
    /// Options that were taken are missing.
    pub(crate) fn shown<'a>(&'a self, own_options: &'a [UrlOption]) -> impl fmt::Display + 'a {
        Shown { url: self, own_options }
    }
}

/// The text of a URL with `***` for its password. All other parts, the user too, are as they were. A text that is no URL is `***`, and
/// so is one whose password may begin where a port should stand, or go on where the hosts should have ended, because the password has
/// a slash that is not escaped.
pub(crate) fn without_password(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return "***".to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, others) = rest.split_at(end);
    // Refused when it is parsed, too: see `refuse_late_at`.
    if !authority.is_empty() && others.contains('@') {
        return "***".to_owned();
    }
    match authority.rsplit_once('@').map(|(login, hosts)| (login.split_once(':'), hosts)) {
        Some((Some((user, _)), hosts)) => format!("{scheme}://{user}:***@{hosts}{others}"),
        None if !has_ports(authority) => "***".to_owned(),
        _ => text.to_owned(),
    }
}

/// Whether what follows a colon in these hosts is a port.
fn has_ports(hosts: &str) -> bool {
    hosts.split(',').all(|host| match host.rsplit_once(':') {
        Some((name, port)) => {
            let is_port = !name.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            is_port || host.ends_with(']')
        }
        None => true,
    })
}

struct Shown<'a> {
    url: &'a Url,
    own_options: &'a [UrlOption],
}

impl Shown<'_> {
    fn may_show(&self, name: &str) -> bool {
        let mut known = COMMON_OPTIONS.iter().chain(self.own_options);
        known.any(|option| option.is_shown && option.name == name)
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.url;
        write!(f, "{}://", url.scheme)?;
        if url.user.is_some() || url.password.is_some() {
            f.write_str("***@")?;
        }
        let hosts: Vec<_> = url.hosts.iter().map(Host::to_string).collect();
        write!(f, "{}{}", hosts.join(","), url.path)?;
        for (position, (name, value)) in url.query.iter().enumerate() {
            let separator = if position == 0 { '?' } else { '&' };
            let value = if self.may_show(name) { value } else { "***" };
            // Both texts are escaped, because a line feed in them could forge a line of the log.
            write!(f, "{separator}{}={}", name.escape_debug(), value.escape_debug())?;
        }
        Ok(())
    }
}

/// Shows the parts that may be printed whichever store the URL names.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown(&[]).fmt(f)
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({self})")
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]", self.name)?,
            false => f.write_str(&self.name)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl Secret {
    /// Takes over the text; the caller has to overwrite copies that were made before.
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself, for the driver that sends it: named so that each use stands out.
    #[cfg(any(feature = "_network", test))]
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.0).into_bytes();
        bytes.fill(0);
        // Otherwise the compiler may leave out a write that nobody reads.
        std::hint::black_box(&bytes);
    }
}

/// What was read, or the problem. Problems are fixed texts, so they cannot contain a part of the URL.
type Parsed<T> = std::result::Result<T, &'static str>;

const NO_SCHEME: &str = "a store is chosen by a URL that starts with a scheme and `://`, as in \
                         `memory://`, `file:///var/lib/app` or `etcd://host:2379`";
const NO_DIRECTORY: &str = "the directory is an absolute path after three slashes, as in \
                            `file:///var/lib/app`";
const CONTROL: &str = "control characters are not allowed";
const FRAGMENT: &str = "a `#` is written `%23`";
const LATE_AT: &str = "an `@` after the hosts is written `%40`; if it ends the password, then the \
                       `/` or `?` in the password is written `%2F` or `%3F`";
const NO_USERS: &str = "there are no users; an `@` in the name is written `%40`";
const PERCENT: &str = "a `%` is followed by two hexadecimal digits; the character itself is `%25`";
const NOT_UTF8: &str = "what is percent-encoded is UTF-8";
const HOST: &str = "a host is a name of letters, digits, `.`, `-` and `_`, or an address, with \
                    IPv6 in brackets, as in `[::1]:2379`; several are separated by one comma";
const PORT: &str = "a port is a number from 1 to 65535";
const OPTION: &str = "options are written `name=value` and separated by `&`";

/// The scheme in lower case, and what follows `://`; an error that shows nothing of the text if it has no scheme.
fn split(text: &str) -> Result<(String, &str)> {
    split_scheme(text).ok_or_else(|| Error::config(NO_SCHEME))
}

fn split_scheme(text: &str) -> Option<(String, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '.' | '-');
    let valid = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.len() <= MAX_SHOWN_NAME
        && scheme.chars().all(allowed);
    valid.then(|| (scheme.to_ascii_lowercase(), rest))
}

fn refuse_anywhere(text: &str) -> Parsed<()> {
    match text {
        _ if text.contains(char::is_control) => Err(CONTROL),
        _ if text.contains('#') => Err(FRAGMENT),
        _ => Ok(()),
    }
}

/// Fails if this text has an `@`: then a bare `/` or `?` in the password has ended the hosts too early, and a part of the
/// password would be printed as a path.
fn refuse_late_at(text: &str) -> Parsed<()> {
    if text.contains('@') { Err(LATE_AT) } else { Ok(()) }
}

/// What the authority contains: the part of a URL between `://` and the path.
#[derive(Default)]
struct Leads {
    user: Option<String>,
    password: Option<Secret>,
    hosts: Vec<Host>,
}

impl Leads {
    fn parse(kind: Authority, text: &str) -> Parsed<Self> {
        match (kind, text.rsplit_once('@')) {
            (_, None) if text.is_empty() => Ok(Self::default()),
            (Authority::Nothing, _) => Err(NO_DIRECTORY),
            (Authority::Name, Some(_)) => Err(NO_USERS),
            (Authority::Name, None) => Ok(Self { hosts: parse_name(text)?, ..Self::default() }),
            (Authority::Hosts, None) => Ok(Self { hosts: parse_hosts(text)?, ..Self::default() }),
            (Authority::Hosts, Some((user, hosts))) => Self::with_userinfo(user, hosts),
        }
    }

    fn with_userinfo(userinfo: &str, hosts: &str) -> Parsed<Self> {
        let (user, password) = match userinfo.split_once(':') {
            Some((user, password)) => (user, Some(Secret::new(decode(password)?))),
            None => (userinfo, None),
        };
        let user = Some(decode(user)?).filter(|user| !user.is_empty());
        Ok(Self { user, password, hosts: parse_hosts(hosts)? })
    }
}

/// The name of a store, as the only host.
fn parse_name(text: &str) -> Parsed<Vec<Host>> {
    Ok(vec![Host { name: decode_printable(text)?, port: None }])
}

fn parse_hosts(text: &str) -> Parsed<Vec<Host>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    text.split(',').map(parse_host).collect()
}

fn parse_host(text: &str) -> Parsed<Host> {
    if let Some(bracketed) = text.strip_prefix('[') {
        let (address, port) = bracketed.split_once(']').ok_or(HOST)?;
        let address: Ipv6Addr = address.parse().map_err(|_| HOST)?;
        return Ok(Host { name: address.to_string(), port: parse_port(port)? });
    }
    let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.is_empty() || !name.chars().all(allowed) || port.matches(':').count() > 1 {
        return Err(HOST);
    }
    Ok(Host { name: name.to_owned(), port: parse_port(port)? })
}

/// What follows the host: nothing, or a colon and the number.
fn parse_port(text: &str) -> Parsed<Option<u16>> {
    if text.is_empty() {
        return Ok(None);
    }
    let digits = text.strip_prefix(':').ok_or(HOST)?;
    let number = digits.parse().ok().filter(|&port| port > 0 && !digits.starts_with('+'));
    number.map(Some).ok_or(PORT)
}

fn parse_query(text: &str) -> Parsed<Vec<(String, String)>> {
    text.split('&').filter(|piece| !piece.is_empty()).map(parse_option).collect()
}

fn parse_option(piece: &str) -> Parsed<(String, String)> {
    match piece.split_once('=') {
        None | Some(("", _)) => Err(OPTION),
        Some((name, value)) => Ok((decode(name)?, decode(value)?)),
    }
}

fn decode(text: &str) -> Parsed<String> {
    let is_escape = |after: &str| after.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    if !text.split('%').skip(1).all(is_escape) {
        return Err(PERCENT);
    }
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| NOT_UTF8)?;
    Ok(decoded.into_owned())
}

/// Fails on control characters: the text becomes part of paths and messages.
fn decode_printable(text: &str) -> Parsed<String> {
    let decoded = decode(text)?;
    if decoded.contains(char::is_control) { Err(CONTROL) } else { Ok(decoded) }
}

/// The name of an unknown option, unless it looks like something else in its place.
fn shown_option(name: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.len() <= MAX_SHOWN_NAME && name.chars().all(allowed) {
        format!("`{name}`")
    } else {
        "of that name (not shown, as it is no plain word)".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    use proptest::prelude::*;

    /// Every text that a failure may show, so that tests can search all of it.
    fn refused(url: &str) -> String {
        let error = Url::parse_by_scheme(url).expect_err(url);
        assert_eq!(error.kind(), ErrorKind::Config);
        format!("{error} {error:?}")
    }

    fn hosts(url: &str) -> Vec<(String, Option<u16>)> {
        let hosts = Url::parse_by_scheme(url).expect(url).hosts;
        hosts.into_iter().map(|host| (host.name, host.port)).collect()
    }

    #[test]
    fn takes_a_url_apart() -> Result<()> {
        let url = Url::parse_by_scheme(
            "ETCD://us%20er:p:%40+@h1:2379,h_2,[::1]:80/a/b%20c?ca=%2Fx+y&ttl=5s",
        )?;
        assert_eq!((url.scheme.as_str(), url.user.as_deref()), ("etcd", Some("us er")));
        assert_eq!(url.password.as_ref().map(Secret::expose), Some("p:@+"));
        let shown: Vec<_> = url.hosts.iter().map(Host::to_string).collect();
        assert_eq!(shown, ["h1:2379", "h_2", "[::1]:80"]);
        assert_eq!(url.path, "/a/b c");
        assert_eq!(url.to_string(), "etcd://***@h1:2379,h_2,[::1]:80/a/b c?ca=***&ttl=5s");
        assert_eq!(format!("{url:?}"), format!("Url({url})"));
        let line_feeds = Url::parse_by_scheme("etcd://h?namespace=a%0Ab&c%0Ad=e")?.to_string();
        assert_eq!(line_feeds, "etcd://h?namespace=a\\nb&c\\nd=***");
        Ok(())
    }

    #[test]
    fn every_part_but_the_scheme_may_be_absent() -> Result<()> {
        for text in ["etcd://", "memory://", "etcd:///ns", "etcd://?ttl=1", "redis://@"] {
            let url = Url::parse_by_scheme(text)?;
            assert!(url.hosts.is_empty() && url.user.is_none() && url.password.is_none());
        }
        let url = Url::parse_by_scheme("redis://:pw@h")?;
        assert!(url.user.is_none() && url.password.is_some());
        assert_eq!(url.to_string(), "redis://***@h");
        Ok(())
    }

    #[test]
    fn the_last_at_ends_the_password() -> Result<()> {
        let url = Url::parse_by_scheme("etcd://p@ss:w@rd,h1:1@h2")?;
        assert_eq!(url.user.as_deref(), Some("p@ss"));
        assert_eq!(url.password.as_ref().map(Secret::expose), Some("w@rd,h1:1"));
        assert_eq!(url.to_string(), "etcd://***@h2");
        Ok(())
    }

    #[test]
    fn files_have_a_directory_and_no_host() -> Result<()> {
        let url = Url::parse_by_scheme("file:///srv/a@b%3F?durable=true")?;
        assert_eq!((url.path.as_str(), url.hosts.len()), ("/srv/a@b?", 0));
        for text in ["file://srv/app", "file://", "file://?durable=true", "file://CANARY@/x"] {
            let shown = refused(text);
            assert!(shown.contains("three slashes") && !shown.contains("CANARY"), "{shown}");
        }
        Ok(())
    }

    #[test]
    fn memory_has_a_name() {
        assert_eq!(hosts("memory://a:b,c d%2F/x?ttl=1"), [("a:b,c d/".to_owned(), None)]);
        assert!(refused("memory://u:CANARY@x").contains("no users"));
    }

    #[test]
    fn says_what_a_host_is() {
        for text in
            ["h1,,h2", "h1,", ",", ":1", "::1", "a b", "[::1", "[h]", "[::1]x", "h%41", "[]"]
        {
            assert!(refused(&format!("etcd://{text}/ns")).contains("a host is"), "{text}");
        }
        for port in ["", "0", "65536", "+1", "-1", "CANARY", "1 "] {
            let shown = refused(&format!("etcd://u:CANARY@h:{port}/CANARY?CANARY=CANARY"));
            assert!(shown.contains("1 to 65535") && !shown.contains("CANARY"), "{shown}");
        }
        assert_eq!(hosts("etcd://[0:0::1]"), [("::1".to_owned(), None)]);
    }

    #[test]
    fn options_are_taken_or_refused() -> Result<()> {
        let mut url = Url::parse_by_scheme("etcd://h?a=1&ttl=5s&&a=2+%2B&token=CANARY&b=")?;
        assert_eq!(url.take_option("a").as_deref(), Some("2++"));
        assert_eq!(url.take_option("a"), None);
        assert_eq!(url.take_option("ttl").as_deref(), Some("5s"));
        let error = url
            .finish(&[UrlOption::shown("a"), UrlOption::shown("ttl")])
            .expect_err("token is left")
            .to_string();
        assert!(error.contains("`token`") && error.contains("a, ttl"), "{error}");
        assert!(!error.contains("CANARY"), "{error}");
        assert!(url.take_option("token").is_some() && url.take_option("b").is_some());
        url.finish(&[UrlOption::shown("a")])
    }

    #[test]
    fn an_option_that_is_no_word_is_not_shown() -> Result<()> {
        let long = "CANARY".repeat(9);
        for name in ["CANARY%0A", "CANARY%2F", &long] {
            let error = Url::parse_by_scheme(&format!("etcd://h?{name}=1"))?.finish(COMMON_OPTIONS);
            let error = error.expect_err(name).to_string();
            assert!(!error.contains("CANARY") && error.contains("ttl"), "{error}");
        }
        Ok(())
    }

    #[test]
    fn nothing_malformed_is_shown() {
        for text in ["CANARY", "u:CANARY@h", "u:CANARY@etcd://h", "file:/CANARY", "4CANARY://h"] {
            assert!(!refused(text).contains("CANARY"), "{text:?}");
        }
        let after_scheme = [
            "u:CANARY#@h",
            "u:CANARY%@h",
            "u:CANARY%4@h",
            "u:CANARY%é0@h",
            "u:CANARY%FF@h",
            "u:1/CANARY@h",
            "u:1?CANARY@h",
            "u:p@h/CANARY@",
            "CANARY:CANARY",
            "h/CANARY%00",
            "h/CANARY\n",
            "h?CANARY",
            "h?=CANARY",
            "h?a=%CANARY",
        ];
        for text in after_scheme {
            assert!(!refused(&format!("etcd://{text}")).contains("CANARY"), "{text:?}");
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret::new("CANARY".to_owned());
        assert_eq!(format!("{:?} {:#?}", secret.clone(), Some(&secret)), "*** Some(\n    ***,\n)");
        assert_eq!(secret.expose(), "CANARY");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn encoded_parts_come_back(user in ".+", password in ".*", value in ".*") {
            let [u, p, v] = [&user, &password, &value]
                .map(|text| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string());
            let text = format!("etcd://{u}:{p}@h?key={v}");
            let mut url = Url::parse_by_scheme(&text).expect("encoded in full");
            prop_assert_eq!(url.user.as_deref(), Some(user.as_str()));
            prop_assert_eq!(url.password.as_ref().map(Secret::expose), Some(password.as_str()));
            prop_assert_eq!(url.take_option("key"), Some(value));
        }
    }
}
