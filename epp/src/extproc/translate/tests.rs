//! Envoy's messages, byte for byte where it matters.

use prost_types::ListValue;

use super::*;
use crate::exchange::ResponseKind;

fn settings() -> Settings {
    Settings {
        max_body: 1 << 20,
        body_timeout: std::time::Duration::from_secs(1),
        decision_timeout: std::time::Duration::from_secs(1),
        plugin_headers: vec!["x-route".into()],
        session_header: Some(Arc::from("x-session-token")),
        trusted: None,
        weights: Arc::default(),
        access_log: false,
    }
}

fn map(lines: &[(&str, &str)]) -> HeaderMap {
    let header = |(key, value): &(&str, &str)| super::super::proto::HeaderValue {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    };
    HeaderMap {
        headers: lines.iter().map(header).collect(),
    }
}

fn metadata(namespace: &str, key: &str, kind: Kind) -> Bytes {
    let value = Value { kind: Some(kind) };
    let inner = Struct {
        fields: BTreeMap::from([(key.to_owned(), value)]),
    };
    let metadata = Metadata {
        filter_metadata: BTreeMap::from([(namespace.to_owned(), inner)]),
    };
    metadata.encode_to_vec().into()
}

fn subset_of(kind: Kind) -> Option<Vec<SubsetEntry>> {
    subset(&metadata(headers::SUBSET_NAMESPACE, headers::SUBSET, kind))
}

#[test]
fn modes_come_from_the_proxys_configuration() {
    let announced = ProtocolConfiguration {
        request_body_mode: 2,
        response_body_mode: 0,
    };
    let expected = Modes {
        request: BodyMode::Buffered,
        response: BodyMode::None,
    };
    assert_eq!(modes(Some(announced)), expected);
    assert_eq!(modes(None).request, BodyMode::FullDuplex);
}

#[test]
fn a_body_is_coded_if_any_line_says_so() {
    for (lines, encoded) in [
        (["gzip", "identity"], true),
        (["identity", "gzip"], true),
        (["identity", ""], false),
    ] {
        let lines = lines.map(|value| ("content-encoding", value));
        let head = request_head(Some(&map(&lines)), &settings());
        assert_eq!(head.encoded, encoded, "{lines:?}");
    }
}

#[test]
fn what_matters_of_the_callers_headers() {
    let map = map(&[
        (":method", "POST"),
        (":path", "/v1/chat/completions?a=1"),
        ("content-length", "12"),
        ("content-encoding", "gzip"),
        ("x-session-token", "dG9r"),
        ("x-route", "a"),
        ("x-gateway-destination-endpoint", "10.0.0.9:1"),
        ("x-gateway-destination-endpoint-subset", "10.0.0.9:1"),
        ("x-prefiller-host-port", "a"),
        ("x-prefiller-host-port", "b"),
    ]);
    let head = request_head(Some(&map), &settings());
    assert_eq!(head.path.as_ref(), "/v1/chat/completions?a=1");
    assert_eq!((head.content_length, head.encoded), (Some(12), true));
    assert_eq!(head.session.as_deref(), Some("dG9r"));
    assert_eq!(
        head.plugin_headers,
        [("x-route".to_owned(), "a".to_owned())]
    );
    let forged = [
        "x-gateway-destination-endpoint-subset",
        "x-prefiller-host-port",
    ];
    assert_eq!(head.forged.as_slice(), forged);
}

#[test]
fn a_subset_may_be_a_list_or_a_string() {
    let string = |text: &str| Kind::StringValue(text.to_owned());
    let list = Kind::ListValue(ListValue {
        values: ["10.0.0.1:8000", "10.0.0.2:8000"]
            .map(|text| Value {
                kind: Some(string(text)),
            })
            .to_vec(),
    });
    let expected = Some(parse_subset(["10.0.0.1:8000", "10.0.0.2:8000"].into_iter()));
    assert_eq!(subset_of(list), expected);
    assert_eq!(subset_of(string("10.0.0.1:8000, 10.0.0.2:8000")), expected);
}

