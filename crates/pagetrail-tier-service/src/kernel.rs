//! [`movers`]: what else moves pages between tiers here: the kernel's own tiering.
//!
//! Two that move the same pages undo each other's work: what one demotes as cold the other
//! promotes. Nothing is switched off here; a line names the other, and the cure.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Something in the kernel that moves pages between tiers by itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct KernelMover {
    /// The name of its switch.
    pub name: String,
    /// What it does, and how it is switched off.
    pub what: String,
}

impl KernelMover {
    fn new(name: &str, what: &str) -> Self {
        Self {
            name: name.into(),
            what: what.into(),
        }
    }

    /// One line about who is in charge.
    pub fn line(&self) -> String {
        format!("the kernel moves pages, too: {}: {}", self.name, self.what)
    }
}

/// What is switched on in the running kernel.
pub fn movers() -> Vec<KernelMover> {
    movers_of(Path::new("/"))
}

/// Bits of `kernel.numa_balancing` (`NUMA_BALANCING_NORMAL`, `NUMA_BALANCING_MEMORY_TIERING`).
const BETWEEN_PROCESSORS: u32 = 1;
const BETWEEN_TIERS: u32 = 2;

fn movers_of(root: &Path) -> Vec<KernelMover> {
    let read = |path: &str| {
        let text = fs::read_to_string(root.join(path)).unwrap_or_default();
        text.trim().to_owned()
    };
    let mut found = Vec::new();
    let balancing = read("proc/sys/kernel/numa_balancing");
    let balancing: u32 = balancing.parse().unwrap_or(0);
    if balancing & BETWEEN_TIERS != 0 {
        found.push(KernelMover::new(
            "numa_balancing",
            "it promotes pages of slow nodes when they are accessed, also those that are demoted here as cold; \
             with sysctl kernel.numa_balancing=0 this daemon is in charge alone",
        ));
    } else if balancing & BETWEEN_PROCESSORS != 0 {
        found.push(KernelMover::new(
            "numa_balancing",
            "it moves pages to the node of the processor that accesses them, slow nodes with processors among them; \
             with sysctl kernel.numa_balancing=0 this daemon is in charge alone",
        ));
    }
    if is_on(&read("sys/kernel/mm/numa/demotion_enabled")) {
        found.push(KernelMover::new(
            "demotion",
            "when a fast node is full, reclaim demotes its oldest pages instead of swapping; it helps this daemon while there is \
             free fast memory, and /sys/kernel/mm/numa/demotion_enabled switches it",
        ));
    }
    if is_on(&read("sys/module/damon_reclaim/parameters/enabled")) {
        found.push(KernelMover::new(
            "damon_reclaim",
            "it pages out what DAMON saw cold, of all processes; with N in /sys/module/damon_reclaim/parameters/enabled this \
             daemon is in charge alone",
        ));
    }
    if has_migration(&root.join("sys/kernel/mm/damon/admin/kdamonds")) {
        found.push(KernelMover::new(
            "damon",
            "a DAMON scheme migrates or pages out what it finds; with off in its kdamond's state this daemon is in charge alone",
        ));
    }
    found
}

fn is_on(text: &str) -> bool {
    matches!(text, "1" | "Y" | "y" | "true")
}

/// Whether a kdamond runs that has a scheme that moves pages.
fn has_migration(kdamonds: &Path) -> bool {
    let list = |path: &Path| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
    };
    let reads = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    list(kdamonds)
        .filter(|kdamond| reads(&kdamond.join("state")).trim() == "on")
        .flat_map(|kdamond| list(&kdamond.join("contexts")))
        .flat_map(|context| list(&context.join("schemes")))
        .any(|scheme| {
            let action = reads(&scheme.join("action"));
            matches!(action.trim(), "migrate_hot" | "migrate_cold" | "pageout")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_switched_on_is_named() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let names = || -> Vec<String> {
            let movers = movers_of(root);
            movers.into_iter().map(|mover| mover.name).collect()
        };
        assert!(names().is_empty(), "a kernel without any of them");
        let balancing = "proc/sys/kernel/numa_balancing";
        put(balancing, "0\n");
        put("sys/kernel/mm/numa/demotion_enabled", "false\n");
        put("sys/module/damon_reclaim/parameters/enabled", "N\n");
        let scheme = "sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes/0/action";
        put(scheme, "migrate_cold\n");
        put("sys/kernel/mm/damon/admin/kdamonds/0/state", "off\n");
        put("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "1\n");
        assert!(names().is_empty());
        for (value, tiers) in [("1", false), ("2", true), ("3", true)] {
            put(balancing, value);
            let movers = movers_of(root);
            assert_eq!(movers.len(), 1);
            assert_eq!(movers[0].line().contains("promotes"), tiers, "{value}");
        }
        put("sys/kernel/mm/numa/demotion_enabled", "true\n");
        put("sys/module/damon_reclaim/parameters/enabled", "Y\n");
        put("sys/kernel/mm/damon/admin/kdamonds/0/state", "on\n");
        let all = ["numa_balancing", "demotion", "damon_reclaim", "damon"];
        assert_eq!(names(), all);
        put(scheme, "stat\n");
        assert_eq!(names(), all[..3], "it counts and moves nothing");
    }
}
