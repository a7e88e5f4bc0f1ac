//! Names of memory that the kernel does not name, in reports on real programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{number, report, run};

/// Pages written by name of the mapping, in a recording of a program from its start to its end.
fn recorded(command: &[&str]) -> BTreeMap<String, u64> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let options = ["record", "--interval", "20ms", "--last-round", "--"];
    let output = run(here, &[&options[..], command].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    names(here)
}

fn names(directory: &Path) -> BTreeMap<String, u64> {
    let document = report(directory, "pagetrail.trail");
    let mut names = BTreeMap::new();
    for mapping in document["mappings"].as_array().expect("a list") {
        let name = mapping["name"].as_str().expect("a text").to_owned();
        *names.entry(name).or_default() += number(&mapping["page_writes"]);
    }
    names
}

fn assert_has(names: &BTreeMap<String, u64>, wanted: &[&str]) {
    for name in wanted {
        assert!(
            names.get(*name).is_some_and(|pages| *pages > 0),
            "{name}: {names:#?}"
        );
    }
}

/// Whether a program is installed; what is missing here is reported.
fn has(program: &str) -> bool {
    let version = Command::new(program)
        .arg(if program == "java" {
            "-version"
        } else {
            "--version"
        })
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let runs = version.is_ok_and(|status| status.success());
    if !runs {
        pagetrail_skips::not_here(format_args!("{program} is not installed"));
    }
    runs
}

#[test]
fn threads_and_the_allocator_of_c() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = directory.path().join("named");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/named_memory.c");
    let compiled = Command::new("gcc")
        .args(["-O1", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .status();
    assert!(compiled.is_ok_and(|status| status.success()), "gcc failed");
    let names = recorded(&[program.to_str().expect("UTF-8")]);
    assert_has(
        &names,
        &[
            "[stack: my worker]",
            "[stack: named]",
            "[malloc arena]",
            "[malloc large blocks]",
            "[bss: named]",
            "[jit code]",
        ],
    );
    // What shows no evidence stays without a name.
    assert_has(&names, &[""]);
}

#[test]
fn objects_of_python() {
    if !has("python3") {
        return;
    }
    let script = "import time\nx = []\nfor i in range(40):\n  x += [str(j) for j in range(5000)]\n  \
                  time.sleep(0.01)";
    assert_has(&recorded(&["python3", "-c", script]), &["[python objects]"]);
}

#[test]
fn heap_and_threads_of_node() {
    if !has("node") {
        return;
    }
    let script = "let a = []; let n = 0; const t = setInterval(() => { for (let i = 0; i < 20000; \
                  i++) a.push({x: i}); if (++n == 40) clearInterval(t); }, 10)";
    let names = recorded(&["node", "-e", script]);
    assert_has(&names, &["[v8 heap]"]);
    let unnamed = names.get("").copied().unwrap_or(0);
    assert!(unnamed < names["[v8 heap]"], "{names:#?}");
}

#[test]
fn heap_and_code_of_java() {
    if !has("java") || !has("javac") {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = directory.path().join("Busy.java");
    let text = "public class Busy { public static void main(String[] a) throws Exception {\n\
                java.util.ArrayList<Object> all = new java.util.ArrayList<>();\n\
                Thread t = new Thread(() -> { for (int i = 0; i < 60; i++) { for (int j = 0; j < 5000; \
                j++) all.add(new int[] {j}); try { Thread.sleep(10); } catch (Exception e) {} } }, \
                \"my worker\"); t.start(); t.join(); } }";
    fs::write(&source, text).expect("a file");
    let compiled = Command::new("javac").arg(&source).status();
    assert!(
        compiled.is_ok_and(|status| status.success()),
        "javac failed"
    );
    let classes = directory.path().to_str().expect("UTF-8");
    let names = recorded(&[
        "java",
        "-XX:+UseSerialGC",
        "-Xmx256m",
        "-cp",
        classes,
        "Busy",
    ]);
    assert_has(
        &names,
        &["[java heap]", "[java code]", "[stack: my worker]"],
    );
}

#[test]
fn heap_of_redis() {
    if !has("redis-server") || !has("redis-cli") {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let socket = here.join("socket").to_str().expect("UTF-8").to_owned();
    let mut server = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--unixsocket", &socket])
        .current_dir(here)
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let ask = |words: &[&str]| {
        let answer = Command::new("redis-cli")
            .args(["-s", &socket])
            .args(words)
            .output()
            .expect("it starts");
        String::from_utf8_lossy(&answer.stdout).into_owned()
    };
    while !ask(&["ping"]).contains("PONG") {
        assert!(server.try_wait().expect("a child").is_none(), "it ended");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let is_jemalloc = ask(&["info", "memory"]).contains("mem_allocator:jemalloc");
    let pid = server.id().to_string();
    let mut recorder =
        crate::common::pagetrail(here, &["record", "--interval", "20ms", "-p", &pid])
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
    // Written until a round has it.
    while !here.join("pagetrail.trail").exists() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for _ in 0..5 {
        ask(&["debug", "populate", "20000"]);
        ask(&["flushall"]);
    }
    server.kill().expect("a child");
    server.wait().expect("a child");
    assert!(recorder.wait().expect("a child").success());
    if !is_jemalloc {
        return pagetrail_skips::not_here("redis-server does not use jemalloc");
    }
    assert_has(&names(here), &["[jemalloc]"]);
}
