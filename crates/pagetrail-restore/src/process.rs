//! What the kernel keeps for the process as a whole: signal actions, timers, limits, credentials,
//! and where it believes the parts of its memory to be.

use crate::error::{Error, Result};
use crate::remote::{List, Remote};
use crate::sys::ptrace::Tracee;
use crate::threads::number;
use pagetrail_checkpoint::{Credentials, Manifest, Process, ProcessState};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// `PR_SET_MM` and `PR_SET_MM_MAP` of `prctl(2)`.
const SET_MM: u64 = 35;
const SET_MM_MAP: u64 = 14;
/// `RLIMIT_*`, in the order of their numbers.
const LIMITS: [Resource; 16] = [
    Resource::Cpu,
    Resource::Fsize,
    Resource::Data,
    Resource::Stack,
    Resource::Core,
    Resource::Rss,
    Resource::Nproc,
    Resource::Nofile,
    Resource::Memlock,
    Resource::As,
    Resource::Locks,
    Resource::Sigpending,
    Resource::Msgqueue,
    Resource::Nice,
    Resource::Rtprio,
    Resource::Rttime,
];

/// Restores the directory, the umask, sessions and signal actions.
pub(crate) fn begin(remote: &Remote, state: &ProcessState, foreground: bool) -> Result<()> {
    let mut list = remote.list(remote.main);
    // Being traced, it is killed with its tracer.
    list.call(
        "take back that it ends with its parent",
        libc::SYS_prctl,
        &[libc::PR_SET_PDEATHSIG.into(), 0u64.into()],
    )?;
    let mut directory = state.directory.as_bytes().to_vec();
    directory.push(0);
    list.call(
        &format!("go to the directory {}", state.directory),
        libc::SYS_chdir,
        &[directory.as_slice().into()],
    )?;
    list.call("set the umask", libc::SYS_umask, &[state.umask.into()])?;
    list.call(
        "set the personality",
        libc::SYS_personality,
        &[state.personality.into()],
    )?;
    lead(&mut list, state, foreground)?;
    for action in &state.kernel.actions {
        let words = [
            action.handler,
            action.flags,
            action.restorer,
            action.blocked,
        ];
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        list.call(
            &format!("set the action at signal {}", action.signal),
            libc::SYS_rt_sigaction,
            &[
                action.signal.into(),
                bytes.as_slice().into(),
                0u64.into(),
                8u64.into(),
            ],
        )?;
    }
    list.run()
}

/// Makes a copy of a process that has begun lead the session or group that it led.
pub(crate) fn begin_copy(remote: &Remote, state: &ProcessState, foreground: bool) -> Result<()> {
    let mut list = remote.list(remote.main);
    lead(&mut list, state, foreground)?;
    list.run()
}

fn lead(list: &mut List<'_>, state: &ProcessState, foreground: bool) -> Result<()> {
    match (foreground, state.leads_session, state.leads_group) {
        (true, _, _) | (_, false, false) => Ok(()),
        (false, true, _) => list.call("begin a session", libc::SYS_setsid, &[]),
        (false, false, true) => list.call(
            "begin a process group",
            libc::SYS_setpgid,
            &[0u64.into(), 0u64.into()],
        ),
    }
}

/// Tells the kernel where the parts of the memory are; gives what is lost where it does not take
/// that.
pub(crate) fn set_parts(
    remote: &Remote,
    process: &Process,
    state: &ProcessState,
) -> Result<Option<String>> {
    let parts = &state.parts;
    let auxv_at = remote.data_address() + MAP_BYTES;
    let words = [
        parts.code.0,
        parts.code.1,
        parts.data.0,
        parts.data.1,
        parts.heap_start,
        state.kernel.heap_end,
        parts.stack_start,
        parts.arguments.0,
        parts.arguments.1,
        parts.environment.0,
        parts.environment.1,
        auxv_at,
    ];
    // `struct prctl_mm_map`: addresses, the length of the auxiliary vector, no other executable.
    let mut map: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
    map.extend((process.auxv.len() as u32).to_ne_bytes());
    map.extend(u32::MAX.to_ne_bytes());
    debug_assert_eq!(map.len() as u64, MAP_BYTES);
    map.extend(&process.auxv);
    let answer = remote.call(
        remote.main,
        "say where the parts of the memory are",
        libc::SYS_prctl,
        &[
            SET_MM.into(),
            SET_MM_MAP.into(),
            map.as_slice().into(),
            MAP_BYTES.into(),
            0u64.into(),
        ],
    );
    match answer {
        Ok(_) => Ok(None),
        Err(Error::Step { cause, .. }) => Ok(Some(format!(
            "the kernel does not take where heap, command line and auxiliary vector are ({cause}): brk(2) fails, \
             and ps shows another command line"
        ))),
        Err(error) => Err(error),
    }
}

