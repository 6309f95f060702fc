//! Pages of a table's columns, each checked before the library decodes it.
//!
//! The library trusts the file's claims. It allocates memory for a page that decompresses to 2 GB,
//! or for a dictionary of four thousand million texts. It panics at a column that begins before
//! the file, or at a missing dictionary. So pages are decompressed here, and their memory is taken
//! from a budget first.

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;
use snap::raw::{Decoder, decompress_len};
use towpath_result::input::ReadBudget;

/// Minimum size of a dictionary value in the file: the length field of a text.
const MIN_VALUE_BYTES: usize = 4;
/// Memory of a dictionary value: the reference to a text, in bytes.
const VALUE_MEMORY_BYTES: u64 = 32;

/// Returns a reader for a column of one row group in `file`.
pub(super) fn column(
    file: &Bytes,
    chunk: &ColumnChunkMetaData,
    rows: usize,
    budget: &Arc<ReadBudget>,
) -> Result<ColumnReader, ParquetError> {
    let offsets = [Some(chunk.data_page_offset()), chunk.dictionary_page_offset()];
    let is_negative = offsets.into_iter().flatten().any(i64::is_negative);
    if is_negative || chunk.compressed_size().is_negative() {
        return Err(invalid_file("a column begins before the file"));
    }
    let compression = chunk.compression();
    if !matches!(compression, Compression::SNAPPY | Compression::UNCOMPRESSED) {
        return Err(invalid_file("a column is compressed otherwise than with Snappy"));
    }
    let packed_pages =
        chunk.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
    let packed_pages =
        SerializedPageReader::new(Arc::new(file.clone()), &packed_pages, rows, None)?;
    let is_snappy = compression == Compression::SNAPPY;
    let pages = BudgetedPages {
        compressed: packed_pages,
        is_snappy,
        has_dictionary: false,
        budget: budget.clone(),
    };
    Ok(get_column_reader(chunk.column_descr_ptr(), Box::new(pages)))
}

fn invalid_file(reason: &str) -> ParquetError {
    ParquetError::General(reason.to_owned())
}

struct BudgetedPages {
    compressed: SerializedPageReader<Bytes>,
    is_snappy: bool,
    has_dictionary: bool,
    budget: Arc<ReadBudget>,
}

impl BudgetedPages {
    /// Returns the decompressed content of a page.
    fn decompress(&self, packed: Bytes) -> Result<Bytes, ParquetError> {
        if !self.is_snappy || packed.is_empty() {
            return Ok(packed);
        }
        let external_error = |error| ParquetError::External(Box::new(error));
        let length = decompress_len(&packed).map_err(external_error)?;
        self.consume(length as u64)?;
        Ok(Decoder::new().decompress_vec(&packed).map_err(external_error)?.into())
    }

    fn consume(&self, bytes: u64) -> Result<(), ParquetError> {
        self.budget.take(bytes).map_err(|refused| ParquetError::External(Box::new(refused)))
    }

    fn check_page(&mut self, page: Page) -> Result<Page, ParquetError> {
        match page {
            Page::DataPage {
                buf,
                num_values,
                encoding,
                def_level_encoding: Encoding::RLE,
                rep_level_encoding,
                statistics,
            } => {
                let is_dictionary_encoded = is_dictionary_encoding(encoding);
                if !(is_dictionary_encoded || encoding == Encoding::PLAIN) {
                    return Err(invalid_file("a page is encoded as none of ours is"));
                }
                if is_dictionary_encoded && !self.has_dictionary {
                    return Err(invalid_file("a page needs a dictionary that is not there"));
                }
                Ok(Page::DataPage {
                    buf: self.decompress(buf)?,
                    num_values,
                    encoding,
                    def_level_encoding: Encoding::RLE,
                    rep_level_encoding,
                    statistics,
                })
            }
            Page::DictionaryPage { buf, num_values, encoding, is_sorted } => {
                let buf = self.decompress(buf)?;
                if num_values as usize > buf.len() / MIN_VALUE_BYTES {
                    return Err(invalid_file("a dictionary says that it has more than it holds"));
                }
                self.consume(u64::from(num_values) * VALUE_MEMORY_BYTES)?;
                self.has_dictionary = true;
                Ok(Page::DictionaryPage { buf, num_values, encoding, is_sorted })
            }
            Page::DataPage { .. } | Page::DataPageV2 { .. } => {
                Err(invalid_file("a page is laid out as none of ours is"))
            }
        }
    }
}

