//! Headers between two connections: what belongs to one of them does not pass to the other.

use std::sync::Arc;

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        AGE, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH,
        CONTENT_RANGE, CONTENT_TYPE, COOKIE, DATE, EXPECT, EXPIRES, HOST, IF_MATCH,
        IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LOCATION, MAX_FORWARDS,
        PRAGMA, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RANGE, RETRY_AFTER, SET_COOKIE, TE,
        TRAILER, TRANSFER_ENCODING, UPGRADE, VARY, WARNING, WWW_AUTHENTICATE,
    },
};

use crate::{
    exchange::{RequestHead, ResponseHead},
    headers,
    outcome::Outcome,
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

/// What no trailer may be (RFC 9110, 6.5.1): framing, routing, authentication, modifiers of the request, control of
/// the answer, the form of the content.
const NEVER_TRAILERS: [HeaderName; 27] = [
    AGE,
    AUTHORIZATION,
    CACHE_CONTROL,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    COOKIE,
    DATE,
    EXPECT,
    EXPIRES,
    HOST,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    IF_UNMODIFIED_SINCE,
    LOCATION,
    MAX_FORWARDS,
    PRAGMA,
    RANGE,
    RETRY_AFTER,
    SET_COOKIE,
    TRAILER,
    VARY,
    WARNING,
    WWW_AUTHENTICATE,
];

/// What the front itself will not take, whatever the exchange says.
pub(super) fn unsupported(parts: &http::request::Parts) -> Option<Outcome> {
    use http::{Method, Version};
    let map = &parts.headers;
    if parts.method == Method::CONNECT || parts.method == Method::TRACE {
        return Some(Outcome::MethodNotAllowed);
    }
    // Other protocols that a caller offers to change to, h2c above all, may be ignored (RFC 9110, 7.8). It can talk
    // on in this one; of `websocket` it cannot.
    if lists(map, &UPGRADE, "websocket") {
        return Some(Outcome::BadRequest("Protocol upgrades are not supported."));
    }
    let hosts = map.get_all(HOST).iter().count();
    if hosts > 1 || (hosts == 0 && parts.version == Version::HTTP_11) {
        return Some(Outcome::BadRequest(
            "A request must have exactly one Host header.",
        ));
    }
    if !plain_coding(map) {
        return Some(Outcome::NotImplemented(
            "No transfer coding but `chunked` is supported.",
        ));
    }
    None
}

/// True without a transfer coding and for `chunked` alone: HTTP/1 parsers undo only that one, and what is coded in
/// another way too would go on as if it were not.
fn plain_coding(map: &HeaderMap) -> bool {
    let mut codings = map.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(only), None) => only.as_bytes().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    }
}

/// True if a header lists this word.
fn lists(map: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let values = map.get_all(name).iter();
    let values = values.filter_map(|value| value.to_str().ok());
    let mut words = values.flat_map(|value| value.split(','));
    words.any(|listed| listed.trim().eq_ignore_ascii_case(word))
}

/// The trailers that may go on to the next hop; `None` when nothing is left of them.
pub(super) fn trailers(mut map: HeaderMap) -> Option<HeaderMap> {
    strip_hop_by_hop(&mut map);
    for name in NEVER_TRAILERS {
        map.remove(name);
    }
    map.remove(headers::DESTINATION);
    map.remove(headers::REQUEST_ID);
    for name in headers::STEERING {
        map.remove(*name);
    }
    (!map.is_empty()).then_some(map)
}

