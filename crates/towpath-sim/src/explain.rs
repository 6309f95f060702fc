//! Estimates the gain from lifting a limit: the same run with one change, for each limit that the
//! capacity account names.

use std::sync::Arc;

use towpath_multipath::congestion;
use towpath_net::config::{DirectionConfig, Queue, QueueLimit};
use towpath_result::accounting::buffer_bytes;
use towpath_result::format;
use towpath_result::{AccountSummary, Part, Record};
use towpath_scenario::{Host, Path, Scenario, Transport};

use crate::error::SimError;
use crate::job::SimJob;
use crate::run::run;

/// Repetitions over which the goodput is averaged.
pub const REPETITIONS: u32 = 5;
/// Largest number of limits that are lifted, the largest limit first.
const MAX_LIMITS: usize = 4;
/// Smallest limit that is worth a run, in percent of the capacity.
const MIN_LIMIT_PERCENT: u64 = 1;

/// A run with one change that lifts a limit.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Part of the capacity account that the change lifts.
    pub part: Part,
    /// Short description, for example `receive-buffer 1.1 MB`.
    pub text: String,
    /// Setting to write into the scenario or on the command line.
    pub key: String,
    /// The scenario with the change applied.
    pub scenario: Scenario,
    /// Transport of the changed run.
    pub transport: Transport,
}

impl Trial {
    /// Runs the changed scenario like `job` and returns the [`goodput`] of all flows together.
    pub fn goodput(&self, job: &SimJob) -> Result<f64, SimError> {
        goodput(&SimJob {
            scenario: Arc::new(self.scenario.clone()),
            transport: self.transport,
            ..job.clone()
        })
    }
}

/// Returns the goodput of all flows together, in bits per second.
///
/// The mean over [`REPETITIONS`] repetitions, from the job's own on, because single runs vary
/// randomly. If the first two are equal, nothing is random and they suffice.
pub fn goodput(job: &SimJob) -> Result<f64, SimError> {
    let mut goodputs: Vec<f64> = Vec::new();
    for repeat in 0..REPETITIONS {
        let (mut goodput_bps, job) =
            (0.0, SimJob { repeat: job.repeat + repeat, trace: false, ..job.clone() });
        run(&job, Vec::new(), &mut |record| {
            if let Record::Summary(summary) = record {
                goodput_bps = summary.flows.iter().map(|flow| flow.goodput_bps).sum();
            }
            Ok(())
        })?;
        goodputs.push(goodput_bps);
        if let [first, second] = goodputs.as_slice()
            && (first - second).abs() < 1.0
        {
            break;
        }
    }
    Ok(goodputs.iter().sum::<f64>() / goodputs.len().max(1) as f64)
}

/// Returns the runs that lift the limits of an account, the largest limit first.
pub fn trials(scenario: &Scenario, transport: Transport, account: &AccountSummary) -> Vec<Trial> {
    let mut trials: Vec<Trial> = Vec::new();
    let min_bytes = account.total.capacity_bytes / 100 * MIN_LIMIT_PERCENT;
    let missing_parts = account.total.missing_parts();
    let large_parts =
        missing_parts.iter().filter(|(_, bytes)| *bytes > min_bytes).map(|(part, _)| *part);
    for part in large_parts.filter(|part| can_be_lifted(*part)).take(MAX_LIMITS) {
        let part_trials = TrialBuilder { scenario, transport, account, part }.trials();
        for trial in part_trials {
            if trials.iter().all(|other| other.text != trial.text) {
                trials.push(trial);
            }
        }
    }
    trials
}

fn can_be_lifted(part: Part) -> bool {
    !matches!(
        part,
        Part::Application
            | Part::Down
            | Part::Handshake
            | Part::OutOfOrder
            | Part::InFlight
            | Part::Lost
            | Part::Unknown
            | Part::Stale
    )
}

struct TrialBuilder<'a> {
    scenario: &'a Scenario,
    transport: Transport,
    account: &'a AccountSummary,
    part: Part,
}

