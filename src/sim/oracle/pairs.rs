//! The spread of the service difference of every two rivals, while both are eligible.

use std::collections::BTreeMap;

use crate::units::{Instant, VirtualTokens, Weight};

/// Two rivals' difference of service for their weight, in one stretch of joint eligibility.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    since: Instant,
    least: VirtualTokens,
    most: VirtualTokens,
}

/// The widest spread any two rivals came to, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Widest {
    pub(super) since: Instant,
    pub(super) at: Instant,
    pub(super) spread: VirtualTokens,
}

#[derive(Debug)]
struct Rival {
    weight: Weight,
    service: VirtualTokens,
    eligible: bool,
}

/// All rivals of one pool and class. They are numbered in the order in which they first appear.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    rivals: Vec<Rival>,
    stretches: BTreeMap<(usize, usize), Stretch>,
    pub(super) widest: BTreeMap<(usize, usize), Widest>,
}

impl Pairs {
    pub(super) fn add(&mut self, weight: Weight) -> usize {
        self.rivals.push(Rival { weight, service: VirtualTokens::ZERO, eligible: false });
        self.rivals.len() - 1
    }

    pub(super) fn weight(&self, rival: usize) -> Weight {
        self.rivals[rival].weight
    }

    /// Service produced for a rival, whether or not he is eligible just then.
    pub(super) fn serve(&mut self, at: Instant, rival: usize, service: VirtualTokens) {
        self.rivals[rival].service += service;
        if !self.rivals[rival].eligible {
            return;
        }
        for other in (0..self.rivals.len()).filter(|other| *other != rival && self.rivals[*other].eligible) {
            let pair = (rival.min(other), rival.max(other));
            let difference = self.difference(pair);
            if let Some(stretch) = self.stretches.get_mut(&pair) {
                stretch.least = stretch.least.min(difference);
                stretch.most = stretch.most.max(difference);
                let spread = stretch.most - stretch.least;
                if self.widest.get(&pair).is_none_or(|widest| widest.spread < spread) {
                    self.widest.insert(pair, Widest { since: stretch.since, at, spread });
                }
            }
        }
    }

    /// A rival becomes eligible or ceases to be.
    pub(super) fn set_eligible(&mut self, at: Instant, rival: usize, eligible: bool) {
        if self.rivals[rival].eligible == eligible {
            return;
        }
        self.rivals[rival].eligible = eligible;
        for other in (0..self.rivals.len()).filter(|other| *other != rival && self.rivals[*other].eligible) {
            let pair = (rival.min(other), rival.max(other));
            if eligible {
                let difference = self.difference(pair);
                self.stretches.insert(pair, Stretch { since: at, least: difference, most: difference });
            } else {
                self.stretches.remove(&pair);
            }
        }
    }

    fn difference(&self, (one, other): (usize, usize)) -> VirtualTokens {
        let normal = |rival: &Rival| rival.service.over(rival.weight);
        normal(&self.rivals[one]) - normal(&self.rivals[other])
    }
}
