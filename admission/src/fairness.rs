//! Who goes next among the flows of a band: keys, charges and corrections. The flow with the least key goes.

use crate::{
    config::Fairness,
    fault::{Fault, broken},
    types::Weight,
};

/// What flows are compared by.
pub(crate) type FairKey = (i128, u64);

/// Fairness state of a band.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BandShare {
    pub(crate) policy: Fairness,
    /// Places in the line, given out one after another.
    next_turn: u64,
    /// DRR: the highest round in which a flow was served.
    round: u64,
    /// VTC: the highest counter that was served.
    clock: i128,
    /// VTC: the counter of the flow whose queue emptied last.
    departed: i128,
}

/// Fairness state of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlowShare {
    /// Place in the line.
    turn: u64,
    /// DRR: tokens left; below zero is debt.
    deficit: i64,
    /// DRR: the round up to which quanta are in the deficit.
    round: u64,
    /// DRR: tokens that it got elsewhere and that were not charged, as it owed enough: what is given back of them later
    /// counts for nothing either.
    forgiven: i64,
    /// VTC: `sum of charge / weight`, in 1/65536 of a token.
    counter: i128,
}

impl BandShare {
    pub(crate) fn new(policy: Fairness) -> BandShare {
        BandShare {
            policy,
            next_turn: 0,
            round: 1,
            clock: 0,
            departed: 0,
        }
    }

    fn take_turn(&mut self) -> u64 {
        self.next_turn += 1;
        self.next_turn
    }

    /// Tokens per round of a flow of this weight.
    fn quantum(weight: Weight, quantum: u64) -> i64 {
        if broken(Fault::DrrIgnoresWeight) {
            return Weight::ONE.times(quantum);
        }
        weight.times(quantum)
    }

    fn normalise(weight: Weight, tokens: i64) -> i128 {
        if broken(Fault::VtcIgnoresWeight) {
            return Weight::ONE.normalise(tokens);
        }
        weight.normalise(tokens)
    }

    /// The first round in which the flow's deficit is above zero.
    fn eligible(share: &FlowShare, quantum: i64) -> u64 {
        if share.deficit > 0 {
            return share.round;
        }
        let debt = share.deficit.unsigned_abs();
        share
            .round
            .saturating_add(debt / quantum.unsigned_abs().max(1))
            .saturating_add(1)
    }

    /// Puts the quanta of the rounds up to this one into the deficit, as far as it needs them to rise above zero.
    fn settle(share: &mut FlowShare, quantum: i64, round: u64) {
        let until = Self::eligible(share, quantum).min(round);
        if until > share.round {
            let quanta = i64::try_from(until - share.round).unwrap_or(i64::MAX);
            share.deficit = share.deficit.saturating_add(quantum.saturating_mul(quanta));
            share.round = until;
        }
    }

    /// The key under which a flow's queue competes; `head` is the order of the queue's first item.
    pub(crate) fn key(&self, share: &FlowShare, weight: Weight, head: (u64, u64)) -> FairKey {
        match self.policy {
            Fairness::GlobalStrict if broken(Fault::StrictByNewest) => (-i128::from(head.1), 0),
            Fairness::GlobalStrict => (i128::from(head.0), head.1),
            Fairness::RoundRobin => (0, share.turn),
            Fairness::Drr { quantum } => {
                let round = Self::eligible(share, Self::quantum(weight, quantum));
                (i128::from(round), share.turn)
            }
            Fairness::Vtc { .. } => (share.counter, share.turn),
        }
    }

    /// A flow's first item enters. `least` is the least counter among flows that wait.
    pub(crate) fn activate(&mut self, share: &mut FlowShare, weight: Weight, least: Option<i128>) {
        share.turn = self.take_turn();
        match self.policy {
            Fairness::GlobalStrict | Fairness::RoundRobin => {}
            Fairness::Drr { quantum } => {
                // The round just before the current one: the flow's quantum of this round is still to come, unless
                // it was served in it already.
                let join = self.round.saturating_sub(1);
                let missed = join.saturating_sub(share.round);
                let quantum = i128::from(Self::quantum(weight, quantum));
                let paid = i128::from(share.deficit) + quantum * i128::from(missed);
                share.deficit = i64::try_from(paid.min(0)).unwrap_or(i64::MIN / 2);
                if broken(Fault::DrrForgivesDebt) {
                    share.deficit = 0;
                }
                share.round = share.round.max(join);
                if broken(Fault::DrrRejoinsTheRound) {
                    share.round = join;
                }
            }
            Fairness::Vtc { max_lag } => {
                if broken(Fault::VtcDoesNotLift) {
                    return;
                }
                let floor =
                    least.map_or(self.departed, |least| least.max(self.clock - lag(max_lag)));
                share.counter = share.counter.max(floor);
            }
        }
    }

