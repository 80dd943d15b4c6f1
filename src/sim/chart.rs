//! A picture of a run: each tenant's service over time, as SVG.
//!
//! Service is what a request was charged, spread evenly from its first token to its end, as in the
//! [measures](super::measure); lines show virtual tokens a second in equal slices of the run. The tenants with
//! the most service get a line each, the rest one together, so the picture stays legible with ten thousand.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::units::TenantId;

use super::record::Record;
use super::report::shortened;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 200.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 52.0;
/// Slices of time.
const SLICES: u32 = 80;
/// Lines of single tenants, in colours that people with any colour vision tell apart (Okabe and Ito's).
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#b8a800"];
/// The line of all the others.
const OTHERS: &str = "#999999";

/// One line of the picture.
struct Line {
    name: String,
    colour: &'static str,
    /// Virtual tokens a second, in each slice.
    rates: Vec<f64>,
}

/// Draws the run.
#[must_use]
pub fn svg(records: &[Record]) -> String {
    let end = records.iter().filter_map(|record| record.finished).max().map_or(1.0, |end| end.as_secs_f64().max(1e-3));
    let lines = lines(records, end);
    let top = lines.iter().flat_map(|line| &line.rates).copied().fold(1.0, f64::max);
    let mut picture = String::new();
    let frame = Frame { x: Axis::new(end), y: Axis::new(top) };
    write!(
        picture,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" fill="#333">
<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>
<text x="{LEFT}" y="24" font-size="15" font-weight="bold">Service received, virtual tokens a second</text>
"##
    )
    .expect("writing to a string never fails");
    frame.draw(&mut picture);
    for (place, line) in lines.iter().enumerate() {
        frame.draw_line(&mut picture, place, line, end);
    }
    picture.push_str("</svg>\n");
    picture
}

fn lines(records: &[Record], end: f64) -> Vec<Line> {
    let mut tenants: BTreeMap<&TenantId, Vec<f64>> = BTreeMap::new();
    for record in records {
        if let (Some(charged), Some(finished)) = (record.charged, record.finished) {
            let first = record.first_token.unwrap_or(finished).as_secs_f64();
            let rates = tenants.entry(&record.tenant).or_insert_with(|| vec![0.0; slot(f64::from(SLICES))]);
            spread(rates, charged.as_f64(), first, finished.as_secs_f64(), end / f64::from(SLICES));
        }
    }
    let total = |rates: &Vec<f64>| rates.iter().sum::<f64>();
    let mut order: Vec<_> = tenants.into_iter().collect();
    order.sort_by(|a, b| total(&b.1).total_cmp(&total(&a.1)).then_with(|| a.0.cmp(b.0)));
    let rest = order.split_off(order.len().min(COLOURS.len()));
    let mut lines: Vec<Line> = order
        .into_iter()
        .zip(COLOURS)
        .map(|((tenant, rates), colour)| Line { name: shortened(tenant.as_str()), colour, rates })
        .collect();
    if !rest.is_empty() {
        let mut rates = vec![0.0; slot(f64::from(SLICES))];
        for (_, of_one) in &rest {
            rates.iter_mut().zip(of_one).for_each(|(sum, rate)| *sum += rate);
        }
        lines.push(Line { name: format!("{} others together", rest.len()), colour: OTHERS, rates });
    }
    lines
}

