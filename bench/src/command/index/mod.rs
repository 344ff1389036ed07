//! The prefix index alone: what events and lookups cost and how large it is, beside other indexes in the same run.

mod ours;
mod programs;

use std::{collections::BTreeMap, io, process::ExitCode};

use clap::Args;
use serde_json::{Map, Value, json};
use wicketgate_bench_index::{Quantiles, Rate, Report, Shape, Task, busy};

use super::Output;
use crate::{
    measure::{median, round},
    report::{Outcome, progress, say},
};

use ours::Ours;
use programs::{PEERS, Program, peers_program};

/// Flags of `bench index`.
#[derive(Clone, Debug, Args)]
pub struct IndexArgs {
    /// Endpoints that store and remove
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=512))]
    endpoints: u64,
    /// Placements, a placement being a block at an endpoint
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1024..=100_000_000))]
    placements: u64,
    /// Placements of the large row; 0 leaves it out
    #[arg(long, value_name = "COUNT", default_value_t = 8_000_000, value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    large: u64,
    /// Blocks of a chain
    #[arg(long, value_name = "BLOCKS", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(4..=8192))]
    chain: u64,
    /// Blocks of an event
    #[arg(long, value_name = "BLOCKS", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=8192))]
    event: u64,
    /// Lookups to time, each time
    #[arg(long, value_name = "COUNT", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(64..=10_000_000))]
    lookups: u64,
    /// Times that everything is measured, all indexes in turn; the median counts
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Also measure dynamo-kv-router and kv-index (make bench builds them)
    #[arg(long)]
    peers: bool,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Why a run did not come about.
pub(super) enum Refused {
    Usage(String),
    Failed(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        Refused::Failed(error)
    }
}

/// Rows in the order in which they are measured; all but the large one as often as there are rounds.
fn tasks(args: &IndexArgs) -> Vec<(&'static str, Task)> {
    let shape = |placements: u64| Shape {
        endpoints: args.endpoints as usize,
        chain: args.chain as usize,
        event: args.event as usize,
        placements: placements as usize,
        lookups: args.lookups as usize,
    };
    let usual = shape(args.placements);
    let mut tasks = vec![
        ("distinct", Task::Distinct(usual)),
        ("shared", Task::Shared(usual)),
        ("decode", Task::Decode(usual)),
        ("hot", Task::Hot(usual)),
        ("ragged", Task::Ragged(usual)),
        ("prompt", Task::Prompt(usual)),
    ];
    if args.large > 0 {
        tasks.push((LARGE, Task::Distinct(shape(args.large))));
    }
    tasks
}

const LARGE: &str = "distinct_large";

pub(super) fn run(args: &IndexArgs) -> Result<Outcome, Refused> {
    let mut programs = vec![Program::ours()?];
    if args.peers {
        let program = peers_program()?;
        if !program.is_file() {
            return Err(Refused::Usage(format!(
                "--peers needs {PEERS} beside this program: `make bench ARGS=\"index --peers\"` builds it"
            )));
        }
        programs.extend(Program::peers(&program)?);
    }
    let mut measured: Vec<Measured> = programs.iter().map(|_| Measured::default()).collect();
    for round in 0..args.rounds {
        for (row, task) in tasks(args) {
            // It takes as long as all others.
            if row == LARGE && round > args.rounds / 2 {
                continue;
            }
            progress(&format!("round {} of {}: {row}", round + 1, args.rounds));
            for (program, measured) in programs.iter_mut().zip(&mut measured) {
                let report = program.run(&task)?;
                measured.rows.entry(row).or_default().push(report);
            }
        }
    }
    let (endpoints, event) = (args.endpoints as usize, args.event as usize);
    let messages: Vec<Option<f64>> = (0..args.rounds)
        .map(|_| ours::messages(endpoints, event, args.placements.min(400_000) as usize))
        .collect();
    let mut results = programs.iter().zip(&measured);
    let mut outcome = Outcome::new();
    let Some((_, own)) = results.next() else {
        return Ok(outcome);
    };
    let peers: Vec<(&str, &Measured)> = results
        .map(|(program, measured)| (program.name.as_str(), measured))
        .collect();
    table(&mut outcome, own, &peers);
    let mut json = own.json(args);
    let per_s: Option<Vec<f64>> = messages.into_iter().collect();
    outcome.require(per_s.is_some(), || "a message was not applied".to_owned());
    let per_s = round(median(per_s.unwrap_or_default()), 0);
    outcome.row("messages", format!("{:.1} M blocks/s", per_s / 1e6));
    json.insert("message_blocks_per_s".to_owned(), per_s.into());
    if args.peers {
        let peers = peers
            .iter()
            .map(|(name, peer)| ((*name).to_owned(), Value::Object(peer.json(args))))
            .collect();
        json.insert("peers".to_owned(), Value::Object(peers));
    }
    outcome.json = Value::Object(json);
    let (checked, wrong) = own.answers();
    outcome.require(checked > 0 && wrong == 0, || {
        format!("{wrong} of {checked} lookups had a wrong answer")
    });
    Ok(outcome)
}