/// True if the caller says that it can take trailers.
fn takes_trailers(map: &HeaderMap) -> bool {
    lists(map, &TE, "trailers")
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
            .get_all(CONTENT_ENCODING)
            .iter()
            .any(|value| !headers::readable_encoding(value.as_bytes())),
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
    map.remove(EXPECT);
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

/// Makes an endpoint's head one that can be passed on, or says why it cannot.
///
/// It gets one length at most, and that the true one (RFC 9112, 6.3): a transfer coding overrides the length, equal
/// lengths are one, and what has no body has none. The version is that of the other hop.
pub(super) fn check_answer(parts: &mut http::response::Parts) -> Result<(), &'static str> {
    use http::StatusCode;
    parts.version = http::Version::HTTP_11;
    if parts.status.is_informational() {
        return Err("it changes to a protocol that nobody asked for");
    }
    let map = &mut parts.headers;
    if !plain_coding(map) {
        return Err("its transfer coding is not `chunked` alone");
    }
    if map.contains_key(TRANSFER_ENCODING) || parts.status == StatusCode::NO_CONTENT {
        map.remove(CONTENT_LENGTH);
        return Ok(());
    }
    let values = map.get_all(CONTENT_LENGTH).iter();
    match headers::one_length(values.map(HeaderValue::as_bytes)) {
        Err(()) => Err("its content-length is none"),
        Ok(None) => Ok(()),
        Ok(Some(length)) => {
            map.insert(CONTENT_LENGTH, HeaderValue::from(length));
            Ok(())
        }
    }
}

/// The headers as the caller gets them. The length stays: the body goes through unchanged.
pub(super) fn to_caller(map: &mut HeaderMap, request_id: &HeaderValue) {
    strip_hop_by_hop(map);
    announce_trailers(map);
    let name = HeaderName::from_static(headers::REQUEST_ID);
    map.entry(name).or_insert_with(|| request_id.clone());
}

