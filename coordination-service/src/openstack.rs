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

/// A token as OpenStack's clients send it, in the header that is looked at elsewhere.
pub(crate) fn authorized(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    if let Some(token) = headers.remove(HeaderName::from_static("x-auth-token"))
        && !headers.contains_key(header::AUTHORIZATION)
        && let Ok(bearer) = HeaderValue::from_bytes(&[b"Bearer ", token.as_bytes()].concat())
    {
        headers.insert(header::AUTHORIZATION, bearer);
    }
    headers
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
        let own = |headers: HeaderMap| headers.get(header::AUTHORIZATION).cloned();
        assert_eq!(
            own(headers(&[(token.clone(), "t")])),
            Some(HeaderValue::from_static("Bearer t"))
        );
        let basic = HeaderValue::from_static("Basic eDp0");
        assert_eq!(
            own(headers(&[(token, "t"), (header::AUTHORIZATION, "Basic eDp0")])),
            Some(basic)
        );
        assert_eq!(own(headers(&[])), None);
    }
}
