//! Files that are right, files that are wrong and what is said of them, and files that are neither.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is its job"
)]

use proptest::prelude::*;
use wicketgate_config::{Config, json_schema, parse_endpoints, reference_markdown, table};
use wicketgate_scheduler::SchedulerSpec;

fn good(text: &str) -> Config {
    match Config::parse(text, "f") {
        Ok((config, _)) => config,
        Err(errors) => panic!("{errors}"),
    }
}

fn wrong(text: &str) -> String {
    match Config::parse(text, "f") {
        Ok(_) => panic!("accepted: {text}"),
        Err(errors) => errors.to_string(),
    }
}

#[test]
fn an_empty_file_is_our_default() {
    let config = good("");
    assert_eq!(config.scheduler, SchedulerSpec::default_ours());
    assert_eq!((config.http_port, config.max_body), (8080, 16 << 20));
    assert_eq!(config.retry_backoff.len(), 2);
    assert_eq!(good("# nothing\n---\n").http_port, 8080);
}

const LLMD: &str = r#"
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: metrics-data-source
- type: core-metrics-extractor
- type: queue-scorer
- type: kv-cache-utilization-scorer
  name: kv
- type: max-score-picker
  parameters:
    maxNumOfEndpoints: 2
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 2
  - pluginRef: kv
    weight: 2.5
  - pluginRef: max-score-picker
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
"#;

#[test]
fn an_llm_d_file_runs_unchanged() {
    let config = good(LLMD);
    let profile = &config.scheduler.profiles[0];
    let names: Vec<_> = profile
        .plugins
        .iter()
        .map(|p| (p.plugin.as_ref(), p.weight))
        .collect();
    assert_eq!(
        names,
        [
            ("queue-scorer", Some(2.0)),
            ("kv", Some(2.5)),
            ("max-score-picker", None)
        ]
    );
    let default = good("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n");
    assert_eq!(default.scheduler, SchedulerSpec::llmd_default());
}

#[test]
fn an_old_api_version_is_accepted_with_a_warning() {
    let text = LLMD.replace(
        "llm-d.ai/v1alpha1",
        "inference.networking.x-k8s.io/v1alpha1",
    );
    let (config, warnings) = Config::parse(&text, "f").unwrap();
    assert_eq!(config.scheduler, good(LLMD).scheduler);
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].line, 2);
}

const FULL: &str = r#"
server: {bind: 127.0.0.1, httpPort: 0, maxBodyBytes: 1Mi, decisionTimeout: 1m30s}
pools:
- name: a
  models: [m1, m2]
  endpoints:
  - {address: "http://10.0.0.1:8000", weight: 0, labels: {zone: "1"}}
  endpointsFile: /etc/endpoints.yaml
  breaker: {failures: 0, window: 10s}
- name: b
  default: true
  endpoints: [{address: "[::1]:8000", name: x, engine: sglang}]
  explore: 0.01
upstream: {retryBackoff: [], connectTimeout: 1s}
telemetry: {interval: 100ms, staleness: 3s}
scheduler: {seed: 7, recordDecisions: 10}
observability: {accessLog: true, logLevel: debug}
"#;

#[test]
fn every_section_arrives() {
    let config = good(FULL);
    assert_eq!((config.http_port, config.max_body), (0, 1 << 20));
    assert_eq!(config.decision_timeout.as_secs(), 90);
    assert_eq!(config.pools[0].endpoints[0].address, "10.0.0.1:8000");
    assert_eq!(config.pools[0].endpoints[0].weight, 0);
    assert_eq!(config.pools[0].policy.health.failures, 0);
    assert_eq!(config.pools[0].policy.stale_after, 3_000_000_000);
    assert_eq!(
        (config.pools[0].default, config.pools[1].default),
        (false, true)
    );
    assert!(config.retry_backoff.is_empty());
    assert_eq!((config.seed, config.record_decisions), (Some(7), 10));
}

