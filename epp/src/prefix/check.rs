//! Whether an engine makes the same tokens of a prompt as we do, and who makes them when it does not.
//!
//! ```text
//!  a life joins, an engine comes back ──probes──.
//!  a share of live prompts ──bounded queue───────>─ ours == the engine's? ──> trust in the model's tokeniser
//!                                                                            └─ lost: engine | load | ignore
//! ```
//!
//! All of it is beside the path of requests. Trust is lost with the first difference and comes back with the next check
//! that finds none.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::mpsc, task::JoinHandle};
use wicketgate_wire::Api;

use super::{
    Content, How, Known, LifeSpec, Prefixes, Prompted, Source, State, TokensError,
    prompt::scope,
    spoken::{self, Page, Spoken, Untold},
};
use crate::{clock::nanos, engine::Line};

/// Longest time for an engine to answer a check.
const PATIENCE: Duration = Duration::from_secs(3);
/// First and longest pause before an engine that does not answer is probed again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// Live prompts that wait to be checked; further ones are not.
pub(super) const WAITING: usize = 4;
/// Longest body that is checked: engines tokenise it once more.
const LONGEST: usize = 256 << 10;
/// An engine that did not tell in time is not asked for so long; one that comes back is probed no more often.
const REST: Duration = Duration::from_secs(1);

/// How tokens are compared with the engines'.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckSpec {
    /// Each life of an endpoint is asked about some prompts of ours.
    pub probe: bool,
    /// Share of live prompts that are compared, 0 to 1.
    pub sample: f64,
    /// What becomes of a model's prompts while its tokens differ.
    pub on_mismatch: OnMismatch,
    /// Longest time that a request waits for an engine's tokens.
    pub timeout: Duration,
    /// Requests that wait for engines' tokens at once; further ones go by load.
    pub concurrency: usize,
}

impl Default for CheckSpec {
    fn default() -> CheckSpec {
        CheckSpec {
            probe: true,
            sample: 0.01,
            on_mismatch: OnMismatch::Engine,
            timeout: Duration::from_millis(100),
            concurrency: 64,
        }
    }
}

/// What becomes of the prompts of a model whose tokeniser differs from the engine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMismatch {
    /// An engine tokenises them.
    Engine,
    /// They go by load alone.
    Load,
    /// Nothing: the metric tells.
    Ignore,
}

/// What a check came to, a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// The same tokens.
    Match,
    /// Others.
    Mismatch,
    /// The engine could not be asked.
    Error,
    /// One of the two does not tokenise such prompts.
    Unsupported,
}

impl Checked {
    /// All of them, in the order of their numbers.
    pub const ALL: [Checked; 4] = [
        Checked::Match,
        Checked::Mismatch,
        Checked::Error,
        Checked::Unsupported,
    ];

    /// As a metric label.
    pub fn label(self) -> &'static str {
        match self {
            Checked::Match => "match",
            Checked::Mismatch => "mismatch",
            Checked::Error => "error",
            Checked::Unsupported => "unsupported",
        }
    }
}

/// Counts of checks.
#[derive(Debug, Default)]
pub(super) struct Checks([AtomicU64; Checked::ALL.len()]);

