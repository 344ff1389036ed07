//! Sessions stay where they were: by a token that the caller sends back, or by an id remembered here.

use std::sync::Arc;

use super::{Dispatch, Scorer};
use crate::{
    Endpoint, Incarnation, RequestView, SECOND,
    choose::{Candidate, Context},
    spec::{SessionAffinity, SessionStrategy},
    state::{Sessions, sessions::Limits},
};

/// The token of an endpoint: its name in standard base64.
pub fn encode_token(name: &str) -> String {
    base64::encode(name.as_bytes())
}

/// The name in a token; `None` if it is none. Padding may be missing.
pub fn decode_token(token: &str) -> Option<String> {
    String::from_utf8(base64::decode(token.as_bytes())?).ok()
}

/// The bound endpoint scores 1, every other one 0; without a session all score 0.
pub(super) fn build(name: &Arc<str>, spec: &SessionAffinity) -> Box<dyn Scorer> {
    match spec.strategy {
        SessionStrategy::EncodedEndpointHeader => Box::new(Token {
            header: lower(&spec.encoded_endpoint_header_config.header),
        }),
        SessionStrategy::SessionId => {
            let config = &spec.session_id_config;
            Box::new(Id {
                name: Arc::clone(name),
                headers: config.sources.iter().map(|s| lower(&s.header)).collect(),
                limits: Limits {
                    ttl: config.eviction_ttl_seconds.saturating_mul(SECOND),
                    most: config.max_sessions as usize,
                },
                profile: spec.profile_name.clone(),
            })
        }
    }
}

fn lower(header: &str) -> Arc<str> {
    header.to_ascii_lowercase().into()
}

fn score_bound(
    candidates: &[Candidate<'_>],
    scores: &mut Vec<f64>,
    bound: impl Fn(&Endpoint) -> bool,
) {
    let one = |candidate: &Candidate<'_>| f64::from(u8::from(bound(candidate.endpoint)));
    scores.extend(candidates.iter().map(one));
}

/// Strategy `encoded_endpoint_header`.
#[derive(Debug)]
struct Token {
    header: Arc<str>,
}

impl Scorer for Token {
    fn score(&self, context: &Context<'_>, candidates: &[Candidate<'_>], scores: &mut Vec<f64>) {
        let request = context.request;
        let token = request.header(&self.header).or(request.session);
        let name = token.and_then(decode_token);
        score_bound(candidates, scores, |endpoint| {
            // A front may have decoded the token already.
            token == Some(&*endpoint.name) || name.as_deref() == Some(&*endpoint.name)
        });
    }

    fn headers(&self) -> Vec<Arc<str>> {
        vec![Arc::clone(&self.header)]
    }

    fn token_header(&self) -> Option<Arc<str>> {
        Some(Arc::clone(&self.header))
    }
}

/// Strategy `session_id`.
#[derive(Debug)]
struct Id {
    /// The plugin's name, under which its bindings are kept.
    name: Arc<str>,
    headers: Vec<Arc<str>>,
    limits: Limits,
    profile: Option<Arc<str>>,
}

impl Id {
    fn of<'a>(&self, request: &RequestView<'a>) -> Option<&'a str> {
        let mut headers = self.headers.iter();
        headers
            .find_map(|name| request.header(name))
            .filter(|id| !id.is_empty())
    }

    fn bound(&self, context: &Context<'_>) -> Option<Incarnation> {
        let id = self.of(context.request)?;
        let sessions = context.sessions;
        sessions.get(&self.name, id, context.now, self.limits)
    }
}

impl Scorer for Id {
    fn score(&self, context: &Context<'_>, candidates: &[Candidate<'_>], scores: &mut Vec<f64>) {
        let bound = self.bound(context);
        score_bound(candidates, scores, |endpoint| bound == Some(endpoint.id));
    }

    fn dispatched(&self, dispatch: &Dispatch<'_>, sessions: &mut Sessions) {
        let ours = self.profile.as_deref();
        if ours.is_some_and(|profile| profile != dispatch.profile) {
            return;
        }
        if let Some(id) = self.of(dispatch.request) {
            sessions.bind(&self.name, id, dispatch.target, dispatch.now, self.limits);
        }
    }

    fn headers(&self) -> Vec<Arc<str>> {
        self.headers.clone()
    }
}

/// RFC 4648 section 4.
mod base64 {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    pub(super) fn encode(bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
        for chunk in bytes.chunks(3) {
            let word = chunk
                .iter()
                .fold(0_u32, |word, b| word << 8 | u32::from(*b));
            let word = word << (8 * (3 - chunk.len()));
            for place in 0..4 {
                let digit = (word >> (18 - 6 * place)) & 63;
                let letter = ALPHABET.get(digit as usize).copied().unwrap_or(b'=');
                text.push(char::from(if place > chunk.len() { b'=' } else { letter }));
            }
        }
        text
    }

    pub(super) fn decode(text: &[u8]) -> Option<Vec<u8>> {
        let end = text.iter().rposition(|b| *b != b'=').map_or(0, |i| i + 1);
        let padding = text.len() - end;
        let digits = text.get(..end)?;
        if padding > 2 || digits.len() % 4 == 1 || (padding > 0 && !text.len().is_multiple_of(4)) {
            return None;
        }
        let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
        for chunk in digits.chunks(4) {
            let mut word = 0_u32;
            for letter in chunk {
                word = word << 6 | digit(*letter)?;
            }
            let word = (word << (6 * (4 - chunk.len()))).to_be_bytes();
            bytes.extend(word.iter().skip(1).take(chunk.len() - 1));
        }
        Some(bytes)
    }

    fn digit(letter: u8) -> Option<u32> {
        Some(match letter {
            b'A'..=b'Z' => u32::from(letter - b'A'),
            b'a'..=b'z' => u32::from(letter - b'a') + 26,
            b'0'..=b'9' => u32::from(letter - b'0') + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_standard_base64() {
        // RFC 4648 section 10.
        let pairs = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
            ("default/pod-0-rank-0", "ZGVmYXVsdC9wb2QtMC1yYW5rLTA="),
        ];
        for (name, token) in pairs {
            assert_eq!(encode_token(name), token);
            assert_eq!(decode_token(token).as_deref(), Some(name));
            let bare = token.trim_end_matches('=');
            assert_eq!(decode_token(bare).as_deref(), Some(name));
        }
    }

    #[test]
    fn what_is_no_token_names_nobody() {
        for token in [
            "Z", "Zg=", "Z===", "====", "Zm9v!", "Zm 9v", "/w==", "Zg==Zg==",
        ] {
            assert_eq!(decode_token(token), None, "{token}");
        }
    }
}
