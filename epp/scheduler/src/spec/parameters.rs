//! From a configuration's `{type, name, parameters}` to a [`PluginSpec`]: strict, with the nearest name.

mod fields;

use serde_json::Value;

use self::fields::Fields;
use super::{
    PluginSpec,
    catalog::{self, PLUGIN_TYPES},
    check, nearest,
    plugin::{
        ActiveRequest, BoundedLoad, ByLabel, Condition, ConditionMetric, Expression, LoadAware,
        NoHitLru, Operator, PickerParameters, PrefixAffinity, PrefixCache, Selector,
        SessionAffinity, SessionSource, SessionStrategy, TokenLoad, Utilization,
    },
};

/// What is wrong with a plugin's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginErrorKind {
    /// No plugin has this type.
    UnknownType,
    /// llm-d has this type; we do not have it yet.
    Unsupported,
    /// The plugin has no such parameter.
    UnknownParameter,
    /// A parameter has the wrong form or is out of range, or a required one is missing.
    BadValue,
}

/// A plugin that cannot be built from its configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plugin {name}: {what}{}", self.hint())]
pub struct PluginError {
    /// Which sort of fault.
    pub kind: PluginErrorKind,
    /// The plugin instance's name.
    pub name: String,
    /// The fault in words.
    pub what: String,
    /// `type`, or the path of the parameter at fault below `parameters`, such as `conditions[0].metric`.
    pub field: String,
    /// Names that would be right in its place.
    pub known: Vec<&'static str>,
    /// The one of them that was probably meant.
    pub nearest: Option<&'static str>,
}

impl PluginError {
    fn hint(&self) -> String {
        match self.nearest {
            Some(name) => format!(" (did you mean {name}?)"),
            None => String::new(),
        }
    }
}

/// A fault at a path, before the plugin's name is known.
struct Fault {
    kind: PluginErrorKind,
    what: String,
    field: String,
    known: Vec<&'static str>,
    nearest: Option<&'static str>,
}

impl Fault {
    fn value(field: String, what: impl Into<String>) -> Fault {
        Fault {
            kind: PluginErrorKind::BadValue,
            what: what.into(),
            field,
            known: Vec::new(),
            nearest: None,
        }
    }
}

/// Builds a plugin from its type and parameters; `Value::Null` means no parameters.
///
/// # Errors
/// An unknown type, a type of llm-d's that is not supported here, an unknown parameter, or a value of the wrong
/// form or range.
pub fn plugin_from_parameters(
    type_name: &str,
    name: &str,
    parameters: &Value,
) -> Result<PluginSpec, PluginError> {
    build(type_name, parameters).map_err(|fault| PluginError {
        kind: fault.kind,
        name: name.to_owned(),
        what: fault.what,
        field: fault.field,
        known: fault.known,
        nearest: fault.nearest,
    })
}

fn build(type_name: &str, parameters: &Value) -> Result<PluginSpec, Fault> {
    let info = catalog::info(type_name).ok_or_else(|| unknown_type(type_name))?;
    let mut fields = Fields::new(parameters)?;
    let spec = match info.type_name {
        "single-profile-handler" => PluginSpec::SingleProfileHandler,
        "queue-scorer" => PluginSpec::QueueScorer,
        "running-requests-size-scorer" => PluginSpec::RunningRequestsSizeScorer,
        "kv-cache-utilization-scorer" => PluginSpec::KvCacheUtilizationScorer,
        "load-aware-scorer" => PluginSpec::LoadAwareScorer(load_aware(&mut fields)?),
        "active-request-scorer" => PluginSpec::ActiveRequestScorer(active_request(&mut fields)?),
        "token-load-scorer" => PluginSpec::TokenLoadScorer(token_load(&mut fields)?),
        "prefix-cache-scorer" => PluginSpec::PrefixCacheScorer(prefix_cache(&mut fields)?),
        "no-hit-lru-scorer" => PluginSpec::NoHitLruScorer(no_hit_lru(&mut fields)?),
        "lora-affinity-scorer" => PluginSpec::LoraAffinityScorer,
        "session-affinity-scorer" => PluginSpec::SessionAffinityScorer(session(&mut fields)?),
        "max-score-picker" => PluginSpec::MaxScorePicker(picker(&mut fields)?),
        "weighted-random-picker" => PluginSpec::WeightedRandomPicker(picker(&mut fields)?),
        "random-picker" => PluginSpec::RandomPicker(picker(&mut fields)?),
        "label-selector-filter" => PluginSpec::LabelSelectorFilter(selector(&mut fields)?),
        "by-label-selector" => PluginSpec::ByLabelSelector(selector(&mut fields)?),
        "by-label" => PluginSpec::ByLabel(by_label(&mut fields)?),
        "decode-filter" => PluginSpec::DecodeFilter,
        "prefill-filter" => PluginSpec::PrefillFilter,
        "encode-filter" => PluginSpec::EncodeFilter,
        "utilization-filter" => PluginSpec::UtilizationFilter(utilization(&mut fields)?),
        "prefix-cache-affinity-filter" => {
            PluginSpec::PrefixCacheAffinityFilter(prefix_affinity(&mut fields)?)
        }
        "bounded-load-filter" => PluginSpec::BoundedLoadFilter(bounded_load(&mut fields)?),
        other => return Err(unsupported(other)),
    };
    fields.finish()?;
    match check::parameters(&spec) {
        None => Ok(spec),
        Some((field, what)) => Err(Fault::value(field.to_owned(), what)),
    }
}

