//! The index against what engines report as cached.

use std::sync::Arc;

use serde_json::json;

use crate::{
    engine::{BLOCKS, Engine, MODEL, Vllm},
    rig::{Done, Events, Rig, Talk},
};

/// Conversations at once; more than the engines have room for, in the end.
const TALKS: u64 = 10;
const TURNS: u64 = 60;

/// With blocks of the engine's size and with smaller ones: conversations in turn, while the caches overflow.
pub(crate) async fn of_follow_up_turns(vllm: &Arc<Vllm>, engines: &[Engine; 2]) -> Vec<String> {
    let mut said = Vec::new();
    for block in [32, 16] {
        said.push(follow(vllm, engines, block).await);
    }
    said
}

async fn follow(vllm: &Arc<Vllm>, engines: &[Engine; 2], block: u64) -> String {
    let rig = Rig::start(vllm, engines, &Events::Discover, block).await;
    rig.listens().await;
    let mut random = fastrand::Rng::with_seed(block);
    // The first ones say the same, half of them for another tenant.
    let salt = |talk: u64| (talk == 1).then_some("tenant");
    let seed = |talk: u64| 1000 * block + talk.max(2);
    let mut talks: Vec<Talk> = (0..TALKS)
        .map(|talk| Talk::new(seed(talk), salt(talk)))
        .collect();
    let (mut follow_ups, mut hits, mut tokens, mut lost, mut served) = (0, 0, 0, 0, [0, 0]);
    for _ in 0..TURNS {
        let talk = &mut talks[random.usize(..TALKS as usize)];
        let again = talk.turns > 0;
        let (credits, done) = talk.turn(&rig).await;
        assert_eq!(
            credits[done.at], done.cached,
            "blocks of {block}, turn {}: {credits:?} at {}",
            talk.turns, done.at
        );
        follow_ups += u64::from(again);
        hits += u64::from(again && done.cached > 0);
        lost += u64::from(again && done.cached == 0);
        tokens += done.cached;
        served[done.at] += 1;
    }
    // A prompt that takes nearly a whole cache: what it leaves of the others is known exactly.
    let mut kept = 0;
    for (at, engine) in engines.iter().enumerate() {
        let ids: Vec<u32> = (0..(BLOCKS - 16) * 32)
            .map(|_| random.u32(..100_000))
            .collect();
        let body = json!({"model": MODEL, "prompt": ids, "max_tokens": 34, "ignore_eos": true, "return_token_ids": true});
        rig.told(&Done::read(at, &engine.complete(&body).await))
            .await;
    }
    for talk in &mut talks {
        kept += talk.exact_turn(&rig, "after what evicts all else").await;
    }
    rig.assert_understood().await;
    assert_eq!(rig.count("gaps").await, 0);
    let many = follow_ups > 30 && hits > follow_ups / 2 && served.iter().all(|count| *count > 5);
    assert!(
        many,
        "{follow_ups} follow-ups, {hits} hits, served {served:?}"
    );
    format!(
        "credit, our blocks of {block} and the engines' of 32: {TURNS} turns ({follow_ups} follow-ups, {hits} with \
         something cached, {lost} evicted), {tokens} tokens, and {TALKS} turns after all else was evicted ({kept} \
         tokens left): the index says what usage reports, each time; served {served:?}"
    )
}
