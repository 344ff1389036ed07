//! Header names of the Endpoint Picker Protocol and of our own, and which of them a caller may not bring.

/// Where the request goes: request header, and key in [`LB_NAMESPACE`].
pub const DESTINATION: &str = "x-gateway-destination-endpoint";
/// Who really served it: key in [`LB_NAMESPACE`], set by the proxy.
pub const SERVED: &str = "x-gateway-destination-endpoint-served";
/// Who may serve it: key in [`SUBSET_NAMESPACE`], set by the proxy.
pub const SUBSET: &str = "x-gateway-destination-endpoint-subset";
/// Metadata namespace of destination and served endpoint.
pub const LB_NAMESPACE: &str = "envoy.lb";
/// Metadata namespace of the subset hint.
pub const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
/// The request's identity across logs.
pub const REQUEST_ID: &str = "x-request-id";

/// Headers that steer where a request goes. A caller's copy is removed: with some proxies it would be an open
/// door to any address. [`DESTINATION`] is always overwritten, so it is not in this list.
pub const STEERING: &[&str] = &[
    SERVED,
    SUBSET,
    "x-gateway-destination-endpoint-scores",
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
];

/// The steering header with this (lower-case) name, if it is one.
pub fn steering(name: &[u8]) -> Option<&'static str> {
    if !name.starts_with(b"x-") {
        return None;
    }
    STEERING
        .iter()
        .copied()
        .find(|known| known.as_bytes() == name)
}

/// True for the values of `content-encoding` that leave a body readable. A message may have several such lines: all
/// of them must.
pub fn readable_encoding(value: &[u8]) -> bool {
    value.split(|byte| *byte == b',').all(|coding| {
        let coding = coding.trim_ascii();
        coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
    })
}

/// The one length that a message's `content-length` lines agree on; each may repeat it in a list (RFC 9110, 8.6).
/// `Err` when one of them is no length or they disagree; `None` without any.
#[expect(clippy::result_unit_err, reason = "there is one way to be wrong")]
pub fn one_length<'a>(values: impl Iterator<Item = &'a [u8]>) -> Result<Option<u64>, ()> {
    let mut found = None;
    for given in values.flat_map(|value| value.split(|byte| *byte == b',')) {
        let length = parse_length(given.trim_ascii()).ok_or(())?;
        if found.replace(length).is_some_and(|known| known != length) {
            return Err(());
        }
    }
    Ok(found)
}

/// Decimal digits only; anything else is no length.
pub fn parse_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// What kind of body a `content-type` announces.
pub fn response_kind(content_type: &[u8]) -> crate::exchange::ResponseKind {
    use crate::exchange::ResponseKind;
    let end = content_type.iter().position(|byte| *byte == b';');
    let essence = content_type.get(..end.unwrap_or(content_type.len()));
    let essence = essence.unwrap_or_default().trim_ascii();
    if essence.eq_ignore_ascii_case(b"text/event-stream") {
        ResponseKind::EventStream
    } else if essence.eq_ignore_ascii_case(b"application/json") {
        ResponseKind::Json
    } else {
        ResponseKind::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::ResponseKind;

    #[test]
    fn content_types() {
        assert_eq!(
            response_kind(b"text/event-stream; charset=utf-8"),
            ResponseKind::EventStream
        );
        assert_eq!(response_kind(b"Application/JSON"), ResponseKind::Json);
        assert_eq!(response_kind(b"text/plain"), ResponseKind::Other);
        assert_eq!(response_kind(b""), ResponseKind::Other);
    }

    #[test]
    fn lengths() {
        assert_eq!(parse_length(b"1048576"), Some(1_048_576));
        for bad in [
            &b"-1"[..],
            b"+1",
            b"1 ",
            b"",
            b"0x10",
            b"99999999999999999999999",
        ] {
            assert_eq!(parse_length(bad), None);
        }
    }

    #[test]
    fn a_message_has_one_length() {
        let one = |values: &[&'static str]| one_length(values.iter().map(|value| value.as_bytes()));
        assert_eq!(one(&[]), Ok(None));
        assert_eq!(one(&["7"]), Ok(Some(7)));
        assert_eq!(one(&["7", "7, 7"]), Ok(Some(7)));
        for bad in [
            &["7", "8"][..],
            &["7, 8"],
            &["-7"],
            &[""],
            &["7", "x"],
            &["7,"],
        ] {
            assert_eq!(one(bad), Err(()), "{bad:?}");
        }
    }

    #[test]
    fn encodings() {
        for readable in ["", "identity", "Identity", "identity, identity"] {
            assert!(readable_encoding(readable.as_bytes()), "{readable}");
        }
        for coded in ["gzip", "identity, gzip", "gzip,identity", "br"] {
            assert!(!readable_encoding(coded.as_bytes()), "{coded}");
        }
    }

    #[test]
    fn steering_headers_are_known_by_exact_name() {
        assert_eq!(
            steering(b"x-prefiller-host-port"),
            Some("x-prefiller-host-port")
        );
        assert_eq!(steering(b"x-prefiller-host-port2"), None);
        assert_eq!(steering(b"accept"), None);
    }
}
