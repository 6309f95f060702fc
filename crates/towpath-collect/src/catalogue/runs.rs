//! Rows of runs: insertion, removal, and their counts by group and period.

use sqlx::any::AnyRow;
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe, Row as _, Transaction};

use super::Catalogue;
use super::devices::lock_consented;
use super::facts::{FactsRow, insert_facts, remove_facts};
use crate::access::Role;
use crate::entry::{RunEntry, RunGroup};
use crate::error::CollectError;
use crate::time::day;

/// Lengths of the periods for which runs are counted, in days.
const PERIODS: [i64; 2] = [DAY, BLOCK];
pub(super) const DAY: i64 = 1;
pub(super) const BLOCK: i64 = 32;

pub(super) const GROUP_COLUMNS: &str = "g.scenario, g.world, g.transport, g.host, g.server, \
     g.family, g.version, g.outcome";
pub(super) const RUN_COLUMNS: &str = "r.id, r.content_hash, r.received_us, r.started_us, r.name, \
     r.stack, r.congestion_control, r.patterns, r.kernel, r.seed, r.repetition, r.scenario_hash, \
     r.verdict, r.multipath, r.duration_us, r.goodput_bps, r.delay_p50_us, r.delay_p99_us, \
     r.stall_us, r.recovery_us, r.connect_us, r.retransmissions, r.warnings, r.records, \
     r.stored_bytes, r.expanded_bytes";

impl Catalogue {
    /// Adds a run; returns false if the catalogue has it already.
    ///
    /// The facts of a device's run are added as well if the collector has their campaign.
    /// Fails for a device whose owner has not accepted the current consent text. `None` as the role
    /// adds a run of a backup, whose uploader may have lost its access since.
    pub(crate) async fn insert_run(
        &self,
        run: &RunEntry,
        (uploader, role): (&str, Option<Role>),
        facts: Option<&FactsRow>,
    ) -> Result<bool, CollectError> {
        let group_id = run.group.id();
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        if role == Some(Role::Device) {
            lock_consented(&mut transaction, uploader).await?;
        }
        insert_group(&group_id, &run.group).execute(&mut *transaction).await?;
        let inserted = insert(run, &group_id, uploader).execute(&mut *transaction).await?;
        if inserted.rows_affected() == 0 {
            transaction.rollback().await?;
            return Ok(false);
        }
        change_counts(&mut transaction, &group_id, run.started_us, 1).await?;
        if let Some(facts) = facts.filter(|_| role == Some(Role::Device)) {
            insert_facts(&mut transaction, facts).await?;
        }
        transaction.commit().await?;
        Ok(true)
    }

    /// Returns the run with this identifier.
    pub(crate) async fn run(&self, id: &str) -> Result<Option<RunEntry>, CollectError> {
        let statement = format!(
            "SELECT {RUN_COLUMNS}, {GROUP_COLUMNS} FROM runs r \
             JOIN run_groups g ON g.id = r.run_group WHERE r.id = $1"
        );
        let row = sqlx::query(AssertSqlSafe(statement)).bind(id).fetch_optional(&self.pool).await?;
        Ok(row.as_ref().map(entry).transpose()?)
    }

    /// Returns runs in the order of their identifiers, with the tokens that uploaded them.
    pub(crate) async fn runs_after(
        &self,
        id: &str,
        limit: i64,
    ) -> Result<Vec<(RunEntry, String)>, CollectError> {
        let statement = format!(
            "SELECT {RUN_COLUMNS}, {GROUP_COLUMNS}, r.uploader FROM runs r \
             JOIN run_groups g ON g.id = r.run_group WHERE r.id > $1 ORDER BY r.id LIMIT $2"
        );
        let query = sqlx::query(AssertSqlSafe(statement)).bind(id.to_owned()).bind(limit);
        let rows = query.fetch_all(&self.pool).await?;
        let row = |row: &AnyRow| -> Result<_, sqlx::Error> {
            Ok((entry(row)?, row.try_get("uploader")?))
        };
        Ok(rows.iter().map(row).collect::<Result<_, _>>()?)
    }

    /// Returns the number of all runs.
    pub(crate) async fn count(&self) -> Result<i64, CollectError> {
        let row =
            sqlx::query("SELECT CAST(COALESCE(SUM(runs), 0) AS BIGINT) AS runs FROM run_groups")
                .fetch_one(&self.pool)
                .await?;
        Ok(row.try_get("runs")?)
    }

    /// Removes the row of a run, its facts and its counts.
    pub(crate) async fn delete_run(&self, run: &RunEntry) -> Result<(), CollectError> {
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        remove_run(&mut transaction, run).await?;
        transaction.commit().await?;
        Ok(())
    }
}

/// Removes the row of a run, its facts and its counts; returns false if there is no such row.
///
/// A group without runs is removed as well, since it has the name of a host.
pub(super) async fn remove_run(
    transaction: &mut Transaction<'_, Any>,
    run: &RunEntry,
) -> Result<bool, CollectError> {
    remove_facts(transaction, &run.id).await?;
    let deleted = sqlx::query("DELETE FROM runs WHERE id = $1")
        .bind(run.id.clone())
        .execute(&mut **transaction)
        .await?;
    if deleted.rows_affected() == 0 {
        return Ok(false);
    }
    let group_id = run.group.id();
    change_counts(transaction, &group_id, run.started_us, -1).await?;
    for statement in [
        "DELETE FROM period_counts WHERE run_group IN \
         (SELECT id FROM run_groups WHERE id = $1 AND runs = 0)",
        "DELETE FROM run_groups WHERE id = $1 AND runs = 0",
    ] {
        sqlx::query(statement).bind(group_id.clone()).execute(&mut **transaction).await?;
    }
    Ok(true)
}

