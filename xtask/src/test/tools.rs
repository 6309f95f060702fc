//! External tools that the tests need: found, installed or reported missing.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::run_captured;
use crate::Result;

/// A program that tests start.
#[derive(Debug, PartialEq, Eq)]
struct Tool {
    name: &'static str,
    /// Names of suitable programs, in order of preference.
    programs: &'static [&'static str],
    /// Argument with which they print their version and exit.
    version: &'static str,
    /// Debian package that contains the tool.
    package: &'static str,
    /// Description of the tests that are skipped without it.
    /// Environment variables for the tests: path or reason of absence.
    purpose: &'static str,
    /// Environment variable that passes the program's path to the tests.
    found_in: Option<&'static str>,
    /// Environment variable that passes the reason for its absence to the tests.
    skipped_in: &'static str,
}

const TOOLS: [Tool; 12] = [
    Tool {
        name: "chromium",
        programs: &["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"],
        version: "--version",
        package: "chromium",
        purpose: "that a browser can draw the HTML report",
        found_in: Some("CHROMIUM"),
        skipped_in: "TOWPATH_SKIP_CHROMIUM",
    },
    Tool {
        name: "unshare",
        programs: &["unshare"],
        version: "--version",
        package: "util-linux",
        purpose: "the kernel's interfaces, in namespaces of their own",
        found_in: None,
        skipped_in: "TOWPATH_SKIP_UNSHARE",
    },
    Tool {
        name: "setpriv",
        programs: &["setpriv"],
        version: "--version",
        package: "util-linux",
        purpose: "that an ordinary user can run everything",
        found_in: None,
        skipped_in: "TOWPATH_SKIP_SETPRIV",
    },
    Tool {
        name: "curl",
        programs: &["curl"],
        version: "--version",
        package: "curl",
        purpose: "that `towpath exec` gives curl Multipath TCP, and programs of a lab",
        found_in: None,
        skipped_in: "TOWPATH_SKIP_CURL",
    },
    Tool {
        name: "python3",
        programs: &["python3"],
        version: "--version",
        package: "python3",
        purpose: "that `towpath exec` gives Python Multipath TCP, and sockets their flags",
        found_in: None,
        skipped_in: "TOWPATH_SKIP_PYTHON3",
    },
    Tool {
        name: "go",
        programs: &["go"],
        version: "version",
        package: "golang-go",
        purpose: "that `towpath exec` gives a static program Multipath TCP",
        found_in: None,
        skipped_in: "TOWPATH_SKIP_GO",
    },
    Tool {
        name: "iperf3",
        programs: &["iperf3"],
        version: "--version",
        package: "iperf3",
        purpose: "that `towpath exec` gives iperf3 Multipath TCP at both ends, and labs of two programs",
        found_in: None,
        skipped_in: "TOWPATH_SKIP_IPERF3",
    },
    Tool {
        name: "nginx",
        programs: &["nginx"],
        version: "-v",
        package: "nginx",
        purpose: "that `towpath exec` gives nginx and its workers Multipath TCP",
        found_in: None,
        skipped_in: "TOWPATH_SKIP_NGINX",
    },
    Tool {
        name: "tcpdump",
        programs: &["tcpdump"],
        version: "--version",
        package: "tcpdump",
        purpose: "that a capture in a lab begins before what it shall see",
        found_in: None,
        skipped_in: "TOWPATH_SKIP_TCPDUMP",
    },
    // `dropbear-bin` starts no service, unlike the package `dropbear`.
    Tool {
        name: "dropbear",
        programs: &["dropbear"],
        version: "-V",
        package: "dropbear-bin",
        purpose: "that SSH in a lab shows what it moves",
        found_in: None,
        skipped_in: "TOWPATH_SKIP_DROPBEAR",
    },
    Tool {
        name: "postgres",
        programs: &["postgres"],
        version: "--version",
        package: "postgresql",
        purpose: "the collector on PostgreSQL",
        found_in: Some("POSTGRES"),
        skipped_in: "TOWPATH_SKIP_POSTGRES",
    },
    Tool {
        name: "chromedriver",
        programs: &["chromedriver"],
        version: "--version",
        package: "chromium-driver",
        purpose: "the collector's pages in a browser",
        found_in: Some("CHROMEDRIVER"),
        skipped_in: "TOWPATH_SKIP_CHROMEDRIVER",
    },
];

