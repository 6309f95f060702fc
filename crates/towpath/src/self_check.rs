//! `towpath doctor --self`: tests this machine's abilities and lists the commands that work on it.

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;
use towpath_host::preflight::{Check, Emulation, Machine, Missing};
use towpath_live::protocol::DEFAULT_PORT;

use crate::error::CliError;
use crate::process;
use crate::ui::{Ui, write_wrapped};

/// Width of the left column in characters.
const NAME_COLUMNS: usize = 26;

/// Results of all checks, as `--json` prints them.
#[derive(Debug, Serialize)]
struct SelfCheck {
    machine: Machine,
    emulation: Emulation,
    commands: Vec<CommandSupport>,
}

/// Group of commands with the prerequisites that are missing on this machine.
#[derive(Debug, Serialize)]
struct CommandSupport {
    command: &'static str,
    works: bool,
    /// Names of missing prerequisites, as in the table above.
    needs: Vec<&'static str>,
}

// Names of the prerequisites, in the table and in `CommandSupport::needs`.
const NAMESPACES: &str = "user namespaces";
const TUN: &str = "TUN devices";
const PACKET_SOCKETS: &str = "packet sockets on veth";
const MPTCP: &str = "Multipath TCP";
const SECCOMP: &str = "seccomp user notification";
const NET_ADMIN: &str = "CAP_NET_ADMIN";
const NET_RAW: &str = "CAP_NET_RAW";
const TCP_PORT: &str = "TCP port";
const UDP_PORT: &str = "UDP port (QUIC)";

/// Checks the machine and prints the result; exit code 1 if a world cannot be used.
pub(crate) fn self_check(json: bool, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let (machine, emulation) = (Machine::check(DEFAULT_PORT), process::preflight());
    let commands = commands(&machine, &emulation);
    let can_emulate = emulation.missing(false).is_none();
    let results = SelfCheck { machine, emulation, commands };
    if json {
        let text = serde_json::to_string(&results);
        writeln!(ui.out, "{}", text.map_err(|error| CliError::Internal(error.to_string()))?)?;
    } else {
        print_self_check(&results, ui)?;
    }
    Ok(if can_emulate { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn commands(machine: &Machine, emulation: &Emulation) -> Vec<CommandSupport> {
    let command = |command, checks: &[(&'static str, &Check)]| {
        let missing = checks.iter().filter(|(_, check)| check.missing().is_some());
        let needs: Vec<_> = missing.map(|(name, _)| *name).collect();
        CommandSupport { command, works: needs.is_empty(), needs }
    };
    let namespaces = (NAMESPACES, &emulation.namespaces);
    // Either kind of device is enough.
    let devices = match emulation.tun {
        Check::Available => (TUN, &emulation.tun),
        Check::Missing(_) | Check::NotTried => (PACKET_SOCKETS, &emulation.packet_sockets),
    };
    let mptcp = (MPTCP, &machine.mptcp);
    let ports = [(TCP_PORT, &machine.tcp_port), (UDP_PORT, &machine.quic_port)];
    vec![
        command("run --world sim", &[]),
        command("run --world emu", &[namespaces, devices]),
        command("run --world emu -T mptcp", &[namespaces, devices, (MPTCP, &emulation.mptcp)]),
        command("lab", &[namespaces, devices]),
        command("measure -T tcp,quic", &[]),
        command("measure -T mptcp", &[mptcp]),
        command("server", &ports),
        command("exec", &[(SECCOMP, &machine.seccomp_notify), mptcp]),
        command("setup --apply", &[(NET_ADMIN, &machine.net_admin)]),
        command("trace --interface", &[(NET_RAW, &machine.net_raw)]),
    ]
}

fn print_self_check(results: &SelfCheck, ui: &mut Ui) -> Result<(), CliError> {
    let SelfCheck { machine, emulation, commands } = results;
    let processors = if machine.processors == 1 { "processor" } else { "processors" };
    let (kernel, count) = (&machine.kernel, machine.processors);
    let lateness_us = machine.timer_lateness_us;
    writeln!(
        ui.out,
        "Linux {kernel}, {count} {processors}, timers {lateness_us} µs late (median)"
    )?;
    writeln!(ui.out)?;
    let prerequisites = [
        (NAMESPACES, &emulation.namespaces, ""),
        (TUN, &emulation.tun, ""),
        (PACKET_SOCKETS, &emulation.packet_sockets, ""),
        ("tc qdisc tbf", &emulation.tbf, ""),
        (MPTCP, &machine.mptcp, "version 1 (RFC 8684)"),
        (SECCOMP, &machine.seccomp_notify, ""),
        (NET_ADMIN, &machine.net_admin, ""),
        (NET_RAW, &machine.net_raw, ""),
    ];
    for (name, check, detail) in prerequisites {
        print_check(name, check, detail, ui)?;
    }
    for (name, check) in [(TCP_PORT, &machine.tcp_port), (UDP_PORT, &machine.quic_port)] {
        print_check(&format!("{name} {DEFAULT_PORT}"), check, "free", ui)?;
    }
    writeln!(ui.out)?;
    for command in commands {
        let text = match command.needs.as_slice() {
            [] => "works".to_owned(),
            needs => format!("no: needs {}", needs.join(" and ")),
        };
        writeln!(ui.out, "{:<NAME_COLUMNS$} {text}", command.command)?;
    }
    Ok(())
}

/// Prints one check: the state, and the reason and remedy if there are any.
fn print_check(name: &str, check: &Check, detail: &str, ui: &mut Ui) -> Result<(), CliError> {
    let label = format!("{name:<NAME_COLUMNS$} ");
    match check {
        Check::Available => {
            let text = if detail.is_empty() { "available" } else { detail };
            writeln!(ui.out, "{label}{text}")?;
        }
        Check::NotTried => writeln!(ui.out, "{label}not tested: needs user namespaces")?,
        Check::Missing(Missing { reason, remedy }) => {
            write_wrapped(&mut ui.out, &label, &format!("no: {reason}"))?;
            if let Some(remedy) = remedy {
                let indent = " ".repeat(NAME_COLUMNS + 1);
                write_wrapped(&mut ui.out, &format!("{indent}fix: "), remedy)?;
            }
        }
    }
    Ok(())
}
