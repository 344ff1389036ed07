//! A publisher that is not ours, and traffic that is not ours.

use std::sync::atomic::{AtomicU64, Ordering};

use wicketgate_kvindex::{
    events::{Dialect, Limits, Tier, decode_batch, parse_frames},
    index::{Config, Index},
};
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::{engine::clock, *};

/// PUB and ROUTER of the `zeromq` crate, with a memory of everything.
struct Engine {
    publisher: PubSocket,
    events: String,
    replay: String,
    memory: Arc<parking_lot::Mutex<Vec<Vec<Bytes>>>>,
    sent: AtomicU64,
    _router: Task,
}

fn host_port(endpoint: impl ToString) -> String {
    endpoint.to_string().trim_start_matches("tcp://").to_owned()
}

impl Engine {
    async fn start() -> Engine {
        let mut publisher = PubSocket::new();
        let events = host_port(publisher.bind("tcp://127.0.0.1:0").await.unwrap());
        let mut router = RouterSocket::new();
        let replay = host_port(router.bind("tcp://127.0.0.1:0").await.unwrap());
        let memory = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let shared = Arc::clone(&memory);
        let task = tokio::spawn(async move {
            while let Ok(request) = router.recv().await {
                let request = request.into_vec();
                let from = u64::from_be_bytes(request[2].as_ref().try_into().unwrap());
                let all: Vec<Vec<Bytes>> = shared.lock().clone();
                let end = vec![
                    Bytes::new(),
                    u64::MAX.to_be_bytes().to_vec().into(),
                    Bytes::new(),
                ];
                let wanted = all.into_iter().filter(|parts: &Vec<Bytes>| {
                    u64::from_be_bytes(parts[1].as_ref().try_into().unwrap()) >= from
                });
                for parts in wanted.chain([end]) {
                    let mut all = vec![request[0].clone(), Bytes::new()];
                    all.extend(parts);
                    router
                        .send(ZmqMessage::try_from(all).unwrap())
                        .await
                        .unwrap();
                }
            }
        });
        Engine {
            publisher,
            events,
            replay,
            memory,
            sent: AtomicU64::new(0),
            _router: Task(task),
        }
    }

    fn source(&self) -> Source {
        Source {
            model: MODEL.to_owned(),
            dialect: Dialect::Vllm,
            ranks: vec![RankSource {
                rank: 0,
                events: Events::Connect(self.events.clone()),
                replay: Some(self.replay.clone()),
            }],
        }
    }

    async fn publish(&mut self, events: &[Vec<u8>]) {
        let sequence = self.sent.fetch_add(1, Ordering::Relaxed);
        let parts = message("kv@a@m", sequence, payload(clock(1, sequence), events));
        self.memory.lock().push(parts.clone());
        self.publisher
            .send(ZmqMessage::try_from(parts).unwrap())
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_foreign_publisher_is_followed_from_its_first_message_to_its_last() {
    let rig = rig();
    let mut engine = Engine::start().await;
    // Nobody listens yet, so only the replay has these.
    for number in 0..5 {
        engine.publish(&[stored(number)]).await;
    }
    rig.intake.add(1, engine.source()).unwrap();
    until("replayed", || rig.held(1, 0) == 5).await;
    // It does not say when a subscription has come; until then its messages go nowhere, and the replay fills them in.
    let mut number = 5;
    while rig.held(1, 0) < 40 {
        if number < 60 {
            engine.publish(&[stored(number)]).await;
            number += 1;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    until("all", || u64::from(rig.held(1, 0)) == number).await;
    assert_eq!(rig.placements(), number);
    let counts = rig.counts();
    assert_eq!((counts.skipped(), counts.cursor.restarts), (0, 0));
    assert_eq!(counts.cursor.applied, number);
}

/// Messages of a capture: for each, its parts. `None`, and a line that says so, where captures are not at hand.
fn capture(name: &str) -> Option<Vec<Vec<Bytes>>> {
    let path = format!(
        "{}/../../shared/fixtures/vllm/{name}.bin",
        env!("CARGO_MANIFEST_DIR")
    );
    let Ok(bytes) = std::fs::read(&path) else {
        eprintln!("skipped: no {name}.bin");
        return None;
    };
    let mut rest = Bytes::from(bytes);
    let mut messages = Vec::new();
    fn number(rest: &mut Bytes) -> usize {
        u32::from_be_bytes(rest.split_to(4).as_ref().try_into().unwrap()) as usize
    }
    while !rest.is_empty() {
        let parts = number(&mut rest);
        let part = |_| {
            let length = number(&mut rest);
            rest.split_to(length)
        };
        messages.push((0..parts).map(part).collect());
    }
    Some(messages)
}

/// What vLLM sent over its socket leaves over ours what it leaves when applied directly.
#[tokio::test]
async fn captured_traffic_over_a_socket_gives_the_same_index() {
    for name in [
        "kv_events",
        "kv_events_small_cache",
        "kv_events_duplicate_last_block",
        "kv_events_v020_array",
        "kv_events_vectors_sha256_cbor_seed0_bytes",
    ] {
        let Some(messages) = capture(name) else {
            continue;
        };
        let rig = rig();
        let engine = listening(&rig, None).await;
        let direct = Index::new(Config::default());
        let id = EndpointId {
            incarnation: 1,
            rank: 0,
        };
        direct.register(id, MODEL);
        for parts in &messages {
            engine.send(parts).await;
            let slices: Vec<&[u8]> = parts.iter().map(AsRef::as_ref).collect();
            let frame = parse_frames(&slices).unwrap();
            let batch = decode_batch(frame.payload, Dialect::Vllm, Limits::default()).unwrap();
            direct.apply(id, &batch).unwrap();
        }
        rig.until_frames(messages.len() as u64).await;
        let sorted = |index: &Index| {
            let mut copies = index.copies(id, 0);
            copies.sort_unstable();
            copies
        };
        let copies = sorted(&rig.index);
        assert_eq!(copies, sorted(&direct), "{name}");
        assert!(copies.iter().all(|(_, tier, _)| *tier == Tier::Device) && !copies.is_empty());
        let counts = rig.counts();
        assert_eq!((counts.skipped(), counts.cursor.gaps), (0, 0), "{name}");
        assert_eq!(counts.applied, direct.totals(id).unwrap(), "{name}");
    }
}
