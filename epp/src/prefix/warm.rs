//! Snapshots of the index out of this replica and into it.
//!
//! Out: endpoint after endpoint, each as it is at one moment; nothing else waits. In: the whole is read and checked before
//! anything is touched; then each engine that is an endpoint here too is taken over by the task that hears it, which sees
//! to it that the engine still has the same life (see [`Adopted`]).

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use serde::Serialize;
use tokio::task::JoinSet;
use wicketgate_kvindex::index::EndpointId;
use wicketgate_pool::scheduler::Incarnation;

use super::{
    Prefixes, State, endpoint,
    snapshot::{self, SnapshotFault, Told},
};
use crate::{
    kvevents::{Adopted, Heard},
    net::is_loopback,
};

/// Bytes that are handed on at once.
const CHUNK: usize = 64 << 10;
/// Engines that are asked at once whether they are the same.
const AT_ONCE: usize = 8;

/// How a whole snapshot fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Written to the end.
    Exported,
    /// The reader went away, or was too slow.
    ExportCut,
    /// Too many readers at once.
    ExportBusy,
    /// Read, and taken in as far as it is true here.
    Imported,
    /// Foreign or damaged.
    ImportRefused,
    /// Longer than allowed, or not there in time.
    ImportCut,
    /// A peer that was asked could not be reached or had none.
    ImportUnreached,
}

impl Transfer {
    /// All of them.
    pub const ALL: [Transfer; 7] = [
        Transfer::Exported,
        Transfer::ExportCut,
        Transfer::ExportBusy,
        Transfer::Imported,
        Transfer::ImportRefused,
        Transfer::ImportCut,
        Transfer::ImportUnreached,
    ];

    /// Labels `direction` and `result` of metrics.
    pub fn labels(self) -> (&'static str, &'static str) {
        match self {
            Transfer::Exported => ("export", "ok"),
            Transfer::ExportCut => ("export", "cut"),
            Transfer::ExportBusy => ("export", "busy"),
            Transfer::Imported => ("import", "ok"),
            Transfer::ImportRefused => ("import", "refused"),
            Transfer::ImportCut => ("import", "cut"),
            Transfer::ImportUnreached => ("import", "unreached"),
        }
    }
}

/// What became of one engine of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It is in the index now.
    Taken,
    /// As much was known already.
    Known,
    /// No endpoint here has its pool, name, address and engine.
    Absent,
    /// Its requests name another model here.
    OtherModel,
    /// Nobody listens to its events here.
    Silent,
    /// It has another life by now.
    OtherLife,
    /// Nobody can say whether it has the same life.
    Unsure,
    /// It sleeps: its cache is empty.
    Asleep,
    /// The index has no room.
    Full,
}

impl Fate {
    /// All of them.
    pub const ALL: [Fate; 9] = [
        Fate::Taken,
        Fate::Known,
        Fate::Absent,
        Fate::OtherModel,
        Fate::Silent,
        Fate::OtherLife,
        Fate::Unsure,
        Fate::Asleep,
        Fate::Full,
    ];

    /// A label of metrics.
    pub fn label(self) -> &'static str {
        match self {
            Fate::Taken => "taken",
            Fate::Known => "known",
            Fate::Absent => "absent",
            Fate::OtherModel => "other_model",
            Fate::Silent => "silent",
            Fate::OtherLife => "other_life",
            Fate::Unsure => "unsure",
            Fate::Asleep => "asleep",
            Fate::Full => "full",
        }
    }
}

/// Counts of snapshots, for metrics.
#[derive(Debug, Default)]
pub struct SnapshotCounts {
    transfers: [AtomicU64; Transfer::ALL.len()],
    fates: [AtomicU64; Fate::ALL.len()],
    blocks: AtomicU64,
}

