//! Detection of labs in which all processes only wait for peers.
//!
//! A server without a client waits indefinitely. The lab is idle if no host sends and every
//! process without children holds a socket for incoming data but none with a peer. A process with
//! other work (computing, sleeping, reading a terminal) holds no such socket, so it counts as
//! active.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;

use towpath_os::namespace::Namespace;

use super::ready::{OpenSockets, SocketUse};

/// Process on a host of the lab.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct LabProcess {
    pid: String,
    parent_pid: String,
    /// Inode number of its network namespace.
    netns: u64,
    /// Inodes of the sockets that it holds.
    sockets: BTreeSet<String>,
}

/// Snapshot of the processes on hosts.
#[derive(Debug, Default)]
pub(super) struct Processes(Vec<LabProcess>);

impl Processes {
    /// Returns the processes of one host.
    pub(super) fn on_host(namespace: &Namespace) -> Self {
        Self::on_hosts(std::iter::once(namespace))
    }

    /// Returns the processes of several hosts.
    pub(super) fn on_hosts<'a>(namespaces: impl IntoIterator<Item = &'a Namespace>) -> Self {
        let hosts: BTreeSet<_> = namespaces.into_iter().filter_map(netns_inode).collect();
        let self_pid = fs::read_link("/proc/self").unwrap_or_default();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let ids = ids.filter(|id| id.bytes().all(|byte| byte.is_ascii_digit()));
        let ids = ids.filter(|id| self_pid.as_os_str() != id.as_str());
        Self(
            ids.filter_map(read_process).filter(|process| hosts.contains(&process.netns)).collect(),
        )
    }

    /// Returns the IDs of the processes.
    pub(super) fn pids(&self) -> BTreeSet<String> {
        self.0.iter().map(|process| process.pid.clone()).collect()
    }

    /// Returns true if there are processes and all only wait for peers.
    fn all_wait(&self, sockets: &OpenSockets) -> bool {
        let uses: BTreeMap<_, _> = sockets.uses().collect();
        let parents: BTreeSet<_> = self.0.iter().map(|process| &process.parent_pid).collect();
        let mut leaves = self.0.iter().filter(|process| !parents.contains(&process.pid)).peekable();
        leaves.peek().is_some()
            && leaves.all(|process| {
                let uses_of_process =
                    process.sockets.iter().filter_map(|inode| uses.get(inode.as_str()));
                let uses_of_process: Vec<_> = uses_of_process.collect();
                !uses_of_process.is_empty()
                    && uses_of_process.iter().all(|socket_use| **socket_use != SocketUse::Active)
            })
    }
}

/// Returns true if all processes on these hosts only wait for peers.
pub(super) fn all_processes_wait(namespaces: &[&Namespace]) -> bool {
    let processes = Processes::on_hosts(namespaces.iter().copied());
    // Socket inode numbers are unique in the whole kernel.
    let sockets = namespaces.iter().map(|namespace| OpenSockets::read(namespace));
    let sockets = sockets.reduce(OpenSockets::union).unwrap_or_default();
    processes.all_wait(&sockets)
}

/// Returns the number of packets that the hosts have sent; each packet of a program changes it.
pub(super) fn sent_packets(namespaces: &[&Namespace]) -> u64 {
    let read = || {
        let table = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        let (snmp, snmp6) = (table("snmp").unwrap_or_default(), table("snmp6").unwrap_or_default());
        sum_sent_packets(&snmp, &snmp6)
    };
    namespaces.iter().filter_map(|namespace| namespace.run(read).ok()).sum()
}

/// Returns the sent IPv4 packets plus the IPv6 packets of programs.
fn sum_sent_packets(snmp: &str, snmp6: &str) -> u64 {
    let mut total = 0;
    let lines: Vec<_> = snmp.lines().collect();
    for pair in lines.chunks_exact(2) {
        let [names, values] = pair else { continue };
        let values = names.split_whitespace().zip(values.split_whitespace());
        let counters = values.filter(|(name, _)| matches!(*name, "OutRequests" | "OutSegs"));
        total += counters.filter_map(|(_, value)| value.parse::<u64>().ok()).sum::<u64>();
    }
    let v6_counters = snmp6.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let v6_counters =
        v6_counters.filter(|(name, _)| matches!(*name, "Udp6OutDatagrams" | "Icmp6OutEchos"));
    total + v6_counters.filter_map(|(_, value)| value.trim().parse::<u64>().ok()).sum::<u64>()
}

fn netns_inode(namespace: &Namespace) -> Option<u64> {
    let file = File::from(namespace.as_fd().try_clone_to_owned().ok()?);
    Some(file.metadata().ok()?.ino())
}

/// Reads the state of a process; `None` if it has ended.
fn read_process(id: String) -> Option<LabProcess> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut rest = rest.split_whitespace();
    let state = rest.next()?;
    let parent_pid = rest.next()?.to_owned();
    if matches!(state, "Z" | "X") {
        return None;
    }
    let netns = fs::metadata(format!("/proc/{id}/ns/net")).ok()?.ino();
    let fds = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
    let links = fds.filter_map(|entry| fs::read_link(entry.path()).ok());
    let sockets = links.filter_map(|link| {
        let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        Some(inode.to_owned())
    });
    let sockets = sockets.collect();
    Some(LabProcess { pid: id, parent_pid, netns, sockets })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: &str, parent: &str, sockets: &[&str]) -> LabProcess {
        let sockets = sockets.iter().map(|inode| (*inode).to_owned()).collect();
        LabProcess { pid: id.to_owned(), parent_pid: parent.to_owned(), netns: 1, sockets }
    }

    fn sockets() -> OpenSockets {
        OpenSockets::from_uses([
            ("10", SocketUse::Listens),
            ("11", SocketUse::Receives),
            ("12", SocketUse::Active),
        ])
    }

    #[test]
    fn an_idle_server_behind_a_shell_counts_as_only_waiting() {
        let all_wait =
            |processes: &[LabProcess]| Processes(processes.to_vec()).all_wait(&sockets());
        let shell = process("2", "1", &[]);
        assert!(all_wait(&[shell.clone(), process("3", "2", &["10"])]));
        assert!(all_wait(&[process("3", "1", &["10"]), process("4", "1", &["11"])]));
        // One process has a peer; another one sleeps or sends.
        assert!(!all_wait(&[process("3", "1", &["10", "12"])]));
        assert!(!all_wait(&[shell.clone(), process("3", "2", &["10"]), process("4", "2", &[])]));
        assert!(!all_wait(&[process("3", "1", &["10"]), process("4", "1", &["12"])]));
        assert!(!all_wait(&[]));
        assert!(!all_wait(&[shell]));
    }

    #[test]
    fn sent_packets_of_every_protocol_count() {
        let snmp = "Ip: Forwarding OutRequests\nIp: 1 5\nTcp: RtoAlgorithm OutSegs\nTcp: 1 3\n";
        let snmp6 = "Icmp6OutMsgs                    \t9\nUdp6OutDatagrams    \t2\n";
        assert_eq!(sum_sent_packets(snmp, snmp6), 10);
        assert_eq!(sum_sent_packets("", ""), 0);
    }
}
