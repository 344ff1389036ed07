//! Pools: names, models, endpoints, and the one way to talk to endpoints.

use std::{collections::HashMap, path::PathBuf};

use serde::Serialize;
use wicketgate_scheduler::{HealthPolicy, SchedulerPolicy, SlowStart};

use crate::{
    decode::Decoded,
    endpoints::{self, Endpoint},
    raw,
    scalar::shown,
    units::Span,
};

/// A pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Serves every model that no pool names.
    pub default: bool,
    /// Models it serves.
    pub models: Vec<String>,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
    /// A watched file with more of them.
    pub endpoints_file: Option<PathBuf>,
    /// Staleness, slow start, ejection, exploration.
    pub policy: SchedulerPolicy,
}

/// Moves the pools' own `upstream` settings to the root: there is one way to talk to endpoints so far.
pub(crate) fn upstream(raw: &mut raw::Raw, out: &mut Decoded) {
    let mut common: Option<(usize, raw::Upstream)> = None;
    for (index, pool) in raw.pools.iter_mut().enumerate() {
        let own = pool.upstream.take().unwrap_or_default();
        token_twice(
            &format!("pools[{index}].upstream"),
            own.bearer_token.is_some() && own.bearer_token_file.is_some(),
            out,
        );
        let resolved = raw.upstream.with(&own);
        match &common {
            None => common = Some((index, resolved)),
            Some((first, known)) if *known != resolved => {
                let what = format!(
                    "differs from what pools[{first}] has; so far all pools must agree: use the root's `upstream`"
                );
                out.fault(&format!("pools[{index}].upstream"), what);
            }
            Some(_) => {}
        }
    }
    let root = &raw.upstream;
    token_twice(
        "upstream",
        root.bearer_token.is_some() && root.bearer_token_file.is_some(),
        out,
    );
    if let Some((_, common)) = common {
        raw.upstream = common;
    }
}

fn token_twice(path: &str, twice: bool, out: &mut Decoded) {
    if twice {
        let what = "`bearerTokenFile` and `bearerToken` are both set; keep one";
        out.fault(&format!("{path}.bearerToken"), what);
    }
}

/// Checks the pools.
pub(crate) fn build(raw: &raw::Raw, out: &mut Decoded) -> Vec<Pool> {
    let mut names: HashMap<&str, usize> = HashMap::new();
    let mut models: HashMap<&str, usize> = HashMap::new();
    let alone = raw.pools.len() == 1;
    let mut first_default = None;
    let mut built = Vec::new();
    for (index, pool) in raw.pools.iter().enumerate() {
        let path = format!("pools[{index}]");
        check_name(&pool.name, &path, out);
        if let Some(first) = names.insert(&pool.name, index) {
            let name = shown(&pool.name);
            let what = format!("{name} is the name of pools[{first}] too; names must differ");
            out.fault(&path, what);
        }
        for (place, model) in pool.models.iter().enumerate() {
            if let Some(first) = models.insert(model, index) {
                let path = format!("{path}.models[{place}]");
                let model = shown(model);
                out.fault(
                    &path,
                    format!("{model} is served by pools[{first}] already"),
                );
            }
        }
        let default = pool.default.unwrap_or(alone);
        if default && let Some(first) = first_default.replace(index) {
            let what = format!("a second default pool besides pools[{first}]; one is enough");
            out.fault(&format!("{path}.default"), what);
        }
        if !default && pool.models.is_empty() {
            let what = "this pool is no default and names no models: nothing would reach it";
            out.fault(&path, what);
        }
        let endpoints = endpoints::build(&pool.endpoints, &format!("{path}.endpoints"), out);
        if endpoints.is_empty() && pool.endpoints_file.is_none() {
            out.warn(
                &path,
                "has no endpoints and no `endpointsFile`: it starts empty",
            );
        }
        endpoints::check_tls(&endpoints, raw.upstream.tls.is_some(), out);
        built.push(Pool {
            name: pool.name.clone(),
            default,
            models: pool.models.clone(),
            endpoints: endpoints
                .into_iter()
                .map(|(_, endpoint)| endpoint)
                .collect(),
            endpoints_file: pool.endpoints_file.clone().map(PathBuf::from),
            policy: policy(raw, pool),
        });
    }
    built
}

/// A pool's name becomes part of file names and metric labels.
fn check_name(name: &str, path: &str, out: &mut Decoded) {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 63 || !name.chars().all(letter) {
        let what = format!(
            "{} is no pool name; expected up to 63 letters, digits, `-`, `_` or `.`",
            shown(name)
        );
        out.fault(&format!("{path}.name"), what);
    }
}

fn policy(raw: &raw::Raw, pool: &raw::Pool) -> SchedulerPolicy {
    let nanos = |span: Span| u64::try_from(span.0.as_nanos()).unwrap_or(u64::MAX);
    let base = SchedulerPolicy::default();
    SchedulerPolicy {
        stale_after: nanos(raw.telemetry.staleness),
        slow_start: SlowStart {
            window: nanos(pool.slow_start.window),
            ..base.slow_start
        },
        health: HealthPolicy {
            failures: pool.breaker.failures,
            window: nanos(pool.breaker.window),
            cool_down: nanos(pool.breaker.cooldown),
            cool_down_cap: nanos(pool.breaker.cooldown_cap),
            ..base.health
        },
        explore: pool.explore,
        ..base
    }
}
