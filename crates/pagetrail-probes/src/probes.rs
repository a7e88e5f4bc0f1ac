//! [`Probes`]: attached to the kernel for one run after the other.

use std::collections::HashMap;
use std::fs;
use std::io;

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

use crate::btf::Table;
use crate::format;
use crate::found::{Count, Found, Sums};
use crate::interval::{self, Interval};
use crate::programs::{self, MEMBER, Maps, ROOT, slot};
use crate::sys::bpf::{self, Kind, Map, Place, Program};
use crate::sys::event;
use crate::sys::nothing;
use crate::sys::tracefs::Tracefs;

/// Where the kernel keeps its type tables: one file for itself, one for each module.
const TABLES: &str = "/sys/kernel/btf";
/// The kernel's own.
const KERNEL: &str = "vmlinux";
/// The most functions at a time, each of which takes four descriptors.
const FUNCTIONS_MAX: usize = 64;
/// Threads that can count at a time, and calls that can be timed at a time.
const THREADS_MAX: u32 = 32_768;
/// Reasons and events, together.
const COUNTS_MAX: u32 = 4_096;

/// The tracepoints that are counted where the kernel has them, as SYSTEM:NAME.
pub const EVENTS: &[&str] = &[
    "raw_syscalls:sys_enter",
    "exceptions:page_fault_user",
    "exceptions:page_fault_kernel",
    "kvm:kvm_userspace_exit",
    "kvm:kvm_page_fault",
    "kvm:kvm_emulate_insn",
    "kvm:kvm_mmio",
    "kvm:kvm_inj_exception",
    "kvm:kvm_dirty_ring_push",
    "kvmmmu:fast_page_fault",
    "kvmmmu:kvm_mmu_get_page",
    "kvmmmu:kvm_mmu_sync_page",
    "kvmmmu:kvm_mmu_unsync_page",
    "kvmmmu:kvm_mmu_prepare_zap_page",
    "kvmmmu:kvm_mmu_set_spte",
    "kvmmmu:kvm_mmu_pagetable_walk",
];

/// The functions whose entry takes next to nothing, by which the timer is timed, and which this
/// process calls by `getpgid(2)`.
const NEXT_TO_NOTHING: &[&str] = &["__x64_sys_getpgid", "__arm64_sys_getpgid"];
/// Timed calls of it at once, and how often that is repeated: the least mean is the one that
/// nothing has disturbed.
const TIMER_CALLS: u64 = 2_000;
const TIMER_TIMES: usize = 10;

/// What to probe.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Functions of the kernel, by their names.
    pub functions: Vec<String>,
    /// How many calls pass from one timed call to the next.
    pub interval: Interval,
    /// What the intervals are drawn by.
    pub seed: u64,
}

/// Why there are no probes; one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This machine, or this user, cannot have them.
    #[error("{0}")]
    NotHere(String),
    /// The kernel has no such function, or it cannot be probed.
    #[error("{name}: {reason}")]
    Function {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
}

fn refused(what: &str, error: impl Into<io::Error>) -> Error {
    let error: io::Error = error.into();
    let cure = match error.kind() {
        io::ErrorKind::PermissionDenied => " (it takes root)",
        _ => "",
    };
    Error::NotHere(format!("{what}: {error}{cure}"))
}

/// A function that is probed.
#[derive(Debug)]
struct Probed {
    name: String,
    programs: [Program; 2],
    _links: [OwnedFd; 2],
    misses_before: u64,
}

/// Probes, attached to the kernel until this is dropped. They are for the threads that the thread
/// which calls [`Probes::begin`] starts from then on, and for those that these start.
#[derive(Debug)]
pub struct Probes {
    members: Map,
    _flights: Map,
    functions: Map,
    counts: Map,
    seed: u64,
    interval: Interval,
    cpus: usize,
    probed: Vec<Probed>,
    /// What is attached to tracepoints.
    _events: Vec<(Program, OwnedFd)>,
    /// Gives the current thread's ID.
    who: Program,
    /// The names of exits, by the vendor's number and the reason.
    reasons: Vec<HashMap<u64, String>>,
    timer_ns: f64,
}

