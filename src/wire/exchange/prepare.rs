//! From a body to a permit: what it asks for, where it goes, what it costs, whether and when.
//!
//! Until the permit is given nothing is held, so a refusal leaves no trace but its count. What costs nothing is only
//! looked at for the model it names.

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::admission::{Ending, Heard, Left, Outcome, Reported};
use crate::costing::{Call, Counted, Effort, Encoding, InputCounter, Prompt};
use crate::policy::Policy;
use crate::policy::model::{Caller, Selection};
use crate::shell::{Ask, Denied, Gate, Patience, Permit, Sight};
use crate::units::{self, ClassIndex, DecisionId, Instant, Limit, PoolIndex, Span, TenantId, Tokens};

use super::super::answer::Refused;
use super::super::dialect::{AnswerForm, Dialect, Named, Parsed, Unreadable};
use super::heard::heard;
use super::load;
use super::meter::Meter;
use super::picker;
use super::told::Told;
use super::watch::Watch;

/// Bodies up to this size are read where they are; larger ones on a thread that may take its time.
const READ_IN_PLACE: usize = 64 * 1024;

/// How many bytes of JSON are counted as a token, which is what an estimate in tokens is turned back into.
const BYTES_PER_TOKEN: u64 = 4;

/// A metered request whose body is there.
#[derive(Clone, Debug)]
pub(in crate::wire) struct Arrival {
    /// The name of the decision to be made.
    pub(in crate::wire) decision: DecisionId,
    /// When its head came.
    pub(in crate::wire) arrived: Instant,
    /// The language of its body.
    pub(in crate::wire) dialect: Dialect,
    /// The path it was sent to, without the query.
    pub(in crate::wire) path: Box<str>,
    /// How long its client waits.
    pub(in crate::wire) patience: Patience,
    /// Whose it is.
    pub(in crate::wire) caller: Caller,
}

/// A request whose cost was told, and not read from its body.
#[derive(Clone, Debug)]
pub(in crate::wire) struct Appraised {
    /// The name of the decision to be made.
    pub(in crate::wire) decision: DecisionId,
    /// When its head came.
    pub(in crate::wire) arrived: Instant,
    /// How long its client waits.
    pub(in crate::wire) patience: Patience,
    /// Whose it is.
    pub(in crate::wire) caller: Caller,
    /// The model it asks for, before aliases.
    pub(in crate::wire) model: String,
    /// Its input.
    pub(in crate::wire) input: Tokens,
    /// The most output it can have.
    pub(in crate::wire) cap: Limit<Tokens>,
    /// The size of what is held of it while it waits.
    pub(in crate::wire) bytes: units::Bytes,
}

/// How the answer's cost is found out.
#[derive(Clone, Debug)]
enum Reading {
    /// It is read from the answer.
    Read { encoding: Encoding, form: AnswerForm },
    /// The service tells.
    Told(Told),
}

/// A request that is read, routed and counted, and may ask to be let through.
#[derive(Debug)]
pub(in crate::wire) struct Prepared {
    ask: Ask,
    /// The path it goes on to, where that is another than it came to.
    path: Option<String>,
    reading: Reading,
}

impl Reading {
    /// What watches an answer with this head.
    fn watch(self, status: StatusCode, headers: &HeaderMap) -> Watch {
        match self {
            Self::Read { encoding, form } => Watch::of(status, headers, encoding, form),
            Self::Told(told) => Watch::told(told),
        }
    }
}

/// Through what the answer to a request is read.
#[derive(Debug)]
pub(in crate::wire) struct Lens(Reading);

impl Lens {
    /// Watches an answer that nobody is charged for yet.
    pub(in crate::wire) fn meter(&self, status: StatusCode, headers: &HeaderMap) -> Meter {
        Meter::uncharged(self.0.clone().watch(status, headers))
    }
}

/// A request that is let through.
#[derive(Debug)]
pub(in crate::wire) struct Admitted {
    permit: Permit,
    place: (TenantId, ClassIndex),
    reading: Reading,
}

/// What the decisions remembered call the API of a request whose cost was told.
const APPRAISED: &str = "appraised";

