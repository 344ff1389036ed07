//! Field cases: inputs that broke systems like ours, and the right answers.

use super::rig::{alike, fair, item, ms, open, shut};
use crate::{
    Admission, AdmissionConfig, BandConfig, ClassId, Cost, Dispatch, Ended, EvictionConfig,
    Fairness, FairnessId, Item, Limits, NoEndpoints, Outcome, Pressure, SECOND, Starvation, Turn,
    Wait,
    gate::{Answer, Ask},
    headers,
};

fn queues(config: AdmissionConfig) -> Admission {
    let mut queues = Admission::new(config).unwrap();
    queues.pool_state(0, 1);
    queues
}

fn strict() -> AdmissionConfig {
    alike(&BandConfig::default(), Starvation::Strict)
}

fn put(queues: &mut Admission, now: u64, item: Item) -> Result<(), Outcome> {
    let mut displaced = Vec::new();
    let entered = queues.enqueue(now, item, &mut displaced);
    assert_eq!(displaced, [], "nobody gives way here");
    queues.audit().unwrap();
    entered
}

fn expired(queues: &mut Admission, now: u64) -> Vec<Ended> {
    let mut out = Vec::new();
    queues.expire(now, &mut out);
    queues.audit().unwrap();
    out
}

fn drained(queues: &mut Admission, now: u64) -> Vec<u64> {
    std::iter::from_fn(|| queues.next(now, &mut open).map(|d| d.id)).collect()
}

/// C16: the same end before and after entering the queue; a hang-up is nobody's fault; the end is set once.
#[test]
fn ends_are_the_same_before_and_after_entering() {
    let mut q = queues(strict());
    let late = |id, deadline| Item {
        deadline: Some(deadline),
        ..item(id, 0, "a")
    };
    assert_eq!(put(&mut q, ms(5), late(1, ms(5))), Err(Outcome::EvictedTtl));
    assert_eq!(put(&mut q, ms(5), late(2, ms(6))), Ok(()));
    assert_eq!(q.wake_at(), Some(ms(6)));
    assert_eq!(expired(&mut q, ms(6) - 1), []);
    assert_eq!(expired(&mut q, ms(6)), [(2, Outcome::EvictedTtl)]);
    assert!(!q.cancel(2), "its end is set");
    put(&mut q, ms(6), item(3, 0, "a")).unwrap();
    assert!(q.cancel(3) && !q.cancel(3));
    assert_eq!(q.totals().of(Outcome::EvictedCancelled), 1);
    assert_eq!(Outcome::EvictedCancelled.status(), None);
    // Whatever the order of entry, deadline, hang-up and dispatch: one end each, and none is 5xx.
    for n in 0..10_000_u64 {
        let id = 10 + n;
        let now = ms(10) + n * 10;
        let entered = put(&mut q, now, late(id, now + n % 3)).is_ok();
        let at = now + n % 5;
        let dispatched = (n % 2 == 0)
            .then(|| q.next(at, &mut open))
            .flatten()
            .is_some();
        let ended = expired(&mut q, at);
        let cancelled = q.cancel(id);
        let ends = [
            !entered,
            dispatched,
            ended == [(id, Outcome::EvictedTtl)],
            cancelled,
        ];
        assert_eq!(ends.iter().filter(|end| **end).count(), 1, "{n}: {ends:?}");
        if dispatched {
            assert!(n % 5 < n % 3, "never at or after the deadline");
            q.complete(at, id, Cost::default());
        }
    }
    let internal = q.totals().of(Outcome::Internal);
    assert_eq!((internal, q.waiting(), q.running()), (0, 0, 0));
    assert_eq!(put(&mut q, SECOND, item(1, 0, "a")), Ok(()));
    assert_eq!(put(&mut q, SECOND, item(1, 0, "a")), Err(Outcome::Internal));
    assert_eq!(q.waiting(), 1);
}

