//! Failures on purpose.

use serde::{Deserialize, Serialize};

/// How the usage in an answer lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageFault {
    /// It does not.
    #[default]
    Right,
    /// Twice the tokens.
    Double,
    /// No tokens at all.
    Zero,
    /// Completion tokens below zero.
    Negative,
    /// No usage although it was asked for.
    Missing,
}

/// Failures that an engine shows. The default is none.
///
/// Set from the start ([`super::EngineConfig::failure`]), at run time (`POST /emulator/failure` with this as JSON,
/// every key optional; or [`super::EngineHandle::set_failure`]), or for one request by the header
/// `x-emulator-failure: key=value,...` with the keys marked *per request* (`slow_ms`, `stall_after`, `cut_after`
/// and `error_after` may be shortened to `slow`, `stall`, `cut` and `error`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FailureConfig {
    /// Share of requests that the keys marked *per request* hit, 0 to 1; which ones depends on the engine's seed.
    pub rate: f64,
    /// Answer with this status instead (400 to 599). Per request.
    pub status: Option<u16>,
    /// Wait before anything is done, the first byte included, in milliseconds. Per request.
    pub slow_ms: u64,
    /// After that many stream events send nothing more, for ever. An answer that is no stream stops half-way.
    /// Per request.
    pub stall_after: Option<u32>,
    /// After that many stream events close the connection (h2: reset the stream). An answer that is no stream is
    /// cut half-way. Per request.
    pub cut_after: Option<u32>,
    /// After that many stream events send an error event and end, as vLLM does when its core dies. Per request.
    pub error_after: Option<u32>,
    /// What the usage says; `true` for twice the tokens. Per request.
    #[serde(alias = "wrong_usage", deserialize_with = "usage_fault")]
    pub usage: UsageFault,
    /// Steps take this many times as long.
    pub slow_factor: f64,
    /// Close the listener, so that connections are refused; open connections finish what they do and close.
    pub refuse: bool,
    /// Listen again after that many milliseconds; for as long as it is set, if absent.
    pub refuse_ms: Option<u64>,
    /// `/metrics` and `/health` answer with this status.
    pub probe_status: Option<u16>,
    /// `/metrics` and `/health` wait that many milliseconds first.
    pub probe_slow_ms: u64,
    /// `/tokenize` and the `/render` pages answer with this status.
    pub tokenize_status: Option<u16>,
    /// `/tokenize` and the `/render` pages wait that many milliseconds first.
    pub tokenize_slow_ms: u64,
    /// `/tokenize` and the `/render` pages say ids that are larger by this than those that the engine computes with.
    pub tokenize_skew: u32,
}

/// A name of [`UsageFault`], or a flag.
fn usage_fault<'de, D: serde::Deserializer<'de>>(from: D) -> Result<UsageFault, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Flag(bool),
        Name(UsageFault),
    }
    Ok(match Form::deserialize(from)? {
        Form::Flag(false) => UsageFault::Right,
        Form::Flag(true) => UsageFault::Double,
        Form::Name(fault) => fault,
    })
}

impl Default for FailureConfig {
    fn default() -> FailureConfig {
        FailureConfig {
            rate: 1.0,
            status: None,
            slow_ms: 0,
            stall_after: None,
            cut_after: None,
            error_after: None,
            usage: UsageFault::Right,
            slow_factor: 1.0,
            refuse: false,
            refuse_ms: None,
            probe_status: None,
            probe_slow_ms: 0,
            tokenize_status: None,
            tokenize_slow_ms: 0,
            tokenize_skew: 0,
        }
    }
}

/// What one request suffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) status: Option<u16>,
    pub(super) slow_ms: u64,
    pub(super) stall_after: Option<u32>,
    pub(super) cut_after: Option<u32>,
    pub(super) error_after: Option<u32>,
    pub(super) usage: UsageFault,
}

impl FailureConfig {
    /// Checks the ranges.
    ///
    /// # Errors
    /// Says which value is out of its range.
    pub fn validate(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.rate) {
            return Err(format!("the failure rate is {}, not 0 to 1", self.rate));
        }
        if !(self.slow_factor.is_finite() && self.slow_factor > 0.0) {
            return Err(format!(
                "the slow factor is {}, not above 0",
                self.slow_factor
            ));
        }
        let statuses = [self.status, self.probe_status, self.tokenize_status];
        for status in statuses.iter().flatten() {
            if !(400..600).contains(status) {
                return Err(format!("{status} is no error status (400 to 599)"));
            }
        }
        Ok(())
    }

    pub(super) fn fault(&self) -> Fault {
        Fault {
            status: self.status,
            slow_ms: self.slow_ms,
            stall_after: self.stall_after,
            cut_after: self.cut_after,
            error_after: self.error_after,
            usage: self.usage,
        }
    }
}

impl Fault {
    /// Reads the header `x-emulator-failure`.
    pub(super) fn parse(header: &str) -> Result<Fault, String> {
        let mut config = FailureConfig::default();
        for pair in header
            .split(',')
            .map(str::trim)
            .filter(|pair| !pair.is_empty())
        {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let bad = |_| format!("{value:?} is no value for {key:?}");
            match key {
                "status" => config.status = Some(value.parse().map_err(bad)?),
                "slow" | "slow_ms" => config.slow_ms = value.parse().map_err(bad)?,
                "stall" | "stall_after" => config.stall_after = Some(value.parse().map_err(bad)?),
                "cut" | "cut_after" => config.cut_after = Some(value.parse().map_err(bad)?),
                "error" | "error_after" => config.error_after = Some(value.parse().map_err(bad)?),
                "wrong-usage" => config.usage = UsageFault::Double,
                "usage" => {
                    let usage = serde_json::from_value(serde_json::Value::from(value));
                    config.usage = usage.map_err(|_| format!("{value:?} is no value for usage"))?;
                }
                _ => return Err(format!("{key:?} cannot be set for one request")),
            }
        }
        config.validate()?;
        Ok(config.fault())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_what_one_request_suffers() {
        let fault = Fault::parse("status=503, slow_ms=20,usage=double").unwrap();
        let expected = Fault {
            status: Some(503),
            slow_ms: 20,
            usage: UsageFault::Double,
            ..Fault::default()
        };
        assert_eq!(fault, expected);
        assert_eq!(Fault::parse(""), Ok(Fault::default()));
        let short = Fault::parse("status=503,slow=20,wrong-usage");
        assert_eq!(short, Ok(expected));
        for (header, says) in [
            ("status", "is no value"),
            ("status=many", "is no value"),
            ("status=200", "no error status"),
            ("usage=odd", "is no value for usage"),
            ("refuse=true", "cannot be set for one request"),
        ] {
            let error = Fault::parse(header).unwrap_err();
            assert!(error.contains(says), "{header}: {error}");
        }
    }

    #[test]
    fn json_is_strict_and_every_key_is_optional() {
        let parse = |text| serde_json::from_str::<FailureConfig>(text);
        assert_eq!(parse("{}").unwrap(), FailureConfig::default());
        assert_eq!(parse(r#"{"cut_after":3}"#).unwrap().cut_after, Some(3));
        assert_eq!(
            parse(r#"{"usage":"missing"}"#).unwrap().usage,
            UsageFault::Missing
        );
        assert_eq!(
            parse(r#"{"wrong_usage":true}"#).unwrap().usage,
            UsageFault::Double
        );
        assert!(parse(r#"{"cut":3}"#).is_err());
        let odd = FailureConfig {
            rate: 1.5,
            ..FailureConfig::default()
        };
        assert!(odd.validate().is_err());
    }
}
