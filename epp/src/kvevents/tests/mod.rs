//! Intake against publishers on real sockets. Blocks are those of one chain: see `engine`.

mod adopt;
mod engine;
mod foreign;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use wicketgate_kvindex::{
    index::{Config, EndpointId, Index, Matches},
    keys::{
        Scope,
        engine::{Checked, HashScheme},
    },
};

use super::*;
use crate::engine::{Line, Reach};
use engine::{
    Publisher, Replay, caller, cleared, message, payload, prompt, removed, stored, until,
};

const MODEL: &str = "m";

struct Rig {
    intake: Intake,
    index: Arc<Index>,
}

fn rig() -> Rig {
    rig_with(|_| {})
}

fn rig_with(change: impl FnOnce(&mut IntakeConfig)) -> Rig {
    let mut config = IntakeConfig {
        pause: (Duration::from_millis(5), Duration::from_millis(50)),
        // A test that waits for it has failed.
        replay_idle: Duration::from_secs(60),
        ..IntakeConfig::default()
    };
    change(&mut config);
    let index = Arc::new(Index::new(Config::default()));
    Rig {
        intake: Intake::new(config, Arc::clone(&index)),
        index,
    }
}

impl Rig {
    /// Blocks of the chain that a rank holds without a hole.
    fn held(&self, incarnation: u64, rank: u32) -> u32 {
        let scope = Scope {
            model: MODEL,
            domain: None,
        };
        let mut keys = Vec::new();
        let space = self.index.config().keys;
        space.prompt(scope, &prompt(64), &[], &mut keys);
        let mut matches = Matches::new();
        self.index.lookup(&keys, &mut matches);
        let id = EndpointId { incarnation, rank };
        let found = matches.iter().find(|found| found.endpoint == id);
        found.map_or(0, |found| found.blocks[0])
    }

    fn placements(&self) -> u64 {
        self.index.stats().placements
    }

    fn counts(&self) -> Counts {
        self.intake.stats().counts
    }

    async fn until_frames(&self, frames: u64) {
        until("received", || {
            let stats = self.intake.stats();
            stats.counts.frames >= frames && stats.waiting == 0 && stats.catching_up == 0
        })
        .await;
    }
}

fn at(events: SocketAddr, replay: Option<&Replay>) -> Source {
    let replay = replay.map(|replay| replay.address.port());
    Source::at(MODEL, "127.0.0.1", events.port(), replay, 1)
}

async fn listening(rig: &Rig, replay: Option<&Replay>) -> Publisher {
    let publisher = Publisher::start().await;
    rig.intake.add(1, at(publisher.address, replay)).unwrap();
    publisher.until_heard(1).await;
    publisher
}

/// Field case C30, with everything odd between.
#[tokio::test]
async fn without_a_replay_gaps_and_restarts_forget_and_odd_messages_are_skipped() {
    let rig = rig();
    let engine = listening(&rig, None).await;
    engine.publish(1, 5, &[stored(0)]).await;
    engine.publish(1, 6, &[stored(1)]).await;
    rig.until_frames(2).await;
    assert_eq!(rig.held(1, 0), 2);

    let part = Bytes::from_static;
    engine.send(&[part(b"t"), part(b"12345678")]).await;
    engine
        .send(&[part(b"t"), part(b"12345678"), part(b"x"), part(b"y")])
        .await;
    engine
        .send(&[part(b"t"), part(b"1234567"), part(b"x")])
        .await;
    engine.send(&message("t", 7, Vec::new())).await;
    engine.send(&message("t", 7, vec![0xc1])).await;
    rig.until_frames(7).await;
    let counts = rig.counts();
    assert_eq!(
        (counts.bad_frames, counts.bad_batches, counts.skipped()),
        (4, 1, 5)
    );
    assert_eq!(rig.held(1, 0), 2);

    // An event of an unknown kind, one with a field too many, and one as a map beside a good one.
    let unknown = [&[0x92, 0xa4][..], b"Evnt", &[1]].concat();
    let mut long = stored(2);
    long[0] = 0x9e;
    long.extend([0xc0; 8]);
    let map = [&[0x81, 0xa4][..], b"type", &[0xb0], b"AllBlocksCleared"].concat();
    engine.publish(1, 7, &[unknown, long]).await;
    rig.until_frames(8).await;
    assert_eq!((rig.held(1, 0), rig.counts().unknown_events), (3, 1));
    engine.publish(1, 8, &[map, stored(0)]).await;
    rig.until_frames(9).await;
    assert_eq!((rig.held(1, 0), rig.placements()), (1, 1));

    // A gap: everything before it is forgotten. A copy and a late one change nothing.
    engine.publish(1, 11, &[stored(0), stored(1)]).await;
    engine.publish(1, 11, &[stored(0), stored(1)]).await;
    engine.publish(1, 9, &[removed(0)]).await;
    rig.until_frames(12).await;
    assert_eq!((rig.held(1, 0), rig.placements()), (2, 2));
    let cursor = rig.counts().cursor;
    assert_eq!((cursor.gaps, cursor.resets, cursor.duplicates), (1, 1, 2));

    // A restart: only what the new life says counts.
    engine.publish(2, 0, &[stored(0)]).await;
    rig.until_frames(13).await;
    assert_eq!((rig.held(1, 0), rig.placements()), (1, 1));
    let stats = rig.intake.stats();
    assert_eq!(
        (stats.counts.cursor.restarts, stats.counts.cursor.replays),
        (1, 0)
    );
    assert_eq!(rig.intake.sources()[0].last, Some(0));
    engine.publish(2, 1, &[cleared()]).await;
    rig.until_frames(14).await;
    assert_eq!(rig.placements(), 0);
}

