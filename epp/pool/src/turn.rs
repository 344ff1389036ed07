//! A turn: who may go now goes, who waited too long is told, and when to look again.

use std::cell::RefCell;

use wicketgate_admission::{
    Pressure,
    fleet::Fleet,
    gate::{Answer, Ask, EndpointView, Gate, PoolGate, Saturation},
};
use wicketgate_scheduler::{Availability, Endpoint, Nanos, PrefixView};

use crate::{
    Pool,
    input::{Output, Outputs, RequestId},
    queue::{availability, view},
};

/// Room that turns reuse.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    views: Vec<EndpointView>,
    priorities: Vec<i32>,
    fits: Vec<bool>,
    open: Vec<bool>,
    full: Vec<bool>,
}

/// An endpoint with what other replicas have there.
fn seen(row: &Endpoint, kv: u64, fleet: Option<&Fleet>) -> EndpointView {
    let own = view(row, kv);
    fleet.map_or(own, |fleet| fleet.view(&row.address, own))
}

/// The pool's gate: endpoints that are draining, ejected or outside the request's restriction do not count, stand-bys
/// only where nobody with a weight is left.
struct TurnGate<'a, F> {
    gate: PoolGate<'a>,
    fits: &'a RefCell<Vec<bool>>,
    /// Sets `fits` for a class; false if no endpoint is left to it.
    fit: F,
    open: &'a mut Vec<bool>,
}

impl<F: FnMut(&Ask, &mut Vec<bool>) -> bool> Gate for TurnGate<'_, F> {
    fn can_start(&mut self, ask: &Ask) -> Answer {
        let hopeful = (self.fit)(ask, &mut self.fits.borrow_mut());
        if !hopeful {
            // To wait for an ejected endpoint would defeat its breaker: the scheduler says no at once.
            self.open.clear();
            return Answer::Start;
        }
        let answer = self.gate.can_start(ask);
        if answer == Answer::Start {
            self.gate.open(ask, self.open);
        }
        answer
    }
}

impl Pool {
    /// Everything that may go now goes; waits that are over end; the next instant is asked for.
    pub(crate) fn turn(&mut self, now: Nanos, prefix: &dyn PrefixView, out: &mut Outputs) {
        self.pass_fleet(now);
        self.expire(now, out);
        if !self.waiting.is_empty() {
            self.look();
            while let Some((id, waited)) = self.next(now) {
                let full = self.full();
                let first = self.start(now, id, waited, prefix, &full, out);
                self.scratch.full = full;
                if let Some(place) = first.and_then(|id| self.table.place(id)) {
                    self.look_again(place);
                }
            }
            // What came to its end while its turn was looked for.
            self.expire(now, out);
            self.evict(now, out);
        }
        self.announce(now, out);
    }

    fn expire(&mut self, now: Nanos, out: &mut Outputs) {
        let mut left = Vec::new();
        self.admission.expire(now, &mut left);
        self.tell(left, out);
    }

    /// Views of all endpoints at this instant.
    fn look(&mut self) {
        let views = &mut self.scratch.views;
        views.clear();
        let rows = self.table.rows().iter().zip(self.table.unseen_kv());
        let fleet = self.fleet.as_ref();
        views.extend(rows.map(|(row, kv)| seen(row, kv, fleet)));
        let priorities = &mut self.scratch.priorities;
        if !self.admission.ranks().eq(priorities.iter().copied()) {
            priorities.clear();
            priorities.extend(self.admission.ranks());
            // Ceilings go by ranks.
            self.admission.capacity_changed(None);
        }
    }

    /// One endpoint's view after a dispatch.
    fn look_again(&mut self, place: usize) {
        let kv = self.table.unseen_kv().nth(place).unwrap_or(0);
        let row = self.table.rows().get(place);
        if let (Some(row), Some(seen)) = (row, self.scratch.views.get_mut(place)) {
            *seen = self::seen(row, kv, self.fleet.as_ref());
        }
    }

    /// Which endpoints cannot start the request whose turn it is.
    fn full(&mut self) -> Vec<bool> {
        let mut full = std::mem::take(&mut self.scratch.full);
        full.clear();
        full.extend(self.scratch.open.iter().map(|open| !open));
        full
    }

