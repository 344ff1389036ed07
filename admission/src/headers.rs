//! Control headers of a trusted caller: total parsers. What makes no sense is ignored and counted, never an error.

use xxhash_rust::xxh3::xxh3_128;

use crate::{FairnessId, MILLISECOND, Nanos, SECOND};

/// Longest wait, as a duration like `3s`: our and llm-d's spelling.
pub const TTL: &str = "x-llm-d-inference-ttl";
/// Fairness id: llm-d's spelling, then GIE's.
pub const FAIRNESS_ID: [&str; 2] = [
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
];
/// Objective (a name that stands for a priority): llm-d's spelling, then GIE's.
pub const OBJECTIVE: [&str; 2] = [
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
];
/// Wanted time to first token in milliseconds: llm-d's spelling, then GIE's.
pub const SLO_TTFT_MS: [&str; 2] = ["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"];
/// Wanted time per output token in milliseconds: llm-d's spelling, then GIE's.
pub const SLO_TPOT_MS: [&str; 2] = ["x-llm-d-slo-tpot-ms", "x-slo-tpot-ms"];

/// Longer fairness ids are replaced by their hash.
pub const MAX_FAIRNESS_BYTES: usize = 256;

/// Longest wait that a header can name; longer ones mean the same.
pub const MAX_WAIT: Nanos = 365 * 24 * 3600 * SECOND;

/// Why a control header's value was ignored: a metric label.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash, thiserror::Error)]
pub enum Ignored {
    /// Not a value of its kind.
    #[error("not a value of its kind")]
    Malformed,
    /// Below zero.
    #[error("negative")]
    Negative,
    /// Zero, where zero would mean "no wait at all" or "no limit" depending on who reads it.
    #[error("zero")]
    Zero,
    /// Outside what the field can hold.
    #[error("out of range")]
    OutOfRange,
}

impl Ignored {
    /// Every variant, for metric tables.
    pub const ALL: [Ignored; 4] = [
        Ignored::Malformed,
        Ignored::Negative,
        Ignored::Zero,
        Ignored::OutOfRange,
    ];

    /// Metric label.
    pub const fn label(self) -> &'static str {
        match self {
            Ignored::Malformed => "malformed",
            Ignored::Negative => "negative",
            Ignored::Zero => "zero",
            Ignored::OutOfRange => "out_of_range",
        }
    }
}

/// A duration as Go writes it: `3s`, `1m30s`, `1.5s`, `250ms`, `0`. At most [`MAX_WAIT`].
///
/// # Errors
/// `-1s` is negative, `0s` is zero, `abc` and `NaN` are malformed.
pub fn ttl(value: &str) -> Result<Nanos, Ignored> {
    let value = value.trim();
    let (negative, rest) = match value.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, value.strip_prefix('+').unwrap_or(value)),
    };
    let total = go_duration(rest).ok_or(Ignored::Malformed)?;
    if total == 0 {
        return Err(Ignored::Zero);
    }
    if negative {
        return Err(Ignored::Negative);
    }
    Ok(u64::try_from(total).unwrap_or(MAX_WAIT).min(MAX_WAIT))
}

/// The sum of `number unit` pairs, in nanoseconds. `0` may stand without a unit.
fn go_duration(mut text: &str) -> Option<u128> {
    if text == "0" {
        return Some(0);
    }
    if text.is_empty() || text.len() > 64 {
        return None;
    }
    let mut total: u128 = 0;
    while !text.is_empty() {
        let number = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (digits, rest) = text.split_at_checked(number)?;
        let unit_end = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(rest.len());
        let (unit, rest) = rest.split_at_checked(unit_end)?;
        total = total.saturating_add(scaled(digits, unit_nanos(unit)?)?);
        text = rest;
    }
    Some(total)
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => 60 * SECOND,
        "h" => 3600 * SECOND,
        _ => return None,
    })
}

/// `digits`, which may hold one point, times `unit`; exact, cut below a nanosecond.
fn scaled(digits: &str, unit: u64) -> Option<u128> {
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && part.is_empty() || part.contains('.') {
        return None;
    }
    let mut total: u128 = 0;
    for digit in whole.bytes() {
        total = total
            .saturating_mul(10)
            .saturating_add(u128::from(digit - b'0'));
    }
    total = total.saturating_mul(u128::from(unit));
    let mut place = u128::from(unit);
    for digit in part.bytes() {
        place /= 10;
        total = total.saturating_add(place * u128::from(digit - b'0'));
    }
    Some(total)
}

/// An aim in milliseconds, whole or with a fraction, as `x-slo-ttft-ms` carries it. At most [`MAX_WAIT`].
///
/// # Errors
/// When it is not a number above zero.
pub fn slo_millis(value: &str) -> Result<Nanos, Ignored> {
    let value = value.trim();
    // Rust's parser takes words such as `inf`; a header does not.
    if value.is_empty() || value.bytes().any(|b| b.is_ascii_alphabetic() && b != b'e') {
        return Err(Ignored::Malformed);
    }
    let millis: f64 = value.parse().map_err(|_| Ignored::Malformed)?;
    if millis < 0.0 {
        return Err(Ignored::Negative);
    }
    if millis == 0.0 {
        return Err(Ignored::Zero);
    }
    Ok(((millis * MILLISECOND as f64) as u64).clamp(1, MAX_WAIT))
}

/// A priority.
///
/// # Errors
/// What does not fit an `i32` is out of range, never clamped: a clamp would invent an urgency.
pub fn priority(value: &str) -> Result<i32, Ignored> {
    use std::num::IntErrorKind;
    let parsed = value.trim().parse::<i32>();
    parsed.map_err(|error| match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => Ignored::OutOfRange,
        _ => Ignored::Malformed,
    })
}

