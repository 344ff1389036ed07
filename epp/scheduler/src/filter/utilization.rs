//! Limits on metrics.

use super::Filter;
use crate::{
    Endpoint,
    choose::{Candidate, Context, Reads},
    spec::{Condition, ConditionMetric, Utilization},
};

/// Every metric at or below its limit. A metric nobody has read is not over its limit: the filter removes what is
/// known to be full, and the tiers behind it take care of the unknown.
#[derive(Debug)]
pub(super) struct Limits(pub(super) Utilization);

impl Filter for Limits {
    fn keep(&self, context: &Context<'_>, candidates: &[Candidate<'_>], keep: &mut Vec<bool>) {
        keep.extend(candidates.iter().map(|candidate| {
            let mut conditions = self.0.conditions.iter();
            conditions.all(|condition| within(condition, context, candidate.endpoint))
        }));
    }

    fn fails_open(&self) -> bool {
        self.0.fallback_on_empty
    }

    fn reads(&self) -> Reads {
        let own = |c: &Condition| c.metric == ConditionMetric::ActiveRequests;
        if self.0.conditions.iter().all(own) {
            Reads::NOTHING
        } else {
            Reads::TELEMETRY
        }
    }
}

fn within(condition: &Condition, context: &Context<'_>, endpoint: &Endpoint) -> bool {
    let value = match condition.metric {
        ConditionMetric::ActiveRequests => Some(f64::from(endpoint.load.requests)),
        ConditionMetric::RunningRequests => context.running(endpoint),
        ConditionMetric::WaitingQueue => context.waiting(endpoint),
        ConditionMetric::KvCacheUtilization => context.kv_usage(endpoint),
    };
    value.is_none_or(|value| value <= condition.max_value)
}
