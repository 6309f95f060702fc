//! Campaigns, and the outcomes of their planned runs.

use std::ops::RangeInclusive;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sqlx::any::AnyRow;
use sqlx::{Any, AssertSqlSafe, Row as _, Transaction};
use towpath_campaign::{CampaignState, Outcome, OutcomeState};

use super::Catalogue;
use super::audit::insert_entry;
use super::devices::lock_consented;
use super::runs::AnyQuery;
use crate::audit::AuditEntry;
use crate::campaign::{CampaignError, CampaignRow, OutcomeRow, StoredOutcome};
use crate::error::CollectError;

const CAMPAIGN_COLUMNS: &str = "name, text, created_us, signature, state, end_us";
const OUTCOME_COLUMNS: &str = "campaign, token, round, run, state, reason, detail, result, at_us";
/// Values of [`OUTCOME_COLUMNS`] of [`OutcomeState`].
pub(super) const STORED: &str = "stored";
pub(super) const INVALID: &str = "invalid";
pub(super) const MISSING: &str = "missing";

/// Returns the name of a variant in JSON, which is also that in the database.
fn word(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

pub(super) fn read_word<T: DeserializeOwned>(row: &AnyRow, column: &str) -> Result<T, sqlx::Error> {
    let word = Value::String(row.try_get(column)?);
    serde_json::from_value(word).map_err(|error| sqlx::Error::Decode(error.into()))
}

pub(super) fn number(row: &AnyRow, column: &str) -> Result<u32, sqlx::Error> {
    let value: i64 = row.try_get(column)?;
    u32::try_from(value).map_err(|error| sqlx::Error::Decode(error.into()))
}

fn campaign(row: &AnyRow) -> Result<CampaignRow, sqlx::Error> {
    Ok(CampaignRow {
        name: row.try_get("name")?,
        text: row.try_get("text")?,
        created_us: row.try_get("created_us")?,
        signature: row.try_get("signature")?,
        state: read_word(row, "state")?,
        end_us: row.try_get("end_us")?,
    })
}

fn outcome(row: &AnyRow) -> Result<OutcomeRow, sqlx::Error> {
    let state: String = row.try_get("state")?;
    let (result, detail) = (row.try_get("result")?, row.try_get("detail")?);
    let state = match state.as_str() {
        STORED => OutcomeState::Stored { result },
        INVALID => OutcomeState::Invalid { result, detail },
        MISSING => OutcomeState::Missing { reason: read_word(row, "reason")?, detail },
        _ => return Err(sqlx::Error::Decode(format!("unknown outcome `{state}`").into())),
    };
    let at_us: i64 = row.try_get("at_us")?;
    let outcome = Outcome {
        campaign: row.try_get("campaign")?,
        round: number(row, "round")?,
        run: number(row, "run")?,
        state,
        at_us: at_us.unsigned_abs(),
    };
    Ok(OutcomeRow { token: row.try_get("token")?, outcome })
}

/// Binds an outcome to the parameters `$1` to `$9` in the order of [`OUTCOME_COLUMNS`].
fn bind_outcome(statement: String, row: &OutcomeRow) -> AnyQuery<'static> {
    let OutcomeRow { token, outcome } = row;
    let (state, reason, detail, result) = match &outcome.state {
        OutcomeState::Stored { result } => (STORED, String::new(), "", result.as_str()),
        OutcomeState::Invalid { result, detail } => {
            (INVALID, String::new(), detail.as_str(), result.as_str())
        }
        OutcomeState::Missing { reason, detail } => (MISSING, word(reason), detail.as_str(), ""),
    };
    sqlx::query(AssertSqlSafe(statement))
        .bind(outcome.campaign.clone())
        .bind(token.clone())
        .bind(i64::from(outcome.round))
        .bind(i64::from(outcome.run))
        .bind(state)
        .bind(reason)
        .bind(detail.to_owned())
        .bind(result.to_owned())
        .bind(i64::try_from(outcome.at_us).unwrap_or(i64::MAX))
}