/// A fairness id, bounded: empty is the default flow; longer than [`MAX_FAIRNESS_BYTES`], or with bytes that no
/// metric label should carry, is `xxh3:` and 128 bits of its hash. No two callers meet in a flow by being cut.
pub fn fairness_id(value: &[u8]) -> FairnessId {
    let value = value.trim_ascii();
    if value.is_empty() {
        return FairnessId::default();
    }
    let plain = value.len() <= MAX_FAIRNESS_BYTES && value.iter().all(|b| matches!(b, b' '..=b'~'));
    // An id that looks like a hash is hashed too: nobody can name another's hash.
    match std::str::from_utf8(value) {
        Ok(text) if plain && !text.starts_with("xxh3:") => FairnessId::new(text),
        _ => FairnessId::new(format!("xxh3:{:032x}", xxh3_128(value))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ttl_reads_go_durations() {
        let s = SECOND;
        for (text, nanos) in [
            ("3s", 3 * s),
            ("1h", 3600 * s),
            (" 1m30s ", 90 * s),
            ("1.5s", s + s / 2),
            ("250ms", s / 4),
            (".5s", s / 2),
            ("2.s", 2 * s),
            ("+1s", s),
            ("1us1ns", 1_001),
            ("7\u{b5}s", 7_000),
            ("0.0000000015s", 1),
            ("99999999999999999999h", MAX_WAIT),
        ] {
            assert_eq!(ttl(text), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn ttl_ignores_what_makes_no_sense() {
        for (text, why) in [
            ("-1s", Ignored::Negative),
            ("abc", Ignored::Malformed),
            ("NaN", Ignored::Malformed),
            ("", Ignored::Malformed),
            ("3", Ignored::Malformed),
            ("3 s", Ignored::Malformed),
            ("s", Ignored::Malformed),
            (".s", Ignored::Malformed),
            ("1..2s", Ignored::Malformed),
            ("1d", Ignored::Malformed),
            ("1e3s", Ignored::Malformed),
            ("--1s", Ignored::Malformed),
            ("0", Ignored::Zero),
            ("0s", Ignored::Zero),
            ("-0s", Ignored::Zero),
            ("inf", Ignored::Malformed),
        ] {
            assert_eq!(ttl(text), Err(why), "{text}");
        }
        assert_eq!(ttl(&"1s".repeat(10_000)), Err(Ignored::Malformed));
    }

    #[test]
    fn slo_and_priority() {
        assert_eq!(slo_millis("250"), Ok(250 * MILLISECOND));
        assert_eq!(slo_millis("0.5"), Ok(MILLISECOND / 2));
        assert_eq!(slo_millis("1e3"), Ok(SECOND));
        assert_eq!(slo_millis("1e300"), Ok(MAX_WAIT));
        assert_eq!(slo_millis("-2"), Err(Ignored::Negative));
        assert_eq!(slo_millis("0"), Err(Ignored::Zero));
        for text in ["NaN", "inf", "infinity", "", "x", "1 2"] {
            assert_eq!(slo_millis(text), Err(Ignored::Malformed), "{text}");
        }
        assert_eq!(priority("-2147483648"), Ok(i32::MIN));
        assert_eq!(priority(" 7 "), Ok(7));
        assert_eq!(priority("2147483648"), Err(Ignored::OutOfRange));
        assert_eq!(priority("-2147483649"), Err(Ignored::OutOfRange));
        assert_eq!(priority("1.5"), Err(Ignored::Malformed));
        assert_eq!(priority(""), Err(Ignored::Malformed));
    }

    #[test]
    fn fairness_ids_are_bounded_and_do_not_meet() {
        assert_eq!(fairness_id(b"").as_str(), FairnessId::DEFAULT);
        assert_eq!(fairness_id(b"  ").as_str(), FairnessId::DEFAULT);
        assert_eq!(fairness_id(b" team-a ").as_str(), "team-a");
        let long = vec![b'a'; 10 * 1024];
        let mut longer = long.clone();
        longer.push(b'b');
        let (one, two) = (fairness_id(&long), fairness_id(&longer));
        assert_ne!(one, two);
        assert_eq!(one.as_str().len(), 37);
        assert_ne!(fairness_id(one.as_str().as_bytes()), one);
        assert!(fairness_id(b"a\nb").as_str().starts_with("xxh3:"));
        assert!(fairness_id(&[0xff]).as_str().starts_with("xxh3:"));
        let edge = vec![b'a'; MAX_FAIRNESS_BYTES];
        assert_eq!(fairness_id(&edge).as_str().len(), MAX_FAIRNESS_BYTES);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn parsers_are_total(text in ".{0,40}", bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(nanos) = ttl(&text) {
                prop_assert!(nanos > 0 && nanos <= MAX_WAIT);
            }
            if let Ok(nanos) = slo_millis(&text) {
                prop_assert!(nanos > 0 && nanos <= MAX_WAIT);
            }
            let _ = priority(&text);
            let id = fairness_id(&bytes);
            prop_assert!(!id.as_str().is_empty() && id.as_str().len() <= MAX_FAIRNESS_BYTES);
        }

        #[test]
        fn ttl_agrees_with_plain_arithmetic(h in 0_u64..20, m in 0_u64..60, s in 0_u64..60, ms in 1_u64..1000) {
            let text = format!("{h}h{m}m{s}s{ms}ms");
            let nanos = ((h * 60 + m) * 60 + s) * SECOND + ms * MILLISECOND;
            prop_assert_eq!(ttl(&text), Ok(nanos));
        }
    }
}
