//! Phases as tables: events in, commands out, for each mode.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use wicketgate_pool::{Ended, Usage, admission};
use wicketgate_wire::Api;

use super::*;

const CHAT: &str = "/v1/chat/completions";
const BODY: &[u8] = br#"{"model":"m","max_tokens":7,"messages":[{"role":"user","content":"hi"}]}"#;

fn exchange(request: BodyMode, response: BodyMode) -> Exchange {
    Exchange::new(Modes { request, response }, 1 << 20)
}

fn on(exchange: &mut Exchange, event: Event) -> Vec<Command> {
    let mut out = Commands::new();
    exchange.on(event, &mut out);
    out.into_vec()
}

fn head(path: &str) -> RequestHead {
    RequestHead {
        path: path.into(),
        ..RequestHead::default()
    }
}

fn headers(path: &str, end: bool) -> Event {
    Event::RequestHeaders {
        head: head(path),
        end,
    }
}

fn body(data: &[u8], end: bool) -> Event {
    Event::RequestBody {
        data: Bytes::copy_from_slice(data),
        end,
    }
}

fn placed() -> Event {
    Event::Placed(Placement {
        destination: Bytes::from_static(b"10.0.0.1:8000,10.0.0.2:8000"),
        session: None,
    })
}

fn response(status: u16, kind: ResponseKind, end: bool) -> Event {
    let head = ResponseHead {
        status,
        kind,
        served: None,
    };
    Event::ResponseHeaders { head, end }
}

fn answer(data: &[u8], end: bool) -> Event {
    Event::ResponseBody {
        data: Bytes::copy_from_slice(data),
        end,
    }
}

fn asked(commands: &[Command]) -> &Ask {
    match commands {
        [Command::Ask(ask)] => ask,
        other => panic!("no question but {other:?}"),
    }
}

fn delta() -> HeadDelta {
    HeadDelta {
        destination: Bytes::from_static(b"10.0.0.1:8000,10.0.0.2:8000"),
        remove: smallvec::smallvec![],
    }
}

#[test]
fn full_duplex_holds_the_headers_until_the_body_is_known() {
    let mut it = exchange(BodyMode::FullDuplex, BodyMode::FullDuplex);
    assert_eq!(on(&mut it, headers(CHAT, false)), []);
    let (first, rest) = BODY.split_at(20);
    assert_eq!(on(&mut it, body(first, false)), []);
    assert_eq!(on(&mut it, body(rest, false)), []);
    let question = on(&mut it, body(b"", true));
    let ask = asked(&question);
    assert_eq!(
        (ask.api, ask.model.as_ref(), ask.output_tokens),
        (Api::ChatCompletions, "m", 7)
    );
    assert_eq!(ask.bytes, BODY.len() as u64);
    let sent = on(&mut it, placed());
    let body = |data: &[u8], end| Command::Body {
        data: Bytes::copy_from_slice(data),
        end,
    };
    assert_eq!(sent, [Command::Head(delta()), body(BODY, true)]);
}

/// A3: the memory that a body takes does not depend on how finely it is cut.
#[test]
fn a_body_is_held_in_one_buffer() {
    let mut it = exchange(BodyMode::FullDuplex, BodyMode::FullDuplex);
    on(&mut it, headers("/v1/x", false));
    let text: Vec<u8> = (0..150_000_u32).map(|at| at as u8).collect();
    for byte in &text {
        assert_eq!(on(&mut it, body(&[*byte], false)), []);
    }
    asked(&on(&mut it, body(b"", true)));
    assert_eq!(it.held(), text);
    let pieces: Vec<(usize, bool)> = on(&mut it, placed())
        .into_iter()
        .filter_map(|command| match command {
            Command::Body { data, end } => Some((data.len(), end)),
            _ => None,
        })
        .collect();
    assert_eq!(pieces, [(62_000, false), (62_000, false), (26_000, true)]);
}

