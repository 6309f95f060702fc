//! Tokens, login links and sessions of browsers.

use sqlx::any::AnyRow;
use sqlx::{Any, Row as _, Transaction};

use super::Catalogue;
use super::audit::insert_entry;
use crate::access::{Role, Token};
use crate::audit::{Actor, AuditAction, AuditEntry};
use crate::error::CollectError;
use crate::secret::{self, TOKEN_PREFIX, stored_hash};

/// Lifetime of a login link.
const LINK_LIFETIME_US: i64 = 600 * 1_000_000;
/// Lifetime of a session.
const SESSION_LIFETIME_US: i64 = 30 * crate::time::DAY_US;
/// Resolution of a token's last use, which saves a write for each request.
const USE_RESOLUTION_US: i64 = 60 * 1_000_000;

/// Columns of a token, for [`token`].
pub(super) const TOKEN_COLUMNS: &str =
    "t.id, t.name, t.role, t.created_us, t.used_us, t.revoked_us";

/// A browser that is logged in.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) token: Token,
    /// Value that every form of the session contains.
    pub(crate) csrf: String,
}

fn role(row: &AnyRow) -> Result<Role, sqlx::Error> {
    let role: String = row.try_get("role")?;
    role.parse().map_err(|error: String| sqlx::Error::Decode(error.into()))
}

pub(super) fn token(row: &AnyRow) -> Result<Token, sqlx::Error> {
    Ok(Token {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        role: role(row)?,
        created_us: row.try_get("created_us")?,
        used_us: row.try_get("used_us")?,
        revoked_us: row.try_get("revoked_us")?,
    })
}

/// Fails if a valid token or an open invitation has this name.
pub(super) async fn verify_unused(
    transaction: &mut Transaction<'_, Any>,
    name: &str,
    now_us: i64,
) -> Result<(), CollectError> {
    let tokens = sqlx::query("SELECT id FROM tokens WHERE name = $1 AND revoked_us IS NULL");
    let tokens = tokens.bind(name.to_owned());
    if tokens.fetch_optional(&mut **transaction).await?.is_some() {
        return Err(CollectError::TokenExists(name.to_owned()));
    }
    let codes = sqlx::query("SELECT name FROM join_codes WHERE name = $1 AND expires_us > $2");
    let codes = codes.bind(name.to_owned()).bind(now_us);
    if codes.fetch_optional(&mut **transaction).await?.is_some() {
        return Err(CollectError::InvitationExists(name.to_owned()));
    }
    Ok(())
}

/// Adds a token with an unused name; returns its secret, which is not stored.
pub(super) async fn insert_new_token(
    transaction: &mut Transaction<'_, Any>,
    name: &str,
    role: Role,
    now_us: i64,
) -> Result<(Token, String), CollectError> {
    let secret = format!("{TOKEN_PREFIX}{}", secret::random()?);
    let id = secret::random_id()?;
    verify_unused(transaction, name, now_us).await?;
    sqlx::query(
        "INSERT INTO tokens (id, name, role, secret_hash, created_us) \
         VALUES ($1, $2, $3, $4, $5)",
    )
    .bind(id.clone())
    .bind(name.to_owned())
    .bind(role.name())
    .bind(stored_hash(&secret))
    .bind(now_us)
    .execute(&mut **transaction)
    .await?;
    let token = Token {
        id,
        name: name.to_owned(),
        role,
        created_us: now_us,
        used_us: None,
        revoked_us: None,
    };
    Ok((token, secret))
}

/// Ends the sessions and login links of revoked tokens.
pub(super) async fn end_revoked_sessions(
    transaction: &mut Transaction<'_, Any>,
) -> Result<(), CollectError> {
    for statement in [
        "DELETE FROM sessions WHERE token IN (SELECT id FROM tokens WHERE revoked_us IS NOT NULL)",
        "DELETE FROM login_links WHERE token IN (SELECT id FROM tokens WHERE revoked_us IS NOT NULL)",
    ] {
        sqlx::query(statement).execute(&mut **transaction).await?;
    }
    Ok(())
}

/// Revokes the valid tokens with this name or identifier, and ends their sessions; returns them.
async fn revoke_tokens(
    transaction: &mut Transaction<'_, Any>,
    name: &str,
    now_us: i64,
) -> Result<Vec<(String, Role)>, CollectError> {
    let rows = sqlx::query(
        "UPDATE tokens SET revoked_us = $1 WHERE (name = $2 OR id = $2) AND revoked_us IS NULL \
         RETURNING name, role",
    )
    .bind(now_us)
    .bind(name.to_owned())
    .fetch_all(&mut **transaction)
    .await?;
    end_revoked_sessions(transaction).await?;
    let revoked =
        |row: &AnyRow| -> Result<_, sqlx::Error> { Ok((row.try_get("name")?, role(row)?)) };
    Ok(rows.iter().map(revoked).collect::<Result<_, _>>()?)
}

