//! [`restore`]: all steps in their order.

use crate::error::{Error, Result};
use crate::lacking::Lacking;
use crate::objects::{Owner, Shared, descriptors_needed};
use crate::options::{PidChoice, RestoreOptions};
use crate::pager::Pager;
use crate::remote::Remote;
use crate::restored::Restored;
use crate::space::{Kernels, Part};
use crate::sys::guard::Guard;
use crate::sys::missing::{self, Missing};
use crate::sys::ptrace::{Stop, Tracee};
use crate::sys::spawn;
use crate::{check, files, listeners, process, space, threads};
use pagetrail::{PageRange, PageSet};
use pagetrail_checkpoint::{Image, Process, ProcessState, credentials_of};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open,
};
use std::ffi::CString;
use std::time::Instant;

/// Starts the process of an image anew; it runs when this returns.
///
/// # Errors
///
/// The image lacks what it takes, or is damaged; files are missing or have changed; the PID is
/// taken; the kernel refuses a step. Nothing of the process is left then.
pub fn restore(image: &mut Image, options: &RestoreOptions) -> Result<Restored> {
    let (mut restored, _) = start(image, options, false, 1)?;
    let none = || Error::refused("no process was started");
    restored.pop().ok_or_else(none)
}

/// Starts the process of an image anew so many times; all run when this returns. They share the
/// pages that none of them writes to. Each has a PID of its own, whatever the options say.
///
/// # Errors
///
/// As [`restore`]. None is left then.
pub fn restore_copies(
    image: &mut Image,
    options: &RestoreOptions,
    count: u32,
) -> Result<Vec<Restored>> {
    if count == 0 {
        return Err(Error::refused("no copy at all is asked for"));
    }
    let options = RestoreOptions {
        pid: PidChoice::Any,
        ..*options
    };
    let (restored, _) = start(image, &options, false, count)?;
    Ok(restored)
}

/// Starts the process of an image anew, which runs when this returns, but lacks most of its private
/// memory: the pager has to give it its pages. It takes about as long for a large image as for a
/// small one.
///
/// # Errors
///
/// As [`restore`] and [`check_lazily`].
pub fn restore_lazily(mut image: Image, options: &RestoreOptions) -> Result<(Restored, Pager)> {
    check_lazily()?;
    let (mut restored, incomplete) = start(&mut image, options, true, 1)?;
    let started = restored.pop().zip(incomplete);
    let (restored, incomplete) =
        started.ok_or_else(|| Error::refused("no userfaultfd was made"))?;
    let pager = incomplete.pager(image, restored.pid, options.keep_touches);
    Ok((restored, pager))
}

/// Whether a process can get its pages as it touches them here.
///
/// # Errors
///
/// The kernel does not let this process serve faults: it takes `CAP_SYS_PTRACE`, for children that
/// a process forks while it lacks pages.
pub fn check_lazily() -> Result<()> {
    let reason = |errno| match errno {
        Errno::PERM => "that takes the capability CAP_SYS_PTRACE".to_owned(),
        Errno::NOSYS => "the kernel has no userfaultfd".to_owned(),
        errno => std::io::Error::from(errno).to_string(),
    };
    let own = Missing::own();
    own.map(drop)
        .map_err(|errno| Error::NotLazily(reason(errno)))
}

/// A process that lacks pages, while it is being restored.
struct Incomplete {
    missing: Missing,
    lacking: Lacking,
    process: OwnedFd,
    guard: Guard,
}

impl Incomplete {
    /// Has the kernel wait for what a process lacks.
    fn begin(missing: Missing, process: OwnedFd, plan: &space::Plan) -> Result<Self> {
        let failed = || Error::step("guard a process that lacks pages");
        let kept = process.try_clone();
        let kept =
            kept.map_err(|error| failed()(Errno::from_io_error(&error).unwrap_or(Errno::MFILE)))?;
        for range in &plan.incomplete {
            let registered = missing.register(*range);
            registered.map_err(Error::step(
                "have the kernel wait for pages that are lacked",
            ))?;
        }
        Ok(Self {
            missing,
            lacking: Lacking::of(&plan.lacking),
            guard: Guard::start(kept).map_err(failed())?,
            process,
        })
    }

    fn pager(self, image: Image, pid: u32, keeps_touches: bool) -> Pager {
        let process = (self.process, pid);
        let Self {
            missing,
            lacking,
            guard,
            ..
        } = self;
        Pager::new(image, missing, lacking, process, guard, keeps_touches)
    }
}