#[test]
fn the_effective_configuration_reads_back_as_itself() {
    for text in ["", LLMD, FULL] {
        let config = good(text);
        let written = config.effective_yaml();
        let again = good(&written);
        assert_eq!(again, config, "{written}");
        assert_eq!(again.effective_yaml(), written);
    }
}

#[test]
fn backends_without_a_file() {
    let config =
        Config::from_backends(&["http://127.0.0.1:8001".into(), "127.0.0.1:8002".into()]).unwrap();
    let addresses: Vec<_> = config.pools[0]
        .endpoints
        .iter()
        .map(|e| e.address.as_str())
        .collect();
    assert_eq!(addresses, ["127.0.0.1:8001", "127.0.0.1:8002"]);
    assert!(config.pools[0].default);
    assert!(Config::from_backends(&["nonsense".into()]).is_err());
}

#[test]
fn what_is_said_of_wrong_files() {
    let picker = "plugins: [{type: max-score-picker}, {type: random-picker}, {type: queue-scorer}]\nschedulingProfiles:\n- name: d\n  plugins:\n";
    let cases: &[(&str, &str)] = &[
        (
            "serverr: {}",
            "f:1: serverr: unknown key `serverr`; did you mean `server`?",
        ),
        (
            "server:\n  httpport: 1",
            "f:2: server.httpport: unknown key `httpport`; did you mean `httpPort`?",
        ),
        (
            "flowControl: {defaultRequestTTl: 5s}",
            "unknown key `defaultRequestTTl`; did you mean `defaultRequestTTL`?",
        ),
        (
            "flowControl: {defaultRequestTTL: 5s}",
            "f:1: flowControl: `flowControl` is known in llm-d but not supported yet; remove it",
        ),
        (
            "featureGates: [flowControl]",
            "`flowControl` is known in llm-d but not supported yet",
        ),
        (
            "featureGates: [flowcontrol2]",
            "no feature gate is named `flowcontrol2`; did you mean `flowControl`?",
        ),
        (
            "server: {httpPort: 70000}",
            "f:1: server.httpPort: `70000` is not valid; expected a whole number from 0 to 65535",
        ),
        ("server: {httpPort: -1}", "`-1` is not valid"),
        (
            "server: {bind: localhost}",
            "server.bind: `localhost` is no IP address",
        ),
        (
            "server: {maxBodyBytes: lots}",
            "expected a size such as 1048576, 10Mi or 16M",
        ),
        (
            "server: {drainTimeout: 5}",
            "expected a duration such as 500ms or 1m30s",
        ),
        ("server: []", "f:1: server: expected a map of keys"),
        ("server: {tls: {certFile: a}}", "`keyFile` is missing"),
        ("pools: {}", "pools: expected a list"),
        (
            "pools:\n- endpoints:\n  - address: nonsense",
            "f:3: pools[0].endpoints[0].address: `nonsense` is no endpoint address: the port is missing",
        ),
        ("pools:\n- endpoints: [{}]", "`address` is missing"),
        (
            "pools: [{name: a, default: true}, {name: a, models: [m]}]",
            "`a` is the name of pools[0] too",
        ),
        (
            "pools: [{name: a, models: [m]}, {name: b, models: [m]}]",
            "`m` is served by pools[0] already",
        ),
        (
            "pools: [{name: a, default: true}, {name: b, default: true}]",
            "a second default pool",
        ),
        (
            "pools: [{name: a}, {name: b, default: true}]",
            "nothing would reach it",
        ),
        (
            "pools: [{endpoints: [{address: 'a:1'}, {address: 'a:1'}]}]",
            "is the name of pools[0].endpoints[0] too",
        ),
        (
            "telemetry: {staleness: 50ms}",
            "telemetry.staleness: 50ms is not longer than the interval of 50ms",
        ),
        (
            "telemetry: {interval: 1ms}",
            "telemetry.interval: 1ms is too short; at least 10ms",
        ),
        ("telemetry: {path: metrics}", "`metrics` is no path"),
        (
            "telemetry: {engine: vlm}",
            "`vlm` is not valid; expected one of vllm, sglang; did you mean `vllm`?",
        ),
        ("observability: {accessLog: yes}", "expected true or false"),
        (
            "plugins: [{type: queue-scorrer}]",
            "plugins[0].type: plugin queue-scorrer:",
        ),
        (
            "plugins: [{type: queue-scorrer}]",
            "did you mean queue-scorer?",
        ),
        ("plugins: [{type: latency-scorer}]", "not supported"),
        (
            "plugins: [{type: max-score-picker, parameters: {maxNumOfEndpoint: 2}}]",
            "did you mean maxNumOfEndpoints?",
        ),
        (
            "plugins: [{type: queue-scorer}, {type: queue-scorer}]",
            "a second plugin named `queue-scorer`",
        ),
        ("schedulingProfiles: [{name: a}]", "profiles need `plugins`"),
        (
            &format!("{picker}  - pluginRef: queue-scorer\n    weight: -1"),
            "f:6: schedulingProfiles[0].plugins[0].weight: a weight must be a number from 0 on, not -1",
        ),
        (
            &format!("{picker}  - pluginRef: queue-scorer\n    weight: NaN"),
            "`NaN` is not valid",
        ),
        (
            &format!("{picker}  - pluginRef: max-score-picker\n  - pluginRef: random-picker"),
            "more than one picker",
        ),
        (
            &format!("{picker}  - pluginRef: queue-score"),
            "no plugin is named `queue-score`; did you mean `queue-scorer`?",
        ),
        ("apiVersion: v1", "`v1` is not known"),
        ("a: 1\na: 2", "f:2: `a` stands here a second time"),
        ("a: &x 1\nb: *x", "anchors and aliases are not supported"),
        ("a: [1", "not YAML"),
        ("- 1", "expected a map of keys at the top"),
        ("server: {}\n---\nserver: {}", "f:2: a second document"),
        ("saturationDetector: {pluginRef: x}", "not supported yet"),
        (
            "requestHandler: {parsers: [{pluginRef: anthropic-parser}]}",
            "`anthropic-parser` is known in llm-d but not supported yet",
        ),
    ];
    for (text, expected) in cases {
        let said = wrong(text);
        assert!(
            said.contains(expected),
            "{text}\n said: {said}\n expected: {expected}"
        );
    }
}

