//! Errors shaped as vLLM's.

use http::StatusCode;
use serde_json::json;

/// An error that the client sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct ApiError {
    pub(in crate::engine) status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
}

impl ApiError {
    fn new(
        status: StatusCode,
        kind: &'static str,
        message: impl Into<String>,
        param: Option<&str>,
    ) -> ApiError {
        ApiError {
            status,
            kind,
            message: message.into(),
            param: param.map(str::to_owned),
        }
    }

    /// The body does not validate at `param`.
    pub(in crate::engine) fn validation(
        kind: &str,
        param: &str,
        message: &str,
        input: &str,
    ) -> ApiError {
        let message = format!(
            "1 validation error:\n  {{'type': '{kind}', 'loc': 'body.{param}', 'msg': '{message}', 'input': {input}}}"
        );
        let param = format!("body.{param}");
        ApiError::new(
            StatusCode::BAD_REQUEST,
            "Bad Request",
            message,
            Some(&param),
        )
    }

    /// A field is missing.
    pub(in crate::engine) fn missing(param: &str, fields: usize) -> ApiError {
        ApiError::validation(
            "missing",
            param,
            "Field required",
            &format!("'<dict of {fields} items>'"),
        )
    }

    /// The body is no JSON.
    pub(in crate::engine) fn json(error: &serde_json::Error) -> ApiError {
        let at = error.column();
        let message = format!(
            "1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{at}', 'msg': 'JSON decode error', \
             'input': '<dict of 0 items>', 'ctx': {{'error': '{error}'}}}}"
        );
        let param = format!("body.{at}");
        ApiError::new(
            StatusCode::BAD_REQUEST,
            "Bad Request",
            message,
            Some(&param),
        )
    }

    /// The body is not declared as JSON.
    pub(in crate::engine) fn media_type() -> ApiError {
        let message =
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed";
        ApiError::new(StatusCode::BAD_REQUEST, "Bad Request", message, None)
    }

    /// A value is out of its range.
    pub(in crate::engine) fn bad_value(param: &str, message: impl Into<String>) -> ApiError {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            "BadRequestError",
            message,
            Some(param),
        )
    }

    /// The prompt leaves no room for an answer.
    pub(in crate::engine) fn too_long(prompt: usize, model_len: u32) -> ApiError {
        let message = format!(
            "This model's maximum context length is {model_len} tokens. However, your prompt contains {prompt} \
             input tokens, which exceeds this limit even without any output tokens. Please reduce the length of \
             the input prompt. (parameter=input_tokens, value={prompt})"
        );
        ApiError::bad_value("input_tokens", message)
    }

    pub(in crate::engine) fn unknown_model(name: &str, known: &str) -> ApiError {
        let message = format!("The model `{name}` does not exist. Valid aliases: {known}.");
        ApiError::new(
            StatusCode::NOT_FOUND,
            "NotFoundError",
            message,
            Some("model"),
        )
    }

    pub(in crate::engine) fn busy() -> ApiError {
        let message = "The engine is currently busy and cannot accept new requests. Please try again later or on a \
                       different instance.";
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Service Unavailable",
            message,
            None,
        )
    }

    pub(in crate::engine) fn forbidden(message: &str) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "Forbidden", message, None)
    }

    pub(in crate::engine) fn body_too_large(most: usize) -> ApiError {
        let message = format!("The request body is longer than {most} bytes.");
        ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "Payload Too Large",
            message,
            None,
        )
    }

    /// A failure on purpose.
    pub(in crate::engine) fn injected(status: StatusCode) -> ApiError {
        let kind = match status.as_u16() {
            401 => "AuthenticationError",
            404 => "NotFoundError",
            429 => "RateLimitError",
            503 => "Service Unavailable",
            400..500 => "BadRequestError",
            _ => "InternalServerError",
        };
        ApiError::new(
            status,
            kind,
            format!("Injected failure {}.", status.as_u16()),
            None,
        )
    }

    pub(in crate::engine) fn to_json(&self) -> String {
        let (message, kind, param) = (&self.message, self.kind, &self.param);
        let code = self.status.as_u16();
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
            .to_string()
    }
}
