//! What clients of OpenStack send and understand.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::problem::Code;

/// The status with which its clients know that something went wrong. Others pass for success.
pub(crate) fn status(code: Code) -> StatusCode {
    match code.status().as_u16() {
        404 | 405 | 410 => StatusCode::NOT_FOUND,
        status @ (400 | 401 | 403 | 409 | 500 | 503) => {
            StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
        }
        402..500 if code != Code::RateLimited && code != Code::TooMany => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Tokens as OpenStack's clients send them, in the header that is looked at elsewhere, beside what is there. More than one is refused
/// there.
pub(crate) fn authorized(headers: &HeaderMap) -> HeaderMap {
    let mut all = headers.clone();
    for token in headers.get_all(HeaderName::from_static("x-auth-token")) {
        if let Ok(bearer) = HeaderValue::from_bytes(&[b"Bearer ", token.as_bytes()].concat()) {
            all.append(header::AUTHORIZATION, bearer);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_clients_know_each_status() {
        for (code, expected) in [
            (Code::Invalid, 400),
            (Code::Unauthenticated, 401),
            (Code::Forbidden, 403),
            (Code::NoSuchRoute, 404),
            (Code::Method, 404),
            (Code::Ended, 404),
            (Code::Version, 400),
            (Code::TooLarge, 400),
            (Code::WrongHost, 400),
            (Code::TooMany, 503),
            (Code::Internal, 500),
            (Code::Unsupported, 503),
            (Code::StoreAway, 503),
        ] {
            assert_eq!(status(code).as_u16(), expected, "{code:?}");
        }
    }

    #[test]
    fn a_token_of_openstack_is_a_bearers() {
        let headers = |pairs: &[(HeaderName, &'static str)]| {
            let pairs =
                pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            authorized(&HeaderMap::from_iter(pairs))
        };
        let token = HeaderName::from_static("x-auth-token");
        let own = |headers: HeaderMap| {
            let all = headers.get_all(header::AUTHORIZATION).iter();
            all.map(|text| text.to_str().expect("a text").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(own(headers(&[(token.clone(), "t")])), ["Bearer t"]);
        let both = [(token.clone(), "t"), (header::AUTHORIZATION, "Basic eDp0")];
        assert_eq!(
            own(headers(&both)),
            ["Basic eDp0", "Bearer t"],
            "neither goes before the other"
        );
        assert_eq!(own(headers(&[(token.clone(), "t"), (token, "u")])), ["Bearer t", "Bearer u"]);
        assert!(own(headers(&[])).is_empty());
    }
}
