//! Who may use the management port.

use std::{fmt, hint::black_box, net::IpAddr};

use http::{HeaderValue, Request, StatusCode, header, uri::Authority};

use super::Refusal;
use crate::tls::ServerFiles;

/// What callers show, as the whole value of the header.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(HeaderValue);

impl fmt::Debug for Token {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Token")
    }
}

impl Token {
    /// `None` when it has characters that a header cannot carry.
    pub fn new(secret: &str) -> Option<Token> {
        let value = HeaderValue::from_str(&format!("Bearer {secret}"));
        let mut value = value.ok()?;
        value.set_sensitive(true);
        Some(Token(value))
    }

    /// The header's value.
    pub(super) fn header(&self) -> &HeaderValue {
        &self.0
    }

    /// Compares in a time that says nothing of where two differ.
    fn is(&self, shown: &[u8]) -> bool {
        let known = self.0.as_bytes();
        let differ = known.iter().zip(shown).fold(0, |differ, (a, b)| {
            // Not to be turned into a comparison that stops early.
            black_box(differ | (a ^ b))
        });
        differ == 0 && known.len() == shown.len()
    }
}

/// What is asked of a caller.
#[derive(Debug)]
pub(super) struct Access {
    token: Option<Token>,
    /// Callers have shown a certificate already.
    certified: bool,
}

impl Access {
    pub(super) fn new(token: Option<Token>, tls: Option<&ServerFiles>) -> Access {
        Access {
            token,
            certified: tls.is_some_and(|files| files.client_ca.is_some()),
        }
    }

    /// A token where there is one; else, and without certificates, nobody who comes by way of a browser: a page from
    /// elsewhere can make it send requests to the loopback.
    pub(super) fn check<B>(&self, request: &Request<B>) -> Result<(), Refusal> {
        let headers = request.headers();
        if let Some(token) = &self.token {
            let shown = headers.get(header::AUTHORIZATION);
            if shown.is_some_and(|shown| token.is(shown.as_bytes())) {
                return Ok(());
            }
            let what = "this port needs `Authorization: Bearer` with the token of `server.managementToken`";
            return Err(Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", what));
        }
        let hosts = headers.get_all(header::HOST).iter();
        let hosts = hosts.map(|host| host.to_str().unwrap_or_default());
        let authority = request.uri().authority().map(Authority::as_str);
        let local = hosts.chain(authority).all(is_local);
        if !self.certified && (headers.contains_key(header::ORIGIN) || !local) {
            let what = "without a token this port takes requests to an IP address or localhost only, and none of web pages";
            return Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", what));
        }
        Ok(())
    }
}

/// An IP address or `localhost`, with or without a port: no name that somebody else's DNS may point here.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(access: &Access, headers: &[(&'static str, &str)]) -> Result<(), &'static str> {
        let mut request = Request::builder();
        for (name, value) in headers {
            request = match *name {
                "uri" => request.uri(*value),
                name => request.header(name, *value),
            };
        }
        let checked = access.check(&request.body(()).unwrap());
        checked.map_err(|refusal| refusal.code)
    }

    #[test]
    fn a_token_is_asked_for_where_there_is_one() {
        let access = Access::new(Token::new("s3cret"), None);
        assert_eq!(said(&access, &[("authorization", "Bearer s3cret")]), Ok(()));
        for wrong in [
            "Bearer s3cre",
            "Bearer s3cret2",
            "bearer s3cret",
            "",
            "Bearer ",
        ] {
            let headers = [("authorization", wrong)];
            assert_eq!(said(&access, &headers), Err("unauthorized"), "{wrong}");
        }
        assert_eq!(said(&access, &[]), Err("unauthorized"));
        assert!(!format!("{access:?}").contains("s3cret"));
        assert_eq!(Token::new("a\nb"), None);
    }

    #[test]
    fn without_one_no_page_of_a_browser_gets_in() {
        let open = Access::new(None, None);
        for host in [
            "127.0.0.1:9091",
            "localhost",
            "LOCALHOST:1",
            "[::1]:9091",
            "10.0.0.1",
        ] {
            assert_eq!(said(&open, &[("host", host)]), Ok(()), "{host}");
        }
        for headers in [
            &[("host", "evil.example:9091")][..],
            &[("host", "127.0.0.1.evil.example")],
            &[("host", "127.0.0.1"), ("host", "evil.example")],
            &[("uri", "http://evil.example/v1/index/snapshot")],
            &[
                ("host", "127.0.0.1:9091"),
                ("origin", "http://evil.example"),
            ],
        ] {
            assert_eq!(said(&open, headers), Err("forbidden"), "{headers:?}");
        }
        let files = ServerFiles {
            cert: "a".into(),
            key: "b".into(),
            client_ca: Some("c".into()),
        };
        let certified = Access::new(None, Some(&files));
        assert_eq!(said(&certified, &[("host", "replica-0:9091")]), Ok(()));
    }
}
