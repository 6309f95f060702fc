//! Outcome of a lab, and its messages.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

/// Outcome of a program other than the last one.
#[derive(Debug, Clone)]
pub(super) struct ProgramOutcome {
    /// Command line of the program, and its host.
    pub(super) label: String,
    /// True if the program has opened a listening port.
    pub(super) listens: bool,
    /// Exit status; `None` while the program runs.
    pub(super) status: Option<ExitStatus>,
}

/// Outcome of a lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LabOutcome {
    /// Exit status of the whole lab.
    pub(super) status: ExitStatus,
    /// Reason for the failure of the measured programs, if they failed.
    pub(super) failure: Option<String>,
    /// Warning, and a hint about a remedy.
    pub(super) warning: Option<(String, String)>,
}

/// Hint about the start order: the last program ends the lab.
const ORDER_HINT: &str = "programs start in the order of the command line: servers first, and last what \
                     ends the lab";

impl ProgramOutcome {
    fn failure_status(&self) -> Option<ExitStatus> {
        self.status.filter(|status| !status.success())
    }

    /// Returns the failed client, if there is one. A server may fail after its client has left.
    fn failed_client(&self) -> Option<(&str, ExitStatus)> {
        let status = self.failure_status().filter(|_| !self.listens)?;
        Some((&self.label, status))
    }

    /// Returns true for a server that ended with a failure.
    pub(super) fn is_failed_server(&self) -> bool {
        self.listens && self.failure_status().is_some()
    }
}

impl LabOutcome {
    /// Returns the outcome of Ctrl-C before the last program.
    pub(super) fn interrupted() -> Self {
        let failure = Some("interrupted".to_owned());
        Self { status: ExitStatus::from_raw(libc::SIGINT), failure, warning: None }
    }

    /// Returns the outcome after the last program has ended.
    pub(super) fn after_last_program(
        last: &str,
        status: ExitStatus,
        others: &[ProgramOutcome],
    ) -> Self {
        let failed = others.iter().find_map(ProgramOutcome::failed_client);
        match failed {
            Some((shown, of_client)) if status.success() => {
                let hint = "its exit code is the lab's; write `|| true` behind a command whose \
                            failure does not matter";
                Self::failed(of_client, format!("{shown} ended with {of_client}"), hint)
            }
            None if status.success() => Self { status, failure: None, warning: None },
            _ => {
                let text = format!("{last} ended with {status}");
                let alone = others.is_empty() || others.iter().any(|other| other.listens);
                let none = || {
                    let text = format!("{text}, and no program before it listened");
                    (text, ORDER_HINT.to_owned())
                };
                let told = (!alone && status.code().is_some()).then(none);
                Self { status, failure: Some(text), warning: told }
            }
        }
    }

    /// Returns the outcome after a server has failed and the last program has not noticed.
    pub(super) fn server_failed(last: &str, others: &[ProgramOutcome]) -> Option<Self> {
        let server = others.iter().find(|other| other.is_failed_server())?;
        let status = server.failure_status()?;
        let text = format!("{} ended with {status} while {last} still ran", server.label);
        Some(Self::failed(status, text, "what it printed may say why"))
    }

    /// Returns the outcome if the remaining programs only wait for connections.
    pub(super) fn idle(last: &str, others: &[ProgramOutcome]) -> Self {
        if let Some((shown, status)) = others.iter().find_map(ProgramOutcome::failed_client) {
            let text = format!("{shown} ended with {status}, and {last} waits for nobody");
            return Self::failed(status, text, ORDER_HINT);
        }
        let over = |other: &&ProgramOutcome| other.status.is_some();
        if others.iter().any(|other| over(&other)) {
            let left = others.iter().all(|other| over(&other));
            let others = if left { "all others have ended" } else { "nobody is left that acts" };
            let text = format!("{others}, and {last} only waits: the lab ends");
            let status = ExitStatus::from_raw(0);
            return Self { status, failure: None, warning: Some((text, ORDER_HINT.to_owned())) };
        }
        let names: Vec<_> = others.iter().map(|other| other.label.as_str()).chain([last]).collect();
        let wait = if names.len() == 1 { "only waits" } else { "only wait" };
        let text = format!("{} {wait} for others to come, and there are none", names.join(" and "));
        let hint = "add a client: a further `--on HOST COMMAND`; `-- sleep 600` keeps a lab open";
        Self::failed(ExitStatus::from_raw(1 << 8), text, hint)
    }

    fn failed(status: ExitStatus, text: String, hint: &str) -> Self {
        let warning = Some((text.clone(), hint.to_owned()));
        Self { status, failure: Some(text), warning }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    fn client(code: Option<i32>) -> ProgramOutcome {
        ProgramOutcome { label: "`c` on left".into(), listens: false, status: code.map(exit) }
    }

    fn server(code: Option<i32>) -> ProgramOutcome {
        ProgramOutcome { label: "`s` on right".into(), listens: true, status: code.map(exit) }
    }

    #[test]
    fn the_last_ones_code_is_the_labs_unless_only_a_client_before_it_failed() {
        let code = |status, others: &[ProgramOutcome]| {
            LabOutcome::after_last_program("`l`", status, others).status.code()
        };
        assert_eq!(code(exit(0), &[server(None), client(Some(0))]), Some(0));
        assert_eq!(code(exit(7), &[server(None), client(Some(3))]), Some(7));
        assert_eq!(code(exit(0), &[server(None), client(Some(3))]), Some(3));
        // The client has left the server; the lab itself did not fail.
        assert_eq!(code(exit(0), &[server(Some(1))]), Some(0));
        let told = |others: &[ProgramOutcome]| {
            LabOutcome::after_last_program("`l`", exit(7), others).warning
        };
        assert!(told(&[client(Some(0))]).unwrap().0.contains("no program before it listened"));
        assert_eq!((told(&[server(None)]), told(&[])), (None, None));
    }

    #[test]
    fn a_server_without_clients_left_ends_the_lab_with_their_status() {
        let end = |others: &[ProgramOutcome]| LabOutcome::idle("`l` on right", others);
        let failed = end(&[client(Some(1))]);
        assert_eq!(failed.status.code(), Some(1));
        assert_eq!(
            failed.warning.unwrap().0,
            "`c` on left ended with exit status: 1, and `l` on right waits for nobody"
        );
        assert_eq!(
            (end(&[client(Some(0))]).status.code(), end(&[]).status.code()),
            (Some(0), Some(1))
        );
        let both = end(&[server(None)]).warning.unwrap().0;
        assert!(both.starts_with("`s` on right and `l` on right only wait for others"), "{both}");
    }

    #[test]
    fn a_server_that_dies_is_named_with_its_code() {
        assert_eq!(LabOutcome::server_failed("`l`", &[server(Some(0)), client(Some(1))]), None);
        let end = LabOutcome::server_failed("`l`", &[server(Some(4))]).unwrap();
        assert_eq!(end.status.code(), Some(4));
        assert_eq!(
            end.failure.unwrap(),
            "`s` on right ended with exit status: 4 while `l` still ran"
        );
    }
}
