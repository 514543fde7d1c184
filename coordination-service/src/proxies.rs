//! Proxies in front of the service, whose word on where a request comes from counts, and that of nobody else.

use std::net::IpAddr;
use std::str::FromStr;

use axum::http::HeaderMap;

/// Addresses that begin alike, such as `10.0.0.0/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    /// How many bits of it all of them have.
    bits: u32,
}

/// The client that a trusted proxy has named, in the extensions of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client(pub(crate) IpAddr);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is no address, nor a network such as 10.0.0.0/8");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = number(address).1;
        let bits = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| wrong()))?;
        if bits > most {
            return Err(wrong());
        }
        Ok(Self { address, bits })
    }
}

impl Network {
    fn has(&self, address: IpAddr) -> bool {
        let ((of, most), (given, length)) = (number(self.address), number(address));
        // All bits may differ, which is further than a number can be shifted.
        let differs = (of ^ given).checked_shr(most - self.bits).unwrap_or_default();
        most == length && differs == 0
    }
}

/// An address as a number, and how many bits that has.
fn number(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(address) => (u32::from(address).into(), u32::BITS),
        IpAddr::V6(address) => (u128::from(address), u128::BITS),
    }
}

/// Whom a proxy at this address has named as its client. `None`: there is no proxy that is trusted, or it has named nobody.
///
/// Each proxy adds to the end where it was asked from. So what is before the last address that is no trusted proxy's was written by
/// anybody.
pub(crate) fn client(trusted: &[Network], from: IpAddr, headers: &HeaderMap) -> Option<Client> {
    let is_trusted = |address: IpAddr| trusted.iter().any(|network| network.has(address));
    if !is_trusted(from.to_canonical()) {
        return None;
    }
    let lines = headers.get_all("x-forwarded-for").iter().rev();
    let mut named = None;
    // Each by itself: what a client has written in front of it, in whatever bytes, does not hide what a proxy has added to the same line.
    for hop in lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b',')) {
        // Of what is behind an address that cannot be read nothing is known.
        let Some(address) = std::str::from_utf8(hop).ok().and_then(|hop| address(hop.trim()))
        else {
            break;
        };
        named = Some(Client(address));
        if !is_trusted(address) {
            break;
        }
    }
    named
}

/// An address, to which some proxies add a port.
fn address(text: &str) -> Option<IpAddr> {
    let with_port = || text.parse().ok().map(|at: std::net::SocketAddr| at.ip());
    text.parse().ok().or_else(with_port).map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::{HeaderName, HeaderValue, Request};
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;

    use super::*;
    use crate::acquire::tests::instance_with;
    use crate::lockable;
    use crate::peer::Peer;
    use crate::settings::{Cover, Settings};

    #[test]
    fn a_network_has_what_begins_alike() {
        let has = |network: &str, address: &str| {
            let network: Network = network.parse().expect("a network");
            network.has(address.parse().expect("an address"))
        };
        assert!(has("10.0.0.0/8", "10.255.0.1") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("10.1.2.3", "10.1.2.3") && !has("10.1.2.3", "10.1.2.2"));
        assert!(has("0.0.0.0/0", "203.0.113.9") && !has("0.0.0.0/0", "::1"));
        assert!(has("2001:db8::/33", "2001:db8:7fff::1"));
        assert!(!has("2001:db8::/33", "2001:db8:8000::1") && !has("::/0", "10.0.0.1"));
        assert!(has("::/0", "2001:db8::1"));
        for wrong in ["", "10.0.0.0/33", "10.0.0.0/", "10.0.0/8", "::/129", "::/-1", "unix"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_last_address_that_is_no_proxys_is_the_clients() {
        let trusted =
            ["10.0.0.0/8", "2001:db8::1"].map(|text| text.parse::<Network>().expect("a network"));
        let named = |from: &str, lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append("x-forwarded-for", HeaderValue::from_static(line));
            }
            let named = client(&trusted, from.parse().expect("an address"), &headers);
            named.map(|Client(address)| address.to_string())
        };
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(named("203.0.113.9", &["198.51.100.7"]), None, "anybody could say so");
        assert_eq!(named("10.0.0.1", &[]), None);
        assert_eq!(named("10.0.0.1", &["198.51.100.7"]), is("198.51.100.7"));
        assert_eq!(named("::ffff:10.0.0.1", &["198.51.100.7"]), is("198.51.100.7"));
        // What a client has written itself stands before what a proxy has seen.
        assert_eq!(named("10.0.0.1", &["127.0.0.1, 198.51.100.7"]), is("198.51.100.7"));
        assert_eq!(named("10.0.0.1", &["127.0.0.1", "198.51.100.7"]), is("198.51.100.7"));
        assert_eq!(named("10.0.0.1", &["198.51.100.7,10.0.0.2", "10.0.0.3"]), is("198.51.100.7"));
        assert_eq!(named("10.0.0.1", &["10.0.0.2"]), is("10.0.0.2"));
        assert_eq!(named("10.0.0.1", &["198.51.100.7, x"]), None);
        assert_eq!(named("10.0.0.1", &["x, 10.0.0.2"]), is("10.0.0.2"));
        assert_eq!(named("2001:db8::1", &["[2001:db8::9]:80"]), is("2001:db8::9"));
        assert_eq!(named("10.0.0.1", &["198.51.100.7:1234"]), is("198.51.100.7"));
    }

    /// Whoever could write something by which its own address is not found would be in no log, and taken for the proxy.
    #[test]
    fn nobody_hides_behind_what_is_no_text() {
        let trusted = ["10.0.0.1".parse::<Network>().expect("an address")];
        for written in [&b"\xff, 198.51.100.7"[..], &b"caf\xc3\xa9,198.51.100.7"[..]] {
            let line = HeaderValue::from_bytes(written).expect("bytes of a header");
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static("x-forwarded-for"), line)]);
            let named = client(&trusted, trusted[0].address, &headers);
            assert_eq!(named, Some(Client([198, 51, 100, 7].into())), "{written:?}");
        }
    }

    /// H2, LD2: behind a proxy, too, nobody else releases a lock: the holder is who the proxy says, if its word counts.
    #[tokio::test]
    async fn h2_clients_of_a_trusted_proxy_are_told_apart() {
        let trusted_proxies = vec!["10.0.0.0/8".parse::<Network>().expect("a network")];
        let settings = Settings { trusted_proxies, ..Settings::default() };
        let (service, _other) = instance_with(settings, Cover::Any).await;
        let routes = TowerToHyperService::new(lockable::routes(&service));
        let ask = async |from: [u8; 4], by: &str, path: &str| {
            let asked = Request::builder().uri(path).header("host", "localhost");
            let asked = asked.header("x-forwarded-for", by).body(Body::empty());
            let mut asked = asked.expect("a request");
            asked.extensions_mut().insert(Peer::Address((from, 1).into()));
            let answer = routes.call(asked).await.expect("an answer");
            let text = axum::body::to_bytes(answer.into_body(), 99).await.expect("a body");
            text == r#"{"response":true}"#
        };
        let (proxy, another, stranger) = ([10, 0, 0, 1], [10, 0, 0, 2], [203, 0, 113, 9]);
        let (first, second) = ("198.51.100.7", "198.51.100.8");
        assert!(ask(proxy, first, "/v1/acquire/x").await);
        assert!(!ask(proxy, second, "/v1/release/x").await);
        assert!(!ask(stranger, first, "/v1/release/x").await, "its word does not count");
        assert!(ask(another, first, "/v1/heartbeat/x").await);
        assert!(ask(another, first, "/v1/release/x").await);
    }
}
