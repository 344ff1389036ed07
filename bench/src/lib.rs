//! Load generator and benchmarks
