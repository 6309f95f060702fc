//! Rows as one Parquet file: a column for each parameter and each metric.
//!
//! `key`, `variant`, `world`, `transport` and `error` are texts, `seed` is a number. A parameter
//! is a text column with the parameter's name. For a quantity there is also a number (in base
//! units) called `NAME (number)`. Every metric is a number; one with the name of a parameter is
//! called `NAME (figure)`. Missing values are null. The file's metadata `towpath.parameters` and
//! `towpath.metrics` list the names of the columns. Equal rows give equal bytes.

mod pages;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::column::reader::ColumnReader;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, RowGroupMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;
use towpath_result::input::{DEFAULT_RESULT_LIMIT, InputError, ReadBudget};

use crate::row::{ENGINE_VERSION, Parameter, RunRow, present_name};

/// Columns that every table has.
const FIXED_COLUMNS: [&str; 6] = ["key", "variant", "world", "transport", "seed", "error"];
/// Memory of a cell while its table is read, in bytes: its definition level, and its value before
/// and after conversion. The text is not included.
const CELL_BYTES: u64 = 80;
/// Overhead of a memory allocation, in bytes.
const ALLOCATION_OVERHEAD_BYTES: u64 = 16;
const PARAMETERS_KEY: &str = "towpath.parameters";
const METRICS_KEY: &str = "towpath.metrics";
/// Name of [`METRICS_KEY`] in tables of earlier versions.
const FORMER_METRICS_KEY: &str = "towpath.figures";

/// Reason for an invalid table file.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// Not a readable Parquet file.
    #[error("{0}")]
    Parquet(ParquetError),
    /// A column that is missing or has another type.
    #[error("column `{0}` is missing, or is of another kind")]
    Column(String),
    /// The content exceeds the memory budget.
    #[error("{0}")]
    TooMuch(#[from] InputError),
    /// An environment variable with an invalid memory limit.
    #[error("{0}")]
    Limit(#[from] io::Error),
    /// Number of rows in the file, and the lower number of expected runs.
    #[error("it has {0} rows, and there are {1} runs")]
    TooManyRows(i64, usize),
    /// Unreadable metadata about the columns.
    #[error("it does not say which columns it has")]
    Metadata,
}

impl From<ParquetError> for TableError {
    fn from(error: ParquetError) -> Self {
        let ParquetError::External(inside) = error else { return Self::Parquet(error) };
        match inside.downcast() {
            Ok(refused) => Self::TooMuch(*refused),
            Err(inside) => Self::Parquet(ParquetError::External(inside)),
        }
    }
}

/// Returns true if a column has this name, so that a parameter may not use it.
pub(crate) fn is_taken(name: &str) -> bool {
    FIXED_COLUMNS.contains(&name) || name.ends_with(NUMBER_SUFFIX) || name.ends_with(METRIC_SUFFIX)
}

/// Returns the column of a metric. Parameters are named by people, so a metric with the same name
/// gets a suffix.
fn metric_column(metric: &str, is_parameter: bool) -> String {
    if is_parameter { format!("{metric}{METRIC_SUFFIX}") } else { metric.to_owned() }
}

const NUMBER_SUFFIX: &str = " (number)";
const METRIC_SUFFIX: &str = " (figure)";

/// Content of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum ColumnData {
    /// Texts, or `None` where absent.
    Texts(Vec<Option<String>>),
    /// Whole numbers, which are never absent.
    Wholes(Vec<i64>),
    /// Numbers, or `None` where absent.
    Numbers(Vec<Option<f64>>),
}

/// Returns a table as the bytes of a file; `metadata` is stored with it.
pub fn write(rows: &[RunRow], metadata: &[(&str, String)]) -> Result<Vec<u8>, TableError> {
    let parameters: BTreeSet<_> = rows.iter().flat_map(|row| row.parameters.keys()).collect();
    let metrics: BTreeSet<_> = rows.iter().flat_map(|row| row.metrics.keys()).collect();
    let columns = columns_of(rows, &parameters, &metrics);
    let names_json = |names: &BTreeSet<&String>| serde_json::json!(names).to_string();
    let mut key_values = vec![
        KeyValue::new("towpath.engine".to_owned(), ENGINE_VERSION.to_owned()),
        KeyValue::new(PARAMETERS_KEY.to_owned(), names_json(&parameters)),
        KeyValue::new(METRICS_KEY.to_owned(), names_json(&metrics)),
    ];
    key_values.extend(
        metadata.iter().map(|(name, text)| KeyValue::new((*name).to_owned(), text.clone())),
    );
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(ENGINE_VERSION.to_owned())
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_key_value_metadata(Some(key_values));
    let fields = columns.iter().map(|(name, column)| field(name, column).map(Arc::new));
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    let schema = Type::group_type_builder("row").with_fields(fields).build()?;
    let mut bytes = Vec::new();
    let properties = Arc::new(properties.build());
    let mut file = SerializedFileWriter::new(&mut bytes, Arc::new(schema), properties)?;
    let mut group = file.next_row_group()?;
    for (_, column) in columns {
        write_column(&mut group, column)?;
    }
    group.close()?;
    file.close()?;
    Ok(bytes)
}

