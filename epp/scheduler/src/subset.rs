//! The proxy's restriction of a choice: addresses that may serve a request.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// One address that may serve a request.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug, Serialize, Deserialize)]
pub struct SubsetEntry {
    /// IPv4 or IPv6; an IPv4 address written as IPv6 is kept as IPv4.
    pub ip: IpAddr,
    /// The port; `None` allows every port of that address.
    pub port: Option<u16>,
}

impl SubsetEntry {
    /// Reads `ip:port`, `[v6]:port`, `[v6]` or a bare address; `None` for anything else.
    pub fn parse(text: &str) -> Option<SubsetEntry> {
        let text = text.trim();
        if let Ok(socket) = text.parse::<SocketAddr>() {
            return Some(SubsetEntry::of(socket.ip(), Some(socket.port())));
        }
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(text);
        let ip = bare.parse().ok()?;
        Some(SubsetEntry::of(ip, None))
    }

    fn of(ip: IpAddr, port: Option<u16>) -> SubsetEntry {
        let ip = ip.to_canonical();
        SubsetEntry { ip, port }
    }
}

/// Reads a subset hint: each item may itself be a comma-separated list.
///
/// Items that are not addresses are left out, so a hint of nothing else gives an empty list, which allows no
/// endpoint at all: a restriction that cannot be read must not open the whole pool.
pub fn parse_subset<'a>(list: impl Iterator<Item = &'a str>) -> Vec<SubsetEntry> {
    list.flat_map(|item| item.split(','))
        .filter_map(SubsetEntry::parse)
        .collect()
}

/// A restriction prepared for many questions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Subset(Vec<SubsetEntry>);

impl Subset {
    /// The same restriction whatever the order and repetition of its entries.
    pub fn new(entries: &[SubsetEntry]) -> Subset {
        let mut sorted = Vec::with_capacity(entries.len());
        sort_into(entries, &mut sorted);
        sorted.dedup();
        Subset(sorted)
    }

    /// True if it allows nobody.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an endpoint at this address may serve; one with a host name may not.
    pub fn allows(&self, socket: Option<SocketAddr>) -> bool {
        allows(&self.0, socket)
    }
}

/// Sorts into `sorted` for [`allows`].
pub(crate) fn sort_into(subset: &[SubsetEntry], sorted: &mut Vec<SubsetEntry>) {
    sorted.clear();
    sorted.extend(subset.iter().map(|e| SubsetEntry::of(e.ip, e.port)));
    sorted.sort_unstable();
}

/// Whether the sorted list names this address, with its port or with any.
pub(crate) fn allows(sorted: &[SubsetEntry], socket: Option<SocketAddr>) -> bool {
    let Some(socket) = socket else { return false };
    let with = |port| SubsetEntry::of(socket.ip(), port);
    sorted.binary_search(&with(None)).is_ok()
        || sorted.binary_search(&with(Some(socket.port()))).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Option<SocketAddr> {
        text.parse().ok()
    }

    fn allowed(hint: &[&str], address: &str) -> bool {
        let mut sorted = Vec::new();
        sort_into(&parse_subset(hint.iter().copied()), &mut sorted);
        allows(&sorted, at(address))
    }

    #[test]
    fn ports_are_honoured_and_a_bare_address_means_every_port() {
        assert!(allowed(&["10.0.0.1:8000"], "10.0.0.1:8000"));
        assert!(!allowed(&["10.0.0.1:8000"], "10.0.0.1:8001"));
        assert!(allowed(&["10.0.0.1"], "10.0.0.1:8001"));
        assert!(allowed(&["[2001:db8::1]:80"], "[2001:db8::1]:80"));
        assert!(!allowed(&["[2001:db8::1]:80"], "[2001:db8::1]:81"));
        assert!(allowed(&["[2001:db8::1]"], "[2001:db8::1]:81"));
        assert!(allowed(&["2001:db8::1"], "[2001:db8::1]:81"));
        assert!(allowed(&["::ffff:10.0.0.1"], "10.0.0.1:8001"));
    }

    #[test]
    fn lists_are_split_and_trimmed() {
        let hint = [" 10.0.0.1:1 , 10.0.0.2:2", "10.0.0.3", ""];
        let parsed = parse_subset(hint.into_iter());
        let ports: Vec<_> = parsed.iter().map(|e| e.port).collect();
        assert_eq!(ports, [Some(1), Some(2), None]);
        assert!(allowed(&hint, "10.0.0.3:9"));
    }

    #[test]
    fn what_is_not_an_address_allows_nobody() {
        let parsed = parse_subset(["pod-a:8000,,x", "10.0.0.1:99999", "[::1"].into_iter());
        assert_eq!(parsed, []);
        assert!(!allowed(&["pod-a"], "10.0.0.1:1"));
    }

    #[test]
    fn a_name_matches_no_entry() {
        let mut sorted = Vec::new();
        sort_into(&parse_subset(["127.0.0.1"].into_iter()), &mut sorted);
        assert!(!allows(&sorted, at("localhost:8000")));
    }
}
