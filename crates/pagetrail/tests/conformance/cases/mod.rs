//! The cases: each prepares memory, lets the actor write to it, and says which pages must be in the
//! round.

mod accesses;
mod budget;
mod discards;
mod life;
mod mappings;
mod memory;
mod rounds;
mod unwritable;

use crate::actor::{Actor, puppet_command};
use crate::subject::Subject;
use pagetrail::{
    AtExit, Choice, CollectAt, Error, HugePages, PageRange, PageSet, Precision, ReportPages,
    Target, Technique, TrackMode, Watch, page_size,
};
use std::cell::RefCell;
use std::fmt;

/// A case with its name.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Trial<'_>) -> Outcome,
}

pub(crate) type Outcome = Result<(), Stop>;

/// Why a case ended early.
pub(crate) enum Stop {
    /// The case does not apply to this technique or subject, or the machine lacks what it needs.
    NotApplicable(String),
    /// A promise was broken.
    Broken(String),
    /// The library returned an error.
    Watch(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Watch(error)
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotApplicable(why) => write!(f, "not applicable: {why}"),
            Self::Broken(what) => write!(f, "broken: {what}"),
            Self::Watch(error) => write!(f, "error: {error}"),
        }
    }
}

fn not_applicable<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::NotApplicable(why.into()))
}

fn broken<T>(what: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Broken(what.into()))
}

/// Every case.
pub(crate) const CASES: &[Case] = &[
    Case {
        name: "anonymous memory",
        run: |t| memory::kind(t, "anon"),
    },
    Case {
        name: "shared anonymous memory",
        run: |t| memory::kind(t, "shared-anon"),
    },
    Case {
        name: "memfd, shared",
        run: |t| memory::kind(t, "memfd"),
    },
    Case {
        name: "memfd, private",
        run: |t| memory::kind(t, "memfd-private"),
    },
    Case {
        name: "file, private",
        run: |t| memory::kind(t, "file-private"),
    },
    Case {
        name: "file, shared",
        run: |t| memory::kind(t, "file-shared"),
    },
    Case {
        name: "transparent huge pages",
        run: memory::huge,
    },
    Case {
        name: "huge pages kept whole",
        run: memory::huge_kept,
    },
    Case {
        name: "hugetlb",
        run: memory::hugetlb,
    },
    Case {
        name: "first touch of sparse memory",
        run: memory::sparse,
    },
    Case {
        name: "sparse shared memory",
        run: memory::sparse_shared,
    },
    Case {
        name: "written in every round",
        run: rounds::again,
    },
    Case {
        name: "hot for long, then cold",
        run: rounds::hot_then_cold,
    },
    Case {
        name: "written sequentially, then elsewhere",
        run: rounds::swept,
    },
    Case {
        name: "hot, with exact precision",
        run: rounds::exact,
    },
    Case {
        name: "within a budget",
        run: budget::kept_or_not,
    },
    Case {
        name: "a round not committed",
        run: rounds::transaction,
    },
    Case {
        name: "reported twice",
        run: rounds::report_again,
    },
    Case {
        name: "a thousand scattered pages",
        run: rounds::scattered,
    },
    Case {
        name: "written by the kernel",
        run: rounds::kernel_write,
    },
    Case {
        name: "written by many threads",
        run: rounds::threads,
    },
    Case {
        name: "discarded, then written",
        run: memory::discarded,
    },
    Case {
        name: "shared, written, then discarded",
        run: memory::shared_discarded,
    },
    Case {
        name: "discarded from a private file",
        run: |t| discards::private(t, "file-private"),
    },
    Case {
        name: "discarded from a private memfd",
        run: |t| discards::private(t, "memfd-private"),
    },
    Case {
        name: "removed from shared memory",
        run: |t| discards::removed(t, "shared-anon"),
    },
    Case {
        name: "removed from a memfd",
        run: |t| discards::removed(t, "memfd"),
    },
    Case {
        name: "removed from a shared file",
        run: |t| discards::removed(t, "file-shared"),
    },
    Case {
        name: "removed by descriptor",
        run: discards::by_descriptor,
    },
    Case {
        name: "removed from another part of a file",
        run: discards::of_another_part,
    },
    Case {
        name: "paged out",
        run: memory::paged_out,
    },
    Case {
        name: "protected, then written",
        run: mappings::protected,
    },
    Case {
        name: "written while writable, then protected",
        run: |t| unwritable::written_between(t, "anon"),
    },
    Case {
        name: "written while writable, private file",
        run: |t| unwritable::written_between(t, "file-private"),
    },
    Case {
        name: "written while writable, shared",
        run: |t| unwritable::written_between(t, "memfd"),
    },
    Case {
        name: "mapped, written, then protected",
        run: unwritable::made_and_protected,
    },
    Case {
        name: "patched by a debugger",
        run: unwritable::patched,
    },
    Case {
        name: "fork",
        run: life::fork,
    },
    Case {
        name: "a mapping replaced",
        run: mappings::replaced,
    },
    Case {
        name: "a mapping replaced next to others",
        run: mappings::replaced_beside,
    },
    Case {
        name: "untouched memory replaced",
        run: mappings::untouched_replaced,
    },
    Case {
        name: "a file mapped over another part of it",
        run: mappings::another_part,
    },
    Case {
        name: "file contents after a mapping has come anew",
        run: mappings::back_to_file,
    },
    Case {
        name: "discarded beside what is replaced",
        run: mappings::discarded_beside,
    },
    Case {
        name: "written in mappings side by side",
        run: mappings::side_by_side,
    },
    Case {
        name: "a read-only file mapped again for writing",
        run: mappings::again_for_writing,
    },
    Case {
        name: "a read-only file mapped again for writing, and hidden",
        run: mappings::again_and_hidden,
    },
    Case {
        name: "a read-only file mapped again, writable between rounds",
        run: mappings::again_between_rounds,
    },
    Case {
        name: "discarded by mapping over, then reused",
        run: mappings::given_back,
    },
    Case {
        name: "made inaccessible, then zeroed",
        run: mappings::inaccessible,
    },
    Case {
        name: "a new mapping",
        run: mappings::made,
    },
    Case {
        name: "a mapping unmapped",
        run: mappings::unmapped,
    },
    Case {
        name: "a mapping moved",
        run: mappings::moved,
    },
    Case {
        name: "a growing heap",
        run: mappings::heap,
    },
    Case {
        name: "a growing stack",
        run: mappings::stack,
    },
    Case {
        name: "soft-dirty bits cleared externally",
        run: rounds::marks_cleared,
    },
    Case {
        name: "read, anonymous memory",
        run: |t| accesses::read(t, "anon"),
    },
    Case {
        name: "read, shared anonymous memory",
        run: |t| accesses::read(t, "shared-anon"),
    },
    Case {
        name: "read, memfd",
        run: |t| accesses::read(t, "memfd"),
    },
    Case {
        name: "read, huge pages",
        run: accesses::huge,
    },
    Case {
        name: "read, hugetlb",
        run: accesses::hugetlb,
    },
    Case {
        name: "read by the kernel",
        run: accesses::kernel_read,
    },
    Case {
        name: "read from read-only memory",
        run: accesses::read_only,
    },
    Case {
        name: "alternating writes and accesses",
        run: accesses::in_turns,
    },
    Case {
        name: "alternating, rounds not committed",
        run: accesses::in_turns_transaction,
    },
    Case {
        name: "alternating, mappings change",
        run: accesses::in_turns_mappings,
    },
    Case {
        name: "exec",
        run: life::exec,
    },
    Case {
        name: "exit",
        run: life::exit,
    },
];

