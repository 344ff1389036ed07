//! `admission`, and its other name `flowControl`: from what the file says to what decides.

mod policies;

use serde::Serialize;
use wicketgate_admission::{
    AdmissionConfig, BandConfig, Limits, Nanos, Starvation, Wait,
    gate::{Detector, GateConfig, Staleness},
    headers,
};

pub(crate) use policies::{is_policy, policy_types};

use crate::{
    decode::Decoded,
    llmd::gate,
    raw::{self, Raw},
    scalar::shown,
    units::{Size, Span},
};
use policies::Policies;

/// Whether and how requests wait.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flow {
    /// Requests wait until an endpoint can start them.
    pub enabled: bool,
    /// Bands, flows, bounds and waits.
    pub admission: AdmissionConfig,
    /// When an endpoint can start a request.
    pub gate: GateConfig,
}

/// Headers that are believed; of each list the first that is there counts. Names in lower case.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TrustedProxy {
    /// Fairness ID.
    pub fairness_id: Vec<String>,
    /// Priority as a number.
    pub priority: Vec<String>,
    /// Name of an objective.
    pub objective: Vec<String>,
    /// Priorities by objective.
    pub objectives: Vec<(String, i32)>,
    /// Longest wait.
    pub ttl: Vec<String>,
    /// Wanted time to first token in milliseconds.
    pub slo_ttft: Vec<String>,
}

/// What comes of the section.
pub(crate) struct Built {
    pub(crate) flow: Flow,
    pub(crate) weights: Vec<(String, f64)>,
    pub(crate) drain_waiting: bool,
    /// Everything in force, as a section.
    pub(crate) effective: raw::Admission,
    /// The policies that it refers to.
    pub(crate) plugins: Vec<raw::Plugin>,
}

fn nanos(span: Span) -> Nanos {
    u64::try_from(span.0.as_nanos()).unwrap_or(u64::MAX)
}

fn span(nanos: Nanos) -> Span {
    Span(std::time::Duration::from_nanos(nanos))
}

/// A wait, where `0s` is no limit.
fn wait(limit: Span) -> Wait {
    match nanos(limit) {
        0 => Wait::Unlimited,
        limit => Wait::AtMost(limit),
    }
}

fn shown_wait(wait: Wait) -> Option<Span> {
    match wait {
        Wait::Inherit => None,
        Wait::Unlimited => Some(span(0)),
        Wait::AtMost(limit) => Some(span(limit)),
    }
}

/// One section under way.
struct Section<'a> {
    /// Its name in the file.
    path: &'static str,
    said: &'a raw::Admission,
    /// In llm-d's section 0 counts as absent.
    zero_is_absent: bool,
}

impl Section<'_> {
    fn bound(&self, said: Option<Size>, default: Option<u64>) -> Option<u64> {
        match said {
            Some(Size(0)) if self.zero_is_absent => default,
            Some(Size(bound)) => Some(bound),
            None => default,
        }
    }

    fn band(
        &self,
        path: &str,
        said: &raw::Band,
        base: &BandConfig,
        policies: &mut Policies<'_>,
        out: &mut Decoded,
    ) -> BandConfig {
        let limits = Limits {
            max_requests: self.bound(said.max_requests, base.limits.max_requests),
            max_bytes: self.bound(said.max_bytes, base.limits.max_bytes),
            max_tokens: self.bound(said.max_tokens, base.limits.max_tokens),
        };
        let mut band = BandConfig {
            limits,
            ttl: said.request_ttl.map_or(base.ttl, wait),
            floor: said.floor.or(base.floor),
            ..base.clone()
        };
        if let Some(name) = &said.fairness_policy_ref {
            let path = format!("{path}.fairnessPolicyRef");
            policies.fairness(&path, name, &mut band, out);
        }
        if let Some(name) = &said.ordering_policy_ref {
            let path = format!("{path}.orderingPolicyRef");
            policies.ordering(&path, name, &mut band, out);
        }
        band
    }
}

