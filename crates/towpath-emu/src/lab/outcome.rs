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
const ORDER_HINT: &str = "programs start in the order of the command line: servers first, and last the program that ends the lab";

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
        last_label: &str,
        status: ExitStatus,
        others: &[ProgramOutcome],
    ) -> Self {
        let failed_client = others.iter().find_map(ProgramOutcome::failed_client);
        match failed_client {
            Some((label, client_status)) if status.success() => {
                let hint = "its exit code is the lab's; append `|| true` to a command whose failure does not matter";
                Self::failed(client_status, format!("{label} ended with {client_status}"), hint)
            }
            None if status.success() => Self { status, failure: None, warning: None },
            _ => {
                let text = format!("{last_label} ended with {status}");
                let order_is_plausible =
                    others.is_empty() || others.iter().any(|other| other.listens);
                let order_warning = || {
                    let text = format!("{text}, and no program before it listened");
                    (text, ORDER_HINT.to_owned())
                };
                let warning = (!order_is_plausible && status.code().is_some()).then(order_warning);
                Self { status, failure: Some(text), warning }
            }
        }
    }

    /// Returns the outcome after a server has failed and the last program has not noticed.
    pub(super) fn server_failed(last_label: &str, others: &[ProgramOutcome]) -> Option<Self> {
        let server = others.iter().find(|other| other.is_failed_server())?;
        let status = server.failure_status()?;
        let text = format!("{} ended with {status} while {last_label} still ran", server.label);
        Some(Self::failed(status, text, "what it printed may say why"))
    }

    /// Returns the outcome if the programs that still run only wait for connections.
    pub(super) fn idle(last_label: &str, others: &[ProgramOutcome]) -> Self {
        if let Some((label, status)) = others.iter().find_map(ProgramOutcome::failed_client) {
            let text =
                format!("{label} ended with {status}, and {last_label} has no client to wait for");
            return Self::failed(status, text, ORDER_HINT);
        }
        let has_ended = |other: &&ProgramOutcome| other.status.is_some();
        if others.iter().any(|other| has_ended(&other)) {
            let all_ended = others.iter().all(|other| has_ended(&other));
            let reason = if all_ended {
                "all other programs have ended"
            } else {
                "no active program is left"
            };
            let text = format!("{reason}, and {last_label} only waits: the lab ends");
            let status = ExitStatus::from_raw(0);
            return Self { status, failure: None, warning: Some((text, ORDER_HINT.to_owned())) };
        }
        let names: Vec<_> =
            others.iter().map(|other| other.label.as_str()).chain([last_label]).collect();
        let verb = if names.len() == 1 { "only waits" } else { "only wait" };
        let text = format!("{} {verb} for clients, and there are none", names.join(" and "));
        let hint = "add a client with another `--on HOST COMMAND`; `-- sleep 600` keeps a lab open";
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

    fn exit_status(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    fn client(code: Option<i32>) -> ProgramOutcome {
        ProgramOutcome {
            label: "`c` on left".into(),
            listens: false,
            status: code.map(exit_status),
        }
    }

    fn server(code: Option<i32>) -> ProgramOutcome {
        ProgramOutcome {
            label: "`s` on right".into(),
            listens: true,
            status: code.map(exit_status),
        }
    }

    #[test]
    fn a_lab_exits_with_the_last_programs_code_unless_only_a_client_failed() {
        let code = |status, others: &[ProgramOutcome]| {
            LabOutcome::after_last_program("`l`", status, others).status.code()
        };
        assert_eq!(code(exit_status(0), &[server(None), client(Some(0))]), Some(0));
        assert_eq!(code(exit_status(7), &[server(None), client(Some(3))]), Some(7));
        assert_eq!(code(exit_status(0), &[server(None), client(Some(3))]), Some(3));
        // The client has left the server; the lab itself did not fail.
        assert_eq!(code(exit_status(0), &[server(Some(1))]), Some(0));
        let warning = |others: &[ProgramOutcome]| {
            LabOutcome::after_last_program("`l`", exit_status(7), others).warning
        };
        assert!(warning(&[client(Some(0))]).unwrap().0.contains("no program before it listened"));
        assert_eq!((warning(&[server(None)]), warning(&[])), (None, None));
    }

    #[test]
    fn an_idle_server_ends_the_lab_with_the_status_of_its_clients() {
        let idle_outcome = |others: &[ProgramOutcome]| LabOutcome::idle("`l` on right", others);
        let outcome = idle_outcome(&[client(Some(1))]);
        assert_eq!(outcome.status.code(), Some(1));
        assert_eq!(
            outcome.warning.unwrap().0,
            "`c` on left ended with exit status: 1, and `l` on right has no client to wait for"
        );
        assert_eq!(
            (idle_outcome(&[client(Some(0))]).status.code(), idle_outcome(&[]).status.code()),
            (Some(0), Some(1))
        );
        let warning = idle_outcome(&[server(None)]).warning.unwrap().0;
        assert!(
            warning.starts_with("`s` on right and `l` on right only wait for clients"),
            "{warning}"
        );
    }

    #[test]
    fn a_failed_server_is_named_with_its_exit_code() {
        assert_eq!(LabOutcome::server_failed("`l`", &[server(Some(0)), client(Some(1))]), None);
        let outcome = LabOutcome::server_failed("`l`", &[server(Some(4))]).unwrap();
        assert_eq!(outcome.status.code(), Some(4));
        assert_eq!(
            outcome.failure.unwrap(),
            "`s` on right ended with exit status: 4 while `l` still ran"
        );
    }
}