    /// The next request that may start.
    fn next(&mut self, now: Nanos) -> Option<(RequestId, Nanos)> {
        let Pool {
            config,
            table,
            admission,
            classes,
            limits,
            scratch,
            ..
        } = self;
        let health = &config.policy.health;
        let fits = RefCell::new(std::mem::take(&mut scratch.fits));
        let eligible = |_, at: usize| fits.borrow().get(at).copied().unwrap_or(false);
        let mut gate = TurnGate {
            gate: PoolGate::new(
                &config.flow.gate,
                now,
                &scratch.views,
                &scratch.priorities,
                &eligible,
                limits,
            ),
            fits: &fits,
            fit: |ask: &Ask, fits: &mut Vec<bool>| {
                let rows = table.rows();
                let may = |row| {
                    classes.allows(ask.class, row)
                        && !matches!(availability(row, now, health), Availability::No { .. })
                };
                let weighted = rows.iter().any(|row| row.weight > 0 && may(row));
                fits.clear();
                fits.extend(
                    rows.iter()
                        .map(|row| (row.weight > 0 || !weighted) && may(row)),
                );
                fits.contains(&true)
            },
            open: &mut scratch.open,
        };
        let next = admission.next(now, &mut gate);
        scratch.fits = fits.into_inner();
        next.map(|dispatch| (RequestId(dispatch.id), dispatch.waited))
    }

    /// How full the pool is, by stage.
    pub fn saturation(&self, now: Nanos) -> Saturation {
        let rows = self.table.rows().iter().zip(self.table.unseen_kv());
        let fleet = self.fleet.as_ref();
        let views: Vec<EndpointView> = rows.map(|(row, kv)| seen(row, kv, fleet)).collect();
        wicketgate_admission::gate::saturation(&self.config.flow.gate, now, &views)
    }

    /// Makes room for a blocked band at the expense of running sheddable requests, if the configuration says so.
    fn evict(&mut self, now: Nanos, out: &mut Outputs) {
        if !self.config.flow.admission.eviction.enabled {
            return;
        }
        let Some(blocked) = self.admission.blocked_priority() else {
            return;
        };
        let Some(saturation) = self.saturation(now).effective() else {
            return;
        };
        let Pool {
            config,
            table,
            admission,
            running,
            limits,
            scratch,
            ..
        } = self;
        let nobody = |_, _| false;
        let (views, priorities) = (&scratch.views, &scratch.priorities);
        let ceiling = PoolGate::new(&config.flow.gate, now, views, priorities, &nobody, limits)
            .ceiling(blocked);
        let pressure = Pressure {
            blocked,
            saturation,
            ceiling,
            running: running.len() as u64,
        };
        let health = &config.policy.health;
        let mut helps = |id| {
            let run = running.get(&RequestId(id));
            let row = run.and_then(|run| table.get(run.at()));
            row.is_some_and(|row| {
                !matches!(availability(row, now, health), Availability::No { .. })
            })
        };
        for id in admission.evict(now, &pressure, &mut helps) {
            out.list.push(Output::Evict { id: RequestId(id) });
        }
    }

    /// Asks for the next instant at which something happens by time alone. Asked for only when it comes before the one
    /// that was asked for last: a call too early costs little, and the call itself asks again.
    fn announce(&mut self, now: Nanos, out: &mut Outputs) {
        let queues = self.admission.wake_at();
        let gate = match self.waiting.is_empty() {
            true => None,
            false => self.gate_changes_at(now),
        };
        let fleet = self.fleet.as_ref().and_then(Fleet::wake_at);
        let Some(wake) = [queues, gate, fleet].into_iter().flatten().min() else {
            return;
        };
        if self.announced.is_none_or(|announced| wake < announced) {
            self.announced = Some(wake);
            out.list.push(Output::WakeAt(wake));
        }
    }

    /// When time alone changes what the gate says: a reading grows old, a new endpoint's grace ends, a cool-down ends.
    fn gate_changes_at(&self, now: Nanos) -> Option<Nanos> {
        let gate = &self.config.flow.gate;
        let health = &self.config.policy.health;
        let rows = self.table.rows().iter().filter(|row| !row.draining);
        let instants = rows.zip(&self.scratch.views).flat_map(|(row, view)| {
            let known = match view.reading {
                Some(reading) => reading
                    .at
                    .saturating_add(gate.stale_after)
                    .saturating_add(1),
                None => row.joined.saturating_add(gate.first_scrape_grace),
            };
            let back = match availability(row, now, health) {
                Availability::No { until } => Some(until),
                Availability::Yes | Availability::Probe => None,
            };
            [Some(known), back]
        });
        instants.flatten().filter(|at| *at > now).min()
    }
}
