//! Devices of volunteers: invitations, accepted consent texts, and what remains after a deletion.

use sqlx::any::AnyRow;
use sqlx::{Any, AssertSqlSafe, Row as _, Transaction};
use towpath_result::device::{ConsentText, JoinRequest};

use super::Catalogue;
use super::audit::{forget_name, insert_entry};
use super::runs::{GROUP_COLUMNS, RUN_COLUMNS, entry, remove_run};
use super::tokens::{TOKEN_COLUMNS, end_revoked_sessions, insert_new_token, token};
use crate::access::{Role, Token};
use crate::audit::{Actor, AuditAction, AuditEntry, FORGOTTEN_DEVICE};
use crate::device::{
    Consent, DEFAULT_CONSENT, DEFAULT_CONSENT_VERSION, Device, DeviceRow, OpenInvitation,
};
use crate::entry::{RunEntry, short};
use crate::error::CollectError;
use crate::secret::JoinCode;
use crate::time;

/// Condition of a device that may send results: it has accepted the current text, and has access.
const CONSENTED: &str = "token = $1 AND consent >= \
     COALESCE((SELECT MAX(version) FROM consents), $2) AND \
     token IN (SELECT id FROM tokens WHERE revoked_us IS NULL)";

fn unsigned(row: &AnyRow, column: &str) -> Result<u64, sqlx::Error> {
    Ok(row.try_get::<i64, _>(column)?.unsigned_abs())
}

fn version(row: &AnyRow, column: &str) -> Result<u32, sqlx::Error> {
    let value: i64 = row.try_get(column)?;
    u32::try_from(value).map_err(|error| sqlx::Error::Decode(error.into()))
}

fn device_row(row: &AnyRow) -> Result<DeviceRow, sqlx::Error> {
    Ok(DeviceRow {
        token: row.try_get("token")?,
        consent: version(row, "consent")?,
        version: row.try_get("version")?,
        platform: row.try_get("platform")?,
        joined_us: row.try_get("joined_us")?,
        withdrawn_us: row.try_get("withdrawn_us")?,
    })
}

fn device(row: &AnyRow) -> Result<Device, sqlx::Error> {
    let DeviceRow { token: _, consent, version, platform, joined_us, withdrawn_us } =
        device_row(row)?;
    Ok(Device {
        token: token(row)?,
        consent,
        version,
        platform,
        joined_us,
        withdrawn_us,
        runs: unsigned(row, "runs")?,
        bytes: unsigned(row, "bytes")?,
    })
}

/// Returns the newest consent text.
async fn current_consent(
    transaction: &mut Transaction<'_, Any>,
) -> Result<ConsentText, CollectError> {
    let newest = "SELECT version, text FROM consents ORDER BY version DESC LIMIT 1";
    let row = sqlx::query(newest).fetch_optional(&mut **transaction).await?;
    let Some(row) = row else {
        return Ok(ConsentText {
            version: DEFAULT_CONSENT_VERSION,
            text: DEFAULT_CONSENT.to_owned(),
        });
    };
    Ok(ConsentText { version: version(&row, "version")?, text: row.try_get("text")? })
}

