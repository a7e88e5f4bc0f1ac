//! Finds processes by PID or name, and describes them in messages.

use std::fs;

use pagetrail_report::words;

/// Largest number of processes that a message lists.
const LISTED_MAX: usize = 6;
/// Bytes of a process's name that the kernel keeps (`TASK_COMM_LEN` without the terminating zero).
const COMM_BYTES: usize = 15;

/// Parses a PID, or the name of a process if exactly one process has it.
pub(crate) fn process(text: &str) -> Result<u32, String> {
    if let Ok(pid) = text.parse() {
        return Ok(pid);
    }
    let mut words = text.split_whitespace();
    if text.contains(char::is_whitespace) && words.all(|word| word.parse::<u32>().is_ok()) {
        return Err("these are several processes; name one of them".into());
    }
    if text.is_empty() || text.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        return Err("it is neither a process ID nor a name".into());
    }
    choose(text, &called(text))
}

fn choose(name: &str, found: &[u32]) -> Result<u32, String> {
    match found {
        [] => Err(format!(
            "no process is called {name}; `ps -e` lists all of them"
        )),
        [pid] => Ok(*pid),
        several => Err(format!(
            "{} processes are called {name}, name one by its PID: {}",
            several.len(),
            list(several)
        )),
    }
}

/// Processes whose name, or whose program in the first word of the command line, is `name`.
fn called(name: &str) -> Vec<u32> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<u32> = pids
        .filter(|&pid| pid != own && is_called(pid, name))
        .collect();
    found.sort_unstable();
    found
}

fn is_called(pid: u32, name: &str) -> bool {
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let comm = comm.strip_suffix(b"\n").unwrap_or(&comm);
    let cut = &name.as_bytes()[..name.len().min(COMM_BYTES)];
    let line = pagetrail::command_line(pid);
    let first = line.first().map_or("", String::as_str);
    // A program may have set a title such as `redis-server *:6379`.
    let program = first.split(' ').next().unwrap_or_default();
    let by_program = program.rsplit('/').next() == Some(name);
    match name.len() > COMM_BYTES {
        true => by_program,
        false => by_program || comm == cut,
    }
}

/// Lists processes with their commands, up to a limit: `12 (sleep 10), 13 (cat)`.
pub(crate) fn list(pids: &[u32]) -> String {
    let named = pids.iter().take(LISTED_MAX).map(|&pid| {
        let command = words::command(&pagetrail::command_line(pid));
        let short: String = command.chars().take(40).collect();
        let dots = if short.len() < command.len() {
            "…"
        } else {
            ""
        };
        format!("{pid} ({short}{dots})")
    });
    let named = named.collect::<Vec<_>>().join(", ");
    match pids.len().saturating_sub(LISTED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Child processes of a process, ascending; empty if the kernel does not list them (built without
/// `CONFIG_PROC_CHILDREN`).
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let mut children: Vec<u32> = threads
        .into_iter()
        .flatten()
        .flatten()
        .flat_map(|thread| {
            let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            let pids = text.split_whitespace().map(str::parse);
            pids.filter_map(Result::ok).collect::<Vec<u32>>()
        })
        .filter(|child| *child != std::process::id())
        .collect();
    children.sort_unstable();
    children
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ambiguous_name_lists_all_processes() {
        let own = std::process::id();
        assert_eq!(choose("a", &[own]), Ok(own));
        assert!(
            choose("a", &[])
                .unwrap_err()
                .starts_with("no process is called a")
        );
        let several = choose("a", &[own; 9]).unwrap_err();
        assert!(
            several.contains(&format!("by its PID: {own} (")),
            "{several}"
        );
        assert!(several.ends_with(" and 3 more"), "{several}");
        assert_eq!(process("12"), Ok(12));
        for wrong in ["12 13", "", "12x", "-1", "99999999999"] {
            assert!(process(wrong).is_err(), "{wrong}");
        }
    }
}