#[tokio::test]
async fn a_replay_brings_what_was_before_and_fills_a_gap_without_forgetting() {
    let rig = rig();
    let replay = Replay::start(100).await;
    for number in 0..3 {
        replay.remember(1, number, &[stored(number)]);
    }
    let engine = listening(&rig, Some(&replay)).await;
    until("warm", || rig.held(1, 0) == 3).await;
    // 3 and 4 are lost on the way.
    for number in 3..6 {
        replay.remember(1, number, &[stored(number)]);
    }
    engine.publish(1, 5, &[stored(5)]).await;
    engine.publish(1, 6, &[stored(6)]).await;
    until("filled", || rig.held(1, 0) == 7).await;
    assert_eq!(replay.asked(), [0, 3]);
    let counts = rig.counts();
    assert_eq!((counts.cursor.gaps, counts.cursor.replays), (1, 2));
    assert_eq!((counts.cursor.resets, counts.cursor.restarts), (0, 0));
    assert_eq!((counts.replayed, counts.replay_failures), (6, 0));
    // Each block counts once although 5 came twice: one removal is enough.
    engine.publish(1, 7, &[removed(5)]).await;
    until("removed", || rig.held(1, 0) == 5).await;
}

/// The live messages that a replay repeats are no restart, however many wait.
#[tokio::test]
async fn what_waits_during_a_replay_is_bounded_and_overlaps_harmlessly() {
    let rig = rig_with(|config| config.queue_messages = 4);
    let replay = Replay::start(1).await;
    replay.remember(1, 0, &[stored(0)]);
    let engine = listening(&rig, Some(&replay)).await;
    until("started", || rig.held(1, 0) == 1).await;
    for number in 1..40 {
        replay.remember(1, number, &[stored(number)]);
    }
    // The first one shows a gap; the replay has no permit, so the others wait.
    for number in 2..40 {
        engine.publish(1, number, &[stored(number)]).await;
    }
    until("full", || rig.intake.stats().waiting == 4 + 1).await;
    assert_eq!((rig.placements(), replay.asked()), (1, vec![0, 1]));
    replay.permits.add_permits(100);
    until("filled", || rig.held(1, 0) == 40).await;
    rig.until_frames(78).await;
    let counts = rig.counts();
    assert_eq!((counts.cursor.restarts, counts.cursor.resets), (0, 0));
    assert_eq!((counts.cursor.applied, counts.cursor.duplicates), (40, 38));
    engine.publish(1, 40, &[stored(40)]).await;
    until("live again", || rig.held(1, 0) == 41).await;
}

#[tokio::test]
async fn a_message_longer_than_the_queue_waits_alone() {
    let rig = rig_with(|config| config.queue_bytes = 64);
    let engine = listening(&rig, None).await;
    for number in 0..20 {
        engine.publish(1, number, &[stored(number)]).await;
    }
    until("applied", || rig.held(1, 0) == 20).await;
}

