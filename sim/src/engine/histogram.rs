//! Histograms with vLLM's buckets.

/// Seconds, for a whole request or one of its phases.
pub(super) const REQUEST_SECONDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
/// Seconds to the first token.
pub(super) const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// Seconds between tokens.
pub(super) const TOKEN_SECONDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
/// Tokens in a step.
pub(super) const STEP_TOKENS: &[f64] = &[
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
];
/// Preemptions of a request.
pub(super) const PREEMPTIONS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];
/// Choices of a request.
pub(super) const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

/// Tokens of a request: 1, 2, 5, 10, ... up to the longest sequence.
pub(super) fn request_tokens(model_len: u32) -> Vec<f64> {
    let steps = (0..9).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(power)));
    steps
        .take_while(|bound| *bound <= f64::from(model_len))
        .collect()
}

#[derive(Clone, Debug)]
pub(super) struct Histogram {
    bounds: Vec<f64>,
    /// One per bound, and one for what is above all of them.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    pub(super) fn new(bounds: &[f64]) -> Histogram {
        Histogram {
            bounds: bounds.to_vec(),
            counts: vec![0; bounds.len() + 1],
            sum: 0.0,
        }
    }

    pub(super) fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum += value;
    }

    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    /// Observations up to each bound; the last one, without a bound, are all.
    pub(super) fn cumulative(&self) -> impl Iterator<Item = (Option<f64>, u64)> {
        let bounds = self.bounds.iter().map(|bound| Some(*bound)).chain([None]);
        let sums = self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        bounds.zip(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_what_is_at_most_its_bound() {
        let mut histogram = Histogram::new(CHOICES);
        [1.0, 1.5, 2.0, 21.0]
            .into_iter()
            .for_each(|value| histogram.observe(value));
        let counts: Vec<u64> = histogram.cumulative().map(|(_, count)| count).collect();
        assert_eq!(counts, [1, 3, 3, 3, 3, 4]);
        assert_eq!(histogram.sum(), 25.5);
        assert_eq!(request_tokens(2048).last(), Some(&2000.0));
    }
}
