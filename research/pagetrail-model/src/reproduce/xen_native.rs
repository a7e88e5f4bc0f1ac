//! The Xen study's comparison of a virtual machine with a native run: tables 1 to 8 and figures 3
//! to 5.
//!
//! Its suites are not run here. What stands beside them are tests of `pagetrail compare` in a guest
//! with a Linux kernel of its own, and programs of ours as guests of KVM; in instructions, recorded
//! on an emulated processor.

use super::recording::{Pick, Recording};
use super::{Claim, Printed, Row, Table, xen};
use crate::RunError;

/// Loss of a program as a guest, in per cent of the native score.
fn loss(what: &str, work: &str, passes: &str) -> Row {
    let ticks = |who: &str| format!("counted.programs[work={work}].{who}.{passes}.ticks");
    // A score is work over time: it loses 1 - native / guest.
    let pick = Pick::new(Recording::Vm, ticks("native"));
    let pick = pick.over(ticks("guest")).times(-100.0).plus(100.0);
    Row::recorded(what, "% lost", None::<Printed>, pick).note(
        "of our own: instructions of a program on stock KVM with nested page tables, which has no shadow paging",
    )
}

/// Loss of the tests of a suite in a guest with a kernel of its own.
fn suite(name: &str, tests: &[&str]) -> Vec<Row> {
    in_environment("kvm", name, tests, OWN_KERNEL_WHY)
}

/// Loss of work on files as a guest of KVM whose calls the host carries out.
fn files(tests: &[&str]) -> Vec<Row> {
    in_environment("vm", "disk", tests, FILES_WHY)
}

fn in_environment(guest: &str, suite: &str, tests: &[&str], why: &'static str) -> Vec<Row> {
    let rows = tests.iter().map(|test| {
        let time = |environment: &str| {
            format!(
                "suites[name={suite}].tests[name={test}].environments[environment={environment}].time_ns.median"
            )
        };
        // A score is work over time: it loses 1 - native / guest.
        let pick = Pick::new(Recording::Suites, time("native"));
        let pick = pick.over(time(guest)).times(-100.0).plus(100.0);
        Row::recorded(format!("{suite}/{test}"), "% lost", None::<Printed>, pick).note(why)
    });
    rows.collect()
}

/// What each test is called where both kinds of page tables stand side by side.
const NESTED: &str = "with nested page tables";
const SHADOW: &str = "with shadow page tables";

/// Loss of tests in a guest on the emulated Intel processor, whose page tables KVM shadows or not.
fn on_intel(page_tables: &str, suite: &str, tests: &[&str]) -> Vec<Row> {
    let (document, guest) = match page_tables {
        SHADOW => ("shadow", "kvm:shadow"),
        _ => ("nested", "kvm"),
    };
    let rows = tests.iter().map(|test| {
        let time = |environment: &str| {
            format!(
                "{document}.suites[name={suite}].tests[name={test}].environments[environment={environment}].time_ns.median"
            )
        };
        let pick = Pick::new(Recording::KvmPaging, time("native"));
        let pick = pick.over(time(guest)).times(-100.0).plus(100.0);
        let what = format!("{suite}/{test} {page_tables}");
        Row::recorded(what, "% lost", None::<Printed>, pick).note(INTEL_WHY)
    });
    rows.collect()
}

const INTEL_WHY: &str = "of our own: time of a test of pagetrail compare in a guest of stock KVM with a Linux kernel of its own, by a clock \
                         that counts the emulator's steps; that machine interrupts the guest every six microseconds, and each time is \
                         an exit, which makes most of what apps/web loses in figure 3";

const OWN_KERNEL_WHY: &str = "of our own: instructions of a test of pagetrail compare in a guest of stock KVM with a Linux kernel of its own \
                              and nested page tables, which has no shadow paging";

const FILES_WHY: &str = "of our own: instructions of a test of pagetrail compare as a guest of KVM whose calls the host carries out, on a file \
                         system in memory: no disk is emulated, so what is lost are the ways to the host and back";

