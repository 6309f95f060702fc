//! Amounts of outcomes, for pages.

use std::ops::RangeInclusive;

use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::Catalogue;
use super::campaigns::{INVALID, MISSING, STORED, read_word};
use crate::campaign::{OutcomeCount, OutcomeKind};
use crate::error::CollectError;

fn amount(row: &AnyRow) -> Result<u64, sqlx::Error> {
    Ok(row.try_get::<i64, _>("amount")?.unsigned_abs())
}

fn outcome_count(row: &AnyRow) -> Result<OutcomeCount, sqlx::Error> {
    let state: String = row.try_get("state")?;
    let is_uploaded = row.try_get::<i64, _>("uploaded")? != 0;
    let kind = match (state.as_str(), is_uploaded) {
        (STORED, true) => OutcomeKind::Stored,
        (INVALID, true) => OutcomeKind::Invalid,
        (STORED | INVALID, false) => OutcomeKind::NotUploaded,
        (MISSING, _) => OutcomeKind::Missing(read_word(row, "reason")?),
        _ => return Err(sqlx::Error::Decode(format!("unknown outcome `{state}`").into())),
    };
    Ok(OutcomeCount { kind, outcomes: amount(row)? })
}

impl Catalogue {
    /// Counts the outcomes of a device in some rounds, by their kinds. A kind may be there twice.
    pub(crate) async fn count_outcomes(
        &self,
        campaign: &str,
        token: &str,
        rounds: RangeInclusive<u32>,
    ) -> Result<Vec<OutcomeCount>, CollectError> {
        // One search for all runs of the device is faster than one for each outcome.
        let statement = format!(
            "SELECT state, reason, uploaded, COUNT(*) AS amount FROM ( \
             SELECT o.state AS state, o.reason AS reason, \
             CAST(CASE WHEN o.state <> '{MISSING}' AND \
             o.result IN (SELECT r.id FROM runs r WHERE r.uploader = $2) THEN 1 ELSE 0 END AS BIGINT) \
             AS uploaded FROM outcomes o \
             WHERE o.campaign = $1 AND o.token = $2 AND o.round BETWEEN $3 AND $4 \
             ) AS reported GROUP BY state, reason, uploaded"
        );
        let rows = sqlx::query(AssertSqlSafe(statement))
            .bind(campaign.to_owned())
            .bind(token.to_owned())
            .bind(i64::from(*rounds.start()))
            .bind(i64::from(*rounds.end()))
            .fetch_all(&self.pool)
            .await?;
        Ok(rows.iter().map(outcome_count).collect::<Result<_, _>>()?)
    }

    /// Returns the most frequent reasons of a campaign's invalid runs, with their numbers.
    pub(crate) async fn invalid_reasons(
        &self,
        campaign: &str,
        limit: i64,
    ) -> Result<Vec<(String, u64)>, CollectError> {
        let statement = format!(
            "SELECT o.detail AS detail, COUNT(*) AS amount FROM outcomes o \
             WHERE o.campaign = $1 AND o.state = '{INVALID}' \
             AND EXISTS (SELECT 1 FROM runs r WHERE r.id = o.result AND r.uploader = o.token) \
             GROUP BY o.detail ORDER BY COUNT(*) DESC, o.detail LIMIT $2"
        );
        let query = sqlx::query(AssertSqlSafe(statement)).bind(campaign.to_owned()).bind(limit);
        let rows = query.fetch_all(&self.pool).await?;
        let reason =
            |row: &AnyRow| -> Result<_, sqlx::Error> { Ok((row.try_get("detail")?, amount(row)?)) };
        Ok(rows.iter().map(reason).collect::<Result<_, _>>()?)
    }
}
