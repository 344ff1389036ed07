//! Policies of admission: plugins that are no part of a scheduling profile.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use wicketgate_admission::{
    BandConfig, Fairness, Ordering,
    gate::{Detector, GateConfig, Scope, Staleness, UsageLimit, Utilization},
};
use wicketgate_scheduler::spec::nearest;

use super::nanos;
use crate::{
    decode::{Decoded, not_yet},
    llmd::name_of,
    raw::{Plugin, Raw},
    scalar::shown,
    units::Span,
};

/// What a policy decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Detector,
    Fairness,
    Ordering,
    UsageLimit,
    /// Hard-wired, in llm-d too.
    Eviction,
}

impl Role {
    fn in_words(self) -> &'static str {
        match self {
            Role::Detector => "saturation detector",
            Role::Fairness => "fairness policy",
            Role::Ordering => "ordering policy",
            Role::UsageLimit => "usage limit policy",
            Role::Eviction => "eviction policy",
        }
    }
}

const POLICIES: [(&str, Role); 16] = [
    ("headroom-detector", Role::Detector),
    ("utilization-detector", Role::Detector),
    ("concurrency-detector", Role::Detector),
    ("global-strict-fairness-policy", Role::Fairness),
    ("round-robin-fairness-policy", Role::Fairness),
    ("drr-fairness-policy", Role::Fairness),
    ("vtc-fairness-policy", Role::Fairness),
    ("fcfs-ordering-policy", Role::Ordering),
    ("edf-ordering-policy", Role::Ordering),
    ("slo-deadline-ordering-policy", Role::Ordering),
    ("sjf-ordering-policy", Role::Ordering),
    ("static-usage-limit-policy", Role::UsageLimit),
    ("priority-holdback-policy", Role::UsageLimit),
    ("soft-reflective-ceiling-policy", Role::UsageLimit),
    ("sheddable-eviction-filter", Role::Eviction),
    ("priority-then-time-eviction-order-policy", Role::Eviction),
];

/// Types of policies, for hints.
pub(crate) fn policy_types() -> impl Iterator<Item = &'static &'static str> + use<> {
    POLICIES.iter().map(|(name, _)| name)
}

fn role(type_name: &str) -> Option<Role> {
    let found = POLICIES.iter().find(|(name, _)| *name == type_name)?;
    Some(found.1)
}

/// True if the type is a policy of admission.
pub(crate) fn is_policy(type_name: &str) -> bool {
    role(type_name).is_some()
}

/// A policy that the section refers to.
struct Found<'a> {
    type_name: &'a str,
    parameters: Map<String, Value>,
    /// Where its parameters stand.
    path: String,
}

/// The policies that a file declares, and those that its section uses.
pub(super) struct Policies<'a> {
    raw: &'a Raw,
    of_llmd: bool,
    used: Vec<String>,
    /// Those in use that need an entry of their own to be there again.
    plugins: Vec<Plugin>,
    fairness: Vec<(Fairness, String)>,
    detector: String,
    usage_limit: String,
}

/// `base` with what `over` has, as the same type.
fn over<T: Serialize + DeserializeOwned>(base: &T, over: &Map<String, Value>) -> Result<T, String> {
    let mut value = serde_json::to_value(base).map_err(|error| error.to_string())?;
    if let Value::Object(map) = &mut value {
        for (key, value) in over {
            map.insert(key.clone(), value.clone());
        }
    }
    serde_json::from_value(value).map_err(|error| error.to_string())
}

impl<'a> Policies<'a> {
    pub(super) fn new(raw: &'a Raw, of_llmd: bool) -> Policies<'a> {
        Policies {
            raw,
            of_llmd,
            used: Vec::new(),
            plugins: Vec::new(),
            fairness: Vec::new(),
            detector: match of_llmd {
                true => "utilization-detector",
                false => "headroom-detector",
            }
            .to_owned(),
            usage_limit: "static-usage-limit-policy".to_owned(),
        }
    }

    /// The policy of this name: one that the file declares, else a type with default parameters.
    fn find(
        &mut self,
        path: &str,
        name: &str,
        wanted: Role,
        out: &mut Decoded,
    ) -> Option<Found<'a>> {
        let declared = self.raw.plugins.iter().flatten().enumerate();
        let mut declared = declared.filter(|(_, plugin)| name_of(plugin) == name);
        let (type_name, parameters, at) = match declared.next() {
            Some((index, plugin)) => {
                let path = format!("plugins[{index}].parameters");
                let parameters = match &plugin.parameters {
                    Value::Null => Map::new(),
                    Value::Object(map) => map.clone(),
                    other => {
                        out.fault(&path, format!("expected a map of keys, not {other}"));
                        Map::new()
                    }
                };
                (plugin.type_name.as_str(), parameters, path)
            }
            None => match policy_types().find(|known| **known == name) {
                Some(known) => (*known, Map::new(), path.to_owned()),
                None => {
                    self.unknown(path, name, out);
                    return None;
                }
            },
        };
        match role(type_name) {
            Some(role) if role == wanted => {}
            None if type_name == "program-aware-fairness" => {
                out.fault(path, not_yet(type_name));
                return None;
            }
            _ => {
                let what = format!("{} is no {}", shown(name), wanted.in_words());
                out.fault(path, what);
                return None;
            }
        }
        if !self.used.iter().any(|used| used == name) {
            self.used.push(name.to_owned());
        }
        Some(Found {
            type_name,
            parameters,
            path: at,
        })
    }

