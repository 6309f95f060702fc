//! Simulator: runs a scenario over towpath's own stack in virtual time, deterministically.
//!
//! Equal scenario, transport and repetition give equal records, byte for byte, on every machine
//! and with any number of threads. Packets travel as in the emulated world: the same link model
//! carries the stack's real packets. The host around the stack (its own queues, small queues,
//! processor time, timers) is modelled; see `docs/explanation/simulator.md`.
//!
//! Reading order:
//!
//! 1. [`check`] and [`run`]: one run from beginning to end;
//! 2. `simulation`: the event loop and the order of simultaneous events;
//! 3. `host` and `network`: the layers between the applications and the links;
//! 4. `traffic`: the applications;
//! 5. `record`: the result's records;
//! 6. [`Components`]: schedulers, congestion controls and traffic of the caller.

mod account;
mod components;
mod error;
pub mod explain;
mod host;
mod idle_cause;
mod job;
mod middlebox;
mod network;
mod packet;
mod pcap;
mod ping;
mod quic;
mod quic_flow;
mod quic_record;
mod record;
mod run;
mod simulation;
mod socket;
mod summary;
mod support;
mod test_pattern;
mod traffic;
mod udp;

pub use components::{Components, RequestsFactory};
pub use error::SimError;
pub use job::SimJob;
pub use pcap::{CAPTURE_EPOCH, CaptureOutputs};
pub use run::{SimReport, run, run_captured};
pub use support::{Unsupported, check, known_names, known_quic_names};
