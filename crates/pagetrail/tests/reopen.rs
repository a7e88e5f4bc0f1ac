//! The current round can be opened again until it is committed.

use pagetrail::{Target, Watch, pages_of};

#[test]
fn the_current_round_exists_until_its_commit() {
    let mut buffer = vec![0u8; 1 << 16];
    let target = Target::ranges(pages_of(&buffer));
    let mut watch = Watch::builder().target(target).start().unwrap();
    assert!(watch.current_round().is_none(), "nothing is collected yet");

    buffer[30_000] = 1;
    let (collected, info) = {
        let round = watch.collect().unwrap();
        (
            round.dirty().clone(),
            (round.index(), round.duration(), round.cost()),
        )
    };
    assert!(collected.contains(&raw const buffer[30_000] as u64));
    for _ in 0..2 {
        let round = watch.current_round().unwrap();
        assert_eq!(*round.dirty(), collected);
        assert_eq!((round.index(), round.duration(), round.cost()), info);
    }
    watch.current_round().unwrap().commit();
    assert!(watch.current_round().is_none());
    let round = watch.collect().unwrap();
    assert!(!round.dirty().contains(&raw const buffer[30_000] as u64));
    assert_eq!(round.index(), 1);
}
