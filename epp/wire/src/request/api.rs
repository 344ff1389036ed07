//! Which dialect a path speaks.

/// A dialect. Paths that are none of these are scheduled by load alone.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Hash)]
pub enum Api {
    /// `/v1/chat/completions`
    ChatCompletions,
    /// `/v1/completions`
    Completions,
    /// `/v1/embeddings`
    Embeddings,
    /// Every other path.
    #[default]
    Unknown,
}

impl Api {
    /// The dialect of a request target. A query, a slash at the end and a prefix before `/v1/` do not matter.
    pub fn from_path(target: &str) -> Api {
        let path = target.split(['?', '#']).next().unwrap_or_default();
        let path = path.strip_suffix('/').unwrap_or(path);
        if path.ends_with("/v1/chat/completions") {
            Api::ChatCompletions
        } else if path.ends_with("/v1/completions") {
            Api::Completions
        } else if path.ends_with("/v1/embeddings") {
            Api::Embeddings
        } else {
            Api::Unknown
        }
    }

    /// Metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Api::ChatCompletions => "chat_completions",
            Api::Completions => "completions",
            Api::Embeddings => "embeddings",
            Api::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Api;

    #[test]
    fn paths() {
        for (path, api) in [
            ("/v1/chat/completions", Api::ChatCompletions),
            ("/v1/chat/completions/", Api::ChatCompletions),
            (
                "/v1/chat/completions?x=/v1/completions",
                Api::ChatCompletions,
            ),
            ("/openai/v1/completions", Api::Completions),
            ("/v1/embeddings", Api::Embeddings),
            ("/v1/chat/completions/render", Api::Unknown),
            ("/v1/rerank", Api::Unknown),
            ("/xv1/completions", Api::Unknown),
            ("", Api::Unknown),
        ] {
            assert_eq!(Api::from_path(path), api, "{path}");
        }
    }
}
