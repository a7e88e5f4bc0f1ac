//! The suite `processor`: arithmetic, after Aim9's operations, Nbench's sorts, bit fields, Fourier
//! transforms and decompositions, and Scimark's Monte Carlo integration.

use std::f64::consts::TAU;
use std::hint::black_box;

use anyhow::{Result, ensure};

use super::{Done, Work, timed};
use crate::random::Random;

pub(crate) const ALL: &[Work] = &[
    Work::new("integers", integers),
    Work::new("floats", floats),
    Work::new("sort", sort),
    Work::new("bits", bits),
    Work::new("decomposition", decomposition),
    Work::new("fourier", fourier),
    Work::new("monte-carlo", monte_carlo),
];

/// Additions, multiplications and divisions, each of which needs the one before.
fn integers() -> Result<Done> {
    const TIMES: u64 = 6_000_000;
    timed(|| {
        let mut number = 0;
        for _ in 0..TIMES {
            number = (black_box(number) + 7) * black_box(3) / black_box(3) - black_box(6);
        }
        Ok(number)
    })?
    .is(TIMES)
}

/// Operations on floating-point numbers, all of which are exact here.
fn floats() -> Result<Done> {
    const TIMES: u64 = 6_000_000;
    timed(|| {
        let mut number = 0.0;
        for _ in 0..TIMES {
            number = (black_box(number) + 7.0) * black_box(4.0) / black_box(4.0) - black_box(6.0);
        }
        Ok(number as u64)
    })?
    .is(TIMES)
}

fn sort() -> Result<Done> {
    let mut random = Random::new(1);
    let mut numbers: Vec<u64> = (0..600_000).map(|_| random.next()).collect();
    let sum = |numbers: &[u64]| numbers.iter().fold(0, |sum: u64, n| sum.wrapping_add(*n));
    let expected = sum(&numbers);
    let done = timed(|| {
        numbers.sort_unstable();
        Ok(sum(&numbers))
    })?;
    ensure!(numbers.is_sorted(), "the numbers are not sorted");
    done.is(expected)
}

/// The sieve of Eratosthenes, a bit for each number.
fn bits() -> Result<Done> {
    const BELOW: usize = 8_000_000;
    let mut composite = vec![0u64; BELOW / 64 + 1];
    let done = timed(|| {
        let mut primes = 0;
        for number in 2..BELOW {
            if composite[number / 64] >> (number % 64) & 1 == 1 {
                continue;
            }
            primes += 1;
            for multiple in (number.saturating_mul(number)..BELOW).step_by(number) {
                composite[multiple / 64] |= 1 << (multiple % 64);
            }
        }
        Ok(primes)
    })?;
    done.is(539_777)
}

/// LU decomposition of a matrix whose solution is known.
fn decomposition() -> Result<Done> {
    const N: usize = 320;
    let mut random = Random::new(2);
    let mut matrix = vec![0.0; N * N];
    for row in 0..N {
        for column in 0..N {
            // A strong diagonal needs no pivots.
            let diagonal = if row == column { N as f64 } else { 0.0 };
            matrix[row * N + column] = random.share() + diagonal;
        }
    }
    // The solution is 1 everywhere.
    let mut right: Vec<f64> = matrix.chunks(N).map(|row| row.iter().sum()).collect();
    let done = timed(|| {
        for pivot in 0..N {
            for row in pivot + 1..N {
                let factor = matrix[row * N + pivot] / matrix[pivot * N + pivot];
                let (above, below) = matrix.split_at_mut(row * N);
                let from = &above[pivot * N + pivot..(pivot + 1) * N];
                for (to, from) in below[pivot..N].iter_mut().zip(from) {
                    *to -= factor * from;
                }
                right[row] -= factor * right[pivot];
            }
        }
        for row in (0..N).rev() {
            let known = (row + 1..N).map(|column| matrix[row * N + column] * right[column]);
            right[row] = (right[row] - known.sum::<f64>()) / matrix[row * N + row];
        }
        Ok(N as u64)
    })?;
    let worst = right.iter().map(|x| (x - 1.0).abs()).fold(0.0, f64::max);
    ensure!(worst < 1e-9, "the solution is off by {worst}");
    Ok(done)
}

/// Forth and back.
fn fourier() -> Result<Done> {
    const N: usize = 1 << 17;
    let mut random = Random::new(3);
    let before: Vec<(f64, f64)> = (0..N).map(|_| (random.share(), 0.0)).collect();
    let mut values = before.clone();
    let done = timed(|| {
        transform(&mut values, 1.0);
        transform(&mut values, -1.0);
        Ok(N as u64)
    })?;
    let pairs = values.iter().zip(&before);
    let worst = pairs
        .map(|(after, before)| (after.0 / N as f64 - before.0).abs())
        .fold(0.0, f64::max);
    ensure!(worst < 1e-9, "the transform is off by {worst}");
    Ok(done)
}

/// The fast Fourier transform in place (Cooley, Tukey), not normalised.
fn transform(values: &mut [(f64, f64)], direction: f64) {
    let bits = values.len().trailing_zeros();
    for at in 0..values.len() {
        let other = at.reverse_bits() >> (usize::BITS - bits);
        if at < other {
            values.swap(at, other);
        }
    }
    let mut half = 1;
    while half < values.len() {
        let angle = direction * TAU / (2 * half) as f64;
        let roots: Vec<(f64, f64)> = (0..half)
            .map(|k| (angle * k as f64).sin_cos())
            .map(|(sin, cos)| (cos, sin))
            .collect();
        for block in values.chunks_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for ((low, high), root) in low.iter_mut().zip(high).zip(&roots) {
                let turned = (
                    high.0 * root.0 - high.1 * root.1,
                    high.0 * root.1 + high.1 * root.0,
                );
                *high = (low.0 - turned.0, low.1 - turned.1);
                *low = (low.0 + turned.0, low.1 + turned.1);
            }
        }
        half *= 2;
    }
}

/// The area of a quarter of a circle.
fn monte_carlo() -> Result<Done> {
    const POINTS: u64 = 12_000_000;
    let mut random = Random::new(4);
    let done = timed(|| {
        let inside = (0..POINTS).filter(|_| {
            let (x, y) = (random.share(), random.share());
            x * x + y * y < 1.0
        });
        Ok(inside.count() as u64)
    })?;
    let pi = 4.0 * done.result as f64 / POINTS as f64;
    ensure!((pi - std::f64::consts::PI).abs() < 0.003, "pi is {pi}");
    Ok(done)
}
