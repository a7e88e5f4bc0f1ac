//! For tests of readers: random damage, with seeds that repeat it.

/// Calls `check` with one generator per iteration; a failure names the seed that repeats it alone.
#[allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the test harness shows it"
)]
pub(crate) fn for_seeds(iterations: u64, check: impl Fn(&mut fastrand::Rng)) {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let seed = self.0;
                eprintln!("repeat with PAGETRAIL_SEED={seed} PAGETRAIL_FUZZ_ITERATIONS=1");
            }
        }
    }
    let setting = |name: &str, default: u64| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}: {text}")),
        Err(_) => default,
    };
    let first = setting("PAGETRAIL_SEED", 1);
    let iterations = setting("PAGETRAIL_FUZZ_ITERATIONS", iterations);
    println!("seeds {first} to {}", first + iterations.saturating_sub(1));
    for seed in first..first + iterations {
        let named = Named(seed);
        check(&mut fastrand::Rng::with_seed(seed));
        drop(named);
    }
}

/// Changes, inserts, drops, doubles or cuts bytes.
pub(crate) fn mutate(random: &mut fastrand::Rng, bytes: &mut Vec<u8>) {
    for _ in 0..random.usize(1..4) {
        let at = random.usize(0..=bytes.len());
        let end = bytes.len().min(at + random.usize(0..20));
        match random.u8(0..6) {
            0 | 1 => bytes[at..end]
                .iter_mut()
                .take(1)
                .for_each(|byte| *byte ^= 1 << random.u8(..8)),
            2 => drop(bytes.splice(at..at, (0..random.u8(1..9)).map(|_| random.u8(..)))),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let copy = bytes[at..end].to_vec();
                let to = random.usize(0..=bytes.len());
                bytes.splice(to..to, copy);
            }
            _ => bytes.truncate(at),
        }
    }
}
