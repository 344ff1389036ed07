//! `config`: check a file, print the schema or the reference.

use std::{path::PathBuf, process::ExitCode};

use clap::Subcommand;
use wicketgate_config::{Config, json_schema, reference_markdown};

use super::{USAGE, fail, print};

/// `wicketgate config ...`
#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the effective configuration, or everything that is wrong with the file
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print the JSON Schema of the file
    Schema,
    /// Print the reference of all keys, as Markdown
    Reference,
}

pub(crate) fn config(command: &ConfigCommand) -> ExitCode {
    match command {
        ConfigCommand::Check { file } => match Config::load(file) {
            Ok((config, warnings)) => {
                let name = file.display().to_string();
                for warning in warnings {
                    fail(0, format!("warning: {}", warning.shown(&name)));
                }
                print(&config.effective_yaml());
            }
            Err(errors) => return fail(USAGE, errors),
        },
        ConfigCommand::Schema => print(&format!("{:#}\n", json_schema())),
        ConfigCommand::Reference => print(&reference_markdown()),
    }
    ExitCode::SUCCESS
}
