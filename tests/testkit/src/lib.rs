//! Scripted Envoy, engine and client for tests