/// Permission to install missing packages.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Permission {
    Granted,
    /// Reason for the denial.
    Denied(&'static str),
}

/// Finds every tool; returns the environment variables for the tests.
pub(super) fn prepare(out: &mut dyn Write) -> Result<Vec<(OsString, OsString)>> {
    let is_ci = env::var("CI").is_ok_and(|value| is_true(&value));
    let missing: Vec<_> = TOOLS.iter().filter(|tool| find(tool).is_none()).collect();
    let reason = match (missing.is_empty(), permission()) {
        (true, _) => String::new(),
        (false, Permission::Denied(reason)) => reason.to_owned(),
        (false, Permission::Granted) => match install(&missing, out) {
            Ok(()) => "the installed package does not work here".to_owned(),
            Err(error) => {
                writeln!(out, "{error}")?;
                "it could not be installed".to_owned()
            }
        },
    };
    let mut environment = Vec::new();
    for tool in &TOOLS {
        let program = find(tool);
        writeln!(out, "{}", describe(tool, program.as_deref(), &reason))?;
        if program.is_none() && is_ci {
            return Err(format!("`{}` is missing, and CI must test everything", tool.name).into());
        }
        environment.extend(tool_variable(tool, program.as_deref(), &reason));
    }
    Ok(environment)
}

fn describe(tool: &Tool, program: Option<&Path>, reason: &str) -> String {
    let Tool { name, package, purpose, .. } = tool;
    match program {
        Some(program) => format!("{name}: {}", program.display()),
        None => format!(
            "skipped: {purpose}, because `{name}` (Debian package `{package}`) is missing and \
             {reason}"
        ),
    }
}

fn tool_variable(
    tool: &Tool,
    program: Option<&Path>,
    reason: &str,
) -> Option<(OsString, OsString)> {
    match program {
        Some(program) => Some((tool.found_in?.into(), program.into())),
        None => Some((
            tool.skipped_in.into(),
            format!("`{}` is missing and {reason}", tool.name).into(),
        )),
    }
}

/// Returns the first program that starts, with its path.
///
/// An existing file is not sufficient: some only refer to an app store.
fn find(tool: &Tool) -> Option<PathBuf> {
    let configured = tool.found_in.and_then(env::var_os).map(PathBuf::from);
    let in_path = tool.programs.iter().flat_map(|program| in_search_path(program));
    configured.into_iter().chain(in_path).find(|program| can_start(program, tool.version))
}

fn in_search_path(program: &str) -> Vec<PathBuf> {
    let folders = env::var_os("PATH").unwrap_or_default();
    // Debian keeps the servers of PostgreSQL out of the search path, by version.
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let servers = versions.map(|version| version.path().join("bin"));
    env::split_paths(&folders)
        .chain(servers)
        .map(|folder| folder.join(program))
        .filter(|path| path.is_file())
        .collect()
}

