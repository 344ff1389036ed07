//! How a request can end without an endpoint's own answer: a closed set, mapped exhaustively to HTTP status,
//! OpenAI error, drop reason and metric label.

use bytes::Bytes;
use wicketgate_pool::{admission, scheduler::Nanos};
use wicketgate_wire::ScanError;

/// Header that names the reason of a refusal, as llm-d spells it.
pub const DROP_REASON_HEADER: &str = "x-llm-d-request-dropped-reason";

/// Why we answer instead of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The pool said no.
    Refused {
        /// Why.
        why: admission::Outcome,
        /// How long a newcomer would wait now, if that is known.
        wait: Option<Nanos>,
    },
    /// The body is not what its path promises.
    InvalidBody(ScanError),
    /// The body is longer than the limit, in bytes.
    BodyTooLarge {
        /// `server.maxBodyBytes`.
        limit: u64,
    },
    /// The caller broke its body off.
    BodyIncomplete,
    /// The caller sent its body too slowly.
    BodyTimeout,
    /// No pool serves this model.
    UnknownModel(String),
    /// There are several pools, and the body that would name the model is compressed or not shown by the proxy.
    ModelUnseen,
    /// The request line or headers ask for something a gateway does not do.
    BadRequest(&'static str),
    /// The header block is longer, or has more lines, than is read.
    HeadersTooLarge,
    /// The request target is longer than is read.
    TargetTooLong,
    /// The request is coded in a way that is not spoken here.
    NotImplemented(&'static str),
    /// A method that is not proxied.
    MethodNotAllowed,
    /// No decision within `server.decisionTimeout`.
    DecisionTimeout,
    /// No endpoint could be reached.
    UpstreamUnreachable,
    /// The endpoint broke off before its answer began.
    UpstreamBroken,
    /// The endpoint did not answer in time.
    UpstreamTimeout,
    /// Our own fault.
    Internal,
}

/// An answer of our own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// OpenAI-shaped error JSON.
    pub body: Bytes,
    /// Seconds after which another try makes sense.
    pub retry_after: Option<u32>,
    /// Value of [`DROP_REASON_HEADER`].
    pub drop_reason: Option<&'static str>,
    /// Metric label and log word.
    pub reason: &'static str,
}

/// One row of the table.
struct Row {
    status: u16,
    kind: &'static str,
    code: &'static str,
    drop_reason: Option<&'static str>,
    retry_after: Option<u32>,
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

const fn row(status: u16, kind: &'static str, code: &'static str) -> Row {
    Row {
        status,
        kind,
        code,
        drop_reason: None,
        retry_after: None,
    }
}

const fn dropped(mut row: Row, reason: &'static str, retry_after: u32) -> Row {
    row.drop_reason = Some(reason);
    row.retry_after = Some(retry_after);
    row
}

impl Outcome {
    fn row(&self) -> Row {
        match self {
            Outcome::Refused { why, wait } => refused(*why, *wait),
            Outcome::InvalidBody(_) => row(400, INVALID, "invalid_body"),
            Outcome::BodyTooLarge { .. } => row(413, INVALID, "request_too_large"),
            Outcome::BodyIncomplete => row(400, INVALID, "incomplete_body"),
            Outcome::BodyTimeout => row(408, INVALID, "body_timeout"),
            Outcome::UnknownModel(_) => row(404, INVALID, "model_not_found"),
            Outcome::ModelUnseen => row(400, INVALID, "model_unseen"),
            Outcome::BadRequest(_) => row(400, INVALID, "bad_request"),
            Outcome::HeadersTooLarge => row(431, INVALID, "headers_too_large"),
            Outcome::TargetTooLong => row(414, INVALID, "target_too_long"),
            Outcome::NotImplemented(_) => row(501, INVALID, "not_implemented"),
            Outcome::MethodNotAllowed => row(405, INVALID, "method_not_allowed"),
            Outcome::DecisionTimeout => dropped(
                row(503, SERVER, "decision_timeout"),
                "rejected-ttl-expired",
                1,
            ),
            Outcome::UpstreamUnreachable => Row {
                retry_after: Some(1),
                ..row(503, SERVER, "upstream_unreachable")
            },
            Outcome::UpstreamBroken => row(502, SERVER, "upstream_broken"),
            Outcome::UpstreamTimeout => row(504, SERVER, "upstream_timeout"),
            Outcome::Internal => row(500, SERVER, "internal_error"),
        }
    }

    /// Metric label: one word of a closed set.
    pub fn reason(&self) -> &'static str {
        self.row().code
    }