/// Adds an entry for each revoked token; that of a device is about the device.
async fn log_revocations(
    transaction: &mut Transaction<'_, Any>,
    revoked: &[(String, Role)],
    actor: &Actor,
    now_us: i64,
) -> Result<(), CollectError> {
    for (name, role) in revoked {
        let (action, detail) = match role {
            Role::Device => (AuditAction::DeviceRevoked, ""),
            Role::Viewer | Role::Uploader | Role::Admin | Role::Server => {
                (AuditAction::TokenRevoked, role.name())
            }
        };
        insert_entry(transaction, &AuditEntry::new(now_us, actor, action, name, detail)?).await?;
    }
    Ok(())
}

impl Catalogue {
    /// Creates a token and returns its secret, which is not stored.
    pub(crate) async fn create_token_by(
        &self,
        (name, role): (&str, Role),
        actor: &Actor,
        now_us: i64,
    ) -> Result<(Token, String), CollectError> {
        let action = AuditAction::TokenCreated;
        let entry = AuditEntry::new(now_us, actor, action, name, role.name())?;
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        let created = insert_new_token(&mut transaction, name, role, now_us).await?;
        insert_entry(&mut transaction, &entry).await?;
        transaction.commit().await?;
        Ok(created)
    }

    /// Returns all tokens, the newest first.
    pub(crate) async fn tokens(&self) -> Result<Vec<Token>, CollectError> {
        let rows = sqlx::query(
            "SELECT t.id, t.name, t.role, t.created_us, t.used_us, t.revoked_us FROM tokens t \
             ORDER BY t.created_us DESC, t.id",
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.iter().map(token).collect::<Result<_, _>>()?)
    }

    /// Returns all tokens with the hashes of their secrets, for a backup.
    pub(crate) async fn token_rows(&self) -> Result<Vec<(Token, String)>, CollectError> {
        let rows = sqlx::query(
            "SELECT t.id, t.name, t.role, t.created_us, t.used_us, t.revoked_us, t.secret_hash \
             FROM tokens t ORDER BY t.id",
        )
        .fetch_all(&self.pool)
        .await?;
        let row = |row: &AnyRow| -> Result<_, sqlx::Error> {
            Ok((token(row)?, row.try_get("secret_hash")?))
        };
        Ok(rows.iter().map(row).collect::<Result<_, _>>()?)
    }