#[test]
fn full_duplex_with_trailers_ends_the_body_by_them() {
    let mut it = exchange(BodyMode::FullDuplex, BodyMode::FullDuplex);
    on(&mut it, headers(CHAT, false));
    on(&mut it, body(BODY, false));
    asked(&on(&mut it, Event::RequestTrailers));
    let sent = on(&mut it, placed());
    let data = Bytes::from_static(BODY);
    let piece = Command::Body { data, end: false };
    assert_eq!(
        sent,
        [Command::Head(delta()), piece, Command::ContinueTrailers]
    );
}

#[test]
fn an_empty_body_still_gets_its_end() {
    let mut it = exchange(BodyMode::FullDuplex, BodyMode::FullDuplex);
    on(&mut it, headers("/v1/rerank", false));
    asked(&on(&mut it, body(b"", true)));
    let data = Bytes::new();
    assert_eq!(
        on(&mut it, placed()),
        [Command::Head(delta()), Command::Body { data, end: true }]
    );
}

#[test]
fn buffered_answers_the_headers_first_and_picks_with_the_body() {
    for mode in [BodyMode::Buffered, BodyMode::BufferedPartial] {
        let mut it = exchange(mode, BodyMode::None);
        assert_eq!(on(&mut it, headers(CHAT, false)), [Command::ContinueHead]);
        assert_eq!(asked(&on(&mut it, body(BODY, true))).model.as_ref(), "m");
        assert_eq!(on(&mut it, placed()), [Command::BodyWithHead(delta())]);
        assert_eq!(
            on(&mut it, Event::RequestTrailers),
            [Command::ContinueTrailers]
        );
    }
}

#[test]
fn a_cut_body_is_scheduled_by_load_alone() {
    let mut it = exchange(BodyMode::BufferedPartial, BodyMode::None);
    on(&mut it, headers(CHAT, false));
    let question = on(&mut it, body(&BODY[..40], false));
    let ask = asked(&question);
    assert_eq!(
        (ask.api, ask.model.as_ref(), ask.prompt_tokens),
        (Api::Unknown, "", 10)
    );
}

#[test]
fn streamed_and_header_only_pick_by_headers() {
    let mut it = exchange(BodyMode::Streamed, BodyMode::Streamed);
    asked(&on(&mut it, headers(CHAT, false)));
    // Sent before the headers were answered: answered behind them.
    assert_eq!(on(&mut it, body(b"a", false)), []);
    assert_eq!(
        on(&mut it, placed()),
        [Command::Head(delta()), Command::ContinueBody]
    );
    assert_eq!(on(&mut it, body(b"b", true)), [Command::ContinueBody]);
    for mode in [BodyMode::None, BodyMode::FullDuplex, BodyMode::Buffered] {
        let mut it = exchange(mode, BodyMode::None);
        asked(&on(&mut it, headers("/v1/models", true)));
        assert_eq!(on(&mut it, placed()), [Command::Head(delta())]);
    }
}

#[test]
fn the_limit_is_exact_and_refuses_before_the_body_where_it_can() {
    let limit = BODY.len() as u64;
    let new = |limit| {
        let modes = Modes {
            request: BodyMode::FullDuplex,
            response: BodyMode::FullDuplex,
        };
        Exchange::new(modes, limit)
    };
    let mut it = new(limit);
    on(&mut it, headers(CHAT, false));
    asked(&on(&mut it, body(BODY, true)));

    let mut it = new(limit - 1);
    let too_large = Outcome::BodyTooLarge { limit: limit - 1 };
    let mut announced = head(CHAT);
    announced.content_length = Some(limit);
    let refused = on(
        &mut it,
        Event::RequestHeaders {
            head: announced,
            end: false,
        },
    );
    assert_eq!(refused[0], Command::Reply(too_large.clone()));
    assert!(it.over() && it.finished());

    let mut it = new(limit - 1);
    on(&mut it, headers(CHAT, false));
    assert_eq!(on(&mut it, body(&BODY[..10], false)), []);
    assert_eq!(
        on(&mut it, body(&BODY[10..], false))[0],
        Command::Reply(too_large)
    );
}

