//! `wicketgate bench ...`
use std::process::ExitCode;
/// What to measure.
#[derive(clap::Subcommand)]
pub enum BenchCommand {}
/// Measures.
pub fn bench(command: BenchCommand) -> ExitCode {
    match command {}
}