/// C17: without any configuration the queue stops at the default count, and a wait only gets shorter.
#[test]
fn waiting_is_bounded_by_default() {
    let mut q = queues(AdmissionConfig::default());
    let mut refused = 0;
    for id in 0..10_000 {
        if let Err(outcome) = q.enqueue(0, item(id, 0, "a"), &mut Vec::new()) {
            assert_eq!(outcome, Outcome::RejectedSaturated);
            assert_eq!(outcome.status(), Some(429));
            refused += 1;
        }
    }
    assert_eq!((q.waiting(), refused), (5000, 5000));
    assert_eq!(q.next(0, &mut shut), None);
    assert_eq!(q.wake_at(), Some(60 * SECOND));

    let band = BandConfig {
        ttl: Wait::AtMost(8 * SECOND),
        ..BandConfig::default()
    };
    for (header, end) in [
        ("3s", 3),
        ("1h", 8),
        ("-1s", 8),
        ("abc", 8),
        ("NaN", 8),
        ("0s", 8),
    ] {
        let mut q = queues(alike(&band, Starvation::Strict));
        let with_ttl = Item {
            ttl: headers::ttl(header).ok(),
            ..item(1, 0, "a")
        };
        put(&mut q, 0, with_ttl).unwrap();
        assert_eq!(q.wake_at(), Some(end * SECOND), "{header}");
        assert_eq!(expired(&mut q, end * SECOND - 1), []);
        assert_eq!(expired(&mut q, end * SECOND), [(1, Outcome::EvictedTtl)]);
    }
    // An explicit zero is not an absent value.
    let band = BandConfig {
        ttl: Wait::Unlimited,
        limits: Limits {
            max_requests: Some(0),
            ..Limits::default()
        },
        ..BandConfig::default()
    };
    let mut q = queues(alike(&band, Starvation::Strict));
    assert_eq!(
        put(&mut q, 0, item(1, 0, "a")),
        Err(Outcome::RejectedSaturated)
    );
}

/// C18: only an end releases a place; eleven minutes of silence do not.
#[test]
fn long_requests_keep_their_places() {
    let mut q = queues(strict());
    let limited = |q: &mut Admission, now| {
        let running = q.running();
        let gate = move |_: &Ask| match running < 4 {
            true => Answer::Start,
            false => Answer::NotNow,
        };
        q.next(now, &mut { gate })
    };
    for id in 0..4 {
        put(&mut q, 0, item(id, 0, "a")).unwrap();
        assert!(limited(&mut q, 0).is_some());
    }
    let later = 600 * SECOND;
    for id in 4..14 {
        put(&mut q, later, item(id, 0, "a")).unwrap();
        q.capacity_changed(None);
        assert_eq!(limited(&mut q, later), None);
    }
    assert!(q.complete(later, 0, Cost::default()));
    assert!(!q.complete(later, 0, Cost::default()), "an end counts once");
    q.capacity_changed(None);
    assert_eq!(limited(&mut q, later).map(|d| d.id), Some(4));
    assert_eq!(limited(&mut q, later), None);
}

/// Ten dispatches a second for a minute; band 10 offers twenty a second, band -10 one.
fn minute(starvation: Starvation) -> Vec<Dispatch> {
    let mut q = queues(alike(&BandConfig::default(), starvation));
    let mut out = Vec::new();
    for tenth in 0..600_u64 {
        let now = tenth * SECOND / 10;
        put(&mut q, now, item(tenth * 10, 10, "a")).unwrap();
        put(&mut q, now, item(tenth * 10 + 1, 10, "a")).unwrap();
        if tenth % 10 == 0 {
            put(&mut q, now, item(tenth * 10 + 2, -10, "b")).unwrap();
        }
        expired(&mut q, now);
        q.capacity_changed(None);
        let dispatch = q.next(now, &mut open).unwrap();
        q.complete(now, dispatch.id, item(0, 0, "").cost);
        out.push(dispatch);
    }
    out
}

