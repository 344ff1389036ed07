//! What a trusted proxy says about a request, in headers. Without that trust every caller is one default flow.

use std::collections::HashMap;

use smallvec::SmallVec;
use wicketgate_pool::{
    admission::{
        FairnessId,
        headers::{self as control, Ignored},
    },
    scheduler::Nanos,
};

/// Who a request belongs to and how urgent it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Context {
    /// Its band; `None` is the band of 0.
    pub priority: Option<i32>,
    /// Its flow inside the band.
    pub fairness: FairnessId,
    /// Longest wait that was asked for; it only shortens the band's.
    pub ttl: Option<Nanos>,
    /// Wanted time to first token.
    pub slo_ttft: Option<Nanos>,
    /// Headers whose value made no sense and was ignored: what they carry, and why.
    pub ignored: SmallVec<[(&'static str, Ignored); 1]>,
}

/// Which headers are believed. Names in lower case; the first that is there counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrustedHeaders {
    /// Fairness ID.
    pub fairness_id: Vec<Box<str>>,
    /// Priority as a number.
    pub priority: Vec<Box<str>>,
    /// Objective: a name that stands for a priority. A priority header goes before it.
    pub objective: Vec<Box<str>>,
    /// Priorities by objective.
    pub objectives: HashMap<Box<str>, i32>,
    /// Longest wait.
    pub ttl: Vec<Box<str>>,
    /// Wanted time to first token.
    pub slo_ttft: Vec<Box<str>>,
}

impl TrustedHeaders {
    /// Reads the context; `get` gives a header's first value by its lower-case name. Total: what makes no sense is
    /// ignored and noted.
    pub fn read<'a>(&self, get: impl Fn(&str) -> Option<&'a [u8]>) -> Context {
        let first = |names: &[Box<str>]| names.iter().find_map(|name| get(name));
        let mut context = Context::default();
        if let Some(id) = first(&self.fairness_id) {
            context.fairness = control::fairness_id(id);
        }
        let mut ignored = SmallVec::new();
        let mut read = |what, names: &[Box<str>], parse: &dyn Fn(&str) -> Result<u64, Ignored>| {
            let value = first(names)?;
            let parsed = std::str::from_utf8(value).map_err(|_| Ignored::Malformed);
            match parsed.and_then(parse) {
                Ok(value) => Some(value),
                Err(why) => {
                    ignored.push((what, why));
                    None
                }
            }
        };
        context.ttl = read("ttl", &self.ttl, &control::ttl);
        context.slo_ttft = read("slo_ttft", &self.slo_ttft, &control::slo_millis);
        // An i32 through the same hands: kept in the low half.
        let number = |value: &str| control::priority(value).map(|p| u64::from(p.cast_unsigned()));
        let number = read("priority", &self.priority, &number);
        context.priority = number
            .and_then(|n| u32::try_from(n).ok())
            .map(u32::cast_signed);
        if context.priority.is_none()
            && let Some(name) = first(&self.objective)
            && !name.is_empty()
        {
            let name = std::str::from_utf8(name).unwrap_or_default();
            context.priority = self.objectives.get(name).copied();
            if context.priority.is_none() {
                ignored.push(("objective", Ignored::Malformed));
            }
        }
        context.ignored = ignored;
        context
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<Box<str>> {
        list.iter().map(|name| Box::from(*name)).collect()
    }

    fn headers() -> TrustedHeaders {
        TrustedHeaders {
            fairness_id: names(&[
                "x-llm-d-inference-fairness-id",
                "x-gateway-inference-fairness-id",
            ]),
            priority: names(&["x-priority"]),
            objective: names(&["x-objective"]),
            objectives: HashMap::from([(Box::from("gold"), 10), (Box::from("batch"), -5)]),
            ttl: names(&["x-llm-d-inference-ttl"]),
            slo_ttft: names(&["x-slo-ttft-ms"]),
        }
    }

    fn read(of: &TrustedHeaders, lines: &[(&str, &[u8])]) -> Context {
        let lines: Vec<(String, Vec<u8>)> = lines
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.to_vec()))
            .collect();
        of.read(|name| {
            let line = lines.iter().find(|(known, _)| known == name);
            line.map(|(_, value)| value.as_slice())
        })
    }

    #[test]
    fn every_header_has_its_place() {
        let context = read(
            &headers(),
            &[
                ("x-gateway-inference-fairness-id", b"team-a"),
                ("x-priority", b"-7"),
                ("x-objective", b"gold"),
                ("x-llm-d-inference-ttl", b"3s"),
                ("x-slo-ttft-ms", b"250"),
            ],
        );
        assert_eq!(context.fairness.as_str(), "team-a");
        assert_eq!(
            context.priority,
            Some(-7),
            "the number goes before the name"
        );
        assert_eq!(context.ttl, Some(3_000_000_000));
        assert_eq!(context.slo_ttft, Some(250_000_000));
        assert!(context.ignored.is_empty());
        assert_eq!(
            read(&headers(), &[("x-objective", b"batch")]).priority,
            Some(-5)
        );
    }

    #[test]
    fn what_makes_no_sense_is_ignored_and_noted() {
        let context = read(
            &headers(),
            &[
                ("x-priority", b"2147483648"),
                ("x-objective", b"nobody"),
                ("x-llm-d-inference-ttl", b"-1s"),
                ("x-slo-ttft-ms", b"\xff"),
            ],
        );
        let expected = Context {
            ignored: SmallVec::from_slice(&[
                ("ttl", Ignored::Negative),
                ("slo_ttft", Ignored::Malformed),
                ("priority", Ignored::OutOfRange),
                ("objective", Ignored::Malformed),
            ]),
            ..Context::default()
        };
        assert_eq!(context, expected);
    }

    #[test]
    fn a_fairness_id_of_ten_kibibytes_is_bounded() {
        let long = vec![b'a'; 10 << 10];
        let context = read(&headers(), &[("x-llm-d-inference-fairness-id", &long)]);
        assert!(context.fairness.as_str().len() <= 64);
    }

    #[test]
    fn without_trust_nothing_is_read() {
        let lines: [(&str, &[u8]); 2] = [
            ("x-priority", b"9"),
            ("x-llm-d-inference-fairness-id", b"a"),
        ];
        assert_eq!(read(&TrustedHeaders::default(), &lines), Context::default());
    }
}
