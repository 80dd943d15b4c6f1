//! The simulator: real policy, predictor, core and ledger in a world whose clock is a number.
//!
//! A fairness claim that only a busy GPU can test is not tested. Here the engine is a model, time jumps from
//! event to event, and everything else is the code that runs in production, so a ten-minute overload takes
//! a fraction of a second and the same seed gives the same run.

pub mod baseline;
pub mod chart;
pub mod clients;
pub mod demand;
pub mod engine;
pub mod goodput;
mod gradient2;
pub mod measure;
pub mod oracle;
pub mod record;
pub mod report;
pub mod spec;
pub mod trace;
pub mod world;

pub use baseline::{Baseline, Gradient};
pub use demand::{Demand, Fate};
pub use engine::{Job, JobId, Progress, SimEngine, Supply, Watch};
pub use goodput::{Goodput, Since};
pub use record::{Outcome, Record};
pub use report::Report;
pub use spec::{BadEngine, EngineForm, EngineSpec, NeverFits, Slowdown};
pub use world::{Guess, Keep, LOAD_BIN, Load, Place, Run, Setup, WindowMove};
