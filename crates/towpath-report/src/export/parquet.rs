//! Tables as Apache Parquet: typed columns, compressed, in one file for any number of results.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use serde_json::Value;
use towpath_result::store::StoredRun;

use super::{CellValue, Column, ColumnKind, ResultTable};

/// Rows that are collected in memory before they are written.
const GROUP_ROWS: usize = 50_000;
/// Reason why a file was not written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the table: {0}")]
pub struct TableError(#[from] ParquetError);

/// Writer of a table, whose rows are JSON objects.
#[derive(Debug)]
pub struct ParquetWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
    columns: Vec<Column>,
    values: Vec<ColumnValues>,
    rows: usize,
}

impl<W: Write + Send> ParquetWriter<W> {
    /// Begins a file.
    pub fn new(output: W, columns: Vec<Column>) -> Result<Self, TableError> {
        let fields = columns.iter().map(field).collect::<Result<Vec<_>, _>>()?;
        let schema = Type::group_type_builder("row").with_fields(fields).build()?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("towpath ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let file = SerializedFileWriter::new(output, Arc::new(schema), Arc::new(properties))?;
        let values = columns.iter().map(|column| ColumnValues::new(column.kind)).collect();
        Ok(Self { file, columns, values, rows: 0 })
    }

    /// Adds a row. Fields without a column are left out.
    pub fn add(&mut self, row: &Value) -> Result<(), TableError> {
        for (column, values) in self.columns.iter().zip(&mut self.values) {
            values.push(column.cell(row));
        }
        self.rows += 1;
        if self.rows >= GROUP_ROWS { self.write_group() } else { Ok(()) }
    }

    /// Writes the remaining rows and the end of the file; returns the output.
    pub fn finish(mut self) -> Result<W, TableError> {
        self.write_group()?;
        Ok(self.file.into_inner()?)
    }

    fn write_group(&mut self) -> Result<(), TableError> {
        if self.rows == 0 {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        for values in &mut self.values {
            let Some(mut writer) = group.next_column()? else { break };
            values.write(writer.untyped())?;
            writer.close()?;
            values.clear();
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }
}

/// Writer of one table of many results. Each row begins with the identifier of its run.
#[derive(Debug)]
pub struct ParquetTable<W: Write + Send> {
    table: ResultTable,
    writer: ParquetWriter<W>,
}

impl<W: Write + Send> ParquetTable<W> {
    /// Begins a file; `None` for a table whose columns depend on the run (see
    /// [`ResultTable::has_fixed_columns`]).
    pub fn new(output: W, table: ResultTable) -> Result<Option<Self>, TableError> {
        let Some(columns) = table.columns() else { return Ok(None) };
        Ok(Some(Self { table, writer: ParquetWriter::new(output, columns)? }))
    }

    /// Adds the rows of a run; `id` becomes the column `run`.
    pub fn add(&mut self, id: &str, run: &StoredRun) -> Result<(), TableError> {
        self.table.rows(id, run).iter().try_for_each(|row| self.writer.add(row))
    }

    /// Writes the end of the file; returns the output.
    pub fn finish(self) -> Result<W, TableError> {
        self.writer.finish()
    }
}

fn field(column: &Column) -> Result<Arc<Type>, ParquetError> {
    let (physical, logical) = match column.kind {
        ColumnKind::Integer => (Physical::INT64, None),
        ColumnKind::Number => (Physical::DOUBLE, None),
        ColumnKind::Boolean => (Physical::BOOLEAN, None),
        ColumnKind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
    };
    let builder = Type::primitive_type_builder(&column.name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical);
    Ok(Arc::new(builder.build()?))
}

/// Values of one column. Absent values have a definition level of 0 and no element.
#[derive(Debug)]
struct ColumnValues {
    levels: Vec<i16>,
    present: PresentValues,
}

#[derive(Debug)]
enum PresentValues {
    Integers(Vec<i64>),
    Numbers(Vec<f64>),
    Booleans(Vec<bool>),
    Texts(Vec<ByteArray>),
}

impl ColumnValues {
    fn new(kind: ColumnKind) -> Self {
        let present = match kind {
            ColumnKind::Integer => PresentValues::Integers(Vec::new()),
            ColumnKind::Number => PresentValues::Numbers(Vec::new()),
            ColumnKind::Boolean => PresentValues::Booleans(Vec::new()),
            ColumnKind::Text => PresentValues::Texts(Vec::new()),
        };
        Self { levels: Vec::new(), present }
    }

    fn push(&mut self, cell: Option<CellValue>) {
        self.levels.push(cell.is_some().into());
        match (&mut self.present, cell) {
            (PresentValues::Integers(values), Some(CellValue::Integer(value))) => {
                values.push(value);
            }
            (PresentValues::Numbers(values), Some(CellValue::Number(value))) => values.push(value),
            (PresentValues::Booleans(values), Some(CellValue::Boolean(value))) => {
                values.push(value);
            }
            (PresentValues::Texts(values), Some(CellValue::Text(text))) => {
                values.push(ByteArray::from(text.into_bytes()));
            }
            // A cell has the type of its column.
            (_, Some(_) | None) => {}
        }
    }

    fn clear(&mut self) {
        self.levels.clear();
        match &mut self.present {
            PresentValues::Integers(values) => values.clear(),
            PresentValues::Numbers(values) => values.clear(),
            PresentValues::Booleans(values) => values.clear(),
            PresentValues::Texts(values) => values.clear(),
        }
    }

    fn write(&self, column: &mut ColumnWriter<'_>) -> Result<(), ParquetError> {
        let levels = Some(&self.levels[..]);
        let written = match (column, &self.present) {
            (ColumnWriter::Int64ColumnWriter(writer), PresentValues::Integers(values)) => {
                writer.write_batch(values, levels, None)
            }
            (ColumnWriter::DoubleColumnWriter(writer), PresentValues::Numbers(values)) => {
                writer.write_batch(values, levels, None)
            }
            (ColumnWriter::BoolColumnWriter(writer), PresentValues::Booleans(values)) => {
                writer.write_batch(values, levels, None)
            }
            (ColumnWriter::ByteArrayColumnWriter(writer), PresentValues::Texts(values)) => {
                writer.write_batch(values, levels, None)
            }
            _ => Err(ParquetError::General("a column has another type".to_owned())),
        };
        written.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use serde_json::json;

    use super::*;

    fn columns() -> Vec<Column> {
        let column = |name: &str, kind| Column { name: name.to_owned(), kind };
        vec![
            column("t_ns", ColumnKind::Integer),
            column("stall.total_s", ColumnKind::Number),
            column("backup", ColumnKind::Boolean),
            column("text", ColumnKind::Text),
        ]
    }

    /// Writes rows, and reads them with the library's row reader.
    fn round_trip(rows: &[Value]) -> Vec<String> {
        let mut writer = ParquetWriter::new(Vec::new(), columns()).unwrap();
        for row in rows {
            writer.add(row).unwrap();
        }
        let file = Bytes::from(writer.finish().unwrap());
        let reader = SerializedFileReader::new(file).unwrap();
        reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect()
    }

    #[test]
    fn values_survive_a_round_trip_and_absent_ones_are_null() {
        let rows = [
            json!({"t_ns": 5, "stall": {"total_s": 0.5}, "backup": true, "text": "a \"b\""}),
            json!({"t_ns": u64::MAX, "backup": "no", "text": ["x", 1], "other": 1}),
            json!({"stall": {}, "text": {"k": "v"}}),
            json!(null),
        ];
        assert_eq!(
            round_trip(&rows),
            [
                "{t_ns: 5, stall.total_s: 0.5, backup: true, text: \"a \"b\"\"}",
                "{t_ns: null, stall.total_s: null, backup: null, text: \"x 1\"}",
                "{t_ns: null, stall.total_s: null, backup: null, text: \"{\"k\":\"v\"}\"}",
                "{t_ns: null, stall.total_s: null, backup: null, text: null}",
            ]
        );
    }

    #[test]
    fn a_file_may_have_no_rows_or_more_than_a_group() {
        assert_eq!(round_trip(&[]), [""; 0]);
        let rows: Vec<Value> = (0..=GROUP_ROWS).map(|number| json!({"t_ns": number})).collect();
        let read = round_trip(&rows);
        assert_eq!(read.len(), GROUP_ROWS + 1);
        assert!(read.last().unwrap().starts_with(&format!("{{t_ns: {GROUP_ROWS},")));
    }
}
