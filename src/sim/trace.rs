//! Traces: recorded requests with their arrival times and lengths, from CSV, gzipped or not.
//!
//! One header line names the columns. `arrival_s`, `tenant`, `input_tokens` and `output_tokens` must be there;
//! `session`, `model`, `prefix_id`, `class`, `deadline_s`, `max_tokens`, `effort` and `cached_tokens` may be.
//! An empty tenant is read as `anonymous`; other empty fields mean what leaving the column out means.
//! `prefix_id` is carried by published traces and not used: the simulated engine has no prefix cache of its
//! own, `cached_tokens` says what a cache would have held.
//!
//! All mistakes are told together, each with its line, up to a bound. Rows out of order are sorted by arrival,
//! and that is noted: a merge of several recordings is a fair thing to replay.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use csv::StringRecord;

use crate::costing::Effort;
use crate::units::{Instant, Limit, SessionId, Span, TenantId, Tokens};

use super::demand::{Demand, Fate};

/// The most rows a trace may have: a bound on memory, far above the largest public trace.
const MOST_ROWS: usize = 20_000_000;
/// The most mistakes told.
const MOST_MISTAKES: usize = 50;
/// The most tokens of either kind a row may state.
const MOST_TOKENS: u64 = 1_000_000_000;
/// The latest arrival, in seconds: thirty years.
const MOST_SECONDS: f64 = 1e9;

const REQUIRED: [&str; 4] = ["arrival_s", "tenant", "input_tokens", "output_tokens"];
const OPTIONAL: [&str; 8] =
    ["session", "model", "prefix_id", "class", "deadline_s", "max_tokens", "effort", "cached_tokens"];

/// A workload read from a file.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Its requests, by arrival.
    pub demands: Vec<Demand>,
    /// The classes it wishes for, each with the line it first stands on.
    pub classes: BTreeMap<Arc<str>, u64>,
    /// What the reader did that somebody may want to know.
    pub notes: Vec<String>,
}

/// Why a trace could not be read: every mistake, as `file:line: what`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceMistakes(pub Vec<String>);

impl fmt::Display for TraceMistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for TraceMistakes {}

/// Reads a trace file; gzip is recognised by its content.
///
/// # Errors
/// Every mistake in it, or that it cannot be read.
pub fn read(path: &Path) -> Result<Trace, TraceMistakes> {
    let name = path.display().to_string();
    let whole = |error: io::Error| TraceMistakes(vec![format!("{name}: {error}")]);
    let mut file = BufReader::with_capacity(1 << 16, File::open(path).map_err(whole)?);
    let gzipped = file.fill_buf().map_err(whole)?.starts_with(&[0x1f, 0x8b]);
    if gzipped { parse(&name, flate2::bufread::MultiGzDecoder::new(file)) } else { parse(&name, file) }
}

/// Reads a trace from CSV text. `name` is what its mistakes are reported under.
///
/// # Errors
/// Every mistake in it.
pub fn parse(name: &str, text: impl Read) -> Result<Trace, TraceMistakes> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text);
    let mut mistakes = Mistakes { name, told: Vec::new(), more: 0 };
    let header = match reader.headers() {
        Ok(header) => header.clone(),
        Err(error) => return Err(TraceMistakes(vec![format!("{name}: {error}")])),
    };
    let columns = Columns::find(&header, &mut mistakes);
    let Some(columns) = columns.filter(|_| mistakes.told.is_empty()) else { return Err(mistakes.into()) };
    let mut names = Names::default();
    let mut demands = Vec::new();
    let mut classes = BTreeMap::new();
    let mut record = StringRecord::new();
    loop {
        match reader.read_record(&mut record) {
            Ok(false) => break,
            Ok(true) => {}
            Err(error) => {
                mistakes.tell(error.position().map_or(0, csv::Position::line), &reading(&error));
                // After a failure to read there is no telling where the next line starts.
                if matches!(error.kind(), csv::ErrorKind::Io(_)) {
                    break;
                }
                continue;
            }
        }
        let line = record.position().map_or(0, csv::Position::line);
        if record.len() != header.len() {
            mistakes.tell(line, &format!("has {} fields where the header has {}", record.len(), header.len()));
            continue;
        }
        let mut row = Row { record: &record, columns: &columns, line, mistakes: &mut mistakes };
        if let Some(demand) = row.demand(&mut names) {
            if let Some(class) = &demand.class {
                classes.entry(class.clone()).or_insert(line);
            }
            demands.push(demand);
        }
        if demands.len() > MOST_ROWS {
            mistakes.tell(line, &format!("is beyond the {MOST_ROWS} rows a trace may have"));
            break;
        }
    }
    if !mistakes.told.is_empty() {
        return Err(mistakes.into());
    }
    finish(name, demands, classes)
}

