//! How a pool lets requests wait, and the eligibility classes of those that do.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use wicketgate_admission::{AdmissionConfig, ClassId, ConfigError, gate::GateConfig};
use wicketgate_scheduler::{Endpoint, Subset};

/// Whether and how requests wait for their turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlowControl {
    /// Requests wait until an endpoint can start them. Otherwise, as in llm-d without its feature gate, each goes to an
    /// endpoint at once, and only negative priorities are refused, while the pool is full.
    pub enabled: bool,
    /// Bands, flows, bounds and waits.
    pub admission: AdmissionConfig,
    /// When an endpoint can start a request.
    pub gate: GateConfig,
}

impl Default for FlowControl {
    fn default() -> Self {
        FlowControl {
            enabled: true,
            admission: AdmissionConfig::default(),
            gate: GateConfig::default(),
        }
    }
}

impl FlowControl {
    /// Nothing waits.
    pub fn disabled() -> FlowControl {
        FlowControl {
            enabled: false,
            ..FlowControl::default()
        }
    }

    /// Checks that every value makes sense.
    ///
    /// # Errors
    /// All faults, as `key: what is wrong`.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.admission.check()?;
        self.gate.check()
    }
}

/// A set of endpoints that some waiting requests may use.
#[derive(Debug)]
struct Class {
    subset: Option<Subset>,
    waiting: u32,
}

/// Eligibility classes of waiting requests: as many as there are different restrictions among them.
#[derive(Debug, Default)]
pub(crate) struct Classes {
    by_id: HashMap<ClassId, Class>,
    by_subset: HashMap<Option<Subset>, ClassId>,
    next: u32,
}

impl Classes {
    /// The class of a request with this restriction, one waiter more in it.
    pub(crate) fn enter(&mut self, subset: Option<Subset>) -> ClassId {
        if let Some(id) = self.by_subset.get(&subset)
            && let Some(class) = self.by_id.get_mut(id)
        {
            class.waiting += 1;
            return *id;
        }
        let mut id = ClassId(self.next);
        while self.by_id.contains_key(&id) {
            id.0 = id.0.wrapping_add(1);
        }
        self.next = id.0.wrapping_add(1);
        self.by_subset.insert(subset.clone(), id);
        self.by_id.insert(id, Class { subset, waiting: 1 });
        id
    }

    /// A waiter left its class.
    pub(crate) fn leave(&mut self, id: ClassId) {
        let Some(class) = self.by_id.get_mut(&id) else {
            return;
        };
        class.waiting -= 1;
        if class.waiting == 0
            && let Some(class) = self.by_id.remove(&id)
        {
            self.by_subset.remove(&class.subset);
        }
    }

    /// True if the endpoint may serve the class.
    pub(crate) fn allows(&self, id: ClassId, endpoint: &Endpoint) -> bool {
        match self.by_id.get(&id).map(|class| &class.subset) {
            Some(Some(subset)) => subset.allows(endpoint.socket()),
            Some(None) => true,
            None => false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Requests in all classes.
    pub(crate) fn waiting(&self) -> u64 {
        self.by_id
            .values()
            .map(|class| u64::from(class.waiting))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        reason = "a test that panics has failed, which is its job"
    )]

    use std::sync::Arc;

    use wicketgate_scheduler::{EndpointSpec, Incarnation, SubsetEntry};

    use super::*;

    fn endpoint(address: &str) -> Endpoint {
        let spec = EndpointSpec::new(Arc::from(address), Arc::from(address));
        Endpoint::new(Incarnation(1), &spec, 0)
    }

    fn only(address: &str) -> Option<Subset> {
        let entry = SubsetEntry::parse(address).unwrap();
        Some(Subset::new(&[entry]))
    }

    #[test]
    fn equal_restrictions_share_a_class_and_the_last_waiter_ends_it() {
        let mut classes = Classes::default();
        let all = classes.enter(None);
        let a = classes.enter(only("10.0.0.1:1"));
        assert_eq!(classes.enter(only("10.0.0.1:1")), a);
        let nobody = classes.enter(Some(Subset::default()));
        assert_eq!((classes.len(), classes.waiting()), (3, 4));
        let here = endpoint("10.0.0.1:1");
        let there = endpoint("10.0.0.2:1");
        assert!(classes.allows(all, &here) && classes.allows(all, &there));
        assert!(classes.allows(a, &here) && !classes.allows(a, &there));
        assert!(!classes.allows(nobody, &here));
        classes.leave(a);
        assert!(classes.allows(a, &here), "one still waits");
        classes.leave(a);
        assert!(!classes.allows(a, &here));
        classes.leave(all);
        classes.leave(nobody);
        assert_eq!((classes.len(), classes.waiting()), (0, 0));
    }
}
