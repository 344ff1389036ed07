//! Metrics pages as vLLM serves them: captured ones, with other values for other endpoints and other times.

/// Captured from running engines, 48 to 76 KB. See `pages/NOTICE`.
const CAPTURED: [&str; 3] = [
    include_str!("../pages/vllm_startup.txt"),
    include_str!("../pages/vllm_loaded.txt"),
    include_str!("../pages/vllm_many_labels.txt"),
];

/// The page of an endpoint at its `turn`-th change. As long as the captured one, give or take some digits.
pub(crate) fn page(endpoint: usize, turn: usize) -> String {
    let captured = CAPTURED
        .iter()
        .cycle()
        .nth(endpoint % CAPTURED.len())
        .copied();
    let captured = captured.unwrap_or_default();
    let seed = (endpoint as u64) << 32 | turn as u64;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut page = String::with_capacity(captured.len() + 64);
    for line in captured.lines() {
        match line.rsplit_once(' ') {
            Some((series, value)) if !line.starts_with('#') => {
                page.push_str(series);
                page.push(' ');
                page.push_str(&changed(series, value, &mut rng));
            }
            _ => page.push_str(line),
        }
        page.push('\n');
    }
    page
}

/// Another value for a series. Infos and buckets stay: their values depend on each other.
fn changed(series: &str, value: &str, rng: &mut fastrand::Rng) -> String {
    let name = series.split('{').next().unwrap_or_default();
    match name {
        "vllm:num_requests_running" => return format!("{}.0", rng.u32(0..64)),
        "vllm:num_requests_waiting" => return format!("{}.0", rng.u32(0..8)),
        "vllm:kv_cache_usage_perc" => return format!("{:.17}", rng.f64() * 0.95),
        _ if name.ends_with("_info") || name.ends_with("_bucket") => return value.to_owned(),
        _ => {}
    }
    let exponent = value.find(['e', 'E']).unwrap_or(value.len());
    let digit = |(at, sign): (usize, char)| match sign {
        '1'..='9' if at < exponent => char::from(b'1' + rng.u8(0..9)),
        other => other,
    };
    value.char_indices().map(digit).collect()
}

#[cfg(test)]
mod tests {
    use wicketgate_wire::{EngineKind, MetricsSample, scan_metrics};

    use super::*;

    fn scanned(endpoint: usize, turn: usize) -> MetricsSample {
        let page = page(endpoint, turn);
        scan_metrics(EngineKind::Vllm, page.as_bytes())
    }

    #[test]
    fn pages_keep_their_size_and_series() {
        for endpoint in 0..9 {
            let captured = CAPTURED[endpoint % 3];
            let page = page(endpoint, 5);
            assert!(page.len().abs_diff(captured.len()) < 64);
            assert!((48_000..77_000).contains(&page.len()), "{}", page.len());
            let names = |text: &str| -> Vec<String> {
                let series = text.lines().filter_map(|line| line.rsplit_once(' '));
                let series = series.filter(|(series, _)| !series.starts_with('#'));
                series.map(|(series, _)| series.to_owned()).collect()
            };
            assert_eq!(names(&page), names(captured));
        }
    }

    #[test]
    fn the_routing_series_are_there_and_in_range_and_move() {
        let mut seen = std::collections::BTreeSet::new();
        for turn in 0..20 {
            for endpoint in 0..3 {
                let sample = scanned(endpoint, turn);
                let [rank] = sample.ranks.as_slice() else {
                    panic!("{} ranks", sample.ranks.len());
                };
                assert!((0.0..64.0).contains(&rank.running.unwrap()));
                assert!((0.0..8.0).contains(&rank.waiting.unwrap()));
                let usage = rank.kv_usage.unwrap();
                assert!((0.0..0.95).contains(&usage));
                seen.insert(usage.to_bits());
                assert!(rank.block_size.is_some());
            }
        }
        assert_eq!(seen.len(), 60);
    }

    #[test]
    fn values_keep_their_form() {
        let mut rng = fastrand::Rng::with_seed(3);
        let form = |value: &str, rng: &mut fastrand::Rng| changed("x", value, rng);
        for (value, length) in [("14776.0", 7), ("4.96e+09", 8), ("0.0", 3)] {
            let other = form(value, &mut rng);
            assert_eq!(other.len(), length);
            assert!(other.parse::<f64>().is_ok());
        }
        assert!(form("4.96e+09", &mut rng).ends_with("e+09"));
        assert_eq!(form("NaN", &mut rng), "NaN");
        assert_eq!(changed("y_bucket{le=\"1\"}", "12.0", &mut rng), "12.0");
    }
}
