//! The gate over endpoint views.

use super::{
    Answer, Ask, EndpointView, Gate, GateConfig, Role, Saturation, Scope, UsageLimit,
    UsageLimitState,
    detect::{Fullness, fullness},
    saturation,
};
use crate::{ClassId, Nanos};

/// One turn's gate. Cheap to make: build it anew when a view changed.
pub struct PoolGate<'a> {
    config: &'a GateConfig,
    now: Nanos,
    views: &'a [EndpointView],
    priorities: &'a [i32],
    eligible: &'a dyn Fn(ClassId, usize) -> bool,
    limits: &'a mut UsageLimitState,
    saturation: Option<Saturation>,
    last_ceiling: f64,
}

impl<'a> PoolGate<'a> {
    /// A gate at this instant. `priorities` are the bands, highest first ([`Admission::ranks`]); `eligible` says
    /// whether the endpoint at this place of `views` may serve a class.
    ///
    /// [`Admission::ranks`]: crate::Admission::ranks
    pub fn new(
        config: &'a GateConfig,
        now: Nanos,
        views: &'a [EndpointView],
        priorities: &'a [i32],
        eligible: &'a dyn Fn(ClassId, usize) -> bool,
        limits: &'a mut UsageLimitState,
    ) -> Self {
        PoolGate {
            config,
            now,
            views,
            priorities,
            eligible,
            limits,
            saturation: None,
            last_ceiling: 0.0,
        }
    }

    /// How full the pool is.
    pub fn saturation(&mut self) -> Saturation {
        let (config, now, views) = (self.config, self.now, self.views);
        *self
            .saturation
            .get_or_insert_with(|| saturation(config, now, views))
    }

    /// How full a band of this priority may make the pool now.
    pub fn ceiling(&mut self, priority: i32) -> f64 {
        let rank = self
            .priorities
            .iter()
            .position(|p| *p <= priority)
            .unwrap_or(self.priorities.len().saturating_sub(1));
        let saturation = match self.config.usage_limit {
            UsageLimit::SoftReflective => self.saturation().effective().unwrap_or(0.0),
            UsageLimit::Static { .. } | UsageLimit::PriorityHoldback { .. } => 0.0,
        };
        self.limits
            .ceiling(&self.config.usage_limit, saturation, rank, self.priorities)
    }

    /// After [`Answer::Start`]: which endpoints of the request's class can start it, `open[at]` in the order of the
    /// views. A detector over the whole pool knows no difference between them.
    pub fn open(&self, ask: &Ask, open: &mut Vec<bool>) {
        let pool_wide = self.config.detector.scope() == Scope::Pool;
        // Not asked again: for some policies each answer counts.
        let ceiling = self.last_ceiling;
        let mut which = |ignored: bool| {
            open.clear();
            open.extend(self.views.iter().enumerate().map(|(at, view)| {
                let fits = !view.draining && (self.eligible)(ask.class, at);
                fits && (pool_wide
                    || match fullness(self.config, self.now, view, ask.cost.uncached_input) {
                        Fullness::Is(full) => full < ceiling,
                        Fullness::Ignored => ignored,
                        Fullness::New => false,
                    })
            }));
            open.contains(&true)
        };
        // Those that are left out count when there is nobody else.
        if !which(false) {
            which(true);
        }
    }

    /// True if an endpoint that serves the class and this stage is below the ceiling. `None` if no endpoint has the
    /// stage at all.
    fn stage(&self, ask: &Ask, ceiling: f64, has: fn(Role) -> bool) -> Option<bool> {
        let mut there = false;
        let (mut judged, mut ignored) = (false, false);
        for (at, view) in self.views.iter().enumerate() {
            if view.draining || !has(view.role) || !(self.eligible)(ask.class, at) {
                continue;
            }
            there = true;
            match fullness(self.config, self.now, view, ask.cost.uncached_input) {
                Fullness::Is(full) if full < ceiling => return Some(true),
                Fullness::Is(_) | Fullness::New => judged = true,
                Fullness::Ignored => ignored = true,
            }
        }
        there.then_some(ignored && !judged)
    }
}

impl Gate for PoolGate<'_> {
    fn can_start(&mut self, ask: &Ask) -> Answer {
        let ceiling = self.ceiling(ask.ceiling_of);
        self.last_ceiling = ceiling;
        if self.config.detector.scope() == Scope::Pool {
            let Some(full) = self.saturation().effective() else {
                return Answer::Closed;
            };
            if full >= ceiling {
                return Answer::Closed;
            }
            let mut places = self.views.iter().enumerate();
            return match places.any(|(at, view)| !view.draining && (self.eligible)(ask.class, at)) {
                true => Answer::Start,
                false => Answer::NotNow,
            };
        }
        let decode = self.stage(ask, ceiling, Role::decodes);
        // Only a pool with endpoints for prefill alone has two stages.
        let split = self.views.iter().any(|view| view.role == Role::Prefill);
        let prefill = match split {
            true => self.stage(ask, ceiling, Role::prefills),
            false => Some(true),
        };
        match (prefill, decode) {
            // Without a prefill endpoint of its class a request prefills where it decodes.
            (Some(true) | None, Some(true)) => Answer::Start,
            _ => Answer::NotNow,
        }
    }
}
