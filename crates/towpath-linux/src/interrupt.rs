//! Ctrl-C: a run ends early but keeps its result; a program in a lab decides for itself.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys;

static SEEN: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: libc::c_int) {
    if SEEN.swap(true, Ordering::Relaxed) {
        sys::leave_at_once(130);
    }
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// From now on an interrupt is noted; a second one ends the process at once.
pub fn catch() {
    sys::on_interrupt(note);
}

/// From now on interrupts do nothing to this process (its children get them all the same).
pub fn leave_to_children() {
    sys::on_interrupt(nothing);
}

/// Whether an interrupt was noted.
pub fn seen() -> bool {
    SEEN.load(Ordering::Relaxed)
}
