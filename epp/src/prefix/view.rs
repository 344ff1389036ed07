//! The live index as a pool sees it.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use wicketgate_kvindex::{
    index::{Matches, TierWeights},
    keys::Key,
};
use wicketgate_pool::scheduler::{Incarnation, PrefixView, RequestView};

use super::Prefixes;

/// What one pool asks, behind its lock: one walk of the index for each question, not one for each endpoint.
pub struct LiveView {
    prefixes: Arc<Prefixes>,
    /// The last question. The pool's lock keeps others away, so nobody ever waits here.
    last: Mutex<Question>,
}

/// A question and its answer; kept for the next one, so that nothing is allocated.
#[derive(Default)]
struct Question {
    request: Option<u64>,
    keys: Vec<Key>,
    matches: Matches,
    /// Tokens by endpoint.
    tokens: HashMap<Incarnation, u64>,
}

impl LiveView {
    /// A view for one pool.
    pub fn new(prefixes: Arc<Prefixes>) -> LiveView {
        LiveView {
            prefixes,
            last: Mutex::default(),
        }
    }

    fn ask(&self, last: &mut Question, request: &RequestView<'_>) {
        last.request = Some(request.id);
        last.tokens.clear();
        last.keys.clear();
        if request.keys.is_empty() {
            return;
        }
        last.keys.extend(request.keys.iter().copied().map(Key));
        self.prefixes.index.lookup(&last.keys, &mut last.matches);
        let block = f64::from(self.prefixes.spec.block_size);
        let weights = TierWeights::default();
        let whole = last.keys.len() as f64 * block;
        let prompt = request.prompt_tokens as f64;
        // Blocks of tokens never cover a whole prompt. Those of a text may, as they count its JSON: what is new in it must
        // still count for something.
        let scale = match whole >= prompt {
            true => prompt / (whole + block),
            false => 1.0,
        };
        for found in last.matches.iter() {
            // What is far away is worth less than what need not be fetched.
            let tokens = (found.weighted(&weights) * block * scale) as u64;
            let id = Incarnation(found.endpoint.incarnation);
            let known = last.tokens.entry(id).or_default();
            *known = tokens.max(*known);
        }
    }
}

impl PrefixView for LiveView {
    fn cached_tokens(&self, request: &RequestView<'_>, endpoint: Incarnation) -> u64 {
        let mut last = self.last.lock();
        if last.request != Some(request.id) {
            self.ask(&mut last, request);
        }
        last.tokens.get(&endpoint).copied().unwrap_or(0)
    }

    fn look(&self, request: &RequestView<'_>) -> bool {
        let mut last = self.last.lock();
        self.ask(&mut last, request);
        !last.tokens.is_empty()
    }

    fn picked(&self, request: &RequestView<'_>, endpoint: Incarnation) {
        let cached = self.cached_tokens(request, endpoint);
        let counts = self.prefixes.counts();
        counts.dispatched(request.prompt_tokens, cached);
        if !request.keys.is_empty() {
            self.prefixes.promise(endpoint, &self.last.lock().keys);
        }
    }
}
