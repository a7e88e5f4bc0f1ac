//! In which order pages were needed is kept beside a checkpoint, serves those that build on it, and
//! goes with it; where it is damaged, that is said, and nothing else is lost.

mod common;

use common::{Model, contents, range, store};
use pagetrail_checkpoint::storage::{InMemory, Name, Storage};
use pagetrail_checkpoint::{Store, Writer, WriterOptions};

/// A store of so many checkpoints of eight pages.
fn chain(checkpoints: u64) -> (InMemory, Store, Writer, Model) {
    let (memory, store, mut writer) = store(WriterOptions::default());
    let mut model = Model::default();
    model.map(0, 8);
    for number in 0..checkpoints {
        model.write(number % 8, contents(number));
        model.checkpoint(&mut writer).unwrap();
    }
    (memory, store, writer, model)
}

#[test]
fn an_order_serves_its_checkpoint_and_later_ones_until_they_go() {
    let (memory, store, writer, mut model) = chain(2);
    let image = store.image(2).unwrap();
    assert_eq!(image.first_touches(), None);
    let order = vec![range(5, 6), range(1, 3), range(7, 8)];
    assert!(
        !image.keep_first_touches(&order).unwrap(),
        "a writer is at work"
    );
    drop(writer);
    assert!(image.keep_first_touches(&order).unwrap());
    assert_eq!(image.first_touches(), Some(order.clone()));
    // Not what it builds on: that one may have had other memory.
    assert_eq!(store.image(1).unwrap().first_touches(), None);
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    model.write(3, contents(77));
    model.checkpoint(&mut writer).unwrap();
    assert_eq!(store.image(3).unwrap().first_touches(), None, "a base");
    model.write(4, contents(78));
    model.checkpoint(&mut writer).unwrap();
    drop(writer);
    let (base, last) = (store.image(3).unwrap(), store.image(4).unwrap());
    assert!(base.keep_first_touches(&order).unwrap());
    assert_eq!(last.first_touches(), Some(order.clone()));
    // Its own comes first, and a newer one replaces it.
    for pages in [2, 3] {
        let own = vec![range(0, pages)];
        assert!(last.keep_first_touches(&own).unwrap());
        assert_eq!(last.first_touches(), Some(own));
    }
    assert!(store.verify().unwrap().is_sound());
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    assert_eq!(writer.prune(1).unwrap().checkpoints, 3);
    let touches = memory.names().unwrap().into_iter();
    let touches: Vec<Name> = touches.filter(|n| matches!(n, Name::Touches(_))).collect();
    assert_eq!(touches, [Name::Touches(4)]);
    drop(writer);
    // Of a checkpoint that has gone none is kept.
    assert!(!base.keep_first_touches(&order).unwrap());
}

#[test]
fn damage_costs_the_order_alone() {
    let (memory, store, writer, model) = chain(1);
    drop(writer);
    let image = store.image(1).unwrap();
    assert!(image.keep_first_touches(&[range(0, 4)]).unwrap());
    let name = Name::Touches(1);
    let whole = memory.get(name).unwrap();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        memory.put(name, damaged);
        assert_eq!(image.first_touches(), None, "byte {at}");
        let found = store.verify().unwrap();
        assert_eq!((found.damages.len(), found.lost.len()), (1, 0), "{found:?}");
    }
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    assert_eq!(writer.repair().unwrap().set_aside, [name.to_string()]);
    assert!(store.verify().unwrap().is_sound());
    model.assert_is(&mut store.image(1).unwrap());
}
