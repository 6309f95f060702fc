//! Machines without the features that emulated runs need: runs are simulated, with a printed
//! reason.

use std::process::Command;

use crate::program::{
    ProgramOutput, SIZED, TWO_PATHS, TestDir, acquire_emulator, is_long, missing, skip,
};

/// Wrapper programs that run the command under a restriction.
enum Restriction {
    /// `user.max_user_namespaces` is 0, and no capabilities.
    NoNamespaces,
    /// A seccomp filter refuses new namespaces with EPERM, as Docker's default profile does.
    Seccomp,
    /// `/dev/net` is an empty folder.
    NoTun,
    /// `net.mptcp.enabled` is 0 on the host.
    MptcpOff,
}

/// Script that installs a seccomp filter and runs its arguments.
///
/// The filter refuses `unshare`, and `clone` with any namespace flag. `clone3` is reported as
/// unknown (ENOSYS), since a filter cannot read its flags.
const REFUSE_NAMESPACES: &str = r"
import ctypes, os, struct, sys
ALLOW, EPERM, ENOSYS = 0x7fff0000, 0x00050001, 0x00050026
NUMBER, LOW_ARGUMENT = 0, 16
UNSHARE, CLONE, CLONE3 = {'x86_64': (272, 56, 435), 'aarch64': (97, 220, 435)}[os.uname().machine]
LOAD, EQUAL, ANY, RETURN = 0x20, 0x15, 0x45, 0x06
NAMESPACES = 0x7e020000
program = [
    (LOAD, 0, 0, NUMBER),
    (EQUAL, 4, 0, UNSHARE),
    (EQUAL, 4, 0, CLONE3),
    (EQUAL, 0, 4, CLONE),
    (LOAD, 0, 0, LOW_ARGUMENT),
    (ANY, 0, 2, NAMESPACES),
    (RETURN, 0, 0, EPERM),
    (RETURN, 0, 0, ENOSYS),
    (RETURN, 0, 0, ALLOW),
]
code = b''.join(struct.pack('HBBI', *step) for step in program)
buffer = ctypes.create_string_buffer(code)
class Program(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('filter', ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
filter = Program(len(program), ctypes.addressof(buffer))
if libc.prctl(22, 2, ctypes.byref(filter), 0, 0):
    sys.exit('prctl: ' + os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[1], sys.argv[1:])
";

impl Restriction {
    fn tool(&self) -> &'static str {
        match self {
            Self::Seccomp => "python3",
            Self::NoNamespaces => "setpriv",
            Self::NoTun | Self::MptcpOff => "unshare",
        }
    }

    /// Returns the command that runs the program with `arguments` under the restriction.
    fn command(&self, folder: &TestDir, arguments: &[&str]) -> Command {
        let shell = |unshare: &str, script: &str| {
            let mut command = folder.program("unshare");
            command.arg(unshare).args(["sh", "-ec", &format!("{script} \"$@\""), "sh"]);
            command
        };
        let mut command = match self {
            Self::NoNamespaces => shell(
                "-Ur",
                "echo 0 >/proc/sys/user/max_user_namespaces
                exec setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all",
            ),
            Self::Seccomp => {
                let mut command = folder.program("python3");
                command.args(["-c", REFUSE_NAMESPACES]);
                command
            }
            Self::NoTun => shell("-Urm", "mount -t tmpfs none /dev/net\nexec"),
            Self::MptcpOff => shell("-Urn", "echo 0 >/proc/sys/net/mptcp/enabled\nexec"),
        };
        command.arg(folder.readable_binary()).args(arguments);
        command
    }
}

/// Runs the program under a restriction; `None`, with a `SKIPPED` line, if it cannot be set up.
fn run_restricted(
    restriction: &Restriction,
    folder: &TestDir,
    test: &str,
    arguments: &[&str],
) -> Option<ProgramOutput> {
    if let Some(reason) = missing(restriction.tool()) {
        skip(test, &reason);
        return None;
    }
    folder.write("two-paths.toml", format!("{TWO_PATHS}{SIZED}"));
    Some(folder.start(&mut restriction.command(folder, arguments)).wait())
}

#[test]
fn without_namespaces_a_run_is_simulated_with_a_reason() {
    let Some(_permit) = acquire_emulator() else { return };
    for (restriction, detail) in [
        (Restriction::NoNamespaces, "(user.max_user_namespaces is 0)"),
        (Restriction::Seccomp, "(`unshare`: operation not permitted)"),
    ] {
        let folder = TestDir::new();
        let test = "without_namespaces_a_run_is_simulated_with_a_reason";
        let arguments = ["run", "wifi-cellular-handover", "-q", "-o", "results"];
        let Some(output) = run_restricted(&restriction, &folder, test, &arguments) else { return };
        assert_eq!(output.code, Some(0), "{output}");
        let messages: String = output.err.split_whitespace().collect::<Vec<_>>().join(" ");
        let note = format!(
            "note: user namespaces are not available here {detail}: simulating instead; --world emu \
             shows how to enable them"
        );
        assert!(messages.starts_with(&note), "{output}");
        assert!(output.out.contains("sim instead of emu, because user namespaces"), "{output}");
        let page = std::fs::read_to_string(folder.work().join("results/report.html")).unwrap();
        assert!(page.contains("sim instead of emu, because user namespaces"));
        let result = folder.stored("results/sim-mptcp-1.jsonl.zst");
        let reason = &result.meta.conditions["simulated instead of emulated"];
        assert!(reason.ends_with(detail), "{reason}");
    }
}

#[test]
fn without_namespaces_a_comparison_is_simulated() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let arguments = ["compare", "two-paths.toml", "-q", "-r", "2", "-T", "tcp,mptcp"];
    let test = "without_namespaces_a_comparison_is_simulated";
    let Some(output) = run_restricted(&Restriction::NoNamespaces, &folder, test, &arguments) else {
        return;
    };
    assert_eq!(output.code, Some(0), "{output}");
    assert_eq!(output.err.matches("note: user namespaces").count(), 1, "{output}");
    assert!(output.out.contains("sim instead of emu"), "{output}");
}

