//! `wicketgate bench ...`: one file per benchmark.

mod admission;
mod extproc;
mod index;
mod load;
mod schedule;
mod scrape;
mod serve;
mod tokenize;

use std::{io, process::ExitCode, time::Duration};

use clap::{Args, Subcommand};

use crate::{
    child,
    report::{Outcome, say},
};

/// Bad usage.
const USAGE: u8 = 2;

/// What to measure.
///
/// Each prints a short table. The exit code is 0 when the result counts, 1 when the run failed, 2 for bad usage and 3
/// when the result is invalid: the load was not offered as asked, or counters do not agree.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Open-loop load on an OpenAI-compatible server
    Load(load::LoadArgs),
    /// The queues alone: what enqueue, dispatch and cancel cost
    Admission(admission::AdmissionArgs),
    /// The scheduler alone: how long a decision takes
    Schedule(schedule::ScheduleArgs),
    /// Scraping many engines: what it costs while nothing else happens
    Scrape(scrape::ScrapeArgs),
    /// The picker for Envoy beside a bare ext_proc server
    Extproc(extproc::ExtprocArgs),
    /// The HTTP gateway beside no gateway at all
    Serve(serve::ServeArgs),
    /// The prefix index alone: what events and lookups cost, and how large it is
    Index(index::IndexArgs),
    /// Prompts to tokens in process: a new conversation, and its next turn
    Tokenize(tokenize::TokenizeArgs),
    /// A part of a benchmark, in a process of its own
    #[command(hide = true)]
    Child {
        /// What it is, as JSON
        role: String,
    },
    /// Our side of the index benchmark, in a process of its own
    #[command(hide = true)]
    IndexChild,
}

/// How a result is told.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Output {
    /// Print one JSON object on the last line
    #[arg(long)]
    json: bool,
}

/// Measures, and tells the result on standard output.
pub fn bench(command: BenchCommand) -> ExitCode {
    match command {
        BenchCommand::Child { role } => child::run(&role),
        BenchCommand::IndexChild => index::serve(),
        BenchCommand::Load(args) => load::run(&args),
        BenchCommand::Admission(args) => tell(args.output, admission::run(&args)),
        BenchCommand::Schedule(args) => tell(args.output, schedule::run(&args)),
        BenchCommand::Scrape(args) => tell(args.output, block_on(scrape::run(&args))),
        BenchCommand::Extproc(args) => tell(args.output, block_on(extproc::run(&args))),
        BenchCommand::Serve(args) => tell(args.output, block_on(serve::run(&args))),
        BenchCommand::Index(args) => match index::run(&args) {
            Ok(outcome) => outcome.tell(args.output.json),
            Err(index::Refused::Usage(what)) => usage(what),
            Err(index::Refused::Failed(error)) => tell(args.output, Err(error)),
        },
        BenchCommand::Tokenize(args) => tell(args.output, tokenize::run(&args)),
    }
}

fn tell(output: Output, outcome: io::Result<Outcome>) -> ExitCode {
    match outcome {
        Ok(outcome) => outcome.tell(output.json),
        Err(error) => {
            say(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Runs a future on a runtime with a worker per core.
fn block_on<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    crate::measure::raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(future);
    runtime.shutdown_background();
    result
}

/// Bad usage, in words.
fn usage(what: impl std::fmt::Display) -> ExitCode {
    say(&what.to_string());
    ExitCode::from(USAGE)
}

/// A duration as `50ms` or `1m30s`, for clap.
fn duration(text: &str) -> Result<Duration, String> {
    let span = wicketgate_config::units::parse_span(text);
    span.ok_or_else(|| format!("{text} is not a duration like 50ms"))
}

/// A size in bytes as `2048` or `32k`, for clap.
fn size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1 << 10),
        None => (text, 1),
    };
    let count: Option<usize> = digits.parse().ok();
    let bytes = count.and_then(|count| count.checked_mul(unit));
    let bytes = bytes.filter(|bytes| (256..=16 << 20).contains(bytes));
    bytes.ok_or_else(|| format!("{text} is not a size from 256 bytes to 16384k"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser, Debug)]
    struct Cli {
        #[command(subcommand)]
        command: BenchCommand,
    }

    fn parse(line: &str) -> Result<BenchCommand, String> {
        let parsed = Cli::try_parse_from(line.split(' '));
        parsed
            .map(|cli| cli.command)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn sizes() {
        assert_eq!(size("2048"), Ok(2048));
        assert_eq!(size("32k"), Ok(32 << 10));
        for bad in ["", "k", "12", "-1", "1m", "99999999999999999999k"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lines_that_the_documents_show_are_understood() {
        for line in [
            "bench admission --json",
            "bench schedule --endpoints 100",
            "bench scrape --endpoints 100 --interval 50ms --seconds 10 --json",
            "bench extproc --prompt-bytes 2048 --concurrency 16",
            "bench extproc --prompt-bytes 32k --rate 500 --json",
            "bench serve --body 2k,32k,128k --json",
            "bench index --peers --json",
            "bench tokenize --tokenizer .venv/tokenizers/llama3_1 --tokens 100000 --json",
            "bench load --target http://127.0.0.1:8080 --rate 10,20 --seconds 5 --json",
        ] {
            assert!(parse(line).is_ok(), "{line}: {:?}", parse(line));
        }
        assert!(parse("bench extproc --rate 5 --concurrency 5").is_err());
        assert!(parse("bench scrape --interval soon").is_err());
    }
}
