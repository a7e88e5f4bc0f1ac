//! The Parquet file: flat columns of numbers and texts, in row groups of one page per column
//! (`README.md` and `Encodings.md` of github.com/apache/parquet-format). Texts are numbered in a
//! dictionary; all is compressed as gzip does, which every reader knows.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::Dictionary;
use super::thrift::{Struct, put_varint};

const MAGIC: &[u8; 4] = b"PAR1";
/// Bytes of the texts of a dictionary at which a row group ends.
const TEXT_BYTES_MAX: usize = 64 << 20;

/// Numbers of the format: `parquet.thrift`.
mod code {
    pub(super) const INT32: i32 = 1;
    pub(super) const INT64: i32 = 2;
    pub(super) const BYTE_ARRAY: i32 = 6;
    pub(super) const REQUIRED: i32 = 0;
    pub(super) const OPTIONAL: i32 = 1;
    pub(super) const UTF8: i32 = 0;
    pub(super) const TIMESTAMP_MICROS: i32 = 10;
    pub(super) const UINT_64: i32 = 14;
    pub(super) const PLAIN: i32 = 0;
    pub(super) const RLE: i32 = 3;
    pub(super) const RLE_DICTIONARY: i32 = 8;
    pub(super) const GZIP: i32 = 2;
    pub(super) const DATA_PAGE: i32 = 0;
    pub(super) const DICTIONARY_PAGE: i32 = 2;
    pub(super) const VERSION: i32 = 2;
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Int32,
    OptionalInt32,
    Int64,
    UInt64,
    /// Microseconds since 1970-01-01 UTC.
    TimestampMicros,
    Text,
    OptionalText,
}

impl Kind {
    fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::OptionalText)
    }

    fn is_optional(self) -> bool {
        matches!(self, Self::OptionalInt32 | Self::OptionalText)
    }

    fn physical(self) -> i32 {
        match self {
            Self::Int32 | Self::OptionalInt32 => code::INT32,
            Self::Text | Self::OptionalText => code::BYTE_ARRAY,
            Self::Int64 | Self::UInt64 | Self::TimestampMicros => code::INT64,
        }
    }

    fn converted(self) -> Option<i32> {
        match self {
            Self::Text | Self::OptionalText => Some(code::UTF8),
            Self::TimestampMicros => Some(code::TIMESTAMP_MICROS),
            Self::UInt64 => Some(code::UINT_64),
            _ => None,
        }
    }
}

/// A column of the present row group.
pub(super) struct Column {
    name: &'static str,
    kind: Kind,
    /// Values, or numbers of texts.
    values: Vec<u64>,
    /// Whether each row has a value.
    present: Vec<bool>,
    dictionary: Dictionary,
    text_bytes: usize,
}

impl Column {
    pub(super) fn new(name: &'static str, kind: Kind) -> Self {
        Self {
            name,
            kind,
            values: Vec::new(),
            present: Vec::new(),
            dictionary: Dictionary::default(),
            text_bytes: 0,
        }
    }

    pub(super) fn number(&mut self, value: u64) {
        debug_assert!(!self.kind.is_text());
        self.values.push(value);
        self.present.push(true);
    }

    pub(super) fn text(&mut self, text: &str) {
        debug_assert!(self.kind.is_text());
        let known = self.dictionary.texts.len();
        let number = self.dictionary.number(text);
        if self.dictionary.texts.len() > known {
            self.text_bytes += text.len();
        }
        self.values.push(number.into());
        self.present.push(true);
    }

    pub(super) fn null(&mut self) {
        debug_assert!(self.kind.is_optional());
        self.present.push(false);
    }

    fn schema(&self) -> Struct {
        let repetition = match self.kind.is_optional() {
            true => code::OPTIONAL,
            false => code::REQUIRED,
        };
        let element = Struct::default()
            .int32(1, self.kind.physical())
            .int32(3, repetition)
            .text(4, self.name);
        match self.kind.converted() {
            Some(converted) => element.int32(6, converted),
            None => element,
        }
    }

    /// The values of the row group as a page.
    fn data(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.kind.is_optional() {
            let mut levels = Vec::new();
            put_runs(&mut levels, 1, self.present.iter().map(|is| u64::from(*is)));
            bytes.extend((levels.len() as u32).to_le_bytes());
            bytes.extend(levels);
        }
        match self.kind {
            Kind::Text | Kind::OptionalText => {
                let last = self.dictionary.texts.len().saturating_sub(1) as u64;
                let bits = (u64::BITS - last.leading_zeros()).max(1);
                bytes.push(bits as u8);
                put_runs(&mut bytes, bits, self.values.iter().copied());
            }
            Kind::Int32 | Kind::OptionalInt32 => {
                bytes.extend(self.values.iter().flat_map(|v| (*v as u32).to_le_bytes()));
            }
            _ => bytes.extend(self.values.iter().flat_map(|v| v.to_le_bytes())),
        }
        bytes
    }

    fn dictionary_page(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for text in &self.dictionary.texts {
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes
    }

    fn clear(&mut self) {
        *self = Self::new(self.name, self.kind);
    }
}

/// A file that is being written.
pub(super) struct File<'a> {
    out: &'a mut dyn Write,
    offset: u64,
    pub(super) columns: [Column; super::COLUMNS.len()],
    groups: Vec<Struct>,
    rows: u64,
}

