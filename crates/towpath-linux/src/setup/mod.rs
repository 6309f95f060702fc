//! Setting a host up for Multipath TCP: a plan, made or taken back as a whole.
//!
//! [`Host::read`] is what there is, [`plan()`] says what is missing (nothing on a host that is
//! right), [`apply`] does it through netlink and `/proc/sys` and keeps what it did in a [`State`];
//! [`undo`] takes that back. Reading needs no privilege.
//!
//! Always: what is right is not touched; a change that the kernel refuses takes those before it
//! back; what somebody else has changed since is left alone by [`undo`].

mod change;
mod check;
mod host;
mod persist;
mod plan;
mod state;

pub(crate) use change::quoted;
pub use change::{
    ChangeError, ConfigChange, ConfigHandles, NamedEndpoint, SourceRule, StoredLimits, TableRoute,
};
pub use check::ForeignChange;
pub(crate) use check::is_interface_name;
pub use host::{Gateway, HostState, KernelQueries, MptcpManager};
pub use persist::{GeneratedFile, PersistTarget, at_each_start, stored};
pub use plan::{PlanError, PlanStep, SetupPlan, SetupRequest, SetupRole, plan};
pub use state::{SetupState, StateError, folder, root_has_applied};

use crate::netlink::NetlinkError;

/// `CAP_NET_ADMIN` among the bits of `CapEff` (`linux/capability.h`).
const CAP_NET_ADMIN: u64 = 1 << 12;

/// Whether this process may ask for changes: it has `CAP_NET_ADMIN`. That may be of a user namespace
/// of its own only; then the kernel still refuses.
pub fn may_apply() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    has_net_admin(&status).unwrap_or(true)
}

/// What `/proc/self/status` says; `None` if it does not say it.
fn has_net_admin(status: &str) -> Option<bool> {
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    Some(u64::from_str_radix(bits.trim(), 16).ok()? & CAP_NET_ADMIN != 0)
}

/// Why a plan was not applied, or not taken back.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The kernel cannot be spoken with.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// What is changed cannot be kept.
    #[error(transparent)]
    State(#[from] StateError),
    /// The kernel refused a change; all before it were taken back.
    #[error("{source} (step {number} of {all}, `{command}`); {after}")]
    Refused {
        /// The kernel's reason.
        source: Box<ChangeError>,
        /// Which step, from 1.
        number: usize,
        /// How many there are.
        all: usize,
        /// The step as a command.
        command: String,
        /// What became of the steps before it.
        after: String,
    },
}

impl SetupError {
    /// The way out, if there is one to tell.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Refused { source, .. } => source.hint().map(str::to_owned),
            Self::Plan(PlanError::NoMptcp) => {
                Some("it takes Linux 5.6 or newer with CONFIG_MPTCP".to_owned())
            }
            Self::State(error) => error.hint(),
            Self::Netlink(_) | Self::Plan(_) => None,
        }
    }
}

/// Makes the changes of a plan, all or none.
pub fn apply(
    plan: &SetupPlan,
    tools: &mut ConfigHandles,
    state: &mut SetupState,
) -> Result<(), SetupError> {
    if plan.steps.is_empty() {
        return Ok(());
    }
    let before = state.changes().to_vec();
    let all = before.iter().chain(plan.steps.iter().map(|step| &step.change));
    // Kept first: if this process dies half-way, what it did can still be taken back.
    state.store(all.cloned().collect())?;
    for (at, step) in plan.steps.iter().enumerate() {
        let Err(source) = step.change.apply(tools) else { continue };
        let made = plan.steps.iter().take(at).map(|step| &step.change);
        let left = revert_all(made, tools);
        let after = match &left[..] {
            [] if at == 0 => "nothing was changed".to_owned(),
            [] => "what was done before it was taken back".to_owned(),
            [(_, error), ..] => format!("taking back what was done failed too: {error}"),
        };
        let mut kept = before;
        kept.extend(left.into_iter().map(|(change, _)| change));
        state.store(kept)?;
        let source = Box::new(source);
        let (number, all, command) = (at + 1, plan.steps.len(), step.change.command());
        return Err(SetupError::Refused { source, number, all, command, after });
    }
    let mut kept = state.changes().to_vec();
    for change in &mut kept {
        change.resolve_ids(tools)?;
    }
    Ok(state.store(kept)?)
}

/// What taking back has done.
#[derive(Debug, Default)]
pub struct UndoReport {
    /// The changes that were made to take others back, in order.
    pub made: Vec<ConfigChange>,
    /// What was not as we had left it, and was left alone.
    pub remarks: Vec<String>,
}

/// Takes everything back that was applied in this network namespace and is kept in `state`.
pub fn undo(tools: &mut ConfigHandles, state: &mut SetupState) -> Result<UndoReport, SetupError> {
    let mut undone = UndoReport::default();
    let mut left = state.changes().to_vec();
    let all = left.len();
    while let Some(change) = left.last() {
        let back = change.inverse();
        match back.revert(tools) {
            Ok(()) => undone.made.push(back),
            Err(ChangeError::Gone(remark)) => undone.remarks.push(remark),
            Err(source) => {
                let (number, command) = (undone.made.len() + 1, back.command());
                let after = "the rest is still to be taken back".to_owned();
                state.store(left)?;
                let source = Box::new(source);
                return Err(SetupError::Refused { source, number, all, command, after });
            }
        }
        left.pop();
    }
    state.store(left)?;
    Ok(undone)
}

/// Takes changes back, the last first; what could not be is returned in the order it was made.
fn revert_all<'a>(
    made: impl DoubleEndedIterator<Item = &'a ConfigChange>,
    tools: &mut ConfigHandles,
) -> Vec<(ConfigChange, ChangeError)> {
    let mut left = Vec::new();
    for change in made.rev() {
        match change.inverse().revert(tools) {
            Ok(()) | Err(ChangeError::Gone(_)) => {}
            Err(error) => left.push((change.clone(), error)),
        }
    }
    left.reverse();
    left
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
