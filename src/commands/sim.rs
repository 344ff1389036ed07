//! `sim`: recorded runs. The simulator itself is not built yet; docs/gaps.md says so.

use std::{fs::File, io::BufReader, path::PathBuf, process::ExitCode};

use clap::Subcommand;
use wicketgate_config::Config;
use wicketgate_pool::replay::replay;

use super::{USAGE, fail, print};

/// `wicketgate sim ...`
#[derive(Subcommand)]
pub(crate) enum SimCommand {
    /// Play a recorded run again; fails at the first decision that differs
    Replay {
        /// The log that `--record` wrote
        file: PathBuf,
        /// Decide by this configuration's plugins and weights instead of the recorded ones
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn sim(command: &SimCommand) -> ExitCode {
    let SimCommand::Replay { file, config, json } = command;
    let other = match config.as_deref().map(Config::load).transpose() {
        Ok(other) => other.map(|(config, _)| config.scheduler),
        Err(errors) => return fail(USAGE, errors),
    };
    let log = match File::open(file) {
        Ok(log) => BufReader::new(log),
        Err(error) => return fail(USAGE, format!("{}: {error}", file.display())),
    };
    let replayed = replay(log, |recorded| {
        if let Some(scheduler) = other {
            recorded.scheduler = scheduler;
        }
    });
    match replayed {
        Ok(report) if *json => {
            let report = serde_json::to_string(&report).unwrap_or_default();
            print(&format!("{report}\n"));
            ExitCode::SUCCESS
        }
        Ok(report) => {
            print(&format!(
                "identical: {} steps, {} dispatched, {} refused, {} still running\n",
                report.steps, report.dispatched, report.refused, report.running
            ));
            ExitCode::SUCCESS
        }
        Err(error) => fail(1, format!("{}: {error}", file.display())),
    }
}