#[test]
fn bad_json_is_400_and_nothing_goes_on() {
    for bad in [
        &b"[]"[..],
        b"null",
        b"{\"model\":\"\xff\"}",
        b"{\"model\":",
        b"",
        b"{}x",
    ] {
        let mut it = exchange(BodyMode::FullDuplex, BodyMode::FullDuplex);
        on(&mut it, headers(CHAT, false));
        let refused = on(&mut it, body(bad, true));
        match &refused[0] {
            Command::Reply(outcome @ Outcome::InvalidBody(_)) => {
                assert_eq!(outcome.reply().status, 400);
            }
            other => panic!("{other:?}"),
        }
        assert!(it.finished());
    }
}

#[test]
fn odd_but_valid_shapes_are_not_judged_here() {
    let shapes: [&[u8]; 6] = [
        br#"{"model":"m","messages":[]}"#,
        br#"{"model":"m","messages":"text"}"#,
        br#"{"model":"m","tools":null,"messages":[{"role":"assistant","content":null}]}"#,
        br#"{"model":"m","messages":[{"role":"user","content":7}]}"#,
        br#"{"model":"a","model":"m"}"#,
        br#"{"model":"m","x":"\ud800"}"#,
    ];
    for shape in shapes {
        let mut it = exchange(BodyMode::FullDuplex, BodyMode::FullDuplex);
        on(&mut it, headers(CHAT, false));
        let question = on(&mut it, body(shape, true));
        assert_eq!(asked(&question).model.as_ref(), "m");
    }
}

#[test]
fn unclaimed_paths_and_compressed_bodies_go_by_load() {
    for path in [
        "/v1/rerank",
        "/v1/chat/completions/render",
        "/v1/messages",
        "/",
    ] {
        let mut it = exchange(BodyMode::FullDuplex, BodyMode::FullDuplex);
        on(&mut it, headers(path, false));
        assert_eq!(
            asked(&on(&mut it, body(b"not json", true))).api,
            Api::Unknown
        );
    }
    let mut it = exchange(BodyMode::FullDuplex, BodyMode::FullDuplex);
    let mut compressed = head(CHAT);
    compressed.encoded = true;
    on(
        &mut it,
        Event::RequestHeaders {
            head: compressed,
            end: false,
        },
    );
    assert_eq!(
        asked(&on(&mut it, body(b"\x1f\x8b", true))).api,
        Api::Unknown
    );
}

#[test]
fn a_second_end_of_stream_is_ignored_and_counted() {
    let mut it = exchange(BodyMode::FullDuplex, BodyMode::FullDuplex);
    on(&mut it, headers(CHAT, false));
    asked(&on(&mut it, body(BODY, true)));
    assert_eq!(on(&mut it, body(b"", true)), []);
    on(&mut it, placed());
    assert_eq!(on(&mut it, body(b"", true)), []);
    assert_eq!(it.oddities().second_end, 2);
}

fn placed_exchange(response: BodyMode) -> Exchange {
    let mut it = exchange(BodyMode::FullDuplex, response);
    on(&mut it, headers(CHAT, false));
    on(&mut it, body(BODY, true));
    on(&mut it, placed());
    it
}

const SSE: &[u8] = b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\ndata: [DONE]\n\n";

#[test]
fn a_stream_is_relayed_and_observed() {
    let mut it = placed_exchange(BodyMode::FullDuplex);
    let started = on(&mut it, response(200, ResponseKind::EventStream, false));
    assert_eq!(started, [Command::ResponseHead(None)]);
    let (first, rest) = SSE.split_at(60);
    let piece = |data: &[u8], end| Command::ResponseBody {
        data: Bytes::copy_from_slice(data),
        end,
    };
    assert_eq!(
        on(&mut it, answer(first, false)),
        [Command::FirstToken, piece(first, false)]
    );
    assert_eq!(on(&mut it, answer(rest, false)), [piece(rest, false)]);
    let usage = Usage {
        prompt_tokens: Some(5),
        completion_tokens: Some(3),
        cached_tokens: Some(2),
    };
    let finish = Command::Finish {
        how: Ended::Complete(200),
        usage: Some(usage),
    };
    assert_eq!(on(&mut it, answer(b"", true)), [piece(b"", true), finish]);
    assert!(it.over());
    assert_eq!(on(&mut it, Event::Broken(Ended::ClientGone)), []);
}

