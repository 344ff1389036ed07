//! The endpoint set of a pool: who joins, who changes, who leaves, by incarnation.
//!
//! A [`Directory`] compares the wanted set with the present one, tells the pool the difference and runs a
//! scraper for each life. Where the set comes from (a list in the configuration, a watched file) only decides
//! when [`Directory::set`] is called.

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use wicketgate_pool::{
    Delta,
    scheduler::{EndpointSpec, Incarnation},
};
use wicketgate_wire::EngineKind;

use crate::{
    http::Upstreams,
    metrics::Metrics,
    prefix::{Life, LifeSpec, Prefixes, same_events},
    shell::PoolShell,
    telemetry::{self, ScrapePolicy, ScrapeTarget, Scraper},
};

/// Incarnations are counted over the process's whole life: none is ever used twice.
static NEXT_INCARNATION: AtomicU64 = AtomicU64::new(1);

/// How often a watched file is looked at.
const POLL: Duration = Duration::from_millis(200);

/// One endpoint as a list or file names it.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointEntry {
    /// What tells it from the others; the address when the list gives no name.
    pub name: Arc<str>,
    /// `ip:port` or `host:port` of its OpenAI-compatible API and of its metrics page.
    pub address: Arc<str>,
    /// Share of the traffic relative to the others; 0 is a stand-by.
    pub weight: u32,
    /// It gets no new requests; what runs there goes on.
    pub draining: bool,
    /// Labels that filters look at.
    pub labels: BTreeMap<String, String>,
    /// Whose metric names it uses.
    pub engine: EngineKind,
}

/// One life and what belongs to it.
struct Member {
    id: Incarnation,
    wanted: EndpointEntry,
    /// Stops with the life.
    _scraper: Scraper,
    /// What the prefix index knows of it.
    life: Option<Life>,
}

/// The prefix index, and what a pool's lives are called there.
#[derive(Clone)]
pub struct Cached {
    /// The index.
    pub prefixes: Arc<Prefixes>,
    /// The pool's name.
    pub pool: Arc<str>,
    /// Models that the pool names.
    pub models: Arc<[String]>,
}

/// The endpoint set of one pool.
pub struct Directory {
    shell: Arc<PoolShell>,
    metrics: Arc<Metrics>,
    upstreams: Arc<Upstreams>,
    policy: ScrapePolicy,
    cached: Option<Cached>,
    members: Mutex<BTreeMap<String, Member>>,
}

impl Directory {
    /// An empty set for this pool.
    pub fn new(
        shell: Arc<PoolShell>,
        metrics: Arc<Metrics>,
        upstreams: Arc<Upstreams>,
        policy: ScrapePolicy,
        cached: Option<Cached>,
    ) -> Arc<Self> {
        Arc::new(Directory {
            shell,
            metrics,
            upstreams,
            policy,
            cached,
            members: Mutex::default(),
        })
    }

    /// Makes the set equal to `wanted`. An endpoint whose address changed is a new life; another weight or
    /// other labels are a change of the same one.
    pub fn set(&self, wanted: &[EndpointEntry]) {
        let mut members = self.members.lock();
        let mut delta = Delta::default();
        let keep: BTreeMap<&str, &EndpointEntry> = wanted
            .iter()
            .map(|entry| (entry.name.as_ref(), entry))
            .collect();
        members.retain(|name, member| {
            let stays = keep.get(name.as_str()).is_some_and(|wanted| {
                wanted.address == member.wanted.address && wanted.engine == member.wanted.engine
            });
            if !stays {
                self.upstreams.forget(&member.wanted.address);
                delta.leave.push(member.id);
            }
            stays
        });
        for (name, wanted) in keep {
            match members.get_mut(name) {
                Some(member) if member.wanted == *wanted => {}
                Some(member) => {
                    if !same_events(&member.wanted.labels, &wanted.labels) {
                        // The old one must be gone first: they have one number.
                        member.life = None;
                        member.life = self.life(member.id, wanted);
                    }
                    member.wanted = wanted.clone();
                    delta.change.push((member.id, spec(wanted)));
                }
                None => {
                    let id = Incarnation(NEXT_INCARNATION.fetch_add(1, Ordering::Relaxed));
                    delta.join.push((id, spec(wanted)));
                }
            }
        }
        if delta.is_empty() {
            return;
        }
        let joined: Vec<(Incarnation, Arc<str>)> = delta
            .join
            .iter()
            .map(|(id, spec)| (*id, Arc::clone(&spec.name)))
            .collect();
        tracing::info!(
            joined = delta.join.len(),
            changed = delta.change.len(),
            left = delta.leave.len(),
            "endpoints"
        );
        for (_, spec) in &delta.join {
            self.upstreams.admit(&spec.address);
        }
        // The pool knows a life before its first scrape can come back.
        self.shell.change_endpoints(delta);
        for (id, name) in joined {
            let Some(wanted) = wanted.iter().find(|wanted| wanted.name == name) else {
                continue;
            };
            let member = self.member(id, wanted);
            members.insert(name.to_string(), member);
        }
    }

