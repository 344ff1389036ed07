//! Detectors and usage limits against tables of the right answers.

use super::*;
use crate::{Nanos, SECOND};

const NOW: Nanos = 100 * SECOND;

fn read(age: Nanos, waiting: f64, kv: f64) -> EndpointView {
    EndpointView {
        reading: Some(Reading {
            at: NOW - age,
            waiting: Some(waiting),
            running: Some(0.0),
            kv_usage: Some(kv),
        }),
        ..EndpointView::default()
    }
}

fn ask(priority: i32, tokens: u64) -> Ask {
    Ask {
        id: 1,
        class: crate::ClassId(0),
        priority,
        ceiling_of: priority,
        cost: crate::Cost {
            uncached_input: tokens,
            output: 0,
        },
        since: 0,
    }
}

fn answer(config: &GateConfig, views: &[EndpointView], ask: &Ask) -> Answer {
    let mut limits = UsageLimitState::default();
    PoolGate::new(config, NOW, views, &[10, 0, -10], &|_, _| true, &mut limits).can_start(ask)
}

fn llm_d_numbers(views: &[EndpointView]) -> Option<f64> {
    saturation(&GateConfig::llm_d(), NOW, views).effective()
}

#[test]
fn utilization_is_the_mean_of_the_worse_share() {
    let views = [read(0, 5.0, 0.4), read(0, 0.0, 0.4)];
    assert_eq!(llm_d_numbers(&views), Some(0.75));
    let over = [read(0, 10.0, 0.0)];
    assert_eq!(llm_d_numbers(&over), Some(2.0));
    assert_eq!(llm_d_numbers(&[]), None, "an empty pool is neither");
    assert_eq!(llm_d_numbers(&[read(SECOND, 0.0, 0.0)]), Some(1.0));
    assert_eq!(llm_d_numbers(&[EndpointView::default()]), Some(1.0));
    let odd = [read(0, f64::NAN, 0.4), read(0, -1.0, f64::INFINITY)];
    assert_eq!(
        llm_d_numbers(&odd),
        Some(0.75),
        "no observation is not zero"
    );
}

#[test]
fn stages_are_judged_apart() {
    let role = |role, waiting| EndpointView {
        role,
        ..read(0, waiting, 0.0)
    };
    let views = [role(Role::Prefill, 5.0), role(Role::Decode, 0.0)];
    let all = saturation(&GateConfig::llm_d(), NOW, &views);
    assert_eq!((all.prefill, all.decode), (Some(1.0), Some(0.0)));
    assert_eq!(all.effective(), Some(1.0));
    let ours = GateConfig::default();
    assert_eq!(answer(&ours, &views, &ask(0, 1)), Answer::NotNow);
    let free = [role(Role::Prefill, 0.0), role(Role::Decode, 0.0)];
    assert_eq!(answer(&ours, &free, &ask(0, 1)), Answer::Start);
    let both = [role(Role::Interleaved, 0.0)];
    assert_eq!(answer(&ours, &both, &ask(0, 1)), Answer::Start);
    let lone = [role(Role::Prefill, 0.0)];
    assert_eq!(answer(&ours, &lone, &ask(0, 1)), Answer::NotNow);
}

#[test]
fn concurrency_counts_our_own() {
    let view = |own_requests, own_tokens| EndpointView {
        own_requests,
        own_tokens,
        ..EndpointView::default()
    };
    let config = |concurrency_mode| GateConfig {
        detector: Detector::Concurrency(Concurrency {
            concurrency_mode,
            ..Concurrency::default()
        }),
        staleness: Staleness::Saturated,
        ..GateConfig::default()
    };
    let sat = |mode, views: &[_]| saturation(&config(mode), NOW, views).effective();
    let views = [view(50, 900_000), view(100, 0)];
    assert_eq!(sat(ConcurrencyMode::Requests, &views), Some(0.75));
    assert_eq!(sat(ConcurrencyMode::Tokens, &views), Some(0.45));
    assert_eq!(sat(ConcurrencyMode::Hybrid, &views), Some(0.95));
    let requests = config(ConcurrencyMode::Requests);
    assert_eq!(answer(&requests, &views, &ask(0, 1)), Answer::Start);
    let full = [view(100, 0), view(100, 0)];
    assert_eq!(answer(&requests, &full, &ask(0, 1)), Answer::NotNow);
}

