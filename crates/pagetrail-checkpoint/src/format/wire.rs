//! The primitives of the format: fixed and variable-length numbers, bytes, text; little-endian.
//!
//! Reading never trusts a length: what is announced must be there before anything is allocated for
//! it.

use crate::hash::Hash;
use crate::limits;

/// Appends.
#[derive(Debug, Default)]
pub(crate) struct Encoder(pub(crate) Vec<u8>);

impl Encoder {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    /// LEB128: seven bits a byte, the lowest first, the highest bit set on all but the last.
    pub(crate) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.u8(value as u8);
    }

    pub(crate) fn hash(&mut self, hash: &Hash) {
        self.0.extend(hash.0);
    }

    /// The length as a number, then the bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// How many, then each.
    pub(crate) fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.number(items.len() as u64);
        items.iter().for_each(|item| each(self, item));
    }

    /// 0, or 1 and the value.
    pub(crate) fn option<T>(&mut self, item: Option<&T>, each: impl FnOnce(&mut Self, &T)) {
        self.u8(item.is_some().into());
        if let Some(item) = item {
            each(self, item);
        }
    }
}

/// What is not as the format says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

pub(crate) type Decoded<T> = Result<T, Malformed>;

/// Takes from the front.
#[derive(Debug)]
pub(crate) struct Decoder<'a>(pub(crate) &'a [u8]);

impl<'a> Decoder<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Decoded<&'a [u8]> {
        let (head, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Decoded<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Decoded<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Decoded<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn number(&mut self) -> Decoded<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            value |= bits << shift;
            if byte & 0x80 == 0 {
                // One form for each number: no bits beyond the 64th, no zeros at the end.
                let fits = bits << shift >> shift == bits;
                return if fits && (byte != 0 || shift == 0) {
                    Ok(value)
                } else {
                    Err(Malformed("a number in a form of its own"))
                };
            }
        }
        Err(Malformed("a number without end"))
    }

    pub(crate) fn number_u32(&mut self) -> Decoded<u32> {
        u32::try_from(self.number()?).map_err(|_| Malformed("a number is too large"))
    }

    pub(crate) fn hash(&mut self) -> Decoded<Hash> {
        Ok(Hash(self.array()?))
    }

    pub(crate) fn bytes(&mut self) -> Decoded<&'a [u8]> {
        let count = self.number()?;
        self.take(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Bytes that are not UTF-8 are refused: none were written.
    pub(crate) fn text(&mut self) -> Decoded<String> {
        let bytes = self.bytes()?;
        let text = std::str::from_utf8(bytes).map_err(|_| Malformed("a text is not UTF-8"))?;
        Ok(text.to_owned())
    }

    pub(crate) fn list<T>(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Decoded<T>,
    ) -> Decoded<Vec<T>> {
        let count = self.number()?;
        // Each takes a byte at least.
        if count > self.0.len() as u64 {
            return Err(Malformed("a list is longer than the file"));
        }
        if count.saturating_mul(size_of::<T>() as u64) > limits::bytes_at_once() {
            return Err(Malformed("a list is impossibly long"));
        }
        (0..count).map(|_| each(self)).collect()
    }

    pub(crate) fn option<T>(
        &mut self,
        each: impl FnOnce(&mut Self) -> Decoded<T>,
    ) -> Decoded<Option<T>> {
        match self.u8()? {
            0 => Ok(None),
            1 => each(self).map(Some),
            _ => Err(Malformed("neither something nor nothing")),
        }
    }

    pub(crate) fn end(&self) -> Decoded<()> {
        match self.0 {
            [] => Ok(()),
            _ => Err(Malformed("there is more than there should be")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_form() {
        for value in [
            0,
            1,
            127,
            128,
            300,
            u64::from(u32::MAX),
            u64::MAX - 1,
            u64::MAX,
        ] {
            let mut encoder = Encoder::default();
            encoder.number(value);
            let mut decoder = Decoder(&encoder.0);
            assert_eq!(decoder.number(), Ok(value));
            assert_eq!(decoder.end(), Ok(()));
        }
        for wrong in [
            &[0x80, 0x00][..],
            &[0x80],
            &[0xff; 10],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
        ] {
            assert!(Decoder(wrong).number().is_err(), "{wrong:x?}");
        }
    }
}
