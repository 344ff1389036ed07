//! A life of an endpoint in the index, from joining to leaving.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use tokio::task::JoinHandle;
use wicketgate_pool::scheduler::Incarnation;
use wicketgate_wire::EngineKind;

use super::{EventsFrom, Prefixes, State, endpoint};
use crate::kvevents::{
    self, Dialect, DiscoverError, Events, IntakeError, RankSource, Source, base_model,
};

/// Longest time for an engine to say something of itself.
const PATIENCE: Duration = Duration::from_secs(3);
/// First and longest pause before it is asked again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Pause before an engine that says where it publishes is asked again when it is not connected: after a restart it may
/// publish elsewhere.
const ASK_AGAIN: Duration = Duration::from_secs(1);

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
    follower: Option<JoinHandle<()>>,
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Some(follower) = &self.follower {
            follower.abort();
        }
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

impl Prefixes {
    /// Takes a life into the index, and its events as soon as the engine is there.
    pub fn join(self: &Arc<Self>, spec: LifeSpec) -> Life {
        let model = self.model_of(&spec.models);
        let id = spec.id;
        let state = Arc::new(State {
            pool: Arc::clone(&spec.pool),
            name: Arc::clone(&spec.name),
            exact: AtomicBool::new(false),
            started: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            room: AtomicU64::new(0),
            ranks: RwLock::new(vec![0]),
            left: Mutex::new(false),
        });
        let first = endpoint(id, 0);
        self.lives.write().insert(id, Arc::clone(&state));
        let follows = self.spec.events != EventsFrom::Off;
        // Picks alone do not need the model's name.
        self.index.register(first, model.as_deref().unwrap_or(""));
        self.bound(id, &state);
        let follower = follows.then(|| {
            let (prefixes, state) = (Arc::downgrade(self), Arc::clone(&state));
            tokio::spawn(async move {
                let mut pause = PAUSE.0;
                let mut said = false;
                // Where it publishes, as it said.
                let mut known = Vec::new();
                while let Some(prefixes) = prefixes.upgrade() {
                    match prefixes
                        .follow(&spec, &state, model.as_deref(), &mut known)
                        .await
                    {
                        Ok(()) if prefixes.may_move(&spec) => {
                            drop(prefixes);
                            pause = PAUSE.0;
                            tokio::time::sleep(ASK_AGAIN).await;
                            continue;
                        }
                        Ok(()) => return,
                        Err(why) if !std::mem::replace(&mut said, true) => {
                            tracing::warn!(endpoint = %spec.name, %why, "no KV events yet");
                        }
                        Err(_) => {}
                    }
                    drop(prefixes);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
            })
        });
        Life {
            prefixes: Arc::clone(self),
            id,
            state,
            follower,
        }
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

    /// Whether an engine may publish elsewhere after a restart.
    fn may_move(&self, spec: &LifeSpec) -> bool {
        self.spec.events == EventsFrom::Discover && !spec.labels.contains_key(PORT)
    }

    /// Begins to listen to a life, if its engine says all that is needed; or where it publishes now, if it is listened to
    /// elsewhere and not connected. `known` is where.
    async fn follow(
        &self,
        spec: &LifeSpec,
        state: &State,
        configured: Option<&str>,
        known: &mut Vec<RankSource>,
    ) -> Result<(), FollowError> {
        if !known.is_empty() && self.intake.connected(spec.id.0) {
            return Ok(());
        }
        let model = match configured {
            Some(model) => model.to_owned(),
            None => base_model(&spec.address, PATIENCE).await?,
        };
        let ranks = self.ranks(spec).await?;
        if ranks.is_empty() {
            return Err(FollowError::Silent);
        }
        if ranks == *known {
            return Ok(());
        }
        let numbers: Vec<u32> = ranks.iter().map(|rank| rank.rank).collect();
        let source = Source {
            model,
            dialect: match spec.engine {
                EngineKind::Vllm => Dialect::Vllm,
                EngineKind::Sglang => Dialect::Sglang,
            },
            ranks: ranks.clone(),
        };
        let left = state.left.lock();
        if *left {
            return Ok(());
        }
        if !known.is_empty() {
            self.intake.remove(spec.id.0);
            known.clear();
        } else if configured.is_none() || !numbers.contains(&0) {
            self.index.remove(endpoint(spec.id, 0));
        }
        self.intake.add(spec.id.0, source)?;
        *known = ranks;
        *state.ranks.write() = numbers;
        self.bound(spec.id, state);
        tracing::info!(endpoint = %spec.name, "listening to KV events");
        Ok(())
    }

    async fn ranks(&self, spec: &LifeSpec) -> Result<Vec<RankSource>, DiscoverError> {
        let number = |label: &str| spec.labels.get(label)?.parse::<u16>().ok();
        let host = spec.address.rsplit_once(':');
        let host = host.map_or(&*spec.address, |(host, _)| host);
        let at = |port, replay, ranks| Source::at("", host, port, replay, ranks).ranks;
        Ok(match &self.spec.events {
            EventsFrom::Off => Vec::new(),
            EventsFrom::Discover => match number(PORT) {
                // What the operator says goes before what the engine says.
                Some(port) => at(port, number(REPLAY_PORT), ranks_of(spec, 1)),
                None => kvevents::discover(&spec.address, PATIENCE).await?,
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