impl SnapshotCounts {
    /// One more.
    pub fn count(&self, transfer: Transfer) {
        if let Some(count) = self.transfers.get(transfer as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn fate(&self, fate: Fate, blocks: u64) {
        if let Some(count) = self.fates.get(fate as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Whole snapshots.
    pub fn transfers(&self) -> impl Iterator<Item = (Transfer, u64)> {
        let loaded = self.transfers.iter();
        let loaded = loaded.map(|count| count.load(Ordering::Relaxed));
        Transfer::ALL.into_iter().zip(loaded)
    }

    /// Engines of snapshots that came in.
    pub fn fates(&self) -> impl Iterator<Item = (Fate, u64)> {
        let loaded = self.fates.iter();
        let loaded = loaded.map(|count| count.load(Ordering::Relaxed));
        Fate::ALL.into_iter().zip(loaded)
    }

    /// Blocks taken over.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }
}

/// Connections that each source has had: what stood before somebody else was asked.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    connections: HashMap<EndpointId, u64>,
    /// Whoever is asked is on this machine.
    near: bool,
}

/// What became of each engine of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Engines taken over.
    pub taken: usize,
    /// Their blocks, each tier counted.
    pub blocks: u64,
    /// Each engine of the snapshot, in its order.
    pub engines: Vec<EngineLine>,
}

/// One engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EngineLine {
    /// Its pool there.
    pub pool: String,
    /// Its name there.
    pub endpoint: String,
    /// Its rank.
    pub rank: u32,
    /// What became of it.
    pub result: Fate,
}

/// Who an engine is to every replica.
type Identity<'a> = (&'a str, &'a str, &'a str, wicketgate_wire::EngineKind);

impl Prefixes {
    /// Counts of snapshots.
    pub fn snapshots(&self) -> &SnapshotCounts {
        &self.snapshots
    }

    /// Hands a snapshot to `give` in pieces, until it is over or `give` says that nobody wants more; whether it was whole.
    /// No more than one endpoint's blocks are held at once. It takes a while: not for threads that serve requests.
    pub fn export(&self, mut give: impl FnMut(Bytes) -> bool) -> bool {
        if !give(snapshot::head(&self.index.config().keys).into()) {
            return false;
        }
        let mut lives: Vec<(Incarnation, Arc<State>)> = {
            let lives = self.lives.read();
            let lives = lives.iter();
            lives.map(|(id, state)| (*id, Arc::clone(state))).collect()
        };
        lives.sort_unstable_by_key(|(id, _)| id.0);
        let mut count = 0;
        for (life, state) in lives {
            let ranks = state.ranks.read().clone();
            for rank in ranks {
                match self.tell(endpoint(life, rank), &state, &mut give) {
                    Some(true) => count += 1,
                    Some(false) => return false,
                    None => {}
                }
            }
        }
        give(snapshot::end(count).into())
    }

    /// Gives one source; `None` when nothing is to be told of it.
    fn tell(
        &self,
        id: EndpointId,
        state: &State,
        give: &mut impl FnMut(Bytes) -> bool,
    ) -> Option<bool> {
        let hears = || {
            let stats = self.intake.source(id);
            stats.and_then(|stats| stats.heard.then_some(stats.counts.connects))
        };
        let before = hears();
        let exported = self.index.export(id)?;
        let after = hears();
        let model = self.index.model(id)?;
        let told = Told {
            pool: &state.pool,
            endpoint: &state.name,
            address: &state.address,
            engine: state.engine,
            model: &model,
            rank: id.rank,
            last: exported.last,
            published: exported.published,
            since: exported.since,
            // The same connection brought the last message and stands still.
            heard: before.is_some() && before == after,
            blocks: &exported.blocks,
        };
        let (head, checksum) = snapshot::source(&told)?;
        let mut blocks = Bytes::from(exported.blocks);
        let mut go_on = give(head.into());
        while go_on && !blocks.is_empty() {
            go_on = give(blocks.split_to(blocks.len().min(CHUNK)));
        }
        Some(go_on && give(Bytes::copy_from_slice(&checksum)))
    }

