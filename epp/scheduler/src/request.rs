//! What the scheduler may know of a request, and of the cache.

use crate::{Incarnation, SubsetEntry};

/// A request as the scheduler sees it: sizes and eligibility, never body bytes.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a> {
    /// Number of the request, for the decision record.
    pub id: u64,
    /// The model or adapter that is asked for; empty when the body names none.
    pub model: &'a str,
    /// Prompt length in tokens.
    pub prompt_tokens: u64,
    /// Expected output length in tokens.
    pub output_tokens: u64,
    /// Session token that the caller presented: an endpoint's name, plain or in base64.
    pub session: Option<&'a str>,
    /// Implicit session: hash of what stays the same over a conversation.
    pub session_hash: Option<u64>,
    /// Only these endpoints may serve it; `Some` and empty means none may.
    pub subset: Option<&'a [SubsetEntry]>,
    /// Higher is more urgent; negative may be shed.
    pub priority: i32,
    /// Headers that a plugin reads (see [`crate::Scheduler::headers`]), names in lower case.
    pub headers: &'a [(String, String)],
    /// Names of the prompt's blocks in order, for the [`PrefixView`] alone; empty when the prompt's tokens are not known.
    pub keys: &'a [u64],
}

impl<'a> RequestView<'a> {
    /// The first value of a header; `name` in lower case.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        let mut headers = self.headers.iter();
        headers
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

/// What is cached where. The live index in production, a simulated or recorded one elsewhere.
pub trait PrefixView {
    /// Tokens of this request's prompt that `endpoint` holds from the first one on.
    ///
    /// Zero when none are, or when nothing is known. Answers do not change between two calls of [`PrefixView::look`].
    fn cached_tokens(&self, request: &RequestView<'_>, endpoint: Incarnation) -> u64;

    /// A new question about this request: from now on its answers are of this moment. False if nobody holds anything.
    fn look(&self, _request: &RequestView<'_>) -> bool {
        true
    }

    /// The request goes to `endpoint`, which will hold its prompt.
    fn picked(&self, _request: &RequestView<'_>, _endpoint: Incarnation) {}
}

/// Knows nothing: every prompt is new everywhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPrefix;

impl PrefixView for NoPrefix {
    fn cached_tokens(&self, _: &RequestView<'_>, _: Incarnation) -> u64 {
        0
    }

    fn look(&self, _: &RequestView<'_>) -> bool {
        false
    }
}