fn can_start(program: impl AsRef<OsStr>, version: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(version).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn permission() -> Permission {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !is_root(&status) {
        Permission::Denied("only root may install it")
    } else if !can_start("apt-get", "--version") {
        Permission::Denied("there is no `apt-get` to install it")
    } else {
        Permission::Granted
    }
}

/// Returns true if `/proc/self/status` shows root as the effective user.
fn is_root(status: &str) -> bool {
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    users.and_then(|users| users.split_whitespace().nth(1)) == Some("0")
}

fn install(missing: &[&Tool], out: &mut dyn Write) -> Result<()> {
    let packages = packages(missing);
    writeln!(out, "installing {}", packages.join(", "))?;
    let run_apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        run_captured(
            command
                .args(arguments)
                .args(["-o", "DPkg::Lock::Timeout=300"])
                .env("DEBIAN_FRONTEND", "noninteractive")
                // Installation must not start the servers of a package.
                .env("RUNLEVEL", "1"),
        )
    };
    // Old package lists may suffice; if not, both errors are reported.
    let update_result = run_apt(&["update"]);
    let arguments: Vec<_> =
        ["install", "-y", "--no-install-recommends"].into_iter().chain(packages).collect();
    run_apt(&arguments).map_err(|error| match update_result {
        Ok(()) => format!("apt-get install: {error}").into(),
        Err(update_error) => {
            format!("apt-get update: {update_error}\napt-get install: {error}").into()
        }
    })
}

/// Returns the packages without duplicates.
fn packages(missing: &[&Tool]) -> Vec<&'static str> {
    let mut packages: Vec<_> = missing.iter().map(|tool| tool.package).collect();
    packages.dedup();
    packages
}

fn is_true(value: &str) -> bool {
    matches!(value, "true" | "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISSING_TOOL: Tool = Tool {
        name: "none",
        programs: &["towpath-no-such-program"],
        version: "--version",
        package: "none",
        purpose: "nothing",
        found_in: Some("TOWPATH_NO_SUCH_VARIABLE"),
        skipped_in: "TOWPATH_SKIP_NONE",
    };

    #[test]
    fn a_missing_tool_is_reported_with_the_reason() {
        assert_eq!(find(&MISSING_TOOL), None);
        assert_eq!(
            describe(&MISSING_TOOL, None, "only root may install it"),
            "skipped: nothing, because `none` (Debian package `none`) is missing and only root may \
             install it"
        );
        let (name, reason) =
            tool_variable(&MISSING_TOOL, None, "only root may install it").unwrap();
        assert_eq!(name, "TOWPATH_SKIP_NONE");
        assert_eq!(reason, "`none` is missing and only root may install it");
    }

    #[test]
    fn a_found_tool_is_passed_to_the_tests() {
        assert_eq!(describe(&MISSING_TOOL, Some(Path::new("/bin/none")), ""), "none: /bin/none");
        let expected = ("TOWPATH_NO_SUCH_VARIABLE".into(), "/bin/none".into());
        assert_eq!(tool_variable(&MISSING_TOOL, Some(Path::new("/bin/none")), ""), Some(expected));
        let without_variable = Tool { found_in: None, ..MISSING_TOOL };
        assert_eq!(tool_variable(&without_variable, Some(Path::new("/bin/none")), ""), None);
    }

    #[test]
    fn a_program_is_found_with_its_path_if_it_starts() {
        let tool = Tool { programs: &["towpath-no-such-program", "env"], ..MISSING_TOOL };
        assert!(find(&tool).is_some_and(|path| path.is_absolute() && path.ends_with("env")));
        let broken = Tool { programs: &["false"], ..MISSING_TOOL };
        assert!(!in_search_path("false").is_empty());
        assert_eq!(find(&broken), None);
    }

    #[test]
    fn a_package_is_installed_once() {
        assert_eq!(
            packages(&TOOLS.iter().collect::<Vec<_>>()),
            [
                "chromium",
                "util-linux",
                "curl",
                "python3",
                "golang-go",
                "iperf3",
                "nginx",
                "tcpdump",
                "dropbear-bin",
                "postgresql",
                "chromium-driver"
            ]
        );
    }

    #[test]
    fn the_effective_user_decides_who_is_root() {
        assert!(is_root("Name:\tx\nUid:\t1000\t0\t0\t0\n"));
        assert!(!is_root("Uid:\t0\t1000\t1000\t1000\n"));
        assert!(!is_root(""));
    }

    #[test]
    fn ci_says_true() {
        assert!(is_true("true") && is_true("1"));
        assert!(!is_true("") && !is_true("false"));
    }
}