#[tokio::test]
async fn a_replay_that_lost_some_forgets_first_and_one_that_fails_is_not_asked_again_at_once() {
    let rig = rig();
    let replay = Replay::start(100).await;
    let engine = listening(&rig, Some(&replay)).await;
    engine.publish(1, 0, &[stored(0), stored(1)]).await;
    until("started", || rig.held(1, 0) == 2).await;
    // 1 and 2 are in nobody's memory.
    for number in 3..5 {
        replay.remember(1, number, &[stored(number - 3)]);
    }
    engine.publish(1, 4, &[stored(1)]).await;
    until("reset", || rig.counts().cursor.resets == 1).await;
    rig.until_frames(4).await;
    assert_eq!((rig.held(1, 0), rig.placements()), (2, 2));

    drop(replay);
    engine.publish(1, 9, &[stored(0)]).await;
    until("given up", || rig.counts().replay_failures == 1).await;
    until("reset", || rig.counts().cursor.resets == 2).await;
    assert_eq!(rig.placements(), 1);
    engine.publish(1, 12, &[stored(0), stored(1)]).await;
    until("went on", || rig.held(1, 0) == 2).await;
    assert_eq!(rig.counts().replay_failures, 1);
}

#[tokio::test]
async fn an_engine_that_restarts_on_its_port_is_followed() {
    for with_replay in [false, true] {
        let rig = rig();
        let replay = Replay::start(100).await;
        let engine = listening(&rig, with_replay.then_some(&replay)).await;
        for number in 0..3 {
            replay.remember(1, number, &[stored(number)]);
            engine.publish(1, number, &[stored(number)]).await;
        }
        until("filled", || rig.held(1, 0) == 3).await;
        let address = engine.address;
        engine.stop().await;
        replay.memory.lock().messages.clear();
        replay.remember(2, 0, &[stored(0)]);
        let engine = Publisher::on(address).await;
        engine.until_heard(1).await;
        engine.publish(2, 1, &[stored(1)]).await;
        // With a replay the new life is known whole; without one its first message is missing, so nothing fits.
        let expected = if with_replay { 2 } else { 0 };
        until("followed", || {
            let counts = rig.counts();
            counts.cursor.restarts == 1 && rig.held(1, 0) == expected
        })
        .await;
        assert!(rig.intake.stats().connected == 1 && rig.counts().connects == 2);
    }
}

/// Field case C32: what belonged to a life ends with it.
#[tokio::test]
async fn a_life_that_is_removed_leaves_nothing_and_its_address_starts_empty() {
    let rig = rig();
    let engine = listening(&rig, None).await;
    let events: Vec<_> = (0..10).map(stored).collect();
    engine.publish(1, 0, &events).await;
    until("filled", || rig.held(1, 0) == 10).await;
    assert!(matches!(
        rig.intake.add(1, at(engine.address, None)),
        Err(IntakeError::Known(1))
    ));
    assert!(rig.intake.remove(1) && !rig.intake.remove(1));
    assert_eq!((rig.placements(), rig.index.stats().endpoints), (0, 0));
    engine.publish(1, 1, &[stored(10)]).await;
    assert_eq!(rig.placements(), 0);

    rig.intake.add(2, at(engine.address, None)).unwrap();
    assert_eq!(rig.held(2, 0), 0);
    engine.until_heard(2).await;
    engine.publish(1, 2, &[stored(0)]).await;
    until("filled", || rig.held(2, 0) == 1).await;
    assert_eq!((rig.held(1, 0), rig.placements()), (0, 1));
    // Counts of the life that is gone stay in the sums.
    assert_eq!(rig.counts().events, 11);
}

