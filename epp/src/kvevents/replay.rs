//! Asks an engine to repeat messages.
//!
//! A request is an empty part and a number; each answer is an empty part and a message. A message with the number
//! [`REPLAY_END`] and no payload ends it.

use std::sync::Arc;

use tokio::{task::coop::consume_budget, time::timeout};
use wicketgate_kvindex::{events::REPLAY_END, index::EndpointSnapshot};
use wicketgate_zmtp::{Message, Received, Role};

use super::{
    adopt::Adopted,
    dial,
    source::{Position, Read, Task},
};

/// Times that a replay begins anew because the publisher turns out to be a new one.
const ROUNDS: u32 = 4;

/// How a replay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The engine said that this is all.
    Done,
    /// It cannot be reached, or the connection broke.
    Broken,
    /// It said nothing for too long.
    Silent,
    /// It took too long.
    Endless,
    /// It does not begin with the message that a snapshot ends with.
    OtherLife,
}

impl Ended {
    pub(super) fn label(self) -> &'static str {
        match self {
            Ended::Done => "done",
            Ended::Broken => "broken",
            Ended::Silent => "silent",
            Ended::Endless => "endless",
            Ended::OtherLife => "another life of the engine",
        }
    }
}

/// A snapshot that is taken over if the replay begins with the message that it ends with.
pub(super) struct Trial<'a> {
    snapshot: &'a Arc<EndpointSnapshot>,
    /// What became of it, once the first message has shown whose it is.
    pub(super) taken: Option<Adopted>,
}

impl<'a> Trial<'a> {
    pub(super) fn of(snapshot: &'a Arc<EndpointSnapshot>) -> Trial<'a> {
        Trial {
            snapshot,
            taken: None,
        }
    }

    /// Takes the snapshot over if this is the message that it ends with.
    async fn begins(&mut self, task: &Task, position: &mut Position, read: &Read) -> bool {
        let (last, published) = (self.snapshot.last, self.snapshot.published);
        // A time that is none is never the same.
        if read.sequence != last || read.batch.published != published {
            return false;
        }
        let taken = task.take_over(position, self.snapshot).await;
        self.taken = Some(taken);
        // What follows is a replay that this source has asked for.
        position.cursor.connected();
        matches!(taken, Adopted::Taken(_))
    }
}

enum Step {
    End(Ended),
    /// The cursor wants another start.
    Again(u64),
}

/// Applies what the engine repeats from number `from` on.
pub(super) async fn replay(
    task: &Task,
    address: &str,
    position: &mut Position,
    mut from: u64,
    mut trial: Option<&mut Trial<'_>>,
) -> Ended {
    let Ok(_turn) = task.replays.acquire().await else {
        return Ended::Broken;
    };
    let all = async {
        for _ in 0..ROUNDS {
            match once(task, address, position, from, trial.as_deref_mut()).await {
                Step::End(ended) => return ended,
                Step::Again(start) => from = start,
            }
        }
        Ended::Endless
    };
    let ended = timeout(task.config.replay_total, all).await;
    ended.unwrap_or(Ended::Endless)
}

/// A connection for each start: what an older one still brings is not mixed in.
async fn once(
    task: &Task,
    address: &str,
    position: &mut Position,
    from: u64,
    mut trial: Option<&mut Trial<'_>>,
) -> Step {
    let idle = task.config.replay_idle;
    let peer = dial::connect(address, Role::Dealer, &task.config).await;
    let Ok((mut reader, mut writer)) = peer else {
        return Step::End(Ended::Broken);
    };
    let request = [&b""[..], &from.to_be_bytes()];
    if !matches!(timeout(idle, writer.send(&request)).await, Ok(Ok(()))) {
        return Step::End(Ended::Broken);
    }
    loop {
        let message = match timeout(idle, reader.recv()).await {
            Err(_) => return Step::End(Ended::Silent),
            Ok(Ok(Some(Received::Message(message)))) => message,
            Ok(Ok(Some(Received::Ping(context)))) => {
                match timeout(idle, writer.pong(&context)).await {
                    Ok(Ok(())) => continue,
                    _ => return Step::End(Ended::Broken),
                }
            }
            Ok(_) => return Step::End(Ended::Broken),
        };
        let message = bare(&message);
        let untried = trial.as_ref().is_some_and(|trial| trial.taken.is_none());
        if is_end(message) {
            return Step::End(if untried {
                Ended::OtherLife
            } else {
                Ended::Done
            });
        }
        if let Some(read) = task.read(message) {
            if let Some(trial) = trial.as_deref_mut().filter(|_| untried) {
                if !trial.begins(task, position, &read).await {
                    return Step::End(Ended::OtherLife);
                }
                continue;
            }
            let published = Some(read.batch.published);
            let verdict = position.cursor.replayed(read.sequence, published);
            task.obey(position, verdict, &read, false);
            task.note(position);
            if let Some(start) = verdict.ask_replay {
                return Step::Again(start);
            }
        }
        consume_budget().await;
    }
}

/// Without the empty part that separates an answer from its address. An answer of three parts has no topic.
fn bare(message: &Message) -> &[bytes::Bytes] {
    match message.as_slice() {
        [empty, rest @ ..] if empty.is_empty() && rest.len() == 3 => rest,
        all => all,
    }
}

fn is_end(message: &[bytes::Bytes]) -> bool {
    match message {
        [_, number, payload] => payload.is_empty() && **number == REPLAY_END.to_be_bytes(),
        _ => false,
    }
}
