//! What both fronts share: from an [`Ask`] to a place in a pool.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::RwLock;
use wicketgate_pool::{
    Request, RequestId,
    admission::MAX_COST,
    scheduler::{Decision, Incarnation, Nanos, encode_token},
};
use wicketgate_wire::Api;

use crate::{
    clock::Clock,
    exchange::{Ask, Placement},
    metrics::{IgnoredLabels, Metrics},
    outcome::Outcome,
    prefix::Prefixes,
    shell::{Arrival, PoolShell},
    trust::TrustedHeaders,
};

/// Settings that a reload may change. A request keeps the ones it started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Longest body that is held, in bytes.
    pub max_body: u64,
    /// Longest pause between two pieces of a body that comes in through the HTTP front.
    pub body_timeout: Duration,
    /// Longest wait for a decision.
    pub decision_timeout: Duration,
    /// Lower-case names of headers that plugins read.
    pub plugin_headers: Vec<String>,
    /// Lower-case name of the header that carries a session token, if a plugin binds sessions.
    pub session_header: Option<Arc<str>>,
    /// Headers that are believed, if the configuration trusts the proxy in front.
    pub trusted: Option<Arc<TrustedHeaders>>,
    /// Shares of fairness IDs against others; 1 for those that are not here.
    pub weights: Arc<HashMap<Box<str>, f64>>,
    /// Log a line for each request.
    pub access_log: bool,
}

/// Pools by the models they serve.
#[derive(Default)]
pub struct Routes {
    /// Every pool, by name.
    pub pools: Vec<(Arc<str>, Arc<PoolShell>)>,
    /// Index into `pools` by model name.
    pub by_model: HashMap<Box<str>, usize>,
    /// Index into `pools` for every other model.
    pub default: Option<usize>,
}

/// A request on its way to a decision.
pub struct Asked {
    /// The pool's name, a metric label.
    pub pool: Arc<str>,
    /// When the answer comes.
    pub arrival: Arrival,
}

/// A question whose prompt is looked at.
#[expect(
    clippy::large_enum_variant,
    reason = "the large variant is the common one, made and taken apart at once"
)]
pub enum Prepared {
    /// It was.
    Now(Ask),
    /// It takes a while.
    Later(Preparing),
}

/// A question whose prompt is being looked at elsewhere. To drop it gives up its turn.
pub type Preparing = Pin<Box<dyn Future<Output = Ask> + Send>>;

/// The path that both fronts walk.
pub struct Pipeline {
    clock: Clock,
    settings: RwLock<Arc<Settings>>,
    routes: RwLock<Arc<Routes>>,
    next_id: AtomicU64,
    prefixes: Option<Arc<Prefixes>>,
    /// Counters of the whole process.
    pub metrics: Arc<Metrics>,
}

impl Pipeline {
    /// A pipeline over these pools.
    pub fn new(clock: Clock, settings: Settings, routes: Routes, metrics: Arc<Metrics>) -> Self {
        Pipeline {
            clock,
            settings: RwLock::new(Arc::new(settings)),
            routes: RwLock::new(Arc::new(routes)),
            next_id: AtomicU64::new(1),
            prefixes: None,
            metrics,
        }
    }

    /// The same with a prefix index.
    pub fn with_prefixes(mut self, prefixes: Option<Arc<Prefixes>>) -> Self {
        self.prefixes = prefixes;
        self
    }

    /// The prefix index, if there is one.
    pub fn prefixes(&self) -> Option<&Arc<Prefixes>> {
        self.prefixes.as_ref()
    }

