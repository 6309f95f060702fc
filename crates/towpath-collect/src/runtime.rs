//! Runtime of the collector's tasks, and its log.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

use crate::error::CollectError;

/// Runs a task of the collector to its end.
pub fn run_to_end<T>(
    task: impl Future<Output = Result<T, CollectError>>,
) -> Result<T, CollectError> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(task)
}

/// Returns a future that ends when SIGINT or SIGTERM arrives.
///
/// Must be called within [`run_to_end`].
pub fn interrupt() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Writes warnings and errors of the collector to standard error.
pub fn log_to_stderr() {
    // Fails if a log exists already, which is then used.
    let _ = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .try_init();
}
