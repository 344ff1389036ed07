//! Speed and size of the index; prints one JSON object.
//!
//! ```text
//! cargo run --release --example index_bench [-- --placements 8000000 --endpoints 64 --chain 1024 --chunk 64]
//! ```

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use wicketgate_kvindex::{
    events::{Dialect, EngineHash, Limits, Tier, decode_batch},
    index::{Config, EndpointId, Index, Keyed, Matches},
    keys::{Key, KeySpace},
};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

#[expect(unsafe_code, reason = "an allocator that counts, in a benchmark only")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LIVE.fetch_add(size, Ordering::Relaxed);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn scrambled(value: u64) -> u64 {
    let mut bits = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Seconds that this thread spent on a processor, where the kernel tells: on a shared machine the clock tells less.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ')
        .next()
        .and_then(|nanos| nanos.parse::<f64>().ok())
        .unwrap_or(0.0)
        / 1e9
}

struct Settings {
    placements: usize,
    endpoints: usize,
    chain: usize,
    chunk: usize,
}

fn settings() -> Settings {
    let mut settings = Settings {
        placements: 1_000_000,
        endpoints: 64,
        chain: 1024,
        chunk: 64,
    };
    let mut words = std::env::args().skip(1);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        let value: usize = value.parse().unwrap_or(1).max(1);
        match name.as_str() {
            "--placements" => settings.placements = value,
            "--endpoints" => settings.endpoints = value,
            "--chain" => settings.chain = value,
            "--chunk" => settings.chunk = value,
            _ => {}
        }
    }
    settings
}

fn endpoint(number: usize) -> EndpointId {
    EndpointId {
        incarnation: number as u64,
        rank: 0,
    }
}

fn index(endpoints: usize) -> Index {
    let keys = KeySpace::new(16, 1);
    let index = Index::new(Config {
        keys,
        max_bytes: u64::MAX,
        ..Config::default()
    });
    (0..endpoints).for_each(|number| assert!(index.register(endpoint(number), "model")));
    index
}

/// Keys and names of the `number`-th chain.
fn chain(number: usize, length: usize) -> (Vec<Key>, Vec<EngineHash>) {
    let value =
        |part: u64| move |at: usize| scrambled(scrambled((number as u64) << 24 | at as u64) ^ part);
    let keys = (0..length).map(value(1)).map(Key).collect();
    let hashes = (0..length).map(value(2)).map(EngineHash).collect();
    (keys, hashes)
}

fn store(index: &Index, endpoint: EndpointId, keys: &[Key], hashes: &[EngineHash], chunk: usize) {
    let mut parent = None;
    for (keys, hashes) in keys.chunks(chunk).zip(hashes.chunks(chunk)) {
        let stored = Keyed {
            parent,
            hashes,
            keys,
            tier: Tier::Device,
        };
        index.store_keyed(endpoint, &stored);
        parent = hashes.last().copied();
    }
}

/// Percentiles in microseconds.
fn percentiles(mut times: Vec<f64>) -> Value {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| {
        times
            .get((times.len() as f64 * share) as usize)
            .copied()
            .unwrap_or(0.0)
    };
    json!({ "p50": at(0.5), "p99": at(0.99) })
}

/// Times of lookups, in microseconds, a few together as the clock is coarse; and how many endpoints were found.
fn timed(index: &Index, keys: &[Key], rounds: usize) -> (Value, usize) {
    const TOGETHER: u32 = 8;
    let mut matches = Matches::new();
    let lookups = (0..rounds).map(|_| {
        let start = Instant::now();
        for _ in 0..TOGETHER {
            index.lookup(std::hint::black_box(keys), &mut matches);
        }
        start.elapsed().as_secs_f64() * 1e6 / f64::from(TOGETHER)
    });
    let times = lookups.collect();
    (percentiles(times), matches.len())
}

/// Blocks per second by the clock and by the processor, of work that is done once.
fn rate(blocks: usize, work: impl FnOnce()) -> (f64, f64) {
    let (start, cpu) = (Instant::now(), cpu_seconds());
    work();
    let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    (blocks as f64 / wall, blocks as f64 / cpu.max(1e-9))
}

/// Chains that are all different are stored and removed, tails first, endpoints in turn.
fn placements(settings: &Settings) -> Value {
    let chains = settings.placements / settings.chain;
    let mut made: Vec<_> = (0..chains)
        .map(|number| chain(number, settings.chain))
        .collect();
    let blocks = chains * settings.chain;
    let owner = |number: usize| endpoint(number % settings.endpoints);
    let before = LIVE.load(Ordering::Relaxed);
    let index = index(settings.endpoints);
    let (stored, stored_cpu) = rate(blocks, || {
        for (number, (keys, hashes)) in made.iter().enumerate() {
            store(&index, owner(number), keys, hashes, settings.chunk);
        }
    });
    let bytes = LIVE.load(Ordering::Relaxed) - before;
    let stats = index.stats();
    assert_eq!(stats.placements, blocks as u64);
    let (miss, found) = timed(&index, &chain(1 << 39, 1024).0, 20_000);
    assert_eq!(found, 0);

    made.iter_mut().for_each(|(_, hashes)| hashes.reverse());
    let (removed, removed_cpu) = rate(blocks, || {
        for (number, (_, hashes)) in made.iter().enumerate() {
            for hashes in hashes.chunks(settings.chunk) {
                index.remove_keyed(owner(number), hashes, Tier::Device);
            }
        }
    });
    let left = index.stats();
    assert_eq!((left.placements, left.blocks, left.runs), (0, 0, 0));
    json!({
        "store_blocks_per_s": stored, "store_blocks_per_cpu_s": stored_cpu,
        "remove_blocks_per_s": removed, "remove_blocks_per_cpu_s": removed_cpu,
        "bytes_per_placement": bytes as f64 / blocks as f64,
        "bytes_per_placement_by_gauge": stats.bytes as f64 / blocks as f64,
        "miss": miss,
    })
}