fn finish(name: &str, mut demands: Vec<Demand>, classes: BTreeMap<Arc<str>, u64>) -> Result<Trace, TraceMistakes> {
    let mut notes = Vec::new();
    if demands.is_empty() {
        return Err(TraceMistakes(vec![format!("{name}: has a header but no rows")]));
    }
    let late = demands.windows(2).filter(|pair| pair[1].arrival < pair[0].arrival).count();
    if late > 0 {
        demands.sort_by_key(|demand| demand.arrival);
        notes.push(format!("{name}: {late} rows arrive before the row above them; all rows were sorted by arrival_s"));
    }
    Ok(Trace { demands, classes, notes })
}

fn reading(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::Utf8 { err, .. } => format!("is not UTF-8: {err}"),
        csv::ErrorKind::Io(error) => format!("cannot be read: {error}"),
        _ => error.to_string(),
    }
}

/// Where each known column stands.
struct Columns {
    at: HashMap<&'static str, usize>,
}

impl Columns {
    fn find(header: &StringRecord, mistakes: &mut Mistakes<'_>) -> Option<Self> {
        let mut at = HashMap::new();
        let known = || REQUIRED.into_iter().chain(OPTIONAL);
        for (place, title) in header.iter().enumerate() {
            // A byte-order mark is how some spreadsheets start a file.
            let title = title.trim_start_matches('\u{feff}');
            match known().find(|known| *known == title) {
                None => {
                    let names: Vec<_> = known().collect();
                    mistakes.tell(1, &format!("unknown column {title:?}; known are {}", names.join(", ")));
                }
                Some(known) if at.insert(known, place).is_some() => {
                    mistakes.tell(1, &format!("column {title:?} stands there twice"));
                }
                Some(_) => {}
            }
        }
        let missing: Vec<_> = REQUIRED.into_iter().filter(|title| !at.contains_key(title)).collect();
        if missing.is_empty() {
            return Some(Self { at });
        }
        mistakes.tell(1, &format!("missing column {}", missing.join(", ")));
        None
    }
}

/// One line being read.
struct Row<'a, 'name> {
    record: &'a StringRecord,
    columns: &'a Columns,
    line: u64,
    mistakes: &'a mut Mistakes<'name>,
}

impl Row<'_, '_> {
    fn demand(&mut self, names: &mut Names) -> Option<Demand> {
        let arrival = self.seconds("arrival_s");
        let input = self.tokens("input_tokens");
        let output = self.tokens("output_tokens");
        let cached = self.optional("cached_tokens", Self::tokens);
        let max_tokens = self.optional("max_tokens", Self::tokens);
        let deadline = self.optional("deadline_s", Self::seconds);
        let effort = self.optional("effort", Self::effort);
        let tenant = self.text("tenant").unwrap_or("anonymous");
        if let (Some(Some(cached)), Some(input)) = (cached, input)
            && cached > input
        {
            self.wrong("cached_tokens", &format!("is {cached}, more than the row's {input} input tokens"));
            return None;
        }
        Some(Demand {
            arrival: Instant::EPOCH + arrival?,
            asked: Instant::EPOCH + arrival?,
            tenant: names.tenant(tenant),
            session: self.text("session").map(|session| names.session(session)),
            model: names.word(self.text("model").unwrap_or_default()),
            class: self.text("class").map(|class| names.word(class)),
            input: input?,
            cached: cached?.unwrap_or_default(),
            output: output?,
            max_tokens: max_tokens?.map_or(Limit::Unlimited, Limit::AtMost),
            deadline: deadline?,
            streamed: true,
            effort: effort?.unwrap_or_default(),
            fate: Fate::Patient,
            attempt: 0,
            heeded: false,
            then: None,
            retries: 0,
            told_instead: None,
        })
    }

