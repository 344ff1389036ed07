//! Endpoints in the configuration and in watched files.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use serde_json::Value;

use crate::{
    decode::{Decoded, map},
    error::{Errors, Fault},
    raw, table, yaml,
};

/// Whose metric names an endpoint uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
    /// Labels that filters look at.
    pub labels: BTreeMap<String, String>,
    /// Whose metric names it uses; the pool's default when absent.
    pub engine: Option<Engine>,
}

/// Reads an endpoints file: YAML or JSON with one key, `endpoints`.
///
/// # Errors
/// Every fault of the file.
pub fn parse_endpoints(text: &str, file: &str) -> Result<Vec<Endpoint>, Errors> {
    let node = yaml::parse(text).map_err(|fault| Errors::new(file, vec![fault]))?;
    let Some(node) = node else {
        return Ok(Vec::new());
    };
    let mut decoded = Decoded::default();
    let value = map(&node, table::ENDPOINTS_FILE, "", &mut decoded);
    let list = value
        .get("endpoints")
        .cloned()
        .unwrap_or(Value::Array(Vec::new()));
    if decoded.faults.is_empty() {
        match serde_json::from_value::<Vec<raw::Endpoint>>(list) {
            Ok(list) => {
                let endpoints = build(&list, "endpoints", &mut decoded);
                if decoded.faults.is_empty() {
                    return Ok(endpoints);
                }
            }
            Err(error) => decoded.fault("endpoints", error.to_string()),
        }
    }
    Err(Errors::new(file, decoded.faults))
}

/// Checks a list of endpoints: addresses, names that come twice.
pub(crate) fn build(list: &[raw::Endpoint], path: &str, out: &mut Decoded) -> Vec<Endpoint> {
    let mut built = Vec::new();
    let mut names: HashMap<String, usize> = HashMap::new();
    for (index, raw) in list.iter().enumerate() {
        let here = format!("{path}[{index}]");
        let address = match address(&raw.address) {
            Ok(address) => address,
            Err(what) => {
                out.fault(&format!("{here}.address"), what);
                continue;
            }
        };
        let name = raw.name.clone().unwrap_or_else(|| address.clone());
        if let Some(first) = names.insert(name.clone(), index) {
            let what = format!("`{name}` is the name of {path}[{first}] too; names must differ");
            out.fault(&here, what);
            continue;
        }
        built.push(Endpoint {
            address,
            name,
            weight: raw.weight,
            labels: raw.labels.clone(),
            engine: raw.engine.as_deref().map(Engine::parse),
        });
    }
    built
}

/// `host:port` from an address or URL.
pub(crate) fn address(text: &str) -> Result<String, String> {
    let bad = |why: &str| {
        format!(
            "`{text}` is no endpoint address: {why}; expected ip:port, [v6]:port, host:port or http://host:port"
        )
    };
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    let (rest, default) = match rest {
        Some(rest) if text.starts_with("https") => (rest, Some("443")),
        Some(rest) => (rest, Some("80")),
        None => (text, None),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains('/') || rest.contains('@') || rest.contains('?') {
        return Err(bad("a path, user or query does not belong here"));
    }
    let (host, port) = match rest.strip_prefix('[') {
        Some(inner) => {
            let (host, after) = inner.split_once(']').ok_or_else(|| bad("`]` is missing"))?;
            host.parse::<std::net::Ipv6Addr>()
                .map_err(|_| bad("no IPv6 address in brackets"))?;
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
    let number: u16 = port
        .parse()
        .map_err(|_| bad("the port is no number from 1 to 65535"))?;
    if number == 0 {
        return Err(bad("the port is no number from 1 to 65535"));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
    if host.is_empty() || !host.chars().all(allowed) {
        return Err(bad(
            "the host is empty or has other characters than letters, digits, - and .",
        ));
    }
    Ok(format!("{host}:{number}"))
}

impl From<Fault> for Errors {
    fn from(fault: Fault) -> Errors {
        Errors::new("", vec![fault])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, expected) in [
            ("10.0.0.1:8000", "10.0.0.1:8000"),
            ("[::1]:8000", "[::1]:8000"),
            ("vllm-0.vllm:8000", "vllm-0.vllm:8000"),
            ("http://10.0.0.1:8000/", "10.0.0.1:8000"),
            ("http://host", "host:80"),
            ("https://host", "host:443"),
        ] {
            assert_eq!(address(text).as_deref(), Ok(expected));
        }
        for bad in [
            "",
            "host",
            "10.0.0.1:0",
            "10.0.0.1:x",
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
        let list = parse_endpoints("endpoints:\n- address: 10.0.0.1:8000\n  weight: 0\n  labels: {llm-d.ai/role: decode}\n- {address: '10.0.0.2:8000', name: b, engine: sglang}\n", "f").unwrap();
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
        assert_eq!(parse_endpoints("", "f").unwrap(), []);
        assert_eq!(parse_endpoints("{\"endpoints\": []}", "f").unwrap(), []);
        let twice =
            parse_endpoints("endpoints:\n- address: a:1\n- address: a:1\n", "f").unwrap_err();
        assert_eq!(
            twice.to_string(),
            "f:3: endpoints[1]: `a:1` is the name of endpoints[0] too; names must differ"
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
