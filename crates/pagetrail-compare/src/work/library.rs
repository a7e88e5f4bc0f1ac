//! The suite `library`: what programs use libraries for, after Aim9's.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::hint::black_box;

use anyhow::{Result, ensure};

use super::{Done, Work, timed};
use crate::random::Random;

pub(crate) const ALL: &[Work] = &[
    Work::new("copy", copy),
    Work::new("numbers", numbers),
    Work::new("words", words),
    Work::new("trigonometry", trigonometry),
    Work::new("maps", maps),
    Work::new("allocate", allocate),
];

fn copy() -> Result<Done> {
    const BYTES: usize = 8 << 20;
    const TIMES: u64 = 40;
    let from = vec![1u8; BYTES];
    let mut to = vec![0u8; BYTES];
    timed(|| {
        let mut sum = 0;
        for _ in 0..TIMES {
            to.copy_from_slice(black_box(&from));
            sum += u64::from(black_box(&to)[BYTES - 1]);
        }
        Ok(sum)
    })?
    .is(TIMES)
}

/// Numbers to text and back.
fn numbers() -> Result<Done> {
    const COUNT: u64 = 150_000;
    let mut text = String::new();
    timed(|| {
        let mut sum = 0;
        for number in 0..COUNT {
            text.clear();
            write!(text, "{} {:.3}", number, number as f64 / 8.0)?;
            let mut parts = text.split(' ');
            sum += parts.next().unwrap_or_default().parse::<u64>()?;
            let half = parts.next().unwrap_or_default().parse::<f64>()?;
            sum += (half * 8.0) as u64;
        }
        Ok(sum)
    })?
    .is(COUNT * (COUNT - 1))
}

fn words() -> Result<Done> {
    let mut random = Random::new(7);
    let mut words: Vec<String> = (0..120_000)
        .map(|_| format!("{:016x}", random.next()))
        .collect();
    let done = timed(|| {
        words.sort();
        let joined = words.join(" ");
        Ok(joined.split(' ').filter(|word| word.contains('a')).count() as u64)
    })?;
    ensure!(words.is_sorted(), "the words are not sorted");
    let expected = words.iter().filter(|word| word.contains('a')).count();
    done.is(expected as u64)
}

fn trigonometry() -> Result<Done> {
    const COUNT: u64 = 2_000_000;
    timed(|| {
        let right = (0..COUNT).filter(|number| {
            let (sin, cos) = black_box(*number as f64).sin_cos();
            (sin * sin + cos * cos - 1.0).abs() < 1e-12
        });
        Ok(right.count() as u64)
    })?
    .is(COUNT)
}

fn maps() -> Result<Done> {
    const COUNT: u64 = 80_000;
    timed(|| {
        let mut random = Random::new(8);
        let keys: Vec<u64> = (0..COUNT).map(|_| random.next()).collect();
        let hashed: HashMap<u64, u64> = keys.iter().copied().zip(0..).collect();
        let sorted: BTreeMap<u64, u64> = keys.iter().copied().zip(0..).collect();
        let same = keys.iter().filter(|key| hashed[key] == sorted[key]);
        Ok(same.count() as u64)
    })?
    .is(COUNT)
}

/// Objects of many sizes, freed in another order.
fn allocate() -> Result<Done> {
    const COUNT: usize = 1_000_000;
    let mut random = Random::new(9);
    let mut kept: Vec<Vec<u8>> = vec![Vec::new(); 4096];
    timed(|| {
        let mut right = 0;
        for number in 0..COUNT {
            let mut object = Vec::with_capacity(16 + random.below(1000));
            object.push(number as u8);
            let place = random.below(kept.len());
            right += u64::from(object[0] == number as u8);
            kept[place] = object;
        }
        Ok(right)
    })?
    .is(COUNT as u64)
}