/// C21 and T07: the low band gets what its policy declares.
#[test]
fn low_bands_get_what_is_declared() {
    let low = |all: &[Dispatch]| -> Vec<Dispatch> {
        all.iter().filter(|d| d.priority == -10).copied().collect()
    };
    let window = 10 * SECOND;
    let floor = |share| low(&minute(Starvation::Floor { share, window }));
    let got = floor(0.05);
    assert_eq!(got.len(), 30, "5 % of 600");
    // INV-Q9: the k-th waits for k + 2 costs at 5 % of ten a second, less its own time of entry.
    for (k, dispatch) in (0_u64..).zip(&got) {
        let bound = (k + 2) * 20 * SECOND / 10 - k * SECOND;
        assert!(dispatch.waited <= bound, "{k}: {dispatch:?}");
    }
    assert_eq!(floor(0.0), [], "strict by choice");
    assert_eq!(low(&minute(Starvation::Strict)), []);
    let aging = low(&minute(Starvation::Aging {
        after: 10 * SECOND,
        share: 0.2,
    }));
    // The share is larger than the offered load: nobody waits longer than the bound and one turn.
    assert_eq!(aging.len(), 50);
    for dispatch in &aging {
        assert_eq!(dispatch.turn, Turn::Aged);
        assert!((10 * SECOND..=10 * SECOND + SECOND / 2).contains(&dispatch.waited));
    }
}

/// C23: no endpoints: hold under an own budget, count, refuse with 503, release by policy and paced.
#[test]
fn an_empty_pool_holds_and_releases() {
    let mut config = strict();
    config.bands = vec![(10, BandConfig::default()), (0, BandConfig::default())];
    config.no_endpoints = NoEndpoints {
        ttl: Wait::AtMost(30 * SECOND),
        limits: Limits {
            max_requests: Some(3),
            ..Limits::default()
        },
        release_interval: ms(20),
        ..NoEndpoints::default()
    };
    let fresh = || {
        let mut q = Admission::new(config.clone()).unwrap();
        let depths: Vec<u64> = q.bands(0).map(|b| b.requests).collect();
        assert_eq!(depths, [0, 0], "the gauge is there before anything waits");
        for (id, priority) in [(1, 0), (2, 10), (3, 0)] {
            put(&mut q, 0, item(id, priority, "a")).unwrap();
        }
        assert_eq!(q.used().0, 3);
        assert_eq!(
            put(&mut q, 0, item(4, 0, "a")),
            Err(Outcome::RejectedNoEndpoints)
        );
        assert_eq!(Outcome::RejectedNoEndpoints.status(), Some(503));
        assert_eq!(q.next(SECOND, &mut open), None);
        q
    };
    let mut q = fresh();
    q.pool_state(5 * SECOND, 1);
    assert_eq!(q.next(5 * SECOND, &mut shut), None, "not yet read");
    let mut now = 6 * SECOND;
    q.capacity_changed(None);
    let mut order = Vec::new();
    while q.waiting() > 0 {
        order.extend(drained(&mut q, now));
        assert!(
            order.len() as u64 <= 1 + (now - 6 * SECOND) / ms(20),
            "paced"
        );
        now = q.wake_at().unwrap_or(now);
    }
    assert_eq!((order, now), (vec![2, 1, 3], 6 * SECOND + ms(40)));
    // Nobody comes: 503 for all, exactly then.
    let mut q = fresh();
    assert_eq!(q.wake_at(), Some(30 * SECOND));
    let all = expired(&mut q, 30 * SECOND);
    let none = Outcome::EvictedNoEndpoints;
    assert_eq!(all, [(1, none), (2, none), (3, none)]);
    assert_eq!((none.status(), q.used().0), (Some(503), 0));
    // The other regime's budget starts when the pool changes, and the caller's own limits do not.
    let mut q = fresh();
    q.pool_state(29 * SECOND, 1);
    assert_eq!(q.next(29 * SECOND, &mut shut), None);
    assert_eq!(q.wake_at(), Some(89 * SECOND));
    let mut refuse = config.clone();
    refuse.no_endpoints.hold = false;
    let mut q = Admission::new(refuse).unwrap();
    assert_eq!(
        put(&mut q, 0, item(1, 0, "a")),
        Err(Outcome::RejectedNoEndpoints)
    );
}

