//! A process that gets its pages as it touches them, and does to its memory what programs do
//! meanwhile, sees at every address what it must; where its pager ends, it ends.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stdout, reason = "tests print what they did")]
#![allow(
    clippy::zombie_processes,
    reason = "`Program` waits for its process by the PID"
)]

mod program;
#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use pagetrail::{PageRange, PageSet, page_size};
use pagetrail_checkpoint::Error::NotNow;
use pagetrail_checkpoint::{Image, ProcessCheckpointer, ProcessOptions};
use pagetrail_restore::{Error, RestoreOptions, check_lazily, restore_lazily};
use program::{Program, checkpoint, may_choose_pids, options};
use std::fs::File;
use std::time::Duration;
use support::{random, times};

/// Whether this machine lets a process have its pages lazily; otherwise the test is skipped.
fn may_be_lazy() -> bool {
    match check_lazily() {
        Ok(()) => may_choose_pids(),
        Err(error @ Error::NotLazily(_)) => {
            pagetrail_skips::not_here(error.to_string());
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// `tests/victims/lacking.c`, when all its memory is written.
fn lacking(pages: u32, seed: u32, child: bool) -> Option<Program> {
    if !may_be_lazy() {
        return None;
    }
    let numbers = [pages, seed].map(|number| number.to_string());
    let mut arguments = numbers.each_ref().map(String::as_str).to_vec();
    arguments.extend(child.then_some("child"));
    Program::of_victim("lacking", &arguments)
}

#[test]
fn the_order_of_touches_is_kept_and_serves_the_next() {
    let Some(running) = lacking(4096, 5, false) else {
        return;
    };
    let image = image_of(&running);
    let options = RestoreOptions {
        keep_touches: true,
        ..options()
    };
    let mut before = None;
    for _ in 0..2 {
        assert_eq!(image.first_touches(), before);
        let (_, pager) = restore_lazily(image.share(), &options).unwrap();
        let given = pager.finish().unwrap();
        assert_eq!(running.exit_code(), Some(0), "{}", running.text("output"));
        assert!(running.text("output").ends_with("clean\n"));
        assert!(given.kept_touches, "{given:?}");
        let order = image.first_touches().unwrap();
        // A page that it has waited for is in there.
        assert_eq!(order.is_empty(), given.faults == 0 && before.is_none());
        let pages = image.pages();
        assert!(order.iter().all(|range| pages.intersects(*range)));
        before = Some(order);
    }
}

/// Some range of pages: of the image, beside it, or of more than there is.
fn any_range(random: &mut fastrand::Rng, image: &PageSet) -> PageRange {
    let page = page_size();
    let some = image.ranges()[random.usize(..image.ranges().len())];
    let (start, pages) = match random.u32(..5) {
        0 => (some.start(), 1),
        1 => (
            some.start().saturating_sub(page * random.u64(..40)),
            random.u64(1..80),
        ),
        2 => (some.end() - page, random.u64(1..1 << 30)),
        3 => (0, u64::MAX / page),
        _ => (random.u64(..1 << 50) / page * page, random.u64(1..1 << 20)),
    };
    let end = start.saturating_add(pages.saturating_mul(page));
    PageRange::new(start, end / page * page).unwrap()
}

#[test]
fn an_order_from_elsewhere_changes_nothing_but_the_order() {
    let mut random = random("hostile orders");
    let Some(running) = lacking(2048, random.u32(..), false) else {
        return;
    };
    let image = image_of(&running);
    let pages = image.pages();
    let options = RestoreOptions {
        keep_touches: true,
        ..options()
    };
    for _ in 0..times(8, 300) {
        let mut order: Vec<PageRange> = (0..random.usize(..200))
            .map(|_| any_range(&mut random, &pages))
            .collect();
        if random.bool() {
            // The same again and again.
            order = order.repeat(20);
        }
        assert!(image.keep_first_touches(&order).unwrap());
        let (_, pager) = restore_lazily(image.share(), &options).unwrap();
        let given = pager.finish().unwrap();
        running.ends_clean();
        assert!(given.kept_touches, "{given:?}");
        // What is kept grows by what was touched, and no further.
        let kept = image.first_touches().unwrap();
        let most = order.len() + pages.page_count() as usize;
        assert!(kept.len() <= most, "{} ranges", kept.len());
    }
}

/// Its checkpoint; it is killed, and finds what it waits for when it runs again.
fn image_of(running: &Program) -> Image {
    let image = checkpoint(running.pid());
    running.kill();
    File::create(running.directory.path().join("go")).unwrap();
    image
}

#[test]
fn memory_is_what_it_was_whatever_is_done_to_it_meanwhile() {
    let mut random = random("lazy");
    for _ in 0..times(6, 300) {
        let Some(running) = lacking(4096, random.u32(..), false) else {
            return;
        };
        let image = image_of(&running);
        let (restored, pager) = restore_lazily(image, &options()).unwrap();
        assert_eq!(restored.pid, running.pid());
        assert!(restored.pages < 200, "{restored:?}");
        assert!(pager.lacking_pages() > 3800, "{pager:?}");
        // So that most of it is lacked when it is moved and discarded.
        std::thread::sleep(Duration::from_micros(random.u64(0..3000)));
        let given = pager.finish().unwrap();
        running.ends_clean();
        println!("{} pages given, {} waited for", given.pages, given.faults);
    }
}

#[test]
fn no_checkpoint_is_taken_while_pages_are_lacking() {
    let Some(running) = lacking(4096, 1, false) else {
        return;
    };
    let (restored, pager) = restore_lazily(image_of(&running), &options()).unwrap();
    let attach = || ProcessCheckpointer::attach(restored.pid, ProcessOptions::default());
    assert!(matches!(attach(), Err(NotNow(why)) if why.contains("may lack some")));
    pager.finish().unwrap();
    assert_eq!(running.exit_code(), Some(0), "{}", running.text("output"));
}

#[test]
fn a_program_that_is_checkpointed_again_and_again_goes_on_lazily() {
    if !may_be_lazy() {
        return;
    }
    let Some(running) = Program::of_victim("restored", &["4"]) else {
        return;
    };
    let mut random = random("lazy restore");
    for _ in 0..times(10, 300) {
        std::thread::sleep(Duration::from_micros(random.u64(0..20_000)));
        running.assert_running();
        let image = checkpoint(running.pid());
        running.kill();
        let (restored, pager) = restore_lazily(image, &options()).unwrap();
        assert_eq!((restored.pid, restored.threads), (running.pid(), 4));
        assert_eq!(restored.lost, [""; 0]);
        pager.finish().unwrap();
    }
    let before = running.text("alive");
    while running.text("alive") == before {
        running.assert_running();
        std::thread::sleep(Duration::from_millis(1));
    }
    File::create(running.directory.path().join("stop")).unwrap();
    running.ends_clean();
}

#[test]
fn a_child_has_its_pages_when_its_parent_ends_early() {
    let Some(running) = lacking(8192, 1, true) else {
        return;
    };
    let image = image_of(&running);
    let (_, pager) = restore_lazily(image, &options()).unwrap();
    std::thread::scope(|scope| {
        let paging = scope.spawn(|| pager.finish());
        running.await_output("child ");
        running.kill();
        File::create(running.directory.path().join("on")).unwrap();
        paging.join().unwrap().unwrap();
    });
    while !running.text("output").ends_with("the child is clean\n") {
        assert!(
            !running.text("output").contains("wrong"),
            "{}",
            running.text("output")
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn without_its_pager_it_ends() {
    let Some(running) = lacking(4096, 1, false) else {
        return;
    };
    let image = image_of(&running);
    let (_, pager) = restore_lazily(image, &options()).unwrap();
    drop(pager);
    assert_eq!(running.exit_code(), None);
    assert_eq!(running.text("output"), "ready\n");
}
