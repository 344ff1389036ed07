//! The endpoint set of a pool: who joins, who changes, who leaves, by incarnation.
//!
//! A [`Directory`] compares the wanted set with the present one, tells the pool the difference and runs a
//! scraper for each life. Where the set comes from (a list in the configuration, a watched file) only decides
//! when [`Directory::set`] is called.

use std::{
    collections::{BTreeMap, BTreeSet},
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

/// Most endpoints that are added to a pool by hand.
const MOST_ADDED: usize = 1024;

/// Why an endpoint is not added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// One of this name or address is there.
    #[error(
        "{name} ({address}) is there already; remove it first, or use another name and address"
    )]
    Known {
        /// Its name.
        name: Arc<str>,
        /// Its address.
        address: Arc<str>,
    },
    /// There are too many.
    #[error(
        "{MOST_ADDED} endpoints were added by hand; write them into the configuration or a watched file"
    )]
    TooMany,
}

/// What is wanted: what the configuration and its file list, with what was changed by hand since.
#[derive(Debug, Default)]
struct Roster {
    listed: Vec<EndpointEntry>,
    added: Vec<EndpointEntry>,
    /// Names of listed ones.
    removed: BTreeSet<Arc<str>>,
}

impl Roster {
    /// Each with whether it was added by hand. A listed one goes before an added one of its name or address.
    fn wanted(&self) -> Vec<(EndpointEntry, bool)> {
        let listed = self.listed.iter();
        let listed = listed.filter(|entry| !self.removed.contains(&entry.name));
        let mut all: Vec<_> = listed.map(|entry| (entry.clone(), false)).collect();
        for entry in &self.added {
            if !all.iter().any(|(known, _)| known.clashes(entry)) {
                all.push((entry.clone(), true));
            }
        }
        all
    }

    fn set(&mut self, listed: &[EndpointEntry]) {
        self.listed = listed.to_vec();
        let is_listed = |name: &Arc<str>| listed.iter().any(|entry| entry.name == *name);
        self.removed.retain(is_listed);
    }