/// The section of the file, or what holds without one.
pub(crate) fn build(raw: &Raw, of_llmd: bool, out: &mut Decoded) -> Built {
    let none = raw::Admission::default();
    if raw.admission.is_some() && raw.flow_control.is_some() {
        let what = "is another name of `admission`, which is there too; keep one";
        out.fault("flowControl", what);
    }
    let theirs = raw.admission.is_none() && raw.flow_control.is_some();
    let section = Section {
        path: if theirs { "flowControl" } else { "admission" },
        said: raw
            .admission
            .as_ref()
            .or(raw.flow_control.as_ref())
            .unwrap_or(&none),
        zero_is_absent: theirs,
    };
    let gated = gate(raw, "flowControl");
    let enabled = match (section.said.enabled, of_llmd) {
        (Some(enabled), _) => enabled,
        (None, true) => gated.unwrap_or(raw.admission.is_some()),
        (None, false) => gated.unwrap_or(true),
    };
    if theirs && !enabled {
        let what = "has no effect: its feature gate is off";
        out.warn("flowControl", what);
    }
    let mut policies = Policies::new(raw, of_llmd);
    let admission = admission(&section, of_llmd, &mut policies, out);
    let gate = gate_config(raw, &section, (of_llmd, enabled), &mut policies, out);
    policies.keep_defaults(&gate);
    for error in [admission.check().err(), gate.check().err()]
        .into_iter()
        .flatten()
    {
        for fault in error.faults {
            out.fault(section.path, fault);
        }
    }
    policies.unused(out);
    let flow = Flow {
        enabled,
        admission,
        gate,
    };
    let weights = weights(&section, out);
    let drain_waiting = section.said.shutdown.as_deref() != Some("refuse");
    let effective = effective(&flow, &weights, drain_waiting, &policies);
    Built {
        flow,
        weights,
        drain_waiting,
        effective,
        plugins: policies.into_plugins(),
    }
}

fn admission(
    section: &Section<'_>,
    of_llmd: bool,
    policies: &mut Policies<'_>,
    out: &mut Decoded,
) -> AdmissionConfig {
    let said = section.said;
    let mut config = match of_llmd {
        true => AdmissionConfig::llm_d(),
        false => AdmissionConfig::default(),
    };
    config.limits = Limits {
        max_requests: section.bound(said.max_requests, config.limits.max_requests),
        max_bytes: section.bound(said.max_bytes, config.limits.max_bytes),
        max_tokens: section.bound(said.max_tokens, config.limits.max_tokens),
    };
    if let Some(ttl) = said.default_request_ttl {
        config.default_ttl = wait(ttl).or(None);
    }
    if let Some(ttl) = said.no_endpoint_request_ttl {
        config.no_endpoints.ttl = wait(ttl);
    }
    if let Some(rooms) = &said.no_endpoints {
        let to = &mut config.no_endpoints;
        to.hold = rooms.hold.unwrap_or(to.hold);
        to.limits.max_requests = section.bound(rooms.max_requests, to.limits.max_requests);
        to.limits.max_bytes = section.bound(rooms.max_bytes, to.limits.max_bytes);
        to.release_interval = rooms.release_interval.map_or(to.release_interval, nanos);
        to.release_window = rooms.release_window.map_or(to.release_window, nanos);
    }
    let path = section.path;
    let template = |key: &str,
                    band: &Option<raw::Band>,
                    base: &BandConfig,
                    policies: &mut Policies<'_>,
                    out: &mut Decoded| match band {
        Some(band) => section.band(&format!("{path}.{key}"), band, base, policies, out),
        None => base.clone(),
    };
    config.default_band = template(
        "defaultPriorityBand",
        &said.default_priority_band,
        &config.default_band,
        policies,
        out,
    );
    config.default_negative_band = template(
        "defaultNegativePriorityBand",
        &said.default_negative_priority_band,
        &config.default_negative_band,
        policies,
        out,
    );
    for (index, band) in said.priority_bands.iter().enumerate() {
        let priority = band.priority.unwrap_or(0);
        let base = match priority < 0 {
            true => config.default_negative_band.clone(),
            false => config.default_band.clone(),
        };
        let path = format!("{path}.priorityBands[{index}]");
        let built = section.band(&path, band, &base, policies, out);
        if config.bands.iter().any(|(known, _)| *known == priority) {
            let what = format!("a second band of priority {priority}; one is enough");
            out.fault(&path, what);
        } else {
            config.bands.push((priority, built));
        }
    }
    if let Some(said) = &said.starvation {
        config.starvation = starvation(said, &format!("{path}.starvation"), config.starvation, out);
    }
    config.output_weight = said.output_weight.unwrap_or(config.output_weight);
    config.max_displaced = said.max_displaced.unwrap_or(config.max_displaced);
    config.max_bands = said.max_bands.unwrap_or(config.max_bands);
    config.max_flows = said.max_flows.unwrap_or(config.max_flows);
    config.eviction.enabled = said.enable_eviction.unwrap_or(config.eviction.enabled);
    if let Some(said) = &said.eviction {
        let to = &mut config.eviction;
        to.max_per_decision = said.max_per_decision.unwrap_or(to.max_per_decision);
        to.grace = said.grace.map_or(to.grace, nanos);
        to.timeout = said.timeout.map_or(to.timeout, nanos);
    }
    config
}