#[test]
fn all_faults_are_said_at_once() {
    let said = wrong("server: {httpPort: x, bindd: 1}\ntelemetry: {jitter: 2}\n");
    assert_eq!(said.lines().count(), 3, "{said}");
}

#[test]
fn the_schema_knows_exactly_the_keys_of_the_table() {
    fn keys(fields: &[table::Field], path: &str, all: &mut Vec<String>) {
        for field in fields {
            let here = format!("{path}.{}", field.key);
            match field.shape {
                table::Shape::Map(fields) => keys(fields, &here, all),
                table::Shape::List(inner) => {
                    if let table::Shape::Map(fields) = inner {
                        keys(fields, &here, all);
                    }
                }
                _ => {}
            }
            all.push(here);
        }
    }
    fn schema_keys(schema: &serde_json::Value, path: &str, all: &mut Vec<String>) {
        let inner = schema.get("items").unwrap_or(schema);
        for (key, value) in inner
            .get("properties")
            .and_then(|p| p.as_object())
            .into_iter()
            .flatten()
        {
            let here = format!("{path}.{key}");
            schema_keys(value, &here, all);
            all.push(here);
        }
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    keys(table::ROOT, "", &mut ours);
    schema_keys(&json_schema(), "", &mut theirs);
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
    assert!(ours.len() > 80);
}

/// Every default that the reference states in a form that can be read is the default that holds.
#[test]
fn documented_defaults_hold() {
    fn check(
        fields: &[table::Field],
        path: &str,
        effective: &serde_json::Value,
        checked: &mut usize,
    ) {
        for field in fields {
            let value = effective.get(field.key);
            if let table::Shape::Map(fields) = field.shape {
                if let Some(value) = value {
                    check(fields, &format!("{path}.{}", field.key), value, checked);
                }
                continue;
            }
            let Some(value) = value else { continue };
            let shown = match value {
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let documented = match field.shape {
                table::Shape::Size => {
                    wicketgate_config::units::parse_size(field.default).map(|size| size.to_string())
                }
                table::Shape::Duration => wicketgate_config::units::parse_span(field.default)
                    .map(|span| format!("{}", wicketgate_config::units::Span(span))),
                table::Shape::List(_) => continue,
                table::Shape::Number(..) => {
                    Some(format!("{:?}", field.default.parse::<f64>().unwrap()))
                }
                _ => field.default.split(' ').next().map(str::to_owned),
            };
            assert_eq!(
                documented.as_deref(),
                Some(shown.as_str()),
                "{path}.{}",
                field.key
            );
            *checked += 1;
        }
    }
    let config = good("pools: [{}]");
    let effective = serde_json::to_value(serde_yaml_like(&config.effective_yaml())).unwrap();
    let mut checked = 0;
    check(table::ROOT, "", &effective, &mut checked);
    assert!(checked > 25, "{checked}");
}

/// The effective file's maps as JSON: enough of YAML for what is written there.
fn serde_yaml_like(text: &str) -> serde_json::Value {
    let mut stack: Vec<(usize, serde_json::Map<String, serde_json::Value>, String)> =
        vec![(0, serde_json::Map::new(), String::new())];
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let Some((key, value)) = line.trim().split_once(':') else {
            continue;
        };
        if key.starts_with('-') {
            continue;
        }
        while stack.last().is_some_and(|(at, ..)| *at > indent) {
            let (_, map, name) = stack.pop().unwrap();
            stack.last_mut().unwrap().1.insert(name, map.into());
        }
        let value = value.trim();
        if value.is_empty() {
            stack.push((indent + 2, serde_json::Map::new(), key.to_owned()));
        } else {
            let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
            stack.last_mut().unwrap().1.insert(key.to_owned(), value);
        }
    }
    while stack.len() > 1 {
        let (_, map, name) = stack.pop().unwrap();
        stack.last_mut().unwrap().1.insert(name, map.into());
    }
    stack.pop().unwrap().1.into()
}

#[test]
fn the_reference_page_is_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap();
    let table = reference_markdown();
    assert!(
        page.contains(table.trim()),
        "docs/configuration.md differs from the table; it should have:\n{table}"
    );
}

proptest! {
    #[test]
    fn any_text_is_survived(text in prop_oneof![
        ".{0,80}",
        "((server|pools|plugins|telemetry|- name|  type): ?([a-z0-9\\[\\]{}&*!|>-]{0,6})?\n){0,6}",
        "[\\[{:,\\- \n]{0,200}",
    ]) {
        let _ = Config::parse(&text, "f");
        let _ = parse_endpoints(&text, "f");
    }

    #[test]
    fn a_changed_byte_is_survived(index in 0..FULL.len(), byte in 0x20..0x7f_u8) {
        let mut text = FULL.as_bytes().to_vec();
        text[index] = byte;
        let text = String::from_utf8(text).unwrap();
        if let Ok((config, _)) = Config::parse(&text, "f") {
            prop_assert_eq!(good(&config.effective_yaml()), config);
        }
    }
}

#[test]
fn deep_nesting_is_refused_with_its_line() {
    for text in [
        "[".repeat(100_000),
        "- ".repeat(50_000),
        "a:\n".to_owned() + &" ".repeat(5000) + "b: 1",
        "{a: ".repeat(100_000),
    ] {
        assert!(wrong(&text).contains("nested deeper"), "{}", &text[..20]);
    }
}