/// The technique that `Choice::Auto` picks for a subject, and the reason; it must detect a write.
pub(crate) fn choose(subject: &Subject) -> Result<(Technique, String), Stop> {
    let mut trial = Trial::new(Technique::None, subject);
    trial.choice = Choice::Auto;
    let start = trial.map("anon", 4)?;
    let memory = pages(start, 4);
    trial.actor.act(&format!("fill {start} 4 1"));
    trial.begin(&[memory])?;
    trial.write(start + page_size());
    trial.expect(&[start + page_size()], memory)?;
    let watch = trial.watch();
    Ok((watch.technique(), watch.reason().to_owned()))
}

/// One run of one case.
pub(crate) struct Trial<'a> {
    technique: Technique,
    choice: Choice,
    subject: &'a Subject,
    actor: Actor,
    watch: Option<Watch>,
    huge_pages: HugePages,
    track: Option<TrackMode>,
    at_exit: AtExit,
    precision: Precision,
    report_pages: ReportPages,
    max_overhead: Option<f64>,
    value: u64,
    /// The start and the number of pages of each mapping that was made.
    mapped: Vec<(u64, u64)>,
    /// Pages of the memory under test that rounds reported, and that were written: their ratio
    /// shows false positives.
    pub(crate) reported: u64,
    pub(crate) written: u64,
    /// Pages that were reported because they were predicted dirty.
    predicted: u64,
}

impl<'a> Trial<'a> {
    pub(crate) fn new(technique: Technique, subject: &'a Subject) -> Self {
        let actor = subject.actor();
        Self {
            technique,
            choice: technique.into(),
            subject,
            actor,
            watch: None,
            huge_pages: HugePages::Split,
            track: None,
            at_exit: AtExit::Run,
            precision: Precision::AsDetected,
            report_pages: ReportPages::Once,
            max_overhead: None,
            value: 1,
            mapped: Vec::new(),
            reported: 0,
            written: 0,
            predicted: 0,
        }
    }

