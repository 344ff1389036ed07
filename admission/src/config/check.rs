//! A configuration is checked whole: every fault at once, none found later.

use super::{AdmissionConfig, BandConfig, Fairness, Starvation};

/// Why a configuration cannot be used: every fault, by key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", faults.join("; "))]
pub struct ConfigError {
    /// `key: what is wrong`, in the order of the keys.
    pub faults: Vec<String>,
}

impl AdmissionConfig {
    /// Checks that every value makes sense, alone and with the others.
    ///
    /// # Errors
    /// All faults.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut faults = Vec::new();
        band_faults("default_band", &self.default_band, &mut faults);
        band_faults(
            "default_negative_band",
            &self.default_negative_band,
            &mut faults,
        );
        for (at, (priority, band)) in self.bands.iter().enumerate() {
            band_faults(&format!("bands[{at}]"), band, &mut faults);
            if self.bands.iter().take(at).any(|(p, _)| p == priority) {
                faults.push(format!("bands[{at}]: priority {priority} is listed twice"));
            }
        }
        self.starvation_faults(&mut faults);
        if !(self.output_weight.is_finite() && (0.0..=1024.0).contains(&self.output_weight)) {
            faults.push("output_weight: must be between 0 and 1024".to_owned());
        }
        if self.max_bands == 0 || (self.max_bands as usize) < self.bands.len() {
            faults.push("max_bands: fewer than the listed bands, or none".to_owned());
        }
        if self.max_bands > 1024 {
            faults.push("max_bands: every dispatch looks at each band; 1024 at most".to_owned());
        }
        if self.max_flows == 0 {
            faults.push("max_flows: must be at least 1".to_owned());
        }
        if self.eviction.enabled && self.eviction.max_per_decision == 0 {
            faults.push("eviction.max_per_decision: must be at least 1".to_owned());
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(ConfigError { faults })
        }
    }

    fn starvation_faults(&self, faults: &mut Vec<String>) {
        match self.starvation {
            Starvation::Strict => {}
            Starvation::Aging { share, .. } => {
                if !proper(share) {
                    faults.push("starvation.aging.share: must be above 0 and below 1".to_owned());
                }
            }
            Starvation::Floor { share, window } => {
                if !(0.0..1.0).contains(&share) {
                    faults.push("starvation.floor.share: must be from 0 to below 1".to_owned());
                }
                if window == 0 {
                    faults.push("starvation.floor.window: must be above 0".to_owned());
                }
                // Bands that appear later have their shares scaled down together; the listed ones must fit.
                let listed = self.bands.iter().map(|(_, b)| b.floor.unwrap_or(share));
                let lower = self.bands.iter().map(|(p, _)| *p).max();
                let top = lower.map_or(0.0, |p| self.band(p).floor.unwrap_or(share));
                if listed.sum::<f64>() - top >= 1.0 {
                    faults.push("bands: the floors of the bands below the top reach 1".to_owned());
                }
            }
        }
    }
}

fn proper(share: f64) -> bool {
    share > 0.0 && share < 1.0
}

fn band_faults(key: &str, band: &BandConfig, faults: &mut Vec<String>) {
    if let Some(floor) = band.floor
        && !(0.0..1.0).contains(&floor)
    {
        faults.push(format!("{key}.floor: must be from 0 to below 1"));
    }
    match band.fairness {
        Fairness::Drr { quantum } if quantum == 0 || quantum > crate::MAX_COST => {
            faults.push(format!("{key}.fairness.drr.quantum: must be 1 to 2^32"));
        }
        Fairness::Vtc { max_lag } if max_lag > i64::MAX as u64 => {
            faults.push(format!("{key}.fairness.vtc.max_lag: must be below 2^63"));
        }
        Fairness::GlobalStrict
        | Fairness::RoundRobin
        | Fairness::Drr { .. }
        | Fairness::Vtc { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_in_order() {
        assert_eq!(AdmissionConfig::default().check(), Ok(()));
        assert_eq!(AdmissionConfig::llm_d().check(), Ok(()));
    }

    #[test]
    fn every_fault_is_named() {
        let mut config = AdmissionConfig {
            output_weight: f64::NAN,
            max_bands: 1,
            max_flows: 0,
            starvation: Starvation::Floor {
                share: 0.6,
                window: 0,
            },
            ..AdmissionConfig::default()
        };
        let band = BandConfig {
            floor: Some(1.0),
            fairness: Fairness::Drr { quantum: 0 },
            ..BandConfig::default()
        };
        config.bands = vec![
            (3, band),
            (3, BandConfig::default()),
            (1, BandConfig::default()),
        ];
        config.eviction.enabled = true;
        config.eviction.max_per_decision = 0;
        let faults = config.check().unwrap_err().faults;
        let keys: Vec<_> = faults
            .iter()
            .map(|f| f.split(':').next().unwrap())
            .collect();
        assert_eq!(
            keys,
            [
                "bands[0].floor",
                "bands[0].fairness.drr.quantum",
                "bands[1]",
                "starvation.floor.window",
                "bands",
                "output_weight",
                "max_bands",
                "max_flows",
                "eviction.max_per_decision"
            ]
        );
        for share in [0.0, 1.0, -1.0, f64::NAN] {
            config.starvation = Starvation::Aging { after: 1, share };
            assert!(config.check().is_err(), "{share}");
        }
    }

    #[test]
    fn unknown_keys_are_errors_and_a_config_survives_json() {
        let text = serde_json::to_string(&AdmissionConfig::default()).unwrap();
        let back: AdmissionConfig = serde_json::from_str(&text).unwrap();
        assert_eq!(back, AdmissionConfig::default());
        assert!(serde_json::from_str::<AdmissionConfig>("{\"max_flow\":3}").is_err());
        assert_eq!(
            serde_json::from_str::<AdmissionConfig>("{}").unwrap(),
            AdmissionConfig::default()
        );
    }
}