/// A report that cannot be true does not spoil the sums.
#[test]
fn one_report_of_usage_is_bounded() {
    let mut it = placed_exchange(BodyMode::FullDuplex);
    on(&mut it, response(200, ResponseKind::Json, false));
    let most = u64::MAX;
    let told = format!(
        "{{\"usage\":{{\"prompt_tokens\":{most},\"completion_tokens\":3,\"total_tokens\":{most}}}}}"
    );
    let ended = on(&mut it, answer(told.as_bytes(), true));
    let usage = ended.iter().find_map(|command| match command {
        Command::Finish { usage, .. } => *usage,
        _ => None,
    });
    let usage = usage.unwrap();
    assert_eq!(usage.prompt_tokens, Some(1 << 32));
    assert_eq!(usage.completion_tokens, Some(3));
}

#[test]
fn an_unseen_answer_ends_with_its_headers() {
    let mut it = placed_exchange(BodyMode::None);
    let ended = on(&mut it, response(200, ResponseKind::EventStream, false));
    let finish = Command::Finish {
        how: Ended::Unobserved,
        usage: None,
    };
    assert_eq!(ended, [Command::ResponseHead(None), finish]);
}

#[test]
fn trailers_end_the_answer() {
    let mut it = placed_exchange(BodyMode::Streamed);
    on(&mut it, response(200, ResponseKind::Other, false));
    let first = on(&mut it, answer(b"x", false));
    assert_eq!(first, [Command::FirstToken, Command::ContinueResponseBody]);
    let finish = Command::Finish {
        how: Ended::Complete(200),
        usage: None,
    };
    assert_eq!(
        on(&mut it, Event::ResponseTrailers),
        [Command::ContinueResponseTrailers, finish]
    );
}

#[test]
fn a_refusal_is_the_last_word() {
    let mut it = exchange(BodyMode::FullDuplex, BodyMode::FullDuplex);
    on(&mut it, headers(CHAT, false));
    on(&mut it, body(BODY, true));
    let no = Outcome::Refused {
        why: admission::Outcome::RejectedNoEndpoints,
        wait: None,
    };
    assert_eq!(
        on(&mut it, Event::Refused(no.clone()))[0],
        Command::Reply(no)
    );
    assert_eq!(on(&mut it, placed()), []);
    assert_eq!(on(&mut it, answer(b"", true)), []);
}

#[test]
fn the_proxys_own_answer_before_a_place_is_relayed_and_dispatches_nothing() {
    // Envoy's 413 for a body beyond its buffer: headers were answered, no body message ever comes.
    let mut it = exchange(BodyMode::Buffered, BodyMode::None);
    on(&mut it, headers(CHAT, false));
    let relayed = on(&mut it, response(413, ResponseKind::Other, true));
    assert_eq!(relayed[0], Command::ResponseHead(None));
    assert!(it.finished());
}

