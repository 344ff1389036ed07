//! Session affinity through the scheduler.

use super::{Fleet, endpoint, request, spec};
use crate::{
    NoPrefix, PluginSpec, RequestView, SECOND, encode_token,
    spec::{SessionAffinity, SessionStrategy},
};

fn fleet(strategy: SessionStrategy) -> Fleet {
    let affinity = SessionAffinity {
        strategy,
        ..SessionAffinity::default()
    };
    let plugins = vec![PluginSpec::SessionAffinityScorer(affinity)];
    Fleet::new(&spec(plugins), (1..=8).map(endpoint).collect())
}

#[test]
fn a_token_leads_back_to_its_endpoint() {
    let mut fleet = fleet(SessionStrategy::EncodedEndpointHeader);
    assert_eq!(
        fleet.scheduler.session_token_header().as_deref(),
        Some("x-session-token")
    );
    let token = encode_token("ns/pod-5");
    let headers = [("x-session-token".to_owned(), token.clone())];
    let by_header = RequestView {
        headers: &headers,
        ..request()
    };
    let by_token = RequestView {
        session: Some(&token),
        ..request()
    };
    let by_name = RequestView {
        session: Some("ns/pod-5"),
        ..request()
    };
    for view in [by_header, by_token, by_name] {
        for _ in 0..20 {
            assert_eq!(fleet.dispatch(&view, &NoPrefix), 5);
        }
    }
}

#[test]
fn a_token_of_somebody_gone_or_of_nobody_spreads() {
    let mut fleet = fleet(SessionStrategy::EncodedEndpointHeader);
    let gone = encode_token("ns/pod-99");
    for token in [gone.as_str(), "not base64!", ""] {
        let view = RequestView {
            session: Some(token),
            ..request()
        };
        let mut seen: Vec<_> = (0..100).map(|_| fleet.dispatch(&view, &NoPrefix)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() > 4, "{token}: {seen:?}");
    }
}

#[test]
fn an_id_stays_where_it_first_went_until_its_time_is_over() {
    let mut fleet = fleet(SessionStrategy::SessionId);
    assert_eq!(fleet.scheduler.session_token_header(), None);
    let names = fleet.scheduler.headers();
    assert_eq!(names, ["x-session-id".into()]);
    let headers = [("x-session-id".to_owned(), "abc".to_owned())];
    let view = RequestView {
        headers: &headers,
        ..request()
    };
    let first = fleet.dispatch(&view, &NoPrefix);
    for _ in 0..20 {
        fleet.now += 300 * SECOND;
        assert_eq!(fleet.dispatch(&view, &NoPrefix), first);
    }
    assert_eq!(fleet.state.sessions(), 1);
    let mut moved = false;
    for _ in 0..20 {
        fleet.now += 301 * SECOND;
        moved |= fleet.dispatch(&view, &NoPrefix) != first;
    }
    assert!(moved);
}

#[test]
fn a_binding_does_not_pass_to_a_new_life() {
    let mut fleet = fleet(SessionStrategy::SessionId);
    let headers = [("x-session-id".to_owned(), "abc".to_owned())];
    let view = RequestView {
        headers: &headers,
        ..request()
    };
    let first = fleet.dispatch(&view, &NoPrefix);
    let row = fleet.endpoints.iter_mut().find(|e| e.id.0 == first);
    row.unwrap().id = crate::Incarnation(77);
    let seen: Vec<_> = (0..60)
        .map(|_| fleet.choose(&view).unwrap().targets[0].id.0)
        .collect();
    assert!(seen.iter().any(|id| *id != 77), "{seen:?}");
}