    /// What stands now; to be asked before another replica is. `near` says whether that one is on this machine: elsewhere
    /// the loopback leads to other engines.
    pub fn standing(&self, near: bool) -> Standing {
        let sources = self.intake.sources().into_iter();
        let sources = sources.filter(|source| source.connected);
        Standing {
            connections: sources
                .map(|source| (source.id, source.counts.connects))
                .collect(),
            near,
        }
    }

    /// Whether every engine is connected whose events are to be taken in.
    pub(crate) fn all_connected(&self) -> bool {
        let ids: Vec<Incarnation> = self.lives.read().keys().copied().collect();
        let sources = self.intake.sources();
        let known = |id: &Incarnation| sources.iter().any(|source| source.id.incarnation == id.0);
        sources.iter().all(|source| source.connected) && ids.iter().all(known)
    }

    /// Takes a snapshot in. `standing` is what stood before a replica was asked that is there itself; `None` for bytes of
    /// unknown age.
    ///
    /// # Errors
    /// When the snapshot is foreign or damaged; then nothing has changed.
    pub async fn import(
        self: &Arc<Self>,
        bytes: Bytes,
        standing: Option<Standing>,
    ) -> Result<Report, SnapshotFault> {
        let (prefixes, standing) = (Arc::clone(self), standing.unwrap_or_default());
        // Reading takes a while for large ones.
        let read = tokio::task::spawn_blocking(move || prefixes.match_up(&bytes, &standing));
        let matched = match read.await {
            Ok(matched) => matched,
            Err(_) => Err(SnapshotFault::Damaged { at: 0 }),
        };
        let matched = matched.inspect_err(|_| self.snapshots.count(Transfer::ImportRefused))?;
        let report = self.adopt(matched).await;
        self.snapshots.count(Transfer::Imported);
        Ok(report)
    }

    /// Reads a snapshot, and finds its engines among the endpoints here.
    fn match_up(&self, bytes: &[u8], standing: &Standing) -> Result<Vec<Match>, SnapshotFault> {
        let all = snapshot::parse(&self.index.config().keys, bytes)?;
        let lives = self.lives.read();
        let here: HashMap<Identity<'_>, (Incarnation, &Arc<State>)> = lives
            .iter()
            .map(|(id, state)| {
                let who = (&*state.pool, &*state.name, &*state.address, state.engine);
                (who, (*id, state))
            })
            .collect();
        let matched = all.iter().map(|told| {
            let who = (told.pool, told.endpoint, told.address, told.engine);
            Match {
                line: EngineLine {
                    pool: told.pool.to_owned(),
                    endpoint: told.endpoint.to_owned(),
                    rank: told.rank,
                    result: Fate::Absent,
                },
                found: match here.get(&who) {
                    None => Err(Fate::Absent),
                    Some((id, state)) => {
                        self.offer(endpoint(*id, told.rank), state, told, standing)
                    }
                },
            }
        });
        Ok(matched.collect())
    }

    fn offer(
        &self,
        id: EndpointId,
        state: &Arc<State>,
        told: &Told<'_>,
        standing: &Standing,
    ) -> Result<Offer, Fate> {
        if state.asleep.load(Ordering::Acquire) {
            return Err(Fate::Asleep);
        }
        match self.index.model(id) {
            None => return Err(Fate::Silent),
            Some(model) if *model != *told.model => return Err(Fate::OtherModel),
            Some(_) => {}
        }
        // What a process had that is gone is nobody's any more.
        if told.published < f64::from_bits(state.started.load(Ordering::Acquire)) {
            return Err(Fate::OtherLife);
        }
        let stood = standing.connections.get(&id).copied();
        let same = standing.near || !is_loopback(&state.address);
        Ok(Offer {
            id,
            state: Arc::clone(state),
            heard: Heard {
                snapshot: Arc::new(told.snapshot()),
                vouched: stood.filter(|_| told.heard && same),
            },
        })
    }

