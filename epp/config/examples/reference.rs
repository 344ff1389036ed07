//! Prints the reference table of docs/configuration.md.

#![allow(clippy::print_stdout, reason = "printing is what it is for")]

fn main() {
    print!("{}", wicketgate_config::reference_markdown());
}
