//! Emulator: passes packets of real kernels through the link model, in real time.
//!
//! One thread reads every host's interfaces ([`port`]) and splits super-segments where the link
//! needs packets ([`frame`]). It pushes them into the [`Topology`] with the time at which they were
//! read, and writes due packets ([`engine`]); [`wakeup_timer`] wakes it in time. Departure times
//! are the link model's own: a late wake-up is recorded as lateness but does not accumulate.
//!
//! [`Topology`]: towpath_net::Topology

pub(crate) mod capture;
pub(crate) mod engine;
pub(crate) mod wakeup_timer;