fn losses(
    name: &'static str,
    about: &'static str,
    paper: &[(&'static str, f64)],
    ours: Vec<Row>,
    absent: Option<&'static str>,
) -> Table {
    let mut rows: Vec<Row> = paper
        .iter()
        .map(|&(what, loss)| Row::paper_alone(what, "% lost", Printed(loss)))
        .collect();
    rows.extend(ours);
    Table {
        name,
        about,
        absent,
        rows,
        ..Table::default()
    }
}

/// Table 1: which systems could be installed.
pub fn table1() -> Result<Table, RunError> {
    Ok(Table {
        name: "1",
        about: "Operating systems, and whether they ran on Xen 3 in 2007.",
        absent: Some("the table has words and no numbers, of systems that pagetrail does not run"),
        ..Table::default()
    })
}

/// Table 2: Nbench.
pub fn table2() -> Result<Table, RunError> {
    let mut ours = suite(
        "processor",
        &["sort", "bits", "decomposition", "fourier", "monte-carlo"],
    );
    ours.extend([
        loss("k-means", "k-means", "again"),
        loss("matrix multiply", "matrix multiply", "again"),
        loss("sort", "sort", "again"),
    ]);
    let about = "Nbench on Debian: what the virtual machine loses.";
    let claims = vec![Claim::at_most(
        "such work loses no more than in table 2, which is 1.05%",
        "processor/",
        1.05,
    )];
    Ok(Table {
        claims,
        ..losses("2", about, TABLE2, ours, None)
    })
}

/// Table 3: Aim9, arithmetic.
pub fn table3() -> Result<Table, RunError> {
    let ours = suite("processor", &["integers", "floats"]);
    let about = "Aim9, arithmetic: what the virtual machine loses.";
    let claims = vec![Claim::at_most(
        "arithmetic loses no more than in table 3, which is 0.68%",
        "processor/",
        0.68,
    )];
    Ok(Table {
        claims,
        ..losses("3", about, TABLE3, ours, None)
    })
}

/// Table 4: Aim9, function calls.
pub fn table4() -> Result<Table, RunError> {
    let ours = suite("calls", &["function"]);
    let about = "Aim9, function calls: what the virtual machine loses.";
    let claims = vec![Claim::at_most(
        "function calls lose no more than in table 4, which is 2.61%",
        "calls/",
        2.61,
    )];
    Ok(Table {
        claims,
        ..losses("4", about, TABLE4, ours, None)
    })
}

/// Table 5: Aim9, files.
pub fn table5() -> Result<Table, RunError> {
    Ok(losses(
        "5",
        "Aim9, disks and files: what the virtual machine loses.",
        TABLE5,
        files(&["read", "write", "random-read", "random-write", "sync"]),
        None,
    ))
}

/// Table 6: Aim9, communication.
pub fn table6() -> Result<Table, RunError> {
    let ours = [
        suite("net", &["tcp", "tcp-latency", "udp"]),
        suite(
            "ipc",
            &["pipe", "pipe-copy", "stream", "datagram", "shared-memory"],
        ),
    ];
    let about = "Aim9, communication between processes: what the virtual machine loses.";
    let no_more = |says, of| Claim::at_most(says, of, 12.97);
    let claims = vec![
        no_more(
            "the loopback device loses no more than table 6 has, which is 12.97%",
            "net/",
        ),
        no_more(
            "pipes, sockets and shared memory lose no more than that",
            "ipc/",
        ),
    ];
    Ok(Table {
        claims,
        ..losses("6", about, TABLE6, ours.concat(), None)
    })
}

/// Table 7: Aim9, the C library.
pub fn table7() -> Result<Table, RunError> {
    let mut ours = suite(
        "library",
        &[
            "copy",
            "numbers",
            "words",
            "trigonometry",
            "maps",
            "allocate",
        ],
    );
    // Others open files, which are elsewhere natively than in the guest's memory.
    ours.extend(suite("calls", &["getppid", "clock", "read"]));
    ours.extend([
        loss("getpid", "getpid", "again"),
        loss("read of 1 byte", "read of 1 byte", "again"),
    ]);
    let mut table = losses(
        "7",
        "Aim9, the C library: what the virtual machine loses. Calls without I/O lose 0.88% in the study, whose guest \
         has its own kernel; a program as a guest of KVM leaves the machine for each call.",
        TABLE7,
        ours,
        None,
    );
    let calls = Row::paper_alone("calls without I/O (section 3.5)", "% lost", Printed(0.88));
    table.rows.insert(TABLE7.len(), calls);
    table.claims.push(Claim::at_most(
        "libraries lose no more than in table 7 but for misc_rtns_1, which is 2.40%",
        "library/",
        2.40,
    ));
    Ok(table)
}

/// Table 8: Aim9, memory.
pub fn table8() -> Result<Table, RunError> {
    // Programs that are started lie elsewhere natively than in the guest's memory; on Bochs all do.
    let mut ours = suite("memory", &["page", "brk", "fork"]);
    let tests = ["page", "brk", "exec", "fork", "shell"];
    ours.extend(on_intel(SHADOW, "memory", &tests));
    ours.extend([
        loss("touch 1 GiB", "touch 1 GiB", "first"),
        loss(
            "write 16 MiB again, 20 times",
            "write 16 MiB again, 20 times",
            "again",
        ),
    ]);
    let about = "Aim9, memory: what the virtual machine loses, most of it to shadow page tables.";
    Ok(Table {
        claims: vec![Claim::less(
            "brk_test, which touches no page, loses less than page_test",
            "brk with shadow",
            "page with shadow",
        )],
        ..losses("8", about, TABLE8, ours, None)
    })
}

/// Figure 3: all benchmarks. The text has the times of MemoryMotion.
pub fn figure3() -> Result<Table, RunError> {
    let mut table = xen::memory_motion_time()?;
    table.name = "Figure 3";
    let times = [Printed(33.0), Printed(125.0)];
    table.rows.push(Row::paper_alone(
        "MemoryMotion on Debian, of 33 s natively and 125 s",
        "% lost",
        Printed::arithmetic(times, |[native, guest]| 100.0 * (1.0 - native / guest)),
    ));
    let alone = [
        ("kernel compile on Debian", 22.79),
        ("SPECweb99, light, on Windows", 6.33),
    ];
    table.rows.extend(alone.map(|(what, loss)| {
        Row::paper_alone(what, "% lost", Printed(loss))
            .note("a whole kernel is not compiled here, and SPECweb99 is licensed")
    }));
    for (name, test) in [("memory", "motion"), ("apps", "web")] {
        table.rows.extend(suite(name, &[test]));
        table.rows.extend(on_intel(NESTED, name, &[test]));
        table.rows.extend(on_intel(SHADOW, name, &[test]));
    }
    // What it says of related work, and expects of the processors to come.
    table.claims.push(Claim::less(
        "the most is lost for want of page tables for guests in hardware: with nested ones it is less",
        NESTED,
        SHADOW,
    ));
    Ok(table)
}

/// Figure 4: Dbench.
pub fn figure4() -> Result<Table, RunError> {
    Ok(Table {
        name: "Figure 4",
        about: "Throughput of Dbench by its clients, normalized: a chart without numbers, of emulated disks; the text says \
                that 20 to 30% are lost. Ours is one client of the host's files.",
        rows: files(&["files"]),
        ..Table::default()
    })
}

/// Figure 5: NetIO.
pub fn figure5() -> Result<Table, RunError> {
    Ok(Table {
        name: "Figure 5",
        about: "Throughput of NetIO, normalized: a chart without numbers, of an emulated network card. Ours is of the \
                guest's own loopback device.",
        rows: suite("net", &["tcp", "tcp-latency", "udp"]),
        ..Table::default()
    })
}

const TABLE2: &[(&str, f64)] = &[
    ("Numeric Sort", 0.26),
    ("String Sort", 0.53),
    ("Bitfield", 0.44),
    ("Fp Emulation", 0.52),
    ("Fourier", 0.41),
    ("Assignment", 0.47),
    ("Idea", 0.31),
    ("Huffman", 0.56),
    ("Neural Net", 1.05),
    ("Lu Decomposition", 0.55),
];

const TABLE3: &[(&str, f64)] = &[
    ("add_short", 0.64),
    ("add_int", 0.45),
    ("add_long", 0.45),
    ("add_float", 0.48),
    ("add_double", 0.51),
    ("mul_short", 0.68),
    ("mul_int", 0.54),
    ("mul_long", 0.53),
    ("mul_float", 0.47),
    ("mul_double", 0.49),
    ("div_short", 0.48),
    ("div_int", 0.50),
    ("div_long", 0.48),
    ("div_float", 0.49),
    ("div_double", 0.52),
];

const TABLE4: &[(&str, f64)] = &[
    ("fun_cal", 0.32),
    ("fun_cal1", 0.29),
    ("fun_cal2", 2.61),
    ("fun_cal15", 0.29),
];

const TABLE5: &[(&str, f64)] = &[
    ("disk_rr", -2.94),
    ("disk_rw", -2.83),
    ("disk_rd", 74.10),
    ("disk_wrt", -4.50),
    ("disk_cp", 41.02),
    ("sync_disk_rw", -96.50),
    ("sync_disk_wrt", 54.99),
    ("sync_disk_cp", 56.64),
    ("disk_src", 5.99),
    ("link_test", 6.23),
    ("creat-clo", 35.11),
    ("dir_rtns_1", 1.09),
];

const TABLE6: &[(&str, f64)] = &[
    ("tcp_test", 3.34),
    ("udp_test", 3.18),
    ("fifo_test", 12.97),
    ("stream_pipe", 3.83),
    ("dgram_pipe", 3.18),
    ("pipe_cpy", 3.07),
    ("shared_memory", 12.08),
];

const TABLE7: &[(&str, f64)] = &[
    ("jmp_test", 0.52),
    ("ram_copy", 0.52),
    ("num_rtns_1", 1.49),
    ("trig_rtns", 0.69),
    ("mem_rtns_1", 0.42),
    ("string_rtns", 0.72),
    ("matrix_rtns", 0.53),
    ("array_rtns", 0.48),
    ("sort_rtns_1", 2.40),
    ("signal_test", 0.36),
    ("misc_rtns_1", 57.66),
];

const TABLE8: &[(&str, f64)] = &[
    ("page_test", 84.21),
    ("brk_test", 0.86),
    ("exec_test", 81.47),
    ("fork_test", 91.45),
    ("shell_rtns_1", 76.86),
    ("shell_rtns_2", 76.95),
    ("shell_rtns_3", 76.86),
];
