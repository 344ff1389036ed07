//! Plugins from parameters: right ones, wrong ones, and the table that documents them.

use serde_json::{Value, json};

use super::*;
use crate::spec::{EncodedEndpointHeader, PluginKind, SessionIdConfig};

fn built(type_name: &str, parameters: Value) -> PluginSpec {
    plugin_from_parameters(type_name, "it", &parameters).unwrap()
}

fn error(type_name: &str, parameters: Value) -> PluginError {
    plugin_from_parameters(type_name, "it", &parameters).unwrap_err()
}

#[test]
fn parameters_are_read() {
    assert_eq!(
        built(
            "active-request-scorer",
            json!({"idleThreshold": 3, "maxBusyScore": 0.5, "inFlightLoadProducerName": "p"})
        ),
        PluginSpec::ActiveRequestScorer(ActiveRequest {
            idle_threshold: 3,
            max_busy_score: 0.5
        })
    );
    assert_eq!(
        built("max-score-picker", json!({"maxNumOfEndpoints": 4})),
        PluginSpec::MaxScorePicker(PickerParameters {
            max_num_of_endpoints: 4
        })
    );
    assert_eq!(
        built("load-aware-scorer", json!({"threshold": null})),
        PluginSpec::LoadAwareScorer(LoadAware::default())
    );
    assert_eq!(built("queue-scorer", Value::Null), PluginSpec::QueueScorer);
}

#[test]
fn nested_parameters_are_read() {
    let parameters = json!({
        "strategy": "session_id",
        "encodedEndpointHeaderConfig": {"header": "X-Sticky"},
        "sessionIdConfig": {
            "sources": [{"header": "a"}, {"header": "b"}],
            "evictionTtlSeconds": 60,
            "evictionSweepSeconds": 5,
            "maxSessions": 10,
        },
        "profileName": "decode",
    });
    let expected = SessionAffinity {
        strategy: SessionStrategy::SessionId,
        encoded_endpoint_header_config: EncodedEndpointHeader {
            header: "X-Sticky".into(),
        },
        session_id_config: SessionIdConfig {
            sources: ["a", "b"]
                .map(|h| SessionSource { header: h.into() })
                .into(),
            eviction_ttl_seconds: 60,
            eviction_sweep_seconds: 5,
            max_sessions: 10,
        },
        profile_name: Some("decode".into()),
    };
    let spec = built("session-affinity-scorer", parameters);
    assert_eq!(spec, PluginSpec::SessionAffinityScorer(expected));
    let parameters = json!({
        "conditions": [{"metric": "waiting-queue", "maxValue": 5}],
        "fallbackOnEmpty": true,
    });
    let expected = Utilization {
        conditions: vec![Condition {
            metric: ConditionMetric::WaitingQueue,
            max_value: 5.0,
        }],
        fallback_on_empty: true,
    };
    assert_eq!(
        built("utilization-filter", parameters),
        PluginSpec::UtilizationFilter(expected)
    );
    let parameters = json!({
        "matchLabels": {"zone": "a"},
        "matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100"]}],
    });
    let expected = Selector {
        match_labels: [("zone".to_owned(), "a".to_owned())].into(),
        match_expressions: vec![Expression {
            key: "gpu".to_owned(),
            operator: Operator::In,
            values: vec!["h100".to_owned()],
        }],
    };
    assert_eq!(
        built("label-selector-filter", parameters),
        PluginSpec::LabelSelectorFilter(expected)
    );
}

#[test]
fn an_unknown_type_names_the_nearest() {
    let error = error("queue-scorrer", Value::Null);
    assert_eq!(error.kind, PluginErrorKind::UnknownType);
    assert_eq!(error.field, "type");
    assert_eq!(error.nearest, Some("queue-scorer"));
    assert!(error.known.contains(&"random-picker"));
    assert_eq!(
        error.to_string(),
        "plugin it: no plugin has the type \"queue-scorrer\" (did you mean queue-scorer?)"
    );
}

#[test]
fn a_type_of_llm_ds_that_is_missing_here_is_told_apart() {
    for info in PLUGIN_TYPES.iter().filter(|info| !info.supported) {
        let error = error(info.type_name, json!({"anything": 1}));
        assert_eq!(error.kind, PluginErrorKind::Unsupported);
        assert!(error.known.contains(&"queue-scorer"));
        assert!(!error.known.contains(&info.type_name));
    }
}

#[test]
fn unknown_parameters_are_faults_with_their_path() {
    let table = [
        (
            "load-aware-scorer",
            json!({"treshold": 1}),
            "treshold",
            Some("threshold"),
        ),
        ("queue-scorer", json!({"x": 1}), "x", None),
        (
            "session-affinity-scorer",
            json!({"sessionIdConfig": {"source": []}}),
            "sessionIdConfig.source",
            Some("sources"),
        ),
        (
            "session-affinity-scorer",
            json!({"sessionIdConfig": {"sources": [{"header": "a"}, {"header": "b", "Header": 1}]}}),
            "sessionIdConfig.sources[1].Header",
            Some("header"),
        ),
        (
            "utilization-filter",
            json!({"conditions": [{"metric": "waiting-queue", "maxValue": 1, "max": 2}]}),
            "conditions[0].max",
            None,
        ),
    ];
    for (type_name, parameters, field, nearest) in table {
        let error = error(type_name, parameters);
        assert_eq!(error.kind, PluginErrorKind::UnknownParameter, "{error}");
        assert_eq!((error.field.as_str(), error.nearest), (field, nearest));
    }
}

