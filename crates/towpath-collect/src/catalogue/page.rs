//! Lists of runs: one page, a series, and counts for the filter.
//!
//! A list never reads all runs. Small tables of counts tell how many runs match, and in which days
//! a page begins. Few matches are found by their groups and sorted. Many are found in the index of
//! their order.

use std::fmt::Write as _;

use serde::Serialize;
use sqlx::AssertSqlSafe;
use sqlx::Row as _;
use sqlx::any::AnyRow;
use utoipa::ToSchema;

use super::Catalogue;
use super::runs::{AnyQuery, BLOCK, DAY, GROUP_COLUMNS, RUN_COLUMNS, entry, group};
use crate::entry::{RunEntry, RunGroup};
use crate::error::CollectError;
use crate::filter::{Facet, PAGE_RUNS, RunFilter, SERIES_RUNS, Sort};
use crate::time::DAY_US;

/// Upper bound of a day, in days since 1970: the year 4707.
const MAX_DAY: i64 = 1_000_000;

/// Number of runs in a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupCount {
    pub(crate) group: RunGroup,
    /// Runs within the days of a query.
    pub(crate) runs: i64,
    /// Runs of all days.
    total: i64,
}

/// One page of the list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RunPage {
    pub(crate) runs: Vec<RunEntry>,
    /// Number of runs that match the query, on all pages.
    pub(crate) matching: i64,
    /// Number of runs within the days of the query, for every group.
    pub(crate) groups: Vec<GroupCount>,
}

impl RunPage {
    /// Returns the number of the last page, from 0.
    pub(crate) fn last_page(&self) -> i64 {
        (self.matching - 1).max(0) / PAGE_RUNS
    }

    /// Returns true if sorting all matches reads fewer rows than searching the index of an order
    /// for a page. The search reads `PAGE_RUNS · total / matching` rows on average.
    fn has_few_matches(&self) -> bool {
        let total = self.groups.iter().map(|count| count.total).sum::<i64>();
        self.matching.saturating_mul(self.matching) <= PAGE_RUNS.saturating_mul(total)
    }

    /// Returns a number of rows at the start of the list in which the first page probably lies.
    fn probable_rows(&self) -> i64 {
        let total = self.groups.iter().map(|count| count.runs).sum::<i64>();
        (2 * PAGE_RUNS).saturating_mul(total) / self.matching.max(1)
    }
}

/// One run of a series.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct SeriesPoint {
    /// Identifier of the run.
    pub(crate) id: String,
    /// Start of the run.
    pub(crate) started_us: i64,
    /// Metric of the run, in bits per second or microseconds.
    pub(crate) value: f64,
    /// True if the run completed and met its expectations.
    pub(crate) ok: bool,
}

impl Catalogue {
    /// Returns one page of the list, with counts for every choice of the filter.
    pub(crate) async fn list(&self, filter: &RunFilter) -> Result<RunPage, CollectError> {
        let mut page = self.counts(filter).await?;
        if page.matching > 0 {
            page.runs = self.page_runs(filter, &page).await?;
        }
        Ok(page)
    }

    /// Returns the newest matching runs that have the metric of the query's order, oldest first.
    pub(crate) async fn series(
        &self,
        filter: &RunFilter,
    ) -> Result<(RunPage, Vec<SeriesPoint>), CollectError> {
        let metric = if filter.sort == Sort::Time { Sort::Goodput } else { filter.sort };
        let mut filter =
            RunFilter { sort: Sort::Time, ascending: false, page: 0, ..filter.clone() };
        let page = self.counts(&filter).await?;
        // A series needs more rows than a page, but those of the index of times lie together.
        let is_few = page.has_few_matches();
        if !is_few && let Some(start) = self.page_start(&filter).await? {
            filter.until = start.filter.until;
        }
        let conditions = Conditions::of(&filter, metric, is_few);
        let (column, time) = (metric.column(), order_key("started_us", is_few));
        let statement = format!(
            "SELECT r.id, r.started_us, r.{column} AS value, g.outcome FROM \
             (SELECT id FROM runs r WHERE {} AND {} ORDER BY {time} DESC, id DESC \
             LIMIT {SERIES_RUNS}) chosen JOIN runs r ON r.id = chosen.id \
             JOIN run_groups g ON g.id = r.run_group ORDER BY r.started_us, r.id",
            conditions.rows, conditions.groups
        );
        let rows = bind(statement, conditions.values).fetch_all(&self.pool).await?;
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
        Ok((page, points))
    }

