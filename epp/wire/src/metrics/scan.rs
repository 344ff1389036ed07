//! From a page to the values that routing reads.

use super::{
    EngineKind, LoraSample, MetricsSample, RankSample,
    exposition::{Labels, Series, lines, parse},
    names::{CacheLabels, Meaning, Names, names},
};

/// Most ranks of one page that are read. A pod has a few; a page that claims more is not believed.
pub const MAX_RANKS: usize = 1024;

/// The series of Prometheus' own client; it has no engine's prefix.
const STARTED: &[u8] = b"process_start_time_seconds";

/// Reads a page.
pub fn scan_metrics(kind: EngineKind, text: &[u8]) -> MetricsSample {
    let mut sample = MetricsSample::default();
    scan_into(kind, text, &mut sample);
    sample
}

/// Reads a page into a sample that is reused.
///
/// SGLang's tensor and pipeline ranks each write the series of their data-parallel rank; the largest value counts.
/// Of several names for one signal the newest counts, in whatever order they stand.
pub fn scan_into(kind: EngineKind, text: &[u8], sample: &mut MetricsSample) {
    sample.ranks.clear();
    sample.lora = None;
    sample.started = None;
    sample.recognised = false;
    sample.truncated = !text.is_empty() && !text.ends_with(b"\n") && !text.ends_with(b"# EOF");
    let names = names(kind);
    let mut newest_lora = f64::NEG_INFINITY;
    for line in lines(text) {
        if line.starts_with(STARTED) {
            let started = parse(line).filter(|series| series.name.as_bytes() == STARTED);
            let started = started.map(|series| series.value);
            sample.started = started.filter(|at| at.is_finite() && *at > 0.0);
            continue;
        }
        let Some(meaning) = meaning(&names, line) else {
            continue;
        };
        let Some(series) = parse(line) else {
            continue;
        };
        sample.recognised = true;
        if meaning == Meaning::Lora {
            // Old label sets stay on the page with their old time stamps.
            if series.value > newest_lora {
                newest_lora = series.value;
                sample.lora = Some(lora(series.labels));
            }
        } else if let Some(rank) = rank(&mut sample.ranks, series.labels) {
            apply(meaning, &series, rank);
        }
    }
}

/// What a line says, by its name alone: most lines are comments and buckets of histograms.
fn meaning(names: &Names, line: &[u8]) -> Option<Meaning> {
    let rest = line.strip_prefix(names.prefix)?;
    if !names.first.contains(rest.first()?) {
        return None;
    }
    let end = memchr::memchr3(b'{', b' ', b'\t', rest)?;
    (names.meaning)(rest.get(..end)?)
}

/// The sample of the rank that the labels name; `None` if there are too many.
fn rank<'a>(ranks: &'a mut Vec<RankSample>, labels: Labels<'_>) -> Option<&'a mut RankSample> {
    let rank = labels.get("engine").or_else(|| labels.get("dp_rank"));
    let rank = rank.and_then(|rank| rank.parse().ok()).unwrap_or(0);
    let index = match ranks.binary_search_by_key(&rank, |sample| sample.rank) {
        Ok(index) => index,
        Err(_) if ranks.len() >= MAX_RANKS => return None,
        Err(index) => {
            ranks.insert(index, RankSample::new(rank));
            index
        }
    };
    ranks.get_mut(index)
}

fn apply(meaning: Meaning, series: &Series<'_>, rank: &mut RankSample) {
    match meaning {
        Meaning::Value { signal, age } => rank.observe(signal, age, series.value),
        Meaning::CacheConfig(labels) => cache(rank, series.labels, labels),
        Meaning::Sleep => sleep(rank, series),
        Meaning::Lora => {}
    }
    if rank.model.is_none()
        && let Some(model) = series.labels.get("model_name")
    {
        rank.model = Some(model.into_owned());
    }
}

/// One walk over the labels: this series has dozens.
fn cache(rank: &mut RankSample, labels: Labels<'_>, names: CacheLabels) {
    for (name, value) in labels.iter() {
        let slot = if name == names.block_size {
            &mut rank.block_size
        } else if name == names.blocks {
            &mut rank.num_blocks
        } else if name == names.tokens {
            &mut rank.capacity_tokens
        } else {
            continue;
        };
        *slot = value.parse().ok().or(*slot);
    }
}

/// One series per state; `awake` is the state in which the engine works.
fn sleep(rank: &mut RankSample, series: &Series<'_>) {
    #[expect(clippy::float_cmp, reason = "a flag that is written as exactly 0 or 1")]
    let (yes, no) = (series.value == 1.0, series.value == 0.0);
    match series.labels.get("sleep_state").as_deref() {
        Some("awake") if yes || no => rank.sleeping = Some(no),
        Some("awake") | None => {}
        Some(_) if yes => rank.sleeping = Some(true),
        Some(_) => {}
    }
}

fn lora(labels: Labels<'_>) -> LoraSample {
    let mut sample = LoraSample::default();
    for (name, value) in labels.iter() {
        let set = match name {
            "running_lora_adapters" => &mut sample.running,
            "waiting_lora_adapters" => &mut sample.waiting,
            "max_lora" => {
                sample.max = value.trim().parse().ok();
                continue;
            }
            _ => continue,
        };
        let names = value.split(',').map(str::trim);
        set.extend(names.filter(|name| !name.is_empty()).map(str::to_owned));
    }
    sample.loaded = sample.running.union(&sample.waiting).cloned().collect();
    sample
}
