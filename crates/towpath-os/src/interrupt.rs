//! Ctrl-C: a run ends early but keeps its result; a program in a lab decides for itself.
//!
//! The processes of a run notice an interrupt in two ways. The terminal's signal reaches all of
//! them. Their standard input, which the command holds open, also ends when the command exits.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[cfg(target_os = "linux")]
use crate::sys;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

#[cfg(target_os = "linux")]
extern "C" fn record_interrupt(_signal: libc::c_int) {
    if INTERRUPTED.swap(true, Ordering::Relaxed) {
        sys::exit_now(130);
    }
}

#[cfg(target_os = "linux")]
extern "C" fn ignore_signal(_signal: libc::c_int) {}

/// Catches interrupts from now on; a second one ends the process at once.
#[cfg(target_os = "linux")]
pub fn catch() {
    sys::on_interrupt(record_interrupt);
}

/// Catches interrupts from now on; a second one ends the process at once.
#[cfg(not(target_os = "linux"))]
#[expect(clippy::exit, reason = "a second interrupt ends the process")]
pub fn catch() {
    // Fails if interrupts are caught already.
    let _ = ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    });
}

/// Treats the end of standard input as an interrupt from now on.
pub fn catch_end_of_input() -> io::Result<()> {
    thread::Builder::new().name("lifeline".into()).spawn(|| {
        let mut ignored = [0; 16];
        while io::stdin().read(&mut ignored).is_ok_and(|read| read > 0) {}
        INTERRUPTED.store(true, Ordering::Relaxed);
    })?;
    Ok(())
}

/// Ignores interrupts in this process from now on; its children still receive them.
#[cfg(target_os = "linux")]
pub fn ignore() {
    sys::on_interrupt(ignore_signal);
}

/// Returns the error of an operation that an interrupt has cancelled.
pub fn error() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "interrupted")
}

/// Returns true if an interrupt was received.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
