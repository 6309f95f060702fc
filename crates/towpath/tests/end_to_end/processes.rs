//! Finds the processes of a run, and checks that they and their namespaces do not outlive it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::program::{names, wait_for};

/// Process, distinct from a later one with the same ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) id: u32,
    /// Start time in clock ticks since boot.
    start_ticks: u64,
}

/// Processes and namespaces of one run.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) processes: BTreeSet<Process>,
    /// Network namespaces in which the processes run or which they hold, without this test's own.
    namespaces: BTreeSet<String>,
}

impl Members {
    /// Finds all descendants of a process, with the namespaces that they hold.
    pub(crate) fn descendants_of(root: u32) -> Self {
        let mut processes = BTreeSet::new();
        let mut parents = vec![root];
        while let Some(parent) = parents.pop() {
            for (process, _) in
                running_processes().into_iter().filter(|(_, parent_id)| *parent_id == parent)
            {
                parents.push(process.id);
                processes.insert(process);
            }
        }
        let test_namespaces = held_namespaces(std::process::id());
        let held_names = processes.iter().flat_map(|process| held_namespaces(process.id));
        Self {
            namespaces: held_names.filter(|name| !test_namespaces.contains(name)).collect(),
            processes,
        }
    }

    /// Waits until a descendant of `root` runs `program`. Then the run has all its processes:
    /// outer, inner, and the programs of its flows.
    pub(crate) fn wait_for(root: u32, program: &str) -> Self {
        wait_for(&format!("{program} below process {root}"), || {
            let members = Self::descendants_of(root);
            let runs_program = |process: &Process| command_line(process.id).starts_with(program);
            members.processes.iter().any(runs_program).then_some(members)
        })
    }

    /// Returns a process whose command line contains `argument`.
    pub(crate) fn find_process(&self, argument: &str) -> Option<Process> {
        let has_argument = |process: &&Process| command_line(process.id).contains(argument);
        self.processes.iter().find(has_argument).copied()
    }

    /// Waits until all processes and namespaces are gone.
    pub(crate) fn wait_until_gone(&self) {
        let survivors = || -> Vec<_> {
            running_processes()
                .into_iter()
                .filter(|(process, _)| self.processes.contains(process))
                .collect()
        };
        wait_for("the end of the run's processes", || survivors().is_empty().then_some(()));
        // Another namespace may reuse a number. Only a process from before the end can still hold
        // the old one.
        let Some(last_start) = self.processes.iter().map(|process| process.start_ticks).max()
        else {
            return;
        };
        wait_for("the end of the run's namespaces", || {
            let older_processes = running_processes()
                .into_iter()
                .filter(|(process, _)| process.start_ticks <= last_start);
            let mut held_names =
                older_processes.flat_map(|(process, _)| held_namespaces(process.id));
            (!held_names.any(|name| self.namespaces.contains(&name))).then_some(())
        });
    }
}

/// Returns the interfaces of the namespace in which these tests run.
pub(crate) fn interfaces() -> Vec<String> {
    names(Path::new("/sys/class/net"))
}

/// Sends a signal; a negative number means the whole group, as from a terminal.
pub(crate) fn signal(name: &str, id: i64) {
    let script = "kill -s \"$0\" -- \"$1\"";
    let status = Command::new("sh").args(["-c", script, name, &id.to_string()]).status();
    assert!(status.unwrap().success());
}

/// Returns every process with its parent, without zombies and processes that end meanwhile.
fn running_processes() -> Vec<(Process, u32)> {
    let ids = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(|id| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name before the last bracket may contain anything.
        let fields: Vec<_> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let &[state, parent, ..] = fields.as_slice() else { return None };
        let start_ticks = fields.get(19)?.parse().ok()?;
        (state != "Z").then_some((Process { id, start_ticks }, parent.parse().ok()?))
    })
    .collect()
}

fn command_line(id: u32) -> String {
    let bytes = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// Returns the network namespace of a process, and those that its descriptors hold.
fn held_namespaces(id: u32) -> Vec<String> {
    let descriptors = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
    let links = descriptors.map(|entry| entry.path()).chain([format!("/proc/{id}/ns/net").into()]);
    links
        .filter_map(|link| fs::read_link(link).ok()?.into_os_string().into_string().ok())
        .filter(|target| target.starts_with("net:"))
        .collect()
}
