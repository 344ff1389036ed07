//! One replica hears an engine from its first message, another one takes over what it heard.

use std::net::SocketAddr;

use wicketgate_kvindex::index::EndpointSnapshot;

use super::{engine::*, *};

const ID: EndpointId = EndpointId {
    incarnation: 1,
    rank: 0,
};

/// A replica that hears messages `0..count` of the first life, each a block of the chain; what it holds then.
async fn first(engine: &Publisher, count: u64) -> (Rig, EndpointSnapshot) {
    let rig = rig();
    rig.intake.add(1, at(engine.address, None)).unwrap();
    engine.until_heard(1).await;
    for number in 0..count {
        engine.publish(1, number, &[stored(number)]).await;
    }
    until("heard by the first", || u64::from(rig.held(1, 0)) == count).await;
    let snapshot = rig.index.export(ID).unwrap();
    assert_eq!(
        (snapshot.last, snapshot.since, snapshot.published),
        (count - 1, 0, clock(1, count - 1))
    );
    (rig, snapshot)
}

fn bare(snapshot: &EndpointSnapshot) -> Heard {
    Heard {
        snapshot: Arc::new(snapshot.clone()),
        vouched: None,
    }
}

/// A replica whose messages wait, on a connection that stands; the number of that connection.
async fn second(at: Source, engine: &Publisher, subscriptions: usize) -> (Rig, u64) {
    let rig = rig();
    rig.intake.hold(true);
    rig.intake.add(1, at).unwrap();
    engine.until_heard(subscriptions).await;
    until("connected", || rig.intake.stats().connected == 1).await;
    let connects = rig.intake.source(ID).unwrap().counts.connects;
    (rig, connects)
}

/// An address where nobody listens.
fn nowhere() -> SocketAddr {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap()
}

/// The engine has forgotten what it said first; the other replica has not.
#[tokio::test]
async fn with_a_replay_it_goes_on_exactly_behind_what_was_taken_over() {
    let engine = Publisher::start().await;
    let (_first, snapshot) = first(&engine, 5).await;
    let replay = Replay::start(100).await;
    for number in 4..7 {
        replay.remember(1, number, &[stored(number)]);
    }
    let (rig, _) = second(at(engine.address, Some(&replay)), &engine, 2).await;
    let adopted = rig.intake.adopt(ID, bare(&snapshot)).await;
    assert_eq!((adopted, rig.held(1, 0)), (Adopted::Taken(5), 7));
    rig.intake.hold(false);
    engine.publish(1, 7, &[stored(7)]).await;
    until("gone on", || rig.held(1, 0) == 8).await;
    // Asked at the adoption, and when the connection was looked at.
    assert_eq!(replay.asked(), [4, 6]);
    let cursor = rig.counts().cursor;
    assert_eq!((cursor.gaps, cursor.resets, cursor.restarts), (0, 0, 0));
    // Each block counts once: one removal is enough.
    engine.publish(1, 8, &[removed(4)]).await;
    until("removed", || rig.held(1, 0) == 4).await;
}

/// No stale credit: whatever else the engine has said since, or whoever it is now, nothing is taken over.
#[tokio::test]
async fn another_life_is_noticed_by_what_the_engine_repeats() {
    let engine = Publisher::start().await;
    let (_first, snapshot) = first(&engine, 5).await;
    type Said = &'static [(u32, u64)];
    let cases: [(Said, Adopted, u32); 5] = [
        // Nothing yet; less; as much; more than before.
        (&[], Adopted::OtherLife, 0),
        (&[(2, 0), (2, 1)], Adopted::OtherLife, 2),
        (
            &[(2, 0), (2, 1), (2, 2), (2, 3), (2, 4)],
            Adopted::OtherLife,
            5,
        ),
        // It may be the same, but it has forgotten so much that nobody can say.
        (&[(1, 5), (1, 6)], Adopted::OtherLife, 0),
        (&[(1, 4), (1, 5)], Adopted::Taken(5), 6),
    ];
    for (at_once, (said, want, held)) in (2..).zip(cases) {
        let replay = Replay::start(100).await;
        for (life, number) in said {
            replay.remember(*life, *number, &[stored(*number)]);
        }
        let (rig, _) = second(at(engine.address, Some(&replay)), &engine, at_once).await;
        let adopted = rig.intake.adopt(ID, bare(&snapshot)).await;
        assert_eq!(adopted, want, "{said:?}");
        if want == Adopted::OtherLife {
            assert_eq!((rig.placements(), rig.held(1, 0)), (0, 0), "{said:?}");
        }
        rig.intake.hold(false);
        until("started without it", || {
            let source = rig.intake.source(ID).unwrap();
            source.waiting == 0 && replay.asked().len() >= 2 && !source.catching_up
        })
        .await;
        assert_eq!(rig.held(1, 0), held, "{said:?}");
    }
}

#[tokio::test]
async fn a_replay_that_fails_leaves_everything_as_it_was() {
    let engine = Publisher::start().await;
    let (_first, snapshot) = first(&engine, 3).await;
    let source = Source::at(
        MODEL,
        "127.0.0.1",
        engine.address.port(),
        Some(nowhere().port()),
        1,
    );
    let (rig, connects) = second(source, &engine, 2).await;
    let heard = Heard {
        vouched: Some(connects),
        ..bare(&snapshot)
    };
    assert_eq!(rig.intake.adopt(ID, heard).await, Adopted::Unsure);
    assert_eq!((rig.placements(), rig.counts().replay_failures), (0, 1));
    let unknown = EndpointId {
        incarnation: 1,
        rank: 1,
    };
    let adopted = rig.intake.adopt(unknown, bare(&snapshot)).await;
    assert_eq!(adopted, Adopted::Silent);
}

