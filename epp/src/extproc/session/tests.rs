//! What a fault of ours may cost: one stream.

use http_body_util::Empty;
use tonic::codec::Codec as _;
use tonic_prost::ProstCodec;
use wicketgate_pool::{
    Delta, FlowControl, PoolConfig, Request, RequestId,
    scheduler::{EndpointSpec, Incarnation, NoPrefix, SchedulerPolicy, SchedulerSpec},
};

use super::*;
use crate::{clock::Clock, metrics::Metrics, pipeline::Routes};

fn parts() -> (Arc<Pipeline>, Arc<PoolShell>) {
    let config = Arc::new(PoolConfig {
        name: "main".into(),
        scheduler: SchedulerSpec::default_ours(),
        policy: SchedulerPolicy::default(),
        flow: FlowControl::disabled(),
        record_decisions: false,
    });
    let clock = Clock::start();
    let shell = PoolShell::new(clock, config, 1, Box::new(NoPrefix), None, 1).unwrap();
    shell.change_endpoints(Delta {
        join: vec![(Incarnation(1), EndpointSpec::new("a", "10.0.0.1:8000"))],
        ..Delta::default()
    });
    let settings = Settings {
        max_body: 1024,
        body_timeout: std::time::Duration::from_secs(1),
        decision_timeout: std::time::Duration::from_secs(1),
        plugin_headers: Vec::new(),
        session_header: None,
        trusted: None,
        weights: Arc::default(),
        access_log: false,
    };
    let metrics = Arc::new(Metrics::new());
    let pipeline = Pipeline::new(clock, settings, Routes::default(), metrics);
    (Arc::new(pipeline), shell)
}

fn session(pipeline: &Arc<Pipeline>) -> Session {
    let mut codec = ProstCodec::<ProcessingResponse, ProcessingRequest>::default();
    let nothing = Empty::<bytes::Bytes>::new();
    let inbound = Streaming::new_empty(codec.decoder(), nothing);
    Session::new(inbound, Arc::clone(pipeline))
}

/// C03: a panic gives the stream's request back, ends the stream, and leaves the others alone.
#[tokio::test]
async fn a_panic_costs_one_stream() {
    let (pipeline, shell) = parts();
    let (mut broken, mut other) = (session(&pipeline), session(&pipeline));
    for (id, session) in [&mut broken, &mut other].into_iter().enumerate() {
        let id = RequestId(id as u64);
        let arrival = shell.arrive(Request {
            id,
            ..Request::default()
        });
        let Arrival::Now(Verdict::Dispatched(_, guard)) = arrival else {
            panic!("no place")
        };
        session.request.guard = Some(guard);
    }
    assert_eq!(shell.held().running, 2);
    assert!(!broken.guarded(|_, _| panic!("as planned")));
    assert!(broken.closed);
    assert_eq!(shell.held().running, 1);
    assert!(other.guarded(|_, _| ()));
    assert!(!other.closed);
    drop((broken, other));
    assert_eq!(shell.held().running, 0);
    assert_eq!(pipeline.metrics.streams.get(), 0);
}