/// Reads, routes and counts a body, and says how it goes on. Large ones are read off the worker threads.
///
/// # Errors
/// When it is malformed, asks for what does not exist here, or names a model that no pool serves.
pub(in crate::wire) async fn prepare(
    policy: &Arc<Policy>,
    arrival: Arrival,
    body: Bytes,
) -> Result<(Prepared, Bytes), Refused> {
    if body.len() <= READ_IN_PLACE {
        return read(policy, arrival, &body);
    }
    let policy = policy.clone();
    tokio::task::spawn_blocking(move || read(&policy, arrival, &body)).await.unwrap_or(Err(Refused::Internal))
}

/// Reads, routes and counts a body where it is. A large one takes a while.
///
/// # Errors
/// When it is malformed, asks for what does not exist here, or names a model that no pool serves.
pub(in crate::wire) fn read(policy: &Policy, arrival: Arrival, body: &Bytes) -> Result<(Prepared, Bytes), Refused> {
    let Arrival { decision, arrived, dialect, path, patience, caller } = arrival;
    let parsed = dialect.parse(&path, body).map_err(|error| match error {
        Unreadable::Malformed(what) => Refused::Malformed(what),
        Unreadable::Unsupported(what) => Refused::Unsupported(what),
    })?;
    let selection = place(policy, &caller, &parsed.call.model)?;
    let onward = parsed.forward(body, selection.model.as_str());
    let Parsed { call, answer: form, .. } = parsed;
    let counter = InputCounter::of(selection.model.as_str());
    let (encoding, input) = (counter.encoding(), counter.count(&call.prompt));
    let path = dialect.renamed(&path, selection.model.as_str());
    let dialect = dialect.name();
    let ask = Ask { decision, dialect, arrived, call, input, caller, selection, patience, sight: Sight::Passing };
    Ok((Prepared { ask, path, reading: Reading::Read { encoding, form } }, onward))
}

/// Routes a request whose cost was told, and hands out what its service is to tell in.
///
/// # Errors
/// When it names a model that no pool serves, or wishes for what is not granted.
pub(in crate::wire) fn appraise(policy: &Policy, told: Appraised) -> Result<(Prepared, Told), Refused> {
    let Appraised { decision, arrived, patience, caller, model, input, cap, bytes } = told;
    let selection = place(policy, &caller, &model)?;
    let call = Call {
        model,
        prompt: Prompt { tokens: input, ..Prompt::default() },
        cap,
        least: Tokens::ZERO,
        choices: NonZeroU32::MIN,
        effort: Effort::Unstated,
        streamed: false,
        bytes,
    };
    let (input, sight) = (Counted::exactly(input), Sight::Passing);
    let ask = Ask { decision, dialect: APPRAISED, arrived, call, input, caller, selection, patience, sight };
    let told = Told::default();
    Ok((Prepared { ask, path: None, reading: Reading::Told(told.clone()) }, told))
}

/// What somebody else read of a request whose body does not come here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::wire) struct Stated {
    /// The model, as the client names it.
    pub(in crate::wire) model: String,
    /// Whether the answer is to be streamed.
    pub(in crate::wire) streamed: bool,
    /// The most output one answer may have, where the client says so.
    pub(in crate::wire) cap: Limit<Tokens>,
    /// An estimate of its input.
    pub(in crate::wire) input: Tokens,
    /// The size of its body.
    pub(in crate::wire) bytes: units::Bytes,
}

