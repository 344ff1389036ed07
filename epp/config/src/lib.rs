//! Strict configuration with line numbers: the llm-d dialect and our sections