#[tokio::test]
async fn ranks_have_ports_of_their_own_and_are_told_apart() {
    let rig = rig();
    let (first, second) = (Publisher::start().await, Publisher::start().await);
    let mut source = at(first.address, None);
    source.ranks.extend(at(second.address, None).ranks);
    assert!(matches!(
        rig.intake.add(1, source.clone()),
        Err(IntakeError::Ranks)
    ));
    source.ranks[1].rank = 1;
    rig.intake.add(1, source).unwrap();
    first.until_heard(1).await;
    second.until_heard(1).await;
    first.publish(1, 0, &[stored(0)]).await;
    second.publish(1, 0, &[stored(0), stored(1)]).await;
    until("both", || rig.held(1, 0) == 1 && rig.held(1, 1) == 2).await;
    assert_eq!(rig.intake.stats().sources, 2);
    let ports = Source::at("m", "::1", 5557, Some(5600), 2).ranks;
    assert_eq!(ports[1].events, Events::Connect("[::1]:5558".to_owned()));
    assert_eq!(ports[1].replay.as_deref(), Some("[::1]:5601"));
}

#[tokio::test]
async fn an_engine_that_is_not_there_yet_is_dialled_until_it_is() {
    let rig = rig();
    let gone = Publisher::start().await;
    let address = gone.address;
    gone.stop().await;
    rig.intake.add(1, at(address, None)).unwrap();
    until("tried", || rig.counts().failures >= 3).await;
    assert_eq!(rig.intake.stats().connected, 0);
    let engine = Publisher::on(address).await;
    engine.until_heard(1).await;
    engine.publish(1, 0, &[stored(0)]).await;
    until("heard", || rig.held(1, 0) == 1).await;
}

fn free() -> SocketAddr {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    port.local_addr().unwrap()
}

#[tokio::test]
async fn an_engine_may_connect_to_us_and_the_newest_connection_is_the_one() {
    let rig = rig();
    let mut source = at(free(), None);
    let here = free();
    source.ranks[0].events = Events::Listen {
        at: here,
        from: Some("127.0.0.1".parse().unwrap()),
    };
    rig.intake.add(1, source.clone()).unwrap();
    assert!(matches!(
        rig.intake.add(2, source.clone()),
        Err(IntakeError::Listen { .. })
    ));
    let send = |life, sequence, events: &[Vec<u8>]| {
        message(
            "t",
            sequence,
            payload(engine::clock(life, sequence), events),
        )
    };
    let mut old = caller(here).await;
    old.send(&send(1, 0, &[stored(0)])).await.unwrap();
    until("heard", || rig.held(1, 0) == 1).await;
    let mut new = caller(here).await;
    until("taken over", || rig.counts().connects == 2).await;
    // What the leftover still says is not heard.
    old.send(&send(1, 1, &[stored(1)])).await.unwrap();
    until("closed", || {
        rig.intake.stats().connected == 1 && rig.counts().failures == 1
    })
    .await;
    new.send(&send(2, 0, &[stored(0)])).await.unwrap();
    until("restarted", || rig.counts().cursor.restarts == 1).await;
    new.send(&send(2, 1, &[stored(1)])).await.unwrap();
    until("heard", || rig.held(1, 0) == 2).await;

    // A stranger is not let in, and the port is free again when the endpoint goes.
    rig.intake.remove(1);
    if let Events::Listen { from, .. } = &mut source.ranks[0].events {
        *from = Some("127.0.0.9".parse().unwrap());
    }
    until("free", || rig.intake.add(3, source.clone()).is_ok()).await;
    let stream = tokio::net::TcpStream::connect(here).await.unwrap();
    let (read, write) = stream.into_split();
    let limits = wicketgate_zmtp::Limits::default();
    let greeted = wicketgate_zmtp::handshake(read, write, wicketgate_zmtp::Role::Pub, limits);
    assert!(greeted.await.is_err());
}