/// Has the new process make a userfaultfd, and takes it: with it the process itself.
fn take_userfaultfd(remote: &Remote) -> Result<(Missing, OwnedFd)> {
    let what = "make a userfaultfd in the new process";
    let failed = || Error::step(what);
    let pid = Pid::from_raw(remote.pid as i32).ok_or_else(|| failed()(Errno::SRCH))?;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(failed())?;
    let flags = missing::FLAGS.into();
    let number = remote.call(remote.main, what, libc::SYS_userfaultfd, &[flags])?;
    let fd = pidfd_getfd(&process, number as i32, PidfdGetfdFlags::empty());
    let missing = Missing::handshake(fd.map_err(failed())?).map_err(failed())?;
    remote.call(remote.main, what, libc::SYS_close, &[number.into()])?;
    Ok((missing, process))
}

/// Starts one process, or several copies; lazily, only one.
fn start(
    image: &mut Image,
    options: &RestoreOptions,
    lazily: bool,
    count: u32,
) -> Result<(Vec<Restored>, Option<Incomplete>)> {
    let began = Instant::now();
    let manifest = image.manifest().clone();
    let (process, state) = process::of(&manifest)?;
    check::check(&manifest, process, state, options)?;
    if let Some((number, listener)) = listeners::first(&state.files).filter(|_| count > 1) {
        return Err(Error::refused(format!(
            "descriptor {number} listens at {}, which only one copy can",
            listener.address
        )));
    }
    let executable = CString::new(process.executable.as_str())
        .map_err(|_| Error::refused("the path of the executable is none"))?;
    let wanted = match options.pid {
        PidChoice::Same => Some(process.pid),
        PidChoice::Any => None,
    };
    let pid =
        spawn::traced(&executable, wanted).map_err(|errno| not_started(errno, process.pid))?;
    // Killed unless all goes well.
    let mut started = vec![Started(Some(pid))];
    let main = Tracee(pid);
    await_program(main, &process.executable)?;
    main.set_options()
        .map_err(Error::step("trace the new process"))?;

    let regions = space::regions(pid)?;
    let kernels = Kernels::find(&regions, &manifest)?;
    kernels.check(pid, image)?;
    let mut taken: PageSet = regions.iter().map(|region| region.range).collect();
    let mapped = manifest.process_mappings();
    let mapped = mapped.map(|mapping| mapping.range);
    taken.union_with(&mapped.collect());
    taken.union_with(&kernels.places());
    let remote = Remote::begin(main, &taken)?;
    process::allow_descriptors(pid, state, descriptors_needed(state));
    process::begin(&remote, state, options.foreground)?;
    let places = space::clear(&remote, &kernels, &taken)?;
    let first = match lazily {
        true => Some(threads::first_pages(
            &process.threads,
            &state.kernel.threads,
            |address| word(image, address),
        )?),
        false => None,
    };
    let plan = space::Plan::of(image, state, first.as_ref());
    let (part, mut shared) = match count {
        ..=1 => (Part::All, vec![Shared::make(&remote, image, state)?]),
        _ => (Part::Inherited, Vec::new()),
    };
    let none = Shared::default();
    let of_all = shared.first().unwrap_or(&none);
    let mut written = plan.fill(&remote, image, of_all, options, part)?;
    space::settle(&remote, &places)?;
    let lost: Vec<String> = process::set_parts(&remote, process, state)?
        .into_iter()
        .collect();
    // While it still may.
    let userfaultfd = match lazily {
        true => Some(take_userfaultfd(&remote)?),
        false => None,
    };
    // Before any file is opened, since the two would share its position.
    let mut remotes = vec![remote];
    for _ in 1..count {
        let copy = remotes[0].copy()?;
        started.push(Started(Some(copy.pid)));
        process::begin_copy(&copy, state, options.foreground)?;
        remotes.push(copy);
    }
    if part == Part::Inherited {
        for remote in &remotes {
            let own = Shared::make(remote, image, state)?;
            written += plan.fill(remote, image, &own, options, Part::OfEach)?;
            shared.push(own);
        }
    }
    let mut ready = Vec::new();
    for (remote, shared) in remotes.iter().zip(shared) {
        let mut lost = lost.clone();
        let threads = complete(remote, process, state, shared, options, &mut lost)?;
        ready.push((remote.pid, threads, lost));
    }
    // While no page is waited for: it reads the code before some calls.
    for (pid, threads, _) in &ready {
        for (tracee, thread) in threads.iter().zip(&process.threads) {
            threads::set_registers(*pid, *tracee, thread)?;
        }
    }
    let incomplete = match userfaultfd {
        Some((missing, process)) => Some(Incomplete::begin(missing, process, &plan)?),
        None => None,
    };
    for (_, threads, _) in &ready {
        for tracee in threads.iter().rev() {
            let detached = tracee.detach();
            detached.map_err(Error::step("let the new process go"))?;
        }
    }
    started.into_iter().for_each(Started::keep);
    let elapsed = began.elapsed();
    let restored = ready.into_iter().map(|(pid, threads, lost)| Restored {
        pid,
        threads: threads.len(),
        pages: written,
        lost,
        elapsed,
    });
    Ok((restored.collect(), incomplete))
}