/// Routes and prices a request by what is stated of it: one answer, of no stated effort. In some APIs it may ask for more,
/// each of which may come to the client's cap.
///
/// # Errors
/// When it names a model that no pool serves, or wishes for a class it may not have.
pub(in crate::wire) fn take_at_word(policy: &Policy, arrival: Arrival, stated: Stated) -> Result<Prepared, Refused> {
    let Arrival { decision, arrived, dialect, path, patience, caller } = arrival;
    let Stated { model, streamed, cap, input, bytes } = stated;
    let selection = place(policy, &caller, &model)?;
    let counter = InputCounter::of(selection.model.as_str());
    // The estimate is of the whole body, which is JSON, and is corrected as that.
    let prompt = Prompt { structured: units::Bytes::new(input.times(BYTES_PER_TOKEN).get()), ..Prompt::default() };
    let (encoding, input) = (counter.encoding(), counter.count(&prompt));
    let (least, choices, effort) = (Tokens::ZERO, NonZeroU32::MIN, Effort::Unstated);
    let call = Call { model, prompt: Prompt::default(), cap, least, choices, effort, streamed, bytes };
    let reading = Reading::Read { encoding, form: AnswerForm::new(dialect, false) };
    let sight = if dialect == Dialect::AnthropicMessages { Sight::End } else { Sight::EndOfSome };
    let path = dialect.renamed(&path, selection.model.as_str());
    let dialect = dialect.name();
    let ask = Ask { decision, dialect, arrived, call, input, caller, selection, patience, sight };
    Ok(Prepared { ask, path, reading })
}

/// Where a request goes, and what it weighs there.
fn place(policy: &Policy, caller: &Caller, model: &str) -> Result<Selection, Refused> {
    let selection = select(policy, caller, model)?;
    if let Some(granted) = policy.refused_wish(&caller.tenant, caller.wished_class.as_deref()) {
        let (wished, granted) = (caller.wished_class.clone().unwrap_or_default(), granted.join(", "));
        return Err(Refused::ClassNotGranted { wished, granted });
    }
    Ok(selection)
}

/// The size of a request of which there is no body here.
#[derive(Clone, Debug)]
pub(in crate::wire) struct Size {
    /// The model it is for.
    pub(in crate::wire) model: String,
    /// Its input.
    pub(in crate::wire) input: Tokens,
    /// The most output of one answer.
    pub(in crate::wire) cap: Limit<Tokens>,
    /// How many answers are asked for.
    pub(in crate::wire) choices: NonZeroU32,
    /// Whether the answer comes piece by piece.
    pub(in crate::wire) streamed: bool,
}

/// Routes a request of which only the size is known.
///
/// # Errors
/// When it names a model that no pool serves, or its caller wishes for a class that is not granted.
pub(in crate::wire) fn sized(policy: &Policy, arrival: Arrival, size: Size) -> Result<Prepared, Refused> {
    let Arrival { decision, arrived, patience, caller, .. } = arrival;
    let selection = place(policy, &caller, &size.model)?;
    let Size { model, input, cap, choices, streamed } = size;
    let call = Call {
        model,
        prompt: Prompt::default(),
        cap,
        least: Tokens::ZERO,
        choices,
        effort: Effort::Unstated,
        streamed,
        bytes: units::Bytes::default(),
    };
    let input = Counted::exactly(input);
    let ask =
        Ask { decision, dialect: APPRAISED, arrived, call, input, caller, selection, patience, sight: Sight::End };
    // Nobody here will read the answer, and nobody tells in passing.
    Ok(Prepared { ask, path: None, reading: Reading::Told(Told::default()) })
}

/// A body that costs nothing as the upstream is to see it, and the pool that serves the model it names, else the first.
///
/// # Errors
/// When it names a model that no pool serves.
pub(in crate::wire) fn rename(policy: &Policy, caller: &Caller, body: &Bytes) -> Result<(PoolIndex, Bytes), Refused> {
    let Some(named) = Named::read(body) else { return Ok((PoolIndex::new(0), body.clone())) };
    let selection = select(policy, caller, &named.model)?;
    Ok((selection.pool, named.forward(body, selection.model.as_str())))
}

fn select(policy: &Policy, caller: &Caller, model: &str) -> Result<Selection, Refused> {
    let selection = policy.select(&caller.tenant, caller.wished_class.as_deref(), model);
    selection.ok_or_else(|| Refused::ModelNotFound(model.to_owned()))
}

impl Prepared {
    /// What the core is to be asked.
    pub(in crate::wire) fn ask(&self) -> &Ask {
        &self.ask
    }

    /// Through what its answer is to be read.
    pub(in crate::wire) fn lens(&self) -> Lens {
        Lens(self.reading.clone())
    }

    /// Where it goes.
    pub(in crate::wire) fn pool(&self) -> PoolIndex {
        self.ask.selection.pool
    }

