//! What happens to engines and to the way to them while `serve` goes on: afterwards the index is right again.

use std::sync::Arc;

use serde_json::{Value, json};
use wicketgate_testkit::{eventually, free_address};

use crate::{
    engine::{Engine, MODEL, Vllm},
    relay::{End, Relay},
    rig::{Done, Events, Rig, Talk},
};

/// A prompt that nobody has sent before, for one block of the engine and a second one that it answers.
fn fresh() -> Value {
    let ids: Vec<u32> = (0..40).map(|_| fastrand::u32(..100_000)).collect();
    json!({"model": MODEL, "prompt": ids, "max_tokens": 34, "ignore_eos": true, "return_token_ids": true})
}

/// Lets each engine compute something that does not come through `serve`.
async fn computed(engines: &[Engine; 2]) -> Vec<Done> {
    let mut all = Vec::new();
    for (at, engine) in engines.iter().enumerate() {
        all.push(Done::read(at, &engine.complete(&fresh()).await));
    }
    all
}

/// Empties the caches. Engines tell of it with their next step.
async fn reset(engines: &[Engine; 2]) {
    for engine in engines {
        let answer = engine.post("/reset_prefix_cache", &json!({})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

async fn talks(rig: &Rig, count: u64, turns: usize, when: &str) -> Vec<Talk> {
    let mut talks: Vec<Talk> = (0..count)
        .map(|_| Talk::new(fastrand::u64(1 << 32..1 << 48), None))
        .collect();
    for _ in 0..turns {
        for talk in &mut talks {
            talk.exact_turn(rig, when).await;
        }
    }
    talks
}

/// Nobody has anything of these talks; from their second turn on there are hits again.
async fn begin_anew(rig: &Rig, talks: &mut [Talk], when: &str) -> u64 {
    for talk in &mut *talks {
        let (credits, done) = talk.turn(rig).await;
        assert_eq!((credits, done.cached), ([0, 0], 0), "{when}");
    }
    let mut hits = 0;
    for talk in talks {
        let cached = talk.exact_turn(rig, when).await;
        assert!(cached > 0, "{when}");
        hits += cached;
    }
    hits
}

/// A reset of the caches, then new engines on the old ports: one publishes on another port than before.
pub(crate) async fn restart(vllm: &Arc<Vllm>, engines: &mut [Engine; 2]) -> Vec<String> {
    let rig = Rig::start(vllm, engines, &Events::Discover, 16).await;
    rig.listens().await;
    let mut talks = talks(&rig, 4, 2, "before a reset").await;
    reset(engines).await;
    for done in computed(engines).await {
        rig.told(&done).await;
    }
    let hits = begin_anew(&rig, &mut talks, "after a reset").await;
    let reset = format!(
        "reset of the prefix cache: nothing is credited after it, then what is cached ({hits} tokens)"
    );

    for engine in engines.iter_mut() {
        engine.kill().await;
        engine.begin();
    }
    for engine in engines.iter_mut() {
        engine.ready().await;
    }
    // Nobody has told anything yet: that these are others shows in their metrics, and where they repeat events.
    for talk in &talks {
        eventually("the old engines' blocks to be forgotten", || async {
            (rig.credits(&talk.body).await == [0, 0]).then_some(())
        })
        .await;
    }
    eventually("both engines to be seen again", || async {
        let rows = rig.front.view("/debug/endpoints").await;
        let rows = rows["main"].as_array().unwrap().clone();
        rows.iter()
            .all(|row| row["scrape_failures"] == 0)
            .then_some(())
    })
    .await;
    let hits = begin_anew(&rig, &mut talks, "after a restart").await;
    rig.assert_understood().await;
    let restart = format!(
        "restart of both engines: the old blocks are forgotten before the new ones say a word, then what is cached is \
         credited ({hits} tokens)"
    );
    vec![reset, restart]
}

/// A picker that comes late, and a cut of the stream while engines compute: replays bring what was missed.
pub(crate) async fn cut_with_a_replay(vllm: &Arc<Vllm>, engines: &[Engine; 2]) -> String {
    let before = computed(engines).await;
    let ports = [free_address(), free_address()];
    let relays = relays(engines, ports.map(End::Listen)).await;
    let rig = Rig::start(vllm, engines, &Events::Connect(ports), 16).await;
    rig.listens().await;
    for done in &before {
        rig.told(done).await;
    }
    let mut talks = talks(&rig, 4, 2, "over a relay").await;
    let mut missed = 0;
    for round in 0..3 {
        relays.iter().for_each(Relay::cut);
        eventually("the cut to be seen", || async {
            (connected(&rig).await == 0).then_some(())
        })
        .await;
        let during = computed(engines).await;
        relays.iter().for_each(Relay::restore);
        for done in &during {
            rig.told(done).await;
            missed += done.computed.len();
        }
        for talk in &mut talks {
            let cached = talk.exact_turn(&rig, &format!("after cut {round}")).await;
            assert!(cached > 0, "after cut {round}");
        }
    }
    rig.assert_understood().await;
    assert_eq!(rig.count("resets").await, 0);
    format!(
        "three cuts of the events, with replays: {missed} tokens computed meanwhile are known without a new event, and \
         {} follow-ups are exact",
        3 * talks.len()
    )
}

/// The same without replays: engines come to us, and what they say while cut may be lost.
pub(crate) async fn cut_without_a_replay(vllm: &Arc<Vllm>, engines: &[Engine; 2]) -> String {
    let port = free_address();
    let relays = relays(engines, [End::Dial(port); 2]).await;
    let rig = Rig::start(vllm, engines, &Events::Listen(port), 32).await;
    heard(&rig, engines).await;
    // What engines said before is unknown here; from a reset on everything is known.
    reset(engines).await;
    heard(&rig, engines).await;
    let mut talks = talks(&rig, 4, 2, "engines that come to us").await;

    // Nothing is said meanwhile, so nothing is lost.
    relays.iter().for_each(Relay::cut);
    eventually("the cut to be seen", || async {
        (connected(&rig).await == 0).then_some(())
    })
    .await;
    relays.iter().for_each(Relay::restore);
    for talk in &talks {
        let credits = rig.credits(&talk.body).await;
        assert!(credits.iter().any(|credit| *credit > 0), "{credits:?}");
    }
    let resets = rig.count("resets").await;

    // Something is: of that engine all is forgotten, and never too much known.
    relays.iter().for_each(Relay::cut);
    computed(engines).await;
    relays.iter().for_each(Relay::restore);
    heard(&rig, engines).await;
    assert!(rig.count("resets").await > resets, "nothing was lost");
    for talk in &mut talks {
        talk.ask();
        let credits = rig.credits(&talk.body).await;
        let (at, answer) = rig.chat(&talk.body).await;
        let cached = Done::read(at, &answer).cached;
        assert!(
            credits[at] <= cached,
            "{credits:?} at {at}, {cached} cached"
        );
    }
    let mut others = self::talks(&rig, 4, 3, "new talks after a cut").await;
    // Another reset, and the old ones are known again too.
    reset(engines).await;
    heard(&rig, engines).await;
    others.append(&mut talks);
    for talk in &mut others {
        talk.exact_turn(&rig, "after a cut and a reset").await;
        let cached = talk.exact_turn(&rig, "after a cut and a reset").await;
        assert!(cached > 0, "after a cut and a reset");
    }
    rig.assert_understood().await;
    format!(
        "cuts of the events, without replays: of what was said before never too much is credited, {} new talks and, \
         after a reset, all {} are exact",
        4,
        others.len()
    )
}

/// Relays from the engines' events to these ends.
async fn relays(engines: &[Engine; 2], ours: [End; 2]) -> Vec<Relay> {
    let mut all = Vec::new();
    for (engine, ours) in engines.iter().zip(ours) {
        let end = match engine.listens().await {
            Ok(at) => End::Dial(at),
            Err(at) => End::Listen(at),
        };
        all.push(Relay::start(end, ours));
    }
    all
}

async fn connected(rig: &Rig) -> usize {
    let index = rig.front.view("/debug/index").await;
    let sources = index["sources"].as_array().unwrap().iter();
    sources.filter(|source| source["connected"] == true).count()
}

/// A subscription is on its way for a while: waits until what each engine computes arrives.
async fn heard(rig: &Rig, engines: &[Engine; 2]) {
    for (at, engine) in engines.iter().enumerate() {
        eventually("an event", || async {
            let done = Done::read(at, &engine.complete(&fresh()).await);
            let mut tries = 0..20;
            while tries.next().is_some() {
                if rig.knows(&done).await {
                    return Some(());
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            None
        })
        .await;
    }
}
