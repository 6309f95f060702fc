//! Tables that other libraries read without a copy, by the Arrow C stream interface.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, Float64Builder, Int64Builder, StringBuilder};
use arrow_array::cast::AsArray as _;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{
    ArrayRef, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader,
    StringArray,
};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use pyo3::exceptions::{PyKeyError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList};
use towpath_report::{CellValue, Column, ColumnKind};
use towpath_result::expect::MetricUnit;
use towpath_study::table::ColumnData;

/// Key of a column's unit in its metadata.
const UNIT_KEY: &str = "unit";
/// Suffixes of column names that name a unit.
const UNITS: [(&str, &str); 9] = [
    ("_ns", "ns"),
    ("_us", "us"),
    ("_ms", "ms"),
    ("_s", "s"),
    ("_bps", "bit/s"),
    ("_bytes", "byte"),
    ("bytes", "byte"),
    ("_packets", "packet"),
    ("packets", "packet"),
];

/// A table with typed columns.
#[pyclass(frozen, module = "towpath._native")]
#[derive(Debug)]
pub(crate) struct Table {
    name: String,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

/// Columns of a table that is being filled.
#[derive(Debug)]
pub(crate) struct TableBuilder {
    columns: Vec<Column>,
    values: Vec<ColumnBuilder>,
}

#[derive(Debug)]
enum ColumnBuilder {
    Integers(Int64Builder),
    Numbers(Float64Builder),
    Booleans(BooleanBuilder),
    Texts(StringBuilder),
}

impl ColumnBuilder {
    fn new(kind: ColumnKind) -> Self {
        match kind {
            ColumnKind::Integer => Self::Integers(Int64Builder::new()),
            ColumnKind::Number => Self::Numbers(Float64Builder::new()),
            ColumnKind::Boolean => Self::Booleans(BooleanBuilder::new()),
            ColumnKind::Text => Self::Texts(StringBuilder::new()),
        }
    }

    fn push(&mut self, cell: Option<CellValue>) {
        match (self, cell) {
            (Self::Integers(values), Some(CellValue::Integer(value))) => values.append_value(value),
            (Self::Numbers(values), Some(CellValue::Number(value))) => values.append_value(value),
            (Self::Booleans(values), Some(CellValue::Boolean(value))) => values.append_value(value),
            (Self::Texts(values), Some(CellValue::Text(text))) => values.append_value(text),
            // A cell has the type of its column.
            (Self::Integers(values), _) => values.append_null(),
            (Self::Numbers(values), _) => values.append_null(),
            (Self::Booleans(values), _) => values.append_null(),
            (Self::Texts(values), _) => values.append_null(),
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            Self::Integers(mut values) => Arc::new(values.finish()),
            Self::Numbers(mut values) => Arc::new(values.finish()),
            Self::Booleans(mut values) => Arc::new(values.finish()),
            Self::Texts(mut values) => Arc::new(values.finish()),
        }
    }
}

impl TableBuilder {
    pub(crate) fn new(columns: Vec<Column>) -> Self {
        let values = columns.iter().map(|column| ColumnBuilder::new(column.kind)).collect();
        Self { columns, values }
    }

    /// Adds a row from a JSON object. Fields without a column are left out.
    pub(crate) fn add(&mut self, row: &serde_json::Value) {
        for (column, values) in self.columns.iter().zip(&mut self.values) {
            values.push(column.cell(row));
        }
    }

    /// Adds a row with the value of each column.
    pub(crate) fn add_cells(&mut self, mut cell: impl FnMut(&str) -> Option<CellValue>) {
        for (column, values) in self.columns.iter().zip(&mut self.values) {
            values.push(cell(&column.name));
        }
    }

    pub(crate) fn finish(self, name: &str) -> PyResult<Table> {
        let fields = self.columns.iter().map(field).collect();
        Table::of(name, fields, self.values.into_iter().map(ColumnBuilder::finish).collect())
    }
}

impl Table {
    fn of(name: &str, fields: Vec<Field>, arrays: Vec<ArrayRef>) -> PyResult<Self> {
        let schema = Arc::new(Schema::new(fields));
        let batch = RecordBatch::try_new(Arc::clone(&schema), arrays);
        let batch = batch.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        Ok(Self { name: name.to_owned(), schema, batches: vec![batch] })
    }

