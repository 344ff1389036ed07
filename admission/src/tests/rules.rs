//! The rules one by one: bounds, displacement, classes, ceilings, eviction, reload, shutdown, gauges.

use super::rig::{alike, drained, expired, fair, item, ms, open, put, queues, strict};
use crate::{
    Admission, AdmissionConfig, BandConfig, ClassId, Cost, EvictionConfig, Fairness, FairnessId,
    Item, Limits, Nanos, Outcome, Pressure, SECOND, Starvation, Turn,
    gate::{Answer, Ask},
};

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

/// Who holds nothing of what there is too much of is left alone: one large old waiter goes, not sixty small new ones.
#[test]
fn nobody_gives_way_in_vain() {
    let mut config = strict();
    config.limits.max_bytes = Some(500);
    config.max_displaced = 2;
    let sized = |id, priority, bytes| Item {
        bytes,
        ..item(id, priority, "a")
    };
    let mut q = queues(config);
    put(&mut q, 0, sized(1, 0, 500)).unwrap();
    for id in 2..=60 {
        put(&mut q, 0, sized(id, 0, 0)).unwrap();
    }
    let mut displaced = Vec::new();
    assert_eq!(q.enqueue(0, sized(61, 10, 10), &mut displaced), Ok(()));
    assert_eq!(displaced, [(1, Outcome::EvictedPriority)]);
    q.audit().unwrap();
    // How many are passed by is bounded.
    let mut config = strict();
    config.limits.max_bytes = Some(500);
    let mut q = queues(config);
    put(&mut q, 0, sized(1, 0, 500)).unwrap();
    for id in 2..=1000 {
        put(&mut q, 0, sized(id, 0, 0)).unwrap();
    }
    let refused = q.enqueue(0, sized(1001, 10, 10), &mut displaced);
    assert_eq!(
        (refused, displaced.len()),
        (Err(Outcome::RejectedSaturated), 1)
    );
    q.audit().unwrap();
}

/// In a band that it shares with lower ones a request is no more sheddable than it asked to be, before a reload that turns
/// eviction on as after it.
#[test]
fn a_shared_band_makes_nobody_sheddable() {
    let mut config = strict();
    config.max_bands = 2;
    config.eviction.enabled = true;
    let mut off = config.clone();
    off.eviction.enabled = false;
    for first in [config.clone(), off] {
        let mut q = queues(first);
        for (id, priority) in [(1, 5), (2, -10), (3, 3), (4, -11)] {
            put(&mut q, 0, item(id, priority, "a")).unwrap();
        }
        assert_eq!(drained(&mut q, 0).len(), 4);
        q.reconfigure(config.clone(), &mut Vec::new()).unwrap();
        let pressure = crate::Pressure {
            blocked: 5,
            saturation: 2.0,
            ceiling: 1.0,
            running: 4,
        };
        let mut asked = Vec::new();
        q.evict(0, &pressure, &mut |id| {
            asked.push(id);
            false
        });
        asked.sort_unstable();
        assert_eq!(asked, [2, 4], "3 asked for a band above 0");
        q.audit().unwrap();
    }
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

/// Numbers from outside may be absurd; nothing overflows and everybody else is served.
#[test]
fn absurd_numbers_do_no_harm() {
    for fairness in ["global-strict", "round-robin", "drr", "vtc"] {
        let mut band = fair(Fairness::from_name(fairness).unwrap());
        band.limits = Limits::default();
        let mut config = alike(&band, Starvation::from_name("aging").unwrap());
        config.limits = Limits::default();
        let mut q = queues(config);
        for id in 0..50 {
            let absurd = Item {
                bytes: u64::MAX,
                weight: [f64::INFINITY, f64::MIN_POSITIVE, f64::NAN][id as usize % 3],
                cost: Cost {
                    uncached_input: u64::MAX,
                    output: u64::MAX,
                },
                arrived: Nanos::MAX,
                ttl: Some(Nanos::MAX),
                deadline: Some(Nanos::MAX),
                slo_ttft: Some(Nanos::MAX),
                ..item(
                    id,
                    [0, -3][id as usize % 2],
                    ["a", "b", "c"][id as usize % 3],
                )
            };
            put(&mut q, SECOND, absurd).unwrap();
        }
        put(&mut q, SECOND, item(99, 0, "d")).unwrap();
        let order = drained(&mut q, 60 * SECOND);
        assert_eq!(order.len(), 51);
        let place = order.iter().position(|id| *id == 99).unwrap();
        assert!(
            fairness == "global-strict" || place <= 4,
            "{fairness}: {place}"
        );
        let used = Cost {
            uncached_input: u64::MAX,
            output: 1,
        };
        for id in order {
            assert!(q.complete(Nanos::MAX, id, used));
        }
        q.audit().unwrap();
    }
}