    /// Returns a page without its runs: the counts of all groups, and the number of matching runs.
    async fn counts(&self, filter: &RunFilter) -> Result<RunPage, CollectError> {
        let groups = self.group_counts(filter).await?;
        let is_match = |group: &RunGroup| {
            Facet::ALL.into_iter().all(|facet| filter.accepts(facet, facet_value(group, facet)))
        };
        let matches = groups.iter().filter(|count| is_match(&count.group));
        let matching = matches.map(|count| count.runs).sum();
        Ok(RunPage { runs: Vec::new(), matching, groups })
    }

    async fn group_counts(&self, filter: &RunFilter) -> Result<Vec<GroupCount>, CollectError> {
        let (mut statement, mut values) = (String::new(), Vec::new());
        if filter.since.is_none() && filter.until.is_none() {
            let _ = write!(
                statement,
                "SELECT {GROUP_COLUMNS}, g.runs AS total, g.runs FROM run_groups g \
                 WHERE g.runs > 0"
            ); // cannot fail
        } else {
            // PostgreSQL sums integers to a type that sqlx's generic driver lacks.
            let _ = write!(
                statement,
                "SELECT {GROUP_COLUMNS}, g.runs AS total, COALESCE(c.runs, 0) AS runs \
                 FROM run_groups g LEFT JOIN \
                 (SELECT run_group, CAST(SUM(runs) AS BIGINT) AS runs FROM ({}) p \
                 GROUP BY run_group) c ON c.run_group = g.id WHERE g.runs > 0",
                period_rows(&period_ranges(filter), &mut values)
            ); // cannot fail
        }
        let rows = bind(statement, values).fetch_all(&self.pool).await?;
        let count = |row: &AnyRow| -> Result<_, sqlx::Error> {
            let (runs, total) = (row.try_get("runs")?, row.try_get("total")?);
            Ok(GroupCount { group: group(row)?, runs, total })
        };
        Ok(rows.iter().map(count).collect::<Result<_, _>>()?)
    }

    async fn page_runs(
        &self,
        filter: &RunFilter,
        counts: &RunPage,
    ) -> Result<Vec<RunEntry>, CollectError> {
        let whole = PageStart::of(filter);
        if counts.has_few_matches() {
            return self.rows(&whole, AccessPath::Groups).await;
        }
        let is_first = filter.page == 0;
        if filter.sort != Sort::Time || (is_first && filter.values.is_empty()) {
            return self.rows(&whole, AccessPath::Order).await;
        }
        if is_first {
            let access = AccessPath::StartOfOrder { max_rows: counts.probable_rows() };
            let runs = self.rows(&whole, access).await?;
            if runs.len() >= PAGE_RUNS as usize {
                return Ok(runs);
            }
        }
        match self.page_start(filter).await? {
            Some(start) => self.rows(&start, AccessPath::Order).await,
            None => Ok(Vec::new()),
        }
    }

    /// Reads the rows of a page.
    async fn rows(
        &self,
        start: &PageStart,
        access: AccessPath,
    ) -> Result<Vec<RunEntry>, CollectError> {
        let PageStart { filter, offset } = start;
        let is_few = access == AccessPath::Groups;
        let Conditions { rows, groups, values } = Conditions::of(filter, filter.sort, is_few);
        let (column, order) = (filter.sort.column(), if filter.ascending { "ASC" } else { "DESC" });
        let source = match access {
            AccessPath::Groups | AccessPath::Order => "runs".to_owned(),
            AccessPath::StartOfOrder { max_rows } => format!(
                "(SELECT id, run_group, {column} FROM runs WHERE {rows} \
                 ORDER BY {column} {order}, id {order} LIMIT {max_rows})"
            ),
        };
        // The inner query needs indexes only, also for a page far down the list.
        let statement = format!(
            "SELECT {RUN_COLUMNS}, {GROUP_COLUMNS} FROM \
             (SELECT id FROM {source} s WHERE {rows} AND {groups} \
             ORDER BY {} {order}, id {order} LIMIT {PAGE_RUNS} OFFSET {offset}) chosen \
             JOIN runs r ON r.id = chosen.id JOIN run_groups g ON g.id = r.run_group \
             ORDER BY r.{column} {order}, r.id {order}",
            order_key(column, is_few)
        );
        let rows = bind(statement, values).fetch_all(&self.pool).await?;
        Ok(rows.iter().map(entry).collect::<Result<_, _>>()?)
    }

