//! Filters on labels.

use std::collections::BTreeMap;

use super::Filter;
use crate::{
    choose::{Candidate, Context},
    spec::{ByLabel, Expression, Operator, Selector},
};

type Labels = BTreeMap<String, String>;

/// Every label and every expression of a selector holds.
#[derive(Debug)]
pub(super) struct Selected(pub(super) Selector);

impl Filter for Selected {
    fn keep(&self, _: &Context<'_>, candidates: &[Candidate<'_>], keep: &mut Vec<bool>) {
        let stays = |c: &Candidate<'_>| self.matches(&c.endpoint.labels);
        keep.extend(candidates.iter().map(stays));
    }
}

impl Selected {
    fn matches(&self, labels: &Labels) -> bool {
        let mut equal = self.0.match_labels.iter();
        equal.all(|(key, value)| labels.get(key) == Some(value))
            && self.0.match_expressions.iter().all(|e| holds(e, labels))
    }
}

fn holds(expression: &Expression, labels: &Labels) -> bool {
    let value = labels.get(&expression.key);
    let listed = || value.is_some_and(|value| expression.values.contains(value));
    match expression.operator {
        Operator::In => listed(),
        Operator::NotIn => !listed(),
        Operator::Exists => value.is_some(),
        Operator::DoesNotExist => value.is_none(),
    }
}

/// One label has one of some values, or is missing where that is allowed.
#[derive(Debug)]
pub(super) struct OneOf(pub(super) ByLabel);

impl Filter for OneOf {
    fn keep(&self, _: &Context<'_>, candidates: &[Candidate<'_>], keep: &mut Vec<bool>) {
        keep.extend(candidates.iter().map(|candidate| {
            match candidate.endpoint.labels.get(&self.0.label) {
                Some(value) => self.0.valid_values.contains(value),
                None => self.0.allows_no_label,
            }
        }));
    }
}

fn role(roles: &[&str], allows_no_label: bool) -> OneOf {
    OneOf(ByLabel {
        label: "llm-d.ai/role".to_owned(),
        valid_values: roles.iter().map(|role| (*role).to_owned()).collect(),
        allows_no_label,
    })
}

/// Decodes; an endpoint without a role does everything, so it does too.
pub(super) fn decode() -> OneOf {
    let roles = ["decode", "prefill-decode", "both", "encode-prefill-decode"];
    role(&roles, true)
}

/// Prefills, by its label.
pub(super) fn prefill() -> OneOf {
    let roles = [
        "prefill",
        "encode-prefill",
        "prefill-decode",
        "both",
        "encode-prefill-decode",
    ];
    role(&roles, false)
}

/// Encodes, by its label.
pub(super) fn encode() -> OneOf {
    role(
        &["encode", "encode-prefill", "encode-prefill-decode"],
        false,
    )
}
