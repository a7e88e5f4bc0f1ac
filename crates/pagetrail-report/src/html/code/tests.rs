//! The counts against the recording, in Rust and, where Node is at hand, by the page's own scripts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};

use pagetrail::PageSet;
use pagetrail_trail::{Attribution, Frame, Module, Stack, StackTable, StackWrites, Thread};
use serde_json::{Value, json};

use super::*;
use crate::testing::{self, mapping, pages};
use crate::{Recording, bands};

const BASE: u64 = 0x7f00_0000_0000;

/// A recording of one page per row and one round per column, in which functions `f0`, `f1` .. call
/// each other at random and write pages at random, others of which have no sample.
fn random_trail(seed: u64, rounds: u32, page_count: u64, functions: u32, stacks: u32) -> Trail {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut trail = testing::program(rounds);
    let part = page_count / 3;
    trail.mappings = vec![
        mapping(pages(BASE, 0, part), "[heap]", 0),
        mapping(pages(BASE, part, part), "/lib/a.so", 0),
        mapping(pages(BASE, 2 * part, page_count - 2 * part), "", 0),
    ];
    trail.stacks = StackTable {
        modules: vec![Module::default()],
        frames: (0..functions)
            .map(|number| Frame {
                module: Some(0),
                address: u64::from(number),
                function: format!("f{number}"),
            })
            .collect(),
        stacks: (0..stacks)
            .map(|_| Stack {
                in_kernel: random.u8(0..4) == 0,
                frames: (0..random.usize(1..6))
                    .map(|_| random.u32(0..functions))
                    .collect(),
            })
            .collect(),
        threads: vec![Thread {
            id: 1,
            name: "worker".into(),
        }],
    };
    for round in &mut trail.rounds {
        let mut writers = BTreeMap::<u32, PageSet>::new();
        round.written = PageSet::new();
        round.newly_mapped = PageSet::new();
        for page in 0..page_count {
            let range = pages(BASE, page, 1);
            match random.u8(0..10) {
                0..4 => round.written.insert(range),
                4..7 => {
                    round.written.insert(range);
                    let stack = random.u32(0..stacks);
                    writers.entry(stack).or_default().insert(range);
                }
                _ => {}
            }
        }
        let writers = writers.into_iter().map(|(stack, pages)| StackWrites {
            stack,
            thread: 1,
            pages,
        });
        round.attribution = Some(Attribution {
            period: 1,
            lost: 0,
            writers: writers.collect(),
        });
    }
    trail
}

fn code(trail: &Trail, maps: usize) -> (Code, Heatmap, Vec<Band>) {
    let heat = Heatmap::of(trail, 640, 1600);
    let bands = bands::bands(trail, &heat);
    let code = Code::of(trail, &heat, &bands, maps).expect("it was sampled");
    (code, heat, bands)
}

/// Page writes of all counts, and how many there are.
fn sum(code: &Code) -> (u64, usize) {
    let bytes = BASE64.decode(&code.counts).expect("base64");
    let mut numbers = vec![0_u64];
    let mut shift = 0;
    for byte in bytes {
        *numbers.last_mut().expect("one") |= u64::from(byte & 127) << shift;
        shift += 7;
        if byte & 128 == 0 {
            numbers.push(0);
            shift = 0;
        }
    }
    let pages = numbers.iter().skip(1).step_by(2);
    (pages.sum(), (numbers.len() - 1) / 2)
}

fn sampled(trail: &Trail) -> u64 {
    let attributions = trail.rounds.iter().filter_map(|r| r.attribution.as_ref());
    attributions.map(Attribution::page_count).sum()
}

#[test]
fn every_sampled_page_is_counted_once_and_by_its_period() {
    let trail = random_trail(3, 40, 60, 8, 20);
    let (counts, _, bands) = code(&trail, 1);
    assert_eq!((counts.columns_per_cell, counts.rows_per_cell), (1, 1));
    assert_eq!(bands.iter().map(|band| band.rows.len()).sum::<usize>(), 60);
    assert_eq!(sum(&counts).0, sampled(&trail));
    // As in the table of functions.
    let trail = testing::program_with_stacks(2);
    let writers = crate::writers::Writers::of(&trail).expect("sampled");
    assert_eq!(sum(&code(&trail, 1).0).0, writers.pages());
    assert!(Code::of(&testing::program(4), &Heatmap::default(), &[], 1).is_none());
}