fn unknown_type(type_name: &str) -> Fault {
    let known: Vec<_> = PLUGIN_TYPES.iter().map(|info| info.type_name).collect();
    Fault {
        kind: PluginErrorKind::UnknownType,
        what: format!("no plugin has the type {type_name:?}"),
        field: "type".to_owned(),
        nearest: nearest(type_name, known.iter().copied()),
        known,
    }
}

fn unsupported(type_name: &str) -> Fault {
    let supported = PLUGIN_TYPES.iter().filter(|info| info.supported);
    Fault {
        kind: PluginErrorKind::Unsupported,
        what: format!("{type_name} is a plugin of llm-d's that is not supported here yet"),
        field: "type".to_owned(),
        known: supported.map(|info| info.type_name).collect(),
        nearest: None,
    }
}

fn load_aware(fields: &mut Fields<'_>) -> Result<LoadAware, Fault> {
    let LoadAware { threshold } = LoadAware::default();
    Ok(LoadAware {
        threshold: fields.number("threshold", threshold)?,
    })
}

fn active_request(fields: &mut Fields<'_>) -> Result<ActiveRequest, Fault> {
    let default = ActiveRequest::default();
    fields.text("inFlightLoadProducerName")?;
    Ok(ActiveRequest {
        idle_threshold: fields.integer("idleThreshold", default.idle_threshold)?,
        max_busy_score: fields.number("maxBusyScore", default.max_busy_score)?,
    })
}

fn token_load(fields: &mut Fields<'_>) -> Result<TokenLoad, Fault> {
    let default = TokenLoad::default().queue_threshold_tokens;
    fields.text("inFlightLoadProducerName")?;
    Ok(TokenLoad {
        queue_threshold_tokens: fields.number("queueThresholdTokens", default)?,
    })
}

fn prefix_cache(fields: &mut Fields<'_>) -> Result<PrefixCache, Fault> {
    let default = PrefixCache::default();
    fields.text("prefixMatchInfoProducerName")?;
    Ok(PrefixCache {
        match_length_weight: fields.number("matchLengthWeight", default.match_length_weight)?,
        match_length_scale_tokens: fields
            .number("matchLengthScaleTokens", default.match_length_scale_tokens)?,
    })
}

fn no_hit_lru(fields: &mut Fields<'_>) -> Result<NoHitLru, Fault> {
    for name in [
        "prefixPluginType",
        "prefixPluginName",
        "prefixMatchInfoProducerName",
    ] {
        fields.text(name)?;
    }
    Ok(NoHitLru {
        lru_size: fields.integer("lruSize", NoHitLru::default().lru_size)?,
    })
}

fn prefix_affinity(fields: &mut Fields<'_>) -> Result<PrefixAffinity, Fault> {
    let default = PrefixAffinity::default();
    fields.text("prefixMatchInfoProducerName")?;
    fields.text("inFlightLoadProducerName")?;
    fields.one_of("ttftSource", &[("prefillThroughput", ())])?;
    if fields.number("explorationProbability", 0.0)? != 0.0 {
        let what = "exploration is not supported here; use 0";
        return Err(Fault::value("explorationProbability".to_owned(), what));
    }
    Ok(PrefixAffinity {
        affinity_threshold: fields.number("affinityThreshold", default.affinity_threshold)?,
        max_ttft_penalty_ms: fields.number("maxTTFTPenaltyMs", default.max_ttft_penalty_ms)?,
        peak_prefill_throughput: fields
            .number("peakPrefillThroughput", default.peak_prefill_throughput)?,
    })
}