/// Returns the columns of a table by name, in the order of the file.
pub fn columns(rows: &[RunRow]) -> Vec<(String, ColumnData)> {
    let parameters = rows.iter().flat_map(|row| row.parameters.keys()).collect();
    let metrics = rows.iter().flat_map(|row| row.metrics.keys()).collect();
    columns_of(rows, &parameters, &metrics)
}

fn columns_of(
    rows: &[RunRow],
    parameters: &BTreeSet<&String>,
    metrics: &BTreeSet<&String>,
) -> Vec<(String, ColumnData)> {
    let texts = |value_of: &dyn Fn(&RunRow) -> Option<String>| {
        ColumnData::Texts(rows.iter().map(value_of).collect())
    };
    let numbers = |value_of: &dyn Fn(&RunRow) -> Option<f64>| {
        ColumnData::Numbers(rows.iter().map(value_of).collect())
    };
    let seeds = rows.iter().map(|row| i64::try_from(row.seed).unwrap_or(i64::MAX)).collect();
    let mut columns = vec![
        ("key".to_owned(), texts(&|row| Some(row.key.clone()))),
        ("variant".to_owned(), texts(&|row| Some(row.variant.clone()))),
        ("world".to_owned(), texts(&|row| Some(row.world.to_string()))),
        ("transport".to_owned(), texts(&|row| Some(row.transport.to_string()))),
        ("seed".to_owned(), ColumnData::Wholes(seeds)),
        ("error".to_owned(), texts(&|row| row.error.clone())),
    ];
    for &name in parameters {
        let value_of = |row: &RunRow| row.parameters.get(name).cloned();
        columns.push((name.clone(), texts(&|row| value_of(row).map(|parameter| parameter.text))));
        if rows.iter().any(|row| value_of(row).is_some_and(|parameter| parameter.number.is_some()))
        {
            let number = numbers(&|row| value_of(row).and_then(|parameter| parameter.number));
            columns.push((format!("{name}{NUMBER_SUFFIX}"), number));
        }
    }
    for &name in metrics {
        let column = metric_column(name, parameters.contains(name));
        columns.push((column, numbers(&|row| row.metrics.get(name).copied())));
    }
    columns
}

fn field(name: &str, column: &ColumnData) -> Result<Type, ParquetError> {
    let (physical, logical) = match column {
        ColumnData::Texts(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        ColumnData::Wholes(_) => (Physical::INT64, None),
        ColumnData::Numbers(_) => (Physical::DOUBLE, None),
    };
    let repetition = match column {
        ColumnData::Wholes(_) => Repetition::REQUIRED,
        ColumnData::Texts(_) | ColumnData::Numbers(_) => Repetition::OPTIONAL,
    };
    Type::primitive_type_builder(name, physical)
        .with_logical_type(logical)
        .with_repetition(repetition)
        .build()
}

fn write_column<W: io::Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    column: ColumnData,
) -> Result<(), TableError> {
    let Some(mut writer) = group.next_column()? else { return Ok(()) };
    match column {
        ColumnData::Wholes(values) => {
            writer.typed::<Int64Type>().write_batch(&values, None, None)?;
        }
        ColumnData::Numbers(values) => {
            let levels: Vec<_> = values.iter().map(|value| i16::from(value.is_some())).collect();
            let values: Vec<_> = values.into_iter().flatten().collect();
            writer.typed::<DoubleType>().write_batch(&values, Some(&levels), None)?;
        }
        ColumnData::Texts(values) => {
            let levels: Vec<_> = values.iter().map(|value| i16::from(value.is_some())).collect();
            let values = values.into_iter().flatten();
            let values: Vec<_> = values.map(|text| ByteArray::from(text.into_bytes())).collect();
            writer.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None)?;
        }
    }
    writer.close()?;
    Ok(())
}

