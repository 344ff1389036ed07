//! The request side: hold what must be held, read it once, ask, then let it go on.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use wicketgate_pool::scheduler::SubsetEntry;
use wicketgate_wire::{Api, RequestFacts, scan_request, scan_unknown};

use super::{
    Exchange, Phase,
    event::{Ask, BodyMode, Command, Commands, HeadDelta, Placement, RequestHead},
};
use crate::{
    outcome::Outcome,
    prefix::{Content, Prompted},
};

/// Tokens that an answer is expected to have when the caller sets no limit.
const DEFAULT_OUTPUT_TOKENS: u64 = 256;

/// Longest piece of a body that is let go on at once. Some proxies take no more than 64 KiB in one message.
const PIECE: usize = 62_000;

/// The bytes that are held: one piece as it came, several in one buffer. So a body takes about its own length in
/// memory however finely it is cut, and is there as a whole without another copy.
#[derive(Debug, Default)]
enum Held {
    #[default]
    Nothing,
    One(Bytes),
    Many(BytesMut),
}

impl Held {
    fn push(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        match self {
            Held::Nothing => *self = Held::One(data),
            Held::One(first) => {
                let mut all = BytesMut::with_capacity((first.len() + data.len()).max(4096));
                all.extend_from_slice(first);
                all.extend_from_slice(&data);
                *self = Held::Many(all);
            }
            Held::Many(all) => all.extend_from_slice(&data),
        }
    }

    /// Everything as one slice; nothing can be added without a copy any more.
    fn whole(&mut self) -> Bytes {
        let whole = match std::mem::take(self) {
            Held::Nothing => return Bytes::new(),
            Held::One(whole) => whole,
            Held::Many(all) => all.freeze(),
        };
        *self = Held::One(whole.clone());
        whole
    }
}

/// What came in from the caller and has not gone on yet.
#[derive(Debug, Default)]
pub(super) struct Upload {
    head: RequestHead,
    held: Held,
    bytes: u64,
    /// The headers were the whole request.
    headers_end: bool,
    /// A body follows that is not shown before we must answer.
    unseen: bool,
    /// The body is complete.
    ended: bool,
    /// The caller sent trailers.
    trailers: bool,
    /// Pieces that came while the pool was deciding, each waiting for an answer.
    owed_pieces: u32,
    pub(super) subset: Option<Vec<SubsetEntry>>,
    pub(super) session: Option<(Arc<str>, Bytes)>,
}

impl Exchange {
    /// The body as far as it is held; whole once the question was asked.
    pub fn held(&mut self) -> Bytes {
        self.upload.held.whole()
    }

    pub(super) fn request_headers(&mut self, head: RequestHead, end: bool, out: &mut Commands) {
        if self.phase != Phase::Start {
            self.oddities.out_of_phase += 1;
            return;
        }
        self.phase = Phase::Upload;
        self.upload.head = head;
        self.upload.ended = end;
        self.upload.headers_end = end;
        let mode = self.modes.request;
        if end || matches!(mode, BodyMode::None | BodyMode::Streamed) {
            self.upload.unseen = !end;
            self.ask_by_headers(out);
            return;
        }
        let announced = self.upload.head.content_length.unwrap_or(0);
        // A cut body is never held past the proxy's own limit, so ours does not apply to it.
        if announced > self.limit && mode != BodyMode::BufferedPartial {
            self.reply(&Outcome::BodyTooLarge { limit: self.limit }, out);
            return;
        }
        if mode != BodyMode::FullDuplex {
            out.push(Command::ContinueHead);
        }
    }

    pub(super) fn request_body(&mut self, data: Bytes, end: bool, out: &mut Commands) {
        match self.phase {
            Phase::Upload => {}
            Phase::Asked | Phase::Placed if self.modes.request == BodyMode::Streamed => {
                self.upload.ended |= end;
                if self.phase == Phase::Asked {
                    self.upload.owed_pieces += 1;
                } else {
                    out.push(Command::ContinueBody);
                }
                return;
            }
            Phase::Asked | Phase::Placed => {
                self.oddities.second_end += 1;
                return;
            }
            Phase::Start | Phase::Over => {
                self.oddities.out_of_phase += 1;
                return;
            }
        }
        self.upload.bytes += data.len() as u64;
        if self.upload.bytes > self.limit && self.modes.request != BodyMode::BufferedPartial {
            self.reply(&Outcome::BodyTooLarge { limit: self.limit }, out);
            return;
        }
        self.upload.held.push(data);
        self.upload.ended |= end;
        // A buffering proxy sends one message, whatever it says about the end: trailers may follow.
        if end || self.modes.request != BodyMode::FullDuplex {
            self.ask(out);
        }
    }

    pub(super) fn request_trailers(&mut self, out: &mut Commands) {
        self.upload.trailers = true;
        match self.phase {
            Phase::Upload => self.ask(out),
            Phase::Asked => {}
            Phase::Placed => out.push(Command::ContinueTrailers),
            Phase::Start | Phase::Over => self.oddities.out_of_phase += 1,
        }
    }

