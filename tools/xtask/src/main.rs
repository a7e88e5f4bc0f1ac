//! The repository's tasks: `cargo xtask TASK`.
//!
//! This file only dispatches. Exit codes: 0 fine, 1 something failed, 2 usage or operation error,
//! 3 not possible on this machine.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a task talks to the person who started it"
)]

mod book;
mod capi;
mod deny;
mod generate;
mod leftovers;
mod long;
mod notices;
mod package;
mod preload;
mod reproduce;
mod ship;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};

use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::NotHere;
use pagetrail_steps::{load, steps, tally, victims};
use pagetrail_suites::{
    arm64, checkpointer, collector, exact, kvm, model, ooh, posix, shadow, subpage, tier_agent,
    tier_guests, trees, vm_bench, vm_programs, vm_units,
};

const USAGE: &str = "\
usage: cargo xtask TASK

  test             what CI runs: packages, formatting, clippy, tidy, victims, all tests,
                   and a table of which technique works where
  quick            the inner loop: formatting, tidy, clippy, unit tests, one technique's conformance
  tidy             the cheap checks of the house over all files
  ship             whether what ships can be published: licences, public items, features,
                   aarch64, packages; part of 'test'
  api              write the lists of public items anew, which a test compares with the sources
  victims          compile tests/victims/*.c to target/victims/
  vm ..            run a command in a guest with another kernel (vm --help)
  bochs ..         run a static program on an emulated Intel processor with page modification
                   logging (bochs --help)
  model            the model against machines that this one is not: an emulated processor with
                   page modification logging, nested paging, a kernel with soft-dirty
  arm64 [guests]   the conformance suite on arm64, cross-built and in an emulated guest, for programs
                   that track their own memory; guests: KVM's logs there, with guests of that guest
  exact            a program as a guest of KVM, held against what it writes: by page modification
                   logging on that emulated processor, and with nested paging; part of 'test'
  shadow [short|sharing]
                   KVM with shadow page tables on that emulated processor: a program's writes, exactly
                   (short ends here); exits, events and functions of MemoryMotion, beside those
                   with nested paging. Two to three minutes with a processor to itself, more than
                   ten without; sharing: what pages that the kernel merges (KSM) cost a program
                   and a guest, with AMD's nested paging
  tier-agent       'tier agent' in a guest whose kernel reports accesses, asked from this machine:
                   the pages that a program there uses, found in the guest's process; part of 'test'
  tier-guests [WORD]
                   guests of KVM with Linux under 'tier run', in a guest with two memory nodes: an
                   agent by vsock, hot sets that move, huge pages, a reboot, deaths of agent, guest
                   and daemon; WORD selects tests by their names
  kvm [paging|suites]
                   'compare kvm' with a real guest, in a guest with nested virtualization: MemoryMotion
                   and a web server, their results, exits and counters; paging: both in kvm and in
                   kvm:shadow on that emulated Intel processor; suites: the instructions of suites
  ooh [6.12|7.x|suites|monitors|criu ..]
  ooh [--kernel SERIES] [--counted] [--polled] [--module NAME ..] -- COMMAND ..
                   the techniques that read a log of processor or hypervisor, in guests whose emulator
                   plays it: the rules of the kernel module, a hostile guest, conformance, stress,
                   libgc (suites), a monitor that shares its log (monitors), CRIU; all of it, or one
                   kernel and part; short in 'test'; or a command there, with the options that 'vm' has
  ooh pml [whole]  the tests of the library for monitors on that emulated Intel processor, where KVM
                   logs by page modification logging; whole: all of their rounds, not an eighth
  soak [--for TIME]
                   the long form of the tests, over and over with new seeds, for an hour or as long
                   as TIME says (90s, 30m, 8h); ends with the first that fails
  collector        the programs on libgc, which are part of 'test'
  checkpointer     CRIU, which is part of 'test'
  restore [programs [NAME]]
                   the part of it that restores processes from a store, on this machine; or of that
                   the real programs alone: Redis, PostgreSQL, nginx, Node, JVM, CPython, .., or one
  posix [short]    the Open POSIX Test Suite natively and while its programs are tracked, in the long
                   form that 'soak' has (half an hour), or in the short one that 'test' has
  bench [NAME]     measure anew what bench/results/ keeps, or one file of it; for an idle machine
  bench collector [here [ROUNDS [PROGRAM ..]] | guest [ROUNDS] | memory [PROGRAM ..]]
                   the same for the programs on libgc, on this machine and in a guest (half an hour),
                   or some of them on this machine, recorded by themselves;
                   memory: what they take in the OoH paper's configurations, and tkrzw's engines
  bench programs   real programs under 'adaptive' and 'pagemap-scan' (ten minutes); bench adaptive
                   has generated workloads (a quarter of an hour)
  bench budget     databases, runtimes and these programs with a budget of 3% (ten minutes)
  reproduce [report|--again]
                   measure anew all that stands beside the papers' values (hours; goes on where it
                   was ended), and write the book's chapters of them; report writes these alone
  bench vm         what the virtual machine costs a program: exits, instructions, collects (guests)
  bench vm collector [0|1|2 ..]
                   libgc in programs that are guests, by the machine's write set, beside mprotect
                   natively: instructions and exits in three sizes (guest, an hour)
  bench units [PROGRAM]
                   what sub-pages, and merging them, save and cost programs (figures 8 to 11 of Lu
                   et al.): instructions, log entries, faults, bytes (guest)
  bench ooh [listing1|guests|checkpointer|collector|engines ..] [--for TIME] [--again]
                   section VI of the OoH paper in counts: every technique side by side in one guest,
                   and one to five guests at once; what is recorded is measured --again if so wanted,
                   and what is not within an hour, or TIME, by the next call
  bench checkpointer [ROUNDS | engines [ROUNDS [small|medium|large [ENGINE]]]]
                   the same for CRIU, in a guest; engines: tkrzw's under CRIU, on this machine
  bench trees [with COMMAND] [ROUNDS]
                   what trees of processes cost to track: short lives, 200 processes of 50 MiB, the
                   live view of them, call stacks (ten minutes); with another build of the command,
                   whose results are not kept
  bench restore [programs] [ROUNDS]
                   CRIU with image files and with a store: dumps, bytes, restores, on this machine;
                   programs: how long Redis, CPython and a JVM take to their first answer, restored
                   with CRIU and without, and started anew
  vm-programs [TEST ..]
                   Python's own tests as a guest of KVM, beside the same natively, in a guest with
                   nested virtualization (an hour and more); TEST is one of its files, as test_dict
  subpage suites [python|redis] [PARTS ..]
                   Python's and Redis' own tests on the sub-page allocator, for every number of
                   parts (an hour and more; a short form is part of 'test')
  bench subpage [programs|throughput|checkpoints|reads|scale [ROUNDS]]
                   the same for the sub-page allocator: databases and trees by parts of a page, its
                   throughput and memory beside libc's, what checkpoints take, and what it costs to
                   watch reads
  generate [DIR]   pagetrail.h anew; man pages and shell completions, from the command's own
                   definitions and from pagetrail.h, and NOTICES.txt with the licences of what is
                   linked, to DIR (default: target/share)
  book             the book of docs/book in target/book: chapters, command reference, links checked;
                   as HTML where mdBook is installed
  capi             test the C library as a user of C has it: symbols, compilers, sanitizers, valgrind
  install --prefix DIR
                   the command with its completions, the C library (header, shared and static
                   library, pkg-config file) and the libraries for LD_PRELOAD (soft-dirty bits,
                   the sub-page allocator), with their man pages; --help says where
  package          the same as a package for Debian, target/deb/*.deb
";

fn main() -> ExitCode {
    let args = std::env::args_os().skip(1).map(|arg| {
        arg.into_string()
            .map_err(|arg| anyhow!("{} is not UTF-8", arg.display()))
    });
    match args.collect::<Result<Vec<_>>>().and_then(|args| run(&args)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(if error.is::<NotHere>() { 3 } else { 2 })
        }
    }
}

fn run(args: &[String]) -> Result<ExitCode> {
    let (task, rest) = match args.split_first() {
        Some((task, rest)) => (task.as_str(), rest),
        None => ("help", args),
    };
    if let Some(surplus) = surplus(task, rest) {
        bail!("{task}: unexpected argument '{surplus}'\n{USAGE}");
    }
    let repo = Repo::find()?;
    // Each recording says what ran beside it.
    load::begin()?;
    let fine = match task {
        "test" => test::run(&repo)?,
        "quick" => test::quick(&repo)?,
        // Started by the task test.
        test::LANE => test::lane(&repo, rest)?,
        "tidy" => tidy::run(&repo)?,
        "ship" => ship::run(&repo),
        "api" => pagetrail_public_api::update(&repo.root).map(|()| true)?,
        "vm" => return pagetrail_rig::run(&repo, rest),
        "vm-programs" => vm_programs::run(&repo, rest)?,
        "bochs" => return pagetrail_rig::bochs::run(&repo, rest),
        "model" => {
            let mut steps = steps::Steps::default();
            let mut tally = tally::Tally::default();
            for (name, part) in [
                ("an Intel processor", model::Part::Bochs),
                ("guests", model::Part::Guests),
            ] {
                steps.run(name, || model::run(&repo, part));
            }
            steps.run("model against real machines", || {
                model::compare(&repo, &mut tally)
            });
            steps.finish()
        }
        "arm64" => {
            let mut steps = steps::Steps::default();
            let mut tally = tally::Tally::default();
            match rest {
                [] => steps.run("conformance on arm64", || arm64::run(&repo, &mut tally)),
                [guests] if guests == "guests" => {
                    steps.run("guests of KVM on arm64", || {
                        arm64::run_guests(&repo, &mut tally)
                    });
                }
                [other, ..] => bail!("arm64 takes guests, not '{other}'"),
            }
            steps.finish()
        }
        "exact" => {
            let mut steps = steps::Steps::default();
            for (name, machine) in [
                ("an Intel processor", exact::Machine::Bochs),
                ("nested paging", exact::Machine::Guest),
            ] {
                steps.run(name, || exact::run(&repo, machine, None));
            }
            steps.finish()
        }
        "shadow" => {
            let mut steps = steps::Steps::default();
            let extent = match rest {
                [] => Some(shadow::Extent::Whole),
                [short] if short == "short" => Some(shadow::Extent::Short),
                [sharing] if sharing == "sharing" => None,
                _ => bail!("shadow takes short or sharing\n{USAGE}"),
            };
            match extent {
                Some(extent) => steps.run("shadow page tables", || shadow::run(&repo, extent)),
                None => steps.run("shared pages", || {
                    shadow::sharing(&repo).map(|()| steps::Outcome::Passed)
                }),
            }
            steps.finish()
        }
        "tier-agent" => {
            let mut steps = steps::Steps::default();
            steps.run("an agent of tiering in a guest", || tier_agent::run(&repo));
            steps.finish()
        }
        "tier-guests" => {
            let mut steps = steps::Steps::default();
            let only = rest.first().map(String::as_str);
            steps.run("guests under tiering", || tier_guests::run(&repo, only));
            steps.finish()
        }
        "kvm" => {
            let mut steps = steps::Steps::default();
            match rest {
                [] => steps.run("guests with a kernel of their own", || kvm::run(&repo)),
                [paging] if paging == "paging" => {
                    steps.run("nested paging and shadow page tables", || {
                        kvm::paging(&repo)
                    });
                }
                [suites] if suites == "suites" => {
                    steps.run("instructions of suites", || {
                        kvm::suites(&repo).map(|()| steps::Outcome::Passed)
                    });
                }
                [other, ..] => bail!("kvm takes paging or suites, not '{other}'"),
            }
            steps.finish()
        }
        "ooh" if rest == ["pml"] => ooh::pml::run(&repo, false)?,
        "ooh" if rest == ["pml", "whole"] => ooh::pml::run(&repo, true)?,
        "ooh" => match ooh::Only::parse(rest) {
            None => ooh::command(&repo, rest)?,
            Some(only) => {
                let mut steps = steps::Steps::default();
                let mut tally = tally::Tally::default();
                steps.run("logs of processor and hypervisor", || {
                    ooh::run(&repo, ooh::Extent::Whole, only, None, &mut tally)
                });
                steps.finish()
            }
        },
        "soak" => long::soak(&repo, rest)?,
        "subpage" => match rest {
            [what, asked @ ..] if what == "suites" => subpage::suites::run(&repo, asked)?,
            _ => bail!("subpage takes suites\n{USAGE}"),
        },
        "checkpointer" => {
            let mut steps = steps::Steps::default();
            steps.run("CRIU", || checkpointer::test(&repo));
            steps.run("CRIU in a guest", || checkpointer::test_in_guest(&repo));
            steps.finish()
        }
        "restore" => match rest {
            [] => checkpointer::test_restore(&repo)? == steps::Outcome::Passed,
            [what, only @ ..] if what == "programs" => {
                let only = only.first().map(String::as_str);
                checkpointer::test_programs(&repo, only)? == steps::Outcome::Passed
            }
            _ => bail!("restore takes programs [NAME]\n{USAGE}"),
        },
        "posix" => match rest {
            [] => posix::long(&repo)?,
            [short] if short == "short" => posix::test(&repo)? == steps::Outcome::Passed,
            _ => bail!("posix takes short\n{USAGE}"),
        },
        "collector" => collector::test(&repo)? == steps::Outcome::Passed,
        "bench" => match rest {
            [what, part, rounds @ ..] if what == "restore" && part == "programs" => {
                checkpointer::bench_answers(&repo, rounds.first().map(String::as_str))
                    .map(|()| true)?
            }
            [what, rounds @ ..] if what == "restore" => {
                checkpointer::bench_restore(&repo, rounds.first().map(String::as_str))
                    .map(|()| true)?
            }
            [what, asked @ ..] if what == "checkpointer" => {
                checkpointer::bench(&repo, asked).map(|()| true)?
            }
            [what, part @ ..] if what == "collector" => {
                collector::bench(&repo, part).map(|()| true)?
            }
            [what, part @ ..] if what == "subpage" => subpage::bench(&repo, part).map(|()| true)?,
            [what, asked @ ..] if what == "trees" => trees::bench(&repo, asked).map(|()| true)?,
            [what, part, sizes @ ..] if what == "vm" && part == "collector" => {
                collector::machine::bench(&repo, sizes).map(|()| true)?
            }
            [what] if what == "vm" => vm_bench::run(&repo).map(|()| true)?,
            [what, only @ ..] if what == "ooh" => ooh::bench::run(&repo, only).map(|()| true)?,
            [what, only @ ..] if what == "units" => {
                vm_units::run(&repo, only.first().map(String::as_str)).map(|()| true)?
            }
            _ => long::bench(&repo, rest.first().map(String::as_str)).map(|()| true)?,
        },
        // In a guest, started by the tasks above.
        "measure-checkpointer" => checkpointer::measure_in_guest(rest).map(|()| true)?,
        "chain-by-logs" => checkpointer::chain_by_logs(rest).map(|()| true)?,
        "measure-checkpointer-logs" => checkpointer::measure_by_logs(rest).map(|()| true)?,
        "measure-engines-logs" => checkpointer::measure_engines_by_logs(rest).map(|()| true)?,
        "measure-listing1-logs" => ooh::bench::measure_listing1(rest).map(|()| true)?,
        "refusals-of-ooh" => ooh::refusals::in_guest(rest).map(|()| true)?,
        "measure-guests-logs" => ooh::bench::measure_guests(rest).map(|()| true)?,
        "measure-collector-logs" => collector::logs::measure_in_guest(rest).map(|()| true)?,
        "measure-collector-machine" => collector::machine::measure_in_guest(rest).map(|()| true)?,
        "measure-collector" => collector::measure_in_guest(rest).map(|()| true)?,
        "reproduce" => reproduce::run(&repo, rest)?,
        "book" => book::build(&repo)? != steps::Outcome::Failed,
        "capi" => capi::run(&repo)?,
        "package" => package::run(&repo).map(|()| true)?,
        "install" => capi::install(&repo, rest).map(|()| true)?,
        "victims" => victims::build(&repo).map(|_| true)?,
        "generate" => generate::run(&repo, rest.first().map(String::as_str)).map(|()| true)?,
        "help" | "-h" | "--help" => {
            print!("{USAGE}");
            true
        }
        _ => bail!("no task '{task}'\n{USAGE}"),
    };
    Ok(ExitCode::from(u8::from(!fine)))
}

/// The first argument that `task` does not take.
fn surplus<'a>(task: &str, rest: &'a [String]) -> Option<&'a String> {
    match task {
        "vm"
        | "vm-programs"
        | "ooh"
        | "bochs"
        | "install"
        | "soak"
        | "subpage"
        | test::LANE
        | "chain-by-logs"
        | "measure-checkpointer-logs"
        | "measure-engines-logs"
        | "measure-listing1-logs"
        | "measure-guests-logs"
        | "refusals-of-ooh"
        | "measure-collector-logs"
        | "measure-collector-machine"
        | "measure-collector"
        | "measure-checkpointer" => None,
        "bench" if rest.first().is_some_and(|arg| arg == "subpage") => rest.get(3),
        // They look at all of them themselves.
        "bench"
            if rest
                .first()
                .is_some_and(|arg| arg == "trees" || arg == "ooh") =>
        {
            None
        }
        "bench" if rest.get(1).is_some_and(|arg| arg == "memory") => None,
        // It looks at programs itself.
        "bench" if matches!(rest, [collector, here, ..] if collector == "collector" && here == "here") => {
            None
        }
        "bench" if rest.first().is_some_and(|arg| arg == "collector") => rest.get(3),
        "bench" if rest.first().is_some_and(|arg| arg == "checkpointer") => rest.get(5),
        "bench" if rest.first().is_some_and(|arg| arg == "restore") => {
            let is_of_programs = rest.get(1).is_some_and(|arg| arg == "programs");
            rest.get(if is_of_programs { 3 } else { 2 })
        }
        "bench" if rest.first().is_some_and(|arg| arg == "units") => rest.get(2),
        // It looks at sizes itself.
        "bench" if matches!(rest, [vm, part, ..] if vm == "vm" && part == "collector") => None,
        "generate" | "bench" | "posix" | "tier-guests" | "reproduce" | "shadow" | "kvm"
        | "arm64" => rest.get(1),
        "restore" => rest.get(2),
        _ => rest.first(),
    }
}
