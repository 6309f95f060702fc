//! The virtual clock: runs a scenario over our own stack, in no time and always the same.
//!
//! Equal scenario, transport and repetition give equal records, byte for byte, on every machine and
//! with any number of threads. Only what is sent is simulated in no other way than in the emulated
//! world: the same link model carries the stack's real packets. What hosts do around the stack
//! (their own queues, small queues, processor time, timers) is modelled; see `docs/simulator.md`.
//!
//! Reading order: [`run`] (one run from beginning to end), `world` (the event loop, and the order of
//! what happens at the same time), `host` and `network` (what is between the applications and the
//! links), `traffic` (the applications), `record` (what the result says).

mod account;
mod conclude;
mod content;
mod error;
pub mod explain;
mod host;
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
mod socket;
mod traffic;
mod udp;
mod why;
mod world;

pub use error::SimError;
pub use pcap::{CAPTURE_EPOCH, CaptureOutputs};
pub use run::{SimJob, SimReport, known_names, known_quic_names, run, run_captured};