    /// The path it goes on to, where that is another than it came to: an alias renames a model that stands there.
    pub(in crate::wire) fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// Its answer will not pass here: nothing is known of it before its end.
    pub(in crate::wire) fn unseen(mut self) -> Self {
        self.ask.sight = Sight::End;
        self
    }

    /// Whether the upstream knows the model by another name than the client.
    pub(in crate::wire) fn is_renamed(&self) -> bool {
        self.ask.call.model.as_str() != self.ask.selection.model.as_str()
    }

    /// Asks to be let through, and waits as long as it takes. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// When the core refuses, or is broken.
    pub(in crate::wire) async fn admit(self, gate: &Gate) -> Result<Admitted, Refused> {
        let Self { ask, path: _, reading } = self;
        let place = (ask.caller.tenant.clone(), ask.selection.class);
        match gate.admit(ask).await {
            Ok(permit) => Ok(Admitted { permit, place, reading }),
            Err(Denied::Refused(refusal)) => Err(Refused::ByCore(Box::new(refusal))),
            Err(Denied::Broken) => Err(Refused::Internal),
        }
    }
}

impl Admitted {
    /// How long it had waited.
    pub(in crate::wire) fn waited(&self) -> Span {
        self.permit.waited()
    }

    /// What is left of the limits that concern it.
    pub(in crate::wire) fn left(&self) -> &Left {
        self.permit.left()
    }

    /// The permit alone, for a door that will not see the answer.
    pub(super) fn into_permit(self) -> Permit {
        self.permit
    }

    /// It goes upstream now; from here on it costs something.
    pub(in crate::wire) fn sent(&mut self) {
        self.permit.sent();
    }

    /// No answer came of it.
    pub(in crate::wire) fn unanswered(self, outcome: Outcome) {
        self.permit.settle(Ending { outcome, usage: Reported::Nothing, heard: None });
    }

    /// Asks its engine for a report of its load, where the policy says so.
    pub(in crate::wire) fn ask_for_load(&self, onward: &mut HeaderMap) {
        load::ask(onward, self.permit.load_asked());
    }

    /// Tells an endpoint picker whose it is, and which class it was granted.
    pub(in crate::wire) fn tell_picker(&self, policy: &Policy, onward: &mut HeaderMap) {
        let (tenant, class) = &self.place;
        picker::tell(onward, tenant.as_str(), &policy.classes[class.index()].name);
    }

    /// Whether a report of its engine's load is kept from the client.
    pub(in crate::wire) fn keeps_load(&self) -> bool {
        self.permit.load_asked().is_some()
    }

    /// Its answer is here: from now on it is settled by what passes.
    pub(in crate::wire) fn meter(self, status: StatusCode, headers: &HeaderMap) -> Meter {
        self.take_load(headers);
        let heard = heard(status, headers, self.permit.unix_now());
        let mut meter = Meter::new(self.reading.watch(status, headers), self.permit, heard);
        meter.hear(headers);
        meter
    }

    /// Its answer is here, but will be read by somebody else, who tells at its end what it used.
    pub(in crate::wire) fn meter_unseen(self, status: StatusCode, headers: &HeaderMap) -> Meter {
        self.take_load(headers);
        let heard = heard(status, headers, self.permit.unix_now());
        let mut meter = Meter::new(Watch::Unreadable, self.permit, heard);
        meter.begins();
        meter
    }

    /// What its answer is charged to, and what the head of the answer says.
    pub(super) fn into_charge(self, status: StatusCode, headers: &HeaderMap) -> (Permit, Heard) {
        self.take_load(headers);
        let heard = heard(status, headers, self.permit.unix_now());
        (self.permit, heard)
    }

    fn take_load(&self, headers: &HeaderMap) {
        if self.keeps_load()
            && let Some(report) = headers.get(load::REPORT)
        {
            self.permit.load_reported(&String::from_utf8_lossy(report.as_bytes()));
        }
    }

    /// Whether usage is in the answer because the client asked for it or because it always is, and not because it was
    /// asked for here.
    pub(in crate::wire) fn reports_by_itself(&self) -> bool {
        match &self.reading {
            Reading::Read { form, .. } => !form.hides(),
            Reading::Told(_) => true,
        }
    }
}
