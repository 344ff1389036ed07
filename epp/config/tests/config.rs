//! What files come to: defaults, the llm-d dialect, warnings, endpoints from elsewhere.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is its job"
)]

use std::{net::IpAddr, path::PathBuf, time::Duration};

use wicketgate_config::{Config, Secret, parse_endpoints};
use wicketgate_scheduler::{PluginSpec, SchedulerSpec};

fn parse(text: &str) -> (Config, Vec<String>) {
    match Config::parse(text, "f") {
        Ok((config, warnings)) => {
            let warnings = warnings.iter().map(|warning| warning.shown("f")).collect();
            (config, warnings)
        }
        Err(errors) => panic!("{errors}"),
    }
}

fn good(text: &str) -> Config {
    parse(text).0
}

fn wrong(text: &str) -> String {
    match Config::parse(text, "f") {
        Ok(_) => panic!("accepted: {text}"),
        Err(errors) => errors.to_string(),
    }
}

const LLMD: &str = include_str!("good/llm-d-queue-kv.yaml");
const PREFIX: &str = include_str!("good/llm-d-prefix.yaml");
const SESSIONS: &str = include_str!("good/llm-d-sessions-flow-control-off.yaml");
const OURS: &str = include_str!("good/ours-full.yaml");

#[test]
fn an_empty_file_is_our_default() {
    let (config, warnings) = parse("");
    assert_eq!(warnings, [] as [&str; 0]);
    assert_eq!(config.scheduler, SchedulerSpec::default_ours());
    assert_eq!(config.bind, "0.0.0.0".parse::<IpAddr>().unwrap());
    assert_eq!(
        (
            config.http_port,
            config.ext_proc_port,
            config.health_port,
            config.metrics_port
        ),
        (8080, 9002, 9003, 9090)
    );
    assert_eq!((config.max_body, config.max_header), (16 << 20, 64 << 10));
    let seconds = |span: Duration| span.as_secs();
    assert_eq!(
        (
            seconds(config.connect_timeout),
            seconds(config.first_byte_timeout),
            seconds(config.total_timeout)
        ),
        (3, 60, 180)
    );
    assert_eq!(
        config.retry_backoff,
        [Duration::from_millis(200), Duration::from_millis(600)]
    );
    assert_eq!(
        (
            seconds(config.decision_timeout),
            seconds(config.drain_timeout)
        ),
        (120, 30)
    );
    assert_eq!(config.scrape_interval, Duration::from_millis(50));
    assert_eq!(
        (config.seed, config.pools.len(), config.bearer_token()),
        (None, 0, None)
    );
    for same in [
        "# nothing\n---\n",
        "---\n...\n",
        "~",
        "null",
        "{}",
        "\u{feff}",
        "%YAML 1.2\n---\n",
    ] {
        assert_eq!(good(same), config, "{same:?}");
    }
}

#[test]
fn an_llm_d_file_runs_unchanged() {
    let (config, warnings) = parse(LLMD);
    assert_eq!(warnings, [] as [&str; 0]);
    let profile = &config.scheduler.profiles[0];
    let plugins = profile.plugins.iter();
    let names: Vec<_> = plugins
        .map(|plugin| (&*plugin.plugin, plugin.weight))
        .collect();
    assert_eq!(
        names,
        [
            ("queue-scorer", Some(2.0)),
            ("kv-cache-utilization-scorer", Some(2.0)),
            ("max-score-picker", None)
        ]
    );
}

#[test]
fn without_plugins_each_dialect_has_its_own_default() {
    for head in [
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n",
        "apiVersion: llm-d.ai/v1alpha1\n",
        "kind: EndpointPickerConfig\nplugins: [{type: openai-parser}]\n",
    ] {
        assert_eq!(
            good(head).scheduler,
            SchedulerSpec::llmd_default(),
            "{head}"
        );
    }
    for head in [
        "apiVersion: wicketgate/v1\n",
        "kind: WicketgateConfig\n",
        "plugins: []\n",
    ] {
        assert_eq!(
            good(head).scheduler,
            SchedulerSpec::default_ours(),
            "{head}"
        );
    }
}

