//! The management port: everything that changes state from outside, and snapshots of the prefix index.
//!
//! ```text
//!  GET  /v1/index/snapshot   what this replica knows, in pieces; one endpoint's blocks in memory at a time
//!  PUT  /v1/index/snapshot   takes over what is still true of it, after all of it was checked
//!  GET, POST /v1/endpoints, DELETE /v1/endpoints/NAME     each pool's endpoints
//! ```
//!
//! It listens on the loopback unless the configuration says otherwise, and then callers show a token or a certificate.
//! Errors are JSON with a code. [`warm`] is the other end: a replica that starts asks its peers here.

mod access;
mod body;
mod endpoints;
mod fetch;
mod snapshot;
pub(crate) mod warm;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Semaphore};

use self::{access::Access, body::Answer};
use crate::{
    gateway::Listen, net::Shutdown, pipeline::Pipeline, prefix::Prefixes, small, tls::Acceptor,
};

pub use access::Token;
pub(crate) use endpoints::Endpoints;
pub use warm::{WarmPeer, WarmSpec};

/// Where snapshots are.
const SNAPSHOT: &str = "/v1/index/snapshot";
/// A word that an answer repeats, so that whoever asks knows that it was made just now and is no copy.
const ASKED: &str = "x-wicketgate-asked";
/// Where endpoints are.
const ENDPOINTS: &str = "/v1/endpoints";
/// Snapshots that are written at once: each holds the blocks of one endpoint.
const EXPORTS: usize = 4;

/// The port and who may use it.
#[derive(Clone, Debug)]
pub struct ManagementSpec {
    /// Where it listens.
    pub listen: Listen,
    /// What callers show.
    pub token: Option<Token>,
    /// Longest snapshot that is taken in, in bytes.
    pub max_snapshot: usize,
}

/// What the port manages.
pub(crate) struct Management {
    pipeline: Arc<Pipeline>,
    access: Access,
    max_snapshot: usize,
    exports: Arc<Semaphore>,
    /// One snapshot is taken in at a time.
    imports: Semaphore,
    endpoints: Endpoints,
}

/// An answer that says what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
    /// What the path does instead.
    allow: &'static str,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal {
            status,
            code,
            message: message.into(),
            allow: "",
        }
    }
}

impl Management {
    pub(crate) fn new(
        pipeline: Arc<Pipeline>,
        spec: &ManagementSpec,
        endpoints: Endpoints,
    ) -> Management {
        Management {
            pipeline,
            access: Access::new(spec.token.clone(), spec.listen.tls.as_ref()),
            max_snapshot: spec.max_snapshot,
            exports: Arc::new(Semaphore::new(EXPORTS)),
            imports: Semaphore::new(1),
            endpoints,
        }
    }

    fn prefixes(&self) -> Result<&Arc<Prefixes>, Refusal> {
        self.pipeline.prefixes().ok_or_else(|| {
            let what = "there is no prefix index: the configuration has no `kvIndex`";
            Refusal::new(StatusCode::NOT_FOUND, "no_index", what)
        })
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Answer> {
        let answered = match self.access.check(&request) {
            Ok(()) => self.route(request).await,
            Err(refusal) => Err(refusal),
        };
        answered.unwrap_or_else(|refusal| refuse(&refusal))
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Response<Answer>, Refusal> {
        match (request.uri().path(), request.method()) {
            (SNAPSHOT, &Method::GET) => self.export(request.headers().get(ASKED)),
            (SNAPSHOT, &Method::PUT | &Method::POST) => self.import(request).await,
            (SNAPSHOT, _) => Err(spoken("GET, PUT, POST")),
            (ENDPOINTS, &Method::GET) => Ok(self.endpoints.list()),
            (ENDPOINTS, &Method::POST) => self.endpoints.add(request).await,
            (ENDPOINTS, _) => Err(spoken("GET, POST")),
            (path, method) => match path
                .strip_prefix(ENDPOINTS)
                .and_then(|path| path.strip_prefix('/'))
            {
                Some(name) if *method == Method::DELETE => {
                    self.endpoints.remove(name, request.uri().query())
                }
                Some(_) => Err(spoken("DELETE")),
                None => {
                    let what = format!("there are {SNAPSHOT}, {ENDPOINTS} and {ENDPOINTS}/NAME");
                    Err(Refusal::new(StatusCode::NOT_FOUND, "no_such_path", what))
                }
            },
        }
    }
}

fn spoken(methods: &'static str) -> Refusal {
    let what = format!("expected one of {methods} here");
    Refusal {
        allow: methods,
        ..Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", what)
    }
}

/// Serves until shutdown.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Acceptor>,
    management: Arc<Management>,
    shutdown: Shutdown,
) {
    small::serve(listener, tls, shutdown, move |request| {
        let management = Arc::clone(&management);
        async move { management.answer(request).await }
    })
    .await;
}

fn answer(status: StatusCode, body: &Value) -> Response<Answer> {
    let mut response = Response::new(Answer::whole(Bytes::from(format!("{body:#}\n"))));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn refuse(refusal: &Refusal) -> Response<Answer> {
    let error = json!({"error": {"code": refusal.code, "message": refusal.message}});
    let mut response = answer(refusal.status, &error);
    let headers = response.headers_mut();
    match refusal.status {
        StatusCode::UNAUTHORIZED => {
            let scheme = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        StatusCode::METHOD_NOT_ALLOWED => {
            headers.insert(header::ALLOW, HeaderValue::from_static(refusal.allow));
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        _ => {}
    }
    // What is left of a body that nobody reads would be taken for the next request.
    if refusal.status == StatusCode::PAYLOAD_TOO_LARGE {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