/// Gives a process that has its memory what else it had, and takes the stub from it; gives its
/// threads, which have no registers yet.
fn complete(
    remote: &Remote,
    process: &Process,
    state: &ProcessState,
    shared: Shared,
    options: &RestoreOptions,
    lost: &mut Vec<String>,
) -> Result<Vec<Tracee>> {
    let owner = Owner::of(&state.credentials);
    files::open_all(remote, state, &shared, &owner, options)?;
    shared.end(remote, &owner)?;
    let all = threads::create(remote, &process.threads, options.pid)?;
    let each = all.iter().zip(&process.threads);
    for ((tracee, thread), kept) in each.zip(&state.kernel.threads) {
        threads::tell(remote, *tracee, thread, kept)?;
    }
    lost.extend(process::set_limits(remote.pid, state));
    lost.extend(change_credentials(remote, &all, state)?);
    process::end(remote, state)?;
    remote.end()?;
    if options.pid == PidChoice::Any && remote.pid != process.pid {
        lost.push(format!(
            "it has PID {} instead of {}, which it may remember",
            remote.pid, process.pid
        ));
    }
    Ok(all)
}

/// Eight bytes of the image, within a page; 0 where there can be none.
fn word(image: &mut Image, address: u64) -> Result<u64> {
    let page_size = u64::from(image.manifest().page_size);
    let start = address - address % page_size;
    let page = start.checked_add(page_size);
    let Some(page) = page.and_then(|end| PageRange::new(start, end)) else {
        return Ok(0);
    };
    let mut contents = vec![0; page_size as usize];
    image.read(page, &mut contents)?;
    let bytes = contents.get((address - start) as usize..);
    let bytes = bytes.and_then(|bytes| bytes.first_chunk());
    Ok(bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes)))
}

fn not_started(errno: Errno, pid: u32) -> Error {
    match errno {
        Errno::EXIST if is_zombie(pid) => Error::refused(format!(
            "process {pid} has ended, but its parent has not waited for it yet, so that its PID is taken"
        )),
        Errno::EXIST => Error::PidTaken { pid },
        Errno::PERM => Error::NoPrivilege { pid },
        errno => Error::step("start a process")(errno),
    }
}

fn is_zombie(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(|&byte| byte == b')').next();
    after_name.is_some_and(|rest| rest.trim_ascii_start().starts_with(b"Z"))
}

/// Waits until the program is in place.
fn await_program(main: Tracee, executable: &str) -> Result<()> {
    match main.wait().map_err(Error::step("wait for a process"))? {
        Stop::Signal(libc::SIGTRAP) => Ok(()),
        Stop::Ended { code, .. } => Err(Error::step(format!("execute {executable}"))(
            Errno::from_raw_os_error(code),
        )),
        _ => Err(Error::refused(format!("{executable} does not start"))),
    }
}

fn change_credentials(
    remote: &Remote,
    threads: &[Tracee],
    state: &ProcessState,
) -> Result<Vec<String>> {
    let now = credentials_of(remote.pid)
        .ok_or_else(|| Error::refused("the credentials of the new process cannot be read"))?;
    let then = &state.credentials;
    let mut lost = Vec::new();
    if now != *then {
        for &thread in threads {
            process::become_who_it_was(remote, thread, then, &now, state.dumpable)?;
        }
        let is = credentials_of(remote.pid).unwrap_or_default();
        lost = process::differences(then, &is);
    }
    if !state.dumpable && now.users == then.users {
        lost.push("it was not open to others of its user (PR_SET_DUMPABLE), and is now".into());
    }
    Ok(lost)
}

/// A process that is killed when this is dropped, unless it is kept.
struct Started(Option<u32>);

impl Started {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            end(pid);
        }
    }
}

/// Kills a process that this thread traces, and waits for its end.
fn end(pid: u32) {
    if let Some(process) = Pid::from_raw(pid as i32) {
        // It may have ended by itself.
        let _ = kill_process(process, Signal::KILL);
    }
    // The main thread's end is shown after that of all others, which their tracer has to see.
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tids = tasks.into_iter().flatten().filter_map(|entry| {
        let tid: Option<u32> = entry.ok()?.file_name().to_str()?.parse().ok();
        tid.filter(|&tid| tid != pid)
    });
    for tid in tids.chain([pid]) {
        while Tracee(tid)
            .wait()
            .is_ok_and(|stop| !matches!(stop, Stop::Ended { .. }))
        {}
    }
}