impl Probes {
    /// Attaches probes, and measures what taking a time costs.
    ///
    /// # Errors
    ///
    /// [`Error::NotHere`] if the kernel, or the rights of this process, do not suffice;
    /// [`Error::Function`] if a function cannot be probed.
    pub fn attach(settings: &Settings) -> Result<Self, Error> {
        if settings.functions.len() > FUNCTIONS_MAX {
            let line = format!("at most {FUNCTIONS_MAX} functions can be timed at a time");
            return Err(Error::NotHere(line));
        }
        let cpus = possible_cpus().map_err(|error| refused("cannot count processors", error))?;
        let map = |kind, key, value, entries| {
            Map::create(kind, key, value, entries, cpus)
                .map_err(|error| refused("this kernel refuses BPF maps", error))
        };
        let mut probes = Self {
            members: map(Kind::Hash, 4, 4, THREADS_MAX)?,
            _flights: map(Kind::Hash, 8, 16, THREADS_MAX)?,
            functions: map(Kind::PercpuArray, 4, slot::BYTES, FUNCTIONS_MAX as u32 + 1)?,
            counts: map(Kind::PercpuHash, 8, 8, COUNTS_MAX)?,
            seed: settings.seed,
            interval: settings.interval,
            cpus,
            probed: Vec::new(),
            _events: Vec::new(),
            who: Program::load(&programs::who(), Place::Request)
                .map_err(|error| refused("this kernel refuses BPF programs", error))?,
            reasons: Vec::new(),
            timer_ns: 0.0,
        };
        let maps = Maps {
            members: probes.members.number(),
            flights: probes._flights.number(),
            functions: probes.functions.number(),
            counts: probes.counts.number(),
        };
        if !settings.functions.is_empty() {
            probes.timer_ns = probes.time_timer(&maps)?;
        }
        let names: Vec<&str> = settings.functions.iter().map(String::as_str).collect();
        let places = Places::find(&names)?;
        for (at, name) in names.iter().enumerate() {
            let probed = places.probe(name, at as u32, &maps, settings.interval)?;
            probes.probed.push(probed);
        }
        probes.attach_events(&maps)?;
        Ok(probes)
    }

    /// Times a function that does next to nothing.
    fn time_timer(&self, maps: &Maps) -> Result<f64, Error> {
        let places = Places::find(NEXT_TO_NOTHING)?;
        let Some(name) = NEXT_TO_NOTHING.iter().find(|name| places.has(name)) else {
            let line = "there is no function by which the cost of the timer can be measured";
            return Err(Error::NotHere(line.into()));
        };
        let at = FUNCTIONS_MAX as u32;
        let probed = places.probe(name, at, maps, Interval::EVERY)?;
        let me = self.me()?.to_ne_bytes();
        let set = |member: u32| self.members.set(&me, &member.to_ne_bytes());
        let failed = |error: Errno| refused("cannot measure the cost of the timer", error);
        set(MEMBER).map_err(failed)?;
        let mut least = f64::INFINITY;
        for _ in 0..TIMER_TIMES {
            self.clear(at, Interval::EVERY).map_err(failed)?;
            for _ in 0..TIMER_CALLS {
                nothing::call();
            }
            let value = self.functions.get(&at.to_ne_bytes()).map_err(failed)?;
            let sums = Sums::of(&value);
            if sums.samples > 0 {
                least = least.min(sums.mean());
            }
        }
        self.members.remove(&me);
        drop(probed);
        match least.is_finite() {
            true => Ok(least),
            false => Err(Error::NotHere(format!(
                "probes see no calls of {name}: this kernel accepts them, and does not run them"
            ))),
        }
    }