#[test]
fn an_old_api_version_is_accepted_with_a_warning() {
    for old in [
        "inference.networking.x-k8s.io/v1alpha1",
        "config.x-k8s.io/v1alpha1",
    ] {
        let (config, warnings) = parse(&LLMD.replace("llm-d.ai/v1alpha1", old));
        assert_eq!(config, good(LLMD));
        let said = format!("f:2: apiVersion: `{old}` is an old name; use `llm-d.ai/v1alpha1`");
        assert_eq!(warnings, [said]);
    }
}

#[test]
fn a_profile_without_a_picker_gets_the_declared_one() {
    let (config, warnings) = parse(PREFIX);
    let profile = &config.scheduler.profiles[0];
    assert_eq!(&*profile.plugins.last().unwrap().plugin, "picker");
    assert!(
        warnings
            .contains(&"f:25: schedulingProfiles[0]: names no picker and gets `picker`".to_owned())
    );
}

#[test]
fn without_profiles_every_filter_scorer_and_picker_is_used() {
    let (config, _) = parse(SESSIONS);
    let profile = &config.scheduler.profiles[0];
    let names: Vec<_> = profile
        .plugins
        .iter()
        .map(|plugin| &*plugin.plugin)
        .collect();
    assert_eq!(&*profile.name, "default");
    assert_eq!(
        names,
        [
            "active-request-scorer",
            "session-affinity-scorer",
            "utilization-filter",
            "weighted-random-picker"
        ]
    );
}

#[test]
fn flow_control_without_its_gate_is_checked_and_has_no_effect() {
    let (_, warnings) = parse(SESSIONS);
    assert_eq!(
        warnings,
        ["f:35: flowControl: has no effect: its feature gate is off"]
    );
}

#[test]
fn parameters_of_built_in_plugins_reach_the_scraper() {
    let config = good(SESSIONS);
    assert_eq!(config.scrape_interval, Duration::from_millis(100));
    assert_eq!(config.engine, wicketgate_config::Engine::Sglang);
    let own = format!("{SESSIONS}telemetry: {{interval: 1s, engine: vllm}}\n");
    let (config, warnings) = parse(&own);
    assert_eq!(config.scrape_interval, Duration::from_secs(1));
    assert_eq!(config.engine, wicketgate_config::Engine::Vllm);
    assert_eq!(
        warnings[..2],
        [
            "f:9: plugins[0].parameters.interval: has no effect: `telemetry.interval` is set",
            "f:13: plugins[1].parameters.defaultEngine: has no effect: `telemetry.engine` is set"
        ]
    );
}

#[test]
fn a_deprecated_parser_section_is_accepted_with_a_warning() {
    let (config, warnings) = parse("parser: {pluginRef: openai-parser}\n");
    assert_eq!(config, good(""));
    assert_eq!(
        warnings,
        ["f:1: parser: is deprecated; use `requestHandler.parsers`"]
    );
}

#[test]
fn an_unused_plugin_is_worth_a_warning() {
    let (_, warnings) = parse(
        "plugins:\n- type: queue-scorer\n- type: lora-affinity-scorer\nschedulingProfiles:\n- name: a\n  plugins: [{pluginRef: queue-scorer}]\n",
    );
    assert_eq!(
        warnings,
        ["f:3: plugins[1]: `lora-affinity-scorer` is used by no profile"]
    );
}

#[test]
fn unset_and_zero_differ() {
    let breaker = |text: &str| {
        good(&format!("pools: [{{{text}}}]")).pools[0]
            .policy
            .clone()
    };
    assert_eq!(breaker("").health.failures, 5);
    assert_eq!(breaker("breaker: {failures: 0}").health.failures, 0);
    assert_eq!(breaker("").slow_start.window, 10_000_000_000);
    assert_eq!(breaker("slowStart: {window: 0s}").slow_start.window, 0);
    assert_eq!(good("scheduler: {seed: 0}").seed, Some(0));
    assert_eq!(
        good("server: {drainTimeout: 0s}").drain_timeout,
        Duration::ZERO
    );
    assert!(
        good("upstream: {retryBackoff: []}")
            .retry_backoff
            .is_empty()
    );
    let weights = "plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, weight: 0}]}]";
    assert_eq!(
        good(weights).scheduler.profiles[0].plugins[0].weight,
        Some(0.0)
    );
}