    /// The flow's turn: it is charged.
    pub(crate) fn serve(&mut self, share: &mut FlowShare, weight: Weight, charge: u64) {
        let tokens = i64::try_from(charge).unwrap_or(i64::MAX);
        match self.policy {
            Fairness::GlobalStrict => {}
            Fairness::RoundRobin => {
                if !broken(Fault::TurnIsKept) {
                    share.turn = self.take_turn();
                }
            }
            Fairness::Drr { quantum } => {
                let quantum = Self::quantum(weight, quantum);
                Self::settle(share, quantum, u64::MAX);
                // Rounds that passed while the flow could not be served give it nothing.
                share.round = share.round.max(self.round);
                self.round = share.round;
                if !broken(Fault::DrrChargesNothing) {
                    share.deficit = share.deficit.saturating_sub(tokens);
                }
            }
            Fairness::Vtc { max_lag } => {
                share.counter = share.counter.max(self.clock - lag(max_lag));
                self.clock = self.clock.max(share.counter);
                let tokens = if broken(Fault::VtcCountsRequests) {
                    1
                } else {
                    tokens
                };
                share.counter += Self::normalise(weight, tokens);
            }
        }
    }

    /// The flow's last waiting item left.
    pub(crate) fn deactivate(&mut self, share: &FlowShare) {
        // A surplus is dropped by `activate`, which keeps nothing above zero.
        self.departed = share.counter;
    }

    /// What was really used differs from what was charged.
    pub(crate) fn correct(
        &mut self,
        share: &mut FlowShare,
        weight: Weight,
        charged: u64,
        actual: u64,
    ) {
        if broken(Fault::NoReconciliation) {
            return;
        }
        let signed = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        let more = signed(actual).saturating_sub(signed(charged));
        match self.policy {
            Fairness::GlobalStrict | Fairness::RoundRobin => {}
            Fairness::Drr { quantum } => {
                // Rounds that passed have paid debt as it was then; a refund must not undo that.
                let quantum = Self::quantum(weight, quantum);
                Self::settle(share, quantum, self.round);
                share.deficit = share.deficit.saturating_sub(more);
            }
            Fairness::Vtc { .. } => share.counter += Self::normalise(weight, more),
        }
    }
}

impl BandShare {
    /// Another replica served the flow: it counts as if it had been served here (INV-Q13). `waits` says whether it waits
    /// here; under DRR nobody comes to owe more than `max_debt` tokens by it, or to have more than so many left. The counter of a flow that waits elsewhere
    /// only, for [`BandShare::level`].
    pub(crate) fn elsewhere(
        &mut self,
        share: &mut FlowShare,
        weight: Weight,
        tokens: i64,
        waits: bool,
        max_debt: u64,
    ) -> Option<i128> {
        match self.policy {
            // Turns are not tokens; a common line of turns would need every replica's requests in it.
            Fairness::GlobalStrict | Fairness::RoundRobin => None,
            Fairness::Drr { quantum } => {
                let quantum = Self::quantum(weight, quantum);
                // As in `activate`: who does not wait has its quantum of this round still to come.
                let before = self.round.saturating_sub(1);
                Self::settle(share, quantum, if waits { self.round } else { before });
                // Rounds that passed unused give nothing for what comes now.
                share.round = share.round.max(before);
                if !waits {
                    share.deficit = share.deficit.min(0);
                }
                let most = i64::try_from(max_debt).unwrap_or(i64::MAX);
                let before = share.deficit;
                if tokens >= 0 {
                    if before > 0 {
                        // What it owed is worked off.
                        share.forgiven = 0;
                    }
                    share.deficit = before.saturating_sub(tokens).max(before.min(-most));
                    let charged = before.saturating_sub(share.deficit);
                    share.forgiven = share
                        .forgiven
                        .saturating_add(tokens.saturating_sub(charged));
                } else {
                    let back = tokens.saturating_neg();
                    let nothing = match broken(Fault::PeersRefundsCountTwice) {
                        true => 0,
                        false => back.min(share.forgiven),
                    };
                    share.forgiven -= nothing;
                    let back = back - nothing;
                    share.deficit = before.saturating_add(back).min(before.max(most));
                }
                None
            }
            Fairness::Vtc { .. } => {
                share.counter += Self::normalise(weight, tokens);
                // Others catch up by `max_lag` at most, as after a service here.
                self.clock = self.clock.max(share.counter);
                (!waits && tokens > 0).then_some(share.counter)
            }
        }
    }

    /// The least counter of flows that were just served elsewhere: who comes back to a place where nobody waits is
    /// level with them.
    pub(crate) fn level(&mut self, least: i128) {
        self.departed = self.departed.max(least);
    }
}

/// In 1/65536 of a token.
fn lag(max_lag: u64) -> i128 {
    i128::from(max_lag) << 16
}