    fn unknown(&self, path: &str, name: &str, out: &mut Decoded) {
        if name == "program-aware-fairness" {
            return out.fault(path, not_yet(name));
        }
        let declared = self.raw.plugins.iter().flatten().map(name_of);
        let near = nearest(name, declared.chain(POLICIES.iter().map(|(name, _)| *name)));
        let hint = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        out.fault(path, format!("no plugin is named {}{hint}", shown(name)));
    }

    /// Keeps an entry that gives this policy again.
    fn keep(&mut self, name: &str, type_name: &str, parameters: Value) {
        let known = self.plugins.iter().any(|plugin| name_of(plugin) == name);
        if known || (name == type_name && parameters.is_null()) {
            return;
        }
        self.plugins.push(Plugin {
            type_name: type_name.to_owned(),
            name: (name != type_name).then(|| name.to_owned()),
            parameters,
        });
    }

    fn no_parameters(found: &Found<'_>, out: &mut Decoded) {
        for key in found.parameters.keys() {
            let path = format!("{}.{key}", found.path);
            out.fault(
                &path,
                format!("unknown parameter {}; there are none", shown(key)),
            );
        }
    }

    pub(super) fn fairness(
        &mut self,
        path: &str,
        name: &str,
        band: &mut BandConfig,
        out: &mut Decoded,
    ) {
        let Some(found) = self.find(path, name, Role::Fairness, out) else {
            return;
        };
        let Ok(base) = Fairness::from_name(found.type_name) else {
            return;
        };
        let number = |key: &str, default: u64, out: &mut Decoded| {
            for other in found.parameters.keys().filter(|other| *other != key) {
                let what = format!("unknown parameter {}; expected `{key}`", shown(other));
                out.fault(&format!("{}.{other}", found.path), what);
            }
            match found.parameters.get(key) {
                None => default,
                Some(value) => value.as_u64().filter(|n| *n > 0).unwrap_or_else(|| {
                    let what =
                        format!("{value} is not valid; expected a whole number of tokens above 0");
                    out.fault(&format!("{}.{key}", found.path), what);
                    default
                }),
            }
        };
        let (policy, parameters) = match base {
            Fairness::Drr { quantum } => {
                let quantum = number("quantum", quantum, out);
                (Fairness::Drr { quantum }, json!({ "quantum": quantum }))
            }
            Fairness::Vtc { max_lag } => {
                let max_lag = number("maxLag", max_lag, out);
                (Fairness::Vtc { max_lag }, json!({ "maxLag": max_lag }))
            }
            Fairness::GlobalStrict | Fairness::RoundRobin => {
                Self::no_parameters(&found, out);
                (base, Value::Null)
            }
        };
        let plain = policy == base;
        let type_name = found.type_name;
        self.keep(
            name,
            type_name,
            if plain && name == type_name {
                Value::Null
            } else {
                parameters
            },
        );
        self.fairness.push((policy, name.to_owned()));
        band.fairness = policy;
    }

    pub(super) fn ordering(
        &mut self,
        path: &str,
        name: &str,
        band: &mut BandConfig,
        out: &mut Decoded,
    ) {
        let Some(found) = self.find(path, name, Role::Ordering, out) else {
            return;
        };
        Self::no_parameters(&found, out);
        if let Ok(policy) = Ordering::from_name(found.type_name) {
            band.ordering = policy;
        }
    }

    pub(super) fn detector(
        &mut self,
        path: &str,
        name: &str,
        gate: &mut GateConfig,
        out: &mut Decoded,
    ) {
        let Some(mut found) = self.find(path, name, Role::Detector, out) else {
            return;
        };
        let base = match (Detector::from_name(found.type_name), self.of_llmd) {
            (Some(Detector::Utilization(ours)), true) => Detector::Utilization(Utilization {
                scope: Scope::Pool,
                own_correction: false,
                ..ours
            }),
            (Some(Detector::Concurrency(ours)), true) => {
                let scope = Scope::Pool;
                Detector::Concurrency(wicketgate_admission::gate::Concurrency { scope, ..ours })
            }
            (Some(ours), _) => ours,
            (None, _) => return,
        };
        if let Detector::Utilization(_) = base {
            staleness(&mut found, gate, out);
        }
        let parameters = &found.parameters;
        let built = match base {
            Detector::Utilization(base) => over(&base, parameters).map(Detector::Utilization),
            Detector::Concurrency(base) => over(&base, parameters).map(Detector::Concurrency),
            Detector::Headroom(base) => over(&base, parameters).map(Detector::Headroom),
        };
        match built {
            Ok(detector) => {
                let parameters = parameters_of(&detector);
                self.keep(name, found.type_name, parameters);
                name.clone_into(&mut self.detector);
                gate.detector = detector;
            }
            Err(what) => out.fault(&found.path, what),
        }
    }

