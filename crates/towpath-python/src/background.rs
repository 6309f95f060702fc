//! Work on other threads while Python handles signals.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

/// Interval at which Ctrl-C is looked for.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// Interval at which stopped work is looked at.
const STOP_INTERVAL: Duration = Duration::from_millis(20);

/// Connection of the work to the thread that waits for it.
#[derive(Debug)]
pub(crate) struct Monitor {
    stop: AtomicBool,
    progress: mpsc::Sender<(usize, usize)>,
    /// Identifiers of threads that call Python objects, as `threading.get_ident` returns them.
    python_threads: Mutex<Vec<u64>>,
}

impl Monitor {
    /// Returns true if the work is to end early.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Notes that this thread calls Python objects, so that a signal interrupts an endless loop.
    pub(crate) fn register_thread(&self, py: Python<'_>) -> PyResult<()> {
        let identifier = py.import("threading")?.call_method0("get_ident")?.extract()?;
        self.threads().push(identifier);
        Ok(())
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        self.python_threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises an exception in the Python code of all registered threads, if they run any.
    fn interrupt_threads(&self, py: Python<'_>) -> PyResult<()> {
        let threads = std::mem::take(&mut *self.threads());
        if threads.is_empty() {
            return Ok(());
        }
        py.import("towpath.components")?.call_method1("_interrupt", (threads,))?;
        Ok(())
    }

    /// Reports the numbers of finished and of all parts.
    pub(crate) fn report(&self, done: usize, total: usize) {
        let _ = self.progress.send((done, total)); // the receiver may have stopped
    }
}

/// Runs `work` on another thread without the interpreter's lock.
///
/// Meanwhile this thread calls `progress` with each report and handles signals. An exception of
/// either stops the work and is returned.
pub(crate) fn run<T: Send>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&Monitor) -> T + Send,
) -> PyResult<T> {
    let (sender, receiver) = mpsc::channel();
    let (finished, end) = mpsc::channel::<()>();
    let monitor = Monitor {
        stop: AtomicBool::new(false),
        progress: sender,
        python_threads: Mutex::default(),
    };
    thread::scope(|scope| {
        let monitor = &monitor;
        let worker = scope.spawn(move || {
            let _finished = finished; // dropped at the end, also by a panic
            work(monitor)
        });
        let watched = watch(py, progress, receiver, end);
        if watched.is_err() {
            monitor.stop.store(true, Ordering::Relaxed);
            while !worker.is_finished() {
                monitor.interrupt_threads(py)?;
                py.detach(|| thread::park_timeout(STOP_INTERVAL));
            }
        }
        let outcome = py.detach(|| worker.join());
        watched?;
        outcome.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
            let message = text.unwrap_or_else(|| "the work ended with a panic".to_owned());
            pyo3::exceptions::PyRuntimeError::new_err(message)
        })
    })
}

/// Calls `progress` and handles signals until `end` is closed.
fn watch(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    reports: mpsc::Receiver<(usize, usize)>,
    mut end: mpsc::Receiver<()>,
) -> PyResult<()> {
    loop {
        let (ended, back) = py.detach(move || (end.recv_timeout(SIGNAL_INTERVAL), end));
        end = back;
        let latest = reports.try_iter().last();
        if let (Some((done, total)), Some(progress)) = (latest, progress) {
            progress.call1((done, total))?;
        }
        py.check_signals()?;
        if ended == Err(RecvTimeoutError::Disconnected) {
            return Ok(());
        }
    }
}
