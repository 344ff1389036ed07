//! `demo`
use std::process::ExitCode;
/// x
#[derive(clap::Args)]
pub(crate) struct DemoArgs {}
pub(crate) fn demo(_: &DemoArgs) -> ExitCode { ExitCode::SUCCESS }
