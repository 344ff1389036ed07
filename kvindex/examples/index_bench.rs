//! Speed and size of the index; prints one JSON object.
//!
//! ```text
//! cargo run --release --example index_bench [-- --placements 8000000 --endpoints 64 --chain 1024 --chunk 64]
//! ```

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use wicketgate_kvindex::{
    events::{EngineHash, Tier},
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

fn index() -> Index {
    Index::new(Config {
        keys: KeySpace::new(16, 1),
        max_bytes: u64::MAX,
        ..Config::default()
    })
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

/// Percentiles of a lookup in microseconds.
fn timed(index: &Index, keys: &[Key], rounds: usize) -> (f64, f64, usize) {
    const BATCH: usize = 8;
    let mut matches = Matches::new();
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..BATCH {
            index.lookup(std::hint::black_box(keys), &mut matches);
        }
        times.push(start.elapsed().as_nanos() as f64 / BATCH as f64 / 1000.0);
    }
    times.sort_by(f64::total_cmp);
    let at = |share: f64| {
        times
            .get((times.len() as f64 * share) as usize)
            .copied()
            .unwrap_or(0.0)
    };
    (at(0.5), at(0.99), matches.len())
}

fn main() {
    let settings = settings();
    let chains = settings.placements / settings.chain;
    // The chains are made before the clock starts, in the order in which they come: endpoints in turn.
    let made: Vec<(Vec<Key>, Vec<EngineHash>)> =
        (0..chains).map(|n| chain(n, settings.chain)).collect();
    let before = LIVE.load(Ordering::Relaxed);
    let live = index();
    for number in 0..settings.endpoints {
        live.register(endpoint(number), "model");
    }
    let (start, cpu) = (Instant::now(), cpu_seconds());
    for (number, (keys, hashes)) in made.iter().enumerate() {
        store(
            &live,
            endpoint(number % settings.endpoints),
            keys,
            hashes,
            settings.chunk,
        );
    }
    let (stored, stored_cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let stats = live.stats();
    let bytes = LIVE.load(Ordering::Relaxed) - before;
    let placements = stats.placements as f64;

    let (keys, _) = chain(usize::MAX >> 30, 1024);
    let (miss, ..) = timed(&live, &keys, 20_000);

    let mut made = made;
    made.iter_mut().for_each(|(_, hashes)| hashes.reverse());
    let (start, cpu) = (Instant::now(), cpu_seconds());
    for (number, (_, hashes)) in made.iter().enumerate() {
        for hashes in hashes.chunks(settings.chunk) {
            live.remove_keyed(endpoint(number % settings.endpoints), hashes, Tier::Device);
        }
    }
    let (removed, removed_cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let left = live.stats();
    assert_eq!((left.placements, left.blocks, left.runs), (0, 0, 0));
    drop(live);

    // Every endpoint holds the whole chain, among a million others.
    let hit = index();
    let (keys, hashes) = chain(1, 1024);
    for number in 0..64 {
        hit.register(endpoint(number), "model");
        store(&hit, endpoint(number), &keys, &hashes, settings.chunk);
    }
    let (hit_p50, hit_p99, found) = timed(&hit, keys.get(..1000).unwrap_or_default(), 20_000);
    assert_eq!(found, 64);

    // 512 endpoints hold 16, 32, ... 8192 blocks.
    let ragged = index();
    let (keys, hashes) = chain(2, 8192);
    for number in 0..512 {
        let length = (number + 1) * 16;
        ragged.register(endpoint(number), "model");
        let (keys, hashes) = (keys.get(..length), hashes.get(..length));
        store(
            &ragged,
            endpoint(number),
            keys.unwrap_or_default(),
            hashes.unwrap_or_default(),
            settings.chunk,
        );
    }
    let (ragged_p50, ragged_p99, found) = timed(&ragged, &keys, 5_000);
    assert_eq!(found, 512);

    let line = format!(
        "{{\"endpoints\":{},\"placements\":{},\"threads\":1,\"chain\":{},\"chunk\":{},\"store_blocks_per_s\":{:.0},\
         \"remove_blocks_per_s\":{:.0},\"store_blocks_per_cpu_s\":{:.0},\"remove_blocks_per_cpu_s\":{:.0},\"lookup_us\":{{\"hit_1k\":{{\"p50\":{hit_p50:.3},\"p99\":{hit_p99:.3}}},\
         \"ragged_8k\":{{\"p50\":{ragged_p50:.3},\"p99\":{ragged_p99:.3}}},\"miss\":{{\"p50\":{miss:.3}}}}},\
         \"bytes_per_placement\":{:.1},\"bytes_counted\":{}}}",
        settings.endpoints,
        stats.placements,
        settings.chain,
        settings.chunk,
        placements / stored,
        placements / removed,
        placements / stored_cpu,
        placements / removed_cpu,
        bytes as f64 / placements,
        stats.bytes as f64 / placements,
    );
    #[expect(clippy::print_stdout, reason = "the result")]
    {
        println!("{line}");
    }
}
