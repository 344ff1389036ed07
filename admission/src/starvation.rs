//! What low bands may take out of turn, in tokens: the credits behind aging and floors.

use crate::{
    config::Starvation,
    fault::{Fault, broken},
};

/// A share in 1/65536.
pub(crate) fn fixed(share: f64) -> i64 {
    (share.clamp(0.0, 1.0) * 65_536.0).round() as i64
}

/// Aging's account over all bands; floors keep theirs per band ([`FloorAccount`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credits {
    /// Aging: share of all dispatched tokens, in 1/65536.
    share: i64,
    /// Aging: tokens x 65536 that old requests may take; they go while it is not below zero.
    balance: i128,
    /// The dearest request so far.
    pub(crate) dearest: u64,
}

impl Credits {
    pub(crate) fn new(starvation: &Starvation) -> Credits {
        let share = match starvation {
            Starvation::Aging { share, .. } => fixed(*share),
            Starvation::Strict | Starvation::Floor { .. } => 0,
        };
        Credits {
            share,
            balance: 0,
            dearest: 0,
        }
    }

    /// An old request may go out of turn.
    pub(crate) fn aged_may_go(&self) -> bool {
        if broken(Fault::NobodyAges) {
            return false;
        }
        self.balance >= 0 || broken(Fault::AgingIsUnbounded)
    }

    /// Something was dispatched.
    pub(crate) fn dispatched(&mut self, charge: u64, aged: bool) {
        self.dearest = self.dearest.max(charge);
        let earned = i128::from(charge) * i128::from(self.share);
        let cap = i128::from(self.dearest) * i128::from(self.share);
        self.balance = (self.balance + earned).min(cap);
        if aged {
            self.balance -= i128::from(charge) << 16;
        }
        // INV-Q8: what old requests took stays within their share and one request.
        debug_assert!(
            broken(Fault::AgingIsUnbounded) || self.balance >= -(i128::from(self.dearest) << 16)
        );
    }
}

impl Credits {
    /// An old request used less than it was charged.
    pub(crate) fn give_back(&mut self, unused: u64) {
        let cap = i128::from(self.dearest) * i128::from(self.share);
        self.balance = (self.balance + (i128::from(unused) << 16)).min(cap.max(self.balance));
    }
}

/// A band's account under floors, in tokens x 65536.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FloorAccount {
    /// What the band is owed; it goes out of turn while this is above zero.
    pub(crate) owed: i128,
}

impl FloorAccount {
    /// `charge` tokens were dispatched by any band; `waits` says whether this one could have used its share.
    pub(crate) fn earn(&mut self, charge: u64, share: i64, waits: bool) {
        if broken(Fault::NoFloor) {
            return;
        }
        self.owed += i128::from(charge) * i128::from(share);
        if !waits {
            self.owed = self.owed.min(0);
        }
    }

    /// What it was charged out of turn was not all used: its debt shrinks, but nothing more is owed.
    pub(crate) fn give_back(&mut self, unused: u64) {
        self.owed = (self.owed + (i128::from(unused) << 16)).min(self.owed.max(0));
    }

    /// This band was served: out of turn against its account, in turn without going into debt for it.
    pub(crate) fn pay(&mut self, charge: u64, out_of_turn: bool) {
        if out_of_turn && broken(Fault::FloorIsUnbounded) {
            return;
        }
        let after = self.owed - (i128::from(charge) << 16);
        self.owed = match out_of_turn {
            true => after,
            false => after.max(self.owed.min(0)),
        };
    }
}
