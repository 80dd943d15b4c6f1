//! Debts of principals that are no longer known by name, in memory of fixed size.
//!
//! *Decides* what counter a principal starts with that was forgotten while it still owed. *Formula:* a
//! count-min sketch (Cormode and Muthukrishnan 2005) with the maximum in place of the sum: a debt `v` raises
//! the name's slot in each of four rows to at least `v`; the debt of a name is the least of its four slots.
//! *Bound:* never less than what was kept, so no debt is lost; more only if the name collides in all four rows
//! with greater debtors. As counters only rise, an old debt soon lies below the level that any newcomer is
//! lifted to and no longer matters, so nothing ever has to be removed. *At start* it holds no memory at all; it
//! is allocated with the first debt. *Never* grows after that.

use std::hash::Hasher;

use crate::units::VirtualTokens;

const ROWS: usize = 4;

/// A table of debts by name.
#[derive(Debug)]
pub(super) struct Debts {
    columns: usize,
    seed: u64,
    slots: Vec<VirtualTokens>,
}

impl Debts {
    /// A table of `4 × columns` slots, whose hashing is decided by the seed.
    pub(super) fn new(columns: usize, seed: u64) -> Self {
        Self { columns: columns.max(1), seed, slots: Vec::new() }
    }

    /// What the name owes at most; zero when nothing was ever kept.
    pub(super) fn of(&self, name: &str) -> VirtualTokens {
        if self.slots.is_empty() {
            return VirtualTokens::ZERO;
        }
        self.places(name).map(|place| self.slots[place]).into_iter().min().unwrap_or_default()
    }

    /// Keeps a debt under a name.
    pub(super) fn keep(&mut self, name: &str, debt: VirtualTokens) {
        if self.slots.is_empty() {
            self.slots = vec![VirtualTokens::ZERO; ROWS * self.columns];
        }
        for place in self.places(name) {
            self.slots[place] = self.slots[place].max(debt);
        }
    }

    fn places(&self, name: &str) -> [usize; ROWS] {
        std::array::from_fn(|row| {
            let mut hasher = Fnv::new(self.seed.wrapping_add(row as u64));
            hasher.write(name.as_bytes());
            #[expect(clippy::cast_possible_truncation, reason = "reduced to a column on the next line")]
            let column = hasher.finish() as usize % self.columns;
            row * self.columns + column
        })
    }
}

/// FNV-1a with a seed and a final mix: stable across platforms and releases, which the standard hasher does
/// not promise, so that equal inputs give equal decisions.
struct Fnv(u64);

impl Fnv {
    fn new(seed: u64) -> Self {
        Self(0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ (mixed >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::Debts;
    use crate::units::VirtualTokens;

    #[test]
    fn no_debt_is_lost_and_few_are_invented() {
        let mut debts = Debts::new(256, 7);
        assert_eq!(debts.of("anyone"), VirtualTokens::ZERO);
        for debtor in 0..64u64 {
            debts.keep(&format!("debtor-{debtor}"), VirtualTokens::whole(debtor + 1));
        }
        for debtor in 0..64u64 {
            assert!(debts.of(&format!("debtor-{debtor}")) >= VirtualTokens::whole(debtor + 1));
        }
        let innocent_charged = (0..1_000).filter(|n| debts.of(&format!("innocent-{n}")).is_positive()).count();
        assert!(innocent_charged < 20, "{innocent_charged} of 1000 innocents collide in all four rows");
    }
}