/// Reads the rows of a file written by [`write`], at most `max_rows`.
///
/// A highly compressible table can be tiny on disk, so the limit applies to memory: the rows are
/// taken from `budget`, and temporary memory is limited for each table.
pub fn read(
    bytes: Vec<u8>,
    max_rows: usize,
    budget: &ReadBudget,
) -> Result<Vec<RunRow>, TableError> {
    // The library panics on some files. Known cases are rejected before.
    let bytes = Bytes::from(bytes);
    let read = || read_checked(&bytes, max_rows, budget);
    catch_unwind(AssertUnwindSafe(read)).unwrap_or(Err(TableError::Metadata))
}

fn read_checked(
    bytes: &Bytes,
    max_rows: usize,
    budget: &ReadBudget,
) -> Result<Vec<RunRow>, TableError> {
    let reader = SerializedFileReader::new(bytes.clone())?;
    let file = reader.metadata().file_metadata();
    let count = usize::try_from(file.num_rows());
    if count.is_ok_and(|count| count > max_rows) {
        return Err(TableError::TooManyRows(file.num_rows(), max_rows));
    }
    let key_values = file.key_value_metadata().cloned().unwrap_or_default();
    let names_in = |key: &str| -> Result<Vec<String>, TableError> {
        let entry = key_values.iter().find(|entry| entry.key == key);
        let text = entry.and_then(|entry| entry.value.as_deref()).ok_or(TableError::Metadata)?;
        serde_json::from_str(text).map_err(|_| TableError::Metadata)
    };
    let (parameters, metrics) = (
        names_in(PARAMETERS_KEY)?,
        names_in(METRICS_KEY).or_else(|_| names_in(FORMER_METRICS_KEY))?,
    );
    let columns = file.schema_descr().num_columns();
    if parameters.len().saturating_add(metrics.len()) > columns {
        return Err(TableError::Metadata);
    }
    let decoded = Arc::new(ReadBudget::new(DEFAULT_RESULT_LIMIT)?);
    let mut rows = Vec::new();
    for number in 0..reader.num_row_groups() {
        let group = reader.metadata().row_group(number);
        let columns = read_columns(bytes, group, &decoded)?;
        let count = usize::try_from(group.num_rows()).unwrap_or(0);
        for index in 0..count {
            let row = row(&columns, index, (&parameters, &metrics))?;
            budget.take(memory_bytes(&row))?;
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Returns the memory of a row. Map nodes are about half full.
fn memory_bytes(row: &RunRow) -> u64 {
    let text = |text: &str| text.len() as u64 + ALLOCATION_OVERHEAD_BYTES;
    let entry = |bytes: usize| 2 * (size_of::<String>() + bytes) as u64;
    let parameters = row.parameters.iter().map(|(name, parameter)| {
        entry(size_of::<Parameter>()) + text(name) + text(&parameter.text)
    });
    let metrics = row.metrics.keys().map(|name| entry(size_of::<f64>()) + text(name));
    let texts = [&row.key, &row.variant].into_iter().chain(&row.error);
    size_of::<RunRow>() as u64
        + texts.map(|t| text(t)).sum::<u64>()
        + parameters.chain(metrics).sum::<u64>()
}

/// Reads every column of a group, by name.
fn read_columns(
    file: &Bytes,
    group: &RowGroupMetaData,
    budget: &Arc<ReadBudget>,
) -> Result<BTreeMap<String, ColumnData>, TableError> {
    let count = usize::try_from(group.num_rows()).unwrap_or(0);
    let mut columns = BTreeMap::new();
    for chunk in group.columns() {
        budget.take((count as u64).saturating_mul(CELL_BYTES))?;
        let name = chunk.column_descr().name().to_owned();
        let mut levels = Vec::new();
        let column = match pages::column(file, chunk, count, budget)? {
            ColumnReader::Int64ColumnReader(mut reader) => {
                let mut values = Vec::new();
                reader.read_records(count, None, None, &mut values)?;
                ColumnData::Wholes(values)
            }
            ColumnReader::DoubleColumnReader(mut reader) => {
                let mut values = Vec::new();
                reader.read_records(count, Some(&mut levels), None, &mut values)?;
                ColumnData::Numbers(insert_nulls(&levels, values))
            }
            ColumnReader::ByteArrayColumnReader(mut reader) => {
                let mut values = Vec::new();
                reader.read_records(count, Some(&mut levels), None, &mut values)?;
                let text = |bytes: ByteArray| {
                    // Many rows may share one text in the file.
                    budget.take(bytes.len() as u64)?;
                    Ok(String::from_utf8_lossy(bytes.data()).into_owned())
                };
                let texts = values.into_iter().map(text).collect::<Result<_, InputError>>();
                ColumnData::Texts(insert_nulls(&levels, texts?))
            }
            ColumnReader::BoolColumnReader(_)
            | ColumnReader::Int32ColumnReader(_)
            | ColumnReader::Int96ColumnReader(_)
            | ColumnReader::FloatColumnReader(_)
            | ColumnReader::FixedLenByteArrayColumnReader(_) => {
                return Err(TableError::Column(name));
            }
        };
        columns.insert(name, column);
    }
    Ok(columns)
}

/// Inserts `None` where the levels indicate a missing value.
fn insert_nulls<T>(levels: &[i16], values: Vec<T>) -> Vec<Option<T>> {
    let mut values = values.into_iter();
    levels.iter().map(|level| if *level > 0 { values.next() } else { None }).collect()
}

fn row(
    columns: &BTreeMap<String, ColumnData>,
    index: usize,
    (parameters, metrics): (&[String], &[String]),
) -> Result<RunRow, TableError> {
    let column_error = |name: &str| TableError::Column(name.to_owned());
    let text = |name: &str| match columns.get(name) {
        Some(ColumnData::Texts(texts)) => Ok(texts.get(index).cloned().flatten()),
        Some(ColumnData::Wholes(_) | ColumnData::Numbers(_)) | None => Err(column_error(name)),
    };
    let number = |name: &str| match columns.get(name) {
        Some(ColumnData::Numbers(numbers)) => numbers.get(index).copied().flatten(),
        Some(ColumnData::Texts(_) | ColumnData::Wholes(_)) | None => None,
    };
    let required = |name: &str| text(name)?.ok_or_else(|| column_error(name));
    let seed = match columns.get("seed") {
        Some(ColumnData::Wholes(seeds)) => seeds.get(index).copied(),
        Some(ColumnData::Texts(_) | ColumnData::Numbers(_)) | None => None,
    };
    // Worlds and transports are stored as the names that serde reads.
    let world =
        serde_json::from_value(required("world")?.into()).map_err(|_| column_error("world"))?;
    let transport = serde_json::from_value(required("transport")?.into());
    let mut row_parameters = BTreeMap::new();
    for name in parameters {
        if let Some(text) = text(name)? {
            let number = number(&format!("{name}{NUMBER_SUFFIX}"));
            row_parameters.insert(name.clone(), Parameter { text, number });
        }
    }
    Ok(RunRow {
        key: required("key")?,
        variant: required("variant")?,
        world,
        transport: transport.map_err(|_| column_error("transport"))?,
        seed: seed.and_then(|seed| u64::try_from(seed).ok()).ok_or_else(|| column_error("seed"))?,
        parameters: row_parameters,
        error: text("error")?,
        metrics: metrics
            .iter()
            .filter_map(|name| {
                let column = metric_column(name, parameters.contains(name));
                Some((present_name(name.clone()), number(&column)?))
            })
            .collect(),
    })
}

/// Returns the same columns as comma-separated text, for programs without Parquet.
pub fn csv(rows: &[RunRow]) -> String {
    let parameters: BTreeSet<_> = rows.iter().flat_map(|row| row.parameters.keys()).collect();
    let metrics: BTreeSet<_> = rows.iter().flat_map(|row| row.metrics.keys()).collect();
    let columns = columns_of(rows, &parameters, &metrics);
    let names: Vec<_> = columns.iter().map(|(name, _)| quoted(name)).collect();
    let mut out = names.join(",") + "\n";
    for index in 0..rows.len() {
        let cell = |(_, column): &(String, ColumnData)| match column {
            ColumnData::Texts(texts) => {
                texts.get(index).cloned().flatten().map(|text| quoted(&text))
            }
            ColumnData::Wholes(wholes) => wholes.get(index).map(ToString::to_string),
            ColumnData::Numbers(numbers) => {
                numbers.get(index).copied().flatten().map(|number| number.to_string())
            }
        };
        let cells: Vec<_> = columns.iter().map(|column| cell(column).unwrap_or_default()).collect();
        out += &cells.join(",");
        out.push('\n');
    }
    out
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use towpath_scenario::{Transport, World};

    use super::*;

    fn rows() -> Vec<RunRow> {
        let row = |key: &str| RunRow {
            key: key.to_owned(),
            variant: "MPTCP, \"M1\"".to_owned(),
            world: World::Sim,
            transport: Transport::Mptcp,
            seed: 3,
            parameters: BTreeMap::new(),
            error: None,
            metrics: BTreeMap::new(),
        };
        let parameter = |text: &str, number| {
            [("receive buffer".to_owned(), Parameter { text: text.to_owned(), number })]
        };
        let metrics = [("goodput".to_owned(), 9.5e6), ("recovery".to_owned(), f64::INFINITY)];
        let single_metric = [("path.wifi.goodput".to_owned(), 0.1)];
        vec![
            RunRow {
                parameters: parameter("600 KB", Some(6e5)).into(),
                metrics: metrics.into(),
                ..row("a")
            },
            RunRow {
                parameters: parameter("none", None).into(),
                error: Some("no\nway".to_owned()),
                ..row("b")
            },
            RunRow { metrics: single_metric.into(), transport: Transport::Tcp, ..row("c") },
        ]
    }

    fn read_all(bytes: Vec<u8>) -> Result<Vec<RunRow>, TableError> {
        read(bytes, usize::MAX, &ReadBudget::of(u64::MAX))
    }

    #[test]
    fn rows_survive_a_round_trip_and_equal_rows_are_equal_bytes() {
        let bytes = write(&rows(), &[("towpath.plan", "p".to_owned())]).unwrap();
        assert_eq!(bytes, write(&rows(), &[("towpath.plan", "p".to_owned())]).unwrap());
        assert_eq!(read_all(bytes).unwrap(), rows());
    }

    #[test]
    fn a_file_that_was_cut_off_is_refused() {
        let bytes = write(&rows(), &[]).unwrap();
        for length in [0, 4, 100, bytes.len() - 1] {
            let cut = bytes.get(..length).unwrap().to_vec();
            assert!(read_all(cut).is_err(), "{length}");
        }
    }

    #[test]
    fn decoded_tables_are_limited_even_for_small_files() {
        let row = RunRow { variant: "v".repeat(1_000), ..rows()[2].clone() };
        let bytes = write(&vec![row; 1_000], &[]).unwrap();
        assert!(bytes.len() < 10_000, "{}", bytes.len());
        let refused = read(bytes.clone(), 1_000, &ReadBudget::of(1_000_000)).unwrap_err();
        assert!(matches!(refused, TableError::TooMuch(_)), "{refused}");
        assert_eq!(read(bytes, 1_000, &ReadBudget::of(2_000_000)).unwrap().len(), 1_000);
    }

    #[test]
    fn a_table_has_no_more_rows_than_there_are_runs() {
        let bytes = write(&rows(), &[]).unwrap();
        let refused = read(bytes, 2, &ReadBudget::of(u64::MAX)).unwrap_err();
        assert_eq!(refused.to_string(), "it has 3 rows, and there are 2 runs");
    }

    /// Cells without a value take almost no space in a file: a column of them is one run of equal
    /// levels.
    #[test]
    fn cells_without_a_value_count_as_the_memory_they_take() {
        let row = RunRow { metrics: BTreeMap::new(), ..rows()[2].clone() };
        let mut table = vec![row; 40_000];
        table[0].metrics = (0..100).map(|number| (number.to_string(), 0.0)).collect();
        let bytes = write(&table, &[]).unwrap();
        assert!(bytes.len() < 100_000, "{}", bytes.len());
        let refused = read(bytes, 40_000, &ReadBudget::of(u64::MAX)).unwrap_err();
        assert!(matches!(refused, TableError::TooMuch(_)), "{refused}");
    }

    #[test]
    fn csv_quotes_what_would_break_a_line() {
        insta::assert_snapshot!(csv(&rows()));
    }

    #[test]
    fn a_metric_may_have_the_name_of_a_parameter() {
        let mut rows = rows();
        for row in &mut rows {
            let parameter = Parameter { text: "2".to_owned(), number: Some(2.0) };
            row.parameters.insert("subflows".to_owned(), parameter);
            row.metrics.insert("subflows".to_owned(), 1.0);
        }
        assert_eq!(read_all(write(&rows, &[]).unwrap()).unwrap(), rows);
        assert!(is_taken("key") && is_taken("x (number)") && !is_taken("subflows"));
    }
}