    fn attach_events(&mut self, maps: &Maps) -> Result<(), Error> {
        let what = "cannot read how tracepoints are described";
        let tracefs = Tracefs::open().map_err(|error| refused(what, error))?;
        let text = |name: &str| tracefs.read(&format!("events/{}/format", name.replace(':', "/")));
        let mut add = |text: &str, code: Vec<[u8; 8]>| {
            let id = format::id(text).ok_or_else(|| Error::NotHere(what.into()))?;
            let program = Program::load(&code, Place::Tracepoint)
                .map_err(|error| refused("this kernel refuses BPF programs", error))?;
            let link = event::attach(id, program.number())
                .map_err(|error| refused("cannot attach to a tracepoint", error))?;
            self._events.push((program, link));
            Ok(())
        };
        let field = |text: &str, name: &str| {
            format::field(text, name).ok_or_else(|| {
                Error::NotHere(format!("a tracepoint of this kernel has no field {name}"))
            })
        };
        let fork = text("sched:sched_process_fork").map_err(|error| refused(what, error))?;
        let (parent, child) = (field(&fork, "parent_pid")?, field(&fork, "child_pid")?);
        add(&fork, programs::fork(maps, parent, child))?;
        let exit = text("sched:sched_process_exit").map_err(|error| refused(what, error))?;
        add(&exit, programs::gone(maps, field(&exit, "pid")?))?;
        if let Ok(exits) = text("kvm:kvm_exit") {
            let by = (field(&exits, "isa")?, field(&exits, "exit_reason")?);
            add(&exits, programs::count(maps, 0, Some(by)))?;
            self.reasons = format::symbols(&exits);
        }
        for (at, name) in EVENTS.iter().enumerate() {
            if let Ok(format) = text(name) {
                add(&format, programs::count(maps, at as u32 + 1, None))?;
            }
        }
        Ok(())
    }

    /// This thread's ID, as the kernel's own: that of its first PID namespace.
    fn me(&self) -> Result<u32, Error> {
        let failed = |error| refused("cannot find the thread that probes are for", error);
        self.who.run().map_err(failed)
    }

    fn clear(&self, at: u32, interval: Interval) -> Result<(), Errno> {
        let mut value = vec![0u8; slot::BYTES * self.cpus];
        for (cpu, value) in value.chunks_exact_mut(slot::BYTES).enumerate() {
            let state = interval::first_state(self.seed, at.into(), cpu as u64);
            let (state, calls) = interval::draw(interval, state);
            let mut set = |at: i16, number: u64| {
                value[at as usize..at as usize + 8].copy_from_slice(&number.to_ne_bytes());
            };
            set(slot::STATE, state);
            set(slot::LEFT, calls);
        }
        self.functions.set(&at.to_ne_bytes(), &value)
    }

    /// Begins anew: nothing is counted yet, and what this thread starts from now on counts.
    ///
    /// # Errors
    ///
    /// [`Error::NotHere`]: the kernel refuses.
    pub fn begin(&mut self) -> Result<(), Error> {
        let failed = |error: Errno| refused("cannot begin", error);
        for key in self.members.keys() {
            self.members.remove(&key);
        }
        for key in self.counts.keys() {
            self.counts.remove(&key);
        }
        for at in 0..self.probed.len() {
            self.clear(at as u32, self.interval).map_err(failed)?;
            let probed = &mut self.probed[at];
            probed.misses_before = misses(&probed.programs);
        }
        let me = self.me()?;
        let set = self.members.set(&me.to_ne_bytes(), &ROOT.to_ne_bytes());
        set.map_err(failed)
    }

    /// Counts threads, too, that are there already, and what they start from now on.
    ///
    /// # Errors
    ///
    /// [`Error::NotHere`]: the kernel refuses, or knows these threads by other numbers than this
    /// process does.
    pub fn follow(&mut self, threads: &[u32]) -> Result<(), Error> {
        if self.me()? as i32 != rustix::thread::gettid().as_raw_pid() {
            let line = "threads that run already cannot be probed from a PID namespace of its own";
            return Err(Error::NotHere(line.into()));
        }
        for thread in threads {
            let set = self
                .members
                .set(&thread.to_ne_bytes(), &MEMBER.to_ne_bytes());
            set.map_err(|error| refused("cannot probe a thread", error))?;
        }
        Ok(())
    }

