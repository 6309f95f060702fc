//! `towpath setup`: configures this host for Multipath TCP.

use std::io::Write;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use towpath_host::setup;
use towpath_host::setup::{
    ConfigHandles, GeneratedFile, HostState, PersistTarget, PlanStep, SetupError, SetupPlan,
    SetupRequest, SetupRole, SetupState,
};
use towpath_os::files::Dir;
use towpath_result::Warning;

use crate::error::CliError;
use crate::files;
use crate::ui::Ui;

/// Set up this host for Multipath TCP: endpoints, limits, routes, filters
///
/// Prints the missing configuration as commands to paste, each with its reason, and changes
/// nothing. `--apply` makes the changes, all or none; `--undo` reverts them. Correct settings are
/// not touched.
#[derive(Debug, Args)]
pub(crate) struct SetupArguments {
    /// Role of this host for connections
    #[arg(long, value_enum, required_unless_present = "undo")]
    role: Option<RoleChoice>,
    /// Other host: its addresses, or a name
    #[arg(long, value_delimiter = ',', value_name = "ADDR")]
    peer: Vec<String>,
    /// Interfaces to use [default: all that are up and have an address]
    #[arg(long, value_delimiter = ',', value_name = "IF")]
    dev: Vec<String>,
    /// Router of an interface that has no default route, such as wlan0=192.0.2.1
    #[arg(long, value_delimiter = ',', value_name = "IF=ADDR", value_parser = router)]
    gateway: Vec<(String, IpAddr)>,
    #[command(flatten)]
    what: SetupMode,
    /// Folder for the files of `--persist` [default: standard output]
    #[arg(long, value_name = "DIR", requires = "persist")]
    out: Option<PathBuf>,
    /// Print the plan as JSON
    #[arg(short = 'J', long)]
    json: bool,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct SetupMode {
    /// Print the plan [default]
    #[arg(long)]
    print: bool,
    /// Make the changes, all or none
    #[arg(long)]
    apply: bool,
    /// Revert the changes applied since this machine started
    #[arg(long)]
    undo: bool,
    /// Write files that apply the setup at each boot, in one of these forms
    #[arg(long, value_enum, value_name = "FORM")]
    persist: Option<FormChoice>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RoleChoice {
    /// Opens connections; gets subflows from each address
    Client,
    /// Accepts connections; announces its addresses
    Server,
    /// Both
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
enum FormChoice {
    /// Commands for its connections, and a dispatcher script
    NetworkManager,
    /// A unit that runs a script
    Systemd,
    /// A script
    Script,
}

/// Hint for users who paste the commands of a plan.
const LAMINAR_HINT: &str = "hint: `laminar` needs `ip` of iproute2 6.18 or later; --apply does not";

fn router(text: &str) -> Result<(String, IpAddr), String> {
    let pair =
        text.split_once('=').and_then(|(link, ip)| Some((link.to_owned(), ip.parse().ok()?)));
    pair.ok_or_else(|| "expected an interface and an address, such as wlan0=192.0.2.1".to_owned())
}

pub(crate) fn setup(arguments: &SetupArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let mut handles = ConfigHandles::open().map_err(SetupError::from)?;
    let folder = setup::folder().map_err(SetupError::from);
    if arguments.what.undo {
        return undo(&mut handles, &folder?, arguments.json, ui);
    }
    if arguments.what.apply {
        require_root("applying a plan", "without --apply, the plan is printed for root to paste")?;
    }
    let host = HostState::read(&mut handles).map_err(SetupError::from)?;
    let request = request(arguments)?;
    let plan = setup::plan(&host, &request, &mut handles).map_err(SetupError::from)?;
    for note in &plan.notes {
        ui.warn(&Warning { text: note.clone(), hint: None });
    }
    if let Some(form) = arguments.what.persist {
        let state = folder.ok().and_then(|folder| applied_state(&folder, ui));
        return persist(form, arguments, &plan, state.as_ref(), ui);
    }
    if !arguments.what.apply {
        print_plan(&plan, arguments.json, ui)?;
        if plan.steps.iter().any(|step| step.change.command().ends_with(" laminar")) {
            ui.progress(LAMINAR_HINT);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut state = SetupState::open(&folder?).map_err(SetupError::from)?;
    setup::apply(&plan, &mut handles, &mut state)?;
    print_plan(&plan, arguments.json, ui)?;
    if !plan.steps.is_empty() {
        let steps = count(plan.steps.len(), "change");
        ui.progress(&format!("{steps} made; `towpath setup --undo` reverts them"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns an error without root. Called first, so that no other error hides this one.
fn require_root(what: &str, alternative: &str) -> Result<(), CliError> {
    if setup::may_apply() {
        return Ok(());
    }
    Err(CliError::Unavailable {
        what: format!("{what} changes this host, which needs root (CAP_NET_ADMIN)"),
        hint: format!("run it with sudo; {alternative}"),
    })
}

fn request(arguments: &SetupArguments) -> Result<SetupRequest, CliError> {
    let role = match arguments.role {
        Some(RoleChoice::Client) | None => SetupRole::Client,
        Some(RoleChoice::Server) => SetupRole::Server,
        Some(RoleChoice::Both) => SetupRole::Both,
    };
    let mut peers = Vec::new();
    for peer in &arguments.peer {
        let resolved =
            (peer.as_str(), 0).to_socket_addrs().map_err(|error| CliError::Unavailable {
                what: format!("cannot find the peer `{peer}`: {error}"),
                hint: "give its addresses: --peer 192.0.2.1,198.51.100.1".to_owned(),
            })?;
        for address in resolved.map(|address| address.ip()) {
            if !peers.contains(&address) {
                peers.push(address);
            }
        }
    }
    let (links, routers) = (arguments.dev.clone(), arguments.gateway.clone());
    Ok(SetupRequest { role, peers, links, routers })
}

/// Prints a script: commands with their reasons above them.
fn print_plan(plan: &SetupPlan, as_json: bool, ui: &mut Ui) -> Result<(), CliError> {
    if as_json {
        writeln!(ui.out, "{}", plan_json(plan))?;
        return Ok(());
    }
    if plan.steps.is_empty() {
        writeln!(ui.out, "# nothing to do: {}", summary(plan))?;
        return Ok(());
    }
    let mut reason = "";
    for step in &plan.steps {
        if step.reason != reason {
            reason = &step.reason;
            writeln!(ui.out, "# {reason}")?;
        }
        writeln!(ui.out, "{}", step.change.command())?;
    }
    Ok(())
}

fn summary(plan: &SetupPlan) -> String {
    if plan.uses.is_empty() {
        return "no usable address".to_owned();
    }
    let addresses = plan.uses.iter().map(|(link, address)| format!("{address} ({link})"));
    format!("the setup is complete for {}", addresses.collect::<Vec<_>>().join(", "))
}

fn plan_json(plan: &SetupPlan) -> Value {
    let step = |step: &PlanStep| json!({"reason": step.reason, "command": step.change.command(), "change": step.change});
    let uses = plan.uses.iter().map(|(link, ip)| json!({"interface": link, "address": ip}));
    json!({
        "steps": plan.steps.iter().map(step).collect::<Vec<_>>(),
        "keeps": plan.kept_steps.iter().map(step).collect::<Vec<_>>(),
        "notes": plan.notes,
        "uses": uses.collect::<Vec<_>>(),
    })
}

fn undo(
    handles: &mut ConfigHandles,
    folder: &Path,
    as_json: bool,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let mut state = SetupState::open(folder).map_err(SetupError::from)?;
    if !state.changes().is_empty() || setup::root_has_applied() {
        require_root("undoing the applied plan", "nothing was changed")?;
    }
    if state.changes().is_empty() && !as_json {
        writeln!(ui.out, "# nothing to undo: nothing was applied here since this machine started")?;
        return Ok(ExitCode::SUCCESS);
    }
    revert(handles, &mut state, as_json, ui)
}

/// Reverts all recorded changes, and prints the commands that did it.
pub(crate) fn revert(
    handles: &mut ConfigHandles,
    state: &mut SetupState,
    as_json: bool,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let outcome = setup::undo(handles, state)?;
    for remark in &outcome.remarks {
        ui.warn(&Warning { text: remark.clone(), hint: None });
    }
    if as_json {
        let changes_json = outcome.made.iter();
        let changes_json =
            changes_json.map(|change| json!({"command": change.command(), "change": change}));
        let steps = changes_json.collect::<Vec<_>>();
        writeln!(ui.out, "{}", json!({"steps": steps, "notes": outcome.remarks}))?;
        return Ok(ExitCode::SUCCESS);
    }
    for change in &outcome.made {
        writeln!(ui.out, "{}", change.command())?;
    }
    ui.progress(&format!("{} undone", count(outcome.made.len(), "change")));
    Ok(ExitCode::SUCCESS)
}

/// Returns the changes that earlier calls applied; `None` without a state folder.
///
/// A state that cannot be trusted is left out with a warning.
fn applied_state(folder: &Path, ui: &mut Ui) -> Option<SetupState> {
    match SetupState::open(folder) {
        Ok(state) => Some(state),
        Err(error) => {
            let text = format!("earlier changes are missing: {error}");
            ui.warn(&Warning { text, hint: error.hint() });
            None
        }
    }
}

fn persist(
    form: FormChoice,
    arguments: &SetupArguments,
    plan: &SetupPlan,
    state: Option<&SetupState>,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let form = match form {
        FormChoice::NetworkManager => PersistTarget::NetworkManager,
        FormChoice::Systemd => PersistTarget::Systemd,
        FormChoice::Script => PersistTarget::Script,
    };
    let applied = state.map(SetupState::changes).unwrap_or_default();
    let steps = setup::boot_steps(plan, applied);
    let generated = setup::generate_files(form, "Made by `towpath setup --persist`.", &steps);
    match &arguments.out {
        Some(folder) => {
            let folder = files::folder(folder)?;
            for file in &generated {
                let path = write_file(&folder, file)?;
                writeln!(ui.out, "{}", path.display())?;
            }
            for file in &generated {
                let name = Path::new(file.place).file_name().unwrap_or_default();
                ui.progress(&format!("put {} to {}", name.display(), file.place));
            }
        }
        None if arguments.json => {
            let files_json = generated.iter().map(|file| {
                json!({
                    "path": file.place,
                    "executable": file.is_executable,
                    "content": file.content,
                })
            });
            writeln!(ui.out, "{}", json!({"files": files_json.collect::<Vec<_>>()}))?;
        }
        None => {
            for file in &generated {
                writeln!(ui.out, "### {}", file.place)?;
                ui.out.write_all(format!("{}\n", file.content).as_bytes())?;
            }
        }
    }
    if form == PersistTarget::Systemd {
        ui.progress("then: systemctl daemon-reload && systemctl enable --now towpath-mptcp");
    }
    Ok(ExitCode::SUCCESS)
}

fn write_file(folder: &Dir, file: &GeneratedFile) -> Result<PathBuf, CliError> {
    let name = Path::new(file.place).file_name().unwrap_or_default();
    let path = folder.path().join(name);
    // Root will run scripts, so only the owner may write to them.
    let mode = if file.is_executable { 0o755 } else { 0o644 };
    let outcome = folder.write_with_mode(name, file.content.as_bytes(), mode);
    outcome.map_err(|source| CliError::unwritable(&path, source, None))?;
    Ok(path)
}

pub(crate) fn count(number: usize, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

impl From<SetupError> for CliError {
    fn from(error: SetupError) -> Self {
        let hint = error.hint();
        Self::failed(error, hint)
    }
}