fn starvation(
    said: &raw::Starvation,
    path: &str,
    default: Starvation,
    out: &mut Decoded,
) -> Starvation {
    let base = match said.policy.as_deref().map(Starvation::from_name) {
        Some(Ok(policy)) => policy,
        Some(Err(error)) => {
            out.fault(&format!("{path}.policy"), error.to_string());
            default
        }
        None => default,
    };
    let mut stray = |key: &str, there: bool| {
        if there {
            let what = format!("`{key}` is no key of this starvation policy; remove it");
            out.fault(&format!("{path}.{key}"), what);
        }
    };
    match base {
        Starvation::Strict => {
            stray("after", said.after.is_some());
            stray("share", said.share.is_some());
            stray("window", said.window.is_some());
            base
        }
        Starvation::Aging { after, share } => {
            stray("window", said.window.is_some());
            Starvation::Aging {
                after: said.after.map_or(after, nanos),
                share: said.share.unwrap_or(share),
            }
        }
        Starvation::Floor { share, window } => {
            stray("after", said.after.is_some());
            Starvation::Floor {
                share: said.share.unwrap_or(share),
                window: said.window.map_or(window, nanos),
            }
        }
    }
}

fn gate_config(
    raw: &Raw,
    section: &Section<'_>,
    (of_llmd, enabled): (bool, bool),
    policies: &mut Policies<'_>,
    out: &mut Decoded,
) -> GateConfig {
    let (path, said) = (section.path, section.said);
    let mut config = match of_llmd {
        true => GateConfig::llm_d(),
        false => GateConfig {
            stale_after: nanos(raw.telemetry.staleness),
            ..GateConfig::default()
        },
    };
    if let Some(name) = &said.saturation_detector {
        let path = format!("{path}.saturationDetector.pluginRef");
        policies.detector(&path, &name.plugin_ref, &mut config, out);
    }
    if let Some(name) = &said.usage_limit_policy_plugin_ref {
        let path = format!("{path}.usageLimitPolicyPluginRef");
        policies.usage_limit(&path, name, &mut config, out);
    }
    config.staleness = match said.staleness.as_deref() {
        Some("saturated") => Staleness::Saturated,
        Some("ignore") => Staleness::Ignore,
        Some("own-count") => Staleness::OwnCount,
        _ => config.staleness,
    };
    config.stale_after = said.stale_after.map_or(config.stale_after, nanos);
    config.first_scrape_grace = said
        .first_scrape_grace
        .map_or(config.first_scrape_grace, nanos);
    config.own_limit = said.own_limit.unwrap_or(config.own_limit);
    let reads = enabled && !matches!(config.detector, Detector::Concurrency(_));
    if reads && config.stale_after <= nanos(raw.telemetry.interval) {
        let what = format!(
            "readings are too old after {}, which is not longer than the scrape interval of {}: every endpoint would \
             count as stale",
            span(config.stale_after),
            raw.telemetry.interval
        );
        let key = match out.has(&format!("{path}.staleAfter")) {
            true => format!("{path}.staleAfter"),
            false => "telemetry.interval".to_owned(),
        };
        out.fault(&key, what);
    }
    config
}

fn weights(section: &Section<'_>, out: &mut Decoded) -> Vec<(String, f64)> {
    let mut weights: Vec<(String, f64)> = Vec::new();
    for (index, said) in section.said.weights.iter().enumerate() {
        let path = format!("{}.weights[{index}]", section.path);
        if weights.iter().any(|(known, _)| *known == said.fairness_id) {
            let id = shown(&said.fairness_id);
            out.fault(&path, format!("{id} has a weight already; keep one"));
            continue;
        }
        let as_read = headers::fairness_id(said.fairness_id.as_bytes());
        if as_read.as_str() != said.fairness_id {
            let what = format!(
                "{} can come from no header; expected up to 256 printable characters without blanks at the ends",
                shown(&said.fairness_id)
            );
            out.fault(&format!("{path}.fairnessId"), what);
        }
        weights.push((said.fairness_id.clone(), said.weight));
    }
    weights
}

