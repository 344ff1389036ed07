//! The breaker against a plain model that keeps everything.

use proptest::{collection::vec, prelude::*};

use super::*;

fn policy() -> HealthPolicy {
    HealthPolicy::default()
}

fn fail(health: &mut Health, at: Nanos, times: u32) {
    for _ in 0..times {
        health.record(at, false, &policy());
    }
}

#[test]
fn five_failures_within_the_window_eject() {
    let mut health = Health::default();
    fail(&mut health, SECOND, 4);
    assert_eq!(health.available(SECOND, &policy()), Availability::Yes);
    fail(&mut health, SECOND, 1);
    let until = 6 * SECOND;
    assert_eq!(
        health.available(SECOND, &policy()),
        Availability::No { until }
    );
}

#[test]
fn failures_that_are_far_apart_do_not() {
    let mut health = Health::default();
    for i in 0..50 {
        fail(&mut health, i * 16 * SECOND, 1);
        let now = i * 16 * SECOND;
        assert_eq!(health.available(now, &policy()), Availability::Yes);
    }
}

#[test]
fn few_failures_among_much_work_do_not() {
    let mut health = Health::default();
    for i in 0..2_000_u64 {
        // One in twenty fails, a hundred per second.
        health.record(i * SECOND / 100, i % 20 != 0, &policy());
    }
    assert_eq!(health.available(20 * SECOND, &policy()), Availability::Yes);
    fail(&mut health, 20 * SECOND, 5);
    assert_ne!(health.available(20 * SECOND, &policy()), Availability::Yes);
}

#[test]
fn the_cool_down_doubles_up_to_its_cap_and_is_forgotten_after_a_good_time() {
    let mut health = Health::default();
    let mut now = 0;
    fail(&mut health, now, 5);
    for length in [5, 10, 20, 40, 80, 120, 120] {
        let until = now + length * SECOND;
        assert_eq!(health.available(now, &policy()), Availability::No { until });
        assert_eq!(health.available(until, &policy()), Availability::Probe);
        now = until;
        health.on_dispatch(now);
        fail(&mut health, now, 1);
    }
    now += 120 * SECOND;
    health.on_dispatch(now);
    health.record(now, true, &policy());
    assert_eq!(health.available(now, &policy()), Availability::Yes);
    assert_eq!(health.recovered(), Some(now));
    // Failing again at once goes on where it stopped.
    fail(&mut health, now, 5);
    let until = now + 120 * SECOND;
    assert_eq!(health.available(now, &policy()), Availability::No { until });
    health.record(until, true, &policy());
    now = until + 61 * SECOND;
    fail(&mut health, now, 5);
    let until = now + 5 * SECOND;
    assert_eq!(health.available(now, &policy()), Availability::No { until });
}

#[test]
fn half_open_admits_one_probe_at_a_time() {
    let mut health = Health::default();
    fail(&mut health, 0, 5);
    // A dispatch by another way during the cool-down is no probe.
    health.on_dispatch(SECOND);
    let now = 5 * SECOND;
    assert_eq!(health.available(now, &policy()), Availability::Probe);
    health.on_dispatch(now);
    let until = now + 5 * SECOND;
    assert_eq!(health.available(now, &policy()), Availability::No { until });
    health.abandon();
    assert_eq!(health.available(now, &policy()), Availability::Probe);
    health.on_dispatch(now);
    health.record(now, true, &policy());
    assert_eq!(health.available(now, &policy()), Availability::Yes);
}

#[test]
fn a_limit_of_zero_never_ejects() {
    let never = HealthPolicy {
        failures: 0,
        ..policy()
    };
    let mut health = Health::default();
    for _ in 0..100 {
        health.record(0, false, &never);
    }
    assert_eq!(health.available(0, &never), Availability::Yes);
}

/// Everything that happened since the endpoint was last closed, judged anew at each failure.
#[derive(Default)]
struct Model {
    outcomes: Vec<(Nanos, bool)>,
    ejected: Option<(Nanos, bool)>,
    strikes: u32,
    recovered: Option<Nanos>,
}

