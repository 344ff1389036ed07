//! Guards give back, whatever happens to the request that holds them.

use std::sync::Arc;

use wicketgate_pool::{
    Delta, Ended, FlowControl, PoolConfig, Request, RequestId,
    admission::{
        AdmissionConfig, EvictionConfig, Outcome,
        gate::{Concurrency, Detector, GateConfig},
    },
    scheduler::{EndpointSpec, Incarnation, NoPrefix, SchedulerPolicy, SchedulerSpec},
};

use super::*;

fn shell() -> Arc<PoolShell> {
    shell_of(1_000_000, AdmissionConfig::default())
}

/// So many requests at once on each endpoint.
fn shell_of(most: u64, admission: AdmissionConfig) -> Arc<PoolShell> {
    let detector = Detector::Concurrency(Concurrency {
        max_concurrency: most,
        ..Concurrency::default()
    });
    let gate = GateConfig {
        detector,
        ..GateConfig::default()
    };
    let config = Arc::new(PoolConfig {
        name: "main".into(),
        scheduler: SchedulerSpec::default_ours(),
        policy: SchedulerPolicy::default(),
        flow: FlowControl {
            enabled: true,
            admission,
            gate,
        },
        record_decisions: true,
    });
    PoolShell::new(Clock::start(), config, 1, Box::new(NoPrefix), None, 2).unwrap()
}

fn join(shell: &Arc<PoolShell>, id: u64) {
    let address = format!("10.0.0.{id}:8000");
    shell.change_endpoints(Delta {
        join: vec![(
            Incarnation(id),
            EndpointSpec::new(address.as_str(), address.as_str()),
        )],
        ..Delta::default()
    });
}

fn arrive(shell: &Arc<PoolShell>, id: u64) -> Verdict {
    let request = Request {
        id: RequestId(id),
        ..Request::default()
    };
    match shell.arrive(request) {
        Arrival::Now(verdict) => verdict,
        Arrival::Later(_) => panic!("it waits"),
    }
}

fn dispatched(verdict: Verdict) -> InFlight {
    match verdict {
        Verdict::Dispatched(_, guard) => guard,
        Verdict::Refused { why, .. } => panic!("{why:?}"),
    }
}

#[test]
fn a_dropped_guard_ends_its_request_once() {
    let shell = shell();
    join(&shell, 1);
    let guard = dispatched(arrive(&shell, 1));
    assert_eq!(shell.held().running, 1);
    drop(guard);
    let other = dispatched(arrive(&shell, 2));
    other.end(Ended::Complete(200), None);
    let held = shell.held();
    assert_eq!(
        (held.running, held.totals.ended, held.totals.unknown),
        (0, 2, 0)
    );
}

#[test]
fn a_panic_gives_back_too() {
    let shell = shell();
    join(&shell, 1);
    let inner = Arc::clone(&shell);
    let panicked = std::thread::spawn(move || {
        let _guard = dispatched(arrive(&inner, 1));
        panic!("as planned");
    });
    assert!(panicked.join().is_err());
    assert_eq!(shell.held().running, 0);
}

fn later(shell: &Arc<PoolShell>, request: Request) -> Waiting {
    match shell.arrive(request) {
        Arrival::Later(waiting) => waiting,
        Arrival::Now(_) => panic!("it does not wait"),
    }
}

fn numbered(id: u64) -> Request {
    Request {
        id: RequestId(id),
        ..Request::default()
    }
}

#[tokio::test]
async fn who_waits_hears_of_the_place_and_holds_its_count() {
    let shell = shell_of(1, AdmissionConfig::default());
    join(&shell, 1);
    let first = dispatched(arrive(&shell, 1));
    let second = later(&shell, numbered(2));
    let gone = later(&shell, numbered(3));
    assert_eq!((shell.held().running, shell.held().waiting), (1, 2));
    drop(gone);
    assert_eq!(
        shell.held().waiting,
        1,
        "a caller that hangs up leaves at once"
    );
    drop(first);
    let second = dispatched(second.await);
    assert_eq!((shell.held().running, shell.held().waiting), (1, 0));
    assert!(second.waited() > 0);
    drop(second);
    let held = shell.held();
    assert_eq!((held.running, held.totals.cancelled), (0, 1));
}

/// The verdict was on its way when the caller left: the place goes to the next.
#[tokio::test]
async fn a_place_that_nobody_takes_is_given_back() {
    let shell = shell_of(1, AdmissionConfig::default());
    join(&shell, 1);
    let first = dispatched(arrive(&shell, 1));
    let second = later(&shell, numbered(2));
    let third = later(&shell, numbered(3));
    drop(first);
    drop(second);
    drop(dispatched(third.await));
    let held = shell.held();
    assert_eq!((held.running, held.waiting, held.totals.ended), (0, 0, 3));
    assert_eq!(shell.view(Pool::check), Ok(()));
}

