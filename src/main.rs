//! Command line: parse, wire, run. Nothing else.

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// GPU-cluster inference scheduler with an endpoint picker.
#[derive(Parser)]
#[command(name = "wicketgate", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the OpenAI-compatible HTTP gateway
    Serve(commands::run::ServeArgs),
    /// Run the endpoint picker for Envoy (ext_proc, Gateway API Inference Extension)
    Epp(commands::run::EppArgs),
    /// Show the main job: real traffic through the gateway to four emulated engines
    Demo(commands::demo::DemoArgs),
    /// Run an emulated vLLM engine
    Engine(wicketgate_sim::engine::EngineArgs),
    /// Check a configuration, or print its schema
    #[command(subcommand)]
    Config(commands::config::ConfigCommand),
    /// Work on recorded runs
    #[command(subcommand)]
    Sim(commands::sim::SimCommand),
    /// Measure
    #[command(subcommand)]
    Bench(wicketgate_bench::BenchCommand),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => commands::run::serve(&args),
        Command::Epp(args) => commands::run::epp(&args),
        Command::Demo(args) => commands::demo::demo(&args),
        Command::Engine(args) => commands::engine::engine(&args),
        Command::Config(command) => commands::config::config(&command),
        Command::Sim(command) => commands::sim::sim(&command),
        Command::Bench(command) => wicketgate_bench::bench(command),
    }
}