#[test]
fn headroom_asks_for_slot_queue_and_blocks() {
    let config = GateConfig::default();
    let view = |running: f64, waiting, kv| EndpointView {
        batch_slots: Some(4),
        kv_tokens: Some(1000),
        reading: Some(Reading {
            at: NOW,
            waiting: Some(waiting),
            running: Some(running),
            kv_usage: Some(kv),
        }),
        ..EndpointView::default()
    };
    let one = |view: EndpointView, tokens| answer(&config, &[view], &ask(0, tokens));
    assert_eq!(one(view(3.0, 0.0, 0.5), 400), Answer::Start);
    assert_eq!(one(view(4.0, 0.0, 0.5), 400), Answer::NotNow, "no slot");
    assert_eq!(one(view(3.0, 1.0, 0.5), 400), Answer::NotNow, "a queue");
    assert_eq!(one(view(3.0, 0.0, 0.5), 500), Answer::NotNow, "no blocks");
    assert_eq!(
        one(view(0.0, 0.0, 0.0), 5000),
        Answer::Start,
        "idle: the engine judges"
    );
    let sent = |requests, tokens| EndpointView {
        unseen_requests: requests,
        unseen_tokens: tokens,
        ..view(2.0, 0.0, 0.5)
    };
    assert_eq!(one(sent(1, 100), 100), Answer::Start);
    assert_eq!(one(sent(2, 100), 100), Answer::NotNow, "slots taken since");
    assert_eq!(one(sent(1, 400), 100), Answer::NotNow, "blocks taken since");
}

#[test]
fn an_unknown_batch_is_probed_by_one() {
    let config = GateConfig::default();
    let view = |running, unseen_requests| EndpointView {
        unseen_requests,
        reading: Some(Reading {
            at: NOW,
            waiting: Some(0.0),
            running: Some(running),
            kv_usage: Some(0.1),
        }),
        ..EndpointView::default()
    };
    assert_eq!(answer(&config, &[view(49.0, 0)], &ask(0, 1)), Answer::Start);
    assert_eq!(answer(&config, &[view(80.0, 0)], &ask(0, 1)), Answer::Start);
    assert_eq!(
        answer(&config, &[view(80.0, 1)], &ask(0, 1)),
        Answer::NotNow
    );
}

#[test]
fn utilization_counts_what_was_dispatched_since() {
    let config = GateConfig {
        detector: Detector::Utilization(Utilization::default()),
        ..GateConfig::default()
    };
    let view = |unseen_requests| EndpointView {
        unseen_requests,
        ..read(0, 1.0, 0.0)
    };
    assert_eq!(answer(&config, &[view(3)], &ask(0, 1)), Answer::Start);
    assert_eq!(answer(&config, &[view(4)], &ask(0, 1)), Answer::NotNow);
    let slots = EndpointView {
        batch_slots: Some(8),
        ..view(8)
    };
    assert_eq!(answer(&config, &[slots], &ask(0, 1)), Answer::Start);
}

/// Field case C22: three policies against all stale, one fresh, none.
#[test]
fn a_metrics_outage_follows_the_declared_policy() {
    let stale = read(60 * SECOND, 0.0, 0.0);
    let own = |own_requests| EndpointView {
        own_requests,
        ..stale
    };
    let (full, free) = (read(0, 9.0, 0.0), read(0, 0.0, 0.0));
    let all = [stale; 4];
    let fresh_free = [stale, stale, stale, free];
    let fresh_full = [stale, stale, stale, full];
    let busy = [own(50); 4];
    use Answer::{NotNow, Start};
    use Staleness::{Ignore, OwnCount, Saturated};
    for (staleness, views, expected) in [
        (Saturated, &all[..], NotNow),
        (Saturated, &fresh_free, Start),
        (Saturated, &fresh_full, NotNow),
        (Saturated, &[], NotNow),
        (Ignore, &all, Start),
        (Ignore, &fresh_free, Start),
        (Ignore, &fresh_full, NotNow),
        (Ignore, &[], NotNow),
        (OwnCount, &all, Start),
        (OwnCount, &busy, NotNow),
        (OwnCount, &fresh_free, Start),
        (OwnCount, &fresh_full, Start),
        (OwnCount, &[], NotNow),
    ] {
        let config = GateConfig {
            staleness,
            ..GateConfig::default()
        };
        let got = answer(&config, views, &ask(0, 1));
        assert_eq!(got, expected, "{staleness:?} over {views:?}");
    }
    assert_eq!(
        saturation(&GateConfig::default(), NOW, &fresh_free).stale,
        3
    );
}

/// Field case C23: a pod that is ready but not yet read starts nothing; one whose scrapes fail does.
#[test]
fn a_new_endpoint_waits_for_its_first_reading() {
    let config = GateConfig::default();
    let new = EndpointView {
        joined: NOW - SECOND,
        ..EndpointView::default()
    };
    assert_eq!(answer(&config, &[new], &ask(0, 1)), Answer::NotNow);
    let failed = EndpointView {
        scrape_failed: true,
        ..new
    };
    assert_eq!(answer(&config, &[failed], &ask(0, 1)), Answer::Start);
    let old = EndpointView { joined: 0, ..new };
    assert_eq!(answer(&config, &[old], &ask(0, 1)), Answer::Start);
}

