//! `tallygate admin`: ask a running gateway what it is doing, what it decided and why.
//!
//! What is a list is printed as a table, what is one thing as a page; `--json` prints the answer as it came.

mod ask;
mod columns;

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use http::Uri;
use serde_json::{Map, Value, json};

use crate::cli::Outcome;
use crate::settings::{ADMIN_TOKEN, Secret};
use crate::wire::explain::Sketch;

use super::explain::How;
use super::show;
use ask::Question;

/// Ask a running gateway what it is doing, what it decided and why.
///
/// Where the admin API needs a token, it is taken from TALLYGATE_ADMIN_TOKEN.
#[derive(Debug, Args)]
pub(super) struct Admin {
    /// What to show.
    #[command(subcommand)]
    what: What,
    /// Where the admin API listens.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090", global = true)]
    url: Uri,
    /// Print the answer as it is, in JSON.
    #[arg(long, global = true)]
    json: bool,
}

/// What can be shown.
#[derive(Debug, Subcommand)]
enum What {
    /// Who was served how much.
    Tenants,
    /// The same within one tenant.
    Sessions {
        /// Whose.
        #[arg(long, value_name = "TENANT")]
        tenant: String,
    },
    /// What waits, by class.
    Queues,
    /// Every request that waits or runs.
    Requests,
    /// What runs, by pool.
    Pools,
    /// What is used of every budget, by whom.
    Budgets,
    /// How good the estimates of requests were, by model.
    Accuracy,
    /// The latest decisions, the newest first.
    Decisions {
        /// Only this tenant's.
        #[arg(long, value_name = "TENANT")]
        tenant: Option<String>,
        /// Only those that came to this, such as refused or completed.
        #[arg(long, value_name = "OUTCOME")]
        outcome: Option<String>,
        /// At most so many.
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
    },
    /// One decision: why, and what would have let it in.
    Decision {
        /// The id from the answer's x-tallygate-decision header.
        #[arg(value_name = "ID")]
        id: String,
    },
    /// The policy in force.
    Policy,
    /// What would become of a request now. FILE is read as by `tallygate explain`; `-` is standard input.
    Explain {
        /// The request.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        how: How,
    },
}

/// How an answer is shown.
enum Shape {
    /// Rows, under these headings.
    Table(&'static [columns::Column]),
    /// A page.
    Page(fn(&Value) -> String),
}

impl What {
    fn question(&self) -> anyhow::Result<Question> {
        Ok(match self {
            Self::Tenants => Question::get("/v1/tenants"),
            Self::Queues => Question::get("/v1/queues"),
            Self::Requests => Question::get("/v1/requests"),
            Self::Pools => Question::get("/v1/pools"),
            Self::Accuracy => Question::get("/v1/accuracy"),
            Self::Budgets => Question::get("/v1/budgets"),
            Self::Policy => Question::get("/v1/policy"),
            Self::Sessions { tenant } => Question::get("/v1/sessions").with("tenant", tenant),
            Self::Decision { id } => Question::get("/v1/decisions/").below(id),
            Self::Decisions { tenant, outcome, limit } => {
                let mut question = Question::get("/v1/decisions").with("limit", &limit.to_string());
                for (name, value) in [("tenant", tenant), ("outcome", outcome)] {
                    if let Some(value) = value {
                        question = question.with(name, value);
                    }
                }
                question
            }
            Self::Explain { file, how } => Question::post("/v1/explain", envelope(&how.sketch(file)?)?),
        })
    }

    /// The page it is shown as, or the columns of its table and the fields they show.
    fn shape(&self) -> Shape {
        match self {
            Self::Decision { .. } => Shape::Page(show::decision),
            Self::Policy => Shape::Page(show::policy),
            Self::Explain { .. } => Shape::Page(show::would),
            Self::Tenants => Shape::Table(columns::TENANTS),
            Self::Sessions { .. } => Shape::Table(columns::SESSIONS),
            Self::Queues => Shape::Table(columns::QUEUES),
            Self::Requests => Shape::Table(columns::REQUESTS),
            Self::Pools => Shape::Table(columns::POOLS),
            Self::Accuracy => Shape::Table(columns::ACCURACY),
            Self::Budgets => Shape::Table(columns::BUDGETS),
            Self::Decisions { .. } => Shape::Table(columns::DECISIONS),
        }
    }
}

/// A request as the admin API takes it.
fn envelope(sketch: &Sketch) -> anyhow::Result<String> {
    let body = std::str::from_utf8(&sketch.body)
        .context("the body is not text, which is all that can be sent to /v1/explain; `tallygate explain` takes it")?;
    let mut headers: Map<String, Value> = Map::new();
    for (name, value) in &sketch.headers {
        let value = std::str::from_utf8(value.as_bytes()).with_context(|| format!("the header {name} is not text"))?;
        if let Value::Array(values) = headers.entry(name.as_str()).or_insert_with(|| json!([])) {
            values.push(value.into());
        }
    }
    let listener = sketch.listener.map(|listener| match listener {
        crate::policy::model::Listener::Proxy => "proxy",
        crate::policy::model::Listener::Grpc => "grpc",
        crate::policy::model::Listener::Layer => "layer",
    });
    let tenant = sketch.tenant.as_ref().map(|tenant| tenant.as_str());
    let (method, path) = (sketch.method.as_str(), &sketch.path);
    let envelope = json!({
        "method": method, "path": path, "headers": headers, "body": body, "listener": listener, "tenant": tenant,
    });
    Ok(envelope.to_string())
}

impl Admin {
    /// Asks, and prints the answer.
    ///
    /// # Errors
    /// When there is no gateway there, it refuses, or its answer cannot be read.
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let token = Secret::from_env(ADMIN_TOKEN).map_err(|error| anyhow!(error))?;
        let question = self.what.question()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let answer = runtime.block_on(question.ask(&self.url, token.as_ref()))?;
        let mut out = std::io::stdout().lock();
        if self.json {
            out.write_all(&answer)?;
            writeln!(out)?;
        } else {
            let text = match self.what.shape() {
                Shape::Table(columns) => {
                    let rows: Vec<Map<String, Value>> =
                        serde_json::from_slice(&answer).context("the answer is not a list of rows")?;
                    table(columns, &rows) + &faults(&rows)
                }
                Shape::Page(page) => page(&serde_json::from_slice(&answer).context("the answer is not JSON")?),
            };
            out.write_all(text.as_bytes())?;
        }
        out.flush()?;
        Ok(Outcome::Success)
    }
}

/// Rows under headings, words to the left and numbers to the right.
fn table(columns: &[columns::Column], rows: &[Map<String, Value>]) -> String {
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| columns.iter().map(|(_, field)| cell(member(row, field))).collect()).collect();
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

/// Why the engines of a pool cannot be seen, below the table of pools.
fn faults(rows: &[Map<String, Value>]) -> String {
    let told = rows.iter().flat_map(|row| {
        let pool = cell(row.get("pool"));
        let faults = row.get("engine_faults").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        faults.iter().map(move |fault| format!("{pool}: {}\n", cell(Some(fault))))
    });
    told.collect()
}

/// A field of a row, or of a mapping in it.
fn member<'a>(row: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    match field.split_once('.') {
        Some((mapping, field)) => row.get(mapping)?.get(field),
        None => row.get(field),
    }
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

    use super::{faults, table};

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
        assert_eq!(faults(&rows), "", "only pools have any");
        let pool = json!({"pool": "chat", "engine_faults": ["http://a/metrics: it breaks off"]});
        assert_eq!(faults(&[pool.as_object().unwrap().clone()]), "chat: http://a/metrics: it breaks off\n");
    }
}