    /// What has been found since [`Probes::begin`]. What was started then and still runs is
    /// counted on.
    ///
    /// # Errors
    ///
    /// [`Error::NotHere`]: the kernel refuses.
    pub fn found(&self) -> Result<Found, Error> {
        let failed = |error: Errno| refused("cannot read what was counted", error);
        let mut found = Found {
            timer_ns: self.timer_ns,
            ..Found::default()
        };
        for (at, probed) in self.probed.iter().enumerate() {
            let value = self.functions.get(&(at as u32).to_ne_bytes());
            let sums = Sums::of(&value.map_err(failed)?);
            let missed = misses(&probed.programs).saturating_sub(probed.misses_before);
            let function = sums.function(&probed.name, missed, self.timer_ns);
            found.functions.push(function);
        }
        for key in self.counts.keys() {
            let value = self.counts.get(&key).map_err(failed)?;
            let numbers = value.chunks_exact(8);
            let count = numbers
                .map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap_or_default()))
                .sum();
            let half = |at: usize| {
                let bytes = key[at..at + 4].try_into().unwrap_or_default();
                u32::from_ne_bytes(bytes)
            };
            let (reason, of) = (half(0), half(4));
            match (of & 0xffff) as usize {
                0 => found.exits.push(Count {
                    name: self.reason(of >> 16, reason),
                    count,
                }),
                event => found.events.push(Count {
                    name: EVENTS.get(event - 1).copied().unwrap_or_default().into(),
                    count,
                }),
            }
        }
        let order = |count: &Count| EVENTS.iter().position(|name| *name == count.name);
        found.events.sort_by_key(order);
        found
            .exits
            .sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
        Ok(found)
    }

    /// The name of an exit: the first list is of Intel's (`isa` 1), the second of AMD's.
    fn reason(&self, isa: u32, reason: u32) -> String {
        let names = match isa {
            1 => self.reasons.first(),
            _ => self.reasons.get(1),
        };
        let (masked, whole) = (u64::from(reason & 0xffff), u64::from(reason));
        let name = names.and_then(|names| match isa {
            1 => names.get(&masked),
            _ => names.get(&whole),
        });
        name.cloned().unwrap_or_else(|| format!("{reason:#x}"))
    }
}

fn misses(programs: &[Program]) -> u64 {
    programs.iter().filter_map(Program::misses).sum()
}

/// Where functions are: their numbers, and the type tables that have them.
struct Places {
    found: HashMap<String, (u32, Option<OwnedFd>)>,
}

impl Places {
    fn find(names: &[&str]) -> Result<Self, Error> {
        let read = |name: &str| fs::read(format!("{TABLES}/{name}"));
        let bytes = read(KERNEL).map_err(|error| {
            refused(
                "this kernel has no type information (BTF) to find functions by",
                error,
            )
        })?;
        let broken = || Error::NotHere(format!("{TABLES}/{KERNEL} cannot be understood"));
        let kernel = Table::kernel(&bytes).ok_or_else(broken)?;
        let (types, own) = kernel.functions(names).ok_or_else(broken)?;
        let own = own.into_iter().map(|(name, id)| (name, (id, None)));
        let mut found: HashMap<_, _> = own.collect();
        let modules = fs::read_dir(TABLES).into_iter().flatten().flatten();
        for module in modules.filter_map(|entry| entry.file_name().into_string().ok()) {
            if module == KERNEL || found.len() == names.len() {
                continue;
            }
            let Ok(bytes) = read(&module) else {
                continue;
            };
            let table = Table::module(&bytes, &kernel, types);
            let functions = table.and_then(|table| table.functions(names));
            for (name, id) in functions.into_iter().flat_map(|(_, found)| found) {
                if let Ok(table) = bpf::table_of(&module) {
                    found.entry(name).or_insert((id, Some(table)));
                }
            }
        }
        Ok(Self { found })
    }

    fn has(&self, name: &str) -> bool {
        self.found.contains_key(name)
    }

