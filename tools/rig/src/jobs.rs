//! What a guest says of the jobs that it runs one after the other: where the output of each begins,
//! and how each ended.

use std::io;

use super::guest::Sink;

/// What `main.sh` prints before each job: control characters that no job's text has.
const MARK: &[u8] = b"\x1eRIG job\x1e";

/// Splits the output of a guest into that of its jobs, at the marks.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// The marks seen.
    marks: usize,
    /// What may be the beginning of a mark.
    held: Vec<u8>,
}

impl Output {
    /// Takes the next bytes, and passes on all that is no mark.
    pub(super) fn feed(&mut self, bytes: &[u8], sink: &mut Sink<'_>) -> io::Result<()> {
        self.held.extend_from_slice(bytes);
        while let Some(at) = self.held.windows(MARK.len()).position(|it| it == MARK) {
            self.pass(at, sink)?;
            self.held.drain(..MARK.len());
            self.marks += 1;
        }
        let mut beginnings = (1..MARK.len()).rev();
        let kept = beginnings.find(|length| self.held.ends_with(&MARK[..*length]));
        self.pass(self.held.len() - kept.unwrap_or(0), sink)
    }

    /// Passes on what was held back; the guest prints no more.
    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) -> io::Result<()> {
        self.pass(self.held.len(), sink)
    }

    fn pass(&mut self, length: usize, sink: &mut Sink<'_>) -> io::Result<()> {
        if length > 0 {
            sink(self.marks.saturating_sub(1), &self.held[..length])?;
            self.held.drain(..length);
        }
        Ok(())
    }
}

/// True once the guest runs its first job.
pub(super) fn have_begun(lines: &str) -> bool {
    lines.lines().any(|line| line == "RIG start")
}

/// The exit statuses of the jobs that have ended.
pub(super) fn statuses(lines: &str) -> Vec<u8> {
    let statuses = lines
        .lines()
        .filter_map(|line| line.strip_prefix("RIG rc="));
    statuses.map_while(|status| status.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_guest_reports() {
        assert!(!have_begun("") && statuses("").is_empty());
        assert!(have_begun("RIG start\n") && statuses("RIG start\n").is_empty());
        assert_eq!(statuses("RIG start\nRIG rc=137\nRIG rc=0\n"), [137, 0]);
    }

    /// What each job printed, of an output that comes in pieces of `size` bytes.
    fn split(printed: &[u8], size: usize) -> Vec<String> {
        let mut of_jobs = vec![String::new(); 3];
        let mut sink = |job: usize, bytes: &[u8]| {
            of_jobs[job] += std::str::from_utf8(bytes).unwrap();
            Ok(())
        };
        let mut output = Output::default();
        for piece in printed.chunks(size) {
            output.feed(piece, &mut sink).unwrap();
        }
        output.finish(&mut sink).unwrap();
        of_jobs
    }

    #[test]
    fn each_job_has_its_output() {
        let printed = b"\x1eRIG job\x1eone\ntwo\x1eRIG job\x1e\x1eRIG job\x1ethree \x1eRIG jo";
        for size in 1..printed.len() {
            let expected = ["one\ntwo", "", "three \x1eRIG jo"];
            assert_eq!(split(printed, size), expected, "in pieces of {size} bytes");
        }
    }

    #[test]
    fn what_is_no_mark_is_not_held_back() {
        let mut passed = Vec::new();
        let mut sink = |_: usize, bytes: &[u8]| {
            passed.extend_from_slice(bytes);
            Ok(())
        };
        let mut output = Output::default();
        output
            .feed(b"\x1eRIG job\x1etest a ... ", &mut sink)
            .unwrap();
        output.feed(b"\x1eRIG", &mut sink).unwrap();
        output.feed(b"HT", &mut sink).unwrap();
        assert_eq!(passed, b"test a ... \x1eRIGHT");
    }
}
