//! Checkpoints of the own program that are published while it goes on.

#[path = "common/faulty.rs"]
mod faulty;

use faulty::{Fault, Faulty};
use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{Checkpointer, Store};
use std::sync::Arc;

const BYTES: usize = 1 << 20;

fn start(store: &Store) -> Checkpointer {
    let kept = Checkpointer::builder_on(Ok(store.clone()));
    let kept = kept.region("a", BYTES).region("b", 5000);
    kept.start().unwrap()
}

/// Changes some bytes.
fn write(kept: &mut Checkpointer, random: &mut fastrand::Rng) {
    for _ in 0..random.usize(1..200) {
        kept.region_mut("a")[random.usize(0..BYTES)] = random.u8(..);
        kept.region_mut("b")[random.usize(0..5000)] = random.u8(..);
    }
}

fn contents(kept: &Checkpointer) -> (Vec<u8>, Vec<u8>) {
    (kept.region("a").to_vec(), kept.region("b").to_vec())
}

#[test]
fn what_is_published_is_what_the_regions_held_when_it_began() {
    let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    for n in 1..=12 {
        let mut kept = start(&store);
        write(&mut kept, &mut random);
        let then = contents(&kept);
        let completion = kept.checkpoint_in_background().unwrap();
        // The program goes on at once, and the next checkpoint waits for this one.
        write(&mut kept, &mut random);
        let later = contents(&kept);
        let expected = match n % 3 {
            0 => {
                assert_eq!(
                    kept.checkpoint().unwrap().parent.map(|p| p.number),
                    store.newest().ok().map(|n| n - 1)
                );
                later
            }
            1 => {
                assert!(completion.wait().is_ok());
                then
            }
            // Dropping waits, too.
            _ => then,
        };
        drop(kept);
        assert!(contents(&start(&store)) == expected, "round {n}");
    }
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn what_failed_in_the_background_the_next_checkpoint_has() {
    let mut failed = 0;
    for at in 0..30 {
        let memory = InMemory::new();
        let faulty = Arc::new(Faulty::new(memory.clone(), at, Fault::Once));
        let Ok(store) = Store::create_on(faulty) else {
            continue;
        };
        let mut random = fastrand::Rng::with_seed(at);
        let mut kept = start(&store);
        for _ in 0..4 {
            write(&mut kept, &mut random);
            if let Ok(completion) = kept.checkpoint_in_background() {
                failed += u32::from(completion.wait().is_err());
            }
        }
        write(&mut kept, &mut random);
        let last = contents(&kept);
        while kept
            .checkpoint_in_background()
            .and_then(|c| c.wait())
            .is_err()
        {}
        drop(kept);
        let store = Store::on(Arc::new(memory)).unwrap();
        assert!(store.verify().unwrap().is_sound());
        assert!(contents(&start(&store)) == last, "a fault at step {at}");
    }
    assert!(failed > 5, "{failed}");
}
