//! Prefix indexes of others under the workload of `bench index`, which starts this program.
//!
//! `wicketgate-bench-peers list` prints their names; with a name it does what standard input asks for.

mod chain_index;
mod concurrent_tree;
mod events;
mod radix_tree;

use std::process::ExitCode;

use wicketgate_bench_index::{busy, serve};

const CONCURRENT_TREE: &str = "dynamo-kv-router 1.6.1 concurrent tree";
const RADIX_TREE: &str = "dynamo-kv-router 1.6.1 RadixTree";
const CHAIN_INDEX: &str = "kv-index 2.0.0 ChainIndex";

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let done = match name.as_str() {
        "list" => {
            for name in [CHAIN_INDEX, CONCURRENT_TREE, RADIX_TREE] {
                println!("{name}");
            }
            Ok(())
        }
        CHAIN_INDEX => serve::<chain_index::Peer>(Some(busy::<chain_index::Peer>)),
        CONCURRENT_TREE => serve::<concurrent_tree::Peer>(Some(busy::<concurrent_tree::Peer>)),
        // It belongs to one thread.
        RADIX_TREE => serve::<radix_tree::Peer>(None),
        _ => {
            eprintln!("no index is called {name:?}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
