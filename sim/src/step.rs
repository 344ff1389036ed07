//! How long one engine step takes.
//!
//! ```text
//! t = LIN(T) + k_d * sum(context of decodes) + k_p * sum((c+q)^2 - c^2 of prefill chunks) + c_d + c0 + c_r * B
//! ```
//! `T` tokens in the step, `B` requests; `LIN` piecewise linear through measured points (matrix products and
//! all-reduce); `k_d` KV read per token of context; `k_p` the quadratic part of prefill attention for a chunk of `q`
//! tokens behind `c`; `c_d` only when something decodes. Source of the coefficients: data/NOTICE.

use serde::Deserialize;

const TABLES: &str = include_str!("../data/step_time_coefficients.json");

/// Coefficients of one accelerator, model and parallelism.
#[derive(Clone, Debug, PartialEq)]
pub struct StepModel {
    /// `LIN`: tokens in the step, milliseconds.
    lin: Vec<(f64, f64)>,
    /// `k_d`, nanoseconds per token of context.
    decode_ns_per_token: f64,
    /// `c_d`, milliseconds.
    decode_ms: f64,
    /// `k_p`, nanoseconds per squared token.
    prefill_ns_per_token2: f64,
    /// `c0`, milliseconds.
    base_ms: f64,
    /// `c_r`, milliseconds per request.
    request_ms: f64,
}

/// What is computed in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Requests.
    pub requests: u32,
    /// Tokens, decodes and prefill chunks together.
    pub tokens: u64,
    /// Requests that decode.
    pub decodes: u32,
    /// Tokens of context that the decodes read.
    pub decode_context: u64,
    /// Sum over the prefill chunks of `(c+q)^2 - c^2`.
    pub prefill_squares: f64,
}

impl Work {
    /// Adds a prefill chunk of `tokens` behind `before` tokens.
    pub fn prefill(&mut self, before: u64, tokens: u64) {
        self.requests += 1;
        self.tokens += tokens;
        let (c, q) = (to_f64(before), to_f64(tokens));
        self.prefill_squares += (c + q) * (c + q) - c * c;
    }

    /// Adds a decode with `context` tokens.
    pub fn decode(&mut self, context: u64) {
        self.requests += 1;
        self.tokens += 1;
        self.decodes += 1;
        self.decode_context += context;
    }

    /// Adds `tokens` of a request behind `before` tokens: a decode if it is one token of a request that has
    /// generated some, else a prefill chunk.
    pub fn add(&mut self, before: u32, tokens: u32, generating: bool) {
        if generating && tokens == 1 {
            self.decode(u64::from(before) + 1);
        } else {
            self.prefill(u64::from(before), u64::from(tokens));
        }
    }
}

/// Exact: token counts are far below 2^52.
fn to_f64(count: u64) -> f64 {
    count as f64
}

#[derive(Deserialize)]
struct Tables {
    #[serde(rename = "T")]
    tokens: Vec<f64>,
    c0_ms_recommended: f64,
    c_req_ms: f64,
    #[serde(flatten)]
    gpus: std::collections::BTreeMap<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct Row {
    lin_ms: Vec<f64>,
    dec_ns_per_kv_tok: f64,
    dec_c_ms: f64,
    pf_ns_per_tok2: f64,
}

impl StepModel {
    /// Steps that take no time, for tests of everything around the engine.
    pub fn instant() -> StepModel {
        StepModel {
            lin: Vec::new(),
            decode_ns_per_token: 0.0,
            decode_ms: 0.0,
            prefill_ns_per_token2: 0.0,
            base_ms: 0.0,
            request_ms: 0.0,
        }
    }

    /// Steps of a fixed price per token and nothing else, for closed-form checks.
    pub fn per_token(ms: f64) -> StepModel {
        StepModel {
            lin: vec![(0.0, 0.0), (1.0, ms)],
            ..StepModel::instant()
        }
    }