    fn member(&self, id: Incarnation, wanted: &EndpointEntry) -> Member {
        let target = ScrapeTarget {
            id,
            address: Arc::clone(&wanted.address),
            engine: wanted.engine,
        };
        let (shell, metrics) = (Arc::clone(&self.shell), Arc::clone(&self.metrics));
        // In the index before its first scrape says how large its cache is.
        let life = self.life(id, wanted);
        let prefixes = self.cached.as_ref();
        let prefixes = prefixes.map(|cached| Arc::clone(&cached.prefixes));
        Member {
            id,
            wanted: wanted.clone(),
            _scraper: telemetry::start(target, self.policy.clone(), shell, metrics, prefixes),
            life,
        }
    }

    fn life(&self, id: Incarnation, wanted: &EndpointEntry) -> Option<Life> {
        let cached = self.cached.as_ref()?;
        Some(cached.prefixes.join(LifeSpec {
            id,
            pool: Arc::clone(&cached.pool),
            models: Arc::clone(&cached.models),
            name: Arc::clone(&wanted.name),
            address: Arc::clone(&wanted.address),
            engine: wanted.engine,
            labels: wanted.labels.clone(),
        }))
    }
}

fn spec(endpoint: &EndpointEntry) -> EndpointSpec {
    EndpointSpec {
        labels: Arc::new(endpoint.labels.clone()),
        weight: endpoint.weight,
        draining: endpoint.draining,
        ..EndpointSpec::new(Arc::clone(&endpoint.name), Arc::clone(&endpoint.address))
    }
}

/// A file's state, cheap to compare: which file, when it was written, how long it is. The path is followed, so a
/// symlink flip changes it too, to a file of the same time and length as well.
type Stamp = (u64, u64, SystemTime, u64);

async fn stamp(path: &Path) -> std::io::Result<Stamp> {
    let meta = tokio::fs::metadata(path).await?;
    Ok((meta.dev(), meta.ino(), meta.modified()?, meta.len()))
}

/// Calls `changed` with the file's text whenever it differs from the text given out last, `known` at first.
///
/// The text is given once it has been the same for two looks, so that a half-written file is not taken for a
/// whole one. A file that is missing or cannot be read is no change: what was read last stays in force. That is said
/// once, and looked at again as often as ever.
pub fn watch_file(
    path: PathBuf,
    known: Option<String>,
    mut changed: impl FnMut(&str) + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut seen: Option<Stamp> = None;
        let mut taken: Option<(Option<Stamp>, String)> = known.map(|text| (None, text));
        let mut readable = true;
        loop {
            let known = taken.as_ref().and_then(|(stamp, _)| *stamp);
            match look(&path, seen, known).await {
                Ok((now, text)) => {
                    if let Some(text) = text {
                        if taken.as_ref().is_none_or(|(_, old)| *old != text) {
                            changed(&text);
                        }
                        taken = Some((Some(now), text));
                    }
                    seen = Some(now);
                    readable = true;
                }
                Err(error) => {
                    if std::mem::take(&mut readable) {
                        let path = path.display();
                        tracing::warn!(%path, %error, "a watched file cannot be read");
                    }
                    seen = None;
                }
            }
            tokio::time::sleep(POLL).await;
        }
    })
}

/// A file's state, and its text once it has been in this state for two looks and the text is not `known` already.
async fn look(
    path: &Path,
    seen: Option<Stamp>,
    known: Option<Stamp>,
) -> std::io::Result<(Stamp, Option<String>)> {
    let now = stamp(path).await?;
    if seen != Some(now) || known == Some(now) {
        return Ok((now, None));
    }
    let text = tokio::fs::read_to_string(path).await?;
    // Changed under our hands: the next look tells.
    let whole = stamp(path).await? == now;
    Ok((now, whole.then_some(text)))
}