#[test]
fn counts_are_bounded_and_keep_their_sum() {
    let trail = random_trail(5, 900, 300, 60, 3000);
    for maps in [1, 24] {
        let (code, ..) = code(&trail, maps);
        let (pages, counts) = sum(&code);
        assert!(counts <= COUNTS_MAX / maps, "{counts}");
        assert!(code.parents.len() <= NODES_MAX / maps + 1);
        assert!(code.columns_per_cell > 1 && code.rows_per_cell > 1);
        // Each count is rounded.
        assert!(pages.abs_diff(sampled(&trail)) <= 1, "{pages}");
        assert!(code.names.iter().any(|name| name == REST));
        let json = serde_json::to_string(&code).expect("plain data");
        assert!(json.len() < 1 << 20, "{}", json.len());
    }
}

#[test]
fn no_recording_is_too_strange() {
    let mut trail = random_trail(1, 6, 30, 4, 6);
    for round in &mut trail.rounds {
        let attribution = round.attribution.as_mut().expect("sampled");
        attribution.period = u32::MAX;
        for writes in &mut attribution.writers {
            writes.stack = u32::MAX;
            writes
                .pages
                .insert(PageRange::new(3, u64::MAX).expect("not empty"));
        }
    }
    trail.stacks.threads[0].name = "x".repeat(100_000);
    let (code, ..) = code(&trail, 1);
    assert!(code.names.iter().all(|name| name.len() <= NAME_CHARS_MAX));
}

/// Runs a script by Node; `None` if there is none, which is then reported.
fn node(script: &str, input: &str) -> Option<Value> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("script.js");
    std::fs::write(&file, script).expect("it is written");
    let child = Command::new("node")
        .arg(&file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        pagetrail_skips::not_here("the scripts of the page need Node to be tried: node");
        return None;
    };
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

/// What a function wrote itself and with its callees, by the recording alone.
fn functions_of(
    trail: &Trail,
    rounds: std::ops::Range<usize>,
    rows: &[u64],
) -> BTreeMap<String, (u64, u64)> {
    let mut functions = BTreeMap::<String, (u64, u64)>::new();
    for round in &trail.rounds[rounds] {
        for writes in &round.attribution.as_ref().expect("sampled").writers {
            let pages = rows
                .iter()
                .filter(|page| writes.pages.contains(**page))
                .count() as u64;
            if pages == 0 {
                continue;
            }
            let names = names_of(trail, writes.stack);
            functions.entry(names[0].clone()).or_default().0 += pages;
            for name in names.into_iter().collect::<BTreeSet<_>>() {
                functions.entry(name).or_default().1 += pages;
            }
        }
    }
    functions
}

/// Innermost first.
fn names_of(trail: &Trail, stack: u32) -> Vec<String> {
    let stack = &trail.stacks.stacks[stack as usize];
    let kernel = stack.in_kernel.then(|| "[kernel]".to_owned());
    let frames = stack.frames.iter();
    let frames = frames.map(|frame| trail.stacks.frames[*frame as usize].function.clone());
    kernel.into_iter().chain(frames).collect()
}