#[test]
fn an_empty_key_counts_as_absent_and_is_said() {
    let (config, warnings) = parse("server:\n  httpPort:\n  tls: ~\npools:\n");
    assert_eq!(config, good(""));
    let said = |line, key| format!("f:{line}: {key}: is empty and counts as absent");
    assert_eq!(
        warnings,
        [
            said(2, "server.httpPort"),
            said(3, "server.tls"),
            said(4, "pools")
        ]
    );
    assert_eq!(
        wrong("server: {tls: {certFile: ~, keyFile: k}}"),
        "f:1: server.tls: `certFile` is empty: Certificate chain, PEM; read again when it changes."
    );
}

#[test]
fn every_section_arrives() {
    let config = good(OURS);
    assert_eq!(
        (config.bind, config.http_port),
        ("127.0.0.1".parse::<IpAddr>().unwrap(), 8081)
    );
    assert_eq!((config.max_body, config.workers), (3 << 19, 2));
    assert_eq!(config.decision_timeout, Duration::from_secs(90));
    assert!(config.expose_served_by && config.access_log);
    let tls = config.tls.ext_proc.as_ref().unwrap();
    assert_eq!(tls.client_ca, Some(PathBuf::from("/tls/ca.crt")));
    assert_eq!(config.tls.http.as_ref().unwrap().client_ca, None);
    let pool = &config.pools[0];
    assert_eq!(pool.models, ["m1", "2024"]);
    assert_eq!(
        (
            pool.endpoints[0].weight,
            pool.endpoints[0].labels["zone"].as_str()
        ),
        (0, "1")
    );
    assert_eq!(pool.endpoints[1].address, "[2001:db8::1]:8000");
    assert_eq!(
        pool.endpoints_file,
        Some(PathBuf::from("/etc/wicketgate/endpoints.yaml"))
    );
    assert_eq!(pool.policy.stale_after, 3_000_000_000);
    assert_eq!(
        (config.pools[0].default, config.pools[1].default),
        (false, true)
    );
    assert_eq!(config.pools[1].endpoints[0].address, "vllm-0.vllm:443");
    assert_eq!(config.pools[1].policy.explore, 0.01);
    assert_eq!(config.total_timeout, Duration::from_secs(300));
    assert_eq!(config.upstream_ca, Some(PathBuf::from("/tls/engines.crt")));
    assert_eq!(
        config.bearer_token(),
        Some(Secret::File("/secrets/token".into()))
    );
    assert_eq!((config.seed, config.record_decisions), (Some(u64::MAX), 10));
    assert_eq!(
        (config.scrape_jitter, config.scrape_max_page),
        (0.0, 1_000_000)
    );
    let plain = serde_json::to_value(&config).unwrap();
    assert_eq!(plain["pools"][0]["endpoints"][1]["engine"], "sglang");
}

#[test]
fn the_effective_file_of_an_empty_one_names_every_plugin() {
    let effective = good("").effective_yaml();
    for plugin in SchedulerSpec::default_ours().plugins {
        let line = format!("  - type: {}\n", plugin.plugin.type_name());
        assert!(effective.contains(&line), "{line} is not in\n{effective}");
    }
    assert_eq!(good(&effective), good(""));
}

#[test]
fn backends_without_a_file() {
    let urls = [
        "http://127.0.0.1:8001".to_owned(),
        "127.0.0.1:8002".to_owned(),
    ];
    let config = Config::from_backends(&urls).unwrap();
    let endpoints = config.pools[0].endpoints.iter();
    let addresses: Vec<_> = endpoints
        .map(|endpoint| endpoint.address.as_str())
        .collect();
    assert_eq!(addresses, ["127.0.0.1:8001", "127.0.0.1:8002"]);
    assert!(config.pools[0].default);
    assert_eq!(good(&config.effective_yaml()), config);
    let said = |urls: &[&str]| {
        let urls: Vec<_> = urls.iter().map(|url| (*url).to_owned()).collect();
        Config::from_backends(&urls).unwrap_err().to_string()
    };
    assert!(
        said(&["nonsense"])
            .starts_with("--backend: pools[0].endpoints[0].address: `nonsense` is no endpoint")
    );
    assert!(
        said(&["a:1", "http://a:1"]).contains("`a:1` is the address of pools[0].endpoints[0] too")
    );
}

