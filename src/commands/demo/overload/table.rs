//! The findings for people.

use std::fmt::Write as _;

use super::analysis::Findings;

pub(super) fn table(findings: &Findings) -> String {
    let mut text = String::from(
        "\nband    offered     ok   shed cancelled  wait p90  ttft p90  tpot p90 (ms)  share of tokens\n",
    );
    // Writing to a string cannot fail.
    for band in &findings.bands {
        let floor = band
            .floor
            .map_or_else(String::new, |floor| format!(" (floor {floor})"));
        let _ = writeln!(
            text,
            "{:<6} {:>8} {:>6} {:>6} {:>9} {:>9.1} {:>9.0} {:>9.1} {:>20.3}{floor}",
            band.priority,
            band.offered,
            band.ok,
            band.shed,
            band.cancelled,
            band.queue_p90_ms,
            band.ttft_p90_ms,
            band.tpot_p90_ms,
            band.share,
        );
    }
    let _ = writeln!(text, "\nequal-weight tenants of band 0:");
    for sharer in &findings.sharers {
        let _ = writeln!(
            text,
            "  {:<6} {:>6} answers, {:>5.0} prompt tokens each, {:>4.0} % of them cached: {:>8.0} tokens served",
            sharer.tenant,
            sharer.ok,
            sharer.prompt,
            sharer.hit_ratio * 100.0,
            sharer.tokens
        );
    }
    let _ = writeln!(
        text,
        "\nthe pool's {} recorded steps were played again to the same outputs; counts still held: {}",
        findings.steps_replayed, findings.left
    );
    for (aim, met) in findings.aims() {
        let _ = writeln!(text, "  {} {aim}", if met { "ok    " } else { "MISSED" });
    }
    text
}