#[test]
fn kernel_only_commands_fail_before_any_output() {
    let Some(_permit) = acquire_emulator() else { return };
    for arguments in [
        &["run", "two-paths.toml", "--world", "emu"][..],
        &["run", "two-paths.toml", "--stack", "kernel"],
        &["run", "two-paths.toml", "--backend", "packet"],
        &["compare", "two-paths.toml", "--world", "emu"],
        &["lab", "two-paths.toml", "--", "true"],
        &["lab", "two-paths.toml", "--on", "server", "true"],
        &["lab", "failure", "join-dropped", "--", "true"],
    ] {
        let folder = TestDir::new();
        let test = "kernel_only_commands_fail_before_any_output";
        let Some(output) = run_restricted(&Restriction::NoNamespaces, &folder, test, arguments)
        else {
            return;
        };
        assert_eq!((output.code, output.out.as_str()), (Some(2), ""), "{output}");
        assert!(
            output.err.starts_with("error: user namespaces are not available here"),
            "{output}"
        );
        assert!(
            output.err.contains("hint: run `sysctl user.max_user_namespaces=10000`"),
            "{output}"
        );
        assert!(!folder.work().join("towpath-results").exists(), "{output}");
    }
}

#[test]
fn without_tun_or_multipath_tcp_on_the_host_runs_are_emulated() {
    let Some(_permit) = acquire_emulator() else { return };
    let scenario = if is_long() { "wifi-cellular-handover" } else { "two-paths.toml" };
    for restriction in [Restriction::NoTun, Restriction::MptcpOff] {
        let folder = TestDir::new();
        let test = "without_tun_or_multipath_tcp_on_the_host_runs_are_emulated";
        let arguments = ["run", scenario, "-q", "-o", "results"];
        let Some(output) = run_restricted(&restriction, &folder, test, &arguments) else { return };
        assert_eq!(output.code, Some(0), "{output}");
        assert!(folder.work().join("results/report.html").is_file());
        let result = folder.stored("results/mptcp-1.jsonl.zst");
        assert!(result.summary.unwrap().multipath.used, "{output}");
    }
}

#[test]
fn a_machine_reports_its_capabilities() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let test = "a_machine_reports_its_capabilities";
    let arguments = ["doctor", "--self", "--json"];
    let Some(output) = run_restricted(&Restriction::NoNamespaces, &folder, test, &arguments) else {
        return;
    };
    assert_eq!(output.code, Some(1), "{output}");
    let [report] = output.json().try_into().unwrap();
    assert_eq!(report["emulation"]["namespaces"]["state"], "missing", "{output}");
    assert_eq!(report["emulation"]["tun"]["state"], "not-tried", "{output}");
    let works = |name: &str| {
        let commands = report["commands"].as_array().unwrap();
        commands.iter().find(|command| command["command"] == name).unwrap()["works"]
            .as_bool()
            .unwrap()
    };
    assert!(works("run --world sim") && works("measure -T tcp,quic"), "{output}");
    assert!(!works("run --world emu") && !works("lab") && !works("setup --apply"), "{output}");
    let Some(output) = run_restricted(&Restriction::NoTun, &folder, test, &arguments) else {
        return;
    };
    assert_eq!(output.code, Some(0), "{output}");
    let [report] = output.json().try_into().unwrap();
    assert_eq!(report["emulation"]["tun"]["state"], "missing", "{output}");
    let Some(output) = run_restricted(&Restriction::MptcpOff, &folder, test, &arguments) else {
        return;
    };
    let [report] = output.json().try_into().unwrap();
    assert_eq!(report["machine"]["mptcp"]["remedy"], "sysctl net.mptcp.enabled=1", "{output}");
    assert_eq!(report["emulation"]["mptcp"]["state"], "available", "{output}");
}
