//! Memory that is saved while threads write to it, in a program that forks meanwhile: a child has
//! the descriptors of the snapshot, and no part in it.

mod sys;

use pagetrail_checkpoint::{CowSnapshot, Error};
use sys::{Child, Pages};

fn take(pages: Pages) -> Option<CowSnapshot> {
    match CowSnapshot::take(&[pages.range()].into_iter().collect()) {
        Err(Error::Refused(reason)) if reason.contains(" needs ") => {
            pagetrail_skips::not_here(&reason);
            None
        }
        outcome => Some(outcome.expect("a snapshot")),
    }
}

#[test]
fn a_child_is_refused_and_harms_no_snapshot_of_its_parent() {
    let pages = Pages::new(200);
    let Some(mut snapshot) = take(pages) else {
        return;
    };
    let child = Child::fork(|| {
        let read = snapshot.read_next(&mut Vec::new());
        u8::from(!matches!(read, Err(Error::Refused(reason)) if reason.contains("forked")))
    });
    assert_eq!(child.code(), Some(0));
    (0..200).for_each(|page| pages.write(page, 2));
    let mut buffer = Vec::new();
    while snapshot.read_next(&mut buffer).unwrap().is_some() {
        let mut firsts = buffer.iter().step_by(pagetrail::page_size() as usize);
        assert!(firsts.all(|first| *first == 1), "it was torn");
    }
    pages.unmap();
}
