//! Stopping without losing anybody who can still be served.
//!
//! Newcomers are refused at once; what is queued is served on and what runs runs on, for at most the grace given;
//! then what is still queued is refused, and what still runs is cut off by whoever owns its connection, which settles
//! it.

use crate::units::Span;

use super::gate::{Broken, Gate};

/// Waits until the process is asked to stop: an interrupt from the terminal, or a termination signal. A hangup, by which
/// others are told to read their configuration anew, would end it with all that runs, and is only told of.
///
/// # Errors
/// When the signals cannot be listened to.
pub async fn asked_to_stop(hung_up: impl Fn()) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut terminate, mut hangup) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
        loop {
            tokio::select! {
                interrupt = tokio::signal::ctrl_c() => return interrupt,
                _ = terminate.recv() => return Ok(()),
                _ = hangup.recv() => hung_up(),
            }
        }
    }
    #[cfg(not(unix))]
    {
        drop(hung_up);
        tokio::signal::ctrl_c().await
    }
}

/// Drains the gate: refuses newcomers, waits for the rest up to `grace`, then refuses what is still queued.
///
/// # Errors
/// When the core is broken, and there is nothing to wait for.
pub async fn drain(gate: &Gate, grace: Span) -> Result<(), Broken> {
    gate.start_draining()?;
    tokio::select! {
        idle = gate.idle() => idle,
        () = gate.clock().sleep(grace) => gate.flush(),
    }
}
