//! The default world of a run: emulated where this machine can, else simulated.

use towpath_result::SIMULATED_BECAUSE;
use towpath_scenario::{Scenario, StackKind, Transport, World};

use crate::emulated;
use crate::emulated::Obstacle;
use crate::error::CliError;
use crate::options::{BackendChoice, RunOptions};
use crate::sim;
use crate::ui::{Ui, wrap};

/// Returns arguments that name the worlds in which the scenario runs.
///
/// Simulation replaces emulation on a machine that cannot emulate. `--world`, `--backend` and
/// `--stack kernel` keep emulation.
///
/// # Errors
///
/// When this machine cannot emulate, and the scenario cannot be simulated or emulation was
/// requested.
pub(crate) fn choose_worlds(
    how: &RunOptions,
    backend: BackendChoice,
    scenario: &Scenario,
    transports: &[Transport],
    ui: &mut Ui,
) -> Result<RunOptions, CliError> {
    let worlds = if how.world.is_empty() { &scenario.run.worlds } else { &how.world };
    let is_requested = requests_emulation(how, backend);
    let mut how = RunOptions { world: worlds.clone(), ..how.clone() };
    if !worlds.contains(&World::Emu) || how.fallback.is_some() {
        return Ok(how);
    }
    let has_kernel_stack = scenario.hosts.iter().any(|host| host.stack.stack == StackKind::Kernel);
    let needs_mptcp = has_kernel_stack && transports.contains(&Transport::Mptcp);
    // If emulation was requested, a kernel without Multipath TCP is not an obstacle: the run shows the
    // fallback to TCP.
    let obstacle = emulated::obstacle(needs_mptcp && !is_requested);
    let Some(Obstacle { reason, remedy }) = obstacle else { return Ok(how) };
    if is_requested || sim::check(scenario, transports, &how.stack).is_err() {
        return Err(emulation_error(Obstacle { reason, remedy }));
    }
    how.world.retain(|world| *world != World::Emu);
    if !how.world.contains(&World::Sim) {
        how.world.push(World::Sim);
    }
    let text = format!("{reason}: simulating instead; --world emu shows how to enable them");
    ui.progress_lines(wrap("note: ", &text));
    how.fallback = Some(reason);
    Ok(how)
}

/// Records in a scenario, and so in its results, why it is simulated.
pub(crate) fn record_fallback(how: &RunOptions, scenario: &mut Scenario) {
    let reason = how.fallback.clone();
    scenario.remarks.extend(reason.map(|reason| (SIMULATED_BECAUSE.to_owned(), reason)));
}

/// Returns an error if this machine cannot create an emulated network.
#[cfg(target_os = "linux")]
pub(crate) fn require_emulation() -> Result<(), CliError> {
    emulated::obstacle(false).map_or(Ok(()), |obstacle| Err(emulation_error(obstacle)))
}

fn emulation_error(Obstacle { reason, remedy }: Obstacle) -> CliError {
    let hint = remedy.unwrap_or_else(|| "`towpath doctor --self` shows what works here".to_owned());
    CliError::Unavailable { what: reason, hint }
}

fn requests_emulation(how: &RunOptions, backend: BackendChoice) -> bool {
    !how.world.is_empty()
        || backend != BackendChoice::Auto
        || how.stack.iter().any(|choice| !choice.own)
}