#[test]
fn the_scripts_select_what_the_recording_says() {
    const SCRIPT: &str = r#"
const { code: data, bandRows, columns, places, asked } = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
const code = Code(data, bandRows, columns);
const answers = asked.map(({ time, rows, name }) => {
  const inColumn = code.within(places.columns, ...time), inRow = code.within(places.rows, ...rows);
  const sums = code.sums(inColumn, inRow), flame = code.flame(sums);
  const number = data.names.indexOf(name);
  return {
    functions: Object.fromEntries(code.functions(sums).map((f) => [code.name(f.name), [f.own, f.total]])),
    flame: flame.map((f) => [code.name(f.name), f.depth, f.from, f.pages]),
    cells: Array.from(code.cellsOf(number)),
    columns: Array.from(inColumn).flatMap((is, i) => (is ? [i] : [])),
    rows: Array.from(inRow).flatMap((is, i) => (is ? [i] : [])),
    writers: code.writersIn(code.cellAt(3, 5)),
  };
});
console.log(JSON.stringify(answers));
"#;
    const ROUNDS: usize = 30;
    const PAGES: u64 = 48;
    let trail = random_trail(11, ROUNDS as u32, PAGES, 7, 25);
    let (code, heat, bands) = code(&trail, 1);
    assert_eq!(
        (heat.columns.len(), heat.rows.len()),
        (ROUNDS, PAGES as usize)
    );
    let mut random = fastrand::Rng::with_seed(12);
    let mut asked = vec![(0..ROUNDS, 0..PAGES)];
    for _ in 0..40 {
        let (first, page) = (random.usize(0..ROUNDS), random.u64(0..PAGES));
        let rounds = first..random.usize(first + 1..ROUNDS + 1);
        asked.push((rounds, page..random.u64(page + 1..PAGES + 1)));
    }
    let questions: Vec<Value> = asked
        .iter()
        .enumerate()
        .map(|(number, (rounds, rows))| {
            json!({"time": [rounds.start, rounds.end], "rows": [rows.start, rows.end],
                   "name": format!("f{}", number % 7)})
        })
        .collect();
    let units = |count: usize| (0..count).map(|i| [i, i + 1]).collect::<Vec<_>>();
    let input = json!({
        "code": code,
        "bandRows": bands.iter().map(|band| band.rows.len()).collect::<Vec<_>>(),
        "columns": ROUNDS,
        "places": {"columns": units(ROUNDS), "rows": units(PAGES as usize)},
        "asked": questions,
    });
    let script = [include_str!("../code.js"), SCRIPT].concat();
    let Some(answers) = node(&script, &input.to_string()) else {
        return;
    };
    for (number, (rounds, rows)) in asked.into_iter().enumerate() {
        let answer = &answers[number];
        assert_eq!(answer["columns"], json!(rounds.clone().collect::<Vec<_>>()));
        assert_eq!(answer["rows"], json!(rows.clone().collect::<Vec<_>>()));
        let addresses: Vec<u64> = rows.map(|page| pages(BASE, page, 1).start()).collect();
        let expected = functions_of(&trail, rounds.clone(), &addresses);
        let all: u64 = expected.values().map(|(own, _)| own).sum();
        let shown: BTreeMap<&String, [u64; 2]> = expected
            .iter()
            .map(|(name, (own, total))| (name, [*own, *total]))
            .collect();
        assert_eq!(answer["functions"], json!(shown), "{number}");
        check_flame(answer["flame"].as_array().expect("a list"), all);
        // The cells of a function, whatever is selected.
        let name = format!("f{}", number % 7);
        let mut cells = vec![0; PAGES as usize * ROUNDS];
        for (column, round) in trail.rounds.iter().enumerate() {
            for writes in &round.attribution.as_ref().expect("sampled").writers {
                if names_of(&trail, writes.stack).contains(&name) {
                    for page in writes.pages.iter_units(4096) {
                        cells[((page - BASE) / 4096) as usize * ROUNDS + column] = 1;
                    }
                }
            }
        }
        assert_eq!(answer["cells"], json!(cells), "{name}");
        let here = functions_of(&trail, 5..6, &[pages(BASE, 3, 1).start()]);
        let here: u64 = here.values().map(|(own, _)| own).sum();
        assert_eq!(answer["writers"]["all"], json!(here));
    }
}

