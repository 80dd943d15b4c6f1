//! `tallygate admin`: ask a running gateway what it is doing.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use http::{Request, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Map, Value};

use crate::cli::Outcome;
use crate::settings::{ADMIN_TOKEN, Secret};

/// The most that is read of an answer.
const ANSWER_MOST: usize = 256 * 1024 * 1024;
/// How long an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Ask a running gateway what it is doing.
///
/// Where the admin API needs a token, it is taken from TALLYGATE_ADMIN_TOKEN.
#[derive(Debug, Args)]
pub(super) struct Admin {
    /// What to show.
    what: What,
    /// Where the admin API listens.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
    url: Uri,
    /// Print the answer as it is, in JSON.
    #[arg(long)]
    json: bool,
}

/// What can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Who was served how much.
    Tenants,
    /// What waits, by class.
    Queues,
    /// Every request that waits or runs.
    Requests,
    /// What runs, by pool.
    Pools,
}

impl What {
    fn path(self) -> &'static str {
        match self {
            Self::Tenants => "/v1/tenants",
            Self::Queues => "/v1/queues",
            Self::Requests => "/v1/requests",
            Self::Pools => "/v1/pools",
        }
    }

    /// The columns of its table, and the fields they show.
    fn columns(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Tenants => &[
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
            ],
            Self::Queues => &[
                ("POOL", "pool"),
                ("CLASS", "class"),
                ("REQUESTS", "queued_requests"),
                ("TOKENS", "queued_tokens"),
                ("TENANTS", "eligible_tenants"),
                ("OLDEST-S", "oldest_wait_s"),
                ("DRAIN/S", "drain_rate"),
                ("OWED", "owed"),
            ],
            Self::Requests => &[
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
            ],
            Self::Pools => &[
                ("POOL", "pool"),
                ("RUNNING", "in_flight_requests"),
                ("OF", "window_requests"),
                ("TOKENS", "in_flight_tokens"),
                ("OF", "window_tokens"),
                ("QUEUED", "queued_requests"),
                ("QUEUED-TOKENS", "queued_tokens"),
            ],
        }
    }
}

impl Admin {
    /// Asks, and prints the answer.
    ///
    /// # Errors
    /// When there is no gateway there, it refuses, or its answer cannot be read.
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let token = Secret::from_env(ADMIN_TOKEN).map_err(|error| anyhow!(error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let answer = runtime.block_on(self.ask(token.as_ref()))?;
        let mut out = std::io::stdout().lock();
        if self.json {
            out.write_all(&answer)?;
            writeln!(out)?;
        } else {
            let rows: Vec<Map<String, Value>> =
                serde_json::from_slice(&answer).context("the answer is not a list of rows")?;
            out.write_all(table(self.what.columns(), &rows).as_bytes())?;
        }
        out.flush()?;
        Ok(Outcome::Success)
    }

    async fn ask(&self, token: Option<&Secret>) -> anyhow::Result<Bytes> {
        if self.url.scheme_str() != Some("http") || self.url.authority().is_none() {
            bail!("--url must look like http://host:port, not {}", self.url);
        }
        let base = self.url.to_string();
        let url = format!("{}{}", base.trim_end_matches('/'), self.what.path());
        let mut request = Request::get(&url);
        if let Some(token) = token {
            request = request
                .header(header::AUTHORIZATION, token.bearer().map_err(|error| anyhow!("{ADMIN_TOKEN}: {error}"))?);
        }
        let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
        let asking = async {
            let response = client
                .request(request.body(Empty::new())?)
                .await
                .with_context(|| format!("no gateway answers at {base}; is `tallygate serve` running?"))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_MOST).collect().await;
            let body = body.map_err(|error| anyhow!("the answer broke off: {error}"))?.to_bytes();
            Ok::<_, anyhow::Error>((status, body))
        };
        let (status, body) = tokio::time::timeout(ANSWER_WITHIN, asking)
            .await
            .map_err(|_elapsed| anyhow!("no answer from {base} within {} s", ANSWER_WITHIN.as_secs()))??;
        if !status.is_success() {
            let said: Value = serde_json::from_slice(&body).unwrap_or_default();
            let message = said["error"]["message"].as_str().unwrap_or("it does not say why");
            bail!("{url} answered {status}: {message}");
        }
        Ok(body)
    }
}

/// Rows under headings, words to the left and numbers to the right.
fn table(columns: &[(&str, &str)], rows: &[Map<String, Value>]) -> String {
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| columns.iter().map(|(_, field)| cell(row.get(*field))).collect()).collect();
    let is_number = |column: usize| rows.iter().any(|row| row.get(columns[column].1).is_some_and(Value::is_number));
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(at, (heading, _))| cells.iter().map(|row| row[at].chars().count()).max().unwrap_or(0).max(heading.len()))
        .collect();
    let headings: Vec<String> = columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&headings).chain(&cells) {
        let line: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(
                |(at, (cell, width))| if is_number(at) { format!("{cell:>width$}") } else { format!("{cell:<width$}") },
            )
            .collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A value for people: numbers to three places, nothing as a dash. Control characters are shown, not obeyed.
fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".into(),
        Some(Value::String(text)) => text.chars().flat_map(char::escape_debug).collect(),
        Some(Value::Number(number)) => match number.as_f64() {
            Some(value) if value.fract() != 0.0 => format!("{value:.3}"),
            Some(value) => format!("{value:.0}"),
            None => number.to_string(),
        },
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::table;

    #[test]
    fn a_table_is_aligned() {
        let rows = json!([
            {"tenant": "a", "charged": 1234.5678, "session": null},
            {"tenant": "longer\u{1b}", "charged": 7},
        ]);
        let rows: Vec<_> = rows.as_array().unwrap().iter().map(|row| row.as_object().unwrap().clone()).collect();
        let columns = [("TENANT", "tenant"), ("CHARGED", "charged"), ("SESSION", "session")];
        let expected = "\
TENANT         CHARGED  SESSION
a             1234.568  -
longer\\u{1b}         7  -
";
        assert_eq!(table(&columns, &rows), expected);
        assert_eq!(table(&columns, &[]), "TENANT  CHARGED  SESSION\n");
    }
}
