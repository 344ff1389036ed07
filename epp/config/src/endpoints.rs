//! Endpoints in the configuration and in watched files.

use std::{
    collections::{BTreeMap, HashMap},
    net::{Ipv4Addr, Ipv6Addr},
};

use serde::Serialize;
use serde_json::Value;

use crate::{
    decode::{Decoded, map},
    error::Errors,
    raw,
    scalar::shown,
    table, yaml,
};

/// Whose metric names an endpoint uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

impl Engine {
    pub(crate) fn parse(word: &str) -> Engine {
        if word == "sglang" {
            Engine::Sglang
        } else {
            Engine::Vllm
        }
    }
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Endpoint {
    /// `host:port`.
    pub address: String,
    /// What tells it from the others; the address unless given.
    pub name: String,
    /// Share of the traffic; 0 is a stand-by.
    pub weight: u32,
    /// It gets no new requests; what runs there goes on.
    pub draining: bool,
    /// Labels that filters look at.
    pub labels: BTreeMap<String, String>,
    /// Whose metric names it uses; the pool's default when absent.
    pub engine: Option<Engine>,
    /// What the address said of TLS: `https://` is true, `http://` is false, neither is `None`.
    pub tls: Option<bool>,
}

/// Reads an endpoints file: YAML or JSON with one key, `endpoints`. Whether [`Endpoint::tls`] goes with the
/// configuration is for the caller to see; [`crate::Config::read_endpoints`] does both.
///
/// # Errors
/// Every fault of the file.
pub fn parse_endpoints(text: &str, file: &str) -> Result<Vec<Endpoint>, Errors> {
    read(text, file, None)
}

/// Reads an endpoints file; `tls` says whether endpoints are talked to through TLS.
pub(crate) fn read(text: &str, file: &str, tls: Option<bool>) -> Result<Vec<Endpoint>, Errors> {
    let (node, faults) = yaml::parse(text).map_err(|fault| Errors::new(file, vec![fault]))?;
    let mut out = Decoded::default();
    out.push_all(faults);
    let mut list = Vec::new();
    if let Some(node) = node.filter(|node| !node.is_null()) {
        let mut value = map(&node, table::ENDPOINTS_FILE, "", &mut out);
        let value = value
            .remove("endpoints")
            .unwrap_or(Value::Array(Vec::new()));
        match serde_json::from_value::<Vec<raw::Endpoint>>(value) {
            Ok(read) => list = read,
            Err(error) => out.fault("endpoints", error.to_string()),
        }
    }
    let built = build(&list, "endpoints", &mut out);
    if let Some(tls) = tls {
        check_tls(&built, tls, &mut out);
    }
    if out.is_good() {
        Ok(built.into_iter().map(|(_, endpoint)| endpoint).collect())
    } else {
        Err(Errors::new(file, out.into_faults()))
    }
}

/// Checks a list of endpoints: addresses, and names and addresses that come twice. Each comes with its path.
pub(crate) fn build(
    list: &[raw::Endpoint],
    path: &str,
    out: &mut Decoded,
) -> Vec<(String, Endpoint)> {
    let mut built = Vec::new();
    let mut names: HashMap<String, usize> = HashMap::new();
    let mut addresses: HashMap<String, usize> = HashMap::new();
    for (index, raw) in list.iter().enumerate() {
        let here = format!("{path}[{index}]");
        let (address, tls) = match address(&raw.address) {
            Ok(address) => address,
            Err(what) => {
                out.fault(&format!("{here}.address"), what);
                continue;
            }
        };
        if let Some(first) = addresses.insert(address.clone(), index) {
            let what = format!("`{address}` is the address of {path}[{first}] too; remove one");
            out.fault(&format!("{here}.address"), what);
            continue;
        }
        let name = raw.name.clone().unwrap_or_else(|| address.clone());
        if let Some(first) = names.insert(name.clone(), index) {
            let name = shown(&name);
            let what = format!("{name} is the name of {path}[{first}] too; names must differ");
            out.fault(&here, what);
            continue;
        }
        let endpoint = Endpoint {
            address,
            name,
            weight: raw.weight,
            draining: raw.draining,
            labels: raw.labels.clone(),
            engine: raw.engine.as_deref().map(Engine::parse),
            tls,
        };
        built.push((here, endpoint));
    }
    built
}

/// An address may not ask for another transport than the one that is used.
pub(crate) fn check_tls(endpoints: &[(String, Endpoint)], tls: bool, out: &mut Decoded) {
    for (path, endpoint) in endpoints {
        let what = match (endpoint.tls, tls) {
            (Some(true), false) => "`https://` needs `upstream.tls`, which is not set",
            (Some(false), true) => "`http://` does not go with `upstream.tls`; write host:port",
            _ => continue,
        };
        out.fault(&format!("{path}.address"), what);
    }
}

/// `host:port` from an address or URL, and whether the URL asks for TLS.
fn address(text: &str) -> Result<(String, Option<bool>), String> {
    let (rest, tls, default) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
        (Some(rest), _) => (rest, Some(false), Some("80")),
        (_, Some(rest)) => (rest, Some(true), Some("443")),
        _ => (text, None, None),
    };
    let bad = |why: &str| {
        // What stands before an `@` may be a password.
        let text = shown(text.rsplit('@').next().unwrap_or_default());
        format!(
            "{text} is no endpoint address: {why}; expected ip:port, [v6]:port, host:port or http://host:port"
        )
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains('/') || rest.contains('@') || rest.contains('?') {
        return Err(bad("a path, user or query does not belong here"));
    }
    let (host, port) = match rest.strip_prefix('[') {
        Some(inner) => {
            let (host, after) = inner.split_once(']').ok_or_else(|| bad("`]` is missing"))?;
            let host: Ipv6Addr = host
                .parse()
                .map_err(|_| bad("no IPv6 address in brackets"))?;
            if !after.is_empty() && !after.starts_with(':') {
                return Err(bad("`:` is missing behind `]`"));
            }
            (format!("[{host}]"), after.strip_prefix(':'))
        }
        None => match rest.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err(bad("an IPv6 address needs brackets"));
            }
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (rest.to_owned(), None),
        },
    };
    let port = port.or(default).ok_or_else(|| bad("the port is missing"))?;
    let number = port.parse::<u16>().ok();
    let number = number.filter(|number| *number > 0 && !port.starts_with('+'));
    let number = number.ok_or_else(|| bad("the port is no number from 1 to 65535"))?;
    let dotted = !host.is_empty() && host.chars().all(|c| c.is_ascii_digit() || c == '.');
    if dotted && host.parse::<Ipv4Addr>().is_err() {
        return Err(bad("no IPv4 address"));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
    if host.is_empty() || !host.chars().all(allowed) {
        return Err(bad(
            "the host is empty or has other characters than letters, digits, - and .",
        ));
    }
    Ok((format!("{host}:{number}"), tls))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, expected, tls) in [
            ("10.0.0.1:8000", "10.0.0.1:8000", None),
            ("[::1]:8000", "[::1]:8000", None),
            ("vllm-0.vllm:8000", "vllm-0.vllm:8000", None),
            ("http://10.0.0.1:8000/", "10.0.0.1:8000", Some(false)),
            ("http://host", "host:80", Some(false)),
            ("https://host", "host:443", Some(true)),
            ("[0:0::0001]:80", "[::1]:80", None),
        ] {
            assert_eq!(address(text), Ok((expected.to_owned(), tls)), "{text}");
        }
        for bad in [
            "",
            "host",
            "10.0.0.1:0",
            "10.0.0.1:x",
            "10.0.0.1:+8",
            "10.0.0.1:65536",
            "10.0.0.999:80",
            "http://[::1]8000",
            "ftp://a:1",
            "::1:80",
            "[::1]",
            "[x]:1",
            "http://a:1/v1",
            "a b:1",
            ":80",
            "u@h:1",
        ] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn files() {
        let list = parse_endpoints("endpoints:\n- address: 10.0.0.1:8000\n  weight: 0\n  labels: {llm-d.ai/role: decode}\n- {address: '10.0.0.2:8000', name: b, engine: sglang, draining: true}\n", "f").unwrap();
        assert_eq!(list.len(), 2);
        assert_eq!(
            (list[0].weight, list[0].name.as_str()),
            (0, "10.0.0.1:8000")
        );
        assert_eq!(list[0].labels["llm-d.ai/role"], "decode");
        assert_eq!(
            (list[1].name.as_str(), list[1].engine),
            ("b", Some(Engine::Sglang))
        );
        assert_eq!((list[0].draining, list[1].draining), (false, true));
        assert_eq!(parse_endpoints("", "f").unwrap(), []);
        assert_eq!(parse_endpoints("{\"endpoints\": []}", "f").unwrap(), []);
        let twice =
            parse_endpoints("endpoints:\n- address: a:1\n- address: a:1\n", "f").unwrap_err();
        assert_eq!(
            twice.to_string(),
            "f:3: endpoints[1].address: `a:1` is the address of endpoints[0] too; remove one"
        );
        let typo = parse_endpoints("endpoints:\n- adress: a:1\n", "f")
            .unwrap_err()
            .to_string();
        assert!(
            typo.contains(
                "f:2: endpoints[0].adress: unknown key `adress`; did you mean `address`?"
            ),
            "{typo}"
        );
    }
}
