//! The benchmarks from end to end, small. This test's own binary plays the children, so it has no harness: called
//! with `bench ...` it is the command line, otherwise it runs the tests.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test without a harness: a panic is its failure, and its report goes to stderr"
)]

use std::process::{Command, ExitCode, Output};

use clap::Parser as _;
use serde_json::Value;
use wicketgate_bench::{BenchCommand, bench};

#[derive(clap::Parser)]
enum Cli {
    #[command(subcommand)]
    Bench(BenchCommand),
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("bench") {
        let Cli::Bench(command) = Cli::parse();
        return bench(command);
    }
    let filter = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let tests: [(&str, fn()); 9] = [
        ("admission", admission),
        ("schedule", schedule),
        ("scrape", scrape),
        ("extproc_closed_loop", extproc_closed_loop),
        ("extproc_open_loop_of_streams", extproc_open_loop_of_streams),
        ("serve", serve),
        ("load", load),
        ("index", index),
        ("tokenize", tokenize),
    ];
    for (name, test) in tests {
        if filter.as_deref().is_none_or(|filter| name.contains(filter)) {
            test();
            eprintln!("test {name} ... ok");
        }
    }
    ExitCode::SUCCESS
}

/// A benchmark's exit code and the object on its last line.
fn measured(line: &str) -> (i32, Value, Output) {
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this).args(line.split(' ')).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let last = text.lines().last().unwrap_or_default();
    let value = serde_json::from_str(last).unwrap_or(Value::Null);
    (output.status.code().unwrap(), value, output)
}

/// Every one of these keys holds a number above zero.
fn has_numbers(value: &Value, pointers: &[&str]) {
    for pointer in pointers {
        let number = value.pointer(pointer).and_then(Value::as_f64);
        assert!(
            number.is_some_and(|number| number > 0.0),
            "{pointer} in {value}"
        );
    }
}

fn admission() {
    let line = "bench admission --flows 50 --depth 500 --cancels 2000 --seconds 0.1 --json";
    let (code, value, output) = measured(line);
    assert_eq!(code, 0, "{output:?}");
    assert_eq!(
        (value["flows"].as_u64(), value["bands"].as_u64()),
        (Some(50), Some(5))
    );
    has_numbers(
        &value,
        &[
            "/enqueue_dispatch_per_s",
            "/cancel_per_s",
            "/cancel_100k_ms",
            "/p50_us",
            "/p99_us",
            "/depth_ratio",
            "/operations_us/turn/p99",
            "/by_policy/drr",
        ],
    );
}

fn schedule() {
    let (code, value, output) = measured("bench schedule --endpoints 25 --seconds 0.1 --json");
    assert_eq!(code, 0, "{output:?}");
    assert_eq!(value["endpoints"], 25);
    has_numbers(
        &value,
        &[
            "/decision_us/p50",
            "/decision_us/p99",
            "/decisions_per_s",
            "/decisions",
        ],
    );
}

fn tokenize() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../.venv/tokenizers/qwen3");
    let line =
        format!("bench tokenize --tokenizer {folder} --tokens 2000 --cold 1 --turns 3 --json");
    let (code, value, output) = measured(&line);
    if !std::path::Path::new(folder).exists() {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI needs tokenizers: scripts/setup-test-env.sh"
        );
        assert_eq!(code, 1, "{output:?}");
        eprintln!("skipped: tokenizers absent, run scripts/setup-test-env.sh");
        return;
    }
    assert_eq!(code, 0, "{output:?}");
    let keys = [
        "/tokens_per_s",
        "/cold_us",
        "/next_turn_us",
        "/prompt_tokens",
    ];
    has_numbers(&value, &keys);
}

