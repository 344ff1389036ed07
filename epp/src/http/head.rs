//! Headers between two connections: what belongs to one of them does not pass to the other.

use std::sync::Arc;

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        CONNECTION, CONTENT_LENGTH, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
        TRANSFER_ENCODING, UPGRADE,
    },
};

use crate::{
    exchange::{RequestHead, ResponseHead},
    headers,
    pipeline::Settings,
};

/// Headers of one connection (RFC 9110, 7.6.1), with `trailer` kept: it announces what we pass on.
const HOP_BY_HOP: [HeaderName; 6] = [
    CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];
const OLD_HOP_BY_HOP: [&str; 2] = ["keep-alive", "proxy-connection"];

/// True if the caller says that it can take trailers.
fn takes_trailers(map: &HeaderMap) -> bool {
    let values = map
        .get_all(TE)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut codings = values.flat_map(|value| value.split(','));
    codings.any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
}

/// Removes what belongs to one connection, the names that `connection` lists included.
fn strip_hop_by_hop(map: &mut HeaderMap) {
    let listed: Vec<HeaderName> = map
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect();
    for name in listed {
        map.remove(name);
    }
    for name in HOP_BY_HOP {
        map.remove(name);
    }
    for name in OLD_HOP_BY_HOP {
        map.remove(name);
    }
}

/// What the exchange needs of the caller's headers.
pub(super) fn request_head(parts: &http::request::Parts, settings: &Settings) -> RequestHead {
    let map = &parts.headers;
    let target = parts
        .uri
        .path_and_query()
        .map_or("/", |target| target.as_str());
    let mut head = RequestHead {
        path: target.into(),
        content_length: map
            .get(CONTENT_LENGTH)
            .and_then(|value| headers::parse_length(value.as_bytes())),
        encoded: map
            .get(http::header::CONTENT_ENCODING)
            .is_some_and(|value| !headers::readable_encoding(value.as_bytes())),
        ..RequestHead::default()
    };
    if let Some(name) = &settings.session_header {
        let token = map.get(name.as_ref()).map(HeaderValue::as_bytes);
        head.session = token.map(|token| Arc::from(String::from_utf8_lossy(token)));
    }
    for name in &settings.plugin_headers {
        for value in map.get_all(name.as_str()) {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            head.plugin_headers.push((name.clone(), value));
        }
    }
    if let Some(trusted) = &settings.trusted {
        head.context = trusted.read(|name| map.get(name).map(HeaderValue::as_bytes));
    }
    for name in map.keys() {
        if let Some(forged) = headers::steering(name.as_str().as_bytes()) {
            head.forged.push(forged);
        }
    }
    head
}

/// The headers as an endpoint gets them, without length and host, which depend on the try.
pub(super) fn to_upstream(
    mut map: HeaderMap,
    forged: &[&'static str],
    request_id: &HeaderValue,
) -> HeaderMap {
    let trailers = takes_trailers(&map);
    strip_hop_by_hop(&mut map);
    if trailers {
        // Ours, for the next hop: an HTTP/1.1 server sends trailers to nobody who has not asked.
        map.insert(TE, HeaderValue::from_static("trailers"));
    }
    for name in forged {
        map.remove(*name);
    }
    map.remove(headers::DESTINATION);
    map.remove(HOST);
    map.remove(CONTENT_LENGTH);
    // We have answered it already: the body lies here.
    map.remove(http::header::EXPECT);
    map.remove(TRAILER);
    map.insert(
        HeaderName::from_static(headers::REQUEST_ID),
        request_id.clone(),
    );
    map
}

/// What the exchange needs of the endpoint's headers.
pub(super) fn response_head(parts: &http::response::Parts) -> ResponseHead {
    let kind = parts.headers.get(http::header::CONTENT_TYPE);
    ResponseHead {
        status: parts.status.as_u16(),
        kind: headers::response_kind(kind.map_or(b"", HeaderValue::as_bytes)),
        served: None,
    }
}

/// The headers as the caller gets them. The length stays: the body goes through unchanged.
pub(super) fn to_caller(map: &mut HeaderMap, request_id: &HeaderValue) {
    strip_hop_by_hop(map);
    let name = HeaderName::from_static(headers::REQUEST_ID);
    map.entry(name).or_insert_with(|| request_id.clone());
}

/// The caller's request ID, or a new one: 128 random bits in hexadecimal digits.
pub(super) fn request_id(map: &HeaderMap) -> HeaderValue {
    if let Some(given) = map.get(headers::REQUEST_ID)
        && !given.is_empty()
        && given.len() <= 256
    {
        return given.clone();
    }
    let id = format!("{:032x}", fastrand::u128(..));
    HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static("0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, HeaderValue::from_str(value).unwrap());
        }
        map
    }

    #[test]
    fn hop_by_hop_headers_stay_on_their_hop() {
        let sent = map(&[
            ("connection", "keep-alive, X-Trusted-User"),
            ("connection", "x-other"),
            ("x-trusted-user", "root"),
            ("x-other", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("proxy-authorization", "Basic x"),
            ("proxy-connection", "keep-alive"),
            ("authorization", "Bearer k"),
            ("accept", "a"),
            ("accept", "b"),
        ]);
        let left = to_upstream(sent, &[], &HeaderValue::from_static("id"));
        let mut names: Vec<&str> = left.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept", "authorization", "te", "x-request-id"]);
        assert_eq!(
            left.get("te").unwrap(),
            "trailers",
            "ours, for the next hop"
        );
        assert_eq!(left.get_all("accept").iter().count(), 2);
    }

    #[test]
    fn steering_headers_of_the_caller_do_not_pass() {
        let sent = map(&[
            ("x-gateway-destination-endpoint", "10.0.0.9:8000"),
            ("x-gateway-destination-endpoint-subset", "10.0.0.9:8000"),
            ("x-prefiller-host-port", "10.0.0.9:1"),
            ("x-mine", "1"),
        ]);
        let (mut parts, ()) = http::Request::new(()).into_parts();
        parts.headers = sent.clone();
        let settings = Settings {
            max_body: 1,
            decision_timeout: std::time::Duration::from_secs(1),
            plugin_headers: vec!["x-mine".into()],
            session_header: None,
            trusted: None,
            weights: Arc::default(),
            access_log: false,
        };
        let head = request_head(&parts, &settings);
        assert_eq!(head.plugin_headers, [("x-mine".to_owned(), "1".to_owned())]);
        let left = to_upstream(sent, &head.forged, &HeaderValue::from_static("id"));
        let mut names: Vec<&str> = left.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["x-mine", "x-request-id"]);
    }

    #[test]
    fn a_given_request_id_is_kept_and_a_missing_one_is_made() {
        assert_eq!(request_id(&map(&[("x-request-id", "abc")])), "abc");
        let long = "a".repeat(257);
        assert_ne!(request_id(&map(&[("x-request-id", &long)])), long.as_str());
        assert_eq!(request_id(&HeaderMap::new()).len(), 32);
    }
}