fn is_dictionary_encoding(encoding: Encoding) -> bool {
    matches!(encoding, Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY)
}

impl Iterator for BudgetedPages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for BudgetedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let page = self.compressed.get_next_page()?;
        page.map(|page| self.check_page(page)).transpose()
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.compressed.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.compressed.skip_next_page()
    }
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};

    use super::*;
    use crate::table::write;

    fn first_column() -> (Bytes, ColumnChunkMetaData) {
        let bytes = Bytes::from(write(&[], &[]).unwrap());
        let reader = SerializedFileReader::new(bytes.clone()).unwrap();
        let chunk = reader.metadata().row_group(0).column(0).clone();
        (bytes, chunk)
    }

    fn pages(budget: u64) -> BudgetedPages {
        let (bytes, chunk) = first_column();
        let packed = SerializedPageReader::new(Arc::new(bytes), &chunk, 0, None).unwrap();
        let budget = Arc::new(ReadBudget::of(budget));
        BudgetedPages { compressed: packed, is_snappy: true, has_dictionary: false, budget }
    }

    fn data(buf: impl Into<Bytes>, encoding: Encoding) -> Page {
        Page::DataPage {
            buf: buf.into(),
            num_values: 1,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        }
    }

    fn dictionary(packed: &[u8], num_values: u32) -> Page {
        let buf = packed.to_vec().into();
        Page::DictionaryPage { buf, num_values, encoding: Encoding::PLAIN, is_sorted: false }
    }

    fn error_text(result: Result<Page, ParquetError>) -> String {
        result.err().unwrap().to_string()
    }

    #[test]
    fn a_page_that_claims_to_unpack_to_gigabytes_is_refused_unread() {
        // A varint of 2^32 - 1, followed by nothing.
        let claims = [0xff, 0xff, 0xff, 0xff, 0x0f];
        let error = error_text(pages(1_000_000).check_page(data(claims.to_vec(), Encoding::PLAIN)));
        assert!(error.contains("TOWPATH_MAX_INPUT"), "{error}");
    }

    #[test]
    fn a_column_that_begins_before_the_file_is_refused() {
        let (bytes, chunk) = first_column();
        let budget = Arc::new(ReadBudget::of(0));
        assert!(column(&bytes, &chunk, 0, &budget).is_ok());
        for chunk in [
            chunk.clone().into_builder().set_data_page_offset(-1).set_dictionary_page_offset(None),
            chunk.clone().into_builder().set_dictionary_page_offset(Some(-1)),
            chunk.into_builder().set_total_compressed_size(-1),
        ] {
            let error = column(&bytes, &chunk.build().unwrap(), 0, &budget).err().unwrap();
            assert!(error.to_string().contains("before the file"), "{error}");
        }
    }

    #[test]
    fn a_dictionary_with_more_entries_than_data_is_refused() {
        let packed = snap::raw::Encoder::new().compress_vec(&[0; 400]).unwrap();
        assert!(pages(10_000).check_page(dictionary(&packed, 100)).is_ok());
        let error = error_text(pages(10_000).check_page(dictionary(&packed, 101)));
        assert!(error.contains("more than it holds"), "{error}");
        let error = error_text(pages(3_000).check_page(dictionary(&packed, 100)));
        assert!(error.contains("TOWPATH_MAX_INPUT"), "{error}");
    }

    #[test]
    fn a_dictionary_that_is_not_there_and_strange_encodings_are_refused() {
        let error = error_text(pages(100).check_page(data(vec![], Encoding::RLE_DICTIONARY)));
        assert!(error.contains("not there"), "{error}");
        let error = error_text(pages(100).check_page(data(vec![], Encoding::DELTA_BINARY_PACKED)));
        assert!(error.contains("none of ours"), "{error}");
    }
}