    /// The model of a profile such as `h100-qwen3-32b-tp2`, or `instant`.
    pub fn profile(name: &str) -> Option<StepModel> {
        if name == "instant" {
            return Some(StepModel::instant());
        }
        let tables: Tables = serde_json::from_str(TABLES).ok()?;
        let (gpu, model) = name.split_once('-')?;
        let row: Row = serde_json::from_value(tables.gpus.get(gpu)?.get(model)?.clone()).ok()?;
        Some(StepModel {
            lin: tables.tokens.iter().copied().zip(row.lin_ms).collect(),
            decode_ns_per_token: row.dec_ns_per_kv_tok,
            decode_ms: row.dec_c_ms,
            prefill_ns_per_token2: row.pf_ns_per_tok2,
            base_ms: tables.c0_ms_recommended,
            request_ms: tables.c_req_ms,
        })
    }

    /// The names of all profiles.
    pub fn profiles() -> Vec<String> {
        let mut names = vec!["instant".to_owned()];
        if let Ok(tables) = serde_json::from_str::<Tables>(TABLES) {
            for (gpu, models) in &tables.gpus {
                let models = models.as_object().into_iter().flatten();
                names.extend(models.map(|(model, _)| format!("{gpu}-{model}")));
            }
        }
        names
    }

    /// Time of a step, in nanoseconds.
    pub fn nanos(&self, work: &Work) -> u64 {
        if work.tokens == 0 {
            return 0;
        }
        let decode = if work.decodes > 0 {
            self.decode_ms + self.decode_ns_per_token * to_f64(work.decode_context) / 1e6
        } else {
            0.0
        };
        let prefill = self.prefill_ns_per_token2 * work.prefill_squares / 1e6;
        let requests = self.request_ms * f64::from(work.requests);
        let ms = self.linear(to_f64(work.tokens)) + decode + prefill + self.base_ms + requests;
        (ms * 1e6).round() as u64
    }

    /// `LIN` at `tokens`: between two points on their line, beyond the last on the line through the last two.
    fn linear(&self, tokens: f64) -> f64 {
        let above = self
            .lin
            .iter()
            .position(|(t, _)| *t >= tokens)
            .unwrap_or(self.lin.len());
        let above = above.clamp(1, self.lin.len().saturating_sub(1).max(1));
        let (Some((t0, ms0)), Some((t1, ms1))) = (self.lin.get(above - 1), self.lin.get(above))
        else {
            return self.lin.first().map_or(0.0, |(_, ms)| *ms);
        };
        let share = (tokens - t0) / (t1 - t0);
        (ms0 + share * (ms1 - ms0)).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(model: &StepModel, work: &Work) -> f64 {
        to_f64(model.nanos(work)) / 1e6
    }

    #[test]
    fn every_profile_is_there() {
        let names = StepModel::profiles();
        assert_eq!(names.len(), 10);
        for name in names {
            assert!(StepModel::profile(&name).is_some(), "{name}");
        }
        assert_eq!(StepModel::profile("h100-nothing"), None);
        assert_eq!(StepModel::profile("nothing"), None);
    }

    /// One chunk of 8192 tokens of Qwen3-32B on two H100: 396.94 + 0.823 * 8192^2 ns + 2.0 + 0.0044 ms.
    /// A decode with 100 tokens of context on one H200: 17.07 + 1.63 + 60 ns * 100 + 2.0 + 0.0044 ms.
    #[test]
    fn measured_points() {
        let model = StepModel::profile("h100-qwen3-32b-tp2").unwrap();
        let mut work = Work::default();
        work.prefill(0, 8192);
        assert!(
            (ms(&model, &work) - 454.1755).abs() < 1e-3,
            "{}",
            ms(&model, &work)
        );
        let model = StepModel::profile("h200-qwen3-32b-tp1").unwrap();
        let mut work = Work::default();
        work.decode(100);
        assert!(
            (ms(&model, &work) - 20.7104).abs() < 1e-4,
            "{}",
            ms(&model, &work)
        );
    }

    #[test]
    fn between_and_beyond_the_points() {
        let model = StepModel {
            lin: vec![(1.0, 10.0), (3.0, 20.0), (5.0, 40.0)],
            ..StepModel::instant()
        };
        let at = |tokens| model.linear(tokens);
        assert_eq!(
            [at(1.0), at(2.0), at(3.0), at(4.0), at(6.0)],
            [10.0, 15.0, 20.0, 30.0, 50.0]
        );
        assert_eq!(StepModel::instant().linear(100.0), 0.0);
        assert_eq!(StepModel::per_token(2.0).linear(7.0), 14.0);
    }
}
