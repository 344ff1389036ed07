//! A life of an endpoint in the index, from joining to leaving.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use tokio::{sync::watch, task::JoinHandle};
use wicketgate_pool::scheduler::Incarnation;
use wicketgate_wire::EngineKind;

use super::{EventsFrom, Prefixes, State, endpoint};
use crate::{
    engine::{Line, Reach},
    kvevents::{self, Dialect, DiscoverError, Events, IntakeError, RankSource, Source, base_model},
};

/// Longest time for an engine to say something of itself.
const PATIENCE: Duration = Duration::from_secs(3);
/// First and longest pause before it is asked again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Shortest time between two occasions to ask it.
const REST: Duration = Duration::from_secs(1);

/// Labels of an endpoint that go before the configuration's ports.
const PORT: &str = "kv-events-port";
const REPLAY_PORT: &str = "kv-replay-port";
const RANKS: &str = "kv-events-ranks";
const TOPIC: &str = "kv-events-topic";

/// Whether two sets of labels say the same about where events come from.
pub(crate) fn same_events(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> bool {
    let labels = [PORT, REPLAY_PORT, RANKS, TOPIC];
    labels.iter().all(|label| a.get(*label) == b.get(*label))
}

/// Who joins.
#[derive(Clone, Debug)]
pub struct LifeSpec {
    /// Its number.
    pub id: Incarnation,
    /// The pool's name.
    pub pool: Arc<str>,
    /// Models that the pool names, adapters among them; may be none.
    pub models: Arc<[String]>,
    /// The endpoint's name.
    pub name: Arc<str>,
    /// `host:port` of its API.
    pub address: Arc<str>,
    /// What its events look like.
    pub engine: EngineKind,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// A life in the index; its drop takes it out.
pub struct Life {
    prefixes: Arc<Prefixes>,
    id: Incarnation,
    state: Arc<State>,
    followers: Vec<Follower>,
}

/// A task that ends with its owner.
pub(super) struct Follower(pub(super) JoinHandle<()>);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.followers.clear();
        self.prefixes.lives.write().remove(&self.id);
        // A follower that is still at it adds nothing afterwards.
        *self.state.left.lock() = true;
        self.prefixes.intake.remove(self.id.0);
        self.prefixes.index.remove(endpoint(self.id, 0));
    }
}

/// Why nobody listens to an engine yet.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    #[error(transparent)]
    Intake(#[from] IntakeError),
    #[error("it publishes nothing")]
    Silent,
}

impl FollowError {
    /// The engine answered, and has no events for us.
    fn is_final(&self) -> bool {
        match self {
            FollowError::Silent => true,
            FollowError::Discover(DiscoverError::Absent(status)) => {
                matches!(status, 404 | 405 | 501)
            }
            FollowError::Discover(_) | FollowError::Intake(_) => false,
        }
    }
}

impl State {
    /// That of a life of which nothing is known yet.
    pub(super) fn new(spec: &LifeSpec, reach: Reach) -> State {
        State {
            pool: Arc::clone(&spec.pool),
            name: Arc::clone(&spec.name),
            models: Arc::clone(&spec.models),
            line: Line::new(Arc::clone(&spec.address), reach),
            rested: AtomicU64::new(0),
            renewals: watch::Sender::new(0),
            lost: AtomicBool::new(false),
            connected: AtomicBool::new(false),
            lines: AtomicU64::new(0),
            address: Arc::clone(&spec.address),
            engine: spec.engine,
            exact: AtomicBool::new(false),
            started: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            room: AtomicU64::new(0),
            ranks: RwLock::new(vec![0]),
            left: Mutex::new(false),
        }
    }
}

impl Prefixes {
    /// Takes a life into the index, and its events as soon as the engine is there.
    pub fn join(self: &Arc<Self>, spec: LifeSpec) -> Life {
        let model = self.model_of(&spec.models);
        let id = spec.id;
        let state = Arc::new(State::new(&spec, self.spec.reach.clone()));
        let first = endpoint(id, 0);
        self.lives.write().insert(id, Arc::clone(&state));
        let follows = match self.spec.events {
            EventsFrom::Off => false,
            // What events tell is of use for prompts of tokens; picks are remembered longer where nobody tells.
            EventsFrom::Auto => !self.all.is_empty(),
            EventsFrom::Connect { .. } | EventsFrom::Discover | EventsFrom::Listen(_) => true,
        };
        // Picks alone do not need the model's name.
        self.index.register(first, model.as_deref().unwrap_or(""));
        self.bound(id, &state);
        let prober = self.probe(&spec, &state);
        let follower = follows.then(|| self.follower(spec, &state, model));
        let followers = prober.into_iter().chain(follower);
        Life {
            prefixes: Arc::clone(self),
            id,
            followers: followers.map(Follower).collect(),
            state,
        }
    }

