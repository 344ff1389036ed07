//! Guards give back, whatever happens to the request that holds them.

use std::sync::Arc;

use wicketgate_pool::{
    Delta, Ended, PoolConfig, Request, RequestId,
    scheduler::{EndpointSpec, Incarnation, NoPrefix, SchedulerPolicy, SchedulerSpec},
};

use super::*;

fn shell() -> Arc<PoolShell> {
    let config = Arc::new(PoolConfig {
        name: "main".into(),
        scheduler: SchedulerSpec::default_ours(),
        policy: SchedulerPolicy::default(),
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
        Arrival::Later(_) => panic!("nothing waits yet"),
    }
}

fn dispatched(verdict: Verdict) -> InFlight {
    match verdict {
        Verdict::Dispatched(_, guard) => guard,
        Verdict::Refused(why) => panic!("{why:?}"),
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

#[test]
fn an_empty_pool_refuses_and_holds_nothing() {
    let shell = shell();
    assert!(matches!(
        arrive(&shell, 1),
        Verdict::Refused(Refusal::NoEndpoints)
    ));
    assert_eq!(shell.held().running, 0);
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
