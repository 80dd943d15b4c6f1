//! How far predictions were off, in constant memory.
//!
//! Errors are summed as integers; the quantiles of the true output come from a histogram whose buckets grow by
//! an eighth of a binary order of magnitude, so each is right to within about nine percent whatever the
//! lengths, and two runs over the same requests report the same numbers.

use crate::units::Tokens;

/// Buckets an order of magnitude of two is divided into, as a power of two.
const SUB_BITS: u32 = 3;
const BUCKETS: usize = ((u64::BITS - SUB_BITS + 1) << SUB_BITS) as usize;

/// How good predictions were, in output tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Completed requests they were compared with.
    pub count: u64,
    /// Mean of |predicted − actual|.
    pub mean_absolute_error: f64,
    /// Mean of predicted − actual: above zero when too much was expected.
    pub bias: f64,
    /// The output that half of the requests did not exceed.
    pub p50: Tokens,
    /// The output that 90 % did not exceed.
    pub p90: Tokens,
    /// The output that 99 % did not exceed.
    pub p99: Tokens,
}

#[derive(Clone, Debug)]
pub(super) struct Tally {
    count: u64,
    over: u128,
    under: u128,
    buckets: Box<[u32; BUCKETS]>,
}

impl Default for Tally {
    fn default() -> Self {
        Self { count: 0, over: 0, under: 0, buckets: Box::new([0; BUCKETS]) }
    }
}

impl Tally {
    pub(super) fn add(&mut self, predicted: Tokens, actual: Tokens) {
        self.count += 1;
        self.over += u128::from(predicted.saturating_sub(actual).get());
        self.under += u128::from(actual.saturating_sub(predicted).get());
        let bucket = &mut self.buckets[bucket(actual.get())];
        *bucket = bucket.saturating_add(1);
    }

    #[expect(clippy::cast_precision_loss, reason = "for statistics only")]
    pub(super) fn score(&self) -> Score {
        let count = self.count.max(1) as f64;
        let (over, under) = (self.over as f64, self.under as f64);
        Score {
            count: self.count,
            mean_absolute_error: (over + under) / count,
            bias: (over - under) / count,
            p50: self.quantile(50),
            p90: self.quantile(90),
            p99: self.quantile(99),
        }
    }

    /// The top of the bucket that this percentage of the observations does not exceed.
    fn quantile(&self, percent: u64) -> Tokens {
        let seen: u64 = self.buckets.iter().map(|count| u64::from(*count)).sum();
        let rank = (seen * percent).div_ceil(100);
        let mut below = 0;
        let at = self.buckets.iter().position(|count| {
            below += u64::from(*count);
            below >= rank && below > 0
        });
        at.map_or(Tokens::ZERO, |at| Tokens::new(top(at)))
    }
}

/// Values below 2^SUB_BITS have a bucket each; above, each power of two has 2^SUB_BITS of them.
fn bucket(value: u64) -> usize {
    let order = (u64::BITS - value.leading_zeros()).saturating_sub(SUB_BITS + 1);
    let within = value >> order;
    usize::try_from((u64::from(order) << SUB_BITS) + within).unwrap_or(BUCKETS - 1)
}

/// The largest value of a bucket.
fn top(bucket: usize) -> u64 {
    let bucket = u64::try_from(bucket).unwrap_or(u64::MAX);
    let order = (bucket >> SUB_BITS).saturating_sub(1);
    let within = bucket - (order << SUB_BITS);
    // The very last bucket ends where the numbers do.
    (within + 1).checked_shl(u32::try_from(order).unwrap_or(u32::MAX)).map_or(u64::MAX, |end| end.wrapping_sub(1))
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS, Tally, bucket, top};
    use crate::units::Tokens;

    #[test]
    fn buckets_follow_each_other_without_gap_or_overlap() {
        for at in 0..BUCKETS - 1 {
            assert_eq!(bucket(top(at)), at);
            assert_eq!(bucket(top(at) + 1), at + 1);
        }
        assert_eq!((bucket(u64::MAX), top(BUCKETS - 1)), (BUCKETS - 1, u64::MAX));
    }

    #[test]
    fn errors_and_quantiles_are_what_they_say() {
        let mut tally = Tally::default();
        for actual in 1..=1_000 {
            tally.add(Tokens::new(400), Tokens::new(actual));
        }
        let score = tally.score();
        assert_eq!(score.count, 1_000);
        assert!((score.bias - (400.0 - 500.5)).abs() < 1e-9);
        let error = (1..=1_000_i32).map(|actual| f64::from((400 - actual).abs())).sum::<f64>() / 1_000.0;
        assert!((score.mean_absolute_error - error).abs() < 1e-9);
        for (quantile, exact) in [(score.p50, 500), (score.p90, 900), (score.p99, 990)] {
            assert!((exact..=exact * 112 / 100).contains(&quantile.get()), "{quantile} for {exact}");
        }
        let none = Tally::default().score();
        assert_eq!((none.count, none.p50, none.bias.to_bits()), (0, Tokens::ZERO, 0.0_f64.to_bits()));
    }
}
