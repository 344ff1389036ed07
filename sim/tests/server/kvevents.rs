//! KV events over ZMQ, read by sockets that are not ours.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use wicketgate_kvindex::events::{
    BlockExtras, Dialect, Event, Extra, GroupKind, Limits, Stored, Tier, decode_batch, parse_frames,
};
use wicketgate_sim::engine::{
    EngineConfig, EngineHandle, KvEventsConfig, KvPublisher, KvShape, spawn_with,
};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use crate::client::post;

async fn engine(
    change: impl FnOnce(&mut EngineConfig, &mut KvEventsConfig),
) -> (EngineHandle, Arc<KvPublisher>) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut config = EngineConfig::instant("m");
    let mut events = KvEventsConfig {
        replay: Some(any),
        ..KvEventsConfig::at(any, "kv@pod@m".to_owned())
    };
    change(&mut config, &mut events);
    events.loras.clone_from(&config.loras);
    events.block_size = config.block_size;
    let publisher = Arc::new(KvPublisher::start(events).await.unwrap());
    let listener = TcpListener::bind(any).await.unwrap();
    let engine = spawn_with(listener, config, Some(publisher.clone())).unwrap();
    (engine, publisher)
}

async fn complete(engine: &EngineHandle, body: &Value) {
    let reply = post(engine.address(), "/v1/completions", body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
}

/// Messages that a replay from `from` brings, until its end.
async fn replayed(publisher: &KvPublisher, from: u64) -> Vec<Vec<Bytes>> {
    let mut dealer = DealerSocket::new();
    let address = format!("tcp://{}", publisher.replay().unwrap());
    dealer.connect(&address).await.unwrap();
    let request = vec![Bytes::new(), from.to_be_bytes().to_vec().into()];
    dealer
        .send(ZmqMessage::try_from(request).unwrap())
        .await
        .unwrap();
    let mut messages = Vec::new();
    loop {
        let mut parts = dealer.recv().await.unwrap().into_vec();
        assert_eq!((parts.len(), parts.remove(0).len()), (4, 0));
        if parts[1][..] == u64::MAX.to_be_bytes() {
            assert!(parts[0].is_empty() && parts[2].is_empty());
            return messages;
        }
        messages.push(parts);
    }
}

/// The events of a message that must be number `sequence`.
fn events(parts: &[Bytes], sequence: u64) -> Vec<Event> {
    let slices: Vec<&[u8]> = parts.iter().map(AsRef::as_ref).collect();
    let frame = parse_frames(&slices).unwrap();
    assert_eq!((frame.topic, frame.sequence), (&b"kv@pod@m"[..], sequence));
    let batch = decode_batch(frame.payload, Dialect::Vllm, Limits::default()).unwrap();
    let odd = (batch.unknown, batch.malformed, batch.unknown_fields);
    assert_eq!((odd, batch.rank), ((0, 0, 0), Some(0)));
    assert!(batch.published > 1.7e9);
    batch.events
}

fn text(keys: &[&str]) -> Vec<Extra> {
    keys.iter()
        .map(|key| Extra::Text((*key).to_owned()))
        .collect()
}

#[tokio::test]
async fn both_shapes_say_the_same_and_all_that_the_cache_did() {
    let mut all = Vec::new();
    for kv_shape in [KvShape::Map, KvShape::Array] {
        let (engine, publisher) = engine(|config, events| {
            config.loras = vec!["food".to_owned(), "law".to_owned()];
            config.num_blocks = 7;
            events.shape = kv_shape;
        })
        .await;
        let prompt: Vec<u32> = (0..33).map(|at| 70_000 + at).collect();
        complete(&engine, &json!({"prompt": prompt, "max_tokens": 1})).await;
        let salted = json!({"model": "law", "prompt": prompt, "max_tokens": 1, "cache_salt": "s"});
        complete(&engine, &salted).await;
        // Five blocks of six: two of the first prompt's and one of the second's must go.
        complete(&engine, &json!({"prompt": vec![9; 80], "max_tokens": 1})).await;
        post(engine.address(), "/reset_prefix_cache", &json!({})).await;
        complete(&engine, &json!({"prompt": vec![8; 17], "max_tokens": 1})).await;
        let messages = replayed(&publisher, 0).await;
        assert_eq!(messages.len() as u64, publisher.published());
        let events: Vec<Vec<Event>> = (0..)
            .zip(&messages)
            .map(|(at, parts)| events(parts, at))
            .collect();
        all.push(events);
    }
    assert_eq!(all[0], all[1]);
    let events = &all[0];
    let Event::Stored(first) = &events[0][0] else {
        panic!("{events:?}");
    };
    let expected = Stored {
        hashes: first.hashes.clone(),
        tokens: (0..32).map(|at| 70_000 + at).collect(),
        block_size: 16,
        kind: GroupKind::Full,
        ..Stored::default()
    };
    assert_eq!((first, first.hashes.len()), (&expected, 2));
    let Event::Stored(second) = &events[1][0] else {
        panic!("{events:?}");
    };
    assert_eq!(
        (second.adapter.as_deref(), second.adapter_id),
        (Some("law"), Some(2))
    );
    let extras = [(0, text(&["law", "s"])), (1, text(&["law"]))];
    let extras = extras.map(|(block, extras)| BlockExtras { block, extras });
    assert_eq!(second.extras, extras);
    // Removals come before what takes their place, one event for each block.
    let removals = events[2].iter().take_while(|event| {
        matches!(event, Event::Removed(removed) if removed.tier == Tier::Device && removed.hashes.len() == 1)
    });
    assert_eq!(removals.count() + 1, events[2].len());
    assert!(matches!(events[2].last(), Some(Event::Stored(stored)) if stored.hashes.len() == 5));
    assert_eq!(events[3][0], Event::Cleared);
    assert_eq!((events.len(), events[3].len()), (4, 2));
}

#[tokio::test]
async fn a_replay_begins_where_it_is_asked_to_and_remembers_only_so_much() {
    let (engine, publisher) = engine(|_, events| events.remembered = 3).await;
    for at in 0..5 {
        complete(&engine, &json!({"prompt": vec![at; 17], "max_tokens": 1})).await;
    }
    let numbers = |messages: Vec<Vec<Bytes>>| -> Vec<u8> {
        messages.iter().map(|parts| parts[1][7]).collect()
    };
    assert_eq!(numbers(replayed(&publisher, 0).await), [2, 3, 4]);
    assert_eq!(numbers(replayed(&publisher, 4).await), [4]);
    assert_eq!(numbers(replayed(&publisher, 5).await), [0; 0]);
}

/// A publisher that connects keeps its messages until somebody is there, and they are those of a replay.
#[tokio::test]
async fn what_is_sent_live_is_what_a_replay_repeats() {
    let mut subscriber = SubSocket::new();
    // A free port, held by nobody until the engine has said something.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = free.local_addr().unwrap();
    drop(free);
    let (engine, publisher) = engine(|_, events| {
        events.events = here;
        events.connect = true;
    })
    .await;
    for at in 0..3 {
        complete(&engine, &json!({"prompt": vec![at; 17], "max_tokens": 1})).await;
    }
    subscriber.bind(&format!("tcp://{here}")).await.unwrap();
    subscriber.subscribe("kv@").await.unwrap();
    let expected = replayed(&publisher, 0).await;
    assert_eq!(expected.len(), 3);
    for parts in expected {
        assert_eq!(subscriber.recv().await.unwrap().into_vec(), parts);
    }
}

/// Messages that are lost on the way have numbers, and a replay has them.
#[tokio::test]
async fn lost_messages_leave_a_gap() {
    let (engine, publisher) = engine(|_, _| {}).await;
    let mut subscriber = SubSocket::new();
    subscriber
        .connect(&format!("tcp://{}", publisher.events()))
        .await
        .unwrap();
    subscriber.subscribe("").await.unwrap();
    let mut prompt = 0;
    let mut next = async || {
        prompt += 1;
        complete(
            &engine,
            &json!({"prompt": vec![prompt; 17], "max_tokens": 1}),
        )
        .await;
        publisher.published() - 1
    };
    // Nobody says when a subscription has come.
    let heard = loop {
        next().await;
        tokio::select! {
            heard = subscriber.recv() => break heard.unwrap().into_vec(),
            () = tokio::time::sleep(std::time::Duration::from_millis(5)) => {}
        }
    };
    let mut last = heard[1][7];
    publisher.lose(2);
    next().await;
    let lost = next().await as u8;
    next().await;
    loop {
        let number = subscriber.recv().await.unwrap().into_vec()[1][7];
        if number != last + 1 {
            assert_eq!((last + 2, number), (lost, lost + 1));
            break;
        }
        last = number;
    }
    let all = replayed(&publisher, 0).await;
    assert_eq!(all.len() as u64, publisher.published());
}
