//! What load is wanted.

use std::time::Duration;

/// How requests are spread over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arrivals {
    /// Independent of each other: exponential gaps.
    Poisson,
    /// Equal gaps.
    Even,
    /// Not open at all: the next one goes when one of `max_in_flight` is over. For finding out what a server can do.
    Closed,
}

/// A mixture of multi-turn chats with shared system prompts and of long single prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadSpec {
    /// Model to ask for.
    pub model: String,
    /// Requests per second; of no meaning with [`Arrivals::Closed`].
    pub rate: f64,
    /// How long requests are sent.
    pub duration: Duration,
    /// How they are spread.
    pub arrivals: Arrivals,
    /// Start of the randomness: the same spec offers the same load, byte for byte.
    pub seed: u64,
    /// System prompts; the chats of a group share one.
    pub groups: usize,
    /// Words of a system prompt.
    pub system_words: usize,
    /// Words of a turn, from and to.
    pub turn_words: (usize, usize),
    /// Turns of a chat before it ends.
    pub turns: usize,
    /// Time between two turns of one chat. Answers are scripted, so a turn does not wait for the one before.
    pub think: Duration,
    /// Share of the requests of chats that open a new one although another waits for its next turn.
    pub new_chat_share: f64,
    /// Share of all requests that are long single prompts.
    pub long_share: f64,
    /// Words of a long prompt, from and to.
    pub long_words: (usize, usize),
    /// Tokens to generate at most, from and to.
    pub output: (u32, u32),
    /// Share of requests that ask for a stream.
    pub stream_share: f64,
    /// Share of requests whose caller hangs up.
    pub cancel_share: f64,
    /// When it hangs up, from the planned time, from and to.
    pub cancel_after: (Duration, Duration),
    /// Only answers that end between these instants of the run count in [`Tokens`](super::Tokens): what is served
    /// while the load stands, without its start and its tail. `None` counts all.
    pub window: Option<(Duration, Duration)>,
    /// Requests under way at once; further ones wait in the generator, are late and make the run invalid.
    pub max_in_flight: usize,
    /// Longest time of a request, from its planned time.
    pub timeout: Duration,
    /// Lateness that is forgiven at any rate: timers and the machine's other work are that coarse.
    /// The run is valid if the 99th percentile of lateness is at most this or 1 % of the mean gap.
    pub lag_floor: Duration,
}

impl Default for LoadSpec {
    fn default() -> Self {
        LoadSpec {
            model: "emulated".to_owned(),
            rate: 20.0,
            duration: Duration::from_secs(10),
            arrivals: Arrivals::Poisson,
            seed: 1,
            groups: 8,
            system_words: 300,
            turn_words: (20, 60),
            turns: 6,
            think: Duration::from_secs(2),
            new_chat_share: 0.3,
            long_share: 0.1,
            long_words: (1500, 2500),
            output: (16, 96),
            stream_share: 1.0,
            cancel_share: 0.0,
            cancel_after: (Duration::from_millis(50), Duration::from_millis(800)),
            window: None,
            max_in_flight: 4096,
            timeout: Duration::from_secs(120),
            lag_floor: Duration::from_millis(10),
        }
    }
}

/// Why a spec makes no load.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// A rate that is not a number above zero.
    #[error("the rate is {0}; it must be above 0 and at most 1000000 requests per second")]
    Rate(f64),
    /// A share outside 0 to 1.
    #[error("{name} is {value}; a share is from 0 to 1")]
    Share {
        /// The field.
        name: &'static str,
        /// What it holds.
        value: f64,
    },
    /// A range that ends before it begins.
    #[error("{0} ends before it begins")]
    Range(&'static str),
    /// Nowhere to send to, or nothing allowed under way.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// A step that comes twice, or goes back.
    #[error("rate {0} comes after {1}: steps must rise, so that none is measured twice")]
    Steps(f64, f64),
}

impl LoadSpec {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field that makes no sense.
    pub fn check(&self) -> Result<(), SpecError> {
        check_rate(self.rate)?;
        let shares = [
            ("new_chat_share", self.new_chat_share),
            ("long_share", self.long_share),
            ("stream_share", self.stream_share),
            ("cancel_share", self.cancel_share),
        ];
        for (name, value) in shares {
            if !(0.0..=1.0).contains(&value) {
                return Err(SpecError::Share { name, value });
            }
        }
        let ranges = [
            ("turn_words", self.turn_words.0 <= self.turn_words.1),
            ("long_words", self.long_words.0 <= self.long_words.1),
            ("output", self.output.0 <= self.output.1),
            ("cancel_after", self.cancel_after.0 <= self.cancel_after.1),
        ];
        if let Some((name, _)) = ranges.into_iter().find(|(_, rises)| !rises) {
            return Err(SpecError::Range(name));
        }
        let counts = [
            ("groups", self.groups),
            ("turns", self.turns),
            ("max_in_flight", self.max_in_flight),
        ];
        match counts.into_iter().find(|(_, count)| *count == 0) {
            Some((name, _)) => Err(SpecError::Zero(name)),
            None => Ok(()),
        }
    }

    /// The lateness that a valid run keeps below, at its 99th percentile.
    pub fn allowed_lag(&self) -> Duration {
        Duration::from_secs_f64(0.01 / self.rate.max(1e-6)).max(self.lag_floor)
    }
}

fn check_rate(rate: f64) -> Result<(), SpecError> {
    if rate > 0.0 && rate <= 1e6 {
        Ok(())
    } else {
        Err(SpecError::Rate(rate))
    }
}

/// Checks a list of rates to be measured one after the other.
///
/// # Errors
/// When a rate makes no sense, or the list does not rise: equal steps would be measured twice.
pub fn steps(rates: &[f64]) -> Result<(), SpecError> {
    rates.iter().try_for_each(|rate| check_rate(*rate))?;
    for (rate, next) in rates.iter().zip(rates.iter().skip(1)) {
        if next <= rate {
            return Err(SpecError::Steps(*next, *rate));
        }
    }
    Ok(())
}