fn index() {
    let line = "bench index --placements 20000 --large 40000 --lookups 200 --rounds 2 --json";
    let (code, value, output) = measured(line);
    assert_eq!(code, 0, "{output:?}");
    // Whole chains of 1024.
    assert_eq!(value["placements"], 19 * 1024);
    assert_eq!(value["threads"], 1);
    assert_eq!(value["answers"]["wrong"], 0);
    assert!(value.get("peers").is_none());
    has_numbers(
        &value,
        &[
            "/endpoints",
            "/store_blocks_per_s",
            "/remove_blocks_per_s",
            "/message_blocks_per_s",
            "/lookup_us/hit_1k/p50",
            "/lookup_us/hit_1k/p99",
            "/lookup_us/hit_1k_under_events/p99",
            "/lookup_us/ragged_8k/p50",
            "/lookup_us/ragged_8k/p99",
            "/lookup_us/miss/p50",
            "/prompt_us/1k/p50",
            "/events_per_s",
            "/rows/distinct_large/store_blocks_per_s",
            "/rows/shared/hit_us/p50",
            "/rows/decode/remove_blocks_per_s",
            "/rows/hot/hit_us/p50",
        ],
    );
    if cfg!(all(target_os = "linux", target_env = "gnu")) {
        has_numbers(&value, &["/bytes_per_placement"]);
    }
    let (code, _, output) = measured("bench index --peers --json");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(code, 2, "{output:?}");
    assert!(said.contains("make bench"), "{said}");
}

fn scrape() {
    let line = "bench scrape --endpoints 5 --interval 200ms --seconds 1 --json";
    let (code, value, output) = measured(line);
    // A busy machine may scrape less often than asked; that is said with code 3, and is no fault of the counts.
    assert!(code == 0 || code == 3, "{output:?}");
    assert_eq!(value["errors"], 0);
    assert_eq!(value["valid"], code == 0);
    has_numbers(
        &value,
        &[
            "/endpoints",
            "/interval_ms",
            "/scrapes_per_s",
            "/cores",
            "/rss_mb",
        ],
    );
}

const EXTPROC: [&str; 10] = [
    "/offered_rps",
    "/achieved_rps",
    "/prompt_tokens",
    "/endpoints",
    "/latency_us/p50",
    "/latency_us/p99",
    "/cores",
    "/core_s_per_request",
    "/rss_mb",
    "/ratio",
];
const FLOOR: [&str; 5] = [
    "/floor/achieved_rps",
    "/floor/latency_us/p99",
    "/floor/cores",
    "/floor/core_s_per_request",
    "/floor/rss_mb",
];

fn extproc_closed_loop() {
    let line = "bench extproc --prompt-bytes 40k --concurrency 4 --endpoints 3 --seconds 0.4 --rounds 2 --json";
    let (code, value, output) = measured(line);
    assert_eq!(code, 0, "{output:?}");
    assert_eq!(value["prompt_tokens"], 10240);
    has_numbers(&value, &EXTPROC);
    has_numbers(&value, &FLOOR);
}

fn extproc_open_loop_of_streams() {
    let line = "bench extproc --rate 50 --events 16 --endpoints 2 --seconds 0.6 --rounds 2 --json";
    let (code, value, output) = measured(line);
    // Sent late on a busy machine is said with code 3; wrong counts would be said in other words.
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        code == 0 || said.contains("late") || said.contains("instead of 50"),
        "{output:?}"
    );
    assert_eq!(
        (value["offered_rps"].as_f64(), value["events"].as_u64()),
        (Some(50.0), Some(16))
    );
    has_numbers(&value, &EXTPROC);
}

fn serve() {
    let line = "bench serve --body 2k,3000 --concurrency 4 --rounds 2 --seconds 0.1 --json";
    let (code, value, output) = measured(line);
    assert_eq!(code, 0, "{output:?}");
    assert_eq!(value["stages"]["scheduler"], value["requests"]);
    assert_eq!(value["stages"]["admission"], value["requests"]);
    has_numbers(
        &value,
        &[
            "/rps",
            "/us_per_request/2k",
            "/us_per_request/3000",
            "/sse64_us",
            "/rss_mb",
        ],
    );
    assert!(value.pointer("/added_us/p50").is_some_and(Value::is_number));
    assert!(value.pointer("/added_us/p99").is_some_and(Value::is_number));
}

fn load() {
    let (code, _, output) = measured("bench load --target 127.0.0.1:1 --rate 5,5");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(code, 2);
    assert!(said.contains("measured twice"), "{said}");
    // Nobody listens on port 1: all fail, and the load is valid all the same.
    let line =
        "bench load --target http://127.0.0.1:1 --rate 20,40 --seconds 0.5 --lag-floor 60s --json";
    let (code, value, output) = measured(line);
    assert_eq!(code, 0, "{output:?}");
    let steps = value["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 2);
    for step in steps {
        assert_eq!(step["requests"]["failed"], step["requests"]["offered"]);
        assert_eq!(step["requests"]["ok"], 0);
    }
}