    async fn adopt(self: &Arc<Self>, matched: Vec<Match>) -> Report {
        let mut report = Report::default();
        let mut running: JoinSet<(usize, Fate, u64)> = JoinSet::new();
        let mut ended = Vec::new();
        for (at, Match { line, found }) in matched.into_iter().enumerate() {
            report.engines.push(line);
            match found {
                Err(fate) => ended.push((at, fate, 0)),
                Ok(offer) => {
                    if running.len() >= AT_ONCE {
                        ended.extend(running.join_next().await.and_then(Result::ok));
                    }
                    let prefixes = Arc::clone(self);
                    running.spawn(async move {
                        let (fate, blocks) = prefixes.take(offer).await;
                        (at, fate, blocks)
                    });
                }
            }
        }
        while let Some(done) = running.join_next().await {
            ended.extend(done.ok());
        }
        for (at, fate, blocks) in ended {
            self.snapshots.fate(fate, blocks);
            report.taken += usize::from(fate == Fate::Taken);
            report.blocks += blocks;
            if let Some(line) = report.engines.get_mut(at) {
                line.result = fate;
            }
        }
        report
    }

    async fn take(&self, offer: Offer) -> (Fate, u64) {
        match self.intake.adopt(offer.id, offer.heard).await {
            Adopted::Taken(blocks) => {
                // It may have gone to sleep meanwhile; whoever noticed has cleared too early.
                if offer.state.asleep.load(Ordering::Acquire) {
                    self.index.clear(offer.id);
                    return (Fate::Asleep, 0);
                }
                (Fate::Taken, blocks)
            }
            Adopted::Known => (Fate::Known, 0),
            Adopted::OtherLife => (Fate::OtherLife, 0),
            Adopted::Unsure => (Fate::Unsure, 0),
            Adopted::Silent => (Fate::Silent, 0),
            Adopted::Refused(_) => (Fate::Full, 0),
        }
    }
}

struct Match {
    line: EngineLine,
    found: Result<Offer, Fate>,
}

struct Offer {
    id: EndpointId,
    state: Arc<State>,
    heard: Heard,
}

#[cfg(test)]
mod tests {
    use wicketgate_wire::{EngineKind, scan_metrics};

    use super::{
        super::{EventsFrom, LifeSpec, PrefixSpec},
        *,
    };
    use crate::{clock::Clock, engine::Reach};

    fn prefixes() -> Arc<Prefixes> {
        let spec = PrefixSpec {
            approximate: None,
            // A port of the loopback where nobody listens.
            events: EventsFrom::Connect {
                port: 9,
                replay_port: None,
                ranks: 1,
            },
            ..super::super::tests::spec()
        };
        Prefixes::start(Clock::start(), spec).unwrap()
    }

    fn life(id: u64) -> LifeSpec {
        LifeSpec {
            id: Incarnation(id),
            pool: "main".into(),
            models: vec!["m".to_owned()].into(),
            name: format!("e{id}").into(),
            address: format!("127.0.0.{id}:8000").into(),
            engine: EngineKind::Vllm,
            labels: std::collections::BTreeMap::new(),
        }
    }

