//! The page of made-up recordings: safe, small, complete.

use super::*;
use crate::testing;

fn page(trail: &Trail) -> String {
    let mut out = Vec::new();
    write(&Recording::of(trail), &mut out).expect("a Vec takes all");
    String::from_utf8(out).expect("the page is UTF-8")
}

/// The page of several processes, of which each wrote more than the one before it.
fn page_of(count: usize) -> String {
    let trails: Vec<Trail> = (0..count)
        .map(|number| {
            let mut trail = testing::program(10 + number as u32);
            trail.header.pid = 100 + number as u32;
            trail.header.command = vec![format!("<worker {number}>")];
            trail
        })
        .collect();
    let recordings: Vec<_> = trails.iter().map(Recording::of).collect();
    let mut out = Vec::new();
    write_all(&recordings, &mut out).expect("a Vec takes all");
    String::from_utf8(out).expect("the page is UTF-8")
}

#[test]
fn of_several_processes_one_is_shown_and_each_can_be_chosen() {
    let page = page_of(3);
    assert_eq!(page.matches("<article class=\"process\">").count(), 1);
    assert_eq!(
        page.matches("<article class=\"process\" hidden>").count(),
        2
    );
    for pid in 100..103 {
        assert_eq!(page.matches(&format!("<option value=\"{pid}\"")).count(), 1);
    }
    // The one that wrote most.
    let selected = "<option value=\"102\" selected>102 ";
    assert_eq!(page.matches(" selected>").count(), 1);
    assert!(page.contains(selected));
    assert!(page.contains("&lt;worker 2&gt;") && !page.contains("<worker 2>"));
    // No two elements have one name.
    let ids: Vec<&str> = page
        .split(" id=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    let different: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(different.len(), ids.len(), "{ids:?}");
    assert!(!page_of(1).contains("<select"));
}

#[test]
fn of_many_processes_the_first_and_those_that_wrote_most_are_shown() {
    let page = page_of(30);
    assert_eq!(page.matches("<option ").count(), PROCESSES_MAX);
    assert!(
        page.contains("<option value=\"100\">") && page.contains("<option value=\"129\" selected>")
    );
    assert!(!page.contains("<option value=\"101\">"));
    assert!(page.contains("and 6 that wrote less"));
}

#[test]
fn needs_nothing_but_itself() {
    testing::assert_self_contained(&page(&testing::program(60)));
}

#[test]
fn text_of_the_program_stays_text() {
    let evil = "</script><script>alert(1)</script><img onerror='x' alt=\"{{table-js}}\">&<!--";
    let mut trail = testing::program(60);
    trail.header.command = vec![evil.into()];
    trail.header.reason = evil.into();
    for mapping in &mut trail.mappings {
        mapping.name = evil.into();
        mapping.untracked = mapping.untracked.as_ref().map(|_| evil.into());
    }
    trail.rounds[2]
        .events
        .push(pagetrail_trail::Event::Note(evil.into()));
    let hostile = page(&trail);
    let count = |text: &str, what: &str| text.matches(what).count();
    let tame = page(&testing::program(60));
    for tag in ["<script", "</script", "<img", "<!--"] {
        assert_eq!(count(&hostile, tag), count(&tame, tag), "{tag}");
    }
    // Unchanged where it is read: the data block holds it as JSON.
    let (_, data) = hostile
        .split_once("class=\"data\">")
        .expect("there is data");
    let (data, _) = data.split_once("</script>").expect("it ends");
    let value: serde_json::Value = serde_json::from_str(data).expect("it is JSON");
    assert_eq!(value["bands"][0]["name"], evil);
}

#[test]
fn accesses_get_a_map_of_their_own() {
    let count = |trail: &Trail, what: &str| page(trail).matches(what).count();
    let (writes, both) = (testing::program(20), testing::program_in_turns(20));
    assert_eq!(count(&writes, "<section class=\"map\""), 1);
    assert_eq!(count(&both, "<section class=\"map\""), 2);
    assert_eq!(count(&both, "Pages accessed"), 1);
    // Every row of the table has a cell under every head.
    for trail in [&writes, &both] {
        let page = page(trail);
        let heads = page.matches("<th ").count();
        let rows = page.split("<tr").skip(2).take(trail.mappings.len());
        for row in rows {
            assert_eq!(row.matches("<td").count(), heads, "{row}");
        }
    }
}

#[test]
fn has_a_tile_for_each_fact_and_the_working_set_once() {
    let page = page(&testing::program_in_turns(120));
    let titles = |title: &str| page.matches(&format!("<dt>{title}</dt>")).count();
    for title in [
        "Technique",
        "Duration",
        "Different pages written",
        "Different pages accessed",
        "Write rate",
        "Write working set",
        "Reuse",
        "Stopped to attach",
        "Collect, median",
    ] {
        assert_eq!(titles(title), 1, "{title}");
    }
}

#[test]
fn stays_small_when_the_recording_is_long() {
    let page = page(&testing::program(20_000));
    assert!(page.len() < 4 << 20, "{} bytes", page.len());
    assert!(page.contains("reduced resolution"));
}