/// Every rectangle lies on the one that calls it, and those of one caller do not overlap.
fn check_flame(flame: &[Value], all: u64) {
    let place = |value: &Value| {
        let number = |at: usize| value[at].as_u64().expect("a number");
        (number(1), number(2), number(2) + number(3))
    };
    let places: Vec<_> = flame.iter().map(place).collect();
    assert_eq!(places.first().copied(), (all > 0).then_some((0, 0, all)));
    for (depth, from, to) in &places {
        let holds = |(d, f, t): &(u64, u64, u64)| d + 1 == *depth && f <= from && to <= t;
        assert!(*depth == 0 || places.iter().any(holds));
        let overlaps = |(d, f, t): &&(u64, u64, u64)| d == depth && f < to && from < t;
        assert_eq!(places.iter().filter(overlaps).count(), 1);
    }
}

#[test]
fn on_the_page_map_and_flame_graph_select_each_other() {
    let mut first = random_trail(21, 30, 48, 5, 10);
    // One function writes in the second half alone.
    first.stacks.frames[0].function = "late".into();
    for (index, round) in first.rounds.iter_mut().enumerate() {
        let attribution = round.attribution.as_mut().expect("sampled");
        if index < 15 {
            let stacks = &first.stacks.stacks;
            let is_early = |w: &StackWrites| !stacks[w.stack as usize].frames.contains(&0);
            attribution.writers.retain(is_early);
        }
    }
    let second = random_trail(22, 30, 48, 5, 10);
    let recordings: Vec<_> = [&first, &second].map(Recording::of).into_iter().collect();
    let mut page = Vec::new();
    super::super::write_all(&recordings, &mut page).expect("a Vec takes all");
    let page = String::from_utf8(page).expect("the page is UTF-8");
    let between = |text: &str| -> Vec<String> {
        let parts = page.split(text).skip(1);
        let parts = parts.filter_map(|part| part.split_once("</script>"));
        parts.map(|(inner, _)| inner.to_owned()).collect()
    };
    let blocks = between("class=\"data\">");
    assert_eq!(blocks.len(), 2);
    let input = json!({"scripts": between("<script>"), "blocks": blocks});
    let Some(seen) = node(include_str!("page.js"), &input.to_string()) else {
        return;
    };
    for (states, trail) in seen
        .as_array()
        .expect("a list")
        .iter()
        .zip([&first, &second])
    {
        let scope = |state: &str| states[state]["scope"].as_str().expect("text").to_owned();
        let coloured = |state: &str| states[state]["coloured"].as_u64().expect("a number");
        let names = |state: &str| -> Vec<String> {
            let rows = states[state]["rows"].as_array().expect("a list");
            rows.iter()
                .map(|row| row[0].as_str().expect("text").to_owned())
                .collect()
        };
        let whole = functions_of(
            trail,
            0..30,
            &(0..48).map(|p| BASE + p * 4096).collect::<Vec<_>>(),
        );
        assert_eq!(
            names("whole").into_iter().collect::<BTreeSet<_>>(),
            whole.into_keys().collect()
        );
        assert!(
            scope("whole").contains("page writes are attributed"),
            "{states}"
        );
        assert!(
            states["tip"]
                .as_array()
                .is_some_and(|lines| lines.len() > 3),
            "{states}"
        );
        // Selected and taken back.
        assert_ne!(states["late"]["rows"], states["whole"]["rows"]);
        assert_ne!(scope("late"), scope("whole"));
        assert_eq!(states["reset"], states["whole"]);
        // A function leaves colour to what it wrote.
        assert!(
            (1..coloured("whole")).contains(&coloured("chosen")),
            "{states}"
        );
        assert_eq!(states["chosen"]["all"], json!(false));
        assert_eq!(states["back"], states["whole"]);
        assert_eq!(states["root"], states["whole"]);
        assert_eq!(states["flameTip"][0], "worker");
        assert!(coloured("thread") >= coloured("chosen"));
    }
    // In the first half `late` did not write.
    let rows = |state: &str| seen[0][state]["rows"].as_array().expect("a list").clone();
    let own = |state: &str| {
        let row = rows(state)
            .into_iter()
            .find(|row| row[0] == "late")
            .expect("it wrote");
        row[2]
            .as_str()
            .expect("text")
            .trim_end_matches('%')
            .parse::<f64>()
            .expect("a share")
    };
    assert!(own("late") > own("whole"));
}
