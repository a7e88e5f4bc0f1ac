//! Thrift's compact protocol, as far as Parquet's metadata needs it
//! (`doc/specs/thrift-compact-protocol.md` of github.com/apache/thrift).

const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// A struct that is being written; fields come in ascending order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Struct {
    bytes: Vec<u8>,
    last: u8,
}

impl Struct {
    pub(super) fn int32(mut self, field: u8, value: i32) -> Self {
        self.head(field, I32);
        put_varint(&mut self.bytes, zigzag(value.into()));
        self
    }

    pub(super) fn int64(mut self, field: u8, value: u64) -> Self {
        self.head(field, I64);
        put_varint(
            &mut self.bytes,
            zigzag(i64::try_from(value).unwrap_or(i64::MAX)),
        );
        self
    }

    pub(super) fn text(mut self, field: u8, text: &str) -> Self {
        self.head(field, BINARY);
        put_text(&mut self.bytes, text);
        self
    }

    pub(super) fn inner(mut self, field: u8, inner: Self) -> Self {
        self.head(field, STRUCT);
        self.bytes.extend(inner.end());
        self
    }

    pub(super) fn structs(mut self, field: u8, list: Vec<Self>) -> Self {
        self.head(field, LIST);
        put_list(&mut self.bytes, STRUCT, list.len());
        self.bytes.extend(list.into_iter().flat_map(Self::end));
        self
    }

    pub(super) fn int32s(mut self, field: u8, list: &[i32]) -> Self {
        self.head(field, LIST);
        put_list(&mut self.bytes, I32, list.len());
        for value in list {
            put_varint(&mut self.bytes, zigzag((*value).into()));
        }
        self
    }

    pub(super) fn texts(mut self, field: u8, list: &[&str]) -> Self {
        self.head(field, LIST);
        put_list(&mut self.bytes, BINARY, list.len());
        for text in list {
            put_text(&mut self.bytes, text);
        }
        self
    }

    /// The bytes of the whole struct.
    pub(super) fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }

    /// All fields are less than 15 numbers apart.
    fn head(&mut self, field: u8, kind: u8) {
        self.bytes.push((field - self.last) << 4 | kind);
        self.last = field;
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn put_list(out: &mut Vec<u8>, kind: u8, length: usize) {
    match length {
        0..15 => out.push((length as u8) << 4 | kind),
        _ => {
            out.push(0xf0 | kind);
            put_varint(out, length as u64);
        }
    }
}

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

/// Unsigned LEB128.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