#[tokio::test]
async fn the_timer_ends_waits() {
    let shell = shell_of(1, AdmissionConfig::default());
    let timer = tokio::spawn(Arc::clone(&shell).run_timer());
    let waiting = Request {
        ttl: Some(20_000_000),
        ..numbered(1)
    };
    match later(&shell, waiting).await {
        Verdict::Refused { why, .. } => assert_eq!(why, Outcome::EvictedNoEndpoints),
        Verdict::Dispatched(..) => panic!("there is no endpoint"),
    }
    timer.abort();
    assert_eq!(shell.held().waiting, 0);
}

#[tokio::test]
async fn a_victim_hears_of_its_eviction() {
    let eviction = EvictionConfig {
        enabled: true,
        ..EvictionConfig::default()
    };
    let shell = shell_of(
        1,
        AdmissionConfig {
            eviction,
            ..AdmissionConfig::default()
        },
    );
    join(&shell, 1);
    let batch = Request {
        priority: -1,
        ..numbered(1)
    };
    let Arrival::Now(verdict) = shell.arrive(batch) else {
        panic!("it waits");
    };
    let mut victim = dispatched(verdict);
    let urgent = Request {
        priority: 1,
        ..numbered(2)
    };
    let urgent = later(&shell, urgent);
    std::future::poll_fn(|context| victim.poll_evicted(context)).await;
    victim.end(Ended::Evicted, None);
    let mut urgent = dispatched(urgent.await);
    let quiet = std::future::poll_fn(|context| urgent.poll_evicted(context));
    let quiet = tokio::time::timeout(std::time::Duration::from_millis(5), quiet).await;
    assert!(quiet.is_err(), "what is urgent is not evicted");
}

#[test]
fn an_address_names_its_present_life() {
    let shell = shell();
    join(&shell, 1);
    assert_eq!(shell.at_address("10.0.0.1:8000"), Some(Incarnation(1)));
    shell.change_endpoints(Delta {
        leave: vec![Incarnation(1)],
        ..Delta::default()
    });
    assert_eq!(shell.at_address("10.0.0.1:8000"), None);
}

#[test]
fn decision_records_are_kept_up_to_their_bound() {
    let shell = shell();
    join(&shell, 1);
    for id in 1..=5 {
        drop(arrive(&shell, id));
    }
    assert_eq!(shell.records().len(), 2);
}

/// Many threads at once: what was counted is given back, and the pool's own invariants hold.
#[test]
fn threads_leave_nothing_behind() {
    let shell = shell();
    join(&shell, 1);
    join(&shell, 2);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let shell = &shell;
            scope.spawn(move || {
                for round in 0..500 {
                    let guard = dispatched(arrive(shell, thread * 1000 + round));
                    match round % 4 {
                        0 => guard.first_token(),
                        1 => guard.served(Incarnation(1 + round % 2)),
                        2 => guard.failed(Incarnation(1), false),
                        _ => {}
                    }
                }
            });
        }
    });
    let held = shell.held();
    assert_eq!(
        (held.running, held.totals.dispatched, held.totals.ended),
        (0, 2000, 2000)
    );
    assert_eq!(shell.view(Pool::check), Ok(()));
}

/// C16: a deadline that fires while a request enters ends it like one that fires later: one outcome, the same status,
/// none of them ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn deadlines_race_with_arrivals() {
    let shell = shell_of(1, AdmissionConfig::default());
    join(&shell, 1);
    let holds = dispatched(arrive(&shell, 1));
    let timer = tokio::spawn(Arc::clone(&shell).run_timer());
    let mut callers = Vec::new();
    for caller in 1..=4_u64 {
        let shell = Arc::clone(&shell);
        callers.push(tokio::spawn(async move {
            let mut rng = fastrand::Rng::with_seed(caller);
            for round in 0..2500 {
                let request = Request {
                    ttl: Some(rng.u64(1..60_000)),
                    ..numbered(caller * 10_000 + round)
                };
                let verdict = match shell.arrive(request) {
                    Arrival::Now(verdict) => verdict,
                    Arrival::Later(waiting) => waiting.await,
                };
                match verdict {
                    Verdict::Refused { why, .. } => assert_eq!(why, Outcome::EvictedTtl),
                    Verdict::Dispatched(..) => panic!("the only place is taken"),
                }
            }
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
    timer.abort();
    drop(holds);
    let held = shell.held();
    assert_eq!((held.running, held.waiting), (0, 0));
    assert_eq!((held.totals.refused, held.totals.cancelled), (10_000, 0));
    assert_eq!(shell.view(Pool::check), Ok(()));
}
