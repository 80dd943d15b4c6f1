//! The columns of each table: a heading, and the field of the admin API's rows it shows.

/// A heading and a field.
pub(super) type Column = (&'static str, &'static str);

pub(super) const TENANTS: &[Column] = &[
    ("POOL", "pool"),
    ("CLASS", "class"),
    ("TENANT", "tenant"),
    ("WEIGHT", "weight"),
    ("COUNTER", "virtual_tokens"),
    ("CHARGED", "charged"),
    ("SHARE-60S", "share_60s"),
    ("QUEUED", "queued_requests"),
    ("RUNNING", "in_flight_requests"),
    ("ADMITTED", "admitted_total"),
    ("REFUSED", "refused_total"),
];

pub(super) const SESSIONS: &[Column] = &[
    ("POOL", "pool"),
    ("CLASS", "class"),
    ("SESSION", "session"),
    ("COUNTER", "virtual_tokens"),
    ("CHARGED", "charged"),
    ("QUEUED", "queued_requests"),
    ("QUEUED-TOKENS", "queued_tokens"),
    ("RUNNING", "in_flight_requests"),
];

pub(super) const BUDGETS: &[Column] = &[
    ("BUDGET", "budget"),
    ("TENANT", "tenant"),
    ("OF", "of"),
    ("UNIT", "unit"),
    ("USED", "used"),
    ("LEFT", "left"),
    ("AMOUNT", "amount"),
    ("PERIOD", "period"),
    ("UNTIL", "until"),
];

pub(super) const QUEUES: &[Column] = &[
    ("POOL", "pool"),
    ("CLASS", "class"),
    ("REQUESTS", "queued_requests"),
    ("TOKENS", "queued_tokens"),
    ("TENANTS", "eligible_tenants"),
    ("OLDEST-S", "oldest_wait_s"),
    ("DRAIN/S", "drain_rate"),
    ("OWED", "owed"),
];

pub(super) const REQUESTS: &[Column] = &[
    ("DECISION", "decision"),
    ("POOL", "pool"),
    ("CLASS", "class"),
    ("TENANT", "tenant"),
    ("SESSION", "session"),
    ("STATE", "state"),
    ("AGE-S", "age_s"),
    ("WAITED-S", "waited_s"),
    ("INPUT", "input_tokens"),
    ("PREDICTED", "predicted_output"),
    ("OUTPUT", "output_tokens"),
];

pub(super) const POOLS: &[Column] = &[
    ("POOL", "pool"),
    ("RUNNING", "in_flight_requests"),
    ("OF", "window_requests"),
    ("TOKENS", "in_flight_tokens"),
    ("OF", "window_tokens"),
    ("WHY", "window_cause"),
    ("BLIND", "window_blind"),
    ("QUEUED", "queued_requests"),
    ("QUEUED-TOKENS", "queued_tokens"),
    ("BREAKER", "breaker.stage"),
    ("SATURATION", "saturation"),
    ("WAIT-S", "predicted_wait_s"),
    ("ENGINE", "engine"),
    ("ITS-QUEUE", "engine_waiting"),
    ("ITS-KV", "engine_kv_usage"),
];

pub(super) const ACCURACY: &[Column] = &[
    ("MODEL", "model"),
    ("OUTPUTS", "outputs"),
    ("ERROR", "output_error"),
    ("BIAS", "output_bias"),
    ("P50", "output_p50"),
    ("P90", "output_p90"),
    ("P99", "output_p99"),
    ("INPUTS", "inputs"),
    ("ERROR", "input_error"),
    ("BIAS", "input_bias"),
    ("COUNT-ERROR", "counted_error"),
    ("COUNT-BIAS", "counted_bias"),
];

pub(super) const DECISIONS: &[Column] = &[
    ("DECISION", "decision"),
    ("AGE-S", "age_s"),
    ("OUTCOME", "outcome"),
    ("REASON", "reason"),
    ("TENANT", "tenant"),
    ("SESSION", "session"),
    ("CLASS", "class"),
    ("MODEL", "model"),
    ("WAITED-S", "waited_s"),
    ("INPUT", "input_tokens"),
    ("OUTPUT", "output_tokens"),
    ("CHARGED", "charged"),
];
