//! A guest of KVM is saved in increments while it runs, and goes on from the store in another
//! virtual machine, whose memory comes on demand: all bytes are compared.

use crate::store::{StopOnDrop, contents, memories, registered, restore, stored, writer};
use crate::sys::guest::{Guest, How};
use pagetrail_vmm::store::Snapshots;
use pagetrail_vmm::{Start, Tracker};

const MIB: u64 = 1 << 20;

#[test]
fn a_guest_goes_on_from_its_snapshots() {
    let page = pagetrail::page_size() as u32;
    for how in [How::Log, How::ManualLog, How::Ring(1 << 20)] {
        let mut guest = match Guest::new(how, memories(true)) {
            Ok(guest) => guest,
            Err(why) => return pagetrail_skips::not_here(format!("{how:?}: {why}")),
        };
        let directory = tempfile::tempdir().unwrap();
        let tracker = Tracker::new(guest.regions(), vec![guest.log()]).unwrap();
        let consumer = tracker.consumer(Start::Everything).unwrap();
        let mut snapshots = Snapshots::new(writer(directory.path()), consumer);
        let mut number = 0;
        for value in 1..5 {
            let mut snapshot = snapshots.begin().unwrap();
            guest.write(8 * MIB + 12, 40 * value, page, value, || {});
            snapshot.copy().unwrap();
            guest.write(8 * MIB + 16, 9, 3 * page, value + 100, || {});
            // KVM may report the code, too, when it is mapped.
            let copied = snapshot.copy().unwrap();
            assert!((9..=10).contains(&copied), "{how:?}, {copied}");
            number = snapshot.publish().unwrap().number;
        }
        let mut expected = contents(&guest.memories);
        assert!(
            stored(directory.path(), number, &guest.memories) == expected,
            "{how:?}"
        );
        drop(guest);

        let restored = memories(true);
        let Some(uffd) = registered(&restored) else {
            return;
        };
        let mut restore = restore(directory.path(), &restored, &uffd).without_prefetch();
        let ends = StopOnDrop(restore.stopper());
        let mut guest = Guest::over(how, restored).unwrap();
        std::thread::scope(|scope| {
            let serving = scope.spawn(move || restore.serve().map(|_| restore.missing_pages()));
            // Code and memory are fetched by the guest's own accesses.
            guest.write(8 * MIB + 20, 5, 30 * page, 0x0102_0304, || {});
            for at in 0..5 {
                let from = (20 + at * 30 * page) as usize;
                expected[1][from..from + 4].copy_from_slice(&[4, 3, 2, 1]);
            }
            assert!(contents(&guest.memories) == expected, "{how:?}");
            drop(ends);
            serving.join().unwrap().unwrap();
        });
    }
}
