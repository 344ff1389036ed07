//! Session ids bound to endpoints: bounded in number and length, ended exactly at their time.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::{Incarnation, Nanos};

/// Longer ids are not bound: they come from outside.
const MAX_ID_BYTES: usize = 256;

/// The bindings of each plugin instance, by its name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sessions(BTreeMap<Arc<str>, Table>);

/// The limits of one table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) ttl: Nanos,
    pub(crate) most: usize,
}

#[derive(Clone, Copy, Debug)]
struct Binding {
    endpoint: Incarnation,
    used: Nanos,
    /// Place in the order of use.
    turn: u64,
}

/// Bindings in the order of their last use. Never iterated by hash, so that a replay sees the same.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Row>", into = "Vec<Row>")]
struct Table {
    by_id: HashMap<Arc<str>, Binding>,
    order: BTreeMap<u64, Arc<str>>,
    turns: u64,
}

/// A binding written down; rows are in the order of use.
type Row = (Arc<str>, Incarnation, Nanos);

impl Sessions {
    /// Who `id` is bound to.
    pub(crate) fn get(
        &self,
        plugin: &str,
        id: &str,
        now: Nanos,
        limits: Limits,
    ) -> Option<Incarnation> {
        let binding = self.0.get(plugin)?.by_id.get(id)?;
        (now.saturating_sub(binding.used) <= limits.ttl).then_some(binding.endpoint)
    }

    /// When `id` was bound last, as a number that grows; `None` if it is not.
    pub(crate) fn turn(&self, plugin: &str, id: &str) -> Option<u64> {
        Some(self.0.get(plugin)?.by_id.get(id)?.turn)
    }

    /// Binds `id`, or uses its binding again.
    pub(crate) fn bind(
        &mut self,
        plugin: &Arc<str>,
        id: &str,
        endpoint: Incarnation,
        now: Nanos,
        limits: Limits,
    ) {
        if id.len() > MAX_ID_BYTES {
            return;
        }
        let table = match self.0.get_mut(plugin) {
            Some(table) => table,
            None => self.0.entry(Arc::clone(plugin)).or_default(),
        };
        table.expire(now, limits);
        table.bind(id.into(), endpoint, now);
        table.shrink(limits.most);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.values().map(|table| table.by_id.len()).sum()
    }
}

impl Table {
    fn bind(&mut self, id: Arc<str>, endpoint: Incarnation, used: Nanos) {
        self.turns += 1;
        let binding = Binding {
            endpoint,
            used,
            turn: self.turns,
        };
        if let Some(old) = self.by_id.insert(Arc::clone(&id), binding) {
            self.order.remove(&old.turn);
        }
        self.order.insert(self.turns, id);
    }

    fn expire(&mut self, now: Nanos, limits: Limits) {
        while let Some(oldest) = self.order.first_entry() {
            let used = self.by_id.get(oldest.get()).map_or(0, |b| b.used);
            if now.saturating_sub(used) <= limits.ttl {
                break;
            }
            self.by_id.remove(&oldest.remove());
        }
    }

    fn shrink(&mut self, most: usize) {
        while self.by_id.len() > most
            && let Some((_, id)) = self.order.pop_first()
        {
            self.by_id.remove(&id);
        }
    }
}

impl From<Vec<Row>> for Table {
    fn from(rows: Vec<Row>) -> Table {
        let mut table = Table::default();
        for (id, endpoint, used) in rows {
            table.bind(id, endpoint, used);
        }
        table
    }
}

impl From<Table> for Vec<Row> {
    fn from(table: Table) -> Vec<Row> {
        let ids = table.order.into_values();
        ids.filter_map(|id| {
            let binding = table.by_id.get(&id)?;
            Some((id, binding.endpoint, binding.used))
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { ttl: 10, most: 3 };

    fn plugin() -> Arc<str> {
        "sticky".into()
    }

    #[test]
    fn a_binding_ends_at_its_time_and_use_renews_it() {
        let mut sessions = Sessions::default();
        sessions.bind(&plugin(), "a", Incarnation(1), 0, LIMITS);
        assert_eq!(
            sessions.get("sticky", "a", 10, LIMITS),
            Some(Incarnation(1))
        );
        assert_eq!(sessions.get("sticky", "a", 11, LIMITS), None);
        sessions.bind(&plugin(), "a", Incarnation(1), 8, LIMITS);
        assert_eq!(
            sessions.get("sticky", "a", 18, LIMITS),
            Some(Incarnation(1))
        );
        assert_eq!(sessions.get("other", "a", 8, LIMITS), None);
    }

    #[test]
    fn the_one_unused_for_longest_goes_first() {
        let mut sessions = Sessions::default();
        for (at, id) in [(1, "a"), (2, "b"), (3, "c"), (4, "a"), (5, "d")] {
            sessions.bind(&plugin(), id, Incarnation(at), at, LIMITS);
        }
        assert_eq!(sessions.len(), 3);
        assert_eq!(sessions.get("sticky", "b", 5, LIMITS), None);
        assert_eq!(sessions.get("sticky", "a", 5, LIMITS), Some(Incarnation(4)));
    }

    #[test]
    fn expired_bindings_leave_the_table() {
        let mut sessions = Sessions::default();
        sessions.bind(&plugin(), "a", Incarnation(1), 0, LIMITS);
        sessions.bind(&plugin(), "b", Incarnation(1), 5, LIMITS);
        sessions.bind(&plugin(), "c", Incarnation(1), 16, LIMITS);
        assert_eq!(sessions.len(), 1);
    }

    #[test]
    fn an_endless_id_is_not_kept() {
        let mut sessions = Sessions::default();
        let id = "x".repeat(MAX_ID_BYTES + 1);
        sessions.bind(&plugin(), &id, Incarnation(1), 0, LIMITS);
        assert_eq!(sessions.len(), 0);
    }

    #[test]
    fn written_down_and_read_it_goes_on_the_same() {
        let mut sessions = Sessions::default();
        for (at, id) in [(1, "a"), (2, "b"), (3, "a"), (4, "c")] {
            sessions.bind(&plugin(), id, Incarnation(at), at, LIMITS);
        }
        let text = serde_json::to_string(&sessions).unwrap();
        assert_eq!(text, r#"{"sticky":[["b",2,2],["a",3,3],["c",4,4]]}"#);
        let mut read: Sessions = serde_json::from_str(&text).unwrap();
        for table in [&mut sessions, &mut read] {
            table.bind(&plugin(), "d", Incarnation(5), 5, LIMITS);
            assert_eq!(table.get("sticky", "b", 5, LIMITS), None);
        }
        let texts = [&sessions, &read].map(|s| serde_json::to_string(s).unwrap());
        assert_eq!(texts[0], texts[1]);
    }
}
