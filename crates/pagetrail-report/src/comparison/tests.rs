//! Comparisons of recordings that are made up.

use super::*;
use crate::testing;

fn text(comparison: &Comparison, verdicts: &[Verdict]) -> String {
    let mut out = Vec::new();
    let style = Style {
        width: 100,
        colour: false,
    };
    comparison
        .write_text(verdicts, style, &mut out)
        .expect("a Vec takes all");
    String::from_utf8(out).expect("UTF-8")
}

/// The program, with its nursery written twice as much.
fn changed() -> Trail {
    let mut trail = testing::program(100);
    let nursery = trail.mappings[2].range;
    for round in &mut trail.rounds {
        let from = nursery.start() + u64::from(round.index) * 64 % 1024 * 4096;
        let more = testing::pages(from, 1024, 64);
        round.written.insert(more);
    }
    trail
}

#[test]
fn before_and_after() {
    let comparison = Comparison::of(&testing::program(100), &changed()).expect("comparable");
    insta::assert_snapshot!(text(&comparison, &[]));
    let nursery = &comparison.mappings()[0];
    assert_eq!(nursery.name, "anonymous");
    assert!(nursery.written.after.mean > 1.5 * nursery.written.before.mean);
    let heap = comparison.mappings().iter().find(|m| m.name == "[heap]");
    let heap = heap.expect("it is written");
    assert_eq!(heap.written.before, heap.written.after);
}

#[test]
fn a_recording_is_like_itself() {
    let trail = testing::program_with_stacks(40);
    let comparison = Comparison::of(&trail, &trail).expect("comparable");
    let functions = comparison.functions().iter();
    let lines = comparison.mappings().iter().chain(functions);
    for line in lines.chain([comparison.total()]) {
        assert_eq!(line.written.before, line.written.after, "{}", line.name);
        assert!(line.written.before.mean > 0.0);
    }
    let names: Vec<_> = comparison.functions().iter().map(|f| &f.name[..]).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    let all = pagetrail_trail::Analysis::of(&trail);
    let mean = comparison.total().written.before.mean;
    assert!((mean / all.pages_per_second.mean - 1.0).abs() < 1e-9);
    assert!(text(&comparison, &[]).contains("recurse"));
}

#[test]
fn conditions_are_judged() {
    let comparison = Comparison::of(&testing::program(100), &changed()).expect("comparable");
    let judge = |text: &str| -> Result<bool, BadCondition> {
        let verdict = text.parse::<Condition>()?.judge(&comparison)?;
        Ok(verdict.holds)
    };
    for (condition, holds) in [
        ("written>1.1x", true),
        ("written>10x", false),
        ("written:[heap]>1x", false),
        ("written:[heap]>=1x", true),
        ("written:anonymous>1.1x", true),
        ("written:libc.so.6<=1x", true),
        ("written<100", false),
        ("working-set:[stack]>0", true),
        ("working-set:[stack]>2", false),
    ] {
        assert_eq!(judge(condition), Ok(holds), "{condition}");
    }
    assert!(judge("written:absent>1x").is_err());
}

#[test]
fn every_form_is_written() {
    let mut hostile = changed();
    hostile.header.command = vec!["<script>\u{1b}[2J".into()];
    hostile.mappings[1].name = "/tmp/<b>\u{1b}\"".into();
    let comparison = Comparison::of(&testing::program(100), &hostile).expect("comparable");
    let verdict = Verdict {
        condition: "written:<i>\u{1b}>1".into(),
        holds: true,
        reason: "1 before".into(),
    };
    let said = text(&comparison, std::slice::from_ref(&verdict));
    assert!(!said.contains('\u{1b}'), "{said}");
    assert!(said.contains("FAIL: written:"), "{said}");
    let mut page = Vec::new();
    comparison
        .write_html(std::slice::from_ref(&verdict), &mut page)
        .expect("a Vec takes all");
    let page = String::from_utf8(page).expect("UTF-8");
    assert!(!page.contains("<script") && !page.contains("<b>") && !page.contains("<i>"));
    let mut json = Vec::new();
    comparison
        .write_json(&[verdict], &mut json)
        .expect("a Vec takes all");
    let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(json["conditions"][0]["fails"], true);
    assert!(json["total"]["pages_per_second"]["ratio"].as_f64() > Some(1.0));
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let trail = testing::program(3);
    let mut large = trail.clone();
    large.header.page_size = 65536;
    let of = |a: &Trail, b: &Trail| Comparison::of(a, b).map(|_| ());
    assert_eq!(
        of(&trail, &large),
        Err(Incomparable::PageSizes(4096, 65536))
    );
    assert_eq!(of(&trail, &testing::program(0)), Err(Incomparable::Empty));
    let accesses = testing::program_in_turns(4).only(AccessKind::Accesses);
    assert_eq!(of(&trail, &accesses), Err(Incomparable::AccessKinds));
    // Any numbers will do.
    let mut strange = trail.clone();
    strange.rounds[0].duration_ns = 0;
    strange.rounds[1].duration_ns = u64::MAX;
    strange.rounds[2].written = [pagetrail::PageRange::new(5, u64::MAX).expect("not empty")]
        .into_iter()
        .collect();
    let comparison = Comparison::of(&trail, &strange).expect("comparable");
    text(&comparison, &[]);
}
