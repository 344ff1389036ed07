//! Plugin types of llm-d's beyond the scheduler's catalogue: known by name, not supported yet.

/// Data producers, admitters, request and response plugins, parsers, data sources, flow control.
pub(super) const KNOWN: &[&str] = &[
    "burst-prefix-cache-producer",
    "predicted-latency-producer",
    "session-id-producer",
    "mm-embeddings-cache-producer",
    "p2p-source-producer",
    "latency-slo-admitter",
    "probabilistic-admitter",
    "agent-identity",
    "request-attribute-reporter",
    "destination-endpoint-served-verifier",
    "anthropic-parser",
    "vllmhttp-parser",
    "sglanghttp-parser",
    "vllmgrpc-parser",
    "vertexai-parser",
    "models-data-source",
    "k8s-notification-source",
    "models-data-extractor",
    "dcgm-extractor",
    "topology-extractor",
    "disaggregatedset-rollout-screener",
    "program-aware-fairness",
];
