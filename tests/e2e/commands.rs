//! The command line of `serve` and `epp`: exit codes, and where they listen.

use std::process::{Command, Output};

use wicketgate_testkit::{
    TempDir,
    client::chat_call,
    cluster::{addresses, engines},
    eventually, free_address,
    process::Process,
};

use crate::wicketgate;

fn run(arguments: &[&str]) -> Output {
    Command::new(wicketgate()).args(arguments).output().unwrap()
}

/// Wrong configurations are refused at the start with code 2, the place, and what is wrong.
#[test]
fn a_wrong_configuration_is_refused_at_the_start() {
    let files = TempDir::new();
    let pool = "pools: [{name: main, endpoints: [{address: \"127.0.0.1:1\"}]}]\n";
    let session = "plugins:
- {type: session-affinity-scorer, parameters: {encodedEndpointHeaderConfig: {header: \"x-fair id\"}}}
";
    for (text, words) in [
        // S10: a header name that is none would make every request fail later.
        (format!("{pool}{session}"), vec!["x-fair id"]),
        (
            format!("{pool}telemetri: {{interval: 1s}}\n"),
            vec![":2:", "telemetri", "telemetry"],
        ),
        (
            format!("{pool}server: {{maxBodyBytes: many}}\n"),
            vec![":2:", "maxBodyBytes"],
        ),
        (
            format!("{pool}plugins: [{{type: queue-scorrer}}]\n"),
            vec!["queue-scorrer", "queue-scorer"],
        ),
        ("pools: [".to_owned(), vec![":1:"]),
        (String::new(), vec!["pool"]),
    ] {
        let file = files.write("wrong.yaml", &text).display().to_string();
        for front in ["serve", "epp"] {
            let output = run(&[front, "--config", &file]);
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{text}: {error}");
            assert_eq!(output.stdout, b"", "nothing on stdout");
            for word in &words {
                assert!(error.contains(word), "{text}: no {word:?} in {error}");
            }
        }
    }
    let cases: [&[&str]; 4] = [
        &["epp", "--config", "/no/such/file.yaml"],
        &["epp"],
        &["serve"],
        &[
            "serve",
            "--backend",
            "http://127.0.0.1:1",
            "--config",
            "x.yaml",
        ],
    ];
    for arguments in cases {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

/// An address that is taken is a failure, not a usage error, and is named.
#[test]
fn a_taken_address_is_a_failure() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let port = address.port().to_string();
    let metrics = free_address().port().to_string();
    let output = run(&[
        "serve",
        "--backend",
        "http://127.0.0.1:1",
        "--bind",
        "127.0.0.1",
        "--port",
        &port,
        "--metrics-port",
        &metrics,
    ]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains(&address.to_string()), "{error}");
}

/// `--backend` needs no file.
#[tokio::test(flavor = "multi_thread")]
async fn backends_on_the_command_line_are_enough() {
    let engines = engines(2).await;
    let urls: Vec<String> = addresses(&engines)
        .iter()
        .map(|at| format!("http://{at}"))
        .collect();
    let (data, metrics) = (free_address(), free_address());
    let (port, metrics) = (data.port().to_string(), metrics.port().to_string());
    let mut process = Process::start(
        wicketgate(),
        &[
            "serve",
            "--backend",
            &urls[0],
            "--backend",
            &urls[1],
            "--bind",
            "127.0.0.1",
            "--port",
            &port,
            "--metrics-port",
            &metrics,
            "--management-port",
            "0",
        ],
    );
    eventually("a listener", || async {
        tokio::net::TcpStream::connect(data).await.ok()
    })
    .await;
    for _ in 0..4 {
        assert_eq!(chat_call(data, &[]).await.status, 200);
    }
    assert_eq!(
        engines.iter().map(|engine| engine.stats().ok).sum::<u64>(),
        4
    );
    process.terminate().await;
    assert_eq!(process.wait().await, Some(0));
}

/// The overload scenario, shortened: what does not hang on how fast this machine is. Its aims are for a run of half a
/// minute on a quiet one.
#[test]
fn the_overload_scenario_counts_everybody() {
    for front in [&[][..], &["--envoy"]] {
        let mut arguments = vec!["demo", "--scenario", "overload", "--seconds", "4", "--json"];
        arguments.extend(front);
        let output = run(&arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = String::from_utf8(output.stdout).unwrap();
        let found: serde_json::Value =
            serde_json::from_str(line.trim()).unwrap_or_else(|error| panic!("{error}: {said}"));
        let count = |key: &str| found["requests"][key].as_u64().unwrap();
        let ended = ["ok", "shed", "failed", "cancelled"].map(count);
        assert_eq!(ended.iter().sum::<u64>(), count("offered"), "{found}");
        let [ok, shed, failed, cancelled] = ended;
        assert!(ok > 0 && shed > 0 && cancelled > 0, "{found}");
        assert_eq!((failed, &found["guards"]), (0, &0.into()), "{found}");
        assert!(found["steps_replayed"].as_u64().unwrap() > 0, "{found}");
        let bands: Vec<i64> = found["bands"]
            .as_array()
            .unwrap()
            .iter()
            .map(|band| band["priority"].as_i64().unwrap())
            .collect();
        assert_eq!(bands, [10, 0, -10]);
        assert_eq!(found["fairness"]["tenants"].as_array().unwrap().len(), 2);
        assert_eq!(found["engine"], "emulated");
    }
}