    /// Makes memory; a program that the watch starts is started here.
    fn map(&mut self, kind: &str, pages: u64) -> Result<u64, Stop> {
        if matches!(self.actor, Actor::Later) {
            let (command, pipes) = puppet_command();
            self.watch = Some(
                self.builder()
                    .target(Target::command(command))
                    .at_exit(self.at_exit)
                    .start()?,
            );
            self.actor = Actor::Puppet(RefCell::new(pipes));
        }
        match self.actor.try_act(&format!("map {kind} {pages}")) {
            Ok(address) => {
                self.mapped.push((address, pages));
                Ok(address)
            }
            Err(why) => {
                not_applicable(format!("this machine refuses memory of kind {kind}: {why}"))
            }
        }
    }

    fn builder(&self) -> pagetrail::WatchBuilder {
        let builder = Watch::builder()
            .technique(self.choice)
            .huge_pages(self.huge_pages)
            .precision(self.precision)
            .report_pages(self.report_pages)
            .collect_at(CollectAt::Safepoint);
        let builder = match self.max_overhead {
            Some(share) => builder.max_overhead(share).intervals(budget::INTERVALS),
            None => builder,
        };
        match self.track {
            Some(track) => builder.track(track),
            None => builder,
        }
    }

    /// Starts tracking, unless it began with the program, and ends the round of the preparations.
    fn begin(&mut self, memory: &[PageRange]) -> Outcome {
        if self.watch.is_none() {
            let target = self.subject.target(&self.actor, memory)?;
            self.watch = Some(self.builder().target(target).start()?);
        }
        self.collect().map(drop)
    }

    fn watch(&mut self) -> &mut Watch {
        self.watch.as_mut().expect("begun")
    }

    /// Writes a new value, so that every write changes the page.
    fn write(&mut self, address: u64) {
        self.value += 1;
        self.actor.act(&format!("write {address} {}", self.value));
    }

    /// Writes to each address as [`Self::write`] does, all by one order: a puppet answers each,
    /// which takes a millisecond in an emulated guest.
    fn write_all(&mut self, addresses: &[u64]) {
        let first = self.value + 1;
        self.value += addresses.len() as u64;
        let mut order = format!("write-all {first}");
        for address in addresses {
            order += &format!(" {address}");
        }
        self.actor.act(&order);
    }

    /// Ends the round and returns its pages.
    fn collect(&mut self) -> Result<PageSet, Stop> {
        let round = self.watch().collect()?;
        let pages = round.dirty().clone();
        let predicted = round.predicted().page_count();
        round.commit();
        self.predicted += predicted;
        Ok(pages)
    }

    /// Ends the round, in which exactly the pages at `written` were written, out of `memory`.
    fn expect(&mut self, written: &[u64], memory: PageRange) -> Outcome {
        let pages = self.collect()?;
        if let Some(missed) = written.iter().find(|address| !pages.contains(**address)) {
            return broken(format!(
                "the write to {missed:#x} in {memory} is not in its round"
            ));
        }
        self.reported += pages
            .intersection(&PageSet::from_iter([memory]))
            .page_count();
        self.written += written.len() as u64;
        Ok(())
    }

    /// Ends the round, which must say of the pages at `changed` that they may hold something else.
    fn expect_changed(&mut self, changed: &[u64]) -> Outcome {
        let round = self.watch().collect()?;
        let known = round.dirty().union(round.remapped());
        round.commit();
        match changed.iter().find(|address| !known.contains(**address)) {
            Some(missed) => broken(format!("that {missed:#x} has changed is not in its round")),
            None => Ok(()),
        }
    }

    /// The size of the target's page tables in KiB (`VmPTE` of `proc_pid_status(5)`).
    fn page_tables_kib(&self) -> u64 {
        let pid = self
            .watch
            .as_ref()
            .map_or_else(std::process::id, Watch::pid);
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"));
        line.and_then(|text| text.trim().split(' ').next()?.parse().ok())
            .unwrap_or(0)
    }

    /// Ends the case for techniques that cannot do this, by their documentation.
    fn needs_free_mappings(&self) -> Outcome {
        match self.technique {
            Technique::Mprotect => {
                not_applicable("mprotect wants mappings and access rights left alone")
            }
            _ => Ok(()),
        }
    }

    fn needs_accesses(&self) -> Outcome {
        match self.technique {
            Technique::AccessScan => Ok(()),
            _ => not_applicable("it tracks writes only"),
        }
    }

    fn needs_whole(&self) -> Outcome {
        if self.subject.whole {
            Ok(())
        } else {
            not_applicable("given ranges only")
        }
    }
}

impl Drop for Trial<'_> {
    /// Frees the memory of a trial in this process; a puppet's memory ends with the puppet.
    fn drop(&mut self) {
        self.watch = None;
        if self.subject.own {
            for (address, pages) in &self.mapped {
                let _ = self.actor.try_act(&format!("unmap {address} {pages}"));
            }
        }
    }
}

fn pages(start: u64, count: u64) -> PageRange {
    PageRange::new(start, start + count * page_size()).expect("not empty")
}