    /// Finds the days of a page in the order of time, so that a query skips all other days.
    ///
    /// Returns `None` for a page after the last one.
    async fn page_start(&self, filter: &RunFilter) -> Result<Option<PageStart>, CollectError> {
        let mut start = PageStart::of(filter);
        let periods = self.period_counts(filter, &period_ranges(filter)).await?;
        let Some((mut first, last)) = page_periods(&periods, start.offset) else { return Ok(None) };
        start.offset -= first.runs_before;
        if first.days > DAY {
            let range = [DAY, first.first_day(), first.last_day()];
            let days = self.period_counts(filter, &[range]).await?;
            let Some((day, _)) = page_periods(&days, start.offset) else { return Ok(None) };
            start.offset -= day.runs_before;
            first = day;
        }
        let (since, until) = if filter.ascending { (first, last) } else { (last, first) };
        start.filter.since = Some(since.first_day());
        start.filter.until = Some(until.last_day());
        Ok(Some(start))
    }

    /// Returns the number of matching runs in each period, in the order of the list.
    async fn period_counts(
        &self,
        filter: &RunFilter,
        ranges: &[[i64; 3]],
    ) -> Result<Vec<PeriodCount>, CollectError> {
        let mut values = Vec::new();
        let mut statement = format!(
            "SELECT days, period, CAST(SUM(runs) AS BIGINT) AS runs FROM ({}) p",
            period_rows(ranges, &mut values)
        );
        if !filter.values.is_empty() {
            let groups = matching_groups(filter, &mut values);
            let _ = write!(statement, " WHERE run_group IN ({groups})"); // cannot fail
        }
        let order = if filter.ascending { "ASC" } else { "DESC" };
        let _ = write!(statement, " GROUP BY days, period ORDER BY period * days {order}"); // cannot fail
        let rows = bind(statement, values).fetch_all(&self.pool).await?;
        let mut runs_before = 0;
        let count = |row: &AnyRow| -> Result<_, sqlx::Error> {
            let (days, period) = (row.try_get("days")?, row.try_get("period")?);
            let count = PeriodCount { days, period, runs: row.try_get("runs")?, runs_before };
            runs_before += count.runs;
            Ok(count)
        };
        Ok(rows.iter().map(count).collect::<Result<_, _>>()?)
    }
}

/// Index by which the database finds the rows of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AccessPath {
    /// Index of groups or times. All matches are sorted.
    Groups,
    /// Index of the list's order, until the page is full.
    Order,
    /// First rows of that index. The page has fewer runs if its matches lie further down.
    StartOfOrder { max_rows: i64 },
}

/// Place at which a page begins.
struct PageStart {
    /// The query, limited to the days of the page.
    filter: RunFilter,
    /// Number of matching runs within these days that precede the page.
    offset: i64,
}

impl PageStart {
    /// Returns the place of a page in the whole list.
    fn of(filter: &RunFilter) -> Self {
        Self { filter: filter.clone(), offset: filter.page.saturating_mul(PAGE_RUNS) }
    }
}

/// Number of matching runs in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PeriodCount {
    /// Length of the period.
    days: i64,
    period: i64,
    runs: i64,
    /// Number of runs in the periods that precede this one in the list.
    runs_before: i64,
}

impl PeriodCount {
    fn first_day(self) -> i64 {
        self.period.saturating_mul(self.days)
    }

    fn last_day(self) -> i64 {
        self.first_day().saturating_add(self.days - 1)
    }
}

/// Returns the periods with the first and the last run of the page that begins after `offset` runs.
fn page_periods(periods: &[PeriodCount], offset: i64) -> Option<(PeriodCount, PeriodCount)> {
    let is_before = |period: &&PeriodCount, runs: i64| period.runs_before + period.runs < runs;
    let first = periods.iter().find(|period| !is_before(period, offset + 1))?;
    let last = periods.iter().find(|period| !is_before(period, offset + PAGE_RUNS));
    Some((*first, *last.or(periods.last())?))
}

/// Returns ranges of periods that cover the days of a query, each once: the length of the period,
/// the first and the last one. Whole blocks are preferred, since they are fewer.
fn period_ranges(filter: &RunFilter) -> Vec<[i64; 3]> {
    let since = filter.since.unwrap_or(0);
    let until = filter.until.unwrap_or(MAX_DAY).min(MAX_DAY);
    let first_block = (since + BLOCK - 1).div_euclid(BLOCK);
    let end_block = (until + 1).div_euclid(BLOCK);
    let ranges = if first_block >= end_block {
        vec![[DAY, since, until]]
    } else {
        vec![
            [DAY, since, first_block * BLOCK - 1],
            [BLOCK, first_block, end_block - 1],
            [DAY, end_block * BLOCK, until],
        ]
    };
    ranges.into_iter().filter(|[_, first, last]| first <= last).collect()
}

