//! Rows of runs: insertion, one page of the list, and counts.

use std::fmt::Write as _;

use serde::Serialize;
use sqlx::any::AnyRow;
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe, Row as _, Transaction};

use super::Catalogue;
use crate::entry::{RunEntry, RunGroup};
use crate::error::CollectError;
use crate::filter::{Facet, PAGE_RUNS, RunFilter, SERIES_RUNS, Sort};
use crate::time::{DAY_US, day};

/// Lengths of the periods for which runs are counted, in days.
const PERIODS: [i64; 2] = [DAY, BLOCK];
const DAY: i64 = 1;
const BLOCK: i64 = 32;
/// Upper bound of a day, in days since 1970: the year 4707.
const MAX_DAY: i64 = 1_000_000;
/// Share of all runs below which a list begins at the groups, not at the order.
const RARE_SHARE: i64 = 100;

/// Number of runs in a group, within the days of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupCount {
    pub(crate) group: RunGroup,
    pub(crate) runs: i64,
}

/// One page of the list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RunPage {
    pub(crate) runs: Vec<RunEntry>,
    /// Number of runs that match the query, on all pages.
    pub(crate) matching: i64,
    /// Number of runs within the days of the query, by group.
    pub(crate) groups: Vec<GroupCount>,
}

impl RunPage {
    /// Returns the number of the last page, from 0.
    pub(crate) fn last_page(&self) -> i64 {
        (self.matching - 1).max(0) / PAGE_RUNS
    }
}

/// One run of a series.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct SeriesPoint {
    pub(crate) id: String,
    pub(crate) started_us: i64,
    pub(crate) value: f64,
    /// True if the run completed and met its expectations.
    pub(crate) ok: bool,
}

const GROUP_COLUMNS: &str = "g.scenario, g.world, g.transport, g.host, g.server, g.family, \
     g.version, g.outcome";
const RUN_COLUMNS: &str = "r.id, r.content_hash, r.received_us, r.started_us, r.name, r.stack, \
     r.congestion_control, r.patterns, r.kernel, r.seed, r.repetition, r.scenario_hash, \
     r.verdict, r.multipath, r.duration_us, r.goodput_bps, r.delay_p50_us, r.delay_p99_us, \
     r.stall_us, r.recovery_us, r.connect_us, r.retransmissions, r.warnings, r.records, \
     r.stored_bytes, r.expanded_bytes";