impl Checks {
    pub(super) fn count(&self, checked: Checked) {
        if let Some(count) = self.0.get(checked as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = (Checked, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        Checked::ALL.into_iter().zip(counts)
    }
}

/// A live prompt to be compared.
pub(super) struct Sample {
    known: Arc<Known>,
    api: Api,
    model: Arc<str>,
    body: Bytes,
}

/// Who makes a prompt's tokens.
enum Way<'a> {
    /// We do.
    Own,
    /// An engine of the model, or the service at this line.
    Ask(Page, Option<&'a Arc<Line>>),
    /// Nobody.
    Nobody,
}

/// Prompts that show what templates and tokenisers do differently: roles, marks at the ends, white space, numbers,
/// characters of several bytes.
fn probes(model: &str) -> [(Api, Bytes); 3] {
    let chat = |messages: serde_json::Value| {
        let body = serde_json::json!({"model": model, "messages": messages});
        (Api::ChatCompletions, Bytes::from(body.to_string()))
    };
    let user = |text: &str| serde_json::json!({"role": "user", "content": text});
    let prompt = "The quick brown fox, 1234567890:\n\tna\u{ef}ve caf\u{e9} \u{65e5}\u{672c}\u{8a9e} \u{1f642} end";
    let prompt = serde_json::json!({"model": model, "prompt": prompt}).to_string();
    [
        chat(serde_json::json!([user("Hello world")])),
        chat(serde_json::json!([
            {"role": "system", "content": "You answer in one word."},
            user("Is 7 \u{d7} 8 = 56? Gr\u{f6}\u{df}e, \u{65e5}\u{672c}\u{8a9e}, \u{1f642}"),
            {"role": "assistant", "content": "Yes."},
            user("And\n\n 12.5?  It\u{2019}s late"),
        ])),
        (Api::Completions, prompt.into()),
    ]
}

impl Prefixes {
    fn way<'a>(&self, known: &'a Known) -> Way<'a> {
        let lost = known.distrusted.load(Ordering::Acquire);
        match (&known.source, self.spec.check.on_mismatch) {
            (Source::Engine, _) => Way::Ask(Page::Tokenize, None),
            (Source::Service(line), _) => Way::Ask(Page::Render, Some(line)),
            (Source::Own(_), OnMismatch::Engine) if lost => Way::Ask(Page::Tokenize, None),
            (Source::Own(_), OnMismatch::Load) if lost => Way::Nobody,
            (Source::Own(_), _) => Way::Own,
        }
    }

    /// True if our tokens of this model's prompts are not to be used, as they are wrong.
    pub(super) fn is_distrusted(&self, known: &Known) -> bool {
        !matches!(self.way(known), Way::Own)
    }

    /// True if an engine is to be asked for the tokens of a prompt: that takes a while.
    pub fn asks(&self, api: Api, model: &str, content: &Content) -> bool {
        let Some(known) = self.known(model) else {
            return false;
        };
        if content.settled(api).is_some() || content.is_listed() {
            return false;
        }
        match self.way(known) {
            Way::Ask(Page::Tokenize, _) => !content.media,
            Way::Ask(Page::Render, _) => true,
            Way::Own | Way::Nobody => false,
        }
    }

    /// The prompt of a request by an engine's tokens, counted. See [`Prefixes::asks`].
    pub async fn prompt_by_engine(
        self: Arc<Self>,
        api: Api,
        model: Arc<str>,
        content: Content,
    ) -> Prompted {
        let (how, prompted) = self.read_by_engine(api, &model, &content).await;
        self.counts.count(how);
        if let Some(known) = self.known(&model) {
            self.sample(known, api, &model, &content);
        }
        prompted
    }

    /// The same without counting it: for views.
    pub async fn read_by_engine(
        &self,
        api: Api,
        model: &str,
        content: &Content,
    ) -> (How, Prompted) {
        let silent = (How::Unanswered, Prompted::default());
        let Some(known) = self.known(model) else {
            return silent;
        };
        let Ok(_turn) = self.askers.try_acquire() else {
            return silent;
        };
        let within = self.spec.check.timeout;
        let told = match self.way(known) {
            Way::Ask(page, Some(line)) => spoken::ask(line, page, api, &content.body, within).await,
            Way::Ask(page, None) => self.ask_any(model, page, api, &content.body, within).await,
            // Trust came back a moment ago: the next prompt is ours again.
            Way::Own | Way::Nobody => return silent,
        };
        match told {
            Ok(spoken) => (How::Engine, self.by_spoken(known, model, content, &spoken)),
            Err(Untold::Unsupported) => (How::Unsupported, Prompted::default()),
            Err(Untold::Failed(why)) => {
                tracing::debug!(model, why, "an engine did not tell a prompt's tokens");
                silent
            }
        }
    }

    fn by_spoken(
        &self,
        known: &Arc<Known>,
        model: &str,
        content: &Content,
        spoken: &Spoken,
    ) -> Prompted {
        let scope = scope(Some(known), model, content);
        let whole = spoken.tokens.len() as u64;
        let tokens = match spoken.known {
            Some(known) => spoken.tokens.get(..known).unwrap_or_default(),
            None => &spoken.tokens,
        };
        let media = spoken.media.iter().map(|(id, at)| (id.as_str(), *at));
        let media = media.take_while(|(_, at)| *at < tokens.len());
        Prompted {
            tokens: Some(whole),
            keys: self.keys(scope, tokens, media, spoken.known.is_some()),
        }
    }