    /// Adds a token of a backup, unless it exists.
    pub(crate) async fn insert_token(
        &self,
        token: &Token,
        secret_hash: &str,
    ) -> Result<(), CollectError> {
        sqlx::query(
            "INSERT INTO tokens (id, name, role, secret_hash, created_us, used_us, revoked_us) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
        )
        .bind(token.id.clone())
        .bind(token.name.clone())
        .bind(token.role.name())
        .bind(secret_hash.to_owned())
        .bind(token.created_us)
        .bind(token.used_us)
        .bind(token.revoked_us)
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Revokes the valid token with this name or identifier, and ends its sessions.
    pub(crate) async fn revoke_token_by(
        &self,
        name: &str,
        actor: &Actor,
        now_us: i64,
    ) -> Result<(), CollectError> {
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        let revoked = revoke_tokens(&mut transaction, name, now_us).await?;
        if revoked.is_empty() {
            return Err(CollectError::NoToken(name.to_owned()));
        }
        log_revocations(&mut transaction, &revoked, actor, now_us).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Returns the valid token with this secret, and notes its use.
    pub(crate) async fn token_of(
        &self,
        secret: &str,
        now_us: i64,
    ) -> Result<Option<Token>, CollectError> {
        let Some(hash) = stored_hash(secret) else { return Ok(None) };
        let row = sqlx::query(
            "SELECT t.id, t.name, t.role, t.created_us, t.used_us, t.revoked_us FROM tokens t \
             WHERE t.secret_hash = $1 AND t.revoked_us IS NULL",
        )
        .bind(hash)
        .fetch_optional(&self.pool)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let token = token(&row)?;
        self.note_use(&token, now_us).await;
        Ok(Some(token))
    }

    /// Notes the use of a token. Best effort, so that reading works on a full disk.
    async fn note_use(&self, token: &Token, now_us: i64) {
        if token.used_us.is_none_or(|used| used + USE_RESOLUTION_US <= now_us) {
            let update = sqlx::query("UPDATE tokens SET used_us = $1 WHERE id = $2")
                .bind(now_us)
                .bind(token.id.clone())
                .execute(&self.pool);
            if let Err(error) = update.await {
                tracing::warn!("cannot note the use of a token: {error}");
            }
        }
    }

    /// Creates a code that logs a browser in once, with a new token of this name and role.
    pub(crate) async fn create_login_code(
        &self,
        (name, role): (&str, Role),
        actor: &Actor,
        now_us: i64,
    ) -> Result<String, CollectError> {
        let code = secret::random()?;
        let action = AuditAction::LoginLinkCreated;
        let entry = AuditEntry::new(now_us, actor, action, name, role.name())?;
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        let (token, _) = insert_new_token(&mut transaction, name, role, now_us).await?;
        sqlx::query("INSERT INTO login_links (code_hash, token, expires_us) VALUES ($1, $2, $3)")
            .bind(stored_hash(&code))
            .bind(token.id)
            .bind(now_us + LINK_LIFETIME_US)
            .execute(&mut *transaction)
            .await?;
        insert_entry(&mut transaction, &entry).await?;
        transaction.commit().await?;
        Ok(code)
    }

    /// Uses up a login code; returns its token, or `None` for an unknown, used or expired code.
    pub(crate) async fn consume_login_code(
        &self,
        code: &str,
        now_us: i64,
    ) -> Result<Option<Token>, CollectError> {
        let Some(hash) = stored_hash(code) else { return Ok(None) };
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        let row = sqlx::query(
            "SELECT t.id, t.name, t.role, t.created_us, t.used_us, t.revoked_us FROM tokens t \
             JOIN login_links l ON l.token = t.id \
             WHERE l.code_hash = $1 AND l.expires_us > $2 AND t.revoked_us IS NULL",
        )
        .bind(hash.clone())
        .bind(now_us)
        .fetch_optional(&mut *transaction)
        .await?;
        let deleted =
            sqlx::query("DELETE FROM login_links WHERE code_hash = $1 OR expires_us <= $2")
                .bind(hash)
                .bind(now_us)
                .execute(&mut *transaction)
                .await?;
        transaction.commit().await?;
        // Of two simultaneous requests with the same code, only one deletes its row.
        let row = row.filter(|_| deleted.rows_affected() > 0);
        Ok(row.as_ref().map(token).transpose()?)
    }

    /// Starts a session of a browser; returns its secret.
    pub(crate) async fn create_session(
        &self,
        token: &Token,
        now_us: i64,
    ) -> Result<String, CollectError> {
        let secret = secret::random()?;
        sqlx::query("DELETE FROM sessions WHERE expires_us <= $1")
            .bind(now_us)
            .execute(&self.pool)
            .await?;
        sqlx::query(
            "INSERT INTO sessions (secret_hash, token, csrf, expires_us) VALUES ($1, $2, $3, $4)",
        )
        .bind(stored_hash(&secret))
        .bind(token.id.clone())
        .bind(secret::random()?)
        .bind(now_us + SESSION_LIFETIME_US)
        .execute(&self.pool)
        .await?;
        Ok(secret)
    }

    /// Returns the session with this secret.
    pub(crate) async fn session(
        &self,
        secret: &str,
        now_us: i64,
    ) -> Result<Option<Session>, CollectError> {
        let Some(hash) = stored_hash(secret) else { return Ok(None) };
        let row = sqlx::query(
            "SELECT t.id, t.name, t.role, t.created_us, t.used_us, t.revoked_us, s.csrf \
             FROM sessions s JOIN tokens t ON t.id = s.token \
             WHERE s.secret_hash = $1 AND s.expires_us > $2 AND t.revoked_us IS NULL",
        )
        .bind(hash)
        .bind(now_us)
        .fetch_optional(&self.pool)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let session = Session { token: token(&row)?, csrf: row.try_get("csrf")? };
        self.note_use(&session.token, now_us).await;
        Ok(Some(session))
    }

    /// Ends the session with this secret.
    pub(crate) async fn end_session(&self, secret: &str) -> Result<(), CollectError> {
        sqlx::query("DELETE FROM sessions WHERE secret_hash = $1")
            .bind(stored_hash(secret))
            .execute(&self.pool)
            .await?;
        Ok(())
    }
}