    pub(super) fn usage_limit(
        &mut self,
        path: &str,
        name: &str,
        gate: &mut GateConfig,
        out: &mut Decoded,
    ) {
        let Some(found) = self.find(path, name, Role::UsageLimit, out) else {
            return;
        };
        let variant = match found.type_name {
            "static-usage-limit-policy" => "static",
            "priority-holdback-policy" => "priority-holdback",
            _ => {
                Self::no_parameters(&found, out);
                self.keep(name, found.type_name, Value::Null);
                name.clone_into(&mut self.usage_limit);
                gate.usage_limit = UsageLimit::SoftReflective;
                return;
            }
        };
        let mut parameters = found.parameters.clone();
        if variant == "static" && parameters.is_empty() {
            parameters.insert("threshold".to_owned(), json!(1.0));
        }
        let policy = serde_json::from_value(json!({ variant: parameters }));
        match policy {
            Ok(policy) => {
                let whole = serde_json::to_value(policy).unwrap_or_default();
                let parameters = whole.get(variant).cloned().unwrap_or_default();
                self.keep(name, found.type_name, parameters);
                name.clone_into(&mut self.usage_limit);
                gate.usage_limit = policy;
            }
            Err(error) => out.fault(&found.path, error.to_string()),
        }
    }

    /// Entries for the detector and the usage limit that hold without being named.
    pub(super) fn keep_defaults(&mut self, gate: &GateConfig) {
        let detector = self.detector.clone();
        self.keep(&detector, &detector, parameters_of(&gate.detector));
        if let UsageLimit::Static { threshold } = gate.usage_limit {
            let name = self.usage_limit.clone();
            self.keep(&name, &name, json!({ "threshold": threshold }));
        }
    }

    /// Warns of declared policies that nothing refers to.
    pub(super) fn unused(&self, out: &mut Decoded) {
        for (index, plugin) in self.raw.plugins.iter().flatten().enumerate() {
            let name = name_of(plugin);
            let hard_wired = role(&plugin.type_name) == Some(Role::Eviction);
            if is_policy(&plugin.type_name)
                && !hard_wired
                && !self.used.iter().any(|used| used == name)
            {
                let what = format!("nothing refers to {}", shown(name));
                out.warn(&format!("plugins[{index}]"), what);
            }
        }
    }

    pub(super) fn name_of_fairness(&self, policy: Fairness) -> String {
        let known = self.fairness.iter().find(|(known, _)| *known == policy);
        known.map_or_else(|| policy.name().to_owned(), |(_, name)| name.clone())
    }

    pub(super) fn name_of_detector(&self) -> String {
        self.detector.clone()
    }

    pub(super) fn name_of_usage_limit(&self) -> String {
        self.usage_limit.clone()
    }

    pub(super) fn into_plugins(self) -> Vec<Plugin> {
        self.plugins
    }
}

fn parameters_of(detector: &Detector) -> Value {
    match detector {
        Detector::Utilization(of) => json!(of),
        Detector::Concurrency(of) => json!(of),
        Detector::Headroom(of) => json!(of),
    }
}

/// llm-d has the age of readings among the detector's parameters; here it holds for every detector.
fn staleness(found: &mut Found<'_>, gate: &mut GateConfig, out: &mut Decoded) {
    if let Some(value) = found.parameters.remove("metricsStalenessThreshold") {
        match value.as_str().map(|text| Span::try_from(text.to_owned())) {
            Some(Ok(span)) => gate.stale_after = nanos(span),
            _ => {
                let path = format!("{}.metricsStalenessThreshold", found.path);
                let what = format!("{value} is not valid; expected a duration such as 200ms");
                out.fault(&path, what);
            }
        }
    }
    if let Some(value) = found.parameters.remove("stalenessPolicy") {
        match value.as_str() {
            Some("saturated") => gate.staleness = Staleness::Saturated,
            Some("ignore") => gate.staleness = Staleness::Ignore,
            _ => {
                let path = format!("{}.stalenessPolicy", found.path);
                out.fault(
                    &path,
                    format!("{value} is not valid; expected saturated or ignore"),
                );
            }
        }
    }
}
