//! Ctrl-C: a run ends early but keeps its result; a program in a lab decides for itself.
//!
//! The processes of a run hear of it in two ways: by the terminal's signal, which goes to all of
//! them, and by the end of their standard input, which the command holds open while it lives.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::sys;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: libc::c_int) {
    if INTERRUPTED.swap(true, Ordering::Relaxed) {
        sys::exit_now(130);
    }
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// From now on an interrupt is noted; a second one ends the process at once.
pub fn catch() {
    sys::on_interrupt(note);
}

/// From now on the end of standard input counts as an interrupt.
pub fn catch_end_of_input() -> io::Result<()> {
    thread::Builder::new().name("lifeline".into()).spawn(|| {
        let mut ignored = [0; 16];
        while io::stdin().read(&mut ignored).is_ok_and(|read| read > 0) {}
        INTERRUPTED.store(true, Ordering::Relaxed);
    })?;
    Ok(())
}

/// From now on interrupts do nothing to this process (its children get them all the same).
pub fn ignore() {
    sys::on_interrupt(nothing);
}

/// Why something was given up for which nobody waits any more.
pub(crate) fn error() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "interrupted")
}

/// Whether an interrupt was noted.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
