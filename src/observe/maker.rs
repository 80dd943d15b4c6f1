//! Makes metrics, registers them, and remembers what each is for the page that explains them.

use std::cell::RefCell;

use prometheus::core::Collector;
use prometheus::{CounterVec, Error, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

/// Seconds; from what nobody notices to the longest waits of a batch class.
const WAIT_BUCKETS: &[f64] =
    &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// What a metric is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its name, a histogram's without `_bucket`, `_sum` and `_count`.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// What it counts.
    pub help: String,
    /// Its labels.
    pub labels: Vec<String>,
}

/// Makes metrics and registers them.
#[derive(Default)]
pub(super) struct Maker {
    registry: Registry,
    made: RefCell<Vec<Described>>,
}

impl Maker {
    /// The registry of all that were made, and what they are, by name.
    pub(super) fn finish(self) -> (Registry, Vec<Described>) {
        let mut made = self.made.into_inner();
        made.sort_by(|one, other| one.name.cmp(&other.name));
        (self.registry, made)
    }

    fn register<M>(&self, metric: M, kind: &'static str, opts: &Opts, labels: &[&str]) -> Result<M, Error>
    where
        M: Collector + Clone + 'static,
    {
        self.registry.register(Box::new(metric.clone()))?;
        let (name, help) = (opts.name.clone(), opts.help.clone());
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        self.made.borrow_mut().push(Described { name, kind, help, labels });
        Ok(metric)
    }

    pub(super) fn count(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, Error> {
        let opts = Opts::new(name, help);
        self.register(IntCounterVec::new(opts.clone(), labels)?, "counter", &opts, labels)
    }

    pub(super) fn amount(&self, name: &str, help: &str, labels: &[&str]) -> Result<CounterVec, Error> {
        let opts = Opts::new(name, help);
        self.register(CounterVec::new(opts.clone(), labels)?, "counter", &opts, labels)
    }

    pub(super) fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec, Error> {
        let opts = Opts::new(name, help);
        self.register(GaugeVec::new(opts.clone(), labels)?, "gauge", &opts, labels)
    }

    pub(super) fn error(&self, name: &str, help: &str) -> Result<GaugeVec, Error> {
        self.gauge(name, help, &["measure"])
    }

    pub(super) fn histogram(&self, name: &str, help: &str, labels: &[&str]) -> Result<HistogramVec, Error> {
        let opts = Opts::new(name, help);
        let buckets = HistogramOpts::from(opts.clone()).buckets(WAIT_BUCKETS.to_vec());
        self.register(HistogramVec::new(buckets, labels)?, "histogram", &opts, labels)
    }
}