/// Without a replay: our connection stood before the other one was asked, so what waits on it goes on without a gap.
#[tokio::test]
async fn without_a_replay_somebody_who_hears_the_engine_is_believed() {
    let engine = Publisher::start().await;
    let (first, _) = first(&engine, 3).await;
    let (rig, connects) = second(at(engine.address, None), &engine, 2).await;
    for number in 3..6 {
        engine.publish(1, number, &[stored(number)]).await;
    }
    until("heard by the first", || first.held(1, 0) == 6).await;
    let source = first.intake.source(ID).unwrap();
    assert!(source.heard, "{source:?}");
    let snapshot = first.index.export(ID).unwrap();
    engine.publish(1, 6, &[stored(6)]).await;
    // Nobody's word is not enough, nor that of somebody who was asked on an older connection.
    for vouched in [None, Some(connects - 1)] {
        let heard = Heard {
            vouched,
            ..bare(&snapshot)
        };
        assert_eq!(rig.intake.adopt(ID, heard).await, Adopted::Unsure);
        assert_eq!(rig.placements(), 0);
    }
    let heard = Heard {
        vouched: Some(connects),
        ..bare(&snapshot)
    };
    let adopted = rig.intake.adopt(ID, heard).await;
    assert_eq!((adopted, rig.held(1, 0)), (Adopted::Taken(6), 6));
    rig.intake.hold(false);
    until("gone on", || rig.held(1, 0) == 7).await;
    let cursor = rig.counts().cursor;
    assert_eq!(
        (cursor.duplicates, cursor.resets, cursor.restarts),
        (3, 0, 0)
    );
    // It speaks for itself from now on, and a gap forgets as ever.
    engine.publish(1, 9, &[stored(0)]).await;
    until("reset", || rig.held(1, 0) == 1).await;
    assert_eq!(rig.counts().cursor.resets, 1);
}

/// The connection on which it was to go on ends before any message: the engine may be another one.
#[tokio::test]
async fn what_was_believed_ends_with_the_connection() {
    let engine = Publisher::start().await;
    let (first, snapshot) = first(&engine, 3).await;
    let (rig, connects) = second(at(engine.address, None), &engine, 2).await;
    let heard = Heard {
        vouched: Some(connects),
        ..bare(&snapshot)
    };
    assert_eq!(rig.intake.adopt(ID, heard).await, Adopted::Taken(3));
    rig.intake.hold(false);
    until("looked at", || rig.intake.stats().waiting == 0).await;
    assert_eq!(rig.held(1, 0), 3);
    // It has heard nothing itself, so it vouches for nothing.
    assert!(!rig.intake.source(ID).unwrap().heard);
    let address = engine.address;
    engine.stop().await;
    until("gone", || !first.intake.source(ID).unwrap().heard).await;
    let _engine = Publisher::on(address).await;
    until("forgotten", || rig.placements() == 0).await;
}

/// Somebody who came late takes over what was before.
#[tokio::test]
async fn who_knows_less_takes_over_and_who_knows_as_much_does_not() {
    let engine = Publisher::start().await;
    let (first, early) = first(&engine, 3).await;
    let late = rig();
    late.intake.add(1, at(engine.address, None)).unwrap();
    engine.until_heard(2).await;
    for number in 3..5 {
        engine.publish(1, number, &[stored(number)]).await;
    }
    until("heard", || {
        let last = |rig: &Rig| rig.intake.source(ID).unwrap().last;
        last(&first) == Some(4) && last(&late) == Some(4)
    })
    .await;
    assert_eq!(late.held(1, 0), 0);
    // Messages 3 and 4 are not in it, and nobody repeats them.
    assert_eq!(late.intake.adopt(ID, bare(&early)).await, Adopted::Unsure);
    let now = first.index.export(ID).unwrap();
    let adopted = late.intake.adopt(ID, bare(&now)).await;
    assert_eq!((adopted, late.held(1, 0)), (Adopted::Taken(5), 5));
    for rig in [&first, &late] {
        assert_eq!(rig.intake.adopt(ID, bare(&now)).await, Adopted::Known);
    }
    engine.publish(1, 5, &[stored(5), removed(4)]).await;
    until("gone on", || late.held(1, 0) == 4).await;

    // The same with a replay, which need not be at the same message.
    let replay = Replay::start(100).await;
    for number in 2..5 {
        replay.remember(1, number, &[stored(number)]);
    }
    replay.remember(1, 5, &[stored(5), removed(4)]);
    let third = rig();
    third
        .intake
        .add(1, at(engine.address, Some(&replay)))
        .unwrap();
    engine.until_heard(3).await;
    until("replayed", || {
        third.intake.source(ID).unwrap().last == Some(5)
    })
    .await;
    assert_eq!(third.held(1, 0), 0);
    let adopted = third.intake.adopt(ID, bare(&early)).await;
    assert_eq!((adopted, third.held(1, 0)), (Adopted::Taken(3), 4));
    engine.publish(1, 6, &[stored(4)]).await;
    until("whole", || third.held(1, 0) == 6).await;
    // Blocks that cannot be taken leave nothing half known.
    let mut broken = early;
    broken.blocks.truncate(20);
    broken.since = 0;
    let fourth = rig();
    fourth
        .intake
        .add(1, at(engine.address, Some(&replay)))
        .unwrap();
    until("replayed", || {
        fourth.intake.source(ID).unwrap().last == Some(5)
    })
    .await;
    let adopted = fourth.intake.adopt(ID, bare(&broken)).await;
    assert!(matches!(adopted, Adopted::Refused(_)), "{adopted:?}");
    assert_eq!(fourth.held(1, 0), 0);
}