/// A million fairness ids: bounded flows, then one shared flow, counted; idle flows give way first.
#[test]
fn a_million_fairness_ids_are_bounded() {
    let mut config = alike(&fair(Fairness::Vtc { max_lag: 1 }), Starvation::Strict);
    config.max_flows = 100;
    config.limits = Limits::default();
    config.default_band.limits = Limits::default();
    let mut q = queues(config);
    for id in 0..1000 {
        put_fast(
            &mut q,
            Item {
                fairness: FairnessId::new(format!("waits-{id}")),
                ..item(id, 0, "")
            },
        );
    }
    assert_eq!(q.totals().flows_shared, 900);
    assert_eq!(q.flows().count(), 101);
    let overflow = q
        .flows()
        .find(|f| f.fairness.as_str() == "overflow")
        .unwrap();
    assert_eq!((overflow.requests, overflow.running), (900, 0));
    q.audit().unwrap();
    // The shared flow has one share: with 100 others it is not a way around fairness.
    let first: Vec<u64> = (0..101)
        .filter_map(|_| q.next(0, &mut open))
        .map(|d| d.id)
        .collect();
    assert_eq!(first.iter().filter(|id| **id >= 100).count(), 1);
    for id in 0..1000 {
        q.cancel(id);
        q.complete(0, id, Cost::default());
    }
    for id in 1000..1_001_000 {
        put_fast(
            &mut q,
            Item {
                fairness: FairnessId::new(format!("once-{id}")),
                ..item(id, 0, "")
            },
        );
        assert!(q.cancel(id));
    }
    assert_eq!(q.totals().flows_shared, 900, "idle flows made room");
    q.audit().unwrap();
}

fn put_fast(q: &mut Admission, item: Item) {
    assert_eq!(q.enqueue(0, item, &mut Vec::new()), Ok(()));
}

/// Any priority at all: bounded bands, and nobody is promoted.
#[test]
fn too_many_bands_never_promote() {
    let mut config = strict();
    config.max_bands = 3;
    let mut q = queues(config);
    for (id, priority) in [
        (1, 5),
        (2, i32::MAX),
        (3, -7),
        (4, 100),
        (5, -8),
        (6, i32::MIN),
    ] {
        put(&mut q, 0, item(id, priority, "a")).unwrap();
    }
    assert_eq!(q.priorities(), [i32::MAX, 5, -7, i32::MIN]);
    assert_eq!(q.totals().bands_shared, 2, "100 and -8");
    assert_eq!(drained(&mut q, 0), [2, 1, 4, 3, 5, 6]);
}

/// When the pool's bounds are reached the newest of the lowest band gives way, never an equal, never for nothing.
#[test]
fn lower_waiters_give_way() {
    let mut config = strict();
    config.limits.max_bytes = Some(500);
    config.max_displaced = 2;
    let mut q = queues(config);
    for (id, priority) in [(1, 0), (2, -5), (3, -5), (4, -9), (5, 0)] {
        put(&mut q, 0, item(id, priority, "a")).unwrap();
    }
    assert_eq!(
        put(&mut q, 0, item(6, -9, "a")),
        Err(Outcome::RejectedSaturated)
    );
    let large = |id, bytes| Item {
        bytes,
        ..item(id, 10, "a")
    };
    let mut displaced = Vec::new();
    assert_eq!(q.enqueue(0, large(7, 200), &mut displaced), Ok(()));
    let gone = Outcome::EvictedPriority;
    assert_eq!(displaced, [(4, gone), (3, gone)]);
    assert_eq!(gone.drop_reason(), Some("evicted-priority"));
    displaced.clear();
    let refused = q.enqueue(0, large(8, 300), &mut displaced);
    assert_eq!(
        (refused, &displaced[..]),
        (Err(Outcome::RejectedSaturated), &[][..])
    );
    assert_eq!(drained(&mut q, 0), [7, 1, 5, 2]);
    q.audit().unwrap();
}