/// S07: a subset that is there and names nobody is not "anybody".
#[test]
fn an_empty_or_odd_subset_is_present() {
    let empty = Kind::ListValue(ListValue { values: Vec::new() });
    for kind in [
        empty,
        Kind::StringValue(String::new()),
        Kind::NumberValue(1.0),
        Kind::NullValue(0),
    ] {
        assert_eq!(subset_of(kind), Some(Vec::new()));
    }
    assert_eq!(subset(&Bytes::new()), None);
    assert_eq!(subset(&Bytes::from_static(b"\xff\xff")), None);
    let other = metadata("other", headers::SUBSET, Kind::StringValue("a:1".into()));
    assert_eq!(subset(&other), None);
}

#[test]
fn who_served_comes_from_the_metadata() {
    let value = Kind::StringValue("10.0.0.2:8000".into());
    let metadata = metadata(headers::LB_NAMESPACE, headers::SERVED, value);
    let map = map(&[(":status", "200"), ("content-type", "text/event-stream")]);
    let head = response_head(Some(&map), &metadata);
    assert_eq!(head.served.as_deref(), Some("10.0.0.2:8000"));
    assert_eq!((head.status, head.kind), (200, ResponseKind::EventStream));
}

/// S06: header and metadata are equal, and only what differs is answered.
#[test]
fn the_head_answer_has_the_destination_twice_and_nothing_else() {
    let delta = HeadDelta {
        destination: Bytes::from_static(b"a:1,b:1"),
        remove: smallvec::smallvec!["x-prefiller-host-port"],
    };
    for command in [Command::Head(delta.clone()), Command::BodyWithHead(delta)] {
        let response = answer(command).unwrap();
        let (Some(Answer::RequestHeaders(common)) | Some(Answer::RequestBody(common))) =
            response.answer
        else {
            panic!("another answer");
        };
        let common = common.response.unwrap();
        assert!(common.clear_route_cache && common.body_mutation.is_none());
        let mutation = common.header_mutation.unwrap();
        let set: Vec<_> = mutation
            .set_headers
            .iter()
            .map(|set| set.header.clone().unwrap())
            .collect();
        assert_eq!(set.len(), 1);
        assert_eq!(set[0].key, headers::DESTINATION.as_bytes());
        assert_eq!(set[0].raw_value, "a:1,b:1");
        assert_eq!(mutation.set_headers[0].append_action, 2);
        assert_eq!(mutation.remove_headers, ["x-prefiller-host-port"]);
        let space = &response.dynamic_metadata.unwrap().fields[headers::LB_NAMESPACE];
        let Some(Kind::StructValue(inner)) = &space.kind else {
            panic!("no struct");
        };
        let destination = &inner.fields[headers::DESTINATION].kind;
        assert_eq!(*destination, Some(Kind::StringValue("a:1,b:1".into())));
    }
}

/// S01: our own answers are JSON, say why, and when to come back.
#[test]
fn an_immediate_answer_is_openai_json() {
    let outcome = Outcome::Refused {
        why: wicketgate_pool::admission::Outcome::RejectedNoEndpoints,
        wait: None,
    };
    let Some(Answer::Immediate(immediate)) = answer(Command::Reply(outcome)).unwrap().answer else {
        panic!("another answer");
    };
    assert_eq!(immediate.status.unwrap().code, 503);
    let set: BTreeMap<String, String> = immediate
        .headers
        .unwrap()
        .set_headers
        .into_iter()
        .filter_map(|set| set.header)
        .map(|header| {
            let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
            (text(&header.key), text(&header.raw_value))
        })
        .collect();
    assert_eq!(set["content-type"], "application/json");
    assert_eq!(set["retry-after"], "5");
    assert_eq!(
        set["x-llm-d-request-dropped-reason"],
        "rejected-no-endpoints"
    );
    let body: serde_json::Value = serde_json::from_slice(&immediate.body).unwrap();
    assert_eq!(body["error"]["code"], "no_endpoints");
}