impl<'a> File<'a> {
    pub(super) fn create(
        out: &'a mut dyn Write,
        columns: [Column; super::COLUMNS.len()],
    ) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        Ok(Self {
            out,
            offset: MAGIC.len() as u64,
            columns,
            groups: Vec::new(),
            rows: 0,
        })
    }

    /// Says that each column has a value more, and writes a row group if it has enough.
    pub(super) fn end_row(&mut self, rows_max: usize) -> io::Result<()> {
        let text_bytes: usize = self.columns.iter().map(|column| column.text_bytes).sum();
        match self.columns[0].present.len() >= rows_max || text_bytes >= TEXT_BYTES_MAX {
            true => self.end_group(),
            false => Ok(()),
        }
    }

    /// Writes the rest and the footer.
    pub(super) fn finish(mut self, metadata: &[(&str, String)]) -> io::Result<()> {
        self.end_group()?;
        let root = Struct::default()
            .text(4, "schema")
            .int32(5, self.columns.len() as i32);
        let schema = std::iter::once(root).chain(self.columns.iter().map(Column::schema));
        let pair = |(key, value): &(&str, String)| Struct::default().text(1, key).text(2, value);
        let footer = Struct::default()
            .int32(1, code::VERSION)
            .structs(2, schema.collect())
            .int64(3, self.rows)
            .structs(4, std::mem::take(&mut self.groups))
            .structs(5, metadata.iter().map(pair).collect())
            .text(6, concat!("pagetrail version ", env!("CARGO_PKG_VERSION")))
            .end();
        self.out.write_all(&footer)?;
        self.out.write_all(&(footer.len() as u32).to_le_bytes())?;
        self.out.write_all(MAGIC)
    }

    fn end_group(&mut self) -> io::Result<()> {
        let rows = self.columns[0].present.len() as u64;
        if rows == 0 {
            return Ok(());
        }
        let mut chunks = Vec::new();
        let mut bytes_sum = 0;
        for index in 0..self.columns.len() {
            let (chunk, bytes) = self.chunk(index)?;
            chunks.push(chunk);
            bytes_sum += bytes;
            self.columns[index].clear();
        }
        let group = Struct::default()
            .structs(1, chunks)
            .int64(2, bytes_sum)
            .int64(3, rows);
        self.groups.push(group);
        self.rows += rows;
        Ok(())
    }

    /// Writes a column of a row group; returns its metadata and its length before compression.
    fn chunk(&mut self, index: usize) -> io::Result<(Struct, u64)> {
        let column = &self.columns[index];
        let (name, kind, rows) = (column.name, column.kind, column.present.len());
        let data = column.data();
        let begun = self.offset;
        let mut sizes = (0, 0);
        let mut encoding = code::PLAIN;
        let mut dictionary = None;
        if kind.is_text() {
            encoding = code::RLE_DICTIONARY;
            dictionary = Some(begun);
            let texts = self.columns[index].dictionary.texts.len();
            let page = self.columns[index].dictionary_page();
            let header = Struct::default()
                .int32(1, texts as i32)
                .int32(2, code::PLAIN);
            let written = self.page(code::DICTIONARY_PAGE, 7, header, &page)?;
            sizes = (sizes.0 + written.0, sizes.1 + written.1);
        }
        let first = self.offset;
        let header = Struct::default()
            .int32(1, rows as i32)
            .int32(2, encoding)
            .int32(3, code::RLE)
            .int32(4, code::RLE);
        let written = self.page(code::DATA_PAGE, 5, header, &data)?;
        sizes = (sizes.0 + written.0, sizes.1 + written.1);
        let metadata = Struct::default()
            .int32(1, kind.physical())
            .int32s(2, &[code::PLAIN, code::RLE, encoding])
            .texts(3, &[name])
            .int32(4, code::GZIP)
            .int64(5, rows as u64)
            .int64(6, sizes.0)
            .int64(7, sizes.1)
            .int64(9, first);
        let metadata = match dictionary {
            Some(at) => metadata.int64(11, at),
            None => metadata,
        };
        let chunk = Struct::default().int64(2, begun).inner(3, metadata);
        Ok((chunk, sizes.0))
    }

    /// Writes a page; returns its length with its header, before and after compression.
    fn page(
        &mut self,
        kind: i32,
        field: u8,
        header: Struct,
        bytes: &[u8],
    ) -> io::Result<(u64, u64)> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes)?;
        let packed = encoder.finish()?;
        let header = Struct::default()
            .int32(1, kind)
            .int32(2, bytes.len() as i32)
            .int32(3, packed.len() as i32)
            .inner(field, header)
            .end();
        self.out.write_all(&header)?;
        self.out.write_all(&packed)?;
        let length = header.len() as u64;
        self.offset += length + packed.len() as u64;
        Ok((length + bytes.len() as u64, length + packed.len() as u64))
    }
}

/// Values of so many bits as runs of equal ones: the hybrid encoding's one half. Runs of one value
/// are long where neighbours are alike, and compressed where they are not.
fn put_runs(out: &mut Vec<u8>, bits: u32, values: impl Iterator<Item = u64>) {
    let bytes = bits.div_ceil(8) as usize;
    let mut values = values.peekable();
    while let Some(value) = values.next() {
        let mut count = 1;
        while values.next_if_eq(&value).is_some() {
            count += 1;
        }
        put_varint(out, count << 1);
        out.extend(&value.to_le_bytes()[..bytes]);
    }
}
