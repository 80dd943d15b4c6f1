//! A simulated serving engine with continuous batching, driven by time alone.
//!
//! What it is: the router loop of the engine that the VTC paper measured, with its step times replaced by a
//! linear model ([`EngineSpec`]). It is a machine like the core: no clock, no task; somebody says what time it
//! is, and it says when its running step will end.
//!
//! The loop. Requests wait first come, first served. When nothing runs, or at least `admit_every_steps` decode
//! steps have passed since the last admission, the engine tries before every step to form a mini-batch from
//! the front of the queue, and stops at the first request that does not fit. If it formed one, the step is a
//! prefill of it, which yields each newcomer's first token; otherwise the step decodes one token for every
//! running request. A request leaves when its last token is produced.
//!
//! What fits. The input tokens of a mini-batch stay within `prefill.batch_tokens` (a longer single input goes
//! alone), and memory must suffice at its *peak*, knowing how long each answer will be. With the requests
//! ordered by tokens left, most first, and `used` the tokens a request holds now, the peak is
//! `max over k of (left_k × k + used_1 + … + used_k)`: when the k-th is about to end, it and the k−1 that
//! outlast it have each grown by `left_k`. It must stay below `kv_tokens`.
//!
//! Cost. A step is O(1), plus the requests that end in it and those whose every token somebody asked for; an
//! attempt at admission is O(running). It never rejects what fits alone and never keeps what cannot: such a
//! job is refused by [`SimEngine::submit`].

use std::collections::VecDeque;

use crate::units::{EngineGauges, Instant, Share, Tokens};

use super::spec::{EngineSpec, NeverFits};

/// Names a job within one engine. The caller keeps them distinct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// Which of a job's tokens are reported. The first and the last always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Only the first and the last.
    Ends,
    /// Every one.
    Every,
}

/// A request as the engine sees it: it knows how long the answer will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its name.
    pub id: JobId,
    /// Input tokens; they occupy memory.
    pub input: Tokens,
    /// Input tokens that need no processing because a cache has them.
    pub cached: Tokens,
    /// Output tokens it will produce.
    pub output: Tokens,
    /// Which of them are reported.
    pub watch: Watch,
}

impl Job {
    /// A job without cached input, reported at every token.
    #[must_use]
    pub fn new(id: JobId, input: Tokens, output: Tokens) -> Self {
        Self { id, input, cached: Tokens::ZERO, output, watch: Watch::Every }
    }

    /// All its tokens.
    #[must_use]
    pub fn total(&self) -> Tokens {
        self.input + self.output
    }
}

/// A job produced tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// When the step ended that produced them.
    pub at: Instant,
    /// Which job.
    pub id: JobId,
    /// Output tokens so far, in all.
    pub output: Tokens,
    /// Whether that was its last.
    pub finished: bool,
}

/// Where the engine takes its next job from: its own queue, or somebody else's order.
pub trait Supply {
    /// The job that would be taken next.
    fn head(&mut self) -> Option<Job>;
    /// Takes it. Called only after [`head`](Self::head) returned it and it fits.
    fn take(&mut self) -> Option<Job>;
}

impl Supply for VecDeque<Job> {
    fn head(&mut self) -> Option<Job> {
        self.front().copied()
    }

    fn take(&mut self) -> Option<Job> {
        self.pop_front()
    }
}

/// The engine.
#[derive(Debug)]
pub struct SimEngine {
    spec: EngineSpec,
    queue: VecDeque<Job>,
    queued_tokens: Tokens,
    /// Running jobs, the last to end first.
    batch: Vec<Resident>,
    /// Jobs of the running prefill.
    prefilling: Vec<Job>,
    step: Option<Step>,
    /// Decode steps ended so far: the engine's own clock, by which jobs know when they end.
    decoded: u64,
    decoded_since_admission: u32,
    resident: Tokens,
    admitted_tokens: Tokens,
    /// Running jobs that are or will be reported between their first and last token.
    watched: usize,
    /// Scratch space of the memory test.
    claims: Vec<Claim>,
}