fn picker(fields: &mut Fields<'_>) -> Result<PickerParameters, Fault> {
    let default = PickerParameters::default().max_num_of_endpoints;
    Ok(PickerParameters {
        max_num_of_endpoints: fields.integer("maxNumOfEndpoints", default)?,
    })
}

fn bounded_load(fields: &mut Fields<'_>) -> Result<BoundedLoad, Fault> {
    let default = BoundedLoad::default();
    Ok(BoundedLoad {
        factor: fields.number("factor", default.factor)?,
        min_requests: fields.integer("minRequests", default.min_requests)?,
    })
}

fn session(fields: &mut Fields<'_>) -> Result<SessionAffinity, Fault> {
    let mut spec = SessionAffinity::default();
    let strategies = [
        (
            "encoded_endpoint_header",
            SessionStrategy::EncodedEndpointHeader,
        ),
        ("session_id", SessionStrategy::SessionId),
    ];
    if let Some(strategy) = fields.one_of("strategy", &strategies)? {
        spec.strategy = strategy;
    }
    let mut encoded = fields.object("encodedEndpointHeaderConfig")?;
    if let Some(header) = encoded.text("header")? {
        spec.encoded_endpoint_header_config.header = header.into();
    }
    encoded.finish()?;
    let mut by_id = fields.object("sessionIdConfig")?;
    let config = &mut spec.session_id_config;
    if let Some(list) = by_id.list("sources")? {
        config.sources = list
            .into_iter()
            .map(session_source)
            .collect::<Result<_, _>>()?;
    }
    config.eviction_ttl_seconds = by_id.whole("evictionTtlSeconds", config.eviction_ttl_seconds)?;
    config.eviction_sweep_seconds =
        by_id.whole("evictionSweepSeconds", config.eviction_sweep_seconds)?;
    config.max_sessions = by_id.integer("maxSessions", config.max_sessions)?;
    by_id.finish()?;
    spec.profile_name = fields.text("profileName")?.map(Into::into);
    Ok(spec)
}

fn session_source(mut item: Fields<'_>) -> Result<SessionSource, Fault> {
    let header = item.required_text("header")?.into();
    item.finish()?;
    Ok(SessionSource { header })
}

fn selector(fields: &mut Fields<'_>) -> Result<Selector, Fault> {
    let match_labels = fields.text_map("matchLabels")?;
    let list = fields.list("matchExpressions")?.unwrap_or_default();
    let match_expressions = list.into_iter().map(expression).collect::<Result<_, _>>()?;
    Ok(Selector {
        match_labels,
        match_expressions,
    })
}

fn expression(mut item: Fields<'_>) -> Result<Expression, Fault> {
    let operators = [
        ("In", Operator::In),
        ("NotIn", Operator::NotIn),
        ("Exists", Operator::Exists),
        ("DoesNotExist", Operator::DoesNotExist),
    ];
    let expression = Expression {
        key: item.required_text("key")?.to_owned(),
        operator: item.required_one_of("operator", &operators)?,
        values: item.text_list("values")?,
    };
    item.finish()?;
    Ok(expression)
}

fn by_label(fields: &mut Fields<'_>) -> Result<ByLabel, Fault> {
    Ok(ByLabel {
        label: fields.required_text("label")?.to_owned(),
        valid_values: fields.text_list("validValues")?,
        allows_no_label: fields.flag("allowsNoLabel")?,
    })
}

fn utilization(fields: &mut Fields<'_>) -> Result<Utilization, Fault> {
    let list = fields.list("conditions")?.unwrap_or_default();
    Ok(Utilization {
        conditions: list.into_iter().map(condition).collect::<Result<_, _>>()?,
        fallback_on_empty: fields.flag("fallbackOnEmpty")?,
    })
}

fn condition(mut item: Fields<'_>) -> Result<Condition, Fault> {
    let metrics = [
        ("active-requests", ConditionMetric::ActiveRequests),
        ("running-requests", ConditionMetric::RunningRequests),
        ("waiting-queue", ConditionMetric::WaitingQueue),
        ("kv-cache-utilization", ConditionMetric::KvCacheUtilization),
    ];
    let condition = Condition {
        metric: item.required_one_of("metric", &metrics)?,
        max_value: item.required_number("maxValue")?,
    };
    item.finish()?;
    Ok(condition)
}

#[cfg(test)]
mod tests;