    /// Listens to a life as soon as its engine says where; asks again whenever the engine may be another one.
    fn follower(
        self: &Arc<Self>,
        spec: LifeSpec,
        state: &Arc<State>,
        model: Option<Arc<str>>,
    ) -> JoinHandle<()> {
        let (weak, state) = (Arc::downgrade(self), Arc::clone(state));
        let mut renewals = state.renewals.subscribe();
        tokio::spawn(async move {
            let mut followed: Option<Source> = None;
            loop {
                renewals.borrow_and_update();
                let mut pause = PAUSE.0;
                let mut said = false;
                loop {
                    let Some(prefixes) = weak.upgrade() else {
                        return;
                    };
                    let model = model.as_deref();
                    match prefixes.follow(&spec, &state, model, &mut followed).await {
                        Ok(()) => break,
                        // It will not say anything else before it is started anew.
                        Err(why) if why.is_final() => {
                            prefixes.say(&why, &spec.name);
                            break;
                        }
                        Err(why) if !std::mem::replace(&mut said, true) => {
                            prefixes.say(&why, &spec.name);
                        }
                        Err(_) => {}
                    }
                    drop(prefixes);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
                // One that comes and goes is not asked all the time.
                tokio::time::sleep(REST).await;
                loop {
                    let changed = tokio::time::timeout(PAUSE.1, renewals.changed()).await;
                    match changed {
                        Ok(Ok(())) => break,
                        Ok(Err(_)) => return,
                        // It may have changed before anybody looked: where nothing listens it is asked again.
                        Err(_) if followed.is_some() && !state.is_connected() => break,
                        Err(_) => {}
                    }
                }
            }
        })
    }

    /// The name of the model that a pool's requests use without an adapter, if the configuration says so.
    fn model_of(&self, models: &[String]) -> Option<Arc<str>> {
        let known = models.iter().find_map(|name| self.by_name.get(&**name));
        let known = known.or(self.only.as_ref());
        match known {
            Some(known) => Some(Arc::clone(&known.model)),
            None => models.first().map(|model| Arc::from(model.as_str())),
        }
    }

    /// Why nobody listens to a life yet: news where events were asked for.
    fn say(&self, why: &FollowError, endpoint: &str) {
        match self.spec.events {
            EventsFrom::Auto => tracing::debug!(endpoint, %why, "no KV events"),
            _ => tracing::warn!(endpoint, %why, "no KV events yet"),
        }
    }

    /// Begins to listen to a life, if its engine says all that is needed. Where it is listened to already, nothing
    /// changes unless it says something else than before: then all that it said is forgotten.
    async fn follow(
        &self,
        spec: &LifeSpec,
        state: &State,
        configured: Option<&str>,
        followed: &mut Option<Source>,
    ) -> Result<(), FollowError> {
        let mut ranks = self.ranks(spec, &state.line).await?;
        if self.spec.events == EventsFrom::Auto {
            // To open a port that an engine names is a decision of the operator's.
            ranks.retain(|rank| matches!(rank.events, Events::Connect(_)));
        }
        if ranks.is_empty() {
            return Err(FollowError::Silent);
        }
        let model = match configured {
            Some(model) => model.to_owned(),
            None => base_model(&state.line, PATIENCE).await?,
        };
        let numbers: Vec<u32> = ranks.iter().map(|rank| rank.rank).collect();
        let source = Source {
            model,
            dialect: match spec.engine {
                EngineKind::Vllm => Dialect::Vllm,
                EngineKind::Sglang => Dialect::Sglang,
            },
            ranks,
        };
        if followed.as_ref() == Some(&source) {
            return Ok(());
        }
        let left = state.left.lock();
        if *left {
            return Ok(());
        }
        if followed.take().is_some() {
            self.intake.remove(spec.id.0);
            state.exact.store(false, Ordering::Release);
            state.lines.store(0, Ordering::Release);
            state.connected.store(false, Ordering::Release);
        }
        if configured.is_none() || !numbers.contains(&0) {
            self.index.remove(endpoint(spec.id, 0));
        }
        self.intake.add(spec.id.0, source.clone())?;
        *followed = Some(source);
        *state.ranks.write() = numbers;
        self.bound(spec.id, state);
        tracing::info!(endpoint = %spec.name, "listening to KV events");
        Ok(())
    }

    async fn ranks(&self, spec: &LifeSpec, line: &Line) -> Result<Vec<RankSource>, DiscoverError> {
        let number = |label: &str| spec.labels.get(label)?.parse::<u16>().ok();
        let host = spec.address.rsplit_once(':');
        let host = host.map_or(&*spec.address, |(host, _)| host);
        let at = |port, replay, ranks| Source::at("", host, port, replay, ranks).ranks;
        Ok(match &self.spec.events {
            EventsFrom::Off => Vec::new(),
            EventsFrom::Discover | EventsFrom::Auto => match number(PORT) {
                // What the operator says goes before what the engine says.
                Some(port) => at(port, number(REPLAY_PORT), ranks_of(spec, 1)),
                None => kvevents::discover(line, host, PATIENCE).await?,
            },
            EventsFrom::Connect {
                port,
                replay_port,
                ranks,
            } => at(
                number(PORT).unwrap_or(*port),
                number(REPLAY_PORT).or(*replay_port),
                ranks_of(spec, *ranks),
            ),
            EventsFrom::Listen(_) => {
                let name = spec.labels.get(TOPIC).cloned();
                let name = name.unwrap_or_else(|| spec.address.to_string());
                let replay = number(REPLAY_PORT);
                let ranks = at(0, replay, ranks_of(spec, 1)).into_iter();
                ranks
                    .map(|rank| RankSource {
                        events: Events::Topic(name.clone()),
                        ..rank
                    })
                    .collect()
            }
        })
    }
}

fn ranks_of(spec: &LifeSpec, default: u32) -> u32 {
    let said = spec.labels.get(RANKS).and_then(|ranks| ranks.parse().ok());
    said.unwrap_or(default).clamp(1, 1024)
}