#[derive(Clone, Copy, Debug)]
struct Resident {
    job: Job,
    /// The value of `decoded` when it had produced its first token.
    first: u64,
    /// The value of `decoded` when it produces its last.
    last: u64,
}

impl Resident {
    fn progress(&self, at: Instant, decoded: u64) -> Progress {
        Progress { at, id: self.job.id, output: self.output(decoded), finished: false }
    }

    fn is_watched(&self) -> bool {
        self.job.watch != Watch::Ends
    }

    fn claim(&self, decoded: u64) -> Claim {
        let used = self.job.input + self.output(decoded);
        Claim { used: used.get(), left: (self.last - decoded).saturating_sub(1).max(1) }
    }

    fn output(&self, decoded: u64) -> Tokens {
        Tokens::new(decoded - self.first + 1)
    }
}

#[derive(Clone, Copy, Debug)]
struct Step {
    ends: Instant,
    kind: StepKind,
}

#[derive(Clone, Copy, Debug)]
enum StepKind {
    Prefill,
    Decode,
}

/// One request's claim on memory: what it holds and how much it will still grow.
#[derive(Clone, Copy, Debug)]
struct Claim {
    used: u64,
    left: u64,
}

impl SimEngine {
    /// An idle engine.
    #[must_use]
    pub fn new(spec: EngineSpec) -> Self {
        Self {
            spec,
            queue: VecDeque::new(),
            queued_tokens: Tokens::ZERO,
            batch: Vec::new(),
            prefilling: Vec::new(),
            step: None,
            decoded: 0,
            decoded_since_admission: 0,
            resident: Tokens::ZERO,
            admitted_tokens: Tokens::ZERO,
            watched: 0,
            claims: Vec::new(),
        }
    }

    /// What it was built from.
    #[must_use]
    pub fn spec(&self) -> &EngineSpec {
        &self.spec
    }

    /// Puts a job at the end of the queue. Call [`advance`](Self::advance) up to the same moment first.
    ///
    /// # Errors
    /// When it can never fit; the job is not taken.
    pub fn submit(&mut self, now: Instant, job: Job) -> Result<(), NeverFits> {
        self.enqueue(job)?;
        if self.step.is_none() {
            self.start_own_step(now);
        }
        Ok(())
    }

    /// As [`submit`](Self::submit), leaving it to the caller to start the next step.
    ///
    /// # Errors
    /// When it can never fit; the job is not taken.
    pub fn enqueue(&mut self, job: Job) -> Result<(), NeverFits> {
        self.spec.check(&job)?;
        self.queue.push_back(job);
        self.queued_tokens += job.total();
        Ok(())
    }

    /// Forgets a job, wherever it stands, and says how many tokens it had produced; `None` when it is not here.
    /// The step that is running takes as long as it would have.
    pub fn cancel(&mut self, id: JobId) -> Option<Tokens> {
        if let Some(at) = self.queue.iter().position(|job| job.id == id) {
            let job = self.queue.remove(at)?;
            self.queued_tokens = self.queued_tokens.saturating_sub(job.total());
            return Some(Tokens::ZERO);
        }
        if let Some(at) = self.prefilling.iter().position(|job| job.id == id) {
            let job = self.prefilling.remove(at);
            self.admitted_tokens = self.admitted_tokens.saturating_sub(job.total());
            return Some(Tokens::ZERO);
        }
        let at = self.batch.iter().position(|resident| resident.job.id == id)?;
        let resident = self.batch.remove(at);
        let output = resident.output(self.decoded);
        self.resident = self.resident.saturating_sub(resident.job.input + output);
        self.admitted_tokens = self.admitted_tokens.saturating_sub(resident.job.total());
        self.watched -= usize::from(resident.is_watched());
        Some(output)
    }

    /// When the running step ends; `None` when the engine is idle.
    #[must_use]
    pub fn next_event(&self) -> Option<Instant> {
        self.step.map(|step| step.ends)
    }

