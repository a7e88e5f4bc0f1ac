//! Rounds of a watch on the own process.

use super::*;
use crate::target::Target;

#[test]
fn mappings_followed_before_a_collect_are_in_its_round() {
    let builder = Watch::builder().target(Target::own());
    let mut watch = match builder.technique(Technique::PagemapScan).start() {
        Ok(watch) => watch,
        Err(error) => return pagetrail_skips::not_here(&error),
    };
    watch.collect().unwrap().commit();
    let mut buffer = vec![1_u8; 8 << 20];
    let address = |buffer: &[u8]| &raw const buffer[5 << 20] as u64;
    watch.follow_mappings().unwrap();
    let round = watch.collect().unwrap();
    assert!(round.dirty().contains(address(&buffer)));
    round.commit();
    watch.follow_mappings().unwrap();
    buffer[5 << 20] = 2;
    let round = watch.collect().unwrap();
    assert!(round.dirty().contains(address(&buffer)));
    round.commit();
}