    /// Asks some engine of a model that did not fail a moment ago.
    async fn ask_any(
        &self,
        model: &str,
        page: Page,
        api: Api,
        body: &Bytes,
        within: Duration,
    ) -> Result<Spoken, Untold> {
        let Some(state) = self.teller(model) else {
            return Err(Untold::Failed("no engine can be asked".to_owned()));
        };
        let told = spoken::ask(&state.line, page, api, body, within).await;
        if matches!(told, Err(Untold::Failed(_))) {
            let until = self.clock.now().saturating_add(nanos(REST));
            state.rested.store(until, Ordering::Relaxed);
        }
        told
    }

    /// Some life that serves a model: of a pool that names it, else of one that names none, else any.
    fn teller(&self, model: &str) -> Option<Arc<State>> {
        let now = self.clock.now();
        let mut best: Option<(u8, Arc<State>)> = None;
        let mut alike = 0;
        for state in self.lives.read().values() {
            if state.rested.load(Ordering::Relaxed) > now {
                continue;
            }
            let rank = match state.models.iter().any(|name| name == model) {
                true => 0,
                false => 1 + u8::from(!state.models.is_empty()),
            };
            let beaten = best.as_ref().is_none_or(|(known, _)| rank < *known);
            let equal = best.as_ref().is_some_and(|(known, _)| rank == *known);
            alike = if beaten { 1 } else { alike + u32::from(equal) };
            // Each of those that are alike with the same chance, in one pass.
            if beaten || equal && fastrand::u32(..alike) == 0 {
                best = Some((rank, Arc::clone(state)));
            }
        }
        best.map(|(_, state)| state)
    }

    /// Now and then a live prompt is compared, as long as not too many wait already.
    pub(super) fn sample(&self, known: &Arc<Known>, api: Api, model: &str, content: &Content) {
        let own = matches!(known.source, Source::Own(_));
        let fit = !content.media && content.body.len() <= LONGEST;
        if own && fit && fastrand::f64() < self.spec.check.sample {
            let _ = self.samples.try_send(Sample {
                known: Arc::clone(known),
                api,
                model: model.into(),
                body: content.body.clone(),
            });
        }
    }

    /// Compares the prompts that are sampled, one after the other. Ends with the index.
    pub(super) fn check_samples(self: &Arc<Self>) -> Option<JoinHandle<()>> {
        let mut samples: mpsc::Receiver<Sample> = self.sampled.lock().take()?;
        let weak = Arc::downgrade(self);
        Some(tokio::spawn(async move {
            while let Some(sample) = samples.recv().await {
                let Some(prefixes) = weak.upgrade() else {
                    return;
                };
                prefixes.check_sample(sample).await;
            }
        }))
    }

    async fn check_sample(&self, sample: Sample) {
        let Some(state) = self.teller(&sample.model) else {
            return;
        };
        let Sample {
            known,
            api,
            model: _,
            body,
        } = sample;
        let told = spoken::ask(&state.line, Page::Tokenize, api, &body, PATIENCE).await;
        // A long prompt takes long.
        let ours = tokio::task::spawn_blocking({
            let known = Arc::clone(&known);
            move || known.own_tokens(api, &body)
        });
        if let Ok(Some(ours)) = ours.await {
            self.checked(&known, &state, compare(&ours, &told));
        }
    }

    /// Takes over what a check came to. A change is said once.
    fn checked(&self, known: &Known, state: &State, checked: Checked) {
        self.checks.count(checked);
        let (model, endpoint) = (&known.model, &state.name);
        match checked {
            Checked::Match if known.distrusted.swap(false, Ordering::AcqRel) => {
                tracing::info!(%model, %endpoint, "our tokens are the engine's again");
            }
            Checked::Mismatch if !known.distrusted.swap(true, Ordering::AcqRel) => {
                let then = match self.spec.check.on_mismatch {
                    OnMismatch::Engine => "engines tokenise its prompts for now",
                    OnMismatch::Load => "its prompts go by load for now",
                    OnMismatch::Ignore => "and nothing is done about it",
                };
                tracing::warn!(%model, %endpoint, then, "our tokens differ from the engine's");
            }
            Checked::Match | Checked::Mismatch | Checked::Error | Checked::Unsupported => {}
        }
    }