    /// The text in a column; `None` when it is empty or the column is not there.
    fn text(&self, title: &str) -> Option<&str> {
        let text = self.record.get(*self.columns.at.get(title)?)?;
        (!text.is_empty()).then_some(text)
    }

    /// Reads a column that may be empty: outer `None` for a mistake, which has been told.
    fn optional<T>(&mut self, title: &str, read: impl FnOnce(&mut Self, &str) -> Option<T>) -> Option<Option<T>> {
        if self.text(title).is_none() { Some(None) } else { read(self, title).map(Some) }
    }

    fn seconds(&mut self, title: &str) -> Option<Span> {
        let text = self.text(title).unwrap_or_default();
        match text.parse::<f64>() {
            Ok(seconds) if (0.0..=MOST_SECONDS).contains(&seconds) => Some(Span::from_secs_f64(seconds)),
            _ => {
                let problem = format!("must be seconds between 0 and {MOST_SECONDS}, not {text:?}");
                self.wrong(title, &problem);
                None
            }
        }
    }

    fn tokens(&mut self, title: &str) -> Option<Tokens> {
        let text = self.text(title).unwrap_or_default();
        match text.parse::<u64>() {
            Ok(tokens) if tokens <= MOST_TOKENS => Some(Tokens::new(tokens)),
            _ => {
                let problem = format!("must be a whole number between 0 and {MOST_TOKENS}, not {text:?}");
                self.wrong(title, &problem);
                None
            }
        }
    }

    fn effort(&mut self, title: &str) -> Option<Effort> {
        let text = self.text(title).unwrap_or_default();
        let effort = Effort::named(text);
        if effort.is_none() {
            let problem = format!("must be none, minimal, low, medium, high, xhigh or max, not {text:?}");
            self.wrong(title, &problem);
        }
        effort
    }

    fn wrong(&mut self, title: &str, problem: &str) {
        self.mistakes.tell(self.line, &format!("{title} {problem}"));
    }
}

/// Mistakes told so far, and how many more there were.
struct Mistakes<'name> {
    name: &'name str,
    told: Vec<String>,
    more: usize,
}

impl Mistakes<'_> {
    fn tell(&mut self, line: u64, what: &str) {
        if self.told.len() < MOST_MISTAKES {
            self.told.push(format!("{}:{line}: {what}", self.name));
        } else {
            self.more += 1;
        }
    }
}

impl From<Mistakes<'_>> for TraceMistakes {
    fn from(mistakes: Mistakes<'_>) -> Self {
        let mut told = mistakes.told;
        if mistakes.more > 0 {
            told.push(format!("{}: and {} more mistakes", mistakes.name, mistakes.more));
        }
        Self(told)
    }
}

/// Each name is held once, however many rows carry it.
#[derive(Default)]
struct Names {
    tenants: HashMap<String, TenantId>,
    sessions: HashMap<String, SessionId>,
    words: HashMap<String, Arc<str>>,
}

impl Names {
    fn tenant(&mut self, name: &str) -> TenantId {
        once(&mut self.tenants, name)
    }

    fn session(&mut self, name: &str) -> SessionId {
        once(&mut self.sessions, name)
    }

    fn word(&mut self, name: &str) -> Arc<str> {
        once(&mut self.words, name)
    }
}