#[test]
fn the_callers_steering_headers_are_named_for_removal() {
    let mut it = exchange(BodyMode::FullDuplex, BodyMode::FullDuplex);
    let mut forged = head("/v1/models");
    forged.forged.push("x-prefiller-host-port");
    on(
        &mut it,
        Event::RequestHeaders {
            head: forged,
            end: true,
        },
    );
    match on(&mut it, placed()).as_slice() {
        [Command::Head(delta)] => assert_eq!(delta.remove.as_slice(), ["x-prefiller-host-port"]),
        other => panic!("{other:?}"),
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    let bytes = prop_oneof![
        Just(BODY.to_vec()),
        Just(SSE.to_vec()),
        any::<[u8; 3]>().prop_map(Vec::from)
    ];
    let data = (bytes, any::<bool>());
    prop_oneof![
        any::<bool>().prop_map(|end| headers(CHAT, end)),
        data.clone().prop_map(|(data, end)| body(&data, end)),
        Just(Event::RequestTrailers),
        Just(placed()),
        Just(Event::Refused(Outcome::DecisionTimeout)),
        Just(Event::Subset(Vec::new())),
        any::<bool>().prop_map(|end| response(200, ResponseKind::EventStream, end)),
        data.prop_map(|(data, end)| answer(&data, end)),
        Just(Event::ResponseTrailers),
        Just(Event::Broken(Ended::ClientGone)),
    ]
}

fn any_mode() -> impl Strategy<Value = BodyMode> {
    prop_oneof![
        Just(BodyMode::None),
        Just(BodyMode::Streamed),
        Just(BodyMode::Buffered),
        Just(BodyMode::BufferedPartial),
        Just(BodyMode::FullDuplex),
    ]
}

proptest! {
    /// INV-E1: whatever comes in whatever order, an exchange asks at most once, finishes at most once, says
    /// nothing after it is over, and never lets a request go on after it answered it itself.
    #[test]
    fn any_order_of_events_is_survived(
        request in any_mode(),
        response in any_mode(),
        events in prop::collection::vec(any_event(), 0..24),
    ) {
        let mut it = exchange(request, response);
        let (mut asks, mut ends, mut replied) = (0, 0, false);
        for event in events {
            let was_over = it.over();
            let commands = on(&mut it, event);
            prop_assert!(!was_over || commands.is_empty());
            for command in commands {
                match command {
                    Command::Ask(_) => asks += 1,
                    Command::Finish { .. } => ends += 1,
                    Command::Reply(_) => replied = true,
                    Command::Head(_) | Command::BodyWithHead(_) => prop_assert!(!replied),
                    _ => {}
                }
            }
        }
        on(&mut it, Event::Broken(Ended::ClientGone));
        prop_assert!(asks <= 1);
        prop_assert!(ends <= 1 && it.finished());
    }

    /// INV-E2: full duplex sends on exactly the bytes that came in, in order, with one end.
    #[test]
    fn bytes_go_on_as_they_came(cuts in prop::collection::vec(0..BODY.len(), 0..6)) {
        let mut cuts = cuts;
        cuts.extend([0, BODY.len()]);
        cuts.sort_unstable();
        let mut it = exchange(BodyMode::FullDuplex, BodyMode::FullDuplex);
        on(&mut it, headers(CHAT, false));
        for pair in cuts.windows(2) {
            on(&mut it, body(&BODY[pair[0]..pair[1]], false));
        }
        on(&mut it, body(b"", true));
        let (mut bytes, mut ends) = (Vec::new(), 0);
        for command in on(&mut it, placed()) {
            if let Command::Body { data, end } = command {
                prop_assert_eq!(ends, 0);
                bytes.extend_from_slice(&data);
                ends += usize::from(end);
            }
        }
        prop_assert_eq!(bytes, BODY);
        prop_assert_eq!(ends, 1);
    }
}

#[test]
fn a_session_token_is_handed_out_with_the_answer() {
    let mut it = exchange(BodyMode::FullDuplex, BodyMode::FullDuplex);
    on(&mut it, headers("/v1/models", true));
    let session = Some((
        Arc::from("x-session-token"),
        Bytes::from_static(b"dG9rZW4="),
    ));
    on(
        &mut it,
        Event::Placed(Placement {
            destination: Bytes::from_static(b"a:1"),
            session: session.clone(),
        }),
    );
    let started = on(&mut it, response(200, ResponseKind::Json, false));
    assert_eq!(started, [Command::ResponseHead(session)]);
}
