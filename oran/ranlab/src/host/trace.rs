//! Traces: one row per bearer and sample, as a Parquet file.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::HostError;
use super::view::Row;

/// The columns, in the order in which [`values`] gives them.
const SCHEMA: &str = "message trace {
    required double time_s; required int64 rnti; required int64 drb; required int64 mcs;
    required double down_mbps; required double up_mbps;
    required int64 rlc_bytes; required int64 rlc_packets; required double rlc_head_ms;
    required int64 pipeline_bytes; required int64 uplink_rlc_bytes;
    required double pipeline_ms; required double rlc_ms; required double radio_ms;
    required int64 drops; required int64 marks; required int64 overflows; required double prb_used; required double late_ms;
}";

/// Rows held back until so many make a row group.
const GROUP: usize = 4_096;

enum Value {
    Real(f64),
    Count(i64),
}

fn values(row: &Row) -> [Value; 19] {
    use Value::Real;
    let count = |n: u64| Value::Count(n.cast_signed());
    [
        Real(row.time_s),
        count(row.rnti.into()),
        count(row.drb.into()),
        count(row.mcs.into()),
        Real(row.down_mbps),
        Real(row.up_mbps),
        count(row.rlc_bytes),
        count(row.rlc_packets),
        Real(row.rlc_head_ms),
        count(row.pipeline_bytes),
        count(row.uplink_rlc_bytes),
        Real(row.pipeline_ms),
        Real(row.rlc_ms),
        Real(row.radio_ms),
        count(row.drops),
        count(row.marks),
        count(row.overflows),
        Real(row.prb_used),
        Real(row.late_ms),
    ]
}

/// A trace being written. Nothing can be read of it before [`Self::close`].
pub struct Trace {
    writer: SerializedFileWriter<File>,
    rows: Vec<[Value; 19]>,
    what: String,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("file", &self.what).field("rows", &self.rows.len()).finish_non_exhaustive()
    }
}

impl Trace {
    /// Begins a file; one that is there is replaced.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(path: &Path) -> Result<Self, HostError> {
        let what = path.display().to_string();
        let schema = parse_message_type(SCHEMA).map_err(|e| HostError::new(&what, e))?;
        let file = File::create(path).map_err(|e| HostError::new(&what, e))?;
        let properties = Arc::new(WriterProperties::builder().build());
        let writer =
            SerializedFileWriter::new(file, Arc::new(schema), properties).map_err(|e| HostError::new(&what, e))?;
        Ok(Self { writer, rows: Vec::new(), what })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn push(&mut self, row: &Row) -> Result<(), HostError> {
        self.rows.push(values(row));
        if self.rows.len() >= GROUP { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), HostError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let result = write(&mut self.writer, &self.rows);
        self.rows.clear();
        result.map_err(|e| HostError::new(&self.what, e))
    }

    /// Completes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn close(mut self) -> Result<(), HostError> {
        self.flush()?;
        self.writer.close().map(|_| ()).map_err(|e| HostError::new(&self.what, e))
    }
}

fn write(writer: &mut SerializedFileWriter<File>, rows: &[[Value; 19]]) -> parquet::errors::Result<()> {
    let mut group = writer.next_row_group()?;
    let mut n = 0;
    while let Some(mut column) = group.next_column()? {
        let cells = rows.iter().map(|row| &row[n]);
        if matches!(rows[0][n], Value::Real(_)) {
            let reals: Vec<f64> = cells.map(|v| if let Value::Real(x) = v { *x } else { f64::NAN }).collect();
            column.typed::<DoubleType>().write_batch(&reals, None, None)?;
        } else {
            let counts: Vec<i64> = cells.map(|v| if let Value::Count(x) = v { *x } else { 0 }).collect();
            column.typed::<Int64Type>().write_batch(&counts, None, None)?;
        }
        column.close()?;
        n += 1;
    }
    group.close()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    #[test]
    fn what_is_written_reads_back_in_columns_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let mut trace = Trace::create(&path).unwrap();
        for n in 0..10_000_u32 {
            let row = Row { time_s: f64::from(n), rnti: 7, rlc_bytes: u64::from(n) * 2, ..Row::default() };
            trace.push(&row).unwrap();
        }
        trace.close().unwrap();
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let schema = reader.metadata().file_metadata().schema_descr();
        let at = |name: &str| schema.columns().iter().position(|c| c.name() == name).unwrap();
        let (time, rlc, rnti) = (at("time_s"), at("rlc_bytes"), at("rnti"));
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 10_000);
        assert_eq!(rows[5_000].get_double(time).unwrap(), 5_000.0);
        assert_eq!(rows[5_000].get_long(rlc).unwrap(), 10_000);
        assert_eq!(rows[9_999].get_long(rnti).unwrap(), 7);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_an_error_with_its_name() {
        let error = Trace::create(Path::new("/nonexistent/t.parquet")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/t.parquet"), "{error}");
    }
}
