//! Encodes and decodes what tracking cost in a round.

use super::{Decoded, Decoder, put_number};
use crate::Overhead;

pub(super) fn put_overhead(out: &mut Vec<u8>, overhead: &Overhead) {
    put_number(out, overhead.allowed_ppm);
    put_number(out, overhead.cost_ppm);
    put_number(out, overhead.faults);
    out.push(overhead.is_kept.into());
}

impl Decoder<'_> {
    pub(super) fn overhead(&mut self) -> Decoded<Overhead> {
        Ok(Overhead {
            allowed_ppm: self.number()?,
            cost_ppm: self.number()?,
            faults: self.number()?,
            is_kept: self.flag()?,
        })
    }
}
