//! Prometheus' text format, version 0.0.4, line by line.
//!
//! Names and labels are matched whole: `vllm:num_requests_waiting` is not the beginning of
//! `vllm:num_requests_waiting_by_reason`. A page is taken or refused as one, as Prometheus does: a line that is none
//! is named with its number, and nothing of the page counts. What is not asked for is checked and forgotten, so that
//! the memory used is what the asked-for samples need. OpenMetrics' exemplars and `# EOF` pass as well.

use std::borrow::Cow;

/// The most samples that are kept of one page; an engine has a few for each gauge.
const MOST_SAMPLES: usize = 4_096;

/// One value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'a> {
    /// The metric's whole name.
    pub name: &'a str,
    /// Its labels, in the order they were written, each name once.
    pub labels: Vec<(&'a str, Cow<'a, str>)>,
    /// The value; may be infinite or not a number.
    pub value: f64,
}

impl Sample<'_> {
    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| &**value)
    }
}

/// A page that is not in the format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not in Prometheus' text format: {what}")]
pub struct Malformed {
    /// Which line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

/// The samples of the metrics that are `wanted`, in the order they were written.
///
/// # Errors
/// At the first line that is not in the format, wanted or not, and when there are too many samples.
pub(super) fn read<'a>(page: &'a str, wanted: impl Fn(&str) -> bool) -> Result<Vec<Sample<'a>>, Malformed> {
    let mut samples = Vec::new();
    for (index, line) in page.lines().enumerate() {
        let malformed = |what| Malformed { line: index + 1, what };
        let line = line.trim_matches(BLANK);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let sample = sample(line).map_err(malformed)?;
        if wanted(sample.name) {
            if samples.len() == MOST_SAMPLES {
                return Err(malformed("there are too many samples of the gauges that are read"));
            }
            samples.push(sample);
        }
    }
    Ok(samples)
}

const BLANK: [char; 3] = [' ', '\t', '\r'];

fn sample(line: &str) -> Result<Sample<'_>, &'static str> {
    let (name, rest) = name(line, |c| c == ':').ok_or("it must begin with a metric's name")?;
    let (labels, rest) = match rest.trim_start_matches(BLANK).strip_prefix('{') {
        Some(inside) => labels(inside)?,
        None if rest.starts_with(BLANK) || rest.is_empty() => (Vec::new(), rest),
        None => return Err("a metric's name has letters, digits, `_` and `:` only"),
    };
    // An exemplar, which is OpenMetrics' own, begins with a `#`.
    let rest = rest.split_once(" # ").map_or(rest, |(before, _)| before);
    let mut words = rest.split(BLANK).filter(|word| !word.is_empty());
    let value = words.next().ok_or("it has no value")?;
    let value = value.parse().map_err(|_| "its value is not a number")?;
    if let Some(time) = words.next() {
        time.parse::<f64>().map_err(|_| "what follows the value is not a time")?;
    }
    if words.next().is_some() {
        return Err("there is more than a value and a time");
    }
    Ok(Sample { name, labels, value })
}

