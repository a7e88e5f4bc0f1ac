//! What `cargo xtask bench ooh` has recorded. Each row is kept when it comes from the guest, so
//! that a run that is ended loses nothing, and the next one measures what is missing.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::Repo;

const RECORDING: &str = "ooh_guest.json";
const COMMAND: &str = "cargo xtask bench ooh";

/// A field of all rows that say what their run has cost in bytes. Those of older runs lack it.
const MARK: &str = "log_bytes";

/// A field of rows of a run beside which others used the machine.
const BUSY: &str = "busy";

/// A field with the kernel of the guest that a row was measured in.
const KERNEL: &str = "kernel_of_guest";

/// The recording, and the directory of files in which guests find the rows of a part that they need
/// not measure.
pub(super) struct Recorded {
    document: Value,
    known: PathBuf,
    /// The kernel of this run's guests.
    kernel: String,
}

impl Recorded {
    pub(super) fn read(repo: &Repo, kernel: &str) -> Result<Self> {
        let known = repo.target.join("ooh");
        fs::create_dir_all(&known)?;
        Ok(Self {
            document: document(repo)?,
            known,
            kernel: kernel.to_owned(),
        })
    }

    /// The file in which a guest finds what of `part` is recorded, on its kernel: nothing if all is
    /// wanted again.
    pub(super) fn known(&self, part: &str, again: bool) -> Result<PathBuf> {
        let rows = match (&self.document[part], again) {
            (Value::Array(rows), false) => rows
                .iter()
                .filter(|row| has_mark(row) && self.is_of_kernel(row))
                .collect(),
            _ => Vec::new(),
        };
        // Two calls may measure two parts at once.
        let known = self.known.join(format!("recorded-{part}.json"));
        fs::write(&known, json!(rows).to_string())?;
        Ok(known)
    }

    /// Whether a row was measured on this run's kernel. Older rows do not say on which; the
    /// document did.
    fn is_of_kernel(&self, row: &Value) -> bool {
        match &row[KERNEL] {
            Value::Null => {
                self.document["kernel"].is_null() || self.document["kernel"] == *self.kernel
            }
            kernel => *kernel == *self.kernel,
        }
    }

    /// Keeps a row in the place of the one that has the same values of `keys`.
    pub(super) fn keep(
        &mut self,
        repo: &Repo,
        part: &str,
        keys: &[&str],
        mut row: Value,
    ) -> Result<()> {
        // With what others have kept meanwhile.
        self.document = document(repo)?;
        name_kernel(&mut self.document);
        if let Some(kernel) = row
            .as_object_mut()
            .and_then(|fields| fields.remove("kernel"))
        {
            self.document["kernel"] = kernel;
        }
        row[KERNEL] = self.kernel.as_str().into();
        if recordings::is_busy(RECORDING)? {
            row[BUSY] = true.into();
        }
        place(&mut self.document[part], keys, row);
        let text = format!("{:#}\n", self.document);
        let was_busy = is_any_busy(&self.document);
        let place = Place::Guest;
        recordings::keep_whole(repo, RECORDING, text.as_bytes(), place, COMMAND, was_busy)
    }
}