async fn find_campaign(
    transaction: &mut Transaction<'_, Any>,
    name: &str,
) -> Result<CampaignRow, CollectError> {
    let statement = format!("SELECT {CAMPAIGN_COLUMNS} FROM campaigns WHERE name = $1");
    let query = sqlx::query(AssertSqlSafe(statement)).bind(name.to_owned());
    let row = query.fetch_optional(&mut **transaction).await?;
    Ok(campaign(&row.ok_or_else(|| CampaignError::Unknown(name.to_owned()))?)?)
}

impl Catalogue {
    /// Adds a campaign; returns false if there is one with its name.
    pub(crate) async fn insert_campaign(&self, row: &CampaignRow) -> Result<bool, CollectError> {
        let CampaignRow { name, text, created_us, signature, state, end_us } = row.clone();
        let statement = format!(
            "INSERT INTO campaigns ({CAMPAIGN_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6) \
             ON CONFLICT DO NOTHING"
        );
        let inserted = sqlx::query(AssertSqlSafe(statement))
            .bind(name)
            .bind(text)
            .bind(created_us)
            .bind(signature)
            .bind(word(&state))
            .bind(end_us)
            .execute(&self.pool)
            .await?;
        Ok(inserted.rows_affected() > 0)
    }

    /// Returns all campaigns whose last run is planned after a time, in order of creation.
    pub(crate) async fn campaigns(&self, after_us: i64) -> Result<Vec<CampaignRow>, CollectError> {
        let statement = format!(
            "SELECT {CAMPAIGN_COLUMNS} FROM campaigns WHERE end_us > $1 ORDER BY created_us, name"
        );
        let query = sqlx::query(AssertSqlSafe(statement)).bind(after_us);
        let rows = query.fetch_all(&self.pool).await?;
        Ok(rows.iter().map(campaign).collect::<Result<_, _>>()?)
    }

    /// Returns the campaign with this name; fails if there is none.
    pub(crate) async fn campaign(&self, name: &str) -> Result<CampaignRow, CollectError> {
        let mut transaction = self.pool.begin().await?;
        let row = find_campaign(&mut transaction, name).await?;
        transaction.commit().await?;
        Ok(row)
    }