#[test]
fn backends_beside_a_file_without_pools() {
    let config = good(LLMD)
        .with_backends(&["10.0.0.1:8000".to_owned()])
        .unwrap();
    assert_eq!(config.pools[0].endpoints[0].address, "10.0.0.1:8000");
    assert_eq!(config.scheduler, good(LLMD).scheduler);
    let both = good(OURS).with_backends(&["a:1".to_owned()]).unwrap_err();
    assert_eq!(
        both.to_string(),
        "--backend: the file has pools already; give endpoints in one place"
    );
}

#[test]
fn an_endpoints_file_goes_with_the_transport_of_the_configuration() {
    let https = "endpoints: [{address: \"https://a:1\"}]";
    assert_eq!(parse_endpoints(https, "e").unwrap()[0].tls, Some(true));
    assert_eq!(good(OURS).read_endpoints(https, "e").unwrap().len(), 1);
    let said = good("").read_endpoints(https, "e").unwrap_err().to_string();
    assert_eq!(
        said,
        "e:1: endpoints[0].address: `https://` needs `upstream.tls`, which is not set"
    );
}

#[test]
fn a_file_that_is_not_there() {
    let said = Config::load("/no/such/file.yaml".as_ref())
        .unwrap_err()
        .to_string();
    assert!(
        said.starts_with("/no/such/file.yaml: cannot be read: No such file"),
        "{said}"
    );
}

#[test]
fn sessions_take_their_parameters() {
    let config = good(SESSIONS);
    let session = config
        .scheduler
        .plugins
        .iter()
        .find_map(|instance| match &instance.plugin {
            PluginSpec::SessionAffinityScorer(session) => Some(session),
            _ => None,
        });
    assert_eq!(session.unwrap().session_id_config.eviction_ttl_seconds, 600);
}

#[test]
fn deep_nesting_is_refused() {
    for (text, said) in [
        ("[".repeat(65), "f:1: nested deeper than 64 levels"),
        ("- ".repeat(50_000), "f:1: nested deeper than 64 levels"),
        ("{a: ".repeat(65), "f:1: nested deeper than 64 levels"),
        (
            "[".repeat(100_000),
            "f:1: not YAML: recursion limit exceeded",
        ),
        ("a".repeat(5 << 20), "f: longer than 4194304 bytes"),
    ] {
        assert_eq!(wrong(&text), said);
    }
    let deep = format!("a:\n{}b: 1", " ".repeat(5000));
    assert!(wrong(&deep).starts_with("f:1: a: unknown key `a`"));
    let quoted = format!("observability: {{logLevel: \"{}\"}}", "[".repeat(100));
    assert!(wrong(&quoted).contains("is not valid; expected one of error"));
}

#[test]
fn faults_without_end_are_counted() {
    let many: String = (0..1000)
        .map(|index| format!("zebra{index}: 1\n"))
        .collect();
    let said = wrong(&many);
    assert_eq!(said.lines().count(), 201);
    assert_eq!(said.lines().last(), Some("f: and 800 more faults"));
}

/// C39: what a reload does not take over is named, and nothing else is.
#[test]
fn peers_to_start_from_and_secrets_are_read() {
    let config = good(
        "server: {managementTokenFile: /t}\nkvIndex: {seed: \"${env:S}\", events: {mode: discover}, warmFrom: {peers: [\"http://replica-0:9091/\", \"http://[::1]:1\"]}}",
    );
    let index = config.kv_index.unwrap();
    let warm = index.warm_from.unwrap();
    let peers: Vec<_> = warm
        .peers
        .iter()
        .map(|peer| (&*peer.address, peer.tls))
        .collect();
    assert_eq!(peers, [("replica-0:9091", false), ("[::1]:1", false)]);
    assert_eq!(warm.timeout, Duration::from_secs(10));
    assert_eq!(index.seed, Some(Secret::Env("S".to_owned())));
    assert_eq!(config.management.token, Some(Secret::File("/t".into())));
    let default = good("").management;
    assert!(default.bind.is_loopback());
    assert_eq!(
        (default.port, default.token, default.tls),
        (9091, None, None)
    );
}

