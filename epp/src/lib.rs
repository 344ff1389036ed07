//! The request path: exchange, ext_proc front, HTTP front, discovery, telemetry, admin