/// Stores a version of the text, unless it is there.
async fn insert_consent(
    transaction: &mut Transaction<'_, Any>,
    text: &ConsentText,
    created_us: i64,
) -> Result<(), CollectError> {
    sqlx::query(
        "INSERT INTO consents (version, text, created_us) VALUES ($1, $2, $3) \
         ON CONFLICT DO NOTHING",
    )
    .bind(i64::from(text.version))
    .bind(text.text.clone())
    .bind(created_us)
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

async fn delete_expired_codes(
    transaction: &mut Transaction<'_, Any>,
    now_us: i64,
) -> Result<(), CollectError> {
    sqlx::query("DELETE FROM join_codes WHERE expires_us <= $1")
        .bind(now_us)
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

/// Locks the row of a device that may send results; fails if it may not.
///
/// A deletion of the device waits for the transaction, and then finds its run.
pub(super) async fn lock_consented(
    transaction: &mut Transaction<'_, Any>,
    token: &str,
) -> Result<(), CollectError> {
    let statement = format!("UPDATE devices SET consent = consent WHERE {CONSENTED}");
    let locked = sqlx::query(AssertSqlSafe(statement))
        .bind(token.to_owned())
        .bind(i64::from(DEFAULT_CONSENT_VERSION))
        .execute(&mut **transaction)
        .await?;
    if locked.rows_affected() == 0 { Err(CollectError::NoConsent) } else { Ok(()) }
}

impl Catalogue {
    /// Creates a code with which one device may join under this name.
    pub(crate) async fn create_join_code(
        &self,
        name: &str,
        expires_us: i64,
        (actor, now_us): (&Actor, i64),
    ) -> Result<JoinCode, CollectError> {
        let code = JoinCode::random()?;
        let detail = format!("until {}", time::text(expires_us));
        let entry = AuditEntry::new(now_us, actor, AuditAction::DeviceInvited, name, &detail)?;
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        delete_expired_codes(&mut transaction, now_us).await?;
        super::tokens::verify_unused(&mut transaction, name, now_us).await?;
        sqlx::query("INSERT INTO join_codes (code_hash, name, expires_us) VALUES ($1, $2, $3)")
            .bind(code.stored_hash())
            .bind(name.to_owned())
            .bind(expires_us)
            .execute(&mut *transaction)
            .await?;
        insert_entry(&mut transaction, &entry).await?;
        transaction.commit().await?;
        Ok(code)
    }

    /// Returns the invitations that a device can use, in order of their names.
    pub(crate) async fn open_invitations(
        &self,
        now_us: i64,
    ) -> Result<Vec<OpenInvitation>, CollectError> {
        let statement = "SELECT name, expires_us FROM join_codes WHERE expires_us > $1 \
                         ORDER BY name";
        let rows = sqlx::query(statement).bind(now_us).fetch_all(&self.pool).await?;
        let invitation = |row: &AnyRow| -> Result<_, sqlx::Error> {
            let (name, expires_us) = (row.try_get("name")?, row.try_get("expires_us")?);
            Ok(OpenInvitation { name, expires_us })
        };
        Ok(rows.iter().map(invitation).collect::<Result<_, _>>()?)
    }

    /// Uses up a join code; returns the token of the new device, and its secret.
    ///
    /// After a failure, the code is unused.
    pub(crate) async fn join(
        &self,
        request: &JoinRequest,
        now_us: i64,
    ) -> Result<(Token, String), CollectError> {
        let code = JoinCode::parse(&request.code).ok_or(CollectError::InvalidJoinCode)?;
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        let row =
            sqlx::query("SELECT name FROM join_codes WHERE code_hash = $1 AND expires_us > $2")
                .bind(code.stored_hash())
                .bind(now_us)
                .fetch_optional(&mut *transaction)
                .await?;
        let name: String = row.ok_or(CollectError::InvalidJoinCode)?.try_get("name")?;
        let consent = current_consent(&mut transaction).await?;
        if request.consent != consent.version {
            return Err(CollectError::OtherConsent { current: consent.version });
        }
        let deleted = sqlx::query("DELETE FROM join_codes WHERE code_hash = $1")
            .bind(code.stored_hash())
            .execute(&mut *transaction)
            .await?;
        // Of two simultaneous requests with the same code, only one deletes its row.
        if deleted.rows_affected() == 0 {
            return Err(CollectError::InvalidJoinCode);
        }
        delete_expired_codes(&mut transaction, now_us).await?;
        let created = insert_new_token(&mut transaction, &name, Role::Device, now_us).await?;
        // A later program may have another default, so the accepted text is stored.
        insert_consent(&mut transaction, &consent, now_us).await?;
        insert_device(&DeviceRow {
            token: created.0.id.clone(),
            consent: consent.version,
            version: short(&request.version),
            platform: short(&request.platform),
            joined_us: now_us,
            withdrawn_us: None,
        })
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(created)
    }

    /// Returns all devices, those with revoked tokens included; the newest is first.
    pub(crate) async fn devices(&self) -> Result<Vec<Device>, CollectError> {
        let rows = devices("").fetch_all(&self.pool).await?;
        Ok(rows.iter().map(device).collect::<Result<_, _>>()?)
    }

    /// Returns the device with this token.
    pub(crate) async fn device(&self, token: &str) -> Result<Option<Device>, CollectError> {
        let query = devices("WHERE d.token = $1").bind(token.to_owned());
        let row = query.fetch_optional(&self.pool).await?;
        Ok(row.as_ref().map(device).transpose()?)
    }

    /// Returns true if the device has accepted the current text, and has access.
    pub(crate) async fn has_consented(&self, token: &str) -> Result<bool, CollectError> {
        let statement = format!("SELECT token FROM devices WHERE {CONSENTED}");
        let query = sqlx::query(AssertSqlSafe(statement)).bind(token.to_owned());
        let query = query.bind(i64::from(DEFAULT_CONSENT_VERSION));
        Ok(query.fetch_optional(&self.pool).await?.is_some())
    }

    /// Notes that the owner of a device has accepted a text, which must be the current one.
    pub(crate) async fn accept_consent(
        &self,
        token: &str,
        accepted: u32,
        now_us: i64,
    ) -> Result<(), CollectError> {
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        let consent = current_consent(&mut transaction).await?;
        if accepted != consent.version {
            return Err(CollectError::OtherConsent { current: consent.version });
        }
        insert_consent(&mut transaction, &consent, now_us).await?;
        sqlx::query("UPDATE devices SET consent = $1, withdrawn_us = NULL WHERE token = $2")
            .bind(i64::from(accepted))
            .bind(token.to_owned())
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Ends the consent of a device's owner, so that no further result is accepted.
    pub(crate) async fn withdraw_consent(
        &self,
        token: &str,
        now_us: i64,
    ) -> Result<(), CollectError> {
        let statement = "UPDATE devices SET consent = 0, \
                         withdrawn_us = COALESCE(withdrawn_us, $1) WHERE token = $2";
        sqlx::query(statement).bind(now_us).bind(token.to_owned()).execute(&self.pool).await?;
        Ok(())
    }

    /// Returns true if the owner of the device with this token has withdrawn the consent.
    pub(crate) async fn has_withdrawn(&self, token: &str) -> Result<bool, CollectError> {
        let query = sqlx::query("SELECT token FROM devices WHERE token = $1 AND consent = 0");
        Ok(query.bind(token.to_owned()).fetch_optional(&self.pool).await?.is_some())
    }

    /// Returns the newest runs that a token uploaded.
    pub(crate) async fn runs_of(
        &self,
        token: &str,
        limit: i64,
    ) -> Result<Vec<RunEntry>, CollectError> {
        let statement = format!(
            "SELECT {RUN_COLUMNS}, {GROUP_COLUMNS} FROM runs r \
             JOIN run_groups g ON g.id = r.run_group WHERE r.uploader = $1 \
             ORDER BY r.started_us DESC, r.id DESC LIMIT $2"
        );
        let query = sqlx::query(AssertSqlSafe(statement)).bind(token.to_owned()).bind(limit);
        let rows = query.fetch_all(&self.pool).await?;
        Ok(rows.iter().map(entry).collect::<Result<_, _>>()?)
    }

    /// Removes the row of a device's run, and notes that its records have to be removed as well.
    pub(crate) async fn delete_device_run(
        &self,
        run: &RunEntry,
        token: &str,
    ) -> Result<(), CollectError> {
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        if remove_run(&mut transaction, run).await? {
            sqlx::query(
                "INSERT INTO deleted_runs (id, token) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            )
            .bind(run.id.clone())
            .bind(token.to_owned())
            .execute(&mut *transaction)
            .await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Returns the identifiers of runs whose rows a device has deleted. Another token may have
    /// uploaded the same run since.
    pub(crate) async fn deleted_runs(&self, token: &str) -> Result<Vec<String>, CollectError> {
        let rows = sqlx::query("SELECT id FROM deleted_runs WHERE token = $1 ORDER BY id")
            .bind(token.to_owned())
            .fetch_all(&self.pool)
            .await?;
        Ok(rows.iter().map(|row| row.try_get("id")).collect::<Result<_, _>>()?)
    }

    /// Ends the access of a device whose runs are deleted, and removes what it said of itself and
    /// its name in the audit log. `amounts` says how much was deleted.
    pub(crate) async fn remove_device(
        &self,
        token: &Token,
        amounts: &str,
        now_us: i64,
    ) -> Result<(), CollectError> {
        let (actor, action) = (Actor::device(), AuditAction::DeviceForgotten);
        let entry = AuditEntry::new(now_us, &actor, action, FORGOTTEN_DEVICE, amounts)?;
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        sqlx::query("UPDATE tokens SET revoked_us = $1 WHERE id = $2 AND revoked_us IS NULL")
            .bind(now_us)
            .bind(token.id.clone())
            .execute(&mut *transaction)
            .await?;
        end_revoked_sessions(&mut transaction).await?;
        for statement in [
            "UPDATE devices SET version = '', platform = '' WHERE token = $1",
            "DELETE FROM deleted_runs WHERE token = $1",
        ] {
            sqlx::query(statement).bind(token.id.clone()).execute(&mut *transaction).await?;
        }
        forget_name(&mut transaction, &token.name).await?;
        insert_entry(&mut transaction, &entry).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Revokes the token of a device, or ends an invitation.
    pub(crate) async fn revoke_device(
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
        let revoked = sqlx::query(
            "UPDATE tokens SET revoked_us = $1 \
             WHERE (name = $2 OR id = $2) AND role = $3 AND revoked_us IS NULL RETURNING name",
        )
        .bind(now_us)
        .bind(name.to_owned())
        .bind(Role::Device.name())
        .fetch_all(&mut *transaction)
        .await?;
        let mut entries = Vec::new();
        if ended.rows_affected() > 0 {
            entries.push((AuditAction::InvitationEnded, name.to_owned()));
        }
        for row in &revoked {
            entries.push((AuditAction::DeviceRevoked, row.try_get("name")?));
        }
        if entries.is_empty() {
            return Err(CollectError::NoDevice(name.to_owned()));
        }
        end_revoked_sessions(&mut transaction).await?;
        for (action, name) in entries {
            let entry = AuditEntry::new(now_us, actor, action, &name, "")?;
            insert_entry(&mut transaction, &entry).await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Returns the current consent text.
    pub(crate) async fn consent(&self) -> Result<ConsentText, CollectError> {
        let mut transaction = self.pool.begin().await?;
        let consent = current_consent(&mut transaction).await?;
        transaction.commit().await?;
        Ok(consent)
    }

    /// Stores a new consent text; returns its version. An unchanged text keeps its version.
    pub(crate) async fn set_consent(
        &self,
        text: &str,
        actor: &Actor,
        now_us: i64,
    ) -> Result<u32, CollectError> {
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        let current = current_consent(&mut transaction).await?;
        if current.text == text {
            return Ok(current.version);
        }
        insert_consent(&mut transaction, &current, now_us).await?;
        let new = ConsentText { version: current.version + 1, text: text.to_owned() };
        insert_consent(&mut transaction, &new, now_us).await?;
        let object = format!("version {}", new.version);
        let entry = AuditEntry::new(now_us, actor, AuditAction::ConsentChanged, &object, "")?;
        insert_entry(&mut transaction, &entry).await?;
        transaction.commit().await?;
        Ok(new.version)
    }

    /// Returns all stored consent texts, for a backup.
    pub(crate) async fn consent_rows(&self) -> Result<Vec<Consent>, CollectError> {
        let statement = "SELECT version, text, created_us FROM consents ORDER BY version";
        let rows = sqlx::query(statement).fetch_all(&self.pool).await?;
        let consent = |row: &AnyRow| -> Result<_, sqlx::Error> {
            let (version, text) = (version(row, "version")?, row.try_get("text")?);
            Ok(Consent { version, text, created_us: row.try_get("created_us")? })
        };
        Ok(rows.iter().map(consent).collect::<Result<_, _>>()?)
    }

    /// Adds a consent text of a backup, unless there is one with its version.
    pub(crate) async fn add_consent(&self, consent: Consent) -> Result<(), CollectError> {
        let Consent { version, text, created_us } = consent;
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        insert_consent(&mut transaction, &ConsentText { version, text }, created_us).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Returns all devices without their tokens, for a backup.
    pub(crate) async fn device_rows(&self) -> Result<Vec<DeviceRow>, CollectError> {
        let statement = "SELECT token, consent, version, platform, joined_us, withdrawn_us \
                         FROM devices ORDER BY token";
        let rows = sqlx::query(statement).fetch_all(&self.pool).await?;
        Ok(rows.iter().map(device_row).collect::<Result<_, _>>()?)
    }

    /// Adds a device of a backup, unless it exists.
    pub(crate) async fn add_device(&self, device: &DeviceRow) -> Result<(), CollectError> {
        insert_device(device).execute(&self.pool).await?;
        Ok(())
    }
}

/// Selects devices with the amounts of their runs.
fn devices(condition: &str) -> super::runs::AnyQuery<'static> {
    sqlx::query(AssertSqlSafe(format!(
        "SELECT {TOKEN_COLUMNS}, d.token, d.consent, d.version, d.platform, d.joined_us, d.withdrawn_us, \
         (SELECT COUNT(*) FROM runs r WHERE r.uploader = d.token) AS runs, \
         (SELECT CAST(COALESCE(SUM(r.stored_bytes), 0) AS BIGINT) FROM runs r \
         WHERE r.uploader = d.token) AS bytes \
         FROM devices d JOIN tokens t ON t.id = d.token {condition} \
         ORDER BY d.joined_us DESC, d.token"
    )))
}

fn insert_device(device: &DeviceRow) -> super::runs::AnyQuery<'static> {
    let DeviceRow { token, consent, version, platform, joined_us, withdrawn_us } = device.clone();
    sqlx::query(
        "INSERT INTO devices (token, consent, version, platform, joined_us, withdrawn_us) \
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
    )
    .bind(token)
    .bind(i64::from(consent))
    .bind(version)
    .bind(platform)
    .bind(joined_us)
    .bind(withdrawn_us)
}