    /// Ends every step that ends by `now`, starting the next one each time from the engine's own queue, and
    /// appends what they produced.
    pub fn advance(&mut self, now: Instant, out: &mut Vec<Progress>) {
        while let Some(ended) = self.next_event().filter(|ends| *ends <= now) {
            self.end_step(out);
            self.start_own_step(ended);
        }
    }

    /// Starts the next step from the engine's own queue, unless one is running or there is nothing to do.
    pub fn start_own_step(&mut self, now: Instant) {
        if self.step.is_some() {
            return;
        }
        let mut queue = std::mem::take(&mut self.queue);
        self.start_step(now, &mut queue);
        self.queue = queue;
        let admitted = self.prefilling.iter().map(Job::total).sum();
        self.queued_tokens = self.queued_tokens.saturating_sub(admitted);
    }

    /// Starts the next step, taking newcomers from `supply`; nothing happens while a step is running or when
    /// there is nothing to do.
    pub fn start_step(&mut self, now: Instant, supply: &mut impl Supply) {
        if self.step.is_some() {
            return;
        }
        if self.is_about_to_admit() {
            let input = self.form_mini_batch(supply);
            if !self.prefilling.is_empty() {
                self.decoded_since_admission = 0;
                let span = self.spec.paced(now, self.spec.prefill_span(input));
                self.step = Some(Step { ends: now + span, kind: StepKind::Prefill });
                return;
            }
        }
        if !self.batch.is_empty() {
            let span = self.spec.paced(now, self.spec.decode_span(self.batch.len(), self.resident));
            self.step = Some(Step { ends: now + span, kind: StepKind::Decode });
        }
    }

    /// Ends the running step, whatever the time, and appends what it produced.
    pub fn end_step(&mut self, out: &mut Vec<Progress>) {
        let Some(step) = self.step.take() else { return };
        match step.kind {
            StepKind::Prefill => self.end_prefill(step.ends, out),
            StepKind::Decode => self.end_decode(step.ends, out),
        }
    }

