//! The emulator: packets of real kernels through the link model, in real time.
//!
//! One thread reads every host's interfaces ([`port`]), cuts super-segments where the link wants
//! packets ([`frame`]), pushes them into the [`Topology`] with the time at which they were read,
//! and writes what is due ([`engine`]), for which it gets up in time ([`alarm`]). Departure times are
//! the link model's own: a late wake-up is recorded as lateness, but does not add up.
//!
//! [`Topology`]: towpath_net::Topology

pub(crate) mod alarm;
pub(crate) mod capture;
pub(crate) mod engine;
pub(crate) mod frame;
pub(crate) mod headers;
pub(crate) mod port;
pub(crate) mod tap;
