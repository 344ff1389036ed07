//! Connections that we open: for the stream of an engine that listens, and for replays.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::{Instant, sleep, timeout},
};
use wicketgate_zmtp::{Error, Limits, Reader, Received, Role, Writer, handshake, tune};

use super::{
    config::IntakeConfig,
    feed::{Feeder, Line},
};

pub(super) type Ours = (Reader<OwnedReadHalf>, Writer<OwnedWriteHalf>);

/// A connection that stood this long, or brought a message, was not in vain.
const STOOD: Duration = Duration::from_secs(1);

/// Listens to an engine for ever, over as many connections as it takes.
pub(super) async fn dial(address: String, config: Arc<IntakeConfig>, feeder: Feeder) {
    let (first, longest) = config.pause;
    let mut pause = first;
    let mut said: Option<String> = None;
    loop {
        let start = Instant::now();
        let mut messages = 0;
        let ended = match connect(&address, Role::Sub, &config).await {
            Ok(peer) => {
                if said.take().is_some() {
                    tracing::info!(address, "KV events flow again");
                }
                follow(peer, &config, &feeder, &mut messages).await
            }
            Err(error) => Err(error),
        };
        feeder.shared.note(|state| state.counts.failures += 1);
        let reason = match ended {
            Ok(()) => "the engine closed the connection".to_owned(),
            Err(error) => error.to_string(),
        };
        // A state is logged when it changes, not at each attempt.
        if said.as_ref() != Some(&reason) {
            tracing::warn!(address, reason, "no KV events");
            said = Some(reason);
        }
        if messages > 0 || start.elapsed() > STOOD + config.connect_timeout {
            pause = first;
        }
        sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(longest);
    }
}

/// A connection whose peer has greeted us.
pub(super) async fn connect(
    address: &str,
    role: Role,
    config: &IntakeConfig,
) -> Result<Ours, Error> {
    let connected = timeout(config.connect_timeout, async {
        greet(TcpStream::connect(address).await?, role, config).await
    });
    connected.await.unwrap_or_else(|_| Err(late()))
}

/// Greets who is at the other end.
pub(super) async fn greet(
    stream: TcpStream,
    role: Role,
    config: &IntakeConfig,
) -> Result<Ours, Error> {
    tune(&stream)?;
    let (read, write) = stream.into_split();
    let limits = Limits {
        // Beside the payload there are a topic and a number.
        bytes: config.limits.bytes.saturating_add(64 << 10),
        ..Limits::default()
    };
    handshake(read, write, role, limits).await
}

pub(super) fn late() -> Error {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

/// Subscribes, and hands on what comes until the connection ends.
async fn follow(
    (reader, mut writer): Ours,
    config: &IntakeConfig,
    feeder: &Feeder,
    messages: &mut u64,
) -> Result<(), Error> {
    writer.subscribe(config.topic.as_bytes()).await?;
    let Ok(line) = feeder.line().await else {
        return Ok(());
    };
    read(reader, writer, &line, messages).await
}

/// Hands on what comes on a line until the connection ends or a newer line takes over.
pub(super) async fn read(
    mut reader: Reader<OwnedReadHalf>,
    mut writer: Writer<OwnedWriteHalf>,
    line: &Line,
    messages: &mut u64,
) -> Result<(), Error> {
    while let Some(received) = reader.recv().await? {
        match received {
            Received::Message(message) => {
                *messages += 1;
                if line.message(message).await.is_err() {
                    return Ok(());
                }
            }
            Received::Ping(context) => writer.pong(&context).await?,
            Received::Subscribe(_) | Received::Cancel(_) => {
                return Err(Error::Broken("a publisher that subscribes"));
            }
        }
    }
    Ok(())
}
