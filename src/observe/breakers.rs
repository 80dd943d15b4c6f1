//! What is counted and shown of breakers.
//!
//! Labels are bounded by the policy and the program: a tenant that is held back by itself is counted, not named. Who it
//! is tell the log and `GET /v1/pools`.

use prometheus::{GaugeVec, IntCounterVec};

use crate::admission::BreakerStage;
use crate::units::{PoolIndex, TenantId};

use super::maker::Maker;

/// What the gauges show of one pool's breaker.
#[derive(Clone, Copy, Debug)]
pub struct BreakerGauge {
    /// Of which pool.
    pub pool: PoolIndex,
    /// How its upstream is treated.
    pub stage: BreakerStage,
    /// How many tenants are treated otherwise.
    pub held_back: usize,
}

#[derive(Debug)]
pub(super) struct Breakers {
    shifts: IntCounterVec,
    stage: GaugeVec,
    held_back: GaugeVec,
}

impl Breakers {
    pub(super) fn new(maker: &Maker) -> Result<Self, prometheus::Error> {
        Ok(Self {
            shifts: maker.count(
                "tallygate_breaker_shifts_total",
                "Changes of a pool's breaker, or of what it makes of one tenant, by what they led to.",
                &["pool", "whose", "stage"],
            )?,
            stage: maker.gauge(
                "tallygate_breaker_stage",
                "1 for the stage that a pool's breaker is in, 0 for the others.",
                &["pool", "stage"],
            )?,
            held_back: maker.gauge(
                "tallygate_breaker_tenants",
                "Tenants that a pool's breaker treats otherwise than the others.",
                &["pool"],
            )?,
        })
    }

    /// Counts a change.
    pub(super) fn shifted(&self, pool: &str, tenant: Option<&TenantId>, stage: BreakerStage) {
        let whose = if tenant.is_some() { "tenant" } else { "pool" };
        self.shifts.with_label_values(&[pool, whose, stage.name()]).inc();
    }

    /// Shows how it is.
    pub(super) fn show(&self, pool: &str, gauge: &BreakerGauge) {
        for name in BreakerStage::NAMES {
            self.stage.with_label_values(&[pool, name]).set(f64::from(u8::from(gauge.stage.name() == name)));
        }
        let held_back = u32::try_from(gauge.held_back).unwrap_or(u32::MAX);
        self.held_back.with_label_values(&[pool]).set(f64::from(held_back));
    }
}
