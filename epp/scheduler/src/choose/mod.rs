//! The choice: eligibility, then the profile's filters, scorers and picker.

mod candidate;
mod eligible;
mod profile;

use std::sync::Arc;

pub(crate) use candidate::{Candidate, Context, Reads};

use self::profile::{Cycle, Profile};
use crate::{
    Decision, Endpoint, Nanos, NoEndpoint, PrefixView, RequestView, SchedulerPolicy, SchedulerSpec,
    SpecError, State, record::DecisionRecord, scorer::Dispatch, spec,
};

/// A pool as it is at one instant.
#[derive(Clone, Copy)]
pub struct Snapshot<'a> {
    /// The instant.
    pub now: Nanos,
    /// The pool's endpoints, in an order that a replay repeats.
    pub endpoints: &'a [Endpoint],
    /// What is cached where.
    pub prefix: &'a dyn PrefixView,
    /// The pool's policy.
    pub policy: &'a SchedulerPolicy,
    /// In the order of `endpoints`: which of them cannot start this request now, as far as the caller knows. They are
    /// fallbacks only. What is missing counts as able.
    pub full: &'a [bool],
}

/// Says which profiles run and which of their results counts.
trait ProfileHandler: std::fmt::Debug + Send + Sync {
    fn decide(&self, profiles: &[Profile], cycle: &mut Cycle<'_>) -> Result<Decision, NoEndpoint>;
}

/// Exactly one profile.
#[derive(Debug)]
struct SingleProfile;

impl ProfileHandler for SingleProfile {
    fn decide(&self, profiles: &[Profile], cycle: &mut Cycle<'_>) -> Result<Decision, NoEndpoint> {
        match profiles {
            [profile, ..] => profile.run(cycle),
            [] => Err(NoEndpoint::Empty),
        }
    }
}

/// Plugins and profiles, ready to choose. Immutable: what changes lives in [`State`].
#[derive(Debug)]
pub struct Scheduler {
    handler: Box<dyn ProfileHandler>,
    profiles: Vec<Profile>,
}

impl Scheduler {
    /// Builds the plugins.
    ///
    /// # Errors
    /// When names clash or are unknown, a profile has two pickers, a weight or parameter is out of range, or the
    /// profile handler does not fit the number of profiles.
    pub fn new(spec: &SchedulerSpec) -> Result<Scheduler, SpecError> {
        let by_name = spec::check::plugins(spec)?;
        let implied;
        let wanted = if spec.profiles.is_empty() {
            implied = [spec.implied_profile()];
            &implied
        } else {
            spec.profiles.as_slice()
        };
        let profiles = wanted
            .iter()
            .map(|profile| {
                let plugins = spec::check::resolve(profile, &by_name)?;
                Ok(Profile::new(&profile.name, &plugins))
            })
            .collect::<Result<Vec<_>, SpecError>>()?;
        // The only handler there is, named or not.
        if profiles.len() != 1 {
            let count = profiles.len();
            return Err(SpecError::Profiles { count });
        }
        Ok(Scheduler {
            handler: Box::new(SingleProfile),
            profiles,
        })
    }

    /// Where the request goes.
    ///
    /// Draws from `state`'s random stream; changes nothing else of it that a later choice could see.
    ///
    /// # Errors
    /// When no endpoint is eligible, with the first stage that left none.
    pub fn choose(
        &self,
        request: &RequestView<'_>,
        snapshot: &Snapshot<'_>,
        state: &mut State,
    ) -> Result<Decision, NoEndpoint> {
        state.now = snapshot.now;
        let mut cycle = Cycle {
            context: Context {
                request,
                now: snapshot.now,
                policy: snapshot.policy,
                prefix: snapshot.prefix,
                sessions: &state.sessions,
            },
            endpoints: snapshot.endpoints,
            full: snapshot.full,
            rng: &mut state.rng,
            scratch: &mut state.scratch,
            cold: true,
            record: None,
        };
        if state.recording {
            cycle.record = Some(Box::new(DecisionRecord {
                request: request.id,
                at: snapshot.now,
                profile: Arc::from(""),
                rng: cycle.rng.state(),
                explored: false,
                chosen: Vec::new(),
                candidates: Vec::new(),
                removed: Vec::new(),
            }));
        }
        let decided = self.handler.decide(&self.profiles, &mut cycle);
        state.cold = cycle.cold;
        decided
    }

    /// Tells the plugins that the decision is carried out. Call it once, right after the choice.
    pub fn after_dispatch(
        &self,
        request: &RequestView<'_>,
        decision: &Decision,
        state: &mut State,
    ) {
        let Some(target) = decision.targets.first() else {
            return;
        };
        let dispatch = Dispatch {
            request,
            profile: &decision.profile,
            target: target.id,
            now: state.now,
            cold: state.cold,
        };
        let used = |profile: &&Profile| profile.name == decision.profile;
        for profile in self.profiles.iter().filter(used) {
            for scorer in profile.scorers() {
                scorer.dispatched(&dispatch, &mut state.sessions);
            }
        }
    }

    /// Names of the request headers that plugins read, in lower case, without repeats. A front passes these on
    /// and no others.
    pub fn headers(&self) -> Vec<Arc<str>> {
        let scorers = self.profiles.iter().flat_map(Profile::scorers);
        let mut headers: Vec<_> = scorers.flat_map(|scorer| scorer.headers()).collect();
        headers.sort_unstable();
        headers.dedup();
        headers
    }

    /// The response header in which callers get their session token ([`crate::encode_token`] of the served
    /// endpoint's name), if a plugin asks for one.
    pub fn session_token_header(&self) -> Option<Arc<str>> {
        let mut scorers = self.profiles.iter().flat_map(Profile::scorers);
        scorers.find_map(|scorer| scorer.token_header())
    }
}