/// The same blocks as messages of an engine: decoded, hashed and stored.
fn messages(settings: &Settings) -> (f64, f64) {
    let chains = (settings.placements / settings.chain).min(400);
    let payload = |number: usize, chunk: usize| {
        let (_, hashes) = chain(number, settings.chain);
        let from = chunk * settings.chunk;
        let parent = from.checked_sub(1).and_then(|before| hashes.get(before));
        let here = hashes
            .get(from..hashes.len().min(from + settings.chunk))
            .unwrap_or_default();
        message(here, parent.copied(), number as u32)
    };
    let chunks = settings.chain.div_ceil(settings.chunk);
    let payloads: Vec<Vec<u8>> = (0..chains)
        .flat_map(|number| (0..chunks).map(move |chunk| (number, chunk)))
        .map(|(n, c)| payload(n, c))
        .collect();
    let index = index(settings.endpoints);
    rate(chains * settings.chain, || {
        for (number, payload) in payloads.iter().enumerate() {
            let batch = decode_batch(payload, Dialect::Vllm, Limits::default());
            let id = endpoint(number / chunks % settings.endpoints);
            let applied = batch.ok().and_then(|batch| index.apply(id, &batch));
            assert!(applied.is_some_and(|applied| applied.orphaned == 0));
        }
    })
}

/// One stored event as vLLM 0.20 writes it.
fn message(hashes: &[EngineHash], parent: Option<EngineHash>, token: u32) -> Vec<u8> {
    let mut out = vec![0x93, 0xcb];
    out.extend(1.5f64.to_be_bytes());
    out.extend([0x91, 0x96, 0xab]);
    out.extend(b"BlockStored");
    out.push(0xdd);
    out.extend((hashes.len() as u32).to_be_bytes());
    for hash in hashes {
        out.push(0xcf);
        out.extend(hash.0.to_be_bytes());
    }
    match parent {
        None => out.push(0xc0),
        Some(parent) => {
            out.push(0xcf);
            out.extend(parent.0.to_be_bytes());
        }
    }
    out.push(0xdd);
    out.extend((hashes.len() as u32 * 16).to_be_bytes());
    for hash in hashes {
        for at in 0..16 {
            out.push(0xce);
            out.extend((hash.0 as u32 ^ token ^ at).to_be_bytes());
        }
    }
    out.extend([16, 0xc0, 0]);
    out
}

/// 64 endpoints hold the whole of a chain of 1024 blocks; also while a thread applies `EVENTS` events a second to them.
fn hits(settings: &Settings) -> (Value, Value) {
    const EVENTS: u32 = 30_000;
    let index = index(64);
    let (keys, hashes) = chain(1, 1024);
    (0..64).for_each(|number| store(&index, endpoint(number), &keys, &hashes, settings.chunk));
    let asked = keys.get(..1000).unwrap_or_default();
    let (quiet, found) = timed(&index, asked, 20_000);
    assert_eq!(found, 64);
    let stop = AtomicBool::new(false);
    let busy = thread::scope(|scope| {
        scope.spawn(|| {
            let tail = hashes.get(1000..).unwrap_or_default();
            let keys = keys.get(1000..).unwrap_or_default();
            let parent = hashes.get(999).copied();
            let stored = Keyed {
                parent,
                hashes: tail,
                keys,
                tier: Tier::Device,
            };
            let start = Instant::now();
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                while f64::from(sent) < start.elapsed().as_secs_f64() * f64::from(EVENTS) {
                    let id = endpoint(sent as usize / 2 % 64);
                    if sent % 2 == 0 {
                        index.remove_keyed(id, tail, Tier::Device);
                    } else {
                        index.store_keyed(id, &stored);
                    }
                    sent += 1;
                }
                thread::park_timeout(Duration::from_micros(200));
            }
        });
        let (busy, found) = timed(&index, asked, 20_000);
        assert_eq!(found, 64);
        stop.store(true, Ordering::Relaxed);
        busy
    });
    (quiet, busy)
}

/// 512 endpoints hold 16, 32, ... 8192 blocks of one chain.
fn ragged(settings: &Settings) -> Value {
    let index = index(512);
    let (keys, hashes) = chain(2, 8192);
    for number in 0..512 {
        let length = (number + 1) * 16;
        let (keys, hashes) = (keys.get(..length), hashes.get(..length));
        let (keys, hashes) = (keys.unwrap_or_default(), hashes.unwrap_or_default());
        store(&index, endpoint(number), keys, hashes, settings.chunk);
    }
    let (times, found) = timed(&index, &keys, 5_000);
    assert_eq!(found, 512);
    times
}

fn main() {
    let settings = settings();
    let mut line = placements(&settings);
    let (messages, messages_cpu) = messages(&settings);
    let (quiet, busy) = hits(&settings);
    let miss = line.get_mut("miss").map(Value::take);
    let more = json!({
        "endpoints": settings.endpoints, "placements": settings.placements, "threads": 1,
        "chain": settings.chain, "chunk": settings.chunk,
        "message_blocks_per_s": messages, "message_blocks_per_cpu_s": messages_cpu,
        "lookup_us": {
            "hit_1k": quiet, "hit_1k_under_30k_events_per_s": busy,
            "ragged_8k": ragged(&settings), "miss": miss,
        },
    });
    if let (Value::Object(line), Value::Object(more)) = (&mut line, more) {
        line.remove("miss");
        line.extend(more);
    }
    #[expect(clippy::print_stdout, reason = "the result")]
    {
        println!("{line}");
    }
}