impl TrialBuilder<'_> {
    fn trials(&self) -> Vec<Trial> {
        match self.part {
            Part::PeerWindow => vec![self.receive_buffer()],
            Part::HeadOfLineBlocking => {
                let mut trials = vec![self.receive_buffer()];
                trials.extend(self.schedulers(&["blest", "ecf"]));
                trials
            }
            Part::SendBuffer => vec![self.send_buffer()],
            Part::Scheduler | Part::Redundant => self.schedulers(&["linux", "round-robin"]),
            Part::Reinjected | Part::Spurious => self.schedulers(&["linux", "blest"]),
            Part::Backup => vec![self.no_backup()],
            Part::NoSubflow => vec![self.subflows()],
            Part::SinglePath => vec![self.multipath()],
            Part::AfterOverflow => {
                let mut trials = vec![self.queue()];
                trials.extend(self.congestion_controls(&["cubic", "reno"]));
                trials
            }
            Part::AfterLoss => self.congestion_controls(&["cubic", "reno", "wvegas"]),
            Part::CongestionAvoidance | Part::SlowStart => {
                let mut trials = self.congestion_controls(&["cubic"]);
                trials.push(self.hystart());
                trials
            }
            Part::PacketSize => vec![self.packet_size()],
            Part::Pacing => vec![self.pacing()],
            Part::SenderCpu | Part::ReceiverCpu => vec![self.offload()],
            Part::Delivered
            | Part::Headers
            | Part::OutOfOrder
            | Part::InFlight
            | Part::Lost
            | Part::Application
            | Part::Down
            | Part::Handshake
            | Part::Stale
            | Part::Unknown => Vec::new(),
        }
    }

    fn trial(&self, text: String, key: String, change: impl FnOnce(&mut Scenario)) -> Trial {
        let mut scenario = self.scenario.clone();
        change(&mut scenario);
        Trial { part: self.part, text, key, scenario, transport: self.transport }
    }

    /// Returns a trial that changes a setting of every host; `line` is its text in the scenario.
    fn all_hosts_trial(
        &self,
        text: String,
        line: &str,
        mut change: impl FnMut(&mut Host),
    ) -> Trial {
        self.trial(text, format!("for every host: {line}"), |scenario| {
            scenario.hosts.iter_mut().for_each(&mut change);
        })
    }

    fn sufficient_bytes(&self) -> u64 {
        buffer_bytes(self.account.sufficient_bytes.unwrap_or(1_000_000))
    }

    fn receive_buffer(&self) -> Trial {
        self.buffer("receive-buffer", |host| &mut host.receive_buffer)
    }

    fn send_buffer(&self) -> Trial {
        self.buffer("send-buffer", |host| &mut host.send_buffer)
    }

    /// Sets a buffer to a sufficient size, on the host that the account's advice names or on all.
    fn buffer(&self, name: &str, buffer_of: impl Fn(&mut Host) -> &mut Option<[u64; 3]>) -> Trial {
        let size_bytes = self.sufficient_bytes();
        let size = format::bytes(size_bytes);
        let advised_host = self.account.advice.as_ref().and_then(|advice| {
            let host = advice.key.strip_prefix("hosts.")?.strip_suffix(name)?;
            host.strip_suffix('.').filter(|host| *host != "*")
        });
        let key = advised_host.map_or_else(
            || format!("for every host: {name} = \"{size}\""),
            |host| format!("hosts.{host}.{name} = \"{size}\""),
        );
        self.trial(format!("{name} {size}"), key, |scenario| {
            let hosts = scenario.hosts.iter_mut();
            for host in hosts
                .filter(|host| advised_host.is_none_or(|advised_host| host.name == advised_host))
            {
                let buffer = buffer_of(host);
                let current_max = buffer.map_or(0, |[_, _, largest]| largest);
                *buffer = Some([size_bytes.max(current_max); 3]);
            }
        })
    }

    fn schedulers(&self, names: &[&str]) -> Vec<Trial> {
        let differs = |name: &&&str| {
            let hosts = self.scenario.hosts.iter();
            let mut schedulers =
                hosts.map(|host| host.stack.scheduler.as_deref().unwrap_or("linux"));
            !schedulers.all(|scheduler| scheduler == **name)
        };
        let trial = |name: &&str| {
            let name = (*name).to_owned();
            let line = format!("scheduler = \"{name}\"");
            self.all_hosts_trial(format!("scheduler {name}"), &line, move |host| {
                host.stack.scheduler = Some(name.clone());
            })
        };
        names.iter().filter(differs).map(trial).collect()
    }

    fn congestion_controls(&self, names: &[&str]) -> Vec<Trial> {
        let exists = |name: &&&str| congestion::ALL.iter().any(|entry| entry.name == **name);
        let differs = |name: &&&str| {
            let mut hosts = self.scenario.hosts.iter();
            !hosts.all(|host| self.scenario.congestion_control_of(host) == **name)
        };
        let trial = |name: &&str| {
            let name = (*name).to_owned();
            let line = format!("congestion-control = \"{name}\"");
            self.all_hosts_trial(format!("congestion-control {name}"), &line, move |host| {
                host.congestion_control = Some(name.clone());
            })
        };
        names.iter().filter(exists).filter(differs).map(trial).collect()
    }

    fn no_backup(&self) -> Trial {
        let key = "for every path: backup = false".to_owned();
        self.trial("no backup path".to_owned(), key, |scenario| {
            scenario.paths.iter_mut().for_each(|path| path.backup = false);
            let endpoints =
                scenario.hosts.iter_mut().filter_map(|host| host.mptcp.endpoints.as_mut());
            endpoints.flatten().for_each(|endpoint| endpoint.backup = false);
        })
    }

    fn subflows(&self) -> Trial {
        let line = "mptcp = { subflows = 8 }, path-manager = \"default\"";
        self.all_hosts_trial("a subflow on every path".to_owned(), line, |host| {
            host.mptcp.subflows = Some(8);
            host.mptcp.add_addr_accepted = Some(8);
            host.mptcp.endpoints = None;
            host.stack.path_manager = Some("default".to_owned());
        })
    }

    fn multipath(&self) -> Trial {
        let transport = match self.transport {
            Transport::Quic | Transport::Mpquic => Transport::Mpquic,
            Transport::Tcp | Transport::Mptcp => Transport::Mptcp,
        };
        let key = format!("--transport {transport}");
        let trial = self.trial(format!("transport {transport}"), key, |scenario| {
            scenario.flows.iter_mut().for_each(|flow| flow.transport = None);
        });
        Trial { transport, ..trial }
    }

    fn queue(&self) -> Trial {
        let key = "for every path: queue = \"100 ms\"".to_owned();
        self.trial("queues of 100 ms".to_owned(), key, |scenario| {
            let paths = scenario.paths.iter_mut().flat_map(|path| [&mut path.up, &mut path.down]);
            let bottlenecks = scenario.bottlenecks.iter_mut();
            let bottlenecks = bottlenecks.flat_map(|item| [&mut item.up, &mut item.down]);
            paths.chain(bottlenecks).for_each(raise_queue_limit);
        })
    }

    fn hystart(&self) -> Trial {
        let line = "profile-switches = { hystart = false, linux-hystart = false }";
        self.all_hosts_trial("slow start without HyStart".to_owned(), line, |host| {
            host.stack.switches.hystart = Some(false);
            host.stack.switches.linux_hystart = Some(false);
        })
    }

    fn pacing(&self) -> Trial {
        let line = "profile-switches = { pacing = false }";
        self.all_hosts_trial("no pacing".to_owned(), line, |host| {
            host.stack.switches.pacing = Some(false);
        })
    }

    /// Lowers each interface's MTU to the largest packet that its links carry.
    fn packet_size(&self) -> Trial {
        let smallest = |path: &Path| path.mtu_bytes.min(path.up.mtu_bytes).min(path.down.mtu_bytes);
        let limited_paths =
            self.scenario.paths.iter().filter(|path| smallest(path) < path.mtu_bytes);
        let lines: Vec<_> = limited_paths
            .map(|path| format!("[paths.{}] mtu = {}", path.name, smallest(path)))
            .collect();
        self.trial("an MTU that fits".to_owned(), lines.join(", "), |scenario| {
            for path in &mut scenario.paths {
                path.mtu_bytes = smallest(path);
            }
        })
    }

    fn offload(&self) -> Trial {
        let line = "profile-switches = { cpu-per-packet = … }, half of it";
        self.all_hosts_trial("half the processor time for each packet".to_owned(), line, |host| {
            if let Some(cost) = &mut host.stack.switches.cpu_per_packet {
                *cost /= 2;
            }
        })
    }
}

/// Raises a droptail queue to at least 100 ms of the link's rate.
fn raise_queue_limit(config: &mut DirectionConfig) {
    let min_time = std::time::Duration::from_millis(100);
    config.queue = match config.queue {
        Queue::DropTail(QueueLimit::Unlimited) => return,
        Queue::DropTail(QueueLimit::Time(span)) if span >= min_time => return,
        Queue::DropTail(_) | Queue::CoDel { .. } | Queue::Pie { .. } => {
            Queue::DropTail(QueueLimit::Time(min_time))
        }
    };
}
