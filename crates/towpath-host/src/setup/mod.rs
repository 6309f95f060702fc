//! Configuration of a host for Multipath TCP: a plan that is applied or reverted as a whole.
//!
//! [`HostState::read`] reads the present state. [`plan()`] returns the missing changes, none on a
//! correct host. Through netlink and `/proc/sys`, [`apply`] makes them and records them in a
//! [`SetupState`]. With that record, [`undo`] reverts them. Reading needs no privilege.
//!
//! Correct settings are never touched. If the kernel refuses a change, those before it are
//! reverted. [`undo`] leaves alone any setting that another program has changed since. [`try_changes`]
//! applies changes to a copy of this host's configuration first.

mod change;
mod check;
mod host;
mod persist;
mod plan;
mod state;
mod trial;

pub use change::{
    ChangeError, ConfigChange, ConfigHandles, NamedEndpoint, SourceRule, StoredLimits, TableRoute,
    flag_words, quoted,
};
pub use check::{ForeignChange, StateOwner, is_fixable_sysctl, is_interface_name};
pub use host::{Gateway, HostState, KernelQueries, MptcpManager};
pub use persist::{GeneratedFile, PersistTarget, boot_steps, generate_files};
pub use plan::{PlanError, PlanStep, SetupPlan, SetupRequest, SetupRole, plan};
pub use state::{
    SetupState, StateError, folder, recorded_changes, root_has_applied, root_has_recorded,
};
pub use trial::{TrialError, try_changes};

use towpath_netlink::NetlinkError;

/// `CAP_NET_ADMIN` among the bits of `CapEff` (`linux/capability.h`).
const CAP_NET_ADMIN: u64 = 1 << 12;

/// Returns true if this process has `CAP_NET_ADMIN`. The capability may belong to a user namespace
/// only; then the kernel still refuses changes.
pub fn may_apply() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    has_net_admin(&status).unwrap_or(true)
}

/// Parses the `CapEff` line of `/proc/self/status`; `None` without such a line.
fn has_net_admin(status: &str) -> Option<bool> {
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    Some(u64::from_str_radix(bits.trim(), 16).ok()? & CAP_NET_ADMIN != 0)
}

/// Reason why a plan was not applied, or not reverted.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The netlink request failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// No plan could be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The state file could not be written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The kernel refused a change; all before it were reverted.
    #[error("{source} (step {number} of {all}, `{command}`); {after}")]
    Refused {
        /// Error that the kernel returned.
        source: Box<ChangeError>,
        /// Number of the step, from 1.
        number: usize,
        /// Number of all steps.
        all: usize,
        /// The step as a command.
        command: String,
        /// State of the steps before it, as a clause for people.
        after: String,
    },
}

impl SetupError {
    /// Returns a remedy, if one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Refused { source, .. } => source.hint().map(str::to_owned),
            Self::Plan(PlanError::NoMptcp) => {
                Some("required: Linux 5.6 or later with CONFIG_MPTCP".to_owned())
            }
            Self::Plan(PlanError::DuplicateAddress { links, .. }) => {
                let first = links.first().map_or("IF", String::as_str);
                Some(format!(
                    "change the network of one modem or router, or move its interface into a network namespace with NAT; `--dev` sets up other interfaces, such as {first} alone"
                ))
            }
            Self::State(error) => error.hint(),
            Self::Netlink(_) | Self::Plan(_) => None,
        }
    }
}

/// Applies the changes of a plan, all or none.
pub fn apply(
    plan: &SetupPlan,
    handles: &mut ConfigHandles,
    state: &mut SetupState,
) -> Result<(), SetupError> {
    if plan.steps.is_empty() {
        return Ok(());
    }
    let previous = state.changes().to_vec();
    let recorded = previous.iter().chain(plan.steps.iter().map(|step| &step.change));
    // Recorded first: if this process dies half-way, its changes can still be reverted.
    state.store(recorded.cloned().collect())?;
    for (index, step) in plan.steps.iter().enumerate() {
        let Err(source) = step.change.apply(handles) else { continue };
        let applied = plan.steps.iter().take(index).map(|step| &step.change);
        let failed = revert_all(applied, handles);
        let after = match &failed[..] {
            [] if index == 0 => "nothing was changed".to_owned(),
            [] => "the changes before it were undone".to_owned(),
            [(_, error), ..] => format!("undoing the earlier changes also failed: {error}"),
        };
        let mut changes = previous;
        changes.extend(failed.into_iter().map(|(change, _)| change));
        state.store(changes)?;
        let source = Box::new(source);
        let (number, all, command) = (index + 1, plan.steps.len(), step.change.command());
        return Err(SetupError::Refused { source, number, all, command, after });
    }
    let mut changes = state.changes().to_vec();
    for change in &mut changes {
        change.resolve_ids(handles)?;
    }
    Ok(state.store(changes)?)
}

/// Result of reverting the changes.
#[derive(Debug, Default)]
pub struct UndoReport {
    /// Changes that were made to revert others, in order.
    pub made: Vec<ConfigChange>,
    /// Remarks on settings that had changed since and were left alone.
    pub remarks: Vec<String>,
}

/// Reverts everything that was applied in this network namespace and is recorded in `state`.
pub fn undo(handles: &mut ConfigHandles, state: &mut SetupState) -> Result<UndoReport, SetupError> {
    let mut report = UndoReport::default();
    let mut remaining = state.changes().to_vec();
    let all = remaining.len();
    while let Some(change) = remaining.last() {
        let inverse = change.inverse();
        match inverse.revert(handles) {
            Ok(()) => report.made.push(inverse),
            Err(ChangeError::Gone(remark)) => report.remarks.push(remark),
            Err(source) => {
                let (number, command) = (report.made.len() + 1, inverse.command());
                let after = "the rest remains to be undone".to_owned();
                state.store(remaining)?;
                let source = Box::new(source);
                return Err(SetupError::Refused { source, number, all, command, after });
            }
        }
        remaining.pop();
    }
    state.store(remaining)?;
    Ok(report)
}

/// Reverts changes, the last first; returns the failed ones in the order they were applied.
fn revert_all<'a>(
    applied: impl DoubleEndedIterator<Item = &'a ConfigChange>,
    handles: &mut ConfigHandles,
) -> Vec<(ConfigChange, ChangeError)> {
    let mut failed = Vec::new();
    for change in applied.rev() {
        match change.inverse().revert(handles) {
            Ok(()) | Err(ChangeError::Gone(_)) => {}
            Err(error) => failed.push((change.clone(), error)),
        }
    }
    failed.reverse();
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_privilege_is_read_from_the_bits_of_the_status() {
        let status = |bits: &str| format!("CapPrm:\t000001ffffffffff\nCapEff:\t{bits}\n");
        assert_eq!(has_net_admin(&status("0000000000000000")), Some(false));
        assert_eq!(has_net_admin(&status("0000000000001000")), Some(true));
        assert_eq!(has_net_admin(&status("000001ffffffefff")), Some(false));
        assert_eq!(has_net_admin("Name:\tsh\n"), None);
    }
}
