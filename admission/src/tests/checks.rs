//! The invariants of docs/invariants.md as watchers of what goes in and comes out. They know nothing of the inside.

use std::collections::{BTreeMap, HashMap};

use crate::{Cost, Dispatch, Fairness, Item, Nanos, Outcome, Starvation, Turn};

pub(super) type Check = Result<(), String>;

fn within(what: &str, value: f64, bound: f64) -> Check {
    // A hair for the rounding of shares to 1/65536.
    match value <= bound * (1.0 + 1e-9) + 1.0 {
        true => Ok(()),
        false => Err(format!("{what}: {value:.1} > {bound:.1}")),
    }
}

fn weighted(cost: Cost) -> f64 {
    match (cost.uncached_input, cost.output) {
        (0, 0) => 0.0,
        _ => cost.weighted(2.0) as f64,
    }
}

/// Where a request is, as the outside sees it.
#[derive(Clone, Debug)]
enum Life {
    Waiting,
    Running,
    Over,
}

/// What the watchers know of a request.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) item: Item,
    pub(super) entered: Nanos,
    life: Life,
}

/// INV-Q2: every request ends its wait once, and only then its run.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) seen: HashMap<u64, Seen>,
    pub(super) waiting: u64,
    pub(super) bytes: u64,
    pub(super) by_outcome: BTreeMap<Outcome, u64>,
}

impl Ledger {
    pub(super) fn entered(&mut self, now: Nanos, item: Item) {
        self.waiting += 1;
        self.bytes += item.bytes;
        let seen = Seen {
            entered: now,
            life: Life::Waiting,
            item,
        };
        self.seen.insert(seen.item.id, seen);
    }

    pub(super) fn ended(&mut self, id: u64, outcome: Outcome) -> Result<Seen, String> {
        let seen = self
            .seen
            .get_mut(&id)
            .ok_or("INV-Q2: an unknown request ended")?;
        if !matches!(seen.life, Life::Waiting) {
            return Err(format!(
                "INV-Q2: {id} ended twice, now {outcome:?}: {seen:?}"
            ));
        }
        self.waiting -= 1;
        self.bytes -= seen.item.bytes;
        *self.by_outcome.entry(outcome).or_default() += 1;
        seen.life = match outcome {
            Outcome::Dispatched => Life::Running,
            _ => Life::Over,
        };
        let seen = seen.clone();
        if outcome != Outcome::Dispatched {
            self.seen.remove(&id);
        }
        Ok(seen)
    }