/// Spreads an amount evenly over a stretch of time, into slices of this many seconds.
fn spread(rates: &mut [f64], amount: f64, from: f64, to: f64, slice: f64) {
    let last = rates.len() - 1;
    let (first, end) = (slot(from / slice).min(last), slot(to / slice).min(last));
    if first == end {
        rates[first] += amount / slice;
        return;
    }
    let mut start = from;
    for (place, rate) in rates.iter_mut().enumerate().take(end + 1).skip(first) {
        let next = if place == end { to } else { slice * as_f64(place + 1) };
        *rate += amount * (next - start) / (to - from) / slice;
        start = next;
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and the caller clamps")]
fn slot(position: f64) -> usize {
    position as usize
}

#[expect(clippy::cast_precision_loss, reason = "a handful")]
fn as_f64(count: usize) -> f64 {
    count as f64
}

/// One axis: where it ends, and how far apart its ticks are.
struct Axis {
    end: f64,
    tick: f64,
}

impl Axis {
    /// Ticks at 1, 2 or 5 times a power of ten, about six of them, and the end on one.
    fn new(most: f64) -> Self {
        let rough = most / 6.0;
        let power = 10_f64.powf(rough.log10().floor());
        let tick = [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|tick| *tick >= rough);
        let tick = tick.unwrap_or(rough);
        Self { end: (most / tick).ceil() * tick, tick }
    }

    fn ticks(&self) -> impl Iterator<Item = f64> + '_ {
        (0_u32..).map(|count| f64::from(count) * self.tick).take_while(|at| *at <= self.end * (1.0 + 1e-9))
    }

    fn label(&self, at: f64) -> String {
        if self.tick < 1.0 { format!("{at:.1}") } else { format!("{at:.0}") }
    }
}

struct Frame {
    x: Axis,
    y: Axis,
}

impl Frame {
    fn at_x(&self, seconds: f64) -> f64 {
        LEFT + seconds / self.x.end * (WIDTH - LEFT - RIGHT)
    }

    fn at_y(&self, rate: f64) -> f64 {
        HEIGHT - BOTTOM - rate / self.y.end * (HEIGHT - TOP - BOTTOM)
    }

    fn draw(&self, picture: &mut String) {
        let (left, right) = (self.at_x(0.0), self.at_x(self.x.end));
        for rate in self.y.ticks() {
            let (y, label) = (self.at_y(rate), self.y.label(rate));
            let text = y + 4.0;
            writeln!(
                picture,
                r##"<path d="M{left:.1} {y:.1}H{right:.1}" stroke="#ddd"/><text x="{:.1}" y="{text:.1}" text-anchor="end">{label}</text>"##,
                left - 8.0
            )
            .expect("writing to a string never fails");
        }
        let bottom = self.at_y(0.0);
        for seconds in self.x.ticks() {
            let (x, label) = (self.at_x(seconds), self.x.label(seconds));
            writeln!(
                picture,
                r##"<path d="M{x:.1} {bottom:.1}v5" stroke="#333"/><text x="{x:.1}" y="{:.1}" text-anchor="middle">{label}</text>"##,
                bottom + 19.0
            )
            .expect("writing to a string never fails");
        }
        let (middle, below) = (f64::midpoint(left, right), bottom + 40.0);
        writeln!(
            picture,
            r##"<path d="M{left:.1} {:.1}V{bottom:.1}H{right:.1}" fill="none" stroke="#333"/><text x="{middle:.1}" y="{below:.1}" text-anchor="middle">seconds</text>"##,
            self.at_y(self.y.end)
        )
        .expect("writing to a string never fails");
    }

    fn draw_line(&self, picture: &mut String, place: usize, line: &Line, end: f64) {
        let slice = end / f64::from(SLICES);
        let points = line.rates.iter().enumerate().map(|(at, rate)| {
            let x = self.at_x((as_f64(at) + 0.5) * slice);
            format!("{x:.1},{:.1}", self.at_y(*rate))
        });
        let points = points.collect::<Vec<_>>().join(" ");
        let (colour, name) = (line.colour, escaped(&line.name));
        let (x, y) = (WIDTH - RIGHT + 16.0, TOP + 12.0 + 20.0 * as_f64(place));
        writeln!(
            picture,
            r##"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-linejoin="round"/>
<path d="M{x:.1} {y:.1}h18" stroke="{colour}" stroke-width="3"/><text x="{:.1}" y="{:.1}">{name}</text>"##,
            x + 24.0,
            y + 4.0
        )
        .expect("writing to a string never fails");
    }
}

fn escaped(text: &str) -> String {
    let safe = |char: char| match char {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        control if control.is_control() => "\u{fffd}".to_owned(),
        other => other.to_string(),
    };
    text.chars().map(safe).collect()
}

#[cfg(test)]
mod tests {
    use super::{Axis, escaped, lines, spread, svg};
    use crate::sim::record::{Outcome, Record};
    use crate::units::{Instant, RequestId, TenantId, Tokens, VirtualTokens};

    fn served(tenant: &str, first: f64, end: f64, charged: u64) -> Record {
        let at = |secs| Some(Instant::from_secs_f64(secs));
        Record {
            id: RequestId::new(0),
            arrival: Instant::EPOCH,
            asked: Instant::EPOCH,
            tenant: TenantId::from(tenant),
            session: None,
            class: None,
            input: Tokens::ZERO,
            output: Tokens::ZERO,
            outcome: Some(Outcome::Completed),
            reason: None,
            decided: at(0.0),
            dispatched: at(0.0),
            first_token: at(first),
            finished: at(end),
            predicted: None,
            charged: Some(VirtualTokens::whole(charged)),
            retry_after: None,
            heeded: false,
        }
    }

    #[test]
    fn nothing_is_lost_in_spreading() {
        for (from, to) in [(0.0, 8.0), (0.3, 7.1), (2.2, 2.3), (5.0, 5.0), (7.9, 8.0)] {
            let mut rates = vec![0.0; 16];
            spread(&mut rates, 100.0, from, to, 0.5);
            let sum: f64 = rates.iter().sum::<f64>() * 0.5;
            assert!((sum - 100.0).abs() < 1e-9, "{from} to {to}: {sum}");
            assert!(rates.iter().all(|rate| *rate >= 0.0));
        }
    }

    #[test]
    fn many_tenants_share_a_line_and_names_are_escaped() {
        let mut records: Vec<Record> = (0..50).map(|n| served(&format!("t{n:02}"), 0.0, 10.0, 50 - n)).collect();
        records.push(served("<&>", 0.0, 10.0, 1_000));
        let drawn = lines(&records, 10.0);
        assert_eq!((drawn.len(), &*drawn[8].name), (9, "43 others together"));
        let picture = svg(&records);
        assert!(picture.contains("&lt;&amp;&gt;") && !picture.contains("<&"));
        assert_eq!(picture.matches("<polyline").count(), 9);
        assert_eq!(escaped("a\u{0}b"), "a\u{fffd}b");
    }

    #[test]
    fn an_empty_run_has_a_picture_too_and_ticks_are_round() {
        assert!(svg(&[]).ends_with("</svg>\n"));
        let axis = Axis::new(743.0);
        assert_eq!((axis.tick, axis.end), (200.0, 800.0));
        assert_eq!(axis.ticks().count(), 5);
    }
}