/// The headers of a trusted proxy, llm-d's and GIE's names where the file says nothing.
pub(crate) fn trusted_proxy(said: &raw::TrustedProxy) -> TrustedProxy {
    let names = |said: &Option<String>, default: &[&str]| match said {
        Some(name) => vec![name.to_ascii_lowercase()],
        None => default.iter().map(|name| (*name).to_owned()).collect(),
    };
    TrustedProxy {
        fairness_id: names(&said.fairness_id_header, &headers::FAIRNESS_ID),
        priority: names(&said.priority_header, &[]),
        objective: names(&said.objective_header, &headers::OBJECTIVE),
        objectives: said
            .objectives
            .iter()
            .map(|objective| (objective.name.clone(), objective.priority))
            .collect(),
        ttl: names(&said.ttl_header, &[headers::TTL]),
        slo_ttft: names(&said.slo_ttft_header, &headers::SLO_TTFT_MS),
    }
}

fn effective(
    flow: &Flow,
    weights: &[(String, f64)],
    drain_waiting: bool,
    policies: &Policies<'_>,
) -> raw::Admission {
    let (config, gate) = (&flow.admission, &flow.gate);
    let size = |bound: Option<u64>| bound.map(Size);
    let band = |priority: Option<i32>, band: &BandConfig| raw::Band {
        priority,
        max_bytes: size(band.limits.max_bytes),
        max_requests: size(band.limits.max_requests),
        max_tokens: size(band.limits.max_tokens),
        request_ttl: shown_wait(band.ttl),
        fairness_policy_ref: Some(policies.name_of_fairness(band.fairness)),
        ordering_policy_ref: Some(band.ordering.name().to_owned()),
        floor: band.floor,
    };
    let rooms = &config.no_endpoints;
    let bands = config.bands.iter();
    raw::Admission {
        enabled: Some(flow.enabled),
        max_requests: size(config.limits.max_requests),
        max_bytes: size(config.limits.max_bytes),
        max_tokens: size(config.limits.max_tokens),
        default_request_ttl: Some(span(config.default_ttl.unwrap_or(0))),
        no_endpoint_request_ttl: shown_wait(rooms.ttl),
        default_priority_band: Some(band(None, &config.default_band)),
        default_negative_priority_band: Some(band(None, &config.default_negative_band)),
        priority_bands: bands.map(|(p, of)| band(Some(*p), of)).collect(),
        starvation: Some(match config.starvation {
            Starvation::Strict => raw::Starvation {
                policy: Some("strict".to_owned()),
                ..raw::Starvation::default()
            },
            Starvation::Aging { after, share } => raw::Starvation {
                policy: Some("aging".to_owned()),
                after: Some(span(after)),
                share: Some(share),
                window: None,
            },
            Starvation::Floor { share, window } => raw::Starvation {
                policy: Some("floor".to_owned()),
                after: None,
                share: Some(share),
                window: Some(span(window)),
            },
        }),
        no_endpoints: Some(raw::NoEndpoints {
            hold: Some(rooms.hold),
            max_requests: size(rooms.limits.max_requests),
            max_bytes: size(rooms.limits.max_bytes),
            release_interval: Some(span(rooms.release_interval)),
            release_window: Some(span(rooms.release_window)),
        }),
        saturation_detector: Some(raw::Ref {
            plugin_ref: policies.name_of_detector(),
        }),
        usage_limit_policy_plugin_ref: Some(policies.name_of_usage_limit()),
        staleness: Some(
            match gate.staleness {
                Staleness::Saturated => "saturated",
                Staleness::Ignore => "ignore",
                Staleness::OwnCount => "own-count",
            }
            .to_owned(),
        ),
        stale_after: Some(span(gate.stale_after)),
        first_scrape_grace: Some(span(gate.first_scrape_grace)),
        own_limit: Some(gate.own_limit),
        output_weight: Some(config.output_weight),
        max_displaced: Some(config.max_displaced),
        max_bands: Some(config.max_bands),
        max_flows: Some(config.max_flows),
        weights: weights
            .iter()
            .map(|(id, weight)| raw::Weight {
                fairness_id: id.clone(),
                weight: *weight,
            })
            .collect(),
        enable_eviction: Some(config.eviction.enabled),
        eviction: Some(raw::Eviction {
            max_per_decision: Some(config.eviction.max_per_decision),
            grace: Some(span(config.eviction.grace)),
            timeout: Some(span(config.eviction.timeout)),
        }),
        shutdown: Some(if drain_waiting { "drain" } else { "refuse" }.to_owned()),
    }
}