/// Adds `by` to the counts of a run's group and periods.
async fn change_counts(
    transaction: &mut Transaction<'_, Any>,
    group_id: &str,
    started_us: i64,
    by: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE run_groups SET runs = runs + $1 WHERE id = $2")
        .bind(by)
        .bind(group_id.to_owned())
        .execute(&mut **transaction)
        .await?;
    for days in PERIODS {
        sqlx::query(
            "INSERT INTO period_counts (days, period, run_group, runs) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (days, period, run_group) DO UPDATE \
             SET runs = period_counts.runs + excluded.runs",
        )
        .bind(days)
        .bind(day(started_us).div_euclid(days))
        .bind(group_id.to_owned())
        .bind(by)
        .execute(&mut **transaction)
        .await?;
    }
    Ok(())
}

pub(super) type AnyQuery<'a> = Query<'a, Any, sqlx::any::AnyArguments>;

/// Adds a group, or locks it: a simultaneous removal of its last run must not remove it.
fn insert_group<'a>(id: &str, group: &RunGroup) -> AnyQuery<'a> {
    let RunGroup { scenario, world, transport, host, server, family, version, outcome } =
        group.clone();
    sqlx::query(
        "INSERT INTO run_groups (id, scenario, world, transport, host, server, family, version, \
         outcome, runs) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0) \
         ON CONFLICT (id) DO UPDATE SET runs = run_groups.runs",
    )
    .bind(id.to_owned())
    .bind(scenario)
    .bind(world)
    .bind(transport)
    .bind(host)
    .bind(server)
    .bind(family)
    .bind(version)
    .bind(outcome)
}

fn insert<'a>(run: &RunEntry, group_id: &str, uploader: &str) -> AnyQuery<'a> {
    let run = run.clone();
    sqlx::query(
        "INSERT INTO runs (id, content_hash, run_group, uploader, received_us, started_us, name, \
         stack, congestion_control, patterns, kernel, seed, repetition, scenario_hash, verdict, \
         multipath, duration_us, goodput_bps, delay_p50_us, delay_p99_us, stall_us, recovery_us, \
         connect_us, retransmissions, warnings, records, stored_bytes, expanded_bytes) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, \
         $19, $20, $21, $22, $23, $24, $25, $26, $27, $28) ON CONFLICT DO NOTHING",
    )
    // sqlx 0.9 declares an absent `f64` as a `float4` of PostgreSQL. A statement that is prepared
    // with one then refuses every later value, so each insertion prepares its own.
    .persistent(false)
    .bind(run.id)
    .bind(run.content_hash)
    .bind(group_id.to_owned())
    .bind(uploader.to_owned())
    .bind(run.received_us)
    .bind(run.started_us)
    .bind(run.name)
    .bind(run.stack)
    .bind(run.congestion_control)
    .bind(run.patterns)
    .bind(run.kernel)
    .bind(run.seed)
    .bind(run.repetition)
    .bind(run.scenario_hash)
    .bind(run.verdict)
    .bind(run.multipath)
    .bind(run.duration_us)
    .bind(run.goodput_bps)
    .bind(run.delay_p50_us)
    .bind(run.delay_p99_us)
    .bind(run.stall_us)
    .bind(run.recovery_us)
    .bind(run.connect_us)
    .bind(run.retransmissions)
    .bind(run.warnings)
    .bind(run.records)
    .bind(run.stored_bytes)
    .bind(run.expanded_bytes)
}

pub(super) fn group(row: &AnyRow) -> Result<RunGroup, sqlx::Error> {
    Ok(RunGroup {
        scenario: row.try_get("scenario")?,
        world: row.try_get("world")?,
        transport: row.try_get("transport")?,
        host: row.try_get("host")?,
        server: row.try_get("server")?,
        family: row.try_get("family")?,
        version: row.try_get("version")?,
        outcome: row.try_get("outcome")?,
    })
}

pub(super) fn entry(row: &AnyRow) -> Result<RunEntry, sqlx::Error> {
    Ok(RunEntry {
        id: row.try_get("id")?,
        content_hash: row.try_get("content_hash")?,
        group: group(row)?,
        received_us: row.try_get("received_us")?,
        started_us: row.try_get("started_us")?,
        name: row.try_get("name")?,
        stack: row.try_get("stack")?,
        congestion_control: row.try_get("congestion_control")?,
        patterns: row.try_get("patterns")?,
        kernel: row.try_get("kernel")?,
        seed: row.try_get("seed")?,
        repetition: row.try_get("repetition")?,
        scenario_hash: row.try_get("scenario_hash")?,
        verdict: row.try_get("verdict")?,
        multipath: row.try_get("multipath")?,
        duration_us: row.try_get("duration_us")?,
        goodput_bps: row.try_get("goodput_bps")?,
        delay_p50_us: row.try_get("delay_p50_us")?,
        delay_p99_us: row.try_get("delay_p99_us")?,
        stall_us: row.try_get("stall_us")?,
        recovery_us: row.try_get("recovery_us")?,
        connect_us: row.try_get("connect_us")?,
        retransmissions: row.try_get("retransmissions")?,
        warnings: row.try_get("warnings")?,
        records: row.try_get("records")?,
        stored_bytes: row.try_get("stored_bytes")?,
        expanded_bytes: row.try_get("expanded_bytes")?,
    })
}
