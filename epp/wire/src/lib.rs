//! Total parsers and byte editors: API dialects, SSE, usage, metrics text
