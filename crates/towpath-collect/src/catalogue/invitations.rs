//! End of an invitation that no device has used.

use super::Catalogue;
use super::audit::insert_entry;
use crate::audit::{Actor, AuditAction, AuditEntry};
use crate::error::CollectError;

impl Catalogue {
    /// Ends an open invitation. Unlike a revocation, it has no effect on a device that has joined.
    pub(crate) async fn end_invitation(
        &self,
        name: &str,
        actor: &Actor,
        now_us: i64,
    ) -> Result<(), CollectError> {
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        let ended = sqlx::query("DELETE FROM join_codes WHERE name = $1 AND expires_us > $2")
            .bind(name.to_owned())
            .bind(now_us)
            .execute(&mut *transaction)
            .await?;
        if ended.rows_affected() == 0 {
            return Err(CollectError::NoDevice(name.to_owned()));
        }
        let entry = AuditEntry::new(now_us, actor, AuditAction::InvitationEnded, name, "")?;
        insert_entry(&mut transaction, &entry).await?;
        transaction.commit().await?;
        Ok(())
    }
}
