//! How far the input that is expected of a request is from what real tokenizers make of it.
//!
//! `cargo bench --bench estimates` prints the table of `docs/costing.md`. The prompts are made of the texts beside this
//! file. `counts.csv` has what four models' own tokenizers count for each, by `count.py`; none of them is a tokenizer
//! we count with. `-- --write FILE` writes the prompts for it. Prompts are taken in turn, so that every estimate is
//! made before its truth is learnt.

mod prompts;

use std::collections::BTreeMap;

use bytes::Bytes;
use tallygate::costing::{Calibration, Counted, InputCounter};
use tallygate::units::{Model, TenantId, Tokens};
use tallygate::wire::dialect::Dialect;

use prompts::{KINDS, Prompt};

const COUNTS: &str = include_str!("counts.csv");

/// Observations of a kind before the columns "after" begin.
const LEARNT: usize = 20;

/// Errors in parts of the truth.
#[derive(Default)]
struct Errors(Vec<f64>);

impl Errors {
    fn add(&mut self, expected: Tokens, truth: Tokens) {
        self.0.push(float(expected.get().abs_diff(truth.get())) / float(truth.get()));
    }

    /// Mean and 95th percentile, in per cent.
    fn shown(&mut self) -> String {
        self.0.sort_by(f64::total_cmp);
        let count = self.0.len();
        let mean = self.0.iter().sum::<f64>() / float(count as u64);
        format!("{:>5.1} /{:>5.1}", 100.0 * mean, 100.0 * self.0[(count * 95).div_ceil(100) - 1])
    }
}

#[expect(clippy::cast_precision_loss, reason = "for a table")]
fn float(value: u64) -> f64 {
    value as f64
}

/// Who a request is from: everybody under one name, or a tenant a kind.
#[derive(Clone, Copy)]
enum Tenants {
    One,
    EachKind,
}

struct Measured {
    prompt: Prompt,
    counted: Counted,
    truths: Vec<Tokens>,
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => print(),
        (Some("--write"), Some(file)) => write(&file),
        _ => panic!("either nothing, or --write FILE"),
    }
}

fn write(file: &str) {
    let line = |prompt: Prompt| serde_json::json!([prompt.name, prompt.body]).to_string() + "\n";
    std::fs::write(file, prompts::all().into_iter().map(line).collect::<String>()).expect("the file can be written");
}

fn measured() -> (Vec<&'static str>, Vec<Measured>) {
    let mut lines = COUNTS.lines();
    let models = lines.next().expect("a header").split(',').skip(1).collect();
    let rows = prompts::all().into_iter().zip(lines).map(|(prompt, line)| {
        let mut fields = line.split(',');
        assert_eq!(fields.next(), Some(prompt.name.as_str()), "counts.csv is of other prompts: count again");
        let truths = fields.map(|field| Tokens::new(field.parse().expect("a count"))).collect();
        let parsed = Dialect::OpenAiChat
            .parse(Dialect::OpenAiChat.path(), &Bytes::from(prompt.body.to_string()))
            .expect("well formed");
        let counted = InputCounter::of("unknown").count(&parsed.call.prompt);
        Measured { prompt, counted, truths }
    });
    (models, rows.collect())
}

#[allow(clippy::print_stdout, reason = "it is a table to be read")]
fn print() {
    let (models, rows) = measured();
    println!("error of the expected input, mean / p95, per cent of the truth; {} prompts a kind", prompts::EACH);
    let [before, ratio, one, each] = ["as counted", "one ratio", "learnt, one tenant", "tenant a kind"];
    println!("{:<14}{:<9}{before:>14}{ratio:>15}{one:>20}{each:>16}", "tokenizer", "prompts");
    for (at, model) in models.iter().enumerate() {
        let mut ratio = Ratio::errors(&rows, at);
        let [before, mut one] = errors(&rows, at, model, Tenants::One);
        let [_, mut each] = errors(&rows, at, model, Tenants::EachKind);
        for (kind, mut before) in before {
            let shown = |errors: &mut ByKind| errors.get_mut(kind).expect("the same kinds").shown();
            let [ratio, one, each] = [&mut ratio, &mut one, &mut each].map(shown);
            println!("{model:<14}{kind:<9}{:>14}{ratio:>15}{one:>20}{each:>16}", before.shown());
        }
    }
}

/// The simplest correction there is, to compare with: the mean ratio of truth and count over the last requests.
#[derive(Default)]
struct Ratio {
    sum: f64,
    count: f64,
}

impl Ratio {
    const MOST: f64 = 200.0;

    fn errors(rows: &[Measured], at: usize) -> ByKind {
        let mut ratio = Self::default();
        let mut errors: ByKind = KINDS.map(|kind| (kind, Errors::default())).into();
        for (index, Measured { prompt, counted, truths }) in rows.iter().enumerate() {
            let (count, truth) = (float(counted.total().get()), float(truths[at].get()));
            if index >= LEARNT * KINDS.len() {
                let error = (count * ratio.sum / ratio.count - truth).abs() / truth;
                errors.entry(prompt.kind).or_default().0.push(error);
            }
            let fade = (Self::MOST / (ratio.count + 1.0)).min(1.0);
            ratio = Self { sum: fade * (ratio.sum + truth / count), count: fade * (ratio.count + 1.0) };
        }
        errors
    }
}

type ByKind = BTreeMap<&'static str, Errors>;

/// The errors of the count as it stands, and of what is expected once some of each kind are known.
fn errors(rows: &[Measured], at: usize, model: &str, tenants: Tenants) -> [ByKind; 2] {
    let model = Model::from(model);
    let mut calibration = Calibration::default();
    let mut errors: [ByKind; 2] = std::array::from_fn(|_| KINDS.map(|kind| (kind, Errors::default())).into());
    let mut seen = BTreeMap::<&str, usize>::new();
    for Measured { prompt, counted, truths } in rows {
        let truth = truths[at];
        let tenant = TenantId::from(match tenants {
            Tenants::One => "one",
            Tenants::EachKind => prompt.kind,
        });
        let expected = calibration.expect(&tenant, &model, counted);
        let known = seen.entry(prompt.kind).or_default();
        if *known >= LEARNT {
            errors[0].entry(prompt.kind).or_default().add(counted.total(), truth);
            errors[1].entry(prompt.kind).or_default().add(expected, truth);
        }
        *known += 1;
        calibration.learn(&tenant, &model, counted, expected, truth);
    }
    errors
}