fn once<T: Clone + for<'name> From<&'name str>>(held: &mut HashMap<String, T>, name: &str) -> T {
    if let Some(known) = held.get(name) {
        return known.clone();
    }
    let made = T::from(name);
    held.insert(name.to_owned(), made.clone());
    made
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::{Limit, Span, Tokens, parse, read};
    use crate::costing::Effort;

    const HEADER: &str = "arrival_s,tenant,session,model,input_tokens,output_tokens,prefix_id";

    #[test]
    fn the_published_columns_are_read() {
        let text = format!("{HEADER}\n0.5,acme,s1,gpt,10,20,p7\n1,,,,3,4,\n");
        let trace = parse("t.csv", text.as_bytes()).expect("valid");
        let [first, second] = &trace.demands[..] else { panic!("two rows") };
        assert_eq!(first.tenant.as_str(), "acme");
        assert_eq!(first.session.as_ref().map(|session| session.as_str()), Some("s1"));
        assert_eq!((&*first.model, first.input, first.output), ("gpt", Tokens::new(10), Tokens::new(20)));
        assert_eq!((second.tenant.as_str(), second.session.is_none(), &*second.model), ("anonymous", true, ""));
        assert!(trace.notes.is_empty());
    }

    #[test]
    fn optional_columns_mean_something() {
        let text = "arrival_s,tenant,input_tokens,output_tokens,class,deadline_s,max_tokens,effort,cached_tokens\n\
                    0,a,100,50,batch,2.5,40,high,90\n";
        let demand = parse("t.csv", text.as_bytes()).expect("valid").demands.remove(0);
        assert_eq!(demand.class.as_deref(), Some("batch"));
        assert_eq!(demand.deadline, Some(Span::from_millis(2_500)));
        assert_eq!((demand.max_tokens, demand.produced()), (Limit::AtMost(Tokens::new(40)), Tokens::new(40)));
        assert_eq!((demand.effort, demand.cached), (Effort::High, Tokens::new(90)));
    }

    #[test]
    fn all_mistakes_are_told_with_their_lines() {
        let text = "arrival_s,tenant,input_tokens,output_tokens,effort,cached_tokens\n\
                    x,a,1,1,,\n0,a,-1,1.5,,\n0,a,1\n0,a,1,1,extreme,2\nNaN,a,1,99999999999,,\n";
        let told = parse("t.csv", text.as_bytes()).expect_err("many mistakes").0;
        let expected = [
            "t.csv:2: arrival_s must be",
            "t.csv:3: input_tokens must be",
            "t.csv:3: output_tokens must be",
            "t.csv:4: has 3 fields where the header has 6",
            "t.csv:5: effort must be",
            "t.csv:5: cached_tokens is 2, more than",
            "t.csv:6: arrival_s must be",
            "t.csv:6: output_tokens must be",
        ];
        assert_eq!(told.len(), expected.len(), "{told:#?}");
        for (told, expected) in told.iter().zip(expected) {
            assert!(told.starts_with(expected), "{told} is not {expected}");
        }
    }

    #[test]
    fn a_wrong_header_is_told_whole() {
        let told = parse("t.csv", "arrival,tenant,tenant,output_tokens\n1,a,b,2\n".as_bytes()).expect_err("bad").0;
        assert_eq!(told.len(), 3, "{told:#?}");
        assert!(told[2].contains("missing column arrival_s, input_tokens"), "{told:?}");
        assert!(parse("t.csv", "".as_bytes()).is_err());
        assert!(parse("t.csv", HEADER.as_bytes()).expect_err("empty").0[0].contains("no rows"));
    }

    #[test]
    fn a_flood_of_mistakes_is_cut() {
        let text = format!("{HEADER}\n{}", "bad,,,,1,1,\n".repeat(1_000));
        let told = parse("t.csv", text.as_bytes()).expect_err("bad").0;
        assert_eq!((told.len(), &*told[50]), (51, "t.csv: and 950 more mistakes"));
    }

    #[test]
    fn text_that_is_not_text_is_a_mistake_on_its_line() {
        let mut text = format!("{HEADER}\n0,a,,,1,1,\n").into_bytes();
        text.extend(b"0,\xff\xfe,,,1,1,\n");
        let told = parse("t.csv", &text[..]).expect_err("bad").0;
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("t.csv:3: is not UTF-8"), "{told:?}");
    }

    #[test]
    fn rows_out_of_order_are_sorted_and_that_is_noted() {
        let text = format!("{HEADER}\n5,late,,,1,1,\n1,early,,,1,1,\n");
        let trace = parse("t.csv", text.as_bytes()).expect("valid");
        assert_eq!(trace.demands[0].tenant.as_str(), "early");
        assert_eq!(trace.notes.len(), 1);
    }

    #[test]
    fn a_gzipped_trace_is_read_and_a_broken_one_is_a_mistake() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.csv.gz");
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(format!("{HEADER}\n{}", "1,a,,,1,1,\n".repeat(5_000)).as_bytes()).expect("written");
        let bytes = gz.finish().expect("finished");
        std::fs::write(&path, &bytes).expect("written");
        assert_eq!(read(&path).expect("valid").demands.len(), 5_000);
        std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("written");
        assert!(read(&path).is_err());
        assert!(read(&folder.path().join("absent.csv")).expect_err("absent").0[0].contains("absent.csv"));
    }
}