/// Leaves in `trailer` only the names that pass.
fn announce_trailers(map: &mut HeaderMap) {
    if !map.contains_key(TRAILER) {
        return;
    }
    let values = map.get_all(TRAILER).iter();
    let names = values.filter_map(|value| value.to_str().ok());
    let names = names.flat_map(|value| value.split(','));
    let names = names.filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok());
    let listed = names
        .map(|name| (name, HeaderValue::from_static("")))
        .collect();
    map.remove(TRAILER);
    if let Some(left) = trailers(listed) {
        let names: Vec<&str> = left.keys().map(HeaderName::as_str).collect();
        if let Ok(names) = HeaderValue::from_str(&names.join(", ")) {
            map.insert(TRAILER, names);
        }
    }
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

    fn answer(status: u16, lines: &[(&str, &str)]) -> http::response::Parts {
        let (mut parts, ()) = http::Response::new(()).into_parts();
        parts.status = http::StatusCode::from_u16(status).unwrap();
        parts.version = http::Version::HTTP_10;
        parts.headers = map(lines);
        parts
    }

    /// The lengths that pass with a head, or nothing if the head does not.
    fn lengths(status: u16, lines: &[(&str, &str)]) -> Option<Vec<String>> {
        let mut parts = answer(status, lines);
        check_answer(&mut parts).ok()?;
        assert_eq!(parts.version, http::Version::HTTP_11);
        let values = parts.headers.get_all(CONTENT_LENGTH).iter();
        Some(
            values
                .map(|value| value.to_str().unwrap().to_owned())
                .collect(),
        )
    }

    #[test]
    fn an_answer_has_one_true_length() {
        let chunked = ("transfer-encoding", "Chunked");
        let none = || Some(Vec::new());
        let five = || Some(vec!["5".to_owned()]);
        assert_eq!(lengths(200, &[]), none());
        assert_eq!(lengths(200, &[("content-length", "5")]), five());
        assert_eq!(lengths(200, &[("content-length", "5"), chunked]), none());
        let twice = [("content-length", "5"), ("content-length", "5, 5")];
        assert_eq!(lengths(200, &twice), five());
        assert_eq!(lengths(304, &twice), five());
        assert_eq!(lengths(204, &[("content-length", "5")]), none());
        for bad in ["-5", "5, 6", "", "five", "99999999999999999999"] {
            assert_eq!(lengths(200, &[("content-length", bad)]), None, "{bad}");
        }
        assert_eq!(lengths(101, &[("upgrade", "websocket")]), None);
        for coding in ["gzip", "gzip, chunked", "chunked, chunked"] {
            assert_eq!(lengths(200, &[("transfer-encoding", coding)]), None);
        }
        assert_eq!(
            lengths(200, &[("transfer-encoding", "gzip"), chunked]),
            None
        );
    }

    #[test]
    fn trailers_carry_nothing_that_headers_must() {
        let sent = map(&[
            ("x-checksum", "abc"),
            ("server-timing", "total;dur=3"),
            ("content-length", "3"),
            ("transfer-encoding", "chunked"),
            ("host", "evil"),
            ("authorization", "Bearer evil"),
            ("proxy-authorization", "Basic x"),
            ("cookie", "a=b"),
            ("connection", "x-listed"),
            ("x-listed", "1"),
            ("trailer", "x"),
            ("x-gateway-destination-endpoint", "6.6.6.6:1"),
            ("x-gateway-destination-endpoint-served", "6.6.6.6:1"),
            ("x-prefiller-host-port", "6.6.6.6:1"),
            ("x-request-id", "other"),
        ]);
        let left = trailers(sent).unwrap();
        let mut names: Vec<&str> = left.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["server-timing", "x-checksum"]);
        assert_eq!(trailers(map(&[("content-length", "3")])), None);
    }

    #[test]
    fn only_trailers_that_pass_are_announced() {
        let mut left = map(&[
            ("trailer", "x-t, Content-Length"),
            ("trailer", "authorization,x-u"),
        ]);
        to_caller(&mut left, &HeaderValue::from_static("id"));
        let mut names: Vec<&str> = left
            .get(TRAILER)
            .unwrap()
            .to_str()
            .unwrap()
            .split(", ")
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["x-t", "x-u"]);
        let mut left = map(&[("trailer", "content-length")]);
        to_caller(&mut left, &HeaderValue::from_static("id"));
        assert!(!left.contains_key(TRAILER));
    }

    #[test]
    fn what_a_gateway_does_not_take() {
        let refused = |version, lines: &[(&str, &str)]| {
            let (mut parts, ()) = http::Request::new(()).into_parts();
            parts.version = version;
            parts.headers = map(lines);
            unsupported(&parts).map(|outcome| outcome.reply().status)
        };
        use http::Version;
        let h1 = |lines: &[(&str, &str)]| refused(Version::HTTP_11, lines);
        assert_eq!(h1(&[("host", "a")]), None);
        assert_eq!(h1(&[]), Some(400));
        assert_eq!(h1(&[("host", "a"), ("host", "b")]), Some(400));
        assert_eq!(refused(Version::HTTP_10, &[]), None);
        assert_eq!(refused(Version::HTTP_2, &[]), None);
        let two = [("host", "a"), ("host", "a")];
        assert_eq!(refused(Version::HTTP_2, &two), Some(400));
        let with = |name, value| h1(&[("host", "a"), (name, value)]);
        assert_eq!(with("upgrade", "h2c"), None);
        assert_eq!(with("upgrade", "TLS/1.3, foo"), None);
        assert_eq!(with("upgrade", "h2c, WebSocket"), Some(400));
        assert_eq!(with("transfer-encoding", "chunked"), None);
        assert_eq!(with("transfer-encoding", "gzip, chunked"), Some(501));
    }

    #[test]
    fn a_body_is_coded_if_any_line_says_so() {
        let (mut parts, ()) = http::Request::new(()).into_parts();
        parts.headers = map(&[
            ("content-encoding", "identity"),
            ("content-encoding", "gzip"),
        ]);
        assert!(request_head(&parts, &settings(&[])).encoded);
        parts.headers = map(&[("content-encoding", "identity"), ("content-encoding", "")]);
        assert!(!request_head(&parts, &settings(&[])).encoded);
    }

    fn settings(plugin_headers: &[&str]) -> Settings {
        Settings {
            max_body: 1,
            body_timeout: std::time::Duration::from_secs(1),
            decision_timeout: std::time::Duration::from_secs(1),
            plugin_headers: plugin_headers.iter().map(|name| (*name).into()).collect(),
            session_header: None,
            trusted: None,
            weights: Arc::default(),
            access_log: false,
        }
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
        let head = request_head(&parts, &settings(&["x-mine"]));
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