    fn told<'a>(name: &'a str, address: &'a str, model: &'a str) -> Told<'a> {
        Told {
            pool: "main",
            endpoint: name,
            address,
            engine: EngineKind::Vllm,
            model,
            rank: 0,
            last: 3,
            published: 1.0,
            since: 0,
            heard: true,
            // No groups of layers.
            blocks: &[0; 4],
        }
    }

    fn written(prefixes: &Prefixes, all: &[Told<'_>]) -> Bytes {
        let mut out = snapshot::head(&prefixes.index.config().keys);
        for told in all {
            let (head, checksum) = snapshot::source(told).unwrap();
            out.extend(head);
            out.extend(told.blocks);
            out.extend(checksum);
        }
        out.extend(snapshot::end(all.len() as u32));
        out.into()
    }

    /// An engine is taken over where it is the same endpoint with the same model, is awake and can be told to have the
    /// same life.
    #[tokio::test]
    async fn each_engine_of_a_snapshot_comes_to_something() {
        let prefixes = prefixes();
        let _lives = [1, 2, 3].map(|id| prefixes.join(life(id)));
        while prefixes.intake.sources().len() < 3 {
            tokio::task::yield_now().await;
        }
        for (id, page) in [
            (
                2,
                "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0\n",
            ),
            (3, "process_start_time_seconds 1.5\n"),
        ] {
            let sample = scan_metrics(EngineKind::Vllm, page.as_bytes());
            prefixes.scraped(Incarnation(id), &sample);
        }
        let younger = Told {
            published: 2.0,
            ..told("e3", "127.0.0.3:8000", "m")
        };
        let sglang = Told {
            engine: EngineKind::Sglang,
            ..told("e1", "127.0.0.1:8000", "m")
        };
        let rank = Told {
            rank: 1,
            ..told("e1", "127.0.0.1:8000", "m")
        };
        let all = [
            (told("e1", "127.0.0.1:8000", "m"), Fate::Unsure),
            (told("e1", "127.0.0.1:8000", "n"), Fate::OtherModel),
            (rank, Fate::Silent),
            (told("e1", "127.0.0.9:8000", "m"), Fate::Absent),
            (told("e9", "127.0.0.1:8000", "m"), Fate::Absent),
            (sglang, Fate::Absent),
            (told("e2", "127.0.0.2:8000", "m"), Fate::Asleep),
            (told("e3", "127.0.0.3:8000", "m"), Fate::OtherLife),
            (younger, Fate::Unsure),
        ];
        let (sources, want): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        let bytes = written(&prefixes, &sources);
        // Nobody is connected, so nobody's word counts.
        let standing = Some(prefixes.standing(true));
        for standing in [standing, None] {
            let report = prefixes.import(bytes.clone(), standing).await.unwrap();
            let found: Vec<Fate> = report.engines.iter().map(|line| line.result).collect();
            assert_eq!((found, report.taken), (want.clone(), 0));
        }
        let counts: HashMap<&str, u64> = prefixes
            .snapshots()
            .fates()
            .map(|(fate, count)| (fate.label(), count))
            .collect();
        assert_eq!(
            (counts["absent"], counts["asleep"], counts["taken"]),
            (6, 2, 0)
        );
        // Of engines that have said nothing nothing is told.
        let mut out = Vec::new();
        assert!(prefixes.export(|piece| {
            out.extend_from_slice(&piece);
            true
        }));
        assert_eq!(out, written(&prefixes, &[]));
        assert!(!prefixes.export(|_| false));
    }

    /// Somebody's word counts for engines that are the same seen from there.
    #[tokio::test]
    async fn the_loopback_is_another_one_elsewhere() {
        let prefixes = prefixes();
        let _life = prefixes.join(life(1));
        let id = endpoint(Incarnation(1), 0);
        let vouched = |near, address: &str, heard| {
            let standing = Standing {
                connections: HashMap::from([(id, 4)]),
                near,
            };
            let spec = LifeSpec {
                address: address.into(),
                ..life(1)
            };
            let state = Arc::new(State::new(&spec, Reach::default()));
            let told = Told {
                heard,
                ..told("e1", address, "m")
            };
            let offer = prefixes.offer(id, &state, &told, &standing);
            offer.ok().and_then(|offer| offer.heard.vouched)
        };
        assert_eq!(vouched(true, "127.0.0.1:8000", true), Some(4));
        assert_eq!(vouched(false, "127.0.0.1:8000", true), None);
        assert_eq!(vouched(false, "10.0.0.1:8000", true), Some(4));
        assert_eq!(vouched(false, "10.0.0.1:8000", false), None);
    }
}