impl Catalogue {
    /// Adds a run; returns false if the catalogue has it already.
    pub(crate) async fn insert_run(
        &self,
        run: &RunEntry,
        uploader: &str,
    ) -> Result<bool, CollectError> {
        let group_id = run.group.id();
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        insert_group(&group_id, &run.group).execute(&mut *transaction).await?;
        let inserted = insert(run, &group_id, uploader).execute(&mut *transaction).await?;
        if inserted.rows_affected() == 0 {
            transaction.rollback().await?;
            return Ok(false);
        }
        change_counts(&mut transaction, &group_id, run.started_us, 1).await?;
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

    /// Removes the row of a run and its counts.
    pub(crate) async fn delete_run(&self, run: &RunEntry) -> Result<(), CollectError> {
        let mut transaction = self.pool.begin_with(self.begin_writing()).await?;
        let deleted = sqlx::query("DELETE FROM runs WHERE id = $1")
            .bind(run.id.clone())
            .execute(&mut *transaction)
            .await?;
        if deleted.rows_affected() > 0 {
            change_counts(&mut transaction, &run.group.id(), run.started_us, -1).await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Returns one page of the list, with counts for every choice of the filter.
    pub(crate) async fn list(&self, filter: &RunFilter) -> Result<RunPage, CollectError> {
        let (groups, matching, is_rare) = self.matching(filter).await?;
        let runs = if matching == 0 { Vec::new() } else { self.page(filter, is_rare).await? };
        Ok(RunPage { runs, matching, groups })
    }

    /// Returns the newest matching runs that have the metric of the query's order, oldest first.
    pub(crate) async fn series(
        &self,
        filter: &RunFilter,
    ) -> Result<(RunPage, Vec<SeriesPoint>), CollectError> {
        let metric = if filter.sort == Sort::Time { Sort::Goodput } else { filter.sort };
        let filter = RunFilter { sort: metric, ..filter.clone() };
        let (groups, matching, is_rare) = self.matching(&filter).await?;
        let conditions = Conditions::of(&filter, is_rare);
        let column = metric.column();
        let statement = format!(
            "SELECT r.id, r.started_us, r.{column} AS value, g.outcome FROM \
             (SELECT id FROM runs r WHERE {} ORDER BY started_us DESC, id DESC \
             LIMIT {SERIES_RUNS}) chosen JOIN runs r ON r.id = chosen.id \
             JOIN run_groups g ON g.id = r.run_group ORDER BY r.started_us, r.id",
            conditions.text
        );
        let rows = conditions.bind(statement).fetch_all(&self.pool).await?;
        let point = |row: &AnyRow| -> Result<_, sqlx::Error> {
            let outcome: String = row.try_get("outcome")?;
            Ok(SeriesPoint {
                id: row.try_get("id")?,
                started_us: row.try_get("started_us")?,
                value: row.try_get("value")?,
                ok: outcome == "ok",
            })
        };
        let points = rows.iter().map(point).collect::<Result<_, _>>()?;
        Ok((RunPage { runs: Vec::new(), matching, groups }, points))
    }

    /// Returns the counts of all groups, the number of matching runs, and whether these are rare.
    async fn matching(
        &self,
        filter: &RunFilter,
    ) -> Result<(Vec<GroupCount>, i64, bool), CollectError> {
        let groups = self.group_counts(filter).await?;
        let (mut matching, mut total) = (0, 0);
        for count in &groups {
            total += count.runs;
            let accepted = Facet::ALL
                .into_iter()
                .all(|facet| filter.accepts(facet, facet_value(&count.group, facet)));
            matching += if accepted { count.runs } else { 0 };
        }
        Ok((groups, matching, matching < total / RARE_SHARE))
    }

    async fn group_counts(&self, filter: &RunFilter) -> Result<Vec<GroupCount>, CollectError> {
        let (mut statement, mut numbers) = (String::new(), Vec::new());
        if filter.since.is_none() && filter.until.is_none() {
            let _ = write!(
                statement,
                "SELECT {GROUP_COLUMNS}, g.runs FROM run_groups g WHERE g.runs > 0"
            ); // cannot fail
        } else {
            let since = filter.since.unwrap_or(0);
            let until = filter.until.unwrap_or(MAX_DAY).min(MAX_DAY);
            let mut parts = Vec::new();
            for range in period_ranges(since, until) {
                numbers.extend(range);
                let [days, first, last] = [2, 1, 0].map(|back| numbers.len() - back);
                parts.push(format!(
                    "SELECT run_group, runs FROM period_counts \
                     WHERE runs > 0 AND days = ${days} AND period BETWEEN ${first} AND ${last}"
                ));
            }
            if parts.is_empty() {
                return Ok(Vec::new());
            }
            // PostgreSQL sums integers to a type that sqlx's generic driver lacks.
            let _ = write!(
                statement,
                "SELECT {GROUP_COLUMNS}, c.runs FROM \
                 (SELECT run_group, CAST(SUM(runs) AS BIGINT) AS runs FROM ({}) p \
                 GROUP BY run_group) c JOIN run_groups g ON g.id = c.run_group",
                parts.join(" UNION ALL ")
            ); // cannot fail
        }
        let mut query = sqlx::query(AssertSqlSafe(statement));
        for number in numbers {
            query = query.bind(number);
        }
        let rows = query.fetch_all(&self.pool).await?;
        let count = |row: &AnyRow| -> Result<_, sqlx::Error> {
            Ok(GroupCount { group: group(row)?, runs: row.try_get("runs")? })
        };
        Ok(rows.iter().map(count).collect::<Result<_, _>>()?)
    }

    async fn page(&self, filter: &RunFilter, is_rare: bool) -> Result<Vec<RunEntry>, CollectError> {
        let conditions = Conditions::of(filter, is_rare);
        let column = filter.sort.column();
        let order = if filter.ascending { "ASC" } else { "DESC" };
        // The inner query needs indexes only, also for a page far down the list.
        let statement = format!(
            "SELECT {RUN_COLUMNS}, {GROUP_COLUMNS} FROM \
             (SELECT id FROM runs r WHERE {} ORDER BY {column} {order}, id {order} \
             LIMIT {PAGE_RUNS} OFFSET {}) chosen \
             JOIN runs r ON r.id = chosen.id JOIN run_groups g ON g.id = r.run_group \
             ORDER BY r.{column} {order}, r.id {order}",
            conditions.text,
            filter.page.saturating_mul(PAGE_RUNS)
        );
        let rows = conditions.bind(statement).fetch_all(&self.pool).await?;
        Ok(rows.iter().map(entry).collect::<Result<_, _>>()?)
    }
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

/// Returns ranges of periods that cover the days from `since` to `until`, each once: the length of
/// the period, the first and the last one. Whole blocks are preferred, since they are fewer.
fn period_ranges(since: i64, until: i64) -> Vec<[i64; 3]> {
    if since > until {
        return Vec::new();
    }
    let first_block = (since + BLOCK - 1).div_euclid(BLOCK);
    let end_block = (until + 1).div_euclid(BLOCK);
    if first_block >= end_block {
        return vec![[DAY, since, until]];
    }
    let ranges = [
        [DAY, since, first_block * BLOCK - 1],
        [BLOCK, first_block, end_block - 1],
        [DAY, end_block * BLOCK, until],
    ];
    ranges.into_iter().filter(|[_, first, last]| first <= last).collect()
}

/// Value of a placeholder.
enum Value {
    Text(String),
    Number(i64),
}

/// Condition of a statement; every value from outside is a placeholder.
struct Conditions {
    text: String,
    values: Vec<Value>,
}

impl Conditions {
    fn of(filter: &RunFilter, is_rare: bool) -> Self {
        let mut this = Self { text: "1 = 1".to_owned(), values: Vec::new() };
        if let Some(since) = filter.since {
            let number = this.placeholder(Value::Number(since.saturating_mul(DAY_US)));
            let _ = write!(this.text, " AND started_us >= {number}"); // cannot fail
        }
        if let Some(until) = filter.until {
            let end = until.saturating_add(1).saturating_mul(DAY_US);
            let number = this.placeholder(Value::Number(end));
            let _ = write!(this.text, " AND started_us < {number}"); // cannot fail
        }
        if filter.sort != Sort::Time {
            let _ = write!(this.text, " AND {} IS NOT NULL", filter.sort.column()); // cannot fail
        }
        if !filter.values.is_empty() {
            // An expression hides the column from the index of groups: the list then follows the
            // index of its order, and finds a full page soon.
            let column = if is_rare { "run_group" } else { "run_group || ''" };
            let _ = write!(this.text, " AND {column} IN (SELECT id FROM run_groups WHERE 1 = 1"); // cannot fail
            for (facet, values) in &filter.values {
                let placeholders: Vec<String> = values
                    .iter()
                    .map(|value| this.placeholder(Value::Text(value.clone())))
                    .collect();
                let list = placeholders.join(", ");
                let _ = write!(this.text, " AND {} IN ({list})", facet.name()); // cannot fail
            }
            this.text.push(')');
        }
        this
    }

    /// Returns the query of a statement that contains the condition.
    fn bind<'a>(self, statement: String) -> AnyQuery<'a> {
        let mut query = sqlx::query(AssertSqlSafe(statement));
        for value in self.values {
            query = match value {
                Value::Text(text) => query.bind(text),
                Value::Number(number) => query.bind(number),
            };
        }
        query
    }

    fn placeholder(&mut self, value: Value) -> String {
        self.values.push(value);
        format!("${}", self.values.len())
    }
}

/// Returns the value of a facet.
pub(crate) fn facet_value(group: &RunGroup, facet: Facet) -> &str {
    match facet {
        Facet::Transport => &group.transport,
        Facet::Scenario => &group.scenario,
        Facet::World => &group.world,
        Facet::Host => &group.host,
        Facet::Server => &group.server,
        Facet::Family => &group.family,
        Facet::Version => &group.version,
        Facet::Outcome => &group.outcome,
    }
}

type AnyQuery<'a> = Query<'a, Any, sqlx::any::AnyArguments>;

fn insert_group<'a>(id: &str, group: &RunGroup) -> AnyQuery<'a> {
    let RunGroup { scenario, world, transport, host, server, family, version, outcome } =
        group.clone();
    sqlx::query(
        "INSERT INTO run_groups (id, scenario, world, transport, host, server, family, version, \
         outcome, runs) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0) ON CONFLICT (id) DO NOTHING",
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

fn group(row: &AnyRow) -> Result<RunGroup, sqlx::Error> {
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

fn entry(row: &AnyRow) -> Result<RunEntry, sqlx::Error> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_periods_cover_each_day_once() {
        for (since, until) in
            [(0, 0), (0, 31), (1, 31), (5, 100), (31, 32), (32, 63), (33, 95), (9, 8), (40, 400)]
        {
            let mut days = Vec::new();
            for [length, first, last] in period_ranges(since, until) {
                days.extend(first * length..(last + 1) * length);
            }
            days.sort_unstable();
            assert_eq!(days, (since..=until).collect::<Vec<_>>(), "{since} to {until}");
        }
    }
}
