//! Durations as Go writes them, sizes as Kubernetes does.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// A length of time, written like `1m30s`, `500ms` or `0s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(pub Duration);

/// A number of bytes, written like `1048576`, `10Mi`, `16M` or `1e6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Size(pub u64);

const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads a duration; `None` if it is none, is negative, or does not fit.
pub fn parse_span(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    if text.is_empty() {
        return None;
    }
    let mut rest = text;
    let mut total: f64 = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at_checked(digits)?;
        let unit_end = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(unit_end)?;
        let (_, nanos) = UNITS.iter().find(|(name, _)| *name == unit)?;
        #[expect(clippy::cast_precision_loss, reason = "units are small round numbers")]
        let nanos = *nanos as f64;
        total += number.parse::<f64>().ok()? * nanos;
        rest = after;
    }
    // 292 years: what fits into the clock's nanoseconds.
    if total > 9.2e18 {
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked just above"
    )]
    Some(Duration::from_nanos(total.round() as u64))
}

/// Reads a size; `None` if it is none, is negative, is no whole number of bytes, or does not fit.
pub fn parse_size(text: &str) -> Option<u64> {
    const SUFFIXES: [(&str, f64); 12] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("k", 1e3),
        ("K", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("", 1.0),
    ];
    let (suffix, factor) = SUFFIXES.iter().find(|(suffix, _)| text.ends_with(suffix))?;
    let number = text.strip_suffix(suffix)?;
    if !number.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let bytes = number.parse::<f64>().ok()? * factor;
    if bytes.fract() != 0.0 || bytes > 9.0e15 {
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked just above"
    )]
    Some(bytes as u64)
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bad = || format!("{text:?} is no duration; expected one like 500ms or 1m30s");
        parse_span(&text).map(Span).ok_or_else(bad)
    }
}

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bad = || format!("{text:?} is no size; expected one like 1048576, 10Mi or 16M");
        parse_size(&text).map(Size).ok_or_else(bad)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let fits = |unit: u128| nanos.is_multiple_of(unit);
        match nanos {
            0 => write!(to, "0s"),
            _ if fits(1_000_000_000) => write!(to, "{}s", nanos / 1_000_000_000),
            _ if fits(1_000_000) => write!(to, "{}ms", nanos / 1_000_000),
            _ if fits(1_000) => write!(to, "{}us", nanos / 1_000),
            _ => write!(to, "{nanos}ns"),
        }
    }
}

impl From<Span> for String {
    fn from(span: Span) -> String {
        span.to_string()
    }
}

impl fmt::Display for Size {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
        let exact = |(_, bytes): &(&str, u64)| self.0 > 0 && self.0.is_multiple_of(*bytes);
        match units.into_iter().find(exact) {
            Some((unit, bytes)) => write!(to, "{}{unit}", self.0 / bytes),
            None => write!(to, "{}", self.0),
        }
    }
}

impl From<Size> for String {
    fn from(size: Size) -> String {
        size.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let ms = |text| parse_span(text).map(|span| span.as_micros());
        assert_eq!(ms("1m30s"), Some(90_000_000));
        assert_eq!(ms("1.5s"), Some(1_500_000));
        assert_eq!(ms("50ms"), Some(50_000));
        assert_eq!(ms("0s"), Some(0));
        assert_eq!(ms("0"), Some(0));
        for bad in [
            "",
            "5",
            "-1s",
            "s",
            "1x",
            "NaN",
            "1s ",
            "99999999h",
            "1..2s",
        ] {
            assert_eq!(parse_span(bad), None, "{bad}");
        }
        for text in ["0s", "90s", "1500ms", "50us", "7ns"] {
            assert_eq!(Span(parse_span(text).unwrap()).to_string(), text);
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("1048576"), Some(1 << 20));
        assert_eq!(parse_size("10Mi"), Some(10 << 20));
        assert_eq!(parse_size("1.5Ki"), Some(1536));
        assert_eq!(parse_size("1e6"), Some(1_000_000));
        assert_eq!(parse_size("0"), Some(0));
        for text in ["0", "1", "1023", "16Mi", "3Gi", "1025Ki"] {
            assert_eq!(Size(parse_size(text).unwrap()).to_string(), text);
        }
        for bad in ["", "-1", "x", "1.5", "Mi", "inf", "NaN", "1e300"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }
}