    /// Creates the table of a sweep's rows.
    pub(crate) fn of_sweep(columns: Vec<(String, ColumnData)>) -> PyResult<Self> {
        let (mut fields, mut arrays) = (Vec::new(), Vec::<ArrayRef>::new());
        for (name, data) in columns {
            let (kind, array): (_, ArrayRef) = match data {
                ColumnData::Texts(values) => {
                    (DataType::Utf8, Arc::new(StringArray::from_iter(values)))
                }
                ColumnData::Wholes(values) => (DataType::Int64, Arc::new(Int64Array::from(values))),
                ColumnData::Numbers(values) => {
                    (DataType::Float64, Arc::new(Float64Array::from(values)))
                }
            };
            let unit = metric_unit(&name);
            fields.push(with_unit(Field::new(name, kind, true), unit));
            arrays.push(array);
        }
        Self::of("sweep", fields, arrays)
    }
}

fn field(column: &Column) -> Field {
    let kind = match column.kind {
        ColumnKind::Integer => DataType::Int64,
        ColumnKind::Number => DataType::Float64,
        ColumnKind::Boolean => DataType::Boolean,
        ColumnKind::Text => DataType::Utf8,
    };
    let unit = unit(&column.name).or_else(|| metric_unit(&column.name));
    with_unit(Field::new(&column.name, kind, true), unit)
}

fn with_unit(field: Field, unit: Option<&str>) -> Field {
    let metadata = unit.map(|unit| (UNIT_KEY.to_owned(), unit.to_owned()));
    field.with_metadata(metadata.into_iter().collect::<HashMap<String, String>>())
}

/// Returns the unit of a metric; `None` for counts, shares and other columns.
fn metric_unit(name: &str) -> Option<&'static str> {
    match towpath_study::summary::unit(name)? {
        MetricUnit::Rate => Some("bit/s"),
        MetricUnit::Time => Some("s"),
        MetricUnit::Bytes => Some("byte"),
        MetricUnit::Count | MetricUnit::Score | MetricUnit::Share | MetricUnit::YesNo => None,
    }
}

/// Returns the unit that a column's name states.
fn unit(name: &str) -> Option<&'static str> {
    UNITS.iter().find(|(suffix, _)| name.ends_with(suffix)).map(|(_, unit)| *unit)
}

#[pymethods]
impl Table {
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn columns(&self) -> Vec<&str> {
        self.schema.fields().iter().map(|field| field.name().as_str()).collect()
    }

    /// Units by column, of the columns that have one.
    #[getter]
    fn units(&self) -> BTreeMap<&str, &str> {
        let unit = |field: &'_ Arc<Field>| field.metadata().contains_key(UNIT_KEY);
        let with_unit = self.schema.fields().iter().filter(|field| unit(field));
        with_unit
            .filter_map(|field| {
                Some((field.name().as_str(), field.metadata().get(UNIT_KEY)?.as_str()))
            })
            .collect()
    }

    /// Returns the values of a column as a list; absent ones are `None`.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
        let Ok(index) = self.schema.index_of(name) else {
            let names = self.columns().join(", ");
            return Err(PyKeyError::new_err(format!("no column `{name}`; there are {names}")));
        };
        let list = PyList::empty(py);
        for batch in &self.batches {
            append(&list, batch.column(index))?;
        }
        Ok(list)
    }

    /// Returns this table followed by the rows of others with equal columns.
    fn concat(&self, others: Vec<PyRef<'_, Self>>) -> PyResult<Self> {
        let mut batches = self.batches.clone();
        for other in &others {
            if other.schema != self.schema {
                return Err(PyValueError::new_err("the tables have different columns"));
            }
            batches.extend(other.batches.iter().cloned());
        }
        Ok(Self { name: self.name.clone(), schema: Arc::clone(&self.schema), batches })
    }

    fn __len__(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// Exports the columns' types (Arrow `PyCapsule` interface).
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.schema.as_ref());
        let schema = schema.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// Exports the rows (Arrow `PyCapsule` interface). Another schema is not converted.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let batches: Vec<Result<RecordBatch, ArrowError>> =
            self.batches.iter().cloned().map(Ok).collect();
        let reader: Box<dyn RecordBatchReader + Send> =
            Box::new(RecordBatchIterator::new(batches, Arc::clone(&self.schema)));
        let stream = FFI_ArrowArrayStream::new(reader);
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    fn __repr__(&self) -> String {
        format!(
            "<Table {} rows={} columns={}>",
            self.name,
            self.__len__(),
            self.schema.fields().len()
        )
    }
}

/// Appends the values of an array to a Python list.
fn append(list: &Bound<'_, PyList>, array: &ArrayRef) -> PyResult<()> {
    if let Some(values) = array.as_primitive_opt::<Int64Type>() {
        values.iter().try_for_each(|value| list.append(value))
    } else if let Some(values) = array.as_primitive_opt::<Float64Type>() {
        values.iter().try_for_each(|value| list.append(value))
    } else if let Some(values) = array.as_boolean_opt() {
        values.iter().try_for_each(|value| list.append(value))
    } else {
        array.as_string::<i32>().iter().try_for_each(|value| list.append(value))
    }
}