/// Value of a placeholder.
enum Value {
    Text(String),
    Number(i64),
}

/// Adds a value and returns its placeholder.
fn placeholder(values: &mut Vec<Value>, value: Value) -> String {
    values.push(value);
    format!("${}", values.len())
}

/// Returns the query of a statement. Every value from outside is a placeholder.
fn bind<'a>(statement: String, values: Vec<Value>) -> AnyQuery<'a> {
    let mut query = sqlx::query(AssertSqlSafe(statement));
    for value in values {
        query = match value {
            Value::Text(text) => query.bind(text),
            Value::Number(number) => query.bind(number),
        };
    }
    query
}

/// Writes a query of all counts within ranges of periods.
fn period_rows(ranges: &[[i64; 3]], values: &mut Vec<Value>) -> String {
    let mut parts = Vec::new();
    for range in ranges {
        let [days, first, last] = range.map(|number| placeholder(values, Value::Number(number)));
        parts.push(format!(
            "SELECT days, period, run_group, runs FROM period_counts \
             WHERE runs > 0 AND days = {days} AND period BETWEEN {first} AND {last}"
        ));
    }
    if parts.is_empty() {
        parts.push("SELECT days, period, run_group, runs FROM period_counts WHERE 1 = 0".into());
    }
    parts.join(" UNION ALL ")
}

/// Writes a query of the groups that match.
fn matching_groups(filter: &RunFilter, values: &mut Vec<Value>) -> String {
    let mut statement = "SELECT id FROM run_groups WHERE 1 = 1".to_owned();
    for (facet, accepted) in &filter.values {
        let accepted = accepted.iter().map(|value| placeholder(values, Value::Text(value.clone())));
        let list = accepted.collect::<Vec<_>>().join(", ");
        let _ = write!(statement, " AND {} IN ({list})", facet.name()); // cannot fail
    }
    statement
}

/// Returns the expression of an order. A sum hides the column from the indexes of orders: the
/// database then finds few runs by their groups or days, and sorts them.
fn order_key(column: &str, is_few: bool) -> String {
    if is_few { format!("{column} + 0") } else { column.to_owned() }
}

/// Conditions of a statement.
struct Conditions {
    /// Condition of times, and of the metric of an order.
    rows: String,
    /// Condition of the group.
    groups: String,
    values: Vec<Value>,
}

impl Conditions {
    /// Writes the conditions of runs that match and have the metric of `sort`.
    fn of(filter: &RunFilter, sort: Sort, is_few: bool) -> Self {
        let (mut rows, mut groups) = ("1 = 1".to_owned(), "1 = 1".to_owned());
        let mut values = Vec::new();
        if let Some(since) = filter.since {
            let start = Value::Number(since.saturating_mul(DAY_US));
            let _ = write!(rows, " AND started_us >= {}", placeholder(&mut values, start)); // cannot fail
        }
        if let Some(until) = filter.until {
            let end = Value::Number(until.saturating_add(1).saturating_mul(DAY_US));
            let _ = write!(rows, " AND started_us < {}", placeholder(&mut values, end)); // cannot fail
        }
        if sort != Sort::Time {
            let _ = write!(rows, " AND {} IS NOT NULL", sort.column()); // cannot fail
        }
        if !filter.values.is_empty() {
            // An expression hides the column from the index of groups: the list then follows the
            // index of its order, and finds a full page soon.
            let column = if is_few { "run_group" } else { "run_group || ''" };
            groups = format!("{column} IN ({})", matching_groups(filter, &mut values));
        }
        Self { rows, groups, values }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_periods_cover_each_day_once() {
        for (since, until) in
            [(0, 0), (0, 31), (1, 31), (5, 100), (31, 32), (32, 63), (33, 95), (9, 8), (40, 400)]
        {
            let filter =
                RunFilter { since: Some(since), until: Some(until), ..RunFilter::default() };
            let mut days = Vec::new();
            for [length, first, last] in period_ranges(&filter) {
                days.extend(first * length..(last + 1) * length);
            }
            days.sort_unstable();
            assert_eq!(days, (since..=until).collect::<Vec<_>>(), "{since} to {until}");
        }
    }
}
