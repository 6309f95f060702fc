//! Entries of the audit log.

use sqlx::any::AnyRow;
use sqlx::{Any, AssertSqlSafe, Row as _, Transaction};

use super::Catalogue;
use super::runs::AnyQuery;
use crate::audit::{Actor, ActorKind, AuditAction, AuditEntry, FORGOTTEN_DEVICE};
use crate::error::CollectError;

fn audit_entry(row: &AnyRow) -> Result<AuditEntry, sqlx::Error> {
    let kind: String = row.try_get("actor_kind")?;
    let action: String = row.try_get("action")?;
    let unknown = |word: &str| sqlx::Error::Decode(format!("unknown word `{word}`").into());
    Ok(AuditEntry {
        id: row.try_get("id")?,
        at_us: row.try_get("at_us")?,
        actor: Actor {
            kind: ActorKind::parse(&kind).ok_or_else(|| unknown(&kind))?,
            name: row.try_get("actor")?,
        },
        action: AuditAction::parse(&action).ok_or_else(|| unknown(&action))?,
        object: row.try_get("object")?,
        detail: row.try_get("detail")?,
    })
}

/// Adds an entry. The entry of a backup that is here already stays, unless the backup no longer has
/// the name of its device.
fn insert(entry: &AuditEntry) -> AnyQuery<'static> {
    let AuditEntry { id, at_us, actor: Actor { kind, name }, action, object, detail } =
        entry.clone();
    let statement = format!(
        "INSERT INTO audit (id, at_us, actor_kind, actor, action, object, detail) \
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO UPDATE \
         SET object = excluded.object WHERE excluded.object = '{FORGOTTEN_DEVICE}'"
    );
    sqlx::query(AssertSqlSafe(statement))
        .bind(id)
        .bind(at_us)
        .bind(kind.name())
        .bind(name)
        .bind(action.name())
        .bind(object)
        .bind(detail)
}

/// Adds an entry together with its action.
pub(super) async fn insert_entry(
    transaction: &mut Transaction<'_, Any>,
    entry: &AuditEntry,
) -> Result<(), CollectError> {
    insert(entry).execute(&mut **transaction).await?;
    Ok(())
}

/// Removes the name of a device from the entries about it. Entries about earlier devices with this
/// name lose it as well.
pub(super) async fn forget_name(
    transaction: &mut Transaction<'_, Any>,
    name: &str,
) -> Result<(), CollectError> {
    for action in AuditAction::OF_DEVICES {
        sqlx::query("UPDATE audit SET object = $1 WHERE object = $2 AND action = $3")
            .bind(FORGOTTEN_DEVICE)
            .bind(name.to_owned())
            .bind(action.name())
            .execute(&mut **transaction)
            .await?;
    }
    Ok(())
}

impl Catalogue {
    /// Adds an entry, unless it exists.
    pub(crate) async fn add_audit_entry(&self, entry: &AuditEntry) -> Result<(), CollectError> {
        insert(entry).execute(&self.pool).await?;
        Ok(())
    }

    /// Returns all entries from a time, the oldest first.
    pub(crate) async fn audit_entries(
        &self,
        since_us: i64,
    ) -> Result<Vec<AuditEntry>, CollectError> {
        let statement = "SELECT id, at_us, actor_kind, actor, action, object, detail FROM audit \
                         WHERE at_us >= $1 ORDER BY at_us, id";
        let rows = sqlx::query(statement).bind(since_us).fetch_all(&self.pool).await?;
        Ok(rows.iter().map(audit_entry).collect::<Result<_, _>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::run_to_end;

    #[test]
    fn entries_of_the_audit_log_cannot_be_deleted() {
        let file = format!("towpath-collect-audit-{}.sqlite", std::process::id());
        let path = std::env::temp_dir().join(file);
        let done = run_to_end(async {
            let catalogue = Catalogue::open_file(&path).await?;
            let action = AuditAction::CampaignCreated;
            let entry = AuditEntry::new(7, &Actor::device(), action, "stable-1", "")?;
            for _ in 0..2 {
                catalogue.add_audit_entry(&entry).await?;
            }
            let deleted = sqlx::query("DELETE FROM audit").execute(&catalogue.pool).await;
            assert!(deleted.unwrap_err().to_string().contains("permanent"));
            assert_eq!(catalogue.audit_entries(7).await?, [entry]);
            assert_eq!(catalogue.audit_entries(8).await?, []);
            catalogue.close().await;
            Ok(())
        });
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", path.display())); // best effort
        }
        done.unwrap();
    }
}