#[test]
fn only_eligible_endpoints_count() {
    let config = GateConfig::default();
    let views = [read(0, 0.0, 0.0), read(0, 9.0, 0.0)];
    let mut limits = UsageLimitState::default();
    let second = |_, at| at == 1;
    let mut gate = PoolGate::new(&config, NOW, &views, &[0], &second, &mut limits);
    assert_eq!(gate.can_start(&ask(0, 1)), Answer::NotNow);
    let llm_d = GateConfig::llm_d();
    let nobody = |_, _| false;
    let mut limits = UsageLimitState::default();
    let mut gate = PoolGate::new(&llm_d, NOW, &views[..1], &[0], &nobody, &mut limits);
    assert_eq!(gate.can_start(&ask(0, 1)), Answer::NotNow);
    assert_eq!(
        answer(&llm_d, &[read(0, 5.0, 0.0)], &ask(0, 1)),
        Answer::Closed
    );
}

#[test]
fn holdback_keeps_room_for_the_bands_above() {
    let limit = |domain| UsageLimit::PriorityHoldback {
        shape: Shape::Linear,
        domain,
        min_ceiling: 0.6,
        max_ceiling: 1.0,
    };
    let mut state = UsageLimitState::default();
    let mut at = |domain, rank| state.ceiling(&limit(domain), 0.0, rank, &[100, 0, -100, -300]);
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
    near(at(CeilingDomain::Rank, 0), 1.0);
    near(at(CeilingDomain::Rank, 1), 1.0 - 0.4 / 3.0);
    near(at(CeilingDomain::Rank, 3), 0.6);
    near(at(CeilingDomain::Value, 1), 0.9);
    near(at(CeilingDomain::Value, 3), 0.6);
    near(
        state.ceiling(&limit(CeilingDomain::Value), 0.0, 0, &[7]),
        1.0,
    );
    let config = GateConfig {
        usage_limit: limit(CeilingDomain::Rank),
        detector: Detector::Utilization(Utilization::default()),
        ..GateConfig::default()
    };
    let views = [read(0, 4.0, 0.0)];
    assert_eq!(answer(&config, &views, &ask(10, 1)), Answer::Start);
    assert_eq!(answer(&config, &views, &ask(0, 1)), Answer::NotNow);
}

#[test]
fn the_soft_ceiling_lets_one_of_n_past() {
    let mut state = UsageLimitState::default();
    let mut at = |s, rank| state.ceiling(&UsageLimit::SoftReflective, s, rank, &[2, 1, 0]);
    assert_eq!(at(0.5, 0), 1.0);
    assert_eq!(at(0.5, 1), 0.75);
    // s = 0.8: c_2 = 0.2, and one of 4 calls passes.
    let calls: Vec<bool> = (0..8).map(|_| at(0.8, 2) >= 1.0).collect();
    assert_eq!(calls.iter().filter(|passed| **passed).count(), 2);
    assert!(at(1.0, 2) < 1.0, "a full pool lets nobody past");
}

#[test]
fn names_and_checks() {
    for (short, long) in [
        ("utilization", "utilization-detector"),
        ("concurrency", "concurrency-detector"),
        ("headroom", "headroom-detector"),
    ] {
        let detector = Detector::from_name(short);
        assert!(detector.is_some());
        assert_eq!(Detector::from_name(long), detector);
    }
    assert_eq!(Detector::from_name("x"), None);
    assert!(UsageLimit::from_name("static-usage-limit-policy").is_ok());
    assert!(UsageLimit::from_name("soft-reflective-ceiling-policy").is_ok());
    assert!(UsageLimit::from_name("priority-holdback-policy").is_err());
    assert!(UsageLimit::from_name("x").is_err());
    assert_eq!(GateConfig::default().check(), Ok(()));
    assert_eq!(GateConfig::llm_d().check(), Ok(()));
    let wrong = GateConfig {
        own_limit: 0,
        usage_limit: UsageLimit::PriorityHoldback {
            shape: Shape::Linear,
            domain: CeilingDomain::Rank,
            min_ceiling: 0.9,
            max_ceiling: 0.5,
        },
        detector: Detector::Headroom(Headroom {
            kv_cache_util_threshold: f64::NAN,
            queue_depth_threshold: 0.0,
        }),
        ..GateConfig::default()
    };
    assert_eq!(wrong.check().unwrap_err().faults.len(), 4);
}

#[test]
fn without_queues_only_sheddable_requests_are_refused() {
    let refused = Err(crate::Outcome::RejectedSaturated);
    assert_eq!(without_queues(-1, Some(1.0)), refused);
    assert_eq!(without_queues(-1, Some(0.99)), Ok(()));
    assert_eq!(without_queues(0, Some(9.0)), Ok(()));
    assert_eq!(without_queues(-1, None), Ok(()));
}