/// Our index in the process of a child: does what it is told on standard input.
pub(super) fn serve() -> ExitCode {
    match wicketgate_bench_index::serve::<Ours>(Some(busy::<Ours>)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// What one index did.
#[derive(Default)]
struct Measured {
    rows: BTreeMap<&'static str, Vec<Report>>,
}

impl Measured {
    /// The median over the rounds of what a row measured.
    fn middle(&self, row: &str, what: impl Fn(&Report) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.rows.get(row)?.iter().filter_map(what).collect();
        (!values.is_empty()).then(|| median(values))
    }

    /// The same in every round.
    fn placements(&self, row: &str) -> Option<u64> {
        self.rows.get(row)?.first().map(|report| report.placements)
    }

    fn rate(&self, row: &str, what: impl Fn(&Report) -> Option<Rate>) -> [Option<f64>; 2] {
        let per_s = self.middle(row, |report| what(report).map(|rate| rate.per_s));
        let per_cpu_s = self.middle(row, |report| what(report)?.per_cpu_s);
        [per_s, per_cpu_s].map(|rate| rate.map(|rate| round(rate, 0)))
    }

    fn times(&self, row: &str, what: impl Fn(&Report) -> Option<Quantiles>) -> Value {
        let at = |quantile: fn(Quantiles) -> f64| {
            let value = self.middle(row, |report| what(report).map(quantile));
            value.map(|value| round(value, 3))
        };
        let (p50, p99) = (at(|times| times.p50), at(|times| times.p99));
        match p50 {
            Some(_) => json!({ "p50": p50, "p99": p99 }),
            None => Value::Null,
        }
    }

    fn bytes(&self, row: &str) -> Option<f64> {
        let bytes = self.middle(row, |report| report.bytes_per_placement);
        bytes.map(|bytes| round(bytes, 2))
    }

    /// Answers that were checked, and those that were wrong.
    fn answers(&self) -> (u64, u64) {
        let reports = self.rows.values().flatten();
        reports.fold((0, 0), |(checked, wrong), report| {
            (checked + report.checked, wrong + report.wrong)
        })
    }

    fn row(&self, row: &str) -> Value {
        let ([store, store_cpu], [remove, remove_cpu]) = (
            self.rate(row, |report| report.store),
            self.rate(row, |report| report.remove),
        );
        let all = json!({
            "placements": self.placements(row),
            "store_blocks_per_s": store,
            "store_blocks_per_cpu_s": store_cpu,
            "remove_blocks_per_s": remove,
            "remove_blocks_per_cpu_s": remove_cpu,
            "bytes_per_placement": self.bytes(row),
            "hit_us": self.times(row, |report| report.hit),
            "miss_us": self.times(row, |report| report.miss),
        });
        let Value::Object(all) = all else {
            return all;
        };
        let measured = all.into_iter().filter(|(_, value)| !value.is_null());
        Value::Object(measured.collect())
    }

    fn json(&self, args: &IndexArgs) -> Map<String, Value> {
        let [store, store_cpu] = self.rate("distinct", |report| report.store);
        let [remove, remove_cpu] = self.rate("distinct", |report| report.remove);
        let (checked, wrong) = self.answers();
        let rows = self.rows.keys().filter(|row| **row != "prompt");
        let rows: Map<String, Value> = rows.map(|row| ((*row).to_owned(), self.row(row))).collect();
        let events = self.middle("hot", |report| report.events_per_s);
        let json = json!({
            "endpoints": args.endpoints,
            "placements": self.placements("distinct"),
            "threads": 1,
            "chain_blocks": args.chain,
            "event_blocks": args.event,
            "rounds": args.rounds,
            "store_blocks_per_s": store,
            "store_blocks_per_cpu_s": store_cpu,
            "remove_blocks_per_s": remove,
            "remove_blocks_per_cpu_s": remove_cpu,
            "lookup_us": {
                "hit_1k": self.times("hot", |report| report.hit),
                "hit_1k_under_events": self.times("hot", |report| report.hit_under_events),
                "ragged_8k": self.times("ragged", |report| report.hit),
                "miss": self.times("distinct", |report| report.miss),
            },
            "events_per_s": events.map(|events| round(events, 0)),
            "prompt_us": {
                "1k": self.times("prompt", |report| report.prompt_1k),
                "8k": self.times("prompt", |report| report.prompt_8k),
            },
            "bytes_per_placement": self.bytes("distinct"),
            "rows": rows,
            "answers": { "checked": checked, "wrong": wrong },
        });
        match json {
            Value::Object(json) => json,
            _ => Map::new(),
        }
    }
}

/// The rows for people: ours, and what each peer has.
fn table(outcome: &mut Outcome, own: &Measured, peers: &[(&str, &Measured)]) {
    let mut row = |what: &str, of: &dyn Fn(&Measured) -> Option<String>| {
        let Some(mut text) = of(own) else { return };
        for (name, peer) in peers {
            let theirs = of(peer).unwrap_or_else(|| "-".to_owned());
            text.push_str(&format!("; {name} {theirs}"));
        }
        outcome.row(what, text);
    };
    let millions = |rate: [Option<f64>; 2]| rate[0].map(|rate| format!("{:.1} M/s", rate / 1e6));
    let micros = |times: Value| {
        let at = |quantile: &str| times.get(quantile).and_then(Value::as_f64);
        Some(format!("{:.3} / {:.3} us", at("p50")?, at("p99")?))
    };
    for name in ["distinct", LARGE, "shared", "decode", "hot", "ragged"] {
        row(&format!("{name}: stored"), &|of| {
            millions(of.rate(name, |report| report.store))
        });
        row(&format!("{name}: removed"), &|of| {
            millions(of.rate(name, |report| report.remove))
        });
        row(&format!("{name}: bytes"), &|of| {
            of.bytes(name).map(|bytes| format!("{bytes:.1}"))
        });
        row(&format!("{name}: hit p50 / p99"), &|of| {
            micros(of.times(name, |report| report.hit))
        });
        row(&format!("{name}: hit under events"), &|of| {
            micros(of.times(name, |report| report.hit_under_events))
        });
        row(&format!("{name}: miss"), &|of| {
            micros(of.times(name, |report| report.miss))
        });
    }
    row("prompt of 1k: query made", &|of| {
        micros(of.times("prompt", |report| report.prompt_1k))
    });
}
