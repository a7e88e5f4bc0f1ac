//! The recorded programs of `traces/` under every technique.

use std::fs::File;
use std::io::BufReader;

use pagetrail_model::technique::TechniqueKind;
use pagetrail_model::trace::Reader;
use pagetrail_model::workload::Op;
use pagetrail_model::{Report, RunConfig, run};

fn recorded(name: &str) -> Vec<Op> {
    let path = format!("{}/traces/{name}.ptops", env!("CARGO_MANIFEST_DIR"));
    let mut reader = Reader::new(BufReader::new(File::open(path).unwrap())).unwrap();
    let ops = reader.by_ref().collect();
    reader.finish().unwrap();
    ops
}

#[test]
fn every_technique_finds_the_writes_of_real_programs() {
    for name in ["sort", "gzip", "sqlite3"] {
        let ops = recorded(name);
        let reports: Vec<Report> = TechniqueKind::ALL
            .iter()
            .map(|&kind| run(&RunConfig::new(kind), ops.iter().copied()).unwrap())
            .collect();
        let oracle = &reports[0];
        assert!(
            oracle.rounds.len() >= 10,
            "{name}: {} rounds",
            oracle.rounds.len()
        );
        for report in &reports {
            assert!(
                report.rounds.iter().all(|round| round.missed == 0),
                "{name}, {}",
                report.technique
            );
            if report.unit_bytes == oracle.unit_bytes {
                let written = |report: &Report| -> Vec<u64> {
                    report.rounds.iter().map(|round| round.written).collect()
                };
                assert_eq!(
                    written(report),
                    written(oracle),
                    "{name}, {}",
                    report.technique
                );
            }
        }
    }
}
