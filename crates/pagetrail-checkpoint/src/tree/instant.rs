//! [`TreeInstant`] as bytes: which checkpoint of which process belongs to one instant of a tree
//! (`docs/image-format.md`).

use crate::hash::Hash;

/// The first line.
const HEAD: &str = "pagetrail tree 1";
/// As many as Linux has (`PID_MAX_LIMIT`).
const PROCESSES_MAX: usize = 1 << 22;

/// One instant of a tree: a checkpoint of each of its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeInstant {
    /// Its number in the store.
    pub number: u64,
    /// When it was taken, in ns since 1970.
    pub taken_unix_ns: u64,
    /// Its processes, ascending by their number.
    pub processes: Vec<TreePart>,
}

/// A process at one instant of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreePart {
    /// Its number in the store, in which each process is counted once.
    pub process: u64,
    /// Its PID.
    pub pid: u32,
    /// The PID of its parent, unless the tree begins with it.
    pub parent: Option<u32>,
    /// Its checkpoint, by the number in the store of this process.
    pub checkpoint: u64,
    /// When that says that it was taken: another checkpoint of this number says something else.
    pub taken_unix_ns: u64,
}

impl TreeInstant {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut text = format!("{HEAD}\n{} {}\n", self.number, self.taken_unix_ns);
        for part in &self.processes {
            let TreePart {
                process,
                pid,
                parent,
                checkpoint,
                taken_unix_ns,
            } = part;
            // No process has the PID 0.
            let parent = parent.unwrap_or(0);
            text += &format!("{process} {pid} {parent} {checkpoint} {taken_unix_ns}\n");
        }
        let hash = Hash::of(text.as_bytes());
        (text + &format!("{hash}\n")).into_bytes()
    }

    /// What the bytes say; else what is wrong with them.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not text")?;
        let body = text.strip_suffix('\n').ok_or("its end is missing")?;
        let (_, hash) = body.rsplit_once('\n').ok_or("it is too short")?;
        let content = &text[..body.len() - hash.len()];
        if Hash::parse(hash) != Some(Hash::of(content.as_bytes())) {
            return Err("its hash is another");
        }
        let mut lines = content.lines();
        if lines.next() != Some(HEAD) {
            return Err("it is of another format");
        }
        let [number, taken_unix_ns] = lines.next().and_then(numbers).ok_or("a line is wrong")?;
        let mut processes = Vec::<TreePart>::new();
        for line in lines {
            let part = numbers(line).and_then(part).ok_or("a line is wrong")?;
            if processes
                .last()
                .is_some_and(|last| last.process >= part.process)
            {
                return Err("its processes are not in order");
            }
            if processes.len() == PROCESSES_MAX {
                return Err("it has impossibly many processes");
            }
            processes.push(part);
        }
        if processes.is_empty() {
            return Err("it has no process");
        }
        Ok(Self {
            number,
            taken_unix_ns,
            processes,
        })
    }
}

/// A line that is so many numbers.
fn numbers<const N: usize>(line: &str) -> Option<[u64; N]> {
    let numbers = line.split(' ').map(|word| word.parse().ok());
    numbers.collect::<Option<Vec<u64>>>()?.try_into().ok()
}

fn part([process, pid, parent, checkpoint, taken_unix_ns]: [u64; 5]) -> Option<TreePart> {
    Some(TreePart {
        process,
        pid: u32::try_from(pid).ok()?,
        parent: Some(u32::try_from(parent).ok()?).filter(|pid| *pid > 0),
        checkpoint,
        taken_unix_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instant() -> TreeInstant {
        let part = |process, parent| TreePart {
            process,
            pid: 100 + process as u32,
            parent,
            checkpoint: 7,
            taken_unix_ns: 1_700_000_000_000_000_000,
        };
        TreeInstant {
            number: 3,
            taken_unix_ns: 1_700_000_000_000_000_001,
            processes: vec![part(1, None), part(4, Some(101))],
        }
    }

    #[test]
    fn an_instant_is_read_back() {
        let instant = instant();
        assert_eq!(TreeInstant::decode(&instant.encode()), Ok(instant));
    }

    #[test]
    fn every_damaged_byte_and_every_cut_is_noticed() {
        let bytes = instant().encode();
        for at in 0..bytes.len() {
            assert!(TreeInstant::decode(&bytes[..at]).is_err(), "cut at {at}");
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(TreeInstant::decode(&damaged).is_err(), "byte {at}");
        }
    }

    /// Somebody may make files with good hashes.
    #[test]
    fn what_no_tree_can_be_is_refused() {
        for content in [
            "",
            "pagetrail tree 2\n1 1\n1 1 0 1 1\n",
            "pagetrail tree 1\n",
            "pagetrail tree 1\n1 1\n",
            "pagetrail tree 1\n1 1\n1 1 0 1\n",
            "pagetrail tree 1\n1 1\n1 4294967296 0 1 1\n",
            "pagetrail tree 1\n1 1\n2 1 0 1 1\n1 2 0 1 1\n",
            "pagetrail tree 1\n1 1\n1 1 0 1 1\n1 2 0 1 1\n",
            "pagetrail tree 1\n1 99999999999999999999\n1 1 0 1 1\n",
        ] {
            let bytes = format!("{content}{}\n", Hash::of(content.as_bytes()));
            assert!(TreeInstant::decode(bytes.as_bytes()).is_err(), "{content}");
        }
    }
}
