//! Closed-loop callers of a chat endpoint, as cheap as they can be.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use crate::{
    child::{ANSWER_HEADER, EVENTS, SSE64},
    measure::Times,
    raw::Wire,
    text::chat_body,
};

/// Prompts that differ, used in turn.
const PROMPTS: u64 = 16;

/// Requests of one kind, head and body in one piece each.
#[derive(Clone)]
pub(super) struct Requests {
    texts: Arc<Vec<Vec<u8>>>,
    stream: bool,
}

impl Requests {
    /// Chat requests with bodies of `bytes` bytes that want a JSON answer, or a stream.
    pub(super) fn new(bytes: usize, stream: bool) -> Requests {
        let answer = if stream { SSE64 } else { "json" };
        let text = |seed| {
            let body = chat_body(&mut fastrand::Rng::with_seed(seed), bytes, stream);
            let length = body.len();
            format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway.example\r\ncontent-type: application/json\r\n\
                 accept: application/json\r\nauthorization: Bearer sk-0123456789abcdef0123456789abcdef\r\n\
                 user-agent: OpenAI/Python 1.109.1\r\n{ANSWER_HEADER}: {answer}\r\ncontent-length: {length}\r\n\r\n{body}"
            )
            .into_bytes()
        };
        Requests {
            texts: Arc::new((0..PROMPTS).map(text).collect()),
            stream,
        }
    }
}

/// What came of a round.
pub(super) struct Round {
    pub(super) requests: u64,
    pub(super) wall: Duration,
    pub(super) latency: Times,
}

/// When callers stop.
#[derive(Clone, Copy)]
pub(super) enum Until {
    /// After so much time.
    Time(Duration),
    /// After so many requests each.
    Count(u64),
}

/// Kept connections, one per caller.
pub(super) struct Callers {
    wires: Vec<Wire>,
}

impl Callers {
    /// One connection each, to the addresses in turn.
    pub(super) async fn connect(addresses: &[SocketAddr], count: usize) -> io::Result<Callers> {
        let mut wires = Vec::new();
        for address in addresses.iter().cycle().take(count) {
            wires.push(Wire::connect(*address).await?);
        }
        Ok(Callers { wires })
    }

    /// Each caller sends its next request when its last answer has come.
    ///
    /// # Errors
    /// When an answer is not what the upstream gives.
    pub(super) async fn round(&mut self, requests: &Requests, until: Until) -> io::Result<Round> {
        let mut round = Round {
            requests: 0,
            wall: Duration::ZERO,
            latency: Times::new(),
        };
        let started = Instant::now();
        let mut tasks = JoinSet::new();
        for (index, wire) in self.wires.drain(..).enumerate() {
            let requests = requests.clone();
            tasks.spawn(async move { caller(wire, index, &requests, until, started).await });
        }
        while let Some(ended) = tasks.join_next().await {
            let (wire, times) = ended.map_err(io::Error::other)??;
            self.wires.push(wire);
            round.requests += times.len() as u64;
            times.into_iter().for_each(|time| round.latency.add(time));
        }
        round.wall = started.elapsed();
        Ok(round)
    }
}

async fn caller(
    mut wire: Wire,
    index: usize,
    requests: &Requests,
    until: Until,
    started: Instant,
) -> io::Result<(Wire, Vec<Duration>)> {
    let mut times = Vec::new();
    let texts = requests.texts.iter().cycle().skip(index);
    for text in texts {
        let over = match until {
            Until::Time(time) => started.elapsed() >= time,
            Until::Count(count) => times.len() as u64 >= count,
        };
        if over {
            break;
        }
        let sent = Instant::now();
        wire.write(text).await?;
        let (mut bytes, mut events) = (0, 0);
        let status = wire
            .answer(|piece| {
                bytes += piece.len();
                if requests.stream {
                    events += memchr::memmem::find_iter(piece, b"data: ").count();
                }
            })
            .await?;
        times.push(sent.elapsed());
        // Border cases of a cut `data: ` can hide an event, never make one up.
        let whole = !requests.stream || (events > 0 && events <= EVENTS + 1);
        if status != 200 || bytes == 0 || !whole {
            let what = format!("status {status}, {bytes} bytes, {events} events");
            return Err(io::Error::other(what));
        }
    }
    Ok((wire, times))
}