/// How long `struct prctl_mm_map` is, in bytes.
const MAP_BYTES: u64 = 12 * 8 + 8;

/// Sends the signals that waited for the process, and starts its timers.
pub(crate) fn end(remote: &Remote, state: &ProcessState) -> Result<()> {
    let mut list = remote.list(remote.main);
    for signal in &state.kernel.pending {
        list.call(
            "send a signal that waited",
            libc::SYS_rt_sigqueueinfo,
            &[
                remote.pid.into(),
                number(signal).into(),
                signal.as_slice().into(),
            ],
        )?;
    }
    for (which, timer) in state.kernel.timers.iter().enumerate() {
        let &[seconds, microseconds, ..] = timer;
        let mut timer = *timer;
        if timer[2..] == [0, 0] {
            // It has expired; the kernel starts it again when the signal, which waits, is
            // delivered.
            timer[2..].copy_from_slice(&[seconds, microseconds]);
        }
        if timer[2..] == [0, 0] {
            continue;
        }
        let bytes: Vec<u8> = timer.iter().flat_map(|word| word.to_ne_bytes()).collect();
        list.call(
            "set a timer",
            libc::SYS_setitimer,
            &[(which as u64).into(), bytes.as_slice().into()],
        )?;
    }
    list.run()
}

/// Lets the process have as many descriptors as it is `needed` to open all that it had; its own
/// limit may be lower by now, and comes with the others.
pub(crate) fn allow_descriptors(pid: u32, state: &ProcessState, needed: u64) {
    let Some(pid) = Pid::from_raw(pid as i32) else {
        return;
    };
    let now = rustix::process::getrlimit(Resource::Nofile);
    let which = LIMITS.iter().position(|which| *which == Resource::Nofile);
    let wanted = which.and_then(|index| state.limits.get(index));
    let needed = needed.max(wanted.map_or(0, |(soft, _)| *soft));
    let hard = now.maximum.unwrap_or(u64::MAX);
    let raised = Rlimit {
        current: Some(needed),
        maximum: finite(hard.max(needed)),
    };
    if now.current.is_some_and(|current| current < needed)
        && prlimit(Some(pid), Resource::Nofile, raised).is_err()
    {
        // As many as it may; where that does not suffice, what cannot be opened is named.
        let most = Rlimit {
            current: finite(hard),
            maximum: now.maximum,
        };
        let _ = prlimit(Some(pid), Resource::Nofile, most);
    }
}

fn finite(limit: u64) -> Option<u64> {
    (limit != u64::MAX).then_some(limit)
}

/// Sets the limits; gives those that cannot be set.
pub(crate) fn set_limits(pid: u32, state: &ProcessState) -> Vec<String> {
    let Some(pid) = Pid::from_raw(pid as i32) else {
        return Vec::new();
    };
    let wanted = LIMITS.into_iter().zip(&state.limits);
    wanted
        .filter_map(|(which, &(soft, hard))| {
            let now = rustix::process::getrlimit(which);
            let new = Rlimit {
                current: finite(soft),
                maximum: finite(hard),
            };
            // Of descriptors it may have had more until now ([`allow_descriptors`]).
            if now == new && which != Resource::Nofile {
                return None;
            }
            let set = prlimit(Some(pid), which, new);
            if set.is_err() && which == Resource::Nofile {
                let _ = prlimit(Some(pid), which, now);
            }
            set.err()
                .map(|errno| format!("the limit {which:?} cannot be what it was: {errno}"))
        })
        .collect()
}