    /// Looks at a question's prompt, before the pool is asked.
    pub fn prepare(&self, mut ask: Ask) -> Prepared {
        let content = std::mem::take(&mut ask.content);
        let Some(prefixes) = &self.prefixes else {
            return Prepared::Now(ask);
        };
        let (this, api, model) = (Arc::clone(prefixes), ask.api, Arc::clone(&ask.model));
        if prefixes.asks(api, &model, &content) {
            return Prepared::Later(Box::pin(async move {
                ask.prompted = this.prompt_by_engine(api, model, content).await;
                ask
            }));
        }
        if !prefixes.is_long(&content) {
            ask.prompted = prefixes.prompt(api, &model, &content);
            return Prepared::Now(ask);
        }
        Prepared::Later(Box::pin(async move {
            ask.prompted = this.prompt_elsewhere(api, model, content).await;
            ask
        }))
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read())
    }

    /// The pools in force.
    pub fn routes(&self) -> Arc<Routes> {
        Arc::clone(&self.routes.read())
    }

    /// The name of the only pool; empty when there are several and the model must tell.
    pub fn only_pool(&self) -> Arc<str> {
        match self.routes.read().pools.as_slice() {
            [(name, _)] => Arc::clone(name),
            _ => Arc::from(""),
        }
    }

    /// Takes over new settings and pools.
    pub fn reconfigure(&self, settings: Settings, routes: Routes) {
        *self.routes.write() = Arc::new(routes);
        *self.settings.write() = Arc::new(settings);
    }

    /// The pipeline's clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Puts a question to the pool of its model. `arrived` is when the request's first byte was seen.
    ///
    /// A path that names no model (`GET /v1/models`, one we do not know) goes to the default pool, or to the first.
    ///
    /// # Errors
    /// When no pool serves the model, or there are several and its body could not be read.
    pub fn ask(&self, ask: Ask, arrived: Nanos, settings: &Settings) -> Result<Asked, Outcome> {
        let routes = self.routes();
        if ask.blind && routes.pools.len() > 1 {
            return Err(Outcome::ModelUnseen);
        }
        let index = routes.by_model.get(ask.model.as_ref()).copied();
        let first = (ask.model.is_empty() && ask.api == Api::Unknown).then_some(0);
        let found = index
            .or(routes.default)
            .or(first)
            .and_then(|index| routes.pools.get(index));
        let Some((name, shell)) = found else {
            return Err(Outcome::UnknownModel(ask.model.to_string()));
        };
        for (header, why) in &ask.context.ignored {
            let why = why.label();
            let labels = IgnoredLabels { header, why };
            self.metrics.ignored_headers.get_or_create(&labels).inc();
        }
        let context = ask.context;
        let request = Request {
            id: RequestId(self.next_id.fetch_add(1, Ordering::Relaxed)),
            arrived,
            // The front's own deadline is the front's own business: it cancels and says so.
            deadline: None,
            model: ask.model,
            prompt_tokens: ask
                .prompted
                .tokens
                .unwrap_or(ask.prompt_tokens)
                .min(MAX_COST),
            output_tokens: ask.output_tokens.min(MAX_COST),
            bytes: ask.bytes,
            session: ask.session,
            session_hash: ask.session_hash,
            subset: ask.subset,
            priority: context.priority.unwrap_or(0),
            weight: settings.weights.get(context.fairness.as_str()).copied(),
            fairness: context.fairness,
            ttl: context.ttl,
            slo_ttft: context.slo_ttft,
            headers: ask.plugin_headers,
            keys: ask.prompted.keys,
        };
        Ok(Asked {
            pool: Arc::clone(name),
            arrival: shell.arrive(request),
        })
    }
}

/// The destination list as it stands in header and metadata: `ip:port,ip:port`.
pub fn destination(decision: &Decision) -> Bytes {
    if let [only] = decision.targets.as_slice() {
        return Bytes::copy_from_slice(only.address.as_bytes());
    }
    let mut list = BytesMut::with_capacity(decision.targets.len() * 22);
    for target in &decision.targets {
        if !list.is_empty() {
            list.put_u8(b',');
        }
        list.extend_from_slice(target.address.as_bytes());
    }
    list.freeze()
}

/// What the exchange needs to know of a decision, with a session token for the endpoint that serves.
pub fn placement(
    decision: &Decision,
    serves: Incarnation,
    shell: &PoolShell,
    settings: &Settings,
) -> Placement {
    let session = settings.session_header.as_ref().and_then(|header| {
        let name = shell.name_of(serves)?;
        Some((Arc::clone(header), Bytes::from(encode_token(&name))))
    });
    Placement {
        destination: destination(decision),
        session,
    }
}
