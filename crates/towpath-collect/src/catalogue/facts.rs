//! Facts of runs, which analyses of campaigns read without the records.
//!
//! An outcome of a device connects a run with the campaign. So a result counts for the device that
//! uploaded and reported it, and for a planned run only.

use sqlx::any::AnyRow;
use sqlx::{Any, AssertSqlSafe, Row as _, Transaction};
use towpath_analysis::FACTS_VERSION;

use super::Catalogue;
use super::campaigns::{INVALID, MISSING, STORED, number, read_word};
use crate::campaign::OutcomeKind;
use crate::error::CollectError;

/// Kind of an outcome in a row, if the result is not here.
const NOT_UPLOADED: &str = "not-uploaded";

/// Facts of a run in their stored form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FactsRow {
    /// Identifier of the run.
    pub(crate) run: String,
    /// Name of the campaign in the result.
    pub(crate) campaign: String,
    /// JSON without the device.
    pub(crate) facts: String,
}

/// Outcome of a campaign, with the facts of its run. Each further column makes reading a large
/// campaign slower.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CampaignRunRow {
    /// Identifier of the device's token.
    pub(crate) token: String,
    pub(crate) round: u32,
    pub(crate) run: u32,
    pub(crate) kind: OutcomeKind,
    /// Facts of the current version as JSON; `None` if they are not computed, or the result is not
    /// here.
    pub(crate) facts: Option<String>,
}

/// Result of an outcome that lacks facts of the current version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IncompleteRun {
    /// Identifier of the device's token.
    token: String,
    round: i64,
    run: i64,
    /// Identifier of the result.
    pub(crate) id: String,
}

/// Results of one round of a campaign on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CampaignRound {
    /// Name of the campaign.
    pub(crate) campaign: String,
    /// Name of the device.
    pub(crate) device: String,
    pub(crate) round: u32,
    /// Identifiers of the results, with the indices of their planned runs, in order of these.
    pub(crate) runs: Vec<(String, u32)>,
}

fn campaign_run(row: &AnyRow) -> Result<CampaignRunRow, sqlx::Error> {
    let number = |index: usize| {
        let value: i64 = row.try_get(index)?;
        u32::try_from(value).map_err(|error| sqlx::Error::Decode(error.into()))
    };
    let kind = match row.try_get::<&str, _>(3)? {
        STORED => OutcomeKind::Stored,
        INVALID => OutcomeKind::Invalid,
        NOT_UPLOADED => OutcomeKind::NotUploaded,
        _ => OutcomeKind::Missing(read_word(row, "kind")?),
    };
    let (round, run) = (number(1)?, number(2)?);
    Ok(CampaignRunRow { token: row.try_get(0)?, round, run, kind, facts: row.try_get(4)? })
}

