//! Other replicas of this pool: what this one tells them, and what it makes of what they say.

use wicketgate_admission::fleet::{
    Counters, EndpointLoad, Fleet, FleetConfig, FleetState, FleetTotals, Heard, ReplicaId,
};
use wicketgate_scheduler::{Incarnation, Nanos};

use crate::{
    Pool,
    input::{Output, Outputs},
};

/// How a pool stands to its other replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FleetView {
    /// Alone, part of the whole, or keeping to its share.
    pub state: FleetState,
    /// Replicas, this one included.
    pub members: u32,
    /// Others that are heard.
    pub hearing: u32,
    /// Counts over its life.
    pub totals: FleetTotals,
}

impl Pool {
    pub(crate) fn join_fleet(&mut self, me: ReplicaId, config: FleetConfig, out: &mut Outputs) {
        match Fleet::new(config, me) {
            Ok(fleet) => {
                self.fleet = Some(fleet);
                self.attach_fleet();
                self.admission.capacity_changed(None);
            }
            Err(error) => out.push(Output::ConfigRefused(error.to_string())),
        }
    }

    /// New queues know nothing of the others yet.
    pub(crate) fn attach_fleet(&mut self) {
        if let Some(fleet) = &mut self.fleet {
            fleet.attach(&mut self.admission);
        }
    }

    pub(crate) fn hear(&mut self, now: Nanos, said: &Counters) {
        if let Some(fleet) = &mut self.fleet
            && fleet.hear(now, said, &mut self.admission) == Heard::New
        {
            self.admission.capacity_changed(None);
        }
    }

    pub(crate) fn set_members(&mut self, members: u32) {
        if let Some(fleet) = &mut self.fleet {
            fleet.set_members(members, &mut self.admission);
            self.admission.capacity_changed(None);
        }
    }

    pub(crate) fn tell_peers(&mut self, now: Nanos, out: &mut Outputs) {
        let Some(fleet) = &mut self.fleet else {
            return;
        };
        let rows = self.table.rows().iter();
        // An address means the same endpoint at every replica; lives are numbered by each for itself.
        let loads = rows.map(|row| EndpointLoad {
            endpoint: row.address.clone(),
            requests: row.load.requests,
            tokens: row.load.tokens,
        });
        let said = fleet.tell(now, &self.admission, loads);
        out.push(Output::Tell(Box::new(said)));
    }

    /// A good reading shows what the others sent there until now.
    pub(crate) fn seen_by_peers(&mut self, of: Incarnation, good: bool) {
        if let (true, Some(fleet), Some(row)) = (good, &mut self.fleet, self.table.get(of)) {
            fleet.read(&row.address);
        }
    }

    /// Time passes: who fell silent counts no more.
    pub(crate) fn pass_fleet(&mut self, now: Nanos) {
        if let Some(fleet) = &mut self.fleet
            && fleet.pass(now, &mut self.admission)
        {
            self.admission.capacity_changed(None);
        }
    }

    /// How this pool stands to its other replicas, if it has any.
    pub fn fleet(&self) -> Option<FleetView> {
        self.fleet.as_ref().map(|fleet| FleetView {
            state: fleet.state(),
            members: fleet.members(),
            hearing: fleet.hearing(),
            totals: *fleet.totals(),
        })
    }
}