    /// How far every running job has come that has produced something, in the order in which they will end.
    pub fn progress(&self, now: Instant) -> impl Iterator<Item = Progress> + '_ {
        self.batch.iter().rev().map(move |resident| resident.progress(now, self.decoded))
    }

    /// Whether a job ends with the running step.
    #[must_use]
    pub fn is_about_to_finish_a_job(&self) -> bool {
        match self.step.map(|step| step.kind) {
            None => false,
            Some(StepKind::Prefill) => self.prefilling.iter().any(|job| job.output <= Tokens::new(1)),
            Some(StepKind::Decode) => self.batch.last().is_some_and(|resident| resident.last == self.decoded + 1),
        }
    }

    /// Whether the engine looks at its queue before the next step, as far as can be said now.
    #[must_use]
    pub fn is_about_to_admit(&self) -> bool {
        self.batch.is_empty() || self.decoded_since_admission >= self.spec.admit_every_steps
    }

    /// Jobs in the queue.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Jobs running, a running prefill included.
    #[must_use]
    pub fn running(&self) -> usize {
        self.batch.len() + self.prefilling.len()
    }

    /// What it says of its load. It never pushes anything out of its memory: what it admits fits to its end.
    #[must_use]
    pub fn gauges(&self) -> EngineGauges {
        let number = |count: usize| u64::try_from(count).ok();
        let capacity = self.spec.kv_tokens.get().max(1);
        #[expect(clippy::cast_precision_loss, reason = "a share of a memory")]
        let used = self.resident.get().min(capacity) as f64 / capacity as f64;
        EngineGauges {
            waiting: number(self.waiting()),
            running: number(self.running()),
            kv_usage: Share::new(used).ok(),
            preemptions: Some(0),
            kv_capacity: Some(self.spec.kv_tokens),
        }
    }

    /// Tokens in memory.
    #[must_use]
    pub fn resident_tokens(&self) -> Tokens {
        self.resident
    }

    /// All tokens, to come included, of the jobs in the queue.
    #[must_use]
    pub fn waiting_tokens(&self) -> Tokens {
        self.queued_tokens
    }

    /// All tokens, to come included, of the jobs admitted and unfinished.
    #[must_use]
    pub fn admitted_tokens(&self) -> Tokens {
        self.admitted_tokens
    }

    /// Moves what fits from the front of the supply to the prefill and says how much input must be processed.
    fn form_mini_batch(&mut self, supply: &mut impl Supply) -> Tokens {
        let (mut input, mut uncached) = (Tokens::ZERO, Tokens::ZERO);
        let mut claims = std::mem::take(&mut self.claims);
        claims.clear();
        while let Some(job) = supply.head() {
            if claims.is_empty() {
                claims.extend(self.batch.iter().map(|resident| resident.claim(self.decoded)));
            }
            let alone = self.prefilling.is_empty();
            if (!alone && input + job.input > self.spec.prefill.batch_tokens) || !self.fits(&mut claims, &job) {
                break;
            }
            let Some(job) = supply.take() else { break };
            input += job.input;
            uncached += job.input.saturating_sub(job.cached);
            self.admitted_tokens += job.total();
            self.prefilling.push(job);
        }
        self.claims = claims;
        uncached
    }

    /// Whether memory suffices at its peak with this job added; if so its claim is.
    fn fits(&self, claims: &mut Vec<Claim>, job: &Job) -> bool {
        if claims.len() >= self.spec.max_sequences {
            return false;
        }
        let claim = Claim { used: job.input.get().saturating_add(1), left: job.output.get().saturating_sub(1) };
        let at = claims.partition_point(|other| other.left >= claim.left);
        claims.insert(at, claim);
        let (mut used, mut peak) = (0_u64, 0_u64);
        for (k, claim) in (1_u64..).zip(claims.iter()) {
            used = used.saturating_add(claim.used);
            peak = peak.max(claim.left.saturating_mul(k).saturating_add(used));
        }
        let fits = peak < self.spec.kv_tokens.get();
        if !fits {
            claims.remove(at);
        }
        fits
    }

    fn end_prefill(&mut self, at: Instant, out: &mut Vec<Progress>) {
        for job in std::mem::take(&mut self.prefilling) {
            let output = Tokens::new(job.output.get().min(1));
            let finished = output == job.output;
            out.push(Progress { at, id: job.id, output, finished });
            if finished {
                self.admitted_tokens = self.admitted_tokens.saturating_sub(job.total());
                continue;
            }
            self.resident += job.input + output;
            let last = self.decoded + job.output.get() - 1;
            // Before its equals, so that of those that end together the first admitted is the first to leave.
            let place = self.batch.partition_point(|other| other.last > last);
            let resident = Resident { job, first: self.decoded, last };
            self.watched += usize::from(resident.is_watched());
            self.batch.insert(place, resident);
        }
    }

    fn end_decode(&mut self, at: Instant, out: &mut Vec<Progress>) {
        self.decoded += 1;
        self.decoded_since_admission = self.decoded_since_admission.saturating_add(1);
        self.resident += Tokens::new(u64::try_from(self.batch.len()).unwrap_or(u64::MAX));
        let decoded = self.decoded;
        while let Some(resident) = self.batch.pop_if(|resident| resident.last == decoded) {
            let job = resident.job;
            self.resident = self.resident.saturating_sub(job.total());
            self.admitted_tokens = self.admitted_tokens.saturating_sub(job.total());
            self.watched -= usize::from(resident.is_watched());
            out.push(Progress { at, id: job.id, output: job.output, finished: true });
        }
        if self.watched == 0 {
            return;
        }
        // From the back, so that what is reported together is in the same order as what ends together.
        let watched = self.batch.iter().rev().filter(|resident| resident.is_watched());
        out.extend(watched.map(|resident| resident.progress(at, decoded)));
    }
}

#[cfg(test)]
mod tests;