    pub(super) fn completed(&mut self, id: u64) -> Result<Seen, String> {
        match self.seen.remove(&id) {
            Some(seen) if matches!(seen.life, Life::Running) => Ok(seen),
            other => Err(format!("INV-Q2: {id} completed without running: {other:?}")),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct FlowSeen {
    weight: f64,
    waiting: u64,
    /// Accounted service / weight: charged at dispatch, corrected at completion.
    service: f64,
    /// Sum of |charged - actual| in flight now, and its maximum.
    error: f64,
    worst_error: f64,
    /// By other flow: the least of `its service - this one's` since this one waits without a break.
    leads: Vec<f64>,
}

/// INV-Q5: while a flow waits, no other gets further ahead of it than the bound, whether the other waits all the time,
/// comes and goes, or lies about its costs.
pub(super) struct Gaps {
    policy: Fairness,
    names: BTreeMap<String, usize>,
    flows: Vec<FlowSeen>,
    /// The dearest request, and the largest error / weight, so far.
    dearest: f64,
    worst: f64,
    /// Largest lead / bound of policies that count tokens.
    pub(super) largest_share_of_bound: f64,
}

impl Gaps {
    pub(super) fn new(policy: Fairness) -> Gaps {
        Gaps {
            policy,
            names: BTreeMap::new(),
            flows: Vec::new(),
            dearest: 0.0,
            worst: 0.0,
            largest_share_of_bound: 0.0,
        }
    }

    fn at(&mut self, item: &Item) -> usize {
        let next = self.flows.len();
        let at = *self
            .names
            .entry(item.fairness.as_str().to_owned())
            .or_insert(next);
        if at == next {
            self.flows.push(FlowSeen {
                weight: item.weight,
                ..FlowSeen::default()
            });
            // A newcomer has had nothing: that is the least of its lead from here on.
            let mine: Vec<f64> = self.flows.iter().map(|f| f.service).collect();
            for (flow, service) in self.flows.iter_mut().zip(mine) {
                flow.leads.resize(next + 1, -service);
            }
        }
        at
    }

    pub(super) fn entered(&mut self, item: &Item) {
        let at = self.at(item);
        self.flows[at].waiting += 1;
        if self.flows[at].waiting > 1 {
            return;
        }
        let mine = self.flows[at].service;
        let leads = self.flows.iter().map(|other| other.service - mine);
        self.flows[at].leads = leads.collect();
    }

    pub(super) fn dispatched(&mut self, item: &Item, actual: Cost) -> Check {
        let charge = weighted(item.cost);
        self.dearest = self.dearest.max(charge);
        let counted = match self.policy {
            Fairness::RoundRobin => 1.0,
            _ => charge / item.weight,
        };
        let at = self.at(item);
        let flow = &mut self.flows[at];
        flow.service += counted;
        flow.error += (charge - weighted(actual)).abs();
        flow.worst_error = flow.worst_error.max(flow.error);
        self.worst = self.worst.max(flow.worst_error / flow.weight);
        self.compare(at)?;
        self.left(item);
        Ok(())
    }

    pub(super) fn left(&mut self, item: &Item) {
        let at = self.at(item);
        self.flows[at].waiting -= 1;
    }

    pub(super) fn completed(&mut self, item: &Item, actual: Cost) -> Check {
        let more = weighted(actual) - weighted(item.cost);
        let at = self.at(item);
        let flow = &mut self.flows[at];
        flow.error -= more.abs();
        if matches!(self.policy, Fairness::Drr { .. } | Fairness::Vtc { .. }) {
            flow.service += more / flow.weight;
            return self.compare(at);
        }
        Ok(())
    }

    /// After this flow's service changed.
    fn compare(&mut self, changed: usize) -> Check {
        for behind in 0..self.flows.len() {
            for ahead in 0..self.flows.len() {
                let concerns = (behind == changed) != (ahead == changed);
                if !concerns || self.flows[behind].waiting == 0 {
                    continue;
                }
                let lead = self.flows[ahead].service - self.flows[behind].service;
                let least = &mut self.flows[behind].leads[ahead];
                *least = least.min(lead);
                let rise = lead - *least;
                self.judge(ahead, behind, rise)?;
            }
        }
        Ok(())
    }

    fn judge(&mut self, ahead: usize, behind: usize, rise: f64) -> Check {
        let (i, j) = (&self.flows[ahead], &self.flows[behind]);
        let per_weight = |x: f64, y: f64| x / i.weight + y / j.weight;
        let bound = match self.policy {
            Fairness::GlobalStrict => return Ok(()),
            // Whole requests: a hair of room would hide a turn.
            Fairness::RoundRobin if rise > 1.0 => f64::NEG_INFINITY,
            Fairness::RoundRobin => return Ok(()),
            Fairness::Drr { quantum } => {
                2.0 * quantum as f64
                    + per_weight(self.dearest, self.dearest)
                    + 2.0 * per_weight(i.worst_error, j.worst_error)
            }
            Fairness::Vtc { .. } => per_weight(self.dearest, self.dearest) + 4.0 * self.worst,
        };
        self.largest_share_of_bound = self.largest_share_of_bound.max(rise / bound);
        let what = format!(
            "INV-Q5 lead of {ahead} over {behind} under {:?}",
            self.policy
        );
        within(&what, rise, bound)
    }
}

/// What a watcher of starvation needs to know of a dispatch.
pub(super) struct Served<'a> {
    pub(super) now: Nanos,
    pub(super) dispatch: &'a Dispatch,
    pub(super) charge: f64,
    /// Bands below the top in which something waited before this dispatch, with the oldest entry.
    pub(super) lower: &'a [(i32, Nanos)],
}

/// INV-Q8 and INV-Q9: what low bands get, and what they may take.
pub(super) struct Shares {
    policy: Starvation,
    dearest: f64,
    total: f64,
    /// Aging: tokens of old requests out of turn; the least of `aged - share x total` so far.
    aged: f64,
    aged_least: f64,
    /// Aging: tokens since an old request was served or none waited.
    without: f64,
    /// Floor: per band, `got - share x total` while it waits, and the most of it.
    floors: BTreeMap<i32, (f64, f64)>,
    /// Floor: per band, tokens out of turn less the share of all, and the least of it.
    taken: BTreeMap<i32, (f64, f64)>,
}

impl Shares {
    pub(super) fn new(policy: Starvation) -> Shares {
        Shares {
            policy,
            dearest: 0.0,
            total: 0.0,
            aged: 0.0,
            aged_least: 0.0,
            without: 0.0,
            floors: BTreeMap::new(),
            taken: BTreeMap::new(),
        }
    }

    pub(super) fn served(&mut self, served: &Served<'_>) -> Check {
        self.dearest = self.dearest.max(served.charge);
        match self.policy {
            Starvation::Strict => match served.dispatch.turn {
                Turn::InOrder => Ok(()),
                Turn::Aged | Turn::Floor => Err("strict bands served out of turn".to_owned()),
            },
            Starvation::Aging { after, share } => self.aging(served, after, share),
            Starvation::Floor { share, .. } => self.floor(served, share),
        }
    }

    fn aging(&mut self, served: &Served<'_>, after: Nanos, share: f64) -> Check {
        let dispatch = served.dispatch;
        self.total += served.charge;
        if dispatch.turn == Turn::Aged {
            self.aged += served.charge;
        }
        let over = self.aged - share * self.total;
        self.aged_least = self.aged_least.min(over);
        let bound = (1.0 + share) * self.dearest;
        within(
            "INV-Q8 taken by old requests",
            over - self.aged_least,
            bound,
        )?;
        let old = |entered: Nanos| served.now - entered >= after;
        let oldest = served.lower.iter().filter(|(_, entered)| old(*entered));
        let waits = oldest.clone().count() > 0;
        let is_old = oldest.clone().any(|(band, _)| *band == dispatch.priority);
        self.without = match waits && !is_old {
            true => self.without + served.charge,
            false => 0.0,
        };
        let bound = self.dearest / share + 2.0 * self.dearest;
        within("INV-Q8 tokens past an old request", self.without, bound)
    }

    pub(super) fn unused(&mut self, dispatch: &Dispatch, unused: f64) {
        if dispatch.turn == Turn::Aged {
            self.aged -= unused;
            if let Starvation::Aging { share, .. } = self.policy {
                self.aged_least = self.aged_least.min(self.aged - share * self.total);
            }
        }
        if dispatch.turn == Turn::Floor
            && let Some((taken, least)) = self.taken.get_mut(&dispatch.priority)
        {
            *taken -= unused;
            *least = least.min(*taken);
        }
    }

    fn floor(&mut self, served: &Served<'_>, share: f64) -> Check {
        let Dispatch { priority, turn, .. } = *served.dispatch;
        // A band that no longer waits starts over.
        self.floors
            .retain(|band, _| served.lower.iter().any(|(b, _)| b == band));
        for (band, _) in served.lower {
            let mine = if *band == priority {
                served.charge
            } else {
                0.0
            };
            let (got, most) = self.floors.entry(*band).or_insert((0.0, 0.0));
            *got += mine - share * served.charge;
            *most = most.max(*got);
            within(
                "INV-Q9 short of the floor",
                *most - *got,
                2.0 * self.dearest,
            )?;
            let out = if turn == Turn::Floor { mine } else { 0.0 };
            let (taken, least) = self.taken.entry(*band).or_insert((0.0, 0.0));
            *taken += out - share * served.charge;
            *least = least.min(*taken);
            within("INV-Q9 past the floor", *taken - *least, 2.0 * self.dearest)?;
        }
        Ok(())
    }
}
