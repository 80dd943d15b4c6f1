//! A map that keeps the entries with the latest news and drops the one longest without.
//!
//! The bound is a count, fixed at the start: who sends ever new names pushes out names without news, never
//! grows the table. Reading is not news, so a lookup needs no exclusive access.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

#[derive(Clone, Debug)]
pub(super) struct Recent<K, V> {
    entries: HashMap<K, (u64, V)>,
    by_age: BTreeMap<u64, K>,
    clock: u64,
    most: usize,
}

impl<K: Clone + Eq + Hash, V: Default> Recent<K, V> {
    pub(super) fn new(most: usize) -> Self {
        Self { entries: HashMap::new(), by_age: BTreeMap::new(), clock: 0, most: most.max(1) }
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    /// Changes the entry, made if missing, and counts that as news of it.
    pub(super) fn entry(&mut self, key: K, change: impl FnOnce(&mut V)) {
        self.clock += 1;
        if let Some((age, value)) = self.entries.get_mut(&key) {
            self.by_age.remove(age);
            *age = self.clock;
            change(value);
        } else {
            if self.entries.len() >= self.most
                && let Some((_, oldest)) = self.by_age.pop_first()
            {
                self.entries.remove(&oldest);
            }
            let mut value = V::default();
            change(&mut value);
            self.entries.insert(key.clone(), (self.clock, value));
        }
        self.by_age.insert(self.clock, key);
    }

    /// Drops an entry, if there is one.
    pub(super) fn remove(&mut self, key: &K) {
        if let Some((age, _)) = self.entries.remove(key) {
            self.by_age.remove(&age);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.by_age.values().filter_map(|key| Some((key, self.get(key)?)))
    }
}