    fn probe(&self, name: &str, at: u32, maps: &Maps, interval: Interval) -> Result<Probed, Error> {
        let failed = |reason: String| Error::Function {
            name: name.into(),
            reason,
        };
        let (id, module) = self.found.get(name).ok_or_else(|| {
            failed("this kernel has no function of this name, or has inlined it".into())
        })?;
        let module = || module.as_ref().map(AsFd::as_fd);
        let refused = |error: Errno| match error {
            Errno::PERM => Error::NotHere(format!(
                "this kernel does not let this user probe functions (BPF fentry): {error}"
            )),
            error => failed(format!("this kernel does not let it be probed: {error}")),
        };
        let load = |code: &[[u8; 8]], place| {
            let program = Program::load(code, place).map_err(refused)?;
            let link = program.attach().map_err(refused)?;
            Ok((program, link))
        };
        // First what ends a timing, so that none is begun that nothing ends.
        let (leave, leave_link) = load(&programs::leave(maps, at), Place::Exit(*id, module()))?;
        let entry = programs::entry(maps, at, interval);
        let (entry, entry_link) = load(&entry, Place::Entry(*id, module()))?;
        Ok(Probed {
            name: name.into(),
            programs: [entry, leave],
            _links: [entry_link, leave_link],
            misses_before: 0,
        })
    }
}

/// Processors that there can be, for each of which a map has a value.
fn possible_cpus() -> io::Result<usize> {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next().unwrap_or_default();
    let last = last.parse::<usize>().map_err(io::Error::other)?;
    Ok(last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The programs of a function are run on request, so that they are tried where functions
    /// cannot be probed, too.
    #[test]
    fn calls_are_counted_and_timed_as_drawn() {
        const CALLS: u64 = 1_000;
        let interval = Interval::new(3, 9).expect("it is one");
        let settings = Settings {
            functions: Vec::new(),
            interval,
            seed: 7,
        };
        let probes = match Probes::attach(&settings) {
            Ok(probes) => probes,
            Err(error) => return pagetrail_skips::not_here(format!("probes: {error}")),
        };
        let maps = Maps {
            members: probes.members.number(),
            flights: probes._flights.number(),
            functions: probes.functions.number(),
            counts: probes.counts.number(),
        };
        let load = |code: &[[u8; 8]]| Program::load(code, Place::Request).expect("it is accepted");
        let entry = load(&programs::entry(&maps, 2, interval));
        let leave = load(&programs::leave(&maps, 2));
        // One processor, one countdown.
        let mut one = rustix::thread::CpuSet::new();
        one.set(0);
        rustix::thread::sched_setaffinity(None, &one).expect("there is a processor 0");
        probes.clear(2, interval).expect("the map takes it");
        let sums = || {
            Sums::of(
                &probes
                    .functions
                    .get(&2u32.to_ne_bytes())
                    .expect("it is there"),
            )
        };
        let call = || {
            entry.run().expect("it runs");
            leave.run().expect("it runs");
        };
        call();
        assert_eq!(sums(), Sums::default(), "a stranger's call counts");

        let me = probes.me().expect("it is found").to_ne_bytes();
        let set = probes.members.set(&me, &MEMBER.to_ne_bytes());
        set.expect("the map takes it");
        (0..CALLS).for_each(|_| call());
        // What is drawn here is what is drawn there.
        let state = interval::first_state(7, 2, 0);
        let (mut state, mut at) = interval::draw(interval, state);
        let mut samples = 0;
        while at <= CALLS {
            samples += 1;
            let (next, calls) = interval::draw(interval, state);
            (state, at) = (next, at + calls);
        }
        let found = sums();
        assert_eq!((found.calls, found.samples), (CALLS, samples));
        let function = found.function("f", 0, 0.0);
        assert!(function.least_ns > 0.0 && function.least_ns <= function.mean_ns);
        assert!(function.mean_ns <= function.most_ns && function.deviation_ns > 0.0);
        let spread = function.most_ns - function.least_ns;
        assert!(function.deviation_ns <= spread, "{function:?}");
    }
}