    /// Asks a life's engine about prompts of ours: when it joins, and whenever it comes back.
    pub(super) fn probe(
        self: &Arc<Self>,
        spec: &LifeSpec,
        state: &Arc<State>,
    ) -> Option<JoinHandle<()>> {
        let served = self.probed(&spec.models);
        if !self.spec.check.probe || served.is_empty() {
            return None;
        }
        let (weak, state) = (Arc::downgrade(self), Arc::clone(state));
        let mut renewals = state.renewals.subscribe();
        Some(tokio::spawn(async move {
            loop {
                renewals.borrow_and_update();
                let mut open: Vec<(Arc<Known>, Api, Bytes)> = Vec::new();
                for (known, name) in &served {
                    let each = probes(name).into_iter();
                    open.extend(each.map(|(api, body)| (Arc::clone(known), api, body)));
                }
                let mut pause = PAUSE.0;
                let mut first = true;
                while !open.is_empty() {
                    let Some(prefixes) = weak.upgrade() else {
                        return;
                    };
                    prefixes
                        .probe_once(&state, &mut open, std::mem::take(&mut first))
                        .await;
                    drop(prefixes);
                    if !open.is_empty() {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(PAUSE.1);
                    }
                }
                // An engine that comes and goes is not asked all the time.
                tokio::time::sleep(REST).await;
                if renewals.changed().await.is_err() {
                    return;
                }
            }
        }))
    }

    /// Asks what is open; what is answered is taken out. Silence counts once.
    async fn probe_once(
        &self,
        state: &State,
        open: &mut Vec<(Arc<Known>, Api, Bytes)>,
        first: bool,
    ) {
        while let Some((known, api, body)) = open.last() {
            let told = spoken::ask(&state.line, Page::Tokenize, *api, body, PATIENCE).await;
            let checked = match known.own_tokens(*api, body) {
                Some(ours) => compare(&ours, &told),
                None => Checked::Unsupported,
            };
            if checked == Checked::Error {
                // It is not up yet, most likely.
                if first {
                    self.checks.count(checked);
                }
                return;
            }
            self.checked(known, state, checked);
            open.pop();
        }
    }

    /// Models whose tokeniser is ours that a pool may serve, each with a name that its engines know.
    fn probed(&self, models: &[String]) -> Vec<(Arc<Known>, Arc<str>)> {
        let mut found: Vec<(Arc<Known>, Arc<str>)> = Vec::new();
        let own = self
            .all
            .iter()
            .filter(|known| matches!(known.source, Source::Own(_)));
        for known in own {
            let name = match models.is_empty() {
                true => Some(Arc::clone(&known.model)),
                false => {
                    let named = |name: &&String| {
                        self.by_name
                            .get(name.as_str())
                            .is_some_and(|other| Arc::ptr_eq(other, known))
                    };
                    models
                        .iter()
                        .find(named)
                        .map(|name| Arc::from(name.as_str()))
                }
            };
            found.extend(name.map(|name| (Arc::clone(known), name)));
        }
        found
    }
}

impl Known {
    /// Our tokens of a request; nothing if the tokeniser is not ours.
    fn own_tokens(&self, api: Api, body: &[u8]) -> Option<Result<Vec<u32>, TokensError>> {
        match &self.source {
            Source::Own(tokens) => Some(tokens.tokens(api, body)),
            Source::Engine | Source::Service(_) => None,
        }
    }
}

fn compare(ours: &Result<Vec<u32>, TokensError>, told: &Result<Spoken, Untold>) -> Checked {
    match (ours, told) {
        (_, Err(Untold::Failed(_))) => Checked::Error,
        (Ok(ours), Ok(theirs)) if *ours == theirs.tokens => Checked::Match,
        (Ok(_), Ok(_)) => Checked::Mismatch,
        (Err(_), _) | (_, Err(Untold::Unsupported)) => Checked::Unsupported,
    }
}

#[cfg(test)]
mod tests;