/// Makes a thread who it was for the kernel, as far as it may.
pub(crate) fn become_who_it_was(
    remote: &Remote,
    thread: Tracee,
    then: &Credentials,
    now: &Credentials,
    dumpable: bool,
) -> Result<()> {
    let mut list = remote.list(thread);
    if then.no_new_privileges && !now.no_new_privileges {
        list.call(
            "forbid new privileges",
            libc::SYS_prctl,
            &[libc::PR_SET_NO_NEW_PRIVS.into(), 1u64.into()],
        )?;
    }
    let [.., bounding, _] = now.capabilities;
    let [.., wanted, _] = then.capabilities;
    for bit in (0..64u64).filter(|bit| bounding & !wanted & 1 << bit != 0) {
        list.call(
            "give up a capability",
            libc::SYS_prctl,
            &[libc::PR_CAPBSET_DROP.into(), bit.into()],
        )?;
    }
    if then.supplementary != now.supplementary {
        let groups: Vec<u8> = then
            .supplementary
            .iter()
            .flat_map(|group| group.to_ne_bytes())
            .collect();
        let count = then.supplementary.len() as u64;
        list.call(
            "set the groups",
            libc::SYS_setgroups,
            &[count.into(), groups.as_slice().into()],
        )?;
    }
    let becomes_another = then.users != now.users || then.groups != now.groups;
    if becomes_another {
        list.call(
            "keep the capabilities",
            libc::SYS_prctl,
            &[libc::PR_SET_KEEPCAPS.into(), 1u64.into()],
        )?;
    }
    for (call, call_for_files, then, now) in [
        (
            libc::SYS_setresgid,
            libc::SYS_setfsgid,
            then.groups,
            now.groups,
        ),
        (
            libc::SYS_setresuid,
            libc::SYS_setfsuid,
            then.users,
            now.users,
        ),
    ] {
        if then != now {
            let [real, effective, saved, of_files] = then;
            let what = "become the user that it was";
            list.call(what, call, &[real.into(), effective.into(), saved.into()])?;
            list.call(what, call_for_files, &[of_files.into()])?;
        }
    }
    let [inheritable, permitted, effective, _, ambient] = then.capabilities;
    let has = now.capabilities[1];
    if permitted & !has == 0 && (becomes_another || then.capabilities != now.capabilities) {
        // `_LINUX_CAPABILITY_VERSION_3`; each set in two halves.
        let header: Vec<u8> = [0x2008_0522u32, 0]
            .into_iter()
            .flat_map(u32::to_ne_bytes)
            .collect();
        let sets = [effective, permitted, inheritable & has];
        let halves = [0, 32].map(|shift| sets.map(|set| (set >> shift) as u32));
        let data: Vec<u8> = halves
            .as_flattened()
            .iter()
            .flat_map(|half| half.to_ne_bytes())
            .collect();
        list.call(
            "set the capabilities",
            libc::SYS_capset,
            &[header.as_slice().into(), data.as_slice().into()],
        )?;
        let ambient = ambient & permitted & inheritable;
        change_ambient(&mut list, ambient, now.capabilities[4])?;
    }
    if becomes_another {
        list.call(
            "stop keeping the capabilities",
            libc::SYS_prctl,
            &[libc::PR_SET_KEEPCAPS.into(), 0u64.into()],
        )?;
    }
    if dumpable {
        // A change of users takes it away.
        list.call(
            "be open to others of its user",
            libc::SYS_prctl,
            &[libc::PR_SET_DUMPABLE.into(), 1u64.into()],
        )?;
    }
    list.run()
}

fn change_ambient(list: &mut List<'_>, then: u64, now: u64) -> Result<()> {
    let what = "set the ambient capabilities";
    let mut change = |how: i32, bit: u64| {
        list.call(
            what,
            libc::SYS_prctl,
            &[
                libc::PR_CAP_AMBIENT.into(),
                how.into(),
                bit.into(),
                0u64.into(),
                0u64.into(),
            ],
        )
    };
    if now & !then != 0 {
        change(libc::PR_CAP_AMBIENT_CLEAR_ALL, 0)?;
    }
    for bit in (0..64u64).filter(|bit| then & 1 << bit != 0) {
        change(libc::PR_CAP_AMBIENT_RAISE, bit)?;
    }
    Ok(())
}

/// What differs from who it was.
pub(crate) fn differences(then: &Credentials, now: &Credentials) -> Vec<String> {
    let mut lost = Vec::new();
    if then.users != now.users || then.groups != now.groups {
        lost.push(format!(
            "its users and groups are {:?} {:?} instead of {:?} {:?}",
            now.users, now.groups, then.users, then.groups
        ));
    }
    let missing = then.capabilities[1] & !now.capabilities[1];
    if missing != 0 {
        lost.push(format!(
            "it had capabilities that it has not now: {missing:#x}"
        ));
    } else if then.capabilities != now.capabilities {
        lost.push(format!(
            "its sets of capabilities are {:x?} instead of {:x?}",
            now.capabilities, then.capabilities
        ));
    }
    lost
}

/// The process in a manifest, and what it takes to start it anew.
pub(crate) fn of(manifest: &Manifest) -> Result<(&Process, &ProcessState)> {
    let found = manifest.process.as_ref();
    let found = found.and_then(|process| Some((process, process.state.as_ref()?)));
    found.ok_or_else(|| {
        Error::refused(format!(
            "checkpoint {} was not made to start a process from",
            manifest.number
        ))
    })
}