    fn message(&self) -> String {
        match self {
            Outcome::Refused { why, .. } => why.message().to_owned(),
            Outcome::InvalidBody(error) => format!("The request body is not valid: {error}."),
            Outcome::BodyTooLarge { limit } => {
                format!("The request body is larger than the limit of {limit} bytes.")
            }
            Outcome::BodyIncomplete => "The request body ended early.".to_owned(),
            Outcome::BodyTimeout => "The request body did not come in in time.".to_owned(),
            Outcome::UnknownModel(model) => {
                let shown: String = model.chars().take(128).collect();
                format!("The model `{shown}` does not exist or no pool serves it.")
            }
            Outcome::ModelUnseen => {
                "The request's model cannot be read, and there are several pools: send the body \
                                     uncompressed, and let the proxy show it."
                    .to_owned()
            }
            Outcome::BadRequest(what) | Outcome::NotImplemented(what) => (*what).to_owned(),
            Outcome::HeadersTooLarge => "The request's headers are too large.".to_owned(),
            Outcome::TargetTooLong => "The request's target is too long.".to_owned(),
            Outcome::MethodNotAllowed => "This method is not supported here.".to_owned(),
            Outcome::DecisionTimeout => "No endpoint was chosen in time.".to_owned(),
            Outcome::UpstreamUnreachable => "No model server could be reached.".to_owned(),
            Outcome::UpstreamBroken => "The model server broke off the connection.".to_owned(),
            Outcome::UpstreamTimeout => "The model server did not answer in time.".to_owned(),
            Outcome::Internal => "The gateway failed on this request.".to_owned(),
        }
    }

    /// The answer to the caller.
    pub fn reply(&self) -> Reply {
        let row = self.row();
        let error = serde_json::json!({
            "error": {
                "message": self.message(),
                "type": row.kind,
                "param": null,
                "code": row.code,
            }
        });
        Reply {
            status: row.status,
            body: Bytes::from(error.to_string()),
            retry_after: row.retry_after,
            drop_reason: row.drop_reason,
            reason: row.code,
        }
    }
}

/// Status and words of a pool's refusal. llm-d answers some of these with 500 or 429 without a reason;
/// docs/compatibility.md lists the differences.
fn refused(why: admission::Outcome, wait: Option<Nanos>) -> Row {
    let Some(status) = why.status() else {
        // Its caller is gone, or it was dispatched: nobody reads this.
        return row(499, INVALID, why.code());
    };
    Row {
        status,
        kind: why.error_type(),
        code: why.code(),
        drop_reason: why.drop_reason(),
        retry_after: why.retry_after(wait),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pool's refusals that a caller reads, less `Internal`, which is ours too.
    fn refusals() -> impl Iterator<Item = Outcome> {
        let all = admission::Outcome::ALL.into_iter();
        let read = all.filter(|why| why.status().is_some() && *why != admission::Outcome::Internal);
        read.map(|why| Outcome::Refused { why, wait: None })
    }

    fn every() -> Vec<Outcome> {
        let mut all: Vec<Outcome> = refusals().collect();
        all.extend([
            Outcome::BodyTooLarge { limit: 7 },
            Outcome::BodyIncomplete,
            Outcome::BodyTimeout,
            Outcome::HeadersTooLarge,
            Outcome::TargetTooLong,
            Outcome::NotImplemented("no"),
            Outcome::UnknownModel("m\"\n".into()),
            Outcome::ModelUnseen,
            Outcome::BadRequest("no"),
            Outcome::MethodNotAllowed,
            Outcome::DecisionTimeout,
            Outcome::UpstreamUnreachable,
            Outcome::UpstreamBroken,
            Outcome::UpstreamTimeout,
            Outcome::Internal,
        ]);
        all
    }

    #[test]
    fn each_reply_is_openai_json_with_its_own_code() {
        let mut codes = std::collections::BTreeSet::new();
        for outcome in every() {
            let reply = outcome.reply();
            let value: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
            let error = &value["error"];
            assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()));
            assert!(error["param"].is_null());
            assert_eq!(error["code"], reply.reason);
            assert!(codes.insert(reply.reason), "{} twice", reply.reason);
            assert!((400..600).contains(&reply.status));
        }
    }

    #[test]
    fn refusals_say_why_and_when_to_come_back() {
        for outcome in refusals() {
            let reply = outcome.reply();
            if reply.status != 412 {
                assert!(matches!(reply.status, 429 | 503), "{outcome:?}");
                assert!(reply.drop_reason.is_some() && reply.retry_after.is_some());
            }
        }
        let busy = |wait| Outcome::Refused {
            why: admission::Outcome::RejectedSaturated,
            wait,
        };
        assert_eq!(busy(None).reply().retry_after, Some(1));
        assert_eq!(busy(Some(7_200_000_000)).reply().retry_after, Some(8));
    }

    #[test]
    fn the_limit_is_in_the_message() {
        let reply = Outcome::BodyTooLarge { limit: 1_048_576 }.reply();
        assert_eq!(reply.status, 413);
        assert!(String::from_utf8_lossy(&reply.body).contains("1048576"));
    }
}
