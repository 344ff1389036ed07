//! Tests of the whole: a naive model, invariants under adversarial load, field cases, and mutants.

mod cases;
mod checks;
mod fleet;
mod load;
mod model;
mod mutants;
mod pair;
mod rig;
mod rules;
mod sim;