impl Model {
    fn record(&mut self, now: Nanos, ok: bool, policy: &HealthPolicy) {
        if let Some((until, _)) = self.ejected {
            if now < until {
                return;
            }
            if ok {
                self.ejected = None;
                self.recovered = Some(now);
                self.outcomes.clear();
            } else {
                self.strikes += 1;
                self.eject(now, policy);
            }
            return;
        }
        self.outcomes.push((now, ok));
        if ok {
            return;
        }
        let failures: Vec<_> = self
            .outcomes
            .iter()
            .enumerate()
            .filter(|(_, (_, ok))| !ok)
            .map(|(place, (at, _))| (place, *at))
            .collect();
        let Some(first) = failures.len().checked_sub(policy.failures as usize) else {
            return;
        };
        let (place, at) = failures[first];
        let span = self.outcomes.len() - place;
        let share = f64::from(policy.failures) / span as f64;
        if now - at <= policy.window && share >= policy.share {
            let lately = self.recovered.is_some_and(|r| now - r <= policy.window);
            self.strikes = if lately { self.strikes + 1 } else { 0 };
            self.eject(now, policy);
        }
    }

    fn eject(&mut self, now: Nanos, policy: &HealthPolicy) {
        let mut length = policy.cool_down;
        for _ in 0..self.strikes {
            length = (length * 2).min(policy.cool_down_cap);
        }
        self.ejected = Some((now + length, false));
    }

    fn available(&self, now: Nanos, policy: &HealthPolicy) -> Availability {
        match self.ejected {
            None => Availability::Yes,
            Some((until, _)) if now < until => Availability::No { until },
            Some((_, false)) => Availability::Probe,
            Some((_, true)) => Availability::No {
                until: now + policy.cool_down,
            },
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Wait(Nanos),
    Outcome(bool),
    Dispatch,
    Abandon,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..20_u64).prop_map(Step::Wait),
        1 => (0..200_u64).prop_map(Step::Wait),
        4 => any::<bool>().prop_map(Step::Outcome),
        2 => Just(Step::Outcome(false)),
        2 => Just(Step::Dispatch),
        1 => Just(Step::Abandon),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn it_agrees_with_the_model(
        steps in vec(step(), 0..120),
        failures in 1..5_u32,
        share in prop_oneof![Just(0.0), Just(0.3), Just(0.5), Just(1.0)],
    ) {
        let policy = HealthPolicy { failures, window: 60, share, cool_down: 7, cool_down_cap: 50 };
        let (mut health, mut model) = (Health::default(), Model::default());
        let mut now = 0;
        for step in steps {
            match step {
                Step::Wait(time) => now += time,
                Step::Outcome(ok) => {
                    health.record(now, ok, &policy);
                    model.record(now, ok, &policy);
                }
                Step::Dispatch => {
                    health.on_dispatch(now);
                    if let Some((until, probing)) = &mut model.ejected {
                        *probing |= now >= *until;
                    }
                }
                Step::Abandon => {
                    health.abandon();
                    if let Some((_, probing)) = &mut model.ejected {
                        *probing = false;
                    }
                }
            }
            prop_assert_eq!(health.available(now, &policy), model.available(now, &policy));
            prop_assert_eq!(health.recovered(), model.recovered);
        }
    }

    /// However requests come and end, at most one is under way between the cool-down and the answer.
    #[test]
    fn one_probe_is_under_way_at_most(ends in vec(prop::option::of(any::<bool>()), 0..60)) {
        let policy = HealthPolicy::default();
        let mut health = Health::default();
        let mut now = 0;
        fail(&mut health, now, 5);
        for end in ends {
            if let Availability::No { until } = health.available(now, &policy) {
                now = until;
            }
            if health.available(now, &policy) != Availability::Probe {
                break;
            }
            health.on_dispatch(now);
            for _ in 0..3 {
                prop_assert_ne!(health.available(now, &policy), Availability::Probe);
                prop_assert_ne!(health.available(now, &policy), Availability::Yes);
            }
            match end {
                Some(ok) => health.record(now, ok, &policy),
                None => health.abandon(),
            }
        }
    }
}