    fn add(&mut self, entry: EndpointEntry) -> Result<(), AddError> {
        let wanted = self.wanted();
        if let Some((known, _)) = wanted.iter().find(|(known, _)| known.clashes(&entry)) {
            return Err(AddError::Known {
                name: Arc::clone(&known.name),
                address: Arc::clone(&known.address),
            });
        }
        // One that a listed one hid has had its time.
        self.added.retain(|old| !old.clashes(&entry));
        if self.added.len() >= MOST_ADDED {
            return Err(AddError::TooMany);
        }
        self.added.push(entry);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> bool {
        let wanted = self.wanted();
        let Some((entry, added)) = wanted.iter().find(|(entry, _)| *entry.name == *name) else {
            return false;
        };
        match added {
            true => self.added.retain(|entry| *entry.name != *name),
            false => {
                self.removed.insert(Arc::clone(&entry.name));
            }
        }
        true
    }
}

impl EndpointEntry {
    fn clashes(&self, other: &EndpointEntry) -> bool {
        self.name == other.name || self.address == other.address
    }
}

/// The endpoint set of one pool.
pub struct Directory {
    shell: Arc<PoolShell>,
    metrics: Arc<Metrics>,
    upstreams: Arc<Upstreams>,
    policy: ScrapePolicy,
    cached: Option<Cached>,
    /// Held while the set is made equal to it, so that two changes do not mix.
    roster: Mutex<Roster>,
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
            roster: Mutex::default(),
            members: Mutex::default(),
        })
    }

    /// Takes over what the configuration and its file list. What was added or removed by hand stays so, as long as the list
    /// has what was removed.
    pub fn set(&self, listed: &[EndpointEntry]) {
        let mut roster = self.roster.lock();
        roster.set(listed);
        self.apply(&roster);
    }

    /// Adds an endpoint by hand.
    ///
    /// # Errors
    /// When one of its name or address is there, or too many were added.
    pub fn add(&self, entry: EndpointEntry) -> Result<(), AddError> {
        let mut roster = self.roster.lock();
        roster.add(entry)?;
        self.apply(&roster);
        Ok(())
    }

    /// Removes an endpoint by hand: it gets nothing new, and what runs there goes on. False if there is none of this name.
    pub fn remove(&self, name: &str) -> bool {
        let mut roster = self.roster.lock();
        let removed = roster.remove(name);
        self.apply(&roster);
        removed
    }

    /// The endpoints, each with whether it was added by hand.
    pub fn list(&self) -> Vec<(EndpointEntry, bool)> {
        self.roster.lock().wanted()
    }

    /// Ends every life, whoever wanted it.
    pub fn close(&self) {
        let mut roster = self.roster.lock();
        *roster = Roster::default();
        self.apply(&roster);
    }

    /// Makes the set equal to what is wanted. An endpoint whose address changed is a new life; another weight or
    /// other labels are a change of the same one.
    fn apply(&self, roster: &Roster) {
        let wanted: Vec<EndpointEntry> = roster
            .wanted()
            .into_iter()
            .map(|(entry, _)| entry)
            .collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, address: &str) -> EndpointEntry {
        EndpointEntry {
            name: name.into(),
            address: address.into(),
            weight: 1,
            draining: false,
            labels: BTreeMap::new(),
            engine: EngineKind::Vllm,
        }
    }

    fn names(roster: &Roster) -> Vec<String> {
        let wanted = roster.wanted();
        let named = |(entry, added): &(EndpointEntry, bool)| match added {
            true => format!("+{}", entry.name),
            false => entry.name.to_string(),
        };
        wanted.iter().map(named).collect()
    }

    #[test]
    fn what_is_changed_by_hand_outlives_the_list() {
        let mut roster = Roster::default();
        let (a, b) = (entry("a", "10.0.0.1:1"), entry("b", "10.0.0.2:1"));
        roster.set(&[a.clone(), b.clone()]);
        assert_eq!(roster.add(entry("c", "10.0.0.3:1")), Ok(()));
        for clash in [entry("a", "10.0.0.9:1"), entry("d", "10.0.0.3:1")] {
            assert!(matches!(roster.add(clash), Err(AddError::Known { .. })));
        }
        assert!(roster.remove("a") && !roster.remove("a") && !roster.remove("x"));
        assert_eq!(names(&roster), ["b", "+c"]);
        // A reload changes none of it, until the list no longer has what was removed.
        roster.set(&[a.clone(), b.clone()]);
        assert_eq!(names(&roster), ["b", "+c"]);
        roster.set(std::slice::from_ref(&b));
        roster.set(&[a.clone(), b.clone()]);
        assert_eq!(names(&roster), ["a", "b", "+c"]);
        // What is removed may be added again, in another place.
        assert!(roster.remove("b"));
        assert_eq!(roster.add(entry("b", "10.0.0.7:1")), Ok(()));
        assert_eq!(names(&roster), ["a", "+c", "+b"]);
        // The list goes before what was added; when it lets go, that is there again.
        roster.set(&[a.clone(), entry("c", "10.0.0.8:1")]);
        assert_eq!(names(&roster), ["a", "c", "+b"]);
        roster.set(&[a]);
        assert_eq!(names(&roster), ["a", "+c", "+b"]);
        assert!(roster.remove("c"));
        assert_eq!(names(&roster), ["a", "+b"]);
    }

    #[test]
    fn endpoints_by_hand_are_bounded() {
        let mut roster = Roster::default();
        for number in 0..MOST_ADDED {
            let name = number.to_string();
            assert_eq!(roster.add(entry(&name, &name)), Ok(()));
        }
        assert_eq!(roster.add(entry("x", "x")), Err(AddError::TooMany));
    }
}
