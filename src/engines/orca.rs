//! ORCA: the load that an engine reports in a header of an answer, when asked to.
//!
//! The header is `endpoint-load-metrics: TEXT named_metrics.a=0.5, named_metrics.b=3` or
//! `endpoint-load-metrics: JSON {"named_metrics": {"a": 0.5}}` (xDS' open load report). Two engines write it, under
//! names of their own: vLLM `kv_cache_usage_perc` and `num_requests_waiting`, Triton `kv_cache_utilization` and
//! `max_token_capacity`. The numbers are those of the moment when the answer began. What else is in it is for others
//! and passed over; a header that is not in either form is an error, and tells nothing.

use std::collections::BTreeMap;

use crate::units::{EngineGauges, Tokens};

use super::names::{part, whole};

/// The most bytes of a header that are looked at.
const MOST_BYTES: usize = 8 * 1024;

/// A header that is no load report, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the header endpoint-load-metrics is no load report: {0}")]
pub struct NotOrca(&'static str);

/// Reads the value of `endpoint-load-metrics`. What it does not say is unknown, and that may be everything.
///
/// # Errors
/// When it is in neither form.
pub fn read_header(value: &str) -> Result<EngineGauges, NotOrca> {
    if value.len() > MOST_BYTES {
        return Err(NotOrca("it is longer than 8 KiB"));
    }
    let (form, report) = value.trim().split_once(' ').unwrap_or((value.trim(), ""));
    let metrics = match form {
        "TEXT" => text(report)?,
        "JSON" => json(report)?,
        "BIN" => return Err(NotOrca("it is in the binary form, which was not asked for")),
        _ => return Err(NotOrca("it must begin with TEXT or JSON")),
    };
    let get = |names: &[&str]| names.iter().find_map(|name| metrics.get(*name)).copied();
    Ok(EngineGauges {
        waiting: get(&["num_requests_waiting"]).and_then(whole),
        running: get(&["num_requests_running"]).and_then(whole),
        kv_usage: get(&["kv_cache_usage_perc", "kv_cache_utilization"]).and_then(part),
        preemptions: None,
        kv_capacity: get(&["max_token_capacity"]).and_then(whole).filter(|tokens| *tokens > 0).map(Tokens::new),
    })
}

type Metrics = BTreeMap<String, f64>;

fn text(report: &str) -> Result<Metrics, NotOrca> {
    let mut metrics = Metrics::new();
    for pair in report.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once(['=', ':']).ok_or(NotOrca("a metric needs an `=`"))?;
        let value = value.trim().parse().map_err(|_| NotOrca("a metric's value is not a number"))?;
        if let Some(name) = name.trim().strip_prefix("named_metrics.") {
            metrics.insert(name.to_owned(), value);
        }
    }
    Ok(metrics)
}

fn json(report: &str) -> Result<Metrics, NotOrca> {
    let report: serde_json::Value =
        serde_json::from_str(report).map_err(|_| NotOrca("what follows JSON is not JSON"))?;
    let report = report.as_object().ok_or(NotOrca("what follows JSON is not an object"))?;
    let Some(named) = report.get("named_metrics") else { return Ok(Metrics::new()) };
    let named = named.as_object().ok_or(NotOrca("named_metrics is not an object"))?;
    let metrics = named.iter().map(|(name, value)| {
        let value = value.as_f64().ok_or(NotOrca("a metric's value is not a number"))?;
        Ok((name.clone(), value))
    });
    metrics.collect()
}

#[cfg(test)]
mod tests {
    use super::read_header;
    use crate::units::{EngineGauges, Share, Tokens};

    #[test]
    fn both_forms_say_the_same() {
        let vllm = EngineGauges { waiting: Some(7), kv_usage: Share::new(0.25).ok(), ..EngineGauges::default() };
        for header in [
            "TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=7.0",
            "TEXT cpu_utilization=0.3,named_metrics.num_requests_waiting=7,named_metrics.kv_cache_usage_perc=0.25,",
            "JSON {\"named_metrics\": {\"kv_cache_usage_perc\": 0.25, \"num_requests_waiting\": 7}, \"eps\": 1}",
        ] {
            assert_eq!(read_header(header), Ok(vllm), "{header}");
        }
        let triton = EngineGauges {
            kv_usage: Share::new(1.0).ok(),
            kv_capacity: Some(Tokens::new(29_184)),
            ..EngineGauges::default()
        };
        let header = "TEXT named_metrics.kv_cache_utilization=1.01,named_metrics.max_token_capacity=29184";
        assert_eq!(read_header(header), Ok(triton));
    }

    #[test]
    fn what_is_not_said_is_unknown_and_never_nothing() {
        for header in [
            "TEXT cpu_utilization=0.3",
            "JSON {}",
            "TEXT ",
            "TEXT named_metrics.num_requests_waiting=-1, named_metrics.kv_cache_usage_perc=nan",
        ] {
            assert_eq!(read_header(header), Ok(EngineGauges::default()), "{header}");
        }
    }

    #[test]
    fn a_header_in_neither_form_tells_nothing() {
        for (header, what) in [
            ("", "TEXT or JSON"),
            ("XML <a/>", "TEXT or JSON"),
            ("TEXT a", "needs an `=`"),
            ("TEXT named_metrics.a=b", "not a number"),
            ("JSON []", "not an object"),
            ("JSON {", "not JSON"),
            ("JSON {\"named_metrics\": 1}", "not an object"),
            ("JSON {\"named_metrics\": {\"a\": \"1\"}}", "not a number"),
            ("BIN CZqZmZmZ", "binary"),
        ] {
            let error = read_header(header).expect_err(header).to_string();
            assert!(error.contains(what), "{header}: {error}");
        }
        assert!(read_header(&format!("TEXT {}", "a=1,".repeat(5_000))).is_err(), "bounded");
    }
}