#[test]
fn wrong_values_are_faults_with_their_path() {
    let table = [
        (
            "max-score-picker",
            json!({"maxNumOfEndpoints": 0}),
            "maxNumOfEndpoints",
        ),
        (
            "max-score-picker",
            json!({"maxNumOfEndpoints": 1.5}),
            "maxNumOfEndpoints",
        ),
        (
            "max-score-picker",
            json!({"maxNumOfEndpoints": -1}),
            "maxNumOfEndpoints",
        ),
        (
            "max-score-picker",
            json!({"maxNumOfEndpoints": 4_294_967_296_u64}),
            "maxNumOfEndpoints",
        ),
        (
            "max-score-picker",
            json!({"maxNumOfEndpoints": "2"}),
            "maxNumOfEndpoints",
        ),
        ("max-score-picker", json!([]), ""),
        ("load-aware-scorer", json!({"threshold": 0}), "threshold"),
        ("load-aware-scorer", json!({"threshold": true}), "threshold"),
        (
            "active-request-scorer",
            json!({"maxBusyScore": 1.1}),
            "maxBusyScore",
        ),
        (
            "active-request-scorer",
            json!({"inFlightLoadProducerName": 1}),
            "inFlightLoadProducerName",
        ),
        (
            "prefix-cache-scorer",
            json!({"matchLengthWeight": -0.1}),
            "matchLengthWeight",
        ),
        (
            "prefix-cache-scorer",
            json!({"matchLengthScaleTokens": 0}),
            "matchLengthScaleTokens",
        ),
        (
            "token-load-scorer",
            json!({"queueThresholdTokens": -1}),
            "queueThresholdTokens",
        ),
        (
            "session-affinity-scorer",
            json!({"strategy": "cookie"}),
            "strategy",
        ),
        (
            "session-affinity-scorer",
            json!({"sessionIdConfig": 3}),
            "sessionIdConfig",
        ),
        (
            "session-affinity-scorer",
            json!({"sessionIdConfig": {"evictionTtlSeconds": 0}}),
            "sessionIdConfig.evictionTtlSeconds",
        ),
        (
            "session-affinity-scorer",
            json!({"sessionIdConfig": {"sources": [{}]}}),
            "sessionIdConfig.sources[0].header",
        ),
        ("by-label", json!({}), "label"),
        ("by-label", json!({"label": ""}), "label"),
        (
            "by-label",
            json!({"label": "a", "validValues": [1]}),
            "validValues",
        ),
        (
            "label-selector-filter",
            json!({"matchLabels": {"a": 1}}),
            "matchLabels.a",
        ),
        (
            "label-selector-filter",
            json!({"matchExpressions": [{"key": "a", "operator": "Is"}]}),
            "matchExpressions[0].operator",
        ),
        (
            "label-selector-filter",
            json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
            "matchExpressions[].values",
        ),
        (
            "utilization-filter",
            json!({"conditions": [{"metric": "cpu", "maxValue": 1}]}),
            "conditions[0].metric",
        ),
        (
            "utilization-filter",
            json!({"conditions": [{"metric": "waiting-queue"}]}),
            "conditions[0].maxValue",
        ),
        ("bounded-load-filter", json!({"factor": 0.9}), "factor"),
    ];
    for (type_name, parameters, field) in table {
        let error = error(type_name, parameters.clone());
        assert_eq!(
            error.kind,
            PluginErrorKind::BadValue,
            "{parameters} {error}"
        );
        assert_eq!(error.field, field, "{error}");
    }
}

/// What the table says a plugin's defaults are, against what it really gets.
#[test]
fn the_table_is_the_truth() {
    for info in PLUGIN_TYPES.iter().filter(|info| info.supported) {
        let required = match info.type_name {
            "by-label" => json!({"label": "x"}),
            _ => json!({}),
        };
        let spec = built(info.type_name, required);
        assert_eq!(spec.type_name(), info.type_name);
        assert_eq!(spec.kind(), info.kind, "{}", info.type_name);
        let written = serde_json::to_value(&spec).unwrap();
        assert_eq!(written["type"], info.type_name);
        for param in info
            .parameters
            .iter()
            .filter(|p| !p.default.is_empty() && !p.name.contains("[]"))
        {
            let pointer = format!("/parameters/{}", param.name.replace('.', "/"));
            let actual = written.pointer(&pointer).cloned().unwrap_or(Value::Null);
            let stated: Value = serde_json::from_str(param.default).unwrap();
            let same = match (actual.as_f64(), stated.as_f64()) {
                (Some(a), Some(b)) => a == b,
                _ => actual == stated,
            };
            assert!(same, "{} {}: {actual} {stated}", info.type_name, param.name);
        }
    }
}

/// Every parameter of the table is accepted, and every accepted one is in the table.
#[test]
fn the_table_lists_every_parameter() {
    for info in PLUGIN_TYPES.iter().filter(|info| info.supported) {
        let mut listed: Vec<_> = info
            .parameters
            .iter()
            .map(|p| p.name.split(['.', '[']).next().unwrap())
            .collect();
        listed.dedup();
        let mut parameters = json!({"\u{0}": 1});
        if info.type_name == "by-label" {
            parameters["label"] = json!("x");
        }
        let error = error(info.type_name, parameters);
        assert_eq!(error.kind, PluginErrorKind::UnknownParameter);
        let mut known = error.known.clone();
        known.sort_unstable();
        listed.sort_unstable();
        assert_eq!(known, listed, "{}", info.type_name);
    }
}

#[test]
fn names_and_kinds_are_distinct() {
    let mut names: Vec<_> = PLUGIN_TYPES.iter().map(|info| info.type_name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    for kind in [
        PluginKind::Filter,
        PluginKind::Scorer,
        PluginKind::Picker,
        PluginKind::ProfileHandler,
    ] {
        assert!(
            PLUGIN_TYPES
                .iter()
                .any(|info| info.kind == kind && info.supported)
        );
    }
}