/// What is recorded so far.
fn document(repo: &Repo) -> Result<Value> {
    let path = repo.root.join("bench/results").join(RECORDING);
    let cannot = || path.display().to_string();
    match fs::read_to_string(&path) {
        Ok(text) => {
            let document: Value = serde_json::from_str(&text).with_context(cannot)?;
            ensure!(document.is_object(), "{} is no recording", path.display());
            Ok(document)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(json!({"schema": 1})),
        Err(error) => Err(error).with_context(cannot),
    }
}

/// Puts a row into a list, in the place of its predecessor or at the end.
fn place(list: &mut Value, keys: &[&str], row: Value) {
    let mut rows = match list.take() {
        Value::Array(rows) => rows,
        _ => Vec::new(),
    };
    let same = |other: &Value| keys.iter().all(|key| other[*key] == row[*key]);
    match rows.iter().position(same) {
        Some(at) => rows[at] = row,
        None => rows.push(row),
    }
    *list = rows.into();
}

/// Has each row say of which kernel it is, before the document says another one.
fn name_kernel(document: &mut Value) {
    let kernel = document["kernel"].clone();
    let parts = document.as_object_mut().into_iter().flatten();
    let rows = parts.filter_map(|(_, part)| part.as_array_mut()).flatten();
    for row in rows.filter(|row| row[KERNEL].is_null() && !kernel.is_null()) {
        row[KERNEL] = kernel.clone();
    }
}

/// Whether any row of any part was measured beside others.
fn is_any_busy(document: &Value) -> bool {
    let parts = document.as_object().into_iter().flatten();
    let mut rows = parts.filter_map(|(_, part)| part.as_array()).flatten();
    rows.any(|row| row[BUSY] == true)
}

/// Whether a row, or what is in it, says what its run has cost in bytes.
fn has_mark(row: &Value) -> bool {
    match row {
        Value::Object(fields) => fields.contains_key(MARK) || fields.values().any(has_mark),
        Value::Array(elements) => elements.iter().any(has_mark),
        _ => false,
    }
}

/// In a guest: the rows that are recorded.
pub(crate) struct Known(Vec<Value>);

impl Known {
    pub(crate) fn read(path: &str) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.to_owned())?;
        Ok(Self(serde_json::from_str(&text)?))
    }

    /// Whether a row has all fields of `wanted` with the same values.
    pub(crate) fn has(&self, wanted: &Value) -> bool {
        let has = |row: &Value| {
            let mut fields = wanted.as_object().into_iter().flatten();
            fields.all(|(key, value)| row[key] == *value)
        };
        self.0.iter().any(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_takes_the_place_of_the_one_before() {
        let mut list = Value::Null;
        for row in [
            json!({"by": "epml", "n": 1}),
            json!({"by": "spml", "n": 2}),
            json!({"by": "epml", "n": 3}),
        ] {
            place(&mut list, &["by"], row);
        }
        assert_eq!(
            list,
            json!([{"by": "epml", "n": 3}, {"by": "spml", "n": 2}])
        );
    }

    #[test]
    fn rows_without_bytes_are_measured_again() {
        let dir = std::env::temp_dir().join(format!("pagetrail-recorded-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let recorded = Recorded {
            document: json!({"kernel": "6.12.2", "parts": [
                {"by": "epml", "words": "--iter 1", "phases": [{"log_bytes": 8}]},
                {"by": "spml", "words": "--iter 1", "phases": [{"ms": 8}]},
                {"by": "ring", "log_bytes": 8, KERNEL: "6.12.1"},
                {"by": "bitmap", "log_bytes": 8, KERNEL: "6.12.2"},
            ]}),
            known: dir.clone(),
            kernel: "6.12.2".into(),
        };
        let known = |part: &str, again: bool| {
            let path = recorded.known(part, again).unwrap();
            Known::read(path.to_str().unwrap()).unwrap()
        };
        let (parts, again, other) = (
            known("parts", false),
            known("parts", true),
            known("others", false),
        );
        fs::remove_dir_all(&dir).unwrap();
        assert!(parts.has(&json!({"by": "epml", "words": "--iter 1"})));
        // Another size is another measurement.
        assert!(!parts.has(&json!({"by": "epml", "words": "--iter 2"})));
        assert!(!parts.has(&json!({"by": "spml"})));
        assert!(!again.has(&json!({"by": "epml"})));
        assert!(!other.has(&json!({"by": "epml"})));
        // Another kernel, too.
        assert!(!parts.has(&json!({"by": "ring"})));
        assert!(parts.has(&json!({"by": "bitmap"})));
        let mut document = recorded.document;
        name_kernel(&mut document);
        assert_eq!(document["parts"][0][KERNEL], "6.12.2");
        assert_eq!(document["parts"][2][KERNEL], "6.12.1");
    }

    #[test]
    fn a_recording_is_busy_while_it_has_a_row_that_is() {
        let mut document = json!({"schema": 1, "a": [{"by": 1, BUSY: true}], "b": [{"by": 2}]});
        assert!(is_any_busy(&document));
        place(&mut document["a"], &["by"], json!({"by": 1}));
        assert!(!is_any_busy(&document));
    }

    #[test]
    fn two_calls_at_once_keep_the_rows_of_both() {
        let root = std::env::temp_dir().join(format!("pagetrail-both-{}", std::process::id()));
        let results = root.join("bench/results");
        fs::create_dir_all(&results).unwrap();
        fs::write(results.join("provenance.json"), r#"{"recordings": {}}"#).unwrap();
        let repo = Repo {
            target: root.join("target"),
            root: root.clone(),
        };
        let [mut one, mut other] = [(); 2].map(|()| Recorded::read(&repo, "6.12.1").unwrap());
        one.keep(&repo, "parts", &["by"], json!({"by": "epml"}))
            .unwrap();
        other
            .keep(&repo, "others", &["by"], json!({"by": "spml"}))
            .unwrap();
        let kept = document(&repo).unwrap();
        fs::write(results.join(RECORDING), "[]").unwrap();
        let damaged = Recorded::read(&repo, "6.12.1");
        fs::remove_dir_all(&root).unwrap();
        let row = |by: &str| json!([{"by": by, KERNEL: "6.12.1"}]);
        assert_eq!(kept["parts"], row("epml"));
        assert_eq!(kept["others"], row("spml"));
        assert!(damaged.is_err());
    }
}
