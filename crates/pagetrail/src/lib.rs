//! pagetrail tells which memory a program wrote, with the cheapest technique the machine offers.
#![deny(unsafe_code)]

mod page_set;
pub use page_set::{PageRange, PageSet, page_size};