    /// Changes the state of a campaign that has not ended, and logs it. To end it again has no
    /// effect.
    pub(crate) async fn change_campaign(
        &self,
        name: &str,
        state: CampaignState,
        entry: &AuditEntry,
    ) -> Result<(), CollectError> {
        let now_us = entry.at_us;
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        let campaign = find_campaign(&mut transaction, name).await?;
        let has_ended = campaign.state == CampaignState::Ended || campaign.end_us <= now_us;
        let end_us = match state {
            CampaignState::Active | CampaignState::Paused if has_ended => {
                return Err(CampaignError::Ended(name.to_owned()).into());
            }
            CampaignState::Active | CampaignState::Paused => campaign.end_us,
            CampaignState::Ended => campaign.end_us.min(now_us),
        };
        sqlx::query("UPDATE campaigns SET state = $1, end_us = $2 WHERE name = $3")
            .bind(word(&state))
            .bind(end_us)
            .bind(name.to_owned())
            .execute(&mut *transaction)
            .await?;
        insert_entry(&mut transaction, entry).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Adds outcomes of one device, or replaces them. A run that has a result keeps it: a missing
    /// one does not replace it.
    ///
    /// Fails for a device whose owner has not accepted the current consent text.
    pub(crate) async fn report_outcomes(
        &self,
        token: &str,
        rows: &[OutcomeRow],
    ) -> Result<(), CollectError> {
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        lock_consented(&mut transaction, token).await?;
        for row in rows {
            let statement = format!(
                "INSERT INTO outcomes ({OUTCOME_COLUMNS}) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
                 ON CONFLICT (campaign, token, round, run) DO UPDATE SET \
                 state = excluded.state, reason = excluded.reason, detail = excluded.detail, \
                 result = excluded.result, at_us = excluded.at_us \
                 WHERE excluded.state <> '{MISSING}' OR outcomes.state = '{MISSING}'"
            );
            bind_outcome(statement, row).execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Adds outcomes of a backup that are not here. Those of devices whose owners have withdrawn
    /// their consent are left out.
    pub(crate) async fn restore_outcomes(&self, rows: &[OutcomeRow]) -> Result<(), CollectError> {
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        for row in rows {
            let statement = format!(
                "INSERT INTO outcomes ({OUTCOME_COLUMNS}) \
                 SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9 \
                 WHERE EXISTS (SELECT 1 FROM devices WHERE token = $2 AND consent <> 0) \
                 ON CONFLICT DO NOTHING"
            );
            bind_outcome(statement, row).execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Returns the outcomes of a device in some rounds. Each one says if its result is here.
    pub(crate) async fn outcomes_of(
        &self,
        campaign: &str,
        token: &str,
        rounds: RangeInclusive<u32>,
    ) -> Result<Vec<StoredOutcome>, CollectError> {
        let statement = format!(
            "SELECT {OUTCOME_COLUMNS}, (SELECT COUNT(*) FROM runs r \
             WHERE r.id = o.result AND r.uploader = o.token) AS uploaded \
             FROM outcomes o WHERE campaign = $1 AND token = $2 AND round BETWEEN $3 AND $4"
        );
        let query = sqlx::query(AssertSqlSafe(statement));
        let query = query.bind(campaign.to_owned()).bind(token.to_owned());
        let query = query.bind(i64::from(*rounds.start())).bind(i64::from(*rounds.end()));
        let rows = query.fetch_all(&self.pool).await?;
        let stored = |row: &AnyRow| -> Result<_, sqlx::Error> {
            let uploaded: i64 = row.try_get("uploaded")?;
            Ok(StoredOutcome { outcome: outcome(row)?.outcome, is_uploaded: uploaded > 0 })
        };
        Ok(rows.iter().map(stored).collect::<Result<_, _>>()?)
    }

    /// Returns the next outcomes after one, for a backup; `None` for the first ones.
    pub(crate) async fn outcomes_after(
        &self,
        last: Option<&OutcomeRow>,
        limit: i64,
    ) -> Result<Vec<OutcomeRow>, CollectError> {
        let statement = format!(
            "SELECT {OUTCOME_COLUMNS} FROM outcomes \
             WHERE (campaign, token, round, run) > ($1, $2, $3, $4) \
             ORDER BY campaign, token, round, run LIMIT $5"
        );
        let (campaign, token, round, run) = last.map_or(("", "", -1, -1), |row| {
            let Outcome { campaign, round, run, .. } = &row.outcome;
            (campaign.as_str(), row.token.as_str(), i64::from(*round), i64::from(*run))
        });
        let rows = sqlx::query(AssertSqlSafe(statement))
            .bind(campaign.to_owned())
            .bind(token.to_owned())
            .bind(round)
            .bind(run)
            .bind(limit)
            .fetch_all(&self.pool)
            .await?;
        Ok(rows.iter().map(outcome).collect::<Result<_, _>>()?)
    }

    /// Deletes all outcomes of a device; returns the number of those that are still there.
    pub(crate) async fn delete_outcomes(&self, token: &str) -> Result<u64, CollectError> {
        sqlx::query("DELETE FROM outcomes WHERE token = $1")
            .bind(token.to_owned())
            .execute(&self.pool)
            .await?;
        let count = sqlx::query("SELECT COUNT(*) AS remaining FROM outcomes WHERE token = $1");
        let row = count.bind(token.to_owned()).fetch_one(&self.pool).await?;
        Ok(row.try_get::<i64, _>("remaining")?.unsigned_abs())
    }
}
