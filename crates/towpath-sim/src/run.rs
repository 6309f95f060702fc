//! A single simulation run: one scenario over one transport.

use std::io;
use std::time::Duration;

use towpath_net::Instant;
use towpath_result::{Meta, Record};
use towpath_scenario::network::end_of;
use towpath_scenario::{StackKind, Transport, World};

use crate::error::SimError;
use crate::job::SimJob;
use crate::pcap::{CaptureOutputs, PcapWriter};
use crate::simulation::Simulation;
use crate::summary::conclude;

/// Totals of a run that are not part of its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimReport {
    /// Virtual time that has passed.
    pub virtual_time: Duration,
    /// Packets that were delivered to a host.
    pub packets: u64,
}

/// Runs `job` and passes every record to `write`.
///
/// Each host's packets are written as pcapng to its writer in `captures`, in the order of the
/// scenario's hosts. Empty `captures` disable capturing.
pub fn run(
    job: &SimJob,
    captures: Vec<&mut (dyn io::Write + Send)>,
    write: &mut dyn FnMut(&Record) -> io::Result<()>,
) -> Result<SimReport, SimError> {
    run_captured(job, CaptureOutputs { writers: captures, ..CaptureOutputs::default() }, write)
}

/// Runs `job` like [`run`], with options for the captures such as a snapshot length.
pub fn run_captured(
    job: &SimJob,
    captures: CaptureOutputs<'_>,
    write: &mut dyn FnMut(&Record) -> io::Result<()>,
) -> Result<SimReport, SimError> {
    let CaptureOutputs { writers, snap_bytes, headers_only } = captures;
    let scenario = &*job.scenario;
    let seed = scenario.run.seed.wrapping_add(u64::from(job.repeat.saturating_sub(1)));
    write(&Record::Meta(Box::new(meta(job, seed)))).map_err(SimError::Write)?;
    let captures = writers.into_iter().enumerate().map(|(host, writer)| {
        let paths = scenario.paths.iter().filter(|path| end_of(path, host).is_some());
        PcapWriter::begin(writer, paths.map(|path| path.name.as_str()), snap_bytes)
    });
    let captures = captures.collect();
    let mut simulation = Simulation::new(job, seed, captures, write)?;
    simulation.network.headers_only = headers_only;
    simulation.run()?;
    let virtual_time = simulation.now.saturating_since(Instant::ZERO);
    let packets = simulation.network.delivered_packets;
    conclude(simulation, job.transport)?;
    Ok(SimReport { virtual_time, packets })
}

/// Returns the metadata that begins a result.
fn meta(job: &SimJob, seed: u64) -> Meta {
    let scenario = &*job.scenario;
    let mut meta = Meta {
        stack: "towpath".to_owned(),
        kernel: String::new(),
        ..Meta::of(scenario, World::Sim, (job.transport, job.repeat), seed)
    };
    if job.transport.is_quic() {
        meta.conditions.insert("quic".to_owned(), towpath_quic::QUIC_LIBRARY.to_owned());
        let meaning = "UDP payload, including QUIC's overhead".to_owned();
        meta.conditions.insert("bytes of paths".to_owned(), meaning);
    }
    if job.transport == Transport::Mpquic {
        let draft = towpath_quic::MULTIPATH_DRAFT.to_owned();
        meta.conditions.insert("multipath quic".to_owned(), draft);
    }
    meta.conditions.extend(job.components.conditions());
    for host in &scenario.hosts {
        let settings = if job.transport.is_quic() {
            scenario.quic_settings(host)
        } else {
            scenario.stack_settings(host)
        };
        for (name, value) in settings {
            meta.conditions.insert(format!("{name} on {}", host.name), value);
        }
        if host.stack.stack == StackKind::Kernel && !host.sysctls.is_empty() {
            let names: Vec<_> = host.sysctls.iter().map(|(name, _)| name.as_str()).collect();
            let name = format!("sysctls without effect on {}", host.name);
            meta.conditions.insert(name, names.join(", "));
        }
    }
    meta
}
