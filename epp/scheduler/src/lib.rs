//! Filters, scorers, pickers, profiles: pure choice of an endpoint