/// A class that does not fit is skipped and blocks nobody else; it is asked about again when its capacity changed, or
/// when the request that was refused has gone.
#[test]
fn a_class_that_does_not_fit_blocks_nobody_else() {
    let mut q = queues(strict());
    let of = |id, priority, class| Item {
        class: ClassId(class),
        ..item(id, priority, "a")
    };
    for request in [of(1, 10, 0), of(2, 10, 1), of(3, 0, 0), of(4, 0, 1)] {
        put(&mut q, 0, request).unwrap();
    }
    let mut asked = Vec::new();
    let mut gate = |ask: &Ask| {
        asked.push(ask.id);
        match ask.class {
            ClassId(0) => Answer::NotNow,
            ClassId(_) => Answer::Start,
        }
    };
    assert_eq!(q.next(0, &mut gate).map(|d| d.id), Some(2));
    assert_eq!(q.next(0, &mut gate).map(|d| d.id), Some(4));
    assert_eq!(q.next(0, &mut gate), None);
    assert_eq!(asked, [1, 2, 4], "refused once, and 3 is of the same class");
    assert_eq!(q.blocked_priority(), Some(10));
    q.capacity_changed(Some(ClassId(1)));
    assert_eq!(q.next(0, &mut open), None, "capacity of another class");
    assert!(q.cancel(1));
    assert_eq!(drained(&mut q, 0), [3], "what was refused has gone");
    put(&mut q, 0, of(5, 0, 0)).unwrap();
    assert_eq!(q.next(0, &mut |_: &Ask| Answer::Closed), None);
    assert_eq!(q.next(0, &mut open), None);
    assert_eq!(q.blocked_priority(), Some(0));
    q.capacity_changed(None);
    assert_eq!(drained(&mut q, 0), [5]);
}

/// Aging raises the ceiling too: with room held back for higher bands, a low band is not shut out for ever.
#[test]
fn an_old_request_is_tried_at_the_top_ceiling() {
    let mut config = alike(
        &BandConfig::default(),
        Starvation::Aging {
            after: SECOND,
            share: 0.5,
        },
    );
    config.bands = vec![(10, BandConfig::default())];
    let mut q = queues(config);
    put(&mut q, 0, item(1, -10, "a")).unwrap();
    let mut held_back = |ask: &Ask| match ask.ceiling_of {
        10 => Answer::Start,
        _ => Answer::NotNow,
    };
    assert_eq!(q.next(0, &mut held_back), None);
    assert_eq!(q.wake_at(), Some(SECOND), "nothing else would wake us");
    assert_eq!(q.next(SECOND - 1, &mut held_back), None);
    let dispatch = q.next(SECOND, &mut held_back).unwrap();
    assert_eq!((dispatch.id, dispatch.turn), (1, Turn::Aged));
}

/// Eviction: below the blocked band, below zero, newest first, few, and one decision at a time.
#[test]
fn eviction_is_bounded_and_confirmed() {
    let mut config = strict();
    config.eviction = EvictionConfig {
        enabled: true,
        ..EvictionConfig::default()
    };
    let mut q = queues(config);
    for (id, priority) in [(1, 0), (2, -5), (3, -5), (4, -9), (5, -5)] {
        put(&mut q, 0, item(id, priority, "a")).unwrap();
        assert!(q.next(0, &mut open).is_some());
    }
    let pressure = |blocked| Pressure {
        blocked,
        saturation: 1.5,
        ceiling: 0.5,
        running: 6,
    };
    assert_eq!(q.evict(0, &pressure(-9), &mut |_| true), [0; 0]);
    assert_eq!(q.evict(0, &pressure(10), &mut |id| id != 5), [4, 3]);
    assert_eq!(
        q.evict(0, &pressure(10), &mut |_| true),
        [0; 0],
        "two are on their way out"
    );
    q.complete(ms(1), 4, Cost::default());
    assert_eq!(q.evict(ms(1), &pressure(10), &mut |_| true), [0; 0]);
    q.complete(ms(2), 3, Cost::default());
    assert_eq!(
        q.evict(ms(11), &pressure(10), &mut |_| true),
        [0; 0],
        "grace"
    );
    assert_eq!(q.evict(ms(12), &pressure(10), &mut |_| true), [5, 2]);
    assert_eq!(q.pending_evictions(), 2);
    assert_eq!(
        q.evict(ms(12) + 10 * SECOND, &pressure(10), &mut |_| true),
        [0; 0],
        "1 is not sheddable"
    );
    assert_eq!(q.totals().evicted, 4);
    assert_eq!(Outcome::EvictedRunning.drop_reason(), Some("evicted"));
}

