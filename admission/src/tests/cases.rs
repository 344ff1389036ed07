//! Field cases: inputs that broke systems like ours, and the right answers.

use super::rig::{alike, drained, expired, item, ms, open, put, queues, shut, strict};
use crate::{
    Admission, AdmissionConfig, BandConfig, Cost, Dispatch, Item, Limits, NoEndpoints, Outcome,
    SECOND, Starvation, Turn, Wait,
    gate::{Answer, Ask},
    headers,
};

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
