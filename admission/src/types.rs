//! What a waiting request is to admission: who, how urgent, how big, until when. Never its bytes.

use std::{borrow::Borrow, fmt, sync::Arc};

use serde::{Deserialize, Serialize};

/// An instant in nanoseconds on the caller's monotonic clock; also a length of time.
pub type Nanos = u64;

/// One second.
pub const SECOND: Nanos = 1_000_000_000;

/// One millisecond.
pub const MILLISECOND: Nanos = 1_000_000;

/// An eligibility class: requests that the same endpoints may serve. Interned by the caller.
#[derive(
    Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize,
)]
pub struct ClassId(pub u32);

/// Who shares with whom: flows of one band with different ids share by the band's fairness policy.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct FairnessId(Arc<str>);

impl FairnessId {
    /// The flow of requests that name none.
    pub const DEFAULT: &'static str = "default-flow";

    /// An id as it stands. Ids from headers go through [`crate::headers::fairness_id`], which bounds them.
    pub fn new(id: impl Into<Arc<str>>) -> FairnessId {
        FairnessId(id.into())
    }

    /// The id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for FairnessId {
    fn default() -> Self {
        FairnessId::new(Self::DEFAULT)
    }
}

impl Borrow<str> for FairnessId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FairnessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a request costs an engine, in tokens.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Prompt tokens that no cache holds.
    pub uncached_input: u64,
    /// Generated tokens: expected while it waits, actual once it ended.
    pub output: u64,
}

/// No single request counts for more than this many weighted tokens, so sums cannot overflow.
pub const MAX_COST: u64 = 1 << 32;

impl Cost {
    /// `uncached_input + w_out x output`, between 1 and [`MAX_COST`] (Virtual Token Counter, OSDI'24: w = 1, 2).
    pub fn weighted(self, output_weight: f64) -> u64 {
        let output = output_weight.max(0.0) * self.output as f64;
        // A float past u64 saturates; NaN becomes 0.
        let sum = self.uncached_input.saturating_add(output.round() as u64);
        sum.clamp(1, MAX_COST)
    }

    /// Tokens that count against token limits: input and output, unweighted.
    pub fn tokens(self) -> u64 {
        self.uncached_input
            .saturating_add(self.output)
            .min(MAX_COST)
    }
}

/// A request that asks to wait its turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// The caller's number for it; unique among waiting and running requests.
    pub id: u64,
    /// Its band: higher is more urgent, negative may be shed.
    pub priority: i32,
    /// Its flow inside the band.
    pub fairness: FairnessId,
    /// The flow's weight: a flow of weight 2 gets twice the tokens. Outside 1/1024 to 1024, or NaN, is clamped.
    pub weight: f64,
    /// Which endpoints may serve it.
    pub class: ClassId,
    /// Body bytes held while it waits.
    pub bytes: u64,
    /// What it is expected to cost.
    pub cost: Cost,
    /// When its first byte was seen.
    pub arrived: Nanos,
    /// Longest wait that its caller asked for, from now on. Only shortens the band's.
    pub ttl: Option<Nanos>,
    /// The instant after which nobody wants the answer any more.
    pub deadline: Option<Nanos>,
    /// Time to first token that its caller aims at, from [`Item::arrived`].
    pub slo_ttft: Option<Nanos>,
}

/// A flow's weight in 1/65536, so that shares are exact integers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Weight(pub(crate) u64);

impl Weight {
    pub(crate) const ONE: Weight = Weight(1 << 16);

    pub(crate) fn new(weight: f64) -> Weight {
        if weight.is_nan() {
            return Weight::ONE;
        }
        let weight = weight.clamp(1.0 / 1024.0, 1024.0);
        Weight((weight * 65_536.0).round() as u64)
    }

    pub(crate) fn as_f64(self) -> f64 {
        self.0 as f64 / 65_536.0
    }

    /// `tokens x weight`, at least 1.
    pub(crate) fn times(self, tokens: u64) -> i64 {
        let product = (u128::from(tokens) * u128::from(self.0)) >> 16;
        i64::try_from(product).unwrap_or(i64::MAX / 4).max(1)
    }

    /// `tokens / weight` in 1/65536 of a token.
    pub(crate) fn normalise(self, tokens: i64) -> i128 {
        (i128::from(tokens) << 32) / i128::from(self.0.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_weighted_and_bounded() {
        let cost = |uncached_input, output| Cost {
            uncached_input,
            output,
        };
        assert_eq!(cost(100, 50).weighted(2.0), 200);
        assert_eq!(cost(0, 0).weighted(2.0), 1);
        assert_eq!(cost(u64::MAX, u64::MAX).weighted(2.0), MAX_COST);
        assert_eq!(cost(7, 5).weighted(f64::NAN), 7);
        assert_eq!(cost(7, 5).weighted(-3.0), 7);
        assert_eq!(cost(7, 5).tokens(), 12);
        assert_eq!(cost(u64::MAX, 5).tokens(), MAX_COST);
    }

    #[test]
    fn weights_are_clamped() {
        assert_eq!(Weight::new(1.0), Weight::ONE);
        assert_eq!(Weight::new(f64::NAN), Weight::ONE);
        assert_eq!(Weight::new(0.0), Weight(64));
        assert_eq!(Weight::new(-4.0), Weight(64));
        assert_eq!(Weight::new(f64::INFINITY), Weight(1024 << 16));
        assert_eq!(Weight::new(2.0).times(10), 20);
        assert_eq!(Weight::new(0.5).normalise(10), 20 << 16);
    }
}
