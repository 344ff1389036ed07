//! Command line: parse, wire, run. Nothing else.
fn main() {}