/// A reload keeps entries, own limits and running requests; what no longer fits goes, lowest and newest first.
#[test]
fn a_reload_keeps_what_fits() {
    let mut q = queues(strict());
    put(&mut q, 0, item(1, 0, "a")).unwrap();
    assert!(q.next(0, &mut open).is_some());
    for (id, priority, flow) in [(2, 0, "a"), (3, 10, "b"), (4, 0, "c"), (5, -5, "a")] {
        let own = Item {
            ttl: (id == 2).then_some(3 * SECOND),
            ..item(id, priority, flow)
        };
        put(&mut q, ms(1), own).unwrap();
    }
    let mut config = alike(&fair(Fairness::Drr { quantum: 100 }), Starvation::Strict);
    config.limits.max_requests = Some(3);
    let mut out = Vec::new();
    let wrong = AdmissionConfig {
        max_flows: 0,
        ..config.clone()
    };
    assert!(q.reconfigure(wrong, &mut out).is_err() && q.waiting() == 4);
    q.reconfigure(config, &mut out).unwrap();
    q.audit().unwrap();
    assert_eq!(out, [(5, Outcome::EvictedQueuePressure)]);
    assert_eq!(q.running(), 1);
    assert!(q.complete(ms(2), 1, Cost::default()));
    assert_eq!(
        expired(&mut q, ms(1) + 3 * SECOND),
        [(2, Outcome::EvictedTtl)]
    );
    let next = q.next(4 * SECOND, &mut open).unwrap();
    assert_eq!((next.id, next.waited), (3, 4 * SECOND - ms(1)));
    assert_eq!(drained(&mut q, 4 * SECOND), [4]);
    q.audit().unwrap();
}

/// Shutting down: newcomers are refused; who waits is drained or refused by choice.
#[test]
fn closing_drains_or_refuses() {
    for drain in [true, false] {
        let mut q = queues(strict());
        put(&mut q, 0, item(1, 0, "a")).unwrap();
        put(&mut q, 0, item(2, 10, "a")).unwrap();
        let mut out = Vec::new();
        q.close(drain, &mut out);
        assert_eq!(
            put(&mut q, 0, item(3, 0, "a")),
            Err(Outcome::RejectedShuttingDown)
        );
        let went = drained(&mut q, 0);
        if drain {
            assert_eq!((went, out.len()), (vec![2, 1], 0));
        } else {
            let closed = Outcome::EvictedShuttingDown;
            assert_eq!((went, out), (vec![], vec![(1, closed), (2, closed)]));
        }
        q.audit().unwrap();
    }
}

/// Gauges and the hint for `Retry-After`.
#[test]
fn what_waits_can_be_seen() {
    let mut q = queues(strict());
    assert_eq!(q.wait_estimate(0), None);
    for id in 0..20 {
        put(&mut q, 0, item(id, if id < 5 { 10 } else { 0 }, "a")).unwrap();
    }
    for n in 0..10 {
        assert!(q.next(n * 800, &mut open).is_some());
    }
    let bands: Vec<_> = q.bands(ms(1)).collect();
    assert_eq!(
        (bands[0].priority, bands[0].requests, bands[0].running),
        (10, 0, 5)
    );
    assert_eq!(
        (bands[1].requests, bands[1].bytes, bands[1].tokens),
        (10, 1000, 1500)
    );
    assert_eq!(
        (bands[1].oldest, bands[1].longest_wait),
        (Some(ms(1)), 7200)
    );
    let (high, low) = (q.wait_estimate(10), q.wait_estimate(0));
    assert!(
        high.is_some_and(|high| low == Some(high * 11)),
        "{high:?} {low:?}"
    );
    let flow = q.flows().find(|f| f.priority == 0).unwrap();
    assert_eq!(
        (flow.fairness.as_str(), flow.requests, flow.running),
        ("a", 10, 5)
    );
}
