//! Snapshots of the prefix index over the management port.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::json;
use tokio::{sync::mpsc, time::timeout};

use super::{
    ASKED, Management, Refusal, answer,
    body::{Answer, Piece},
};
use crate::prefix::Transfer;

/// Pieces that wait for their reader.
const AHEAD: usize = 4;
/// Longest time of one snapshot, written or taken in.
const TOTAL: Duration = Duration::from_secs(300);
/// Longest pause of whoever sends one.
const PAUSE: Duration = Duration::from_secs(30);

impl Management {
    /// What this replica knows. `asked` is repeated in the answer.
    pub(super) fn export(&self, asked: Option<&HeaderValue>) -> Result<Response<Answer>, Refusal> {
        let prefixes = Arc::clone(self.prefixes()?);
        if prefixes.is_held() {
            let what = "this replica has just started and asks its own peers; ask another one";
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return Err(Refusal::new(status, "warming", what));
        }
        let Ok(turn) = Arc::clone(&self.exports).try_acquire_owned() else {
            prefixes.snapshots().count(Transfer::ExportBusy);
            let what = "others read a snapshot right now";
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return Err(Refusal::new(status, "busy", what));
        };
        let (sender, pieces) = mpsc::channel(AHEAD);
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let begun = Instant::now();
            let give = |bytes: Bytes| {
                // A reader that went away, or that takes its time: the connection's own bounds end it.
                begun.elapsed() < TOTAL && sender.blocking_send(Piece::Bytes(bytes)).is_ok()
            };
            let whole = prefixes.export(give) && sender.blocking_send(Piece::End).is_ok();
            prefixes.snapshots().count(match whole {
                true => Transfer::Exported,
                false => Transfer::ExportCut,
            });
        });
        let mut response = Response::new(Answer::Pieces(pieces));
        let kind = HeaderValue::from_static("application/octet-stream");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if let Some(asked) = asked {
            response.headers_mut().insert(ASKED, asked.clone());
        }
        Ok(response)
    }

    /// Takes over what is still true of a snapshot.
    pub(super) async fn import(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Answer>, Refusal> {
        let prefixes = self.prefixes()?;
        let Ok(_turn) = self.imports.try_acquire() else {
            let what = "another snapshot is being taken in";
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return Err(Refusal::new(status, "busy", what));
        };
        let bytes = match timeout(TOTAL, read(request.into_body(), self.max_snapshot)).await {
            Ok(read) => read,
            Err(_) => Err(late()),
        };
        let bytes = bytes.inspect_err(|_| prefixes.snapshots().count(Transfer::ImportCut))?;
        match timeout(TOTAL, prefixes.import(bytes, None)).await {
            Ok(Ok(report)) => {
                tracing::info!(
                    taken = report.taken,
                    blocks = report.blocks,
                    "a snapshot was taken in"
                );
                Ok(answer(StatusCode::OK, &json!(report)))
            }
            Ok(Err(fault)) => {
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                Err(Refusal::new(status, fault.code(), fault.to_string()))
            }
            Err(_) => {
                let what = "engines did not say in time whether they are the same; what was taken over stays";
                Err(Refusal::new(
                    StatusCode::GATEWAY_TIMEOUT,
                    "engines_late",
                    what,
                ))
            }
        }
    }
}

fn late() -> Refusal {
    let what = "the snapshot did not come in in time";
    Refusal::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", what)
}

async fn read(mut body: Incoming, most: usize) -> Result<Bytes, Refusal> {
    let too_large = || {
        let what = format!("longer than {most} bytes; `kvIndex.maxSnapshotBytes` allows more");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", what)
    };
    let length = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if length > most {
        return Err(too_large());
    }
    let mut all = BytesMut::with_capacity(length);
    while let Some(frame) = timeout(PAUSE, body.frame()).await.map_err(|_| late())? {
        let frame = frame.map_err(|error| {
            let what = format!("the snapshot broke off: {error}");
            Refusal::new(StatusCode::BAD_REQUEST, "incomplete_body", what)
        })?;
        if let Ok(data) = frame.into_data() {
            if all.len() + data.len() > most {
                return Err(too_large());
            }
            all.extend_from_slice(&data);
        }
    }
    Ok(all.freeze())
}