#[tokio::test]
async fn engines_that_share_a_port_are_told_apart_by_their_topics() {
    let rig = rig();
    let here = rig.intake.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    for (incarnation, name) in [(1, "10.0.0.1:8000"), (2, "pod-b"), (3, "odd topic")] {
        let mut source = at(free(), None);
        source.ranks[0].events = Events::Topic(name.to_owned());
        rig.intake.add(incarnation, source).unwrap();
    }
    let send = |topic: &str, sequence, number| {
        message(
            topic,
            sequence,
            payload(engine::clock(1, sequence), &[stored(number)]),
        )
    };
    let mut a = caller(here).await;
    let mut b = caller(here).await;
    let mut c = caller(here).await;
    a.send(&send("kv@10.0.0.1:8000@m@x", 0, 0)).await.unwrap();
    a.send(&send("kv@10.0.0.1:8000@m@x", 1, 1)).await.unwrap();
    b.send(&send("kv@pod-b@m", 0, 0)).await.unwrap();
    c.send(&send("odd topic", 0, 0)).await.unwrap();
    until("heard", || {
        (rig.held(1, 0), rig.held(2, 0), rig.held(3, 0)) == (2, 1, 1)
    })
    .await;
    rig.intake.remove(2);
    b.send(&send("kv@pod-b@m", 1, 1)).await.unwrap();
    b.send(&send("kv@pod-b@m", 2, 2)).await.unwrap();
    let mut d = caller(here).await;
    d.send(&send("kv@pod-d@m", 0, 0)).await.unwrap();
    until("strays", || rig.intake.stats().strays >= 2).await;
    assert_eq!((rig.held(2, 0), rig.intake.stats().sources), (0, 2));
}

/// Says on one connection after the other where an engine publishes.
async fn page(publishers: Vec<String>) -> SocketAddr {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ranks = publishers.iter().enumerate().map(|(rank, endpoint)| {
        format!(r#""{rank}":{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"{endpoint}"}}"#)
    });
    let body = format!("{{{}}}", ranks.collect::<Vec<_>>().join(","));
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            let length = body.len();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    address
}

/// An engine that let the system choose its port says its own address, as one does that connects to us: whoever listens
/// there tells which it is.
#[tokio::test]
async fn an_address_is_the_engines_own_if_a_publisher_listens_there() {
    let engine = Publisher::start().await;
    let other = rig();
    let ours = other.intake.listen("127.0.0.1:0".parse().unwrap());
    let (nobody, ours) = (free(), ours.unwrap());
    let endpoints = [engine.address, nobody, ours].map(|at| format!("tcp://{at}"));
    let page = page(endpoints.into()).await;
    let line = Line::new(page.to_string().into(), Reach::default());
    let ranks = discover(&line, "127.0.0.1", Duration::from_secs(20))
        .await
        .unwrap();
    let found: Vec<Events> = ranks.into_iter().map(|rank| rank.events).collect();
    let listen = |at| Events::Listen { at, from: None };
    let expected = [
        Events::Connect(engine.address.to_string()),
        listen(nobody),
        listen(ours),
    ];
    assert_eq!(found, expected);
}

/// A new engine that has nothing to repeat yet shows by that that it is new: what the old one had is forgotten at once.
#[tokio::test]
async fn an_engine_that_has_said_nothing_since_its_restart_holds_nothing() {
    let rig = rig();
    let replay = Replay::start(9).await;
    let engine = Publisher::start().await;
    let address = engine.address;
    rig.intake.add(1, at(address, Some(&replay))).unwrap();
    engine.until_heard(1).await;
    engine.publish(1, 0, &[stored(0), stored(1)]).await;
    replay.remember(1, 0, &[stored(0), stored(1)]);
    until("heard", || rig.held(1, 0) == 2).await;
    // The same engine on a new connection.
    engine.stop().await;
    let again = Publisher::on(address).await;
    again.until_heard(1).await;
    until("asked", || replay.asked() == [0, 0]).await;
    until("caught up", || rig.intake.stats().catching_up == 0).await;
    assert_eq!((rig.held(1, 0), rig.counts().cursor.restarts), (2, 0));
    // Another one.
    again.stop().await;
    replay.memory.lock().messages.clear();
    let _new = Publisher::on(address).await;
    until("forgotten", || rig.held(1, 0) == 0).await;
    assert_eq!(rig.counts().cursor.restarts, 1);
}

/// The blocks of these tests are named by number, so no scheme reproduces them.
#[tokio::test]
async fn published_hashes_are_checked_where_that_is_asked_for() {
    let rig = rig_with(|config| config.hash_check = Some(HashScheme::Sglang));
    let engine = listening(&rig, None).await;
    engine.publish(1, 0, &[stored(0), stored(1)]).await;
    rig.until_frames(1).await;
    let expected = Checked {
        same: 0,
        different: 1,
        untold: 1,
    };
    assert_eq!(rig.counts().hashes, expected);
    assert_eq!(rig.held(1, 0), 2, "the index goes by what is published");
}