#[test]
fn keys_that_need_a_restart_are_named() {
    let restart = |old: &str, new: &str| good(new).needs_restart(&good(old));
    let nothing: [&str; 0] = [];
    assert_eq!(restart(OURS, OURS), nothing);
    assert_eq!(
        restart(
            "server: {maxBodyBytes: 1Ki, decisionTimeout: 1s}\npools: [{endpoints: [{address: \"a:1\"}]}]",
            "server: {maxBodyBytes: 2Ki, decisionTimeout: 2s}\npools: [{explore: 0.5, endpoints: [{address: \"a:2\"}]}]\nplugins: [{type: queue-scorer}]\ntelemetry: {staleness: 9s}\nobservability: {accessLog: true}",
        ),
        nothing
    );
    assert_eq!(
        restart(
            "",
            "server: {httpPort: 1, tls: {certFile: c, keyFile: k}, drainTimeout: 1s}\nupstream: {totalTimeout: 7s, bearerTokenFile: t}\ntelemetry: {interval: 1s}\nscheduler: {seed: 3}",
        ),
        [
            "server.httpPort",
            "server.tls",
            "server.drainTimeout",
            "upstream.totalTimeout",
            "upstream.bearerToken",
            "telemetry.interval",
            "scheduler.seed"
        ]
    );
    let managed = "server: {managementPort: 1, managementBind: \"::1\", managementToken: \"${env:T}\", managementTls: {certFile: c, keyFile: k}}\nkvIndex: {seedFile: s}";
    assert_eq!(
        restart("kvIndex: {}", managed),
        [
            "server.managementPort",
            "server.managementBind",
            "server.managementToken",
            "server.managementTls",
            "kvIndex"
        ]
    );
    let file = |name: &str, address: &str| {
        format!("pools: [{{endpointsFile: {name}, endpoints: [{{address: \"{address}\"}}]}}]")
    };
    assert_eq!(
        restart(&file("a", "a:1"), &file("b", "a:1")),
        ["pools[0].endpointsFile"]
    );
    assert_eq!(
        restart(&file("a", "a:1"), &file("a", "a:2")),
        ["pools[0].endpoints"]
    );
}

/// An index without a word, whosever file it is; only ours asks engines for their events unasked.
#[test]
fn the_prefix_index_is_on_unless_it_is_turned_off() {
    use wicketgate_config::KvEvents;
    let events = |text: &str| {
        let (config, _) = Config::parse(text, "f").unwrap();
        // What is given on the command line besides changes nothing of it.
        let with = config
            .clone()
            .with_backends(&["10.0.0.1:8000".to_owned()])
            .unwrap();
        assert_eq!(with.kv_index, config.kv_index);
        config.kv_index.map(|index| index.events)
    };
    let llmd = "kind: EndpointPickerConfig\n";
    assert_eq!(events(""), Some(KvEvents::Auto));
    assert_eq!(events("kvIndex: {blockSize: 32}"), Some(KvEvents::Auto));
    assert_eq!(events(llmd), Some(KvEvents::Off));
    let asked = format!("{llmd}kvIndex: {{events: {{mode: auto}}}}");
    assert_eq!(events(&asked), Some(KvEvents::Auto));
    let precise = format!("{llmd}plugins: [{{type: precise-prefix-cache-producer}}]");
    let port = KvEvents::Connect {
        port: 5557,
        replay_port: None,
        ranks: 1,
    };
    assert_eq!(events(&precise), Some(port));
    for off in ["", llmd] {
        assert_eq!(events(&format!("{off}kvIndex: {{enabled: false}}")), None);
    }
    let backends = Config::from_backends(&["10.0.0.1:8000".to_owned()]).unwrap();
    assert_eq!(backends.kv_index.unwrap().events, KvEvents::Auto);
}
