//! Tests over the whole crate, and the builders that all of its tests share.

mod build;
mod cases;
mod order;
mod properties;
mod replay;
mod sessions;

use std::collections::BTreeMap;

use crate::{
    Decision, Endpoint, EndpointSpec, Incarnation, Nanos, NoEndpoint, NoPrefix, PluginSpec,
    PrefixView, RequestView, SECOND, Sample, Scheduler, SchedulerPolicy, SchedulerSpec, SlowStart,
    Snapshot, State,
};

/// An instant at which nobody is new any more.
pub(crate) const NOW: Nanos = 1_000 * SECOND;

pub(crate) fn endpoint(id: u64) -> Endpoint {
    let spec = EndpointSpec::new(format!("ns/pod-{id}"), format!("10.0.0.{id}:8000"));
    Endpoint::new(Incarnation(id), &spec, 0)
}

pub(crate) fn sample(waiting: f64, running: f64, kv_usage: f64) -> Sample {
    Sample {
        waiting: Some(waiting),
        running: Some(running),
        kv_usage: Some(kv_usage),
        ..Sample::default()
    }
}

/// An endpoint scraped just now.
pub(crate) fn scraped(id: u64, waiting: f64, running: f64, kv_usage: f64) -> Endpoint {
    let mut endpoint = endpoint(id);
    endpoint.on_sample(NOW, &sample(waiting, running, kv_usage));
    endpoint
}

pub(crate) fn labelled(id: u64, labels: &[(&str, &str)]) -> Endpoint {
    let mut endpoint = endpoint(id);
    let pairs = labels
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    endpoint.labels = pairs.collect::<BTreeMap<_, _>>().into();
    endpoint
}

pub(crate) fn request() -> RequestView<'static> {
    RequestView {
        id: 1,
        model: "base",
        prompt_tokens: 1_000,
        output_tokens: 100,
        session: None,
        session_hash: None,
        subset: None,
        priority: 0,
        headers: &[],
        keys: &[],
    }
}

/// Scorers alone, each with weight 1, with this picker.
pub(crate) fn spec(plugins: Vec<PluginSpec>) -> SchedulerSpec {
    SchedulerSpec::one_profile(plugins.into_iter().map(|plugin| (plugin, None)).collect())
}

/// A scheduler with its state over a table of endpoints.
pub(crate) struct Fleet {
    pub(crate) scheduler: Scheduler,
    pub(crate) policy: SchedulerPolicy,
    pub(crate) state: State,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) now: Nanos,
}

impl Fleet {
    pub(crate) fn new(spec: &SchedulerSpec, endpoints: Vec<Endpoint>) -> Fleet {
        Fleet {
            scheduler: Scheduler::new(spec).unwrap(),
            policy: SchedulerPolicy {
                slow_start: SlowStart {
                    window: 0,
                    floor: 1.0,
                },
                ..SchedulerPolicy::default()
            },
            state: State::new(1),
            endpoints,
            now: NOW,
        }
    }

    pub(crate) fn choose_with(
        &mut self,
        request: &RequestView<'_>,
        prefix: &dyn PrefixView,
    ) -> Result<Decision, NoEndpoint> {
        let snapshot = Snapshot {
            now: self.now,
            endpoints: &self.endpoints,
            prefix,
            policy: &self.policy,
            full: &[],
        };
        self.scheduler.choose(request, &snapshot, &mut self.state)
    }

    pub(crate) fn choose(&mut self, request: &RequestView<'_>) -> Result<Decision, NoEndpoint> {
        self.choose_with(request, &NoPrefix)
    }

    /// The target's id of one choice that succeeds.
    pub(crate) fn pick(&mut self) -> u64 {
        self.choose(&request()).unwrap().targets[0].id.0
    }

    /// How often each id is the target of `picks` choices that change nothing.
    pub(crate) fn tally(&mut self, picks: u32) -> BTreeMap<u64, u32> {
        let mut tally = BTreeMap::new();
        for _ in 0..picks {
            *tally.entry(self.pick()).or_default() += 1;
        }
        tally
    }

    /// Chooses and counts the dispatch, as a pool does.
    pub(crate) fn dispatch(&mut self, request: &RequestView<'_>, prefix: &dyn PrefixView) -> u64 {
        let decision = self.choose_with(request, prefix).unwrap();
        self.scheduler
            .after_dispatch(request, &decision, &mut self.state);
        let id = decision.targets[0].id;
        let tokens = request
            .prompt_tokens
            .saturating_sub(prefix.cached_tokens(request, id));
        let now = self.now;
        let row = self.endpoints.iter_mut().find(|e| e.id == id).unwrap();
        row.on_dispatch(now, tokens);
        id.0
    }
}
