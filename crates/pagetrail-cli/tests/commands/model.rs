//! `pagetrail model` as its users call it.

use std::fs;
use std::path::Path;

use crate::common::{error_line, run};
use serde_json::Value;

fn json(directory: &Path, arguments: &[&str]) -> Value {
    let output = run(directory, arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn text(directory: &Path, arguments: &[&str]) -> String {
    let output = run(directory, arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn one_run_for_people() {
    let here = tempfile::tempdir().unwrap();
    let run = |technique, workload| {
        let arguments = [
            "model",
            "run",
            "--technique",
            technique,
            "--workload",
            workload,
        ];
        text(
            here.path(),
            &[&arguments[..], &["--size", "4M", "--rounds", "2"]].concat(),
        )
    };
    insta::assert_snapshot!([run("spml", "key-value"), run("shadow", "memory-motion")].join("\n"));
}

#[test]
fn one_run_as_json() {
    let here = tempfile::tempdir().unwrap();
    let arguments = [
        "model",
        "run",
        "--technique",
        "soft-dirty",
        "--workload",
        "listing1",
        "--size",
        "1M",
        "--rounds",
        "3",
        "--json",
    ];
    let document = json(here.path(), &arguments);
    assert_eq!(document["schema"], 1);
    assert_eq!(document["technique"], "soft-dirty");
    assert_eq!(document["size_bytes"], 1 << 20);
    let rounds = document["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 3);
    for round in rounds {
        assert_eq!(
            (&round["written"], &round["missed"]),
            (&256.into(), &0.into())
        );
    }
    assert_eq!(document["events"]["faults_soft_dirty"], 768);
    let bill = document["bill"].as_array().unwrap();
    let sum: f64 = bill
        .iter()
        .filter_map(|line| line["cost_ns"].as_f64())
        .sum();
    let total = document["tracker_ns"].as_f64().unwrap() + document["tracked_ns"].as_f64().unwrap();
    assert!((sum / total - 1.0).abs() < 1e-9);
}

#[test]
fn a_seed_makes_the_program() {
    let here = tempfile::tempdir().unwrap();
    let run = |seed| {
        let arguments = [
            "model",
            "run",
            "--technique",
            "epml",
            "--workload",
            "zipf",
            "--size",
            "1M",
        ];
        text(here.path(), &[&arguments[..], &["--seed", seed]].concat())
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn techniques_side_by_side() {
    let here = tempfile::tempdir().unwrap();
    let arguments = [
        "model",
        "compare",
        "--workload",
        "zipf",
        "--size",
        "1M,2M",
        "--rounds",
        "2",
    ];
    let document = json(here.path(), &[&arguments[..], &["--json"]].concat());
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 14, "seven techniques, two sizes");
    let written = |technique: &str| {
        let of = results.iter().filter(|r| r["technique"] == technique);
        let rounds = of.flat_map(|r| r["rounds"].as_array().unwrap());
        rounds
            .map(|round| round["written"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    for technique in ["soft-dirty", "userfaultfd", "spml", "epml", "shadow"] {
        assert_eq!(written(technique), written("oracle"), "{technique}");
    }
    let output = run(
        here.path(),
        &[&arguments[..], &["--html", "out.html"]].concat(),
    );
    assert!(
        output.status.success() && !output.stdout.is_empty(),
        "{output:?}"
    );
    let page = fs::read_to_string(here.path().join("out.html")).unwrap();
    pagetrail_report::testing::assert_self_contained(&page);
    assert!(!page.contains("<script"));
    assert_eq!(page.matches("<svg").count(), 2);
    assert!(page.contains("no cost is known for clear-dirty"));
    assert!(page.contains("a cost was assumed, not measured, for ept-write-fault"));
    assert!(!page.contains("NaN"));
}

#[test]
fn papers_are_reproduced() {
    let here = tempfile::tempdir().unwrap();
    let document = json(
        here.path(),
        &["model", "reproduce", "xen", "--table", "13", "--json"],
    );
    let tables = document["tables"].as_array().unwrap();
    assert!(!tables.is_empty());
    for row in tables
        .iter()
        .flat_map(|table| table["rows"].as_array().unwrap())
    {
        // What KVM counts stands there without a value of the model's.
        if row["model"].is_null() {
            assert!(row["note"].is_string(), "{row}");
            continue;
        }
        let difference = row["model"]["difference_percent"].as_f64().unwrap();
        assert!(difference.abs() <= 10.0 || row["note"].is_string(), "{row}");
    }
    let table = text(here.path(), &["model", "reproduce", "ooh", "--table", "3"]);
    assert!(table.contains("SPML, E(C_tker) estimated"), "{table}");
    assert!(
        table.contains("none of the 6 values is independent of the paper's"),
        "{table}"
    );
    // Notes stand also where values agree, and what was measured says where it is from.
    let recorded = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../bench/results/bench.json"
    );
    let arguments = ["model", "reproduce", "ooh", "--table", "1"];
    let measured = [
        &arguments[..],
        &["--measured", recorded, "--html", "out.html"],
    ]
    .concat();
    let output = run(here.path(), &measured);
    // A statement that follows from the paper's own tables fails.
    assert_eq!(output.status.code(), Some(1));
    let table = String::from_utf8(output.stdout).unwrap();
    for part in [
        "the untracked time was chosen so that this row comes out",
        "21 of 28 values are independent of the paper's",
        "measured: pagetrail bench --json",
        "FAILS",
    ] {
        assert!(table.contains(part), "no {part:?} in {table}");
    }
    let page = fs::read_to_string(here.path().join("out.html")).unwrap();
    assert!(page.contains("fitted") && page.contains("measured: pagetrail bench"));
    let foreign = run(
        here.path(),
        &[&arguments[..], &["--measured", "out.html"]].concat(),
    );
    assert!(error_line(&foreign, 2).contains("--measured takes documents of pagetrail bench"));
    let none = run(
        here.path(),
        &["model", "reproduce", "flexible", "--table", "77"],
    );
    assert!(error_line(&none, 2).contains("table 77 of flexible is not reproduced; there are "));
}

#[test]
fn recordings_are_brought_along_and_hostile_ones_refused_in_a_line() {
    let here = tempfile::tempdir().unwrap();
    let arguments = ["model", "reproduce", "hmmv", "--table", "3"];
    let document = json(here.path(), &[&arguments[..], &["--json"]].concat());
    let rows = document["tables"][0]["rows"].as_array().unwrap();
    let how = |row: &Value| row["model"]["how"].as_str().map(str::to_owned);
    assert!(rows.iter().any(|row| how(row).as_deref() == Some("fitted")));
    assert!(
        rows.iter()
            .any(|row| how(row).as_deref() == Some("simulated"))
    );
    // Nothing of a simulator is shown as measured.
    assert!(rows.iter().all(|row| row["measured"].is_null()));
    for row in rows.iter().filter(|row| !row["model"].is_null()) {
        assert_eq!(row["model"]["recorded"]["origin"], "simulated");
    }
    let collector = json(
        here.path(),
        &["model", "reproduce", "ooh", "--table", "3", "--json"],
    );
    let tables = collector["tables"].as_array().unwrap();
    let rows = tables
        .iter()
        .flat_map(|table| table["rows"].as_array().unwrap());
    let measured: Vec<&Value> = rows
        .map(|row| &row["measured"])
        .filter(|m| !m.is_null())
        .collect();
    assert!(!measured.is_empty());
    for one in measured {
        for key in ["machine", "kernel", "date", "command"] {
            assert!(
                !one[key].as_str().unwrap().contains("not recorded"),
                "{one}"
            );
        }
    }
    let path = here.path().join("x.json");
    for hostile in [
        "",
        "{",
        "[]",
        "{\"results\": []}",
        "{\"results\": [{\"untracked_pass_ns\": 1}]}",
        "\u{0}",
    ] {
        fs::write(&path, hostile).unwrap();
        let refused = run(
            here.path(),
            &[&arguments[..], &["--measured", "x.json"]].concat(),
        );
        let line = error_line(&refused, 2);
        assert!(line.contains("x.json"), "{hostile:?}: {line}");
    }
    let missing = run(
        here.path(),
        &[&arguments[..], &["--measured", "gone.json"]].concat(),
    );
    assert!(error_line(&missing, 2).contains("cannot read the recording gone.json"));
    // A recording of the user's own comes first.
    let own =
        r#"{"tables_3_and_4": {"random_read": {"all_slow_percent": 50.0}}, "machine": "Mine"}"#;
    fs::write(&path, own).unwrap();
    let document = json(
        here.path(),
        &[&arguments[..], &["--json", "--measured", "x.json"]].concat(),
    );
    let first = &document["tables"][0]["rows"][0]["model"];
    assert_eq!(first["value"], 50.0);
    assert_eq!(
        (&first["recorded"]["machine"], &first["how"]),
        (&"Mine".into(), &"fitted".into())
    );
}

#[test]
fn what_is_measured_now_stands_beside_the_paper() {
    let here = tempfile::tempdir().unwrap();
    let arguments = ["model", "reproduce", "ooh", "--table", "3", "--json"];
    let measure = ["--measure", "--size", "1M"];
    let output = run(here.path(), &[&arguments[..], &measure].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    if String::from_utf8_lossy(&output.stderr).contains("no technique of the paper works here") {
        pagetrail_skips::not_here("neither userfaultfd nor soft-dirty");
        return;
    }
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let tables = document["tables"].as_array().unwrap();
    let rows = tables
        .iter()
        .flat_map(|table| table["rows"].as_array().unwrap());
    let of_size = |size: &str| {
        let rows = rows.clone();
        let commands = rows
            .filter(|row| row["what"].as_str().unwrap().contains(size))
            .filter_map(|row| row["measured"]["command"].as_str());
        commands.map(str::to_owned).collect::<Vec<String>>()
    };
    // The command says what it ran, so that a recording is known from what was measured now.
    let is_now = |command: &String| command.contains("model reproduce");
    assert!(of_size(", 1MB").iter().any(is_now), "{document}");
    assert!(!of_size(", 1GB").iter().any(is_now), "{document}");
    let odd = run(here.path(), &[&arguments[..], &["--size", "1M"]].concat());
    assert!(error_line(&odd, 2).contains("--measure"));
}

#[test]
fn a_report_has_a_chapter_and_pictures() {
    let here = tempfile::tempdir().unwrap();
    let arguments = [
        "model",
        "reproduce",
        "flexible",
        "--figure",
        "7",
        "--measure",
        "--report",
        "out",
    ];
    let output = run(here.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cargo xtask bench subpage scale"), "{said}");
    let chapter = fs::read_to_string(here.path().join("out/flexible.md")).unwrap();
    assert!(chapter.contains("(flexible-01.svg)") && chapter.contains("## Figure 7"));
    let picture = fs::read_to_string(here.path().join("out/flexible-01.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("(measured)"));
}

#[test]
fn cost_tables_are_printed_changed_and_used() {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("mine.toml");
    let run_with = |costs: &str| {
        let arguments = [
            "model",
            "run",
            "--technique",
            "soft-dirty",
            "--workload",
            "listing1",
        ];
        json(
            here.path(),
            &[
                &arguments[..],
                &["--size", "1M", "--json", "--costs", costs],
            ]
            .concat(),
        )
    };
    let costs = text(here.path(), &["model", "costs", "ooh"]);
    fs::write(&file, &costs).unwrap();
    let ours = run_with("ooh");
    assert_eq!(run_with("mine.toml")["tracker_ns"], ours["tracker_ns"]);
    let dearer = costs.replace("context-switch = 315.0", "context-switch = 630");
    assert_ne!(costs, dearer);
    fs::write(&file, dearer).unwrap();
    assert!(run_with("mine.toml")["tracked_ns"].as_f64() > ours["tracked_ns"].as_f64());
    // A table may lack something; it is named then.
    fs::write(&file, "[costs]\ncontext-switch = 300\n").unwrap();
    let output = run(
        here.path(),
        &[
            "model",
            "run",
            "--technique",
            "soft-dirty",
            "--workload",
            "listing1",
            "--json",
            "--size",
            "1M",
            "--costs",
            "mine.toml",
        ],
    );
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("lower bounds") && said.contains("clear-refs"),
        "{said}"
    );

    let bench = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../bench/results/bench.json"
    );
    let here_costs = text(here.path(), &["model", "costs", "--bench", bench]);
    fs::write(&file, here_costs).unwrap();
    assert!(
        run_with("mine.toml")["costs"]
            .as_str()
            .unwrap()
            .contains("pagetrail bench")
    );
}

#[test]
fn traces_are_imported_shown_and_run() {
    let here = tempfile::tempdir().unwrap();
    let recording: String = (0..1000)
        .map(|i| format!(" S {:x},8\n L 5000,8\n", 0x1000 + i * 8))
        .collect();
    fs::write(here.path().join("recording.txt"), recording).unwrap();
    let import = [
        "model",
        "trace",
        "import",
        "recording.txt",
        "x.ptops",
        "--round-every",
        "500",
    ];
    assert_eq!(text(here.path(), &import), "");
    let shown = json(
        here.path(),
        &["model", "trace", "show", "x.ptops", "--json"],
    );
    assert_eq!((&shown["rounds"], &shown["areas"]), (&4.into(), &1.into()));
    let arguments = [
        "model",
        "run",
        "--technique",
        "spml",
        "--trace",
        "x.ptops",
        "--json",
    ];
    let document = json(here.path(), &arguments);
    assert_eq!(document["rounds"].as_array().unwrap().len(), 4);
    let compared = json(
        here.path(),
        &["model", "compare", "--trace", "x.ptops", "--json"],
    );
    assert_eq!(compared["results"].as_array().unwrap().len(), 7);

    // Damage of any kind ends in one line.
    let whole = fs::read(here.path().join("x.ptops")).unwrap();
    let with = |bytes: &[u8]| {
        fs::write(here.path().join("bad.ptops"), bytes).unwrap();
        let bad = [
            "model",
            "run",
            "--technique",
            "epml",
            "--trace",
            "bad.ptops",
        ];
        error_line(&run(here.path(), &bad), 2)
    };
    assert!(with(b"").contains("not a trace"));
    assert!(with(&whole[..whole.len() - 1]).contains("ends too early"));
    let mut changed = whole.clone();
    changed[20] ^= 4;
    with(&changed);
}

#[allow(clippy::print_stderr, reason = "what is not tested is said")]
#[test]
fn a_program_is_recorded() {
    let here = tempfile::tempdir().unwrap();
    let arguments = [
        "model",
        "trace",
        "record",
        "-o",
        "true.ptops",
        "--",
        "/bin/sh",
        "-c",
        "exit 3",
    ];
    let output = run(here.path(), &arguments);
    if output.status.code() == Some(3) && !here.path().join("true.ptops").exists() {
        assert!(error_line(&output, 3).contains("valgrind is not installed"));
        pagetrail_skips::not_here("there is no valgrind");
        return;
    }
    assert_eq!(
        output.status.code(),
        Some(3),
        "the program's own: {output:?}"
    );
    let shown = json(
        here.path(),
        &["model", "trace", "show", "true.ptops", "--json"],
    );
    assert!(shown["writes"].as_u64() > Some(50), "{shown}");
    let nothing = [
        "model",
        "trace",
        "record",
        "-o",
        "no.ptops",
        "--",
        "./nothing",
    ];
    let nothing = run(here.path(), &nothing);
    assert_eq!(nothing.status.code(), Some(127), "{nothing:?}");
    assert!(!here.path().join("no.ptops").exists());
    let run = [
        "model",
        "run",
        "--technique",
        "epml",
        "--trace",
        "true.ptops",
        "--json",
    ];
    assert!(json(here.path(), &run)["rounds"].as_array().unwrap().len() > 1);
}

#[test]
fn wrong_usage_is_one_line() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("empty.toml"), "").unwrap();
    fs::write(here.path().join("negative.toml"), "[costs]\nvmread = -5\n").unwrap();
    fs::write(here.path().join("unknown.toml"), "[costs]\nvm-read = 5\n").unwrap();
    fs::write(here.path().join("binary.toml"), [0xff, 0xfe]).unwrap();
    fs::write(here.path().join("text.txt"), "hello\n").unwrap();
    let run_with: &[&str] = &["model", "run", "--technique", "epml", "--workload", "zipf"];
    let cases: &[&[&str]] = &[
        &["--costs", "empty.toml"],
        &["--costs", "negative.toml"],
        &["--costs", "unknown.toml"],
        &["--costs", "binary.toml"],
        &["--costs", "none.toml"],
        &["--costs", "."],
        &["--size", "0M"],
        &["--size", "1000000G"],
        &["--size", "99999999999999G"],
        &["--rounds", "0"],
        &["--ring-pages", "0"],
        &["--trace", "x"],
    ];
    let mut lines = String::new();
    for case in cases {
        let line = error_line(&run(here.path(), &[run_with, case].concat()), 2);
        lines += &format!("$ pagetrail model run .. {}\n{line}", case.join(" "));
    }
    let cases: &[&[&str]] = &[
        &["run", "--technique", "epml"],
        &["run", "--technique", "magic", "--workload", "zipf"],
        &["run", "--technique", "lu-static-3", "--workload", "zipf"],
        &["run", "--technique", "epml", "--workload", "magic"],
        &["run", "--technique", "epml", "--trace", "text.txt"],
        &["run", "--technique", "epml", "--trace", "none"],
        &["compare", "--workload", "zipf", "--html", "no/where.html"],
        &["reproduce", "nobody"],
        &["reproduce", "ooh", "--figure", "1", "--table", "1"],
        &["costs", "--bench", "text.txt"],
        &["trace", "import", "text.txt", "out"],
        &["trace", "show", "text.txt"],
    ];
    for case in cases {
        let arguments = [&["model"], *case].concat();
        let line = error_line(&run(here.path(), &arguments), 2);
        lines += &format!("$ pagetrail {}\n{line}", arguments.join(" "));
    }
    insta::assert_snapshot!(lines);
}
