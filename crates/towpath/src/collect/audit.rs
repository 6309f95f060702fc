//! What `towpath collect audit` does.

use std::io::Write as _;

use towpath_collect::{AuditEntry, Store, run_to_end};

use super::AuditArguments;
use super::server::{date, store_config};
use crate::error::CliError;
use crate::ui::Ui;

/// Carries out `towpath collect audit`.
pub(super) fn audit(arguments: &AuditArguments, ui: &mut Ui) -> Result<(), CliError> {
    let entries = run_to_end(async {
        let store = Store::open(&store_config(&arguments.store)).await?;
        store.audit_log(arguments.since.as_deref()).await
    })?;
    if !arguments.json {
        writeln!(ui.out, "{:27} {:16} {:18} object", "time", "actor", "action")?;
    }
    for entry in entries {
        if arguments.json {
            let line = serde_json::to_string(&entry).map_err(std::io::Error::from)?;
            writeln!(ui.out, "{line}")?;
        } else {
            writeln!(ui.out, "{}", line(&entry))?;
        }
    }
    Ok(())
}

fn line(entry: &AuditEntry) -> String {
    let AuditEntry { id: _, at_us, actor, action, object, detail } = entry;
    let (at, action) = (date(Some(*at_us)), action.name());
    let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
    format!("{at:27} {actor:16} {action:18} {object}{detail}")
}

#[cfg(test)]
mod tests {
    use towpath_collect::{Actor, ActorKind, AuditAction};

    use super::*;

    #[test]
    fn a_line_of_the_audit_log_says_who_did_what() {
        let entry = AuditEntry {
            id: "a1b2".to_owned(),
            at_us: 1_790_000_000_000_000,
            actor: Actor { kind: ActorKind::Local, name: "root".to_owned() },
            action: AuditAction::TokenCreated,
            object: "lab3".to_owned(),
            detail: "uploader".to_owned(),
        };
        let text = line(&entry);
        assert!(text.starts_with("2026-09-2"), "{text}");
        assert!(
            text.ends_with(" UTC local root       token-created      lab3 (uploader)"),
            "{text}"
        );
        let device = Actor { kind: ActorKind::Device, name: String::new() };
        let entry = AuditEntry { actor: device, detail: String::new(), ..entry };
        assert!(line(&entry).ends_with(" UTC device           token-created      lab3"));
    }
}