/// Adds the facts of a new run if the collector has the campaign.
pub(super) async fn insert_facts(
    transaction: &mut Transaction<'_, Any>,
    row: &FactsRow,
) -> Result<(), sqlx::Error> {
    let FactsRow { run, campaign, facts } = row.clone();
    sqlx::query(
        "INSERT INTO run_facts (run, campaign, version, facts) SELECT $1, $2, $3, $4 \
         WHERE EXISTS (SELECT 1 FROM campaigns WHERE name = $2)",
    )
    .bind(run)
    .bind(campaign)
    .bind(FACTS_VERSION)
    .bind(facts)
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

/// Removes the facts of a run. A run with facts cannot be removed.
pub(super) async fn remove_facts(
    transaction: &mut Transaction<'_, Any>,
    run: &str,
) -> Result<(), sqlx::Error> {
    let statement = sqlx::query("DELETE FROM run_facts WHERE run = $1");
    statement.bind(run.to_owned()).execute(&mut **transaction).await?;
    Ok(())
}

impl Catalogue {
    /// Returns the next outcomes of a campaign after one, with the facts of their runs, in order of
    /// devices, rounds and runs; `None` for the first ones.
    pub(crate) async fn campaign_runs_after(
        &self,
        campaign: &str,
        last: Option<&CampaignRunRow>,
        limit: i64,
    ) -> Result<Vec<CampaignRunRow>, CollectError> {
        let statement = format!(
            "SELECT o.token, o.round, o.run, CASE WHEN o.state = '{MISSING}' THEN o.reason \
             WHEN r.id IS NULL THEN '{NOT_UPLOADED}' ELSE o.state END AS kind, f.facts \
             FROM outcomes o \
             LEFT JOIN runs r ON r.id = o.result AND r.uploader = o.token \
             LEFT JOIN run_facts f ON f.run = r.id AND f.version = $2 \
             WHERE o.campaign = $1 AND (o.token, o.round, o.run) > ($3, $4, $5) \
             ORDER BY o.token, o.round, o.run LIMIT $6"
        );
        let (token, round, run) = last.map_or(("", -1, -1), |row| {
            (row.token.as_str(), i64::from(row.round), i64::from(row.run))
        });
        let rows = sqlx::query(AssertSqlSafe(statement))
            .bind(campaign.to_owned())
            .bind(FACTS_VERSION)
            .bind(token.to_owned())
            .bind(round)
            .bind(run)
            .bind(limit)
            .fetch_all(&self.pool)
            .await?;
        Ok(rows.iter().map(campaign_run).collect::<Result<_, _>>()?)
    }

    /// Returns the number of results whose facts name a campaign.
    pub(crate) async fn count_facts(&self, campaign: &str) -> Result<u64, CollectError> {
        let query = sqlx::query(
            "SELECT COUNT(*) AS runs FROM run_facts WHERE campaign = $1 AND version = $2",
        );
        let query = query.bind(campaign.to_owned()).bind(FACTS_VERSION);
        let row = query.fetch_one(&self.pool).await?;
        Ok(row.try_get::<i64, _>("runs")?.unsigned_abs())
    }

    /// Returns the next results of a campaign after one that lack facts, in order of devices, rounds
    /// and runs; `None` for the first ones.
    pub(crate) async fn incomplete_runs_after(
        &self,
        campaign: &str,
        last: Option<&IncompleteRun>,
        limit: i64,
    ) -> Result<Vec<IncompleteRun>, CollectError> {
        let (token, round, run) =
            last.map_or(("", -1, -1), |last| (last.token.as_str(), last.round, last.run));
        let rows = sqlx::query(
            "SELECT o.token AS token, o.round AS round, o.run AS run, r.id AS id FROM outcomes o \
             JOIN runs r ON r.id = o.result AND r.uploader = o.token \
             WHERE o.campaign = $1 AND (o.token, o.round, o.run) > ($3, $4, $5) AND NOT EXISTS ( \
             SELECT 1 FROM run_facts f WHERE f.run = r.id AND f.version = $2) \
             ORDER BY o.token, o.round, o.run LIMIT $6",
        )
        .bind(campaign.to_owned())
        .bind(FACTS_VERSION)
        .bind(token.to_owned())
        .bind(round)
        .bind(run)
        .bind(limit)
        .fetch_all(&self.pool)
        .await?;
        let incomplete = |row: &AnyRow| -> Result<_, sqlx::Error> {
            let (token, id) = (row.try_get("token")?, row.try_get("id")?);
            let (round, run) = (row.try_get("round")?, row.try_get("run")?);
            Ok(IncompleteRun { token, round, run, id })
        };
        Ok(rows.iter().map(incomplete).collect::<Result<_, _>>()?)
    }

    /// Stores facts that were computed from the records, or replaces those of another version. Runs
    /// that are no longer here are left out.
    pub(crate) async fn store_facts(&self, rows: &[FactsRow]) -> Result<(), CollectError> {
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        for FactsRow { run, campaign, facts } in rows {
            sqlx::query(
                "INSERT INTO run_facts (run, campaign, version, facts) SELECT $1, $2, $3, $4 \
                 WHERE EXISTS (SELECT 1 FROM runs WHERE id = $1) ON CONFLICT (run) DO UPDATE SET \
                 campaign = excluded.campaign, version = excluded.version, facts = excluded.facts",
            )
            .bind(run.clone())
            .bind(campaign.clone())
            .bind(FACTS_VERSION)
            .bind(facts.clone())
            .execute(&mut *transaction)
            .await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Returns the round of a campaign to which a result belongs; `None` if it belongs to none.
    pub(crate) async fn runs_of_round(
        &self,
        run: &str,
        limit: i64,
    ) -> Result<Option<CampaignRound>, CollectError> {
        let rows = sqlx::query(
            "SELECT o.campaign AS campaign, t.name AS device, o.round AS round, o.run AS run, \
             r.id AS id FROM runs own JOIN tokens t ON t.id = own.uploader \
             JOIN outcomes a ON a.token = own.uploader AND a.result = own.id \
             JOIN outcomes o ON o.campaign = a.campaign AND o.token = a.token \
             AND o.round = a.round \
             JOIN runs r ON r.id = o.result AND r.uploader = o.token \
             WHERE own.id = $1 ORDER BY o.campaign, o.round, o.run LIMIT $2",
        )
        .bind(run.to_owned())
        .bind(limit)
        .fetch_all(&self.pool)
        .await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let mut round = CampaignRound {
            campaign: first.try_get("campaign")?,
            device: first.try_get("device")?,
            round: number(first, "round")?,
            runs: Vec::new(),
        };
        for row in &rows {
            // A device may have reported a result for several rounds.
            let campaign: String = row.try_get("campaign")?;
            if campaign == round.campaign && number(row, "round")? == round.round {
                round.runs.push((row.try_get("id")?, number(row, "run")?));
            }
        }
        Ok(Some(round))
    }
}