/// The name at the beginning, and what follows it.
fn name(text: &str, also: impl Fn(char) -> bool) -> Option<(&str, &str)> {
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_' || also(c);
    let end = text.find(|c| !inside(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let starts_well = name.starts_with(|c: char| !c.is_ascii_digit());
    starts_well.then_some((name, rest))
}

type Labels<'a> = Vec<(&'a str, Cow<'a, str>)>;

/// The labels up to the closing brace, and what follows it.
fn labels(mut rest: &str) -> Result<(Labels<'_>, &str), &'static str> {
    let mut labels: Labels<'_> = Vec::new();
    loop {
        rest = rest.trim_start_matches(BLANK);
        if let Some(after) = rest.strip_prefix('}') {
            return Ok((labels, after));
        }
        let (label, after) = name(rest, |_| false).ok_or("a label needs a name")?;
        let after = after.trim_start_matches(BLANK).strip_prefix('=').ok_or("a label needs an `=`")?;
        let quoted = after.trim_start_matches(BLANK).strip_prefix('"').ok_or("a label's value needs quotes")?;
        let (value, after) = unquote(quoted)?;
        if labels.iter().any(|(known, _)| *known == label) {
            return Err("a label is written twice");
        }
        labels.push((label, value));
        rest = after.trim_start_matches(BLANK);
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None if rest.starts_with('}') => {}
            None => return Err("labels need a `,` between them and a `}` behind them"),
        }
    }
}

/// What stands before the closing quote, unescaped, and what follows it.
fn unquote(text: &str) -> Result<(Cow<'_, str>, &str), &'static str> {
    let mut value = Cow::Borrowed("");
    let mut rest = text;
    loop {
        let at = rest.find(['"', '\\']).ok_or("a label's value does not end")?;
        let (plain, after) = rest.split_at(at);
        if value.is_empty() {
            value = Cow::Borrowed(plain);
        } else {
            value.to_mut().push_str(plain);
        }
        if let Some(after) = after.strip_prefix('"') {
            return Ok((value, after));
        }
        let mut escaped = after.chars();
        escaped.next();
        value.to_mut().push(match escaped.next() {
            Some('n') => '\n',
            Some(same @ ('"' | '\\')) => same,
            _ => return Err("only \\\\, \\\" and \\n are escapes in a label's value"),
        });
        rest = escaped.as_str();
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_SAMPLES, Malformed, Sample, read};

    fn whole(page: &str) -> Result<Vec<Sample<'_>>, Malformed> {
        read(page, |_| true)
    }

    fn sample(name: &'static str, labels: &[(&'static str, &'static str)], value: f64) -> Sample<'static> {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).into())).collect();
        Sample { name, labels, value }
    }

    #[test]
    fn lines_are_read_with_their_labels_whatever_stands_in_them() {
        let page = "\
# HELP a Anything \"at\" all {}
# TYPE a gauge
a 1
a:b_c{} 2.5 1700000000000
\ta { x = \"1\" , y=\"a\\\"b\\\\c\\nd}\" , } -0.5e3\r
a{le=\"+Inf\"} +Inf
a_bucket{le=\"1\"} 7 # {trace_id=\"x\"} 0.5 1.0
# EOF
";
        let expected = vec![
            sample("a", &[], 1.0),
            sample("a:b_c", &[], 2.5),
            sample("a", &[("x", "1"), ("y", "a\"b\\c\nd}")], -500.0),
            sample("a", &[("le", "+Inf")], f64::INFINITY),
            sample("a_bucket", &[("le", "1")], 7.0),
        ];
        assert_eq!(whole(page), Ok(expected));
        assert_eq!(whole(""), Ok(Vec::new()), "an empty page is one");
    }

    #[test]
    fn names_are_matched_whole() {
        let page = "a_by_reason 1\na 2\na_total 3\nba 4\n";
        let found = read(page, |name| name == "a").expect("well formed");
        assert_eq!(found.len(), 1);
        assert!((found[0].value - 2.0).abs() < f64::EPSILON);
    }

    #[test]
    fn a_line_that_is_none_is_named_with_what_is_wrong() {
        for (line, what) in [
            ("{a=\"b\"} 1", "must begin with a metric's name"),
            ("9a 1", "must begin with a metric's name"),
            ("<html>", "must begin with a metric's name"),
            ("a", "no value"),
            ("a ", "no value"),
            ("a one", "not a number"),
            ("a.5", "letters, digits"),
            ("a+1", "letters, digits"),
            ("a 1 yesterday", "not a time"),
            ("a 1 2 3", "more than a value"),
            ("a{b} 1", "needs an `=`"),
            ("a{b=c} 1", "needs quotes"),
            ("a{b=\"c} 1", "does not end"),
            ("a{b=\"c\\t\"} 1", "are escapes"),
            ("a{b=\"c\\", "are escapes"),
            ("a{b=\"c\" d=\"e\"} 1", "`,` between"),
            ("a{b=\"c\"", "`,` between"),
            ("a{,} 1", "needs a name"),
            ("a{b=\"c\",b=\"d\"} 1", "written twice"),
        ] {
            let error = whole(&format!("# fine\nfine 1\n{line}\nfine 2\n")).expect_err(line);
            assert!(error.line == 3 && error.what.contains(what), "{line:?}: {error}");
        }
    }

    #[test]
    fn what_is_kept_of_a_page_is_bounded() {
        let page = "a 1\n".repeat(MOST_SAMPLES + 1);
        let error = read(&page, |_| true).expect_err("too many");
        assert_eq!(error.line, MOST_SAMPLES + 1);
        assert_eq!(read(&page, |name| name == "b"), Ok(Vec::new()), "what is not wanted costs nothing");
    }
}
