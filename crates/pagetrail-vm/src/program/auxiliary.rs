//! The auxiliary vector of a loaded program, as on its first stack.
//!
//! The kernel keeps the vector that it made for this process, and would show the program that one.

use crate::sys::program_memory::read_word;

/// The most entries that are read; no kernel makes as many.
const ENTRIES_MAX: usize = 64;

/// Reads the entries after a first stack's arguments and environment, with the one that ends them.
pub(crate) fn above(stack_pointer: u64) -> Vec<u8> {
    let mut words = (0..).map_while(|n| read_word(stack_pointer + n * 8).ok());
    let count = words.next().unwrap_or(0);
    let mut rest = words.skip(count as usize + 1).skip_while(|word| *word != 0);
    // The end of the environment.
    rest.next();
    let mut vector = Vec::new();
    for _ in 0..ENTRIES_MAX {
        let (Some(kind), Some(value)) = (rest.next(), rest.next()) else {
            break;
        };
        vector.extend(kind.to_le_bytes());
        vector.extend(value.to_le_bytes());
        if kind == 0 {
            break;
        }
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lies_behind_two_lists() {
        let stack: [u64; 11] = [2, 11, 12, 0, 13, 0, 3, 31, 9, 91, 0];
        let with_end = [&stack[..], &[0, 77]].concat();
        let expected: Vec<u8> = [3u64, 31, 9, 91, 0, 0]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        assert_eq!(above(with_end.as_ptr() as u64), expected);
        let empty: [u64; 5] = [0, 0, 0, 0, 0];
        assert_eq!(above(empty.as_ptr() as u64), [0; 16]);
    }
}
