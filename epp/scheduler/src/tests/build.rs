//! From specs to schedulers.

use std::sync::Arc;

use super::{Fleet, endpoint, scraped};
use crate::{
    PluginSpec, Scheduler, SchedulerSpec, SpecError,
    spec::{PickerParameters, PluginInstance, ProfilePlugin, ProfileSpec},
};

fn instance(name: &str, plugin: PluginSpec) -> PluginInstance {
    let name = name.into();
    PluginInstance { name, plugin }
}

fn profile(name: &str, plugins: &[(&str, Option<f64>)]) -> ProfileSpec {
    ProfileSpec {
        name: name.into(),
        plugins: plugins
            .iter()
            .map(|(plugin, weight)| ProfilePlugin {
                plugin: (*plugin).into(),
                weight: *weight,
            })
            .collect(),
    }
}

fn random() -> PluginSpec {
    PluginSpec::RandomPicker(PickerParameters::default())
}

fn error(plugins: Vec<PluginInstance>, profiles: Vec<ProfileSpec>) -> SpecError {
    Scheduler::new(&SchedulerSpec { plugins, profiles }).unwrap_err()
}

#[test]
fn the_defaults_build_and_survive_a_log() {
    for spec in [SchedulerSpec::default_ours(), SchedulerSpec::llmd_default()] {
        Scheduler::new(&spec).unwrap();
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<SchedulerSpec>(&text).unwrap(), spec);
    }
}

#[test]
fn a_scheduler_can_be_shared() {
    fn shared<T: Send + Sync>() {}
    shared::<Scheduler>();
}

#[test]
fn no_profile_means_one_of_everything() {
    let spec = SchedulerSpec {
        plugins: vec![
            instance("single-profile-handler", PluginSpec::SingleProfileHandler),
            instance("q", PluginSpec::QueueScorer),
            instance("decode", PluginSpec::DecodeFilter),
        ],
        profiles: Vec::new(),
    };
    let endpoints = vec![scraped(1, 1.0, 0.0, 0.0), scraped(2, 0.0, 0.0, 0.0)];
    let mut fleet = Fleet::new(&spec, endpoints);
    assert_eq!(fleet.tally(20), [(2, 20)].into());
    let decision = fleet.choose(&super::request()).unwrap();
    assert_eq!(&*decision.profile, "default");
}

#[test]
fn a_profile_of_nothing_picks_anybody() {
    let spec = SchedulerSpec {
        plugins: Vec::new(),
        profiles: vec![profile("p", &[])],
    };
    let mut fleet = Fleet::new(&spec, vec![endpoint(1), endpoint(2)]);
    assert_eq!(fleet.tally(100).len(), 2);
}

#[test]
fn names_must_be_unique_and_known() {
    let queue = || instance("q", PluginSpec::QueueScorer);
    let name: Arc<str> = "q".into();
    let twice = error(vec![queue(), queue()], Vec::new());
    assert_eq!(twice, SpecError::DuplicatePlugin { name });
    let profiles = vec![profile("p", &[]), profile("p", &[])];
    let name = "p".into();
    assert_eq!(
        error(Vec::new(), profiles),
        SpecError::DuplicateProfile { name }
    );
    let unknown = error(
        vec![instance("queue-scorer", PluginSpec::QueueScorer)],
        vec![profile("p", &[("queue-scorrer", None)])],
    );
    assert_eq!(
        unknown.to_string(),
        "profile p: no plugin is named queue-scorrer (did you mean queue-scorer?)"
    );
}

#[test]
fn a_profile_holds_at_most_one_picker_and_no_handler() {
    let plugins = || vec![instance("a", random()), instance("b", random())];
    let both = vec![profile("p", &[("a", None), ("b", None)])];
    let expected = SpecError::TwoPickers {
        profile: "p".into(),
    };
    assert_eq!(error(plugins(), both), expected);
    let handler = instance("h", PluginSpec::SingleProfileHandler);
    let expected = SpecError::NotForProfiles {
        profile: "p".into(),
        plugin: "h".into(),
    };
    let profiles = vec![profile("p", &[("h", None)])];
    assert_eq!(error(vec![handler], profiles), expected);
}

#[test]
fn the_single_handler_needs_one_profile() {
    let profiles = vec![profile("a", &[]), profile("b", &[])];
    let count = 2;
    assert_eq!(error(Vec::new(), profiles), SpecError::Profiles { count });
    let handlers = ["x", "y"].map(|name| instance(name, PluginSpec::SingleProfileHandler));
    let (first, second) = ("x".into(), "y".into());
    let expected = SpecError::TwoHandlers { first, second };
    assert_eq!(error(handlers.into(), Vec::new()), expected);
}

#[test]
fn weights_are_numbers_from_zero_on() {
    for weight in [-1.0, f64::INFINITY, f64::NAN] {
        let plugins = vec![instance("q", PluginSpec::QueueScorer)];
        let profiles = vec![profile("p", &[("q", Some(weight))])];
        let error = error(plugins, profiles);
        assert!(matches!(error, SpecError::Weight { .. }), "{error}");
    }
}

#[test]
fn parameters_are_checked_however_the_spec_came_about() {
    let none = PickerParameters {
        max_num_of_endpoints: 0,
    };
    let plugins = vec![instance("best", PluginSpec::MaxScorePicker(none))];
    assert_eq!(
        error(plugins, Vec::new()).to_string(),
        "plugin best: maxNumOfEndpoints: must be at least 1"
    );
}
