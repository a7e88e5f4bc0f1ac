//! The frame of a trail file: signature, version, and records with their checksums.
//!
//! `docs/trail-format.md` documents every byte; `payload` encodes what is inside a record.

/// First bytes of every trail file. The first is not ASCII and the last is a line feed, so that a
/// transfer in text mode damages them visibly.
pub(crate) const MAGIC: [u8; 8] = *b"\x89PTRAIL\n";

/// Whether a file that begins with `first_bytes` is a trail of any version, complete or not.
pub fn is_trail(first_bytes: &[u8]) -> bool {
    first_bytes.starts_with(&MAGIC)
}

/// Version of the format that is written, and the only major version that is read.
pub(crate) const MAJOR: u16 = 1;
/// A later minor version adds record types, event kinds, and fields at the end of payloads.
pub(crate) const MINOR: u16 = 6;
/// The first minor version in which a round has an access kind.
pub(crate) const MINOR_ACCESS_KIND: u16 = 1;
/// The first minor version in which a round has the pages that were predicted dirty.
pub(crate) const MINOR_PREDICTED: u16 = 2;
/// The first minor version in which a round has the sub-pages of sub-page heaps.
pub(crate) const MINOR_SUBPAGES: u16 = 2;
/// The first minor version that has call stacks.
pub(crate) const MINOR_STACKS: u16 = 3;
/// The first minor version that has several processes.
pub(crate) const MINOR_PROCESSES: u16 = 4;
/// The first minor version in which a round has what tracking cost.
pub(crate) const MINOR_OVERHEAD: u16 = 5;
/// The first minor version in which a process has what it inherited, and short lives are counted.
pub(crate) const MINOR_INHERITED: u16 = 5;
/// The first minor version in which a shared mapping says what memory it shows.
pub(crate) const MINOR_SHARED: u16 = 6;

/// Length of signature, version and their checksum.
pub(crate) const PROLOGUE_BYTES: usize = 16;
/// Length of what comes before a payload.
pub(crate) const RECORD_HEADER_BYTES: usize = 12;
/// Length of the checksum after a payload.
pub(crate) const CHECKSUM_BYTES: usize = 4;
/// Largest payload, about 300 million ranges in one round.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 1 << 30;

/// Fewest zero bytes at the end of a file that count as the trace of a power cut. Fewer may be the
/// end of a checksum.
pub(crate) const ZERO_TAIL_BYTES_MIN: u64 = 8;

/// Types of records.
pub(crate) mod kind {
    pub(crate) const HEADER: u8 = 1;
    pub(crate) const MAPPING: u8 = 2;
    pub(crate) const MAPPING_GONE: u8 = 3;
    pub(crate) const ROUND: u8 = 4;
    pub(crate) const END: u8 = 5;
    pub(crate) const STACKS: u8 = 6;
    pub(crate) const PROCESS: u8 = 7;
    pub(crate) const OF_PROCESS: u8 = 8;
    pub(crate) const PROCESS_ENDED: u8 = 9;
    pub(crate) const SHORT_LIVES: u8 = 10;
}

/// The first bytes of a trail of the given version.
pub(crate) fn prologue(major: u16, minor: u16) -> [u8; PROLOGUE_BYTES] {
    let mut bytes = [0; PROLOGUE_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&major.to_le_bytes());
    bytes[10..12].copy_from_slice(&minor.to_le_bytes());
    let checksum = crc32fast::hash(&bytes[..12]);
    bytes[12..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// What comes before the payload of a record that begins `offset` bytes into the file.
pub(crate) fn record_header(
    offset: u64,
    kind: u8,
    payload_bytes: u32,
) -> [u8; RECORD_HEADER_BYTES] {
    let mut bytes = [0; RECORD_HEADER_BYTES];
    bytes[0] = kind;
    bytes[4..8].copy_from_slice(&payload_bytes.to_le_bytes());
    let checksum = checksum(offset, &[&bytes[..8]]);
    bytes[8..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Type and length of payload, or `None` when the checksum is wrong.
pub(crate) fn parse_record_header(
    offset: u64,
    bytes: &[u8; RECORD_HEADER_BYTES],
) -> Option<(u8, u32)> {
    let (fields, sum) = bytes.split_at(8);
    (sum == checksum(offset, &[fields]).to_le_bytes()).then(|| {
        let payload_bytes = u32::from_le_bytes([fields[4], fields[5], fields[6], fields[7]]);
        (fields[0], payload_bytes)
    })
}

/// CRC-32 of a record's first bytes and its offset in the file. The offset makes the check fail for
/// a record that was moved or that follows a lost one.
pub(crate) fn checksum(offset: u64, parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&offset.to_le_bytes());
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}
