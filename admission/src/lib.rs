//! Bands, flows, fairness, ordering, starvation, saturation: pure admission
