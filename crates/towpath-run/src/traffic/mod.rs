//! Traffic patterns as state machines over byte streams, without sockets or a clock.
//!
//! All patterns run on every transport, simulated, emulated or on real hosts. There are two
//! families over streams.
//!
//! *Transfers* ([`transfer`]) are open-ended data, measured by goodput. Each stream and direction
//! has one [`TransferSender`] and one [`TransferReceiver`].
//!
//! *Messages* are requests that are due at certain times, and their replies, measured by delay.
//! Each end of a flow has one [`MessageSession`]. A [`RequestGenerator`] per pattern decides on the
//! requests ([`exchange`], [`video`], [`web`]). All of them are open loop: a delay counts from when
//! the request was *due*, so a stall is fully visible.
//!
//! Datagrams over single paths need no stream: echo requests ([`udping`]), and a constant rate in
//! one direction or both ([`udp`]).

pub mod exchange;
pub mod frame;
mod outbox;
mod pacer;
pub mod session;
pub mod transfer;
pub mod udp;
pub mod udping;
pub mod video;
pub mod web;

pub use pacer::TransferPacer;
pub use session::{FlowRole, MessageSession, Request, RequestGenerator, StreamAction, messages};
pub use transfer::{FinishReason, SendAllowance, TransferReceiver, TransferSender};
pub use udp::{UdpReceiver, UdpSender};
pub use udping::Pinger;
