//! [`nodes`]: the memory nodes of this machine, from `/sys/devices/system/node`.

use std::fs;
use std::path::Path;

/// A memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// Whether there are processors in it.
    pub has_processors: bool,
    /// Its memory, in bytes.
    pub total_bytes: u64,
    /// What of it is free.
    pub free_bytes: u64,
}

/// The nodes that have memory, in the order of their numbers.
pub fn nodes() -> Vec<Node> {
    nodes_of(Path::new("/sys/devices/system/node"))
}

fn nodes_of(directory: &Path) -> Vec<Node> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut nodes: Vec<Node> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let id = name.to_str()?.strip_prefix("node")?.parse().ok()?;
            let text = fs::read_to_string(entry.path().join("meminfo")).ok()?;
            let total_bytes = field(&text, "MemTotal:")?;
            let processors = fs::read_to_string(entry.path().join("cpulist")).unwrap_or_default();
            Some(Node {
                id,
                has_processors: !processors.trim().is_empty(),
                total_bytes,
                free_bytes: field(&text, "MemFree:")?,
            })
        })
        .filter(|node| node.total_bytes > 0)
        .collect();
    nodes.sort_by_key(|node| node.id);
    nodes
}

/// A line such as `Node 0 MemTotal:       24619712 kB`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains(name))?;
    let mut words = line.split_whitespace().rev();
    let (unit, number) = (words.next()?, words.next()?);
    (unit == "kB").then_some(number.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_as_the_kernel_writes_them() {
        let directory = tempfile::tempdir().unwrap();
        for (id, total, processors) in [(1, 1024, ""), (0, 2048, "0-1"), (2, 0, "")] {
            let node = directory.path().join(format!("node{id}"));
            fs::create_dir(&node).unwrap();
            let text =
                format!("Node {id} MemTotal:       {total} kB\nNode {id} MemFree:  100 kB\n");
            fs::write(node.join("meminfo"), text).unwrap();
            fs::write(node.join("cpulist"), format!("{processors}\n")).unwrap();
        }
        fs::create_dir(directory.path().join("power")).unwrap();
        let node = |id, has_processors, total: u64| Node {
            id,
            has_processors,
            total_bytes: total << 10,
            free_bytes: 100 << 10,
        };
        // A node without memory is none.
        let expected = [node(0, true, 2048), node(1, false, 1024)];
        assert_eq!(nodes_of(directory.path()), expected);
        assert!(!nodes().is_empty(), "this machine has memory");
    }
}
