//! tkrzw's engines in the configurations of table II of the OoH paper.

/// The names of the configurations.
pub(crate) const CONFIGURATIONS: [&str; 3] = ["small", "medium", "large"];

/// tkrzw's tool, of the package tkrzw-utils.
pub(crate) const TKRZW: &str = "tkrzw_dbm_perf";

/// The words that start an engine.
pub(crate) fn command(engine: &str, words: &str) -> String {
    format!("{TKRZW} sequence --set_only --dbm {engine} {words}")
}

/// The engines, and the words after `--dbm` in the three configurations.
pub(crate) const ENGINES: [(&str, [&str; 3]); 5] = [
    (
        "baby",
        [
            "--iter 3M --threads 3",
            "--iter 5M --threads 3",
            "--iter 10M --threads 3",
        ],
    ),
    (
        "cache",
        [
            "--iter 3M --cap_rec_num 3M --threads 5",
            "--iter 5M --cap_rec_num 5M --threads 5",
            "--iter 10M --cap_rec_num 10M --threads 5",
        ],
    ),
    (
        "stdhash",
        [
            "--iter 3M --buckets 100K --record_comp zlib --threads 2",
            "--iter 5M --buckets 100K --record_comp zlib --threads 2",
            "--iter 10M --buckets 100K --record_comp zlib --threads 2",
        ],
    ),
    (
        "stdtree",
        [
            "--iter 3M --threads 2",
            "--iter 5M --threads 2",
            "--iter 10M --threads 2",
        ],
    ),
    (
        "tiny",
        [
            "--iter 5M --buckets 30M --threads 3",
            "--iter 5M --buckets 30M --threads 5",
            "--iter 5M --buckets 30M --threads 7",
        ],
    ),
];

/// The engines as an emulator can run them in minutes: the small configuration with fewer records,
/// but for long enough that a dump is over before they are.
pub(crate) const COUNTED: [(&str, &str); 5] = [
    (
        "stdhash",
        "--iter 200K --buckets 7K --record_comp zlib --threads 2",
    ),
    ("stdtree", "--iter 200K --threads 2"),
    ("tiny", "--iter 400K --buckets 2400K --threads 3"),
    ("baby", "--iter 60K --threads 3"),
    ("cache", "--iter 60K --cap_rec_num 60K --threads 5"),
];