    /// No body, or none that we get to see before we must answer.
    fn ask_by_headers(&mut self, out: &mut Commands) {
        // The announced length is a claim that nothing here checks: it counts for no more than what could be held.
        let bytes = self.upload.head.content_length.unwrap_or(0).min(self.limit);
        self.push_ask(Api::Unknown, None, Bytes::new(), bytes, out);
    }

    fn ask(&mut self, out: &mut Commands) {
        let body = self.upload.held.whole();
        let partial = self.modes.request == BodyMode::BufferedPartial && !self.upload.ended;
        let api = Api::from_path(&self.upload.head.path);
        if self.upload.head.encoded {
            return self.push_ask(Api::Unknown, None, Bytes::new(), self.upload.bytes, out);
        }
        let facts = match api {
            Api::Unknown => scan_unknown(&body),
            Api::ChatCompletions | Api::Completions | Api::Embeddings => {
                match scan_request(api, &body) {
                    Ok(facts) => Some(facts),
                    // What we see of a cut body cannot be valid; the model server judges the rest.
                    Err(_) if partial => None,
                    Err(error) => return self.reply(&Outcome::InvalidBody(error), out),
                }
            }
        };
        let api = if facts.is_some() { api } else { Api::Unknown };
        let bytes = self.upload.bytes;
        self.push_ask(api, facts.as_ref(), body, bytes, out);
    }

    fn push_ask(
        &mut self,
        api: Api,
        facts: Option<&RequestFacts>,
        body: Bytes,
        bytes: u64,
        out: &mut Commands,
    ) {
        self.phase = Phase::Asked;
        let model = facts.and_then(|facts| facts.model.as_ref());
        let model = model.map_or_else(|| Arc::from(""), |model| Arc::from(model.decode(&body)));
        let limit = facts.and_then(|facts| facts.max_tokens);
        let choices = facts.and_then(|facts| facts.n).unwrap_or(1).max(1);
        let output = match api {
            Api::Embeddings => 0,
            Api::ChatCompletions | Api::Completions | Api::Unknown => {
                limit.unwrap_or(DEFAULT_OUTPUT_TOKENS)
            }
        };
        out.push(Command::Ask(Box::new(Ask {
            api,
            model,
            prompt_tokens: facts.map_or(bytes.div_ceil(4), RequestFacts::estimated_prompt_tokens),
            output_tokens: output.saturating_mul(u64::from(choices)),
            bytes,
            content: facts.map(|facts| content(facts, body)).unwrap_or_default(),
            prompted: Prompted::default(),
            blind: self.upload.head.encoded || self.upload.unseen,
            session: self.upload.head.session.take(),
            session_hash: facts.and_then(|facts| facts.session_hash),
            subset: self.upload.subset.take(),
            plugin_headers: std::mem::take(&mut self.upload.head.plugin_headers),
            context: std::mem::take(&mut self.upload.head.context),
        })));
    }

    pub(super) fn placed(&mut self, placement: Placement, out: &mut Commands) {
        if self.phase != Phase::Asked {
            self.oddities.out_of_phase += 1;
            return;
        }
        self.phase = Phase::Placed;
        self.upload.session = placement.session;
        let delta = HeadDelta {
            destination: placement.destination,
            remove: std::mem::take(&mut self.upload.head.forged),
        };
        let held = matches!(
            self.modes.request,
            BodyMode::Buffered | BodyMode::BufferedPartial
        );
        // A buffering proxy had its headers answered already, unless no body came at all.
        if held && !self.upload.headers_end {
            out.push(Command::BodyWithHead(delta));
            self.upload.held = Held::Nothing;
        } else {
            out.push(Command::Head(delta));
            self.release(out);
        }
        if self.upload.trailers {
            out.push(Command::ContinueTrailers);
        }
    }

    /// Lets the held bytes go on unchanged, in pieces that every proxy takes.
    fn release(&mut self, out: &mut Commands) {
        for _ in 0..std::mem::take(&mut self.upload.owed_pieces) {
            out.push(Command::ContinueBody);
        }
        let mut left = std::mem::take(&mut self.upload.held).whole();
        let last_ends = self.upload.ended && !self.upload.trailers;
        let empty_end = last_ends && !self.upload.headers_end;
        if left.is_empty() && empty_end && self.modes.request == BodyMode::FullDuplex {
            let data = Bytes::new();
            out.push(Command::Body { data, end: true });
        }
        while !left.is_empty() {
            let data = left.split_to(left.len().min(PIECE));
            let end = last_ends && left.is_empty();
            out.push(Command::Body { data, end });
        }
    }
}

/// What a prompt is made from.
pub(crate) fn content(facts: &RequestFacts, body: Bytes) -> Content {
    let salt = facts.cache_salt.as_ref();
    Content {
        prompt: facts.prompt,
        media: facts.media_parts > 0,
        salt: salt.map(|salt| Arc::from(salt.decode(&body))),
        body,
    }
}
