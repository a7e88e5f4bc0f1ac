//! [`Compression`]: how a frame's bytes are made smaller, and whole again.

use super::wire::{Decoded, Malformed};

/// How page contents are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all.
    None,
    /// LZ4: little work, most of the gain.
    #[default]
    Lz4,
    /// Zstandard at the level given (1 to 22): smaller, at several times the work. Needs the
    /// feature `zstd`.
    Zstd(i32),
}

/// How a frame is stored, its byte in the format.
pub(crate) const RAW: u8 = 0;
const LZ4: u8 = 1;
const ZSTD: u8 = 2;

impl Compression {
    /// Whether this program can do it.
    pub fn is_available(self) -> bool {
        !matches!(self, Self::Zstd(_)) || cfg!(feature = "zstd")
    }

    /// Compresses `bytes` to `out`; says how it is stored, [`RAW`] and untouched where that saves
    /// too little.
    pub(crate) fn compress(self, bytes: &[u8], out: &mut Vec<u8>) -> u8 {
        out.clear();
        let codec = match self {
            Self::None => return RAW,
            Self::Lz4 => {
                out.resize(lz4_flex::block::get_maximum_output_size(bytes.len()), 0);
                match lz4_flex::block::compress_into(bytes, out) {
                    Ok(length) => out.truncate(length),
                    Err(_) => return RAW,
                }
                LZ4
            }
            #[cfg(feature = "zstd")]
            Self::Zstd(level) => match zstd::bulk::compress(bytes, level) {
                Ok(compressed) => {
                    *out = compressed;
                    ZSTD
                }
                Err(_) => return RAW,
            },
            #[cfg(not(feature = "zstd"))]
            Self::Zstd(_) => return RAW,
        };
        // Less than a sixteenth is not worth undoing.
        if out.len() > bytes.len() - bytes.len() / 16 {
            return RAW;
        }
        codec
    }
}

/// Restores `out.len()` bytes.
pub(crate) fn decompress(codec: u8, stored: &[u8], out: &mut [u8]) -> Decoded<()> {
    let length = match codec {
        RAW if stored.len() == out.len() => {
            out.copy_from_slice(stored);
            out.len()
        }
        LZ4 => lz4_flex::block::decompress_into(stored, out)
            .map_err(|_| Malformed("a frame is no LZ4"))?,
        #[cfg(feature = "zstd")]
        ZSTD => zstd::bulk::decompress_to_buffer(stored, out)
            .map_err(|_| Malformed("a frame is no Zstandard"))?,
        #[cfg(not(feature = "zstd"))]
        ZSTD => return Err(Malformed("this program was built without Zstandard")),
        _ => return Err(Malformed("a frame is stored in an unknown way")),
    };
    if length != out.len() {
        return Err(Malformed("a frame is shorter than its pages"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compressed_comes_back() {
        let text: Vec<u8> = (0..16384u32).map(|n| (n / 100) as u8).collect();
        let mut random = fastrand::Rng::with_seed(1);
        let noise: Vec<u8> = (0..16384).map(|_| random.u8(..)).collect();
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd(3)] {
            for bytes in [&text, &noise] {
                let mut stored = Vec::new();
                let codec = compression.compress(bytes, &mut stored);
                let small = bytes == &text && compression != Compression::None;
                assert_eq!(codec != RAW, small && compression.is_available());
                if codec == RAW {
                    stored.clone_from(bytes);
                } else {
                    assert!(stored.len() < bytes.len() / 4);
                }
                let mut out = vec![0; bytes.len()];
                decompress(codec, &stored, &mut out).unwrap();
                assert_eq!(&out, bytes);
                let mut longer = vec![0; bytes.len() + 1];
                assert!(decompress(codec, &stored, &mut longer).is_err());
            }
        }
    }
}
