//! Engine step model, and the emulated engine server behind a feature
