//! The descriptors: opened anew by the process itself, at their numbers.

use crate::error::{Error, Result};
use crate::listeners;
use crate::objects::{self, Owner, Shared};
use crate::options::{Missing, RestoreOptions, Stdio};
use crate::remote::{Argument, Remote};
use pagetrail_checkpoint::{
    FileKind, OpenFile, ProcessState, is_stateless_device, is_terminal_name,
};
use std::os::unix::fs::FileTypeExt;

/// Flags of `open(2)` that are of the moment of opening only.
const ONCE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;

/// `TFD_IOC_SET_TICKS` of `timerfd_create(2)`.
const SET_TICKS: u64 = 0x4008_5400;

/// What a descriptor is opened as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// This process's descriptor of the same number.
    Inherited,
    /// `/dev/null`.
    Null,
    /// What it was.
    Anew,
}

/// Decides what a descriptor, one of `files`, becomes, and checks that it can.
pub(crate) fn decide(
    file: &OpenFile,
    files: &[OpenFile],
    options: &RestoreOptions,
) -> Result<Opening> {
    let number = file.number;
    if file.is_inner_pipe(files) {
        return Ok(Opening::Anew);
    }
    let missing = |reason: String| match options.on_missing {
        Missing::Null => Ok(Opening::Null),
        Missing::Fail => Err(Error::Missing(reason)),
    };
    match &file.kind {
        FileKind::Terminal { .. } | FileKind::Pipe { .. } if number <= 2 => {
            Ok(match options.stdio {
                Stdio::Inherit => Opening::Inherited,
                Stdio::Null => Opening::Null,
            })
        }
        FileKind::Pipe { .. } => missing(format!(
            "descriptor {number} was an end of a pipe to another process"
        )),
        FileKind::Terminal { path } | FileKind::Stateless { path } => {
            let is_terminal = matches!(file.kind, FileKind::Terminal { .. });
            match std::fs::metadata(path) {
                Ok(now)
                    if is_terminal
                        && is_terminal_name(path)
                        && now.file_type().is_char_device() =>
                {
                    Ok(Opening::Anew)
                }
                Ok(now) if !is_terminal && (now.is_dir() || is_stateless_device(path)) => {
                    Ok(Opening::Anew)
                }
                Ok(_) => missing(format!(
                    "descriptor {number} was {path}, which is another thing now"
                )),
                Err(error) => missing(format!(
                    "descriptor {number} was {path}, which is not there now: {error}"
                )),
            }
        }
        FileKind::Regular { path, bytes } => match std::fs::metadata(path) {
            Err(error) => missing(format!(
                "descriptor {number} was {path}, which is not there now: {error}"
            )),
            Ok(now) if !now.is_file() => missing(format!(
                "descriptor {number} was {path}, which is no regular file now"
            )),
            Ok(now) if now.len() != *bytes && !options.allow_changed_files => {
                Err(Error::Changed(format!(
                    "descriptor {number} was {path}, which has changed since: it has {} bytes now and \
                     had {bytes}",
                    now.len()
                )))
            }
            Ok(_) => Ok(Opening::Anew),
        },
        FileKind::Listener(listener) => match listeners::obstacle(listener) {
            Some(reason) => match options.on_missing {
                Missing::Null => Ok(Opening::Null),
                Missing::Fail => Err(listeners::missing(number, listener, &reason)),
            },
            None => Ok(Opening::Anew),
        },
        FileKind::Counter { .. }
        | FileKind::Timer { .. }
        | FileKind::Signals { .. }
        | FileKind::Memory { .. }
        | FileKind::Socket { .. }
        | FileKind::Epoll { .. } => Ok(Opening::Anew),
    }
}

/// Opens all descriptors.
pub(crate) fn open_all(
    remote: &Remote,
    state: &ProcessState,
    shared: &Shared,
    owner: &Owner,
    options: &RestoreOptions,
) -> Result<()> {
    let files = &state.files;
    // Before any is opened: at its own socket another would listen, from then on.
    let openings = files.iter().map(|file| decide(file, files, options));
    let openings: Vec<Opening> = openings.collect::<Result<_>>()?;
    for number in 0..=2 {
        if !files.iter().any(|file| file.number == number) {
            // One that is closed here already is no error.
            let close = remote.call(
                remote.main,
                "close a descriptor",
                libc::SYS_close,
                &[number.into()],
            );
            drop(close);
        }
    }
    for (file, opening) in files.iter().zip(&openings) {
        match file.same_as {
            // With the pipe, or the pair of sockets, itself.
            _ if file.is_inner_pipe(files) => {}
            _ if matches!(file.kind, FileKind::Socket { .. }) => {}
            Some(other) => place(remote, other.into(), file, false)?,
            None => open(remote, file, opening, shared)?,
        }
    }
    open_pipes(remote, state, owner)?;
    objects::open_sockets(remote, state)?;
    for file in files.iter().filter(|file| file.same_as.is_none()) {
        if let FileKind::Epoll { targets } = &file.kind {
            // What became /dev/null is never ready.
            let became_null = |target: u32| {
                let mut all = files.iter().zip(&openings);
                all.any(|(file, opening)| file.number == target && *opening == Opening::Null)
            };
            let is_there = |&&(target, ..): &&(u32, u32, u64)| !became_null(target);
            let targets: Vec<_> = targets.iter().filter(is_there).copied().collect();
            wait_for(remote, file.number, &targets)?;
        }
    }
    Ok(())
}

fn open(remote: &Remote, file: &OpenFile, opening: &Opening, shared: &Shared) -> Result<()> {
    let flags = file.flags as i32;
    let some = |wanted: i32| flags & wanted;
    let what = format!("open descriptor {}", file.number);
    let call = |number: i64, arguments: &[Argument<'_>]| {
        remote.call(remote.main, &what, number, arguments)
    };
    let path = |path: &str| {
        let mut name = path.as_bytes().to_vec();
        name.push(0);
        let flags = flags & !ONCE | libc::O_NOCTTY;
        remote.call(
            remote.main,
            &format!("open {path}"),
            libc::SYS_openat,
            &[
                libc::AT_FDCWD.into(),
                name.as_slice().into(),
                flags.into(),
                0u64.into(),
            ],
        )
    };
    let number = match (opening, &file.kind) {
        (Opening::Inherited, _) => {
            let set = if some(libc::O_CLOEXEC) != 0 {
                libc::FD_CLOEXEC
            } else {
                0
            };
            call(
                libc::SYS_fcntl,
                &[file.number.into(), libc::F_SETFD.into(), set.into()],
            )
            .map_err(|_| {
                Error::refused(format!(
                    "descriptor {} shall be this command's, which is closed",
                    file.number
                ))
            })?;
            return Ok(());
        }
        (Opening::Null, _) | (_, FileKind::Pipe { .. }) => path("/dev/null")?,
        (
            _,
            FileKind::Regular { path: name, .. }
            | FileKind::Stateless { path: name }
            | FileKind::Terminal { path: name },
        ) => {
            let number = path(name)?;
            if file.position != 0 && !matches!(file.kind, FileKind::Terminal { .. }) {
                call(
                    libc::SYS_lseek,
                    &[number.into(), file.position.into(), libc::SEEK_SET.into()],
                )?;
            }
            number
        }
        (_, FileKind::Memory { index }) => {
            let name = shared.path(*index as usize);
            let name = name.ok_or_else(|| {
                Error::refused("the checkpoint contradicts itself about shared memory")
            })?;
            let number = path(&name)?;
            if file.position != 0 {
                call(
                    libc::SYS_lseek,
                    &[number.into(), file.position.into(), libc::SEEK_SET.into()],
                )?;
            }
            number
        }
        (_, FileKind::Listener(listener)) => listeners::open(remote, file, listener)?,
        // Made with its peer.
        (_, FileKind::Socket { .. }) => return Ok(()),
        (_, FileKind::Counter { value, semaphore }) => {
            let semaphore = if *semaphore { libc::EFD_SEMAPHORE } else { 0 };
            let flags = some(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) | semaphore;
            let number = call(libc::SYS_eventfd2, &[0u64.into(), flags.into()])?;
            if *value != 0 {
                let bytes = value.to_ne_bytes();
                call(
                    libc::SYS_write,
                    &[number.into(), bytes.as_slice().into(), 8u64.into()],
                )?;
            }
            number
        }
        (
            _,
            FileKind::Timer {
                clock,
                ticks,
                value,
                interval,
                ..
            },
        ) => {
            let flags = some(libc::TFD_NONBLOCK | libc::TFD_CLOEXEC);
            let number = call(libc::SYS_timerfd_create, &[(*clock).into(), flags.into()])?;
            // A periodic one that has expired is started again by the kernel when it is read.
            let left = match *value {
                (0, 0) if *ticks != 0 => *interval,
                left => left,
            };
            if left != (0, 0) {
                let words = [interval.0, interval.1, left.0, left.1];
                let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
                // What is left is relative, however it was set.
                call(
                    libc::SYS_timerfd_settime,
                    &[number.into(), 0u64.into(), bytes.as_slice().into()],
                )?;
            }
            if *ticks != 0 {
                let bytes = ticks.to_ne_bytes();
                call(
                    libc::SYS_ioctl,
                    &[number.into(), SET_TICKS.into(), bytes.as_slice().into()],
                )?;
            }
            number
        }
        (_, FileKind::Signals { mask }) => {
            let flags = some(libc::SFD_NONBLOCK | libc::SFD_CLOEXEC);
            let bytes = mask.to_ne_bytes();
            call(
                libc::SYS_signalfd4,
                &[
                    (-1).into(),
                    bytes.as_slice().into(),
                    8u64.into(),
                    flags.into(),
                ],
            )?
        }
        (_, FileKind::Epoll { .. }) => {
            call(libc::SYS_epoll_create1, &[some(libc::EPOLL_CLOEXEC).into()])?
        }
    };
    place(remote, number, file, true)
}

/// Makes the pipes of which the process has both ends, with the bytes that nobody has read.
fn open_pipes(remote: &Remote, state: &ProcessState, owner: &Owner) -> Result<()> {
    let files = &state.files;
    let inner: Vec<&OpenFile> = files
        .iter()
        .filter(|file| file.is_inner_pipe(files))
        .collect();
    let what = "make a pipe";
    let call =
        |number: i64, arguments: &[Argument<'_>]| remote.call(remote.main, what, number, arguments);
    for (index, first) in inner.iter().enumerate() {
        if inner[..index]
            .iter()
            .any(|before| before.kind == first.kind)
        {
            continue;
        }
        let room = [0u8; 8];
        call(libc::SYS_pipe2, &[room.as_slice().into(), 0u64.into()])?;
        let ends = objects::lift_ends(remote, what, files)?;
        let is_of = |file: &&&OpenFile, is_write: bool| {
            file.kind == first.kind && file.is_write_only() == is_write
        };
        for (end, is_write) in ends.into_iter().zip([false, true]) {
            let same = inner.iter().filter(|file| is_of(file, is_write));
            objects::place_end(remote, what, end, same.copied())?;
        }
        owner.take_number(remote, first.number)?;
        let kept = state.objects.pipes.iter();
        let mut kept = kept.filter(|pipe| FileKind::Pipe { inode: pipe.inode } == first.kind);
        if let Some(pipe) = kept.next()
            && let Some(input) = inner.iter().find(|file| is_of(file, true))
        {
            let resize = [
                input.number.into(),
                libc::F_SETPIPE_SZ.into(),
                pipe.capacity.into(),
            ];
            call(libc::SYS_fcntl, &resize)?;
            objects::write_unread(remote, input.number, &pipe.unread)?;
        }
        for file in inner.iter().filter(|file| file.kind == first.kind) {
            let flags = file.flags as i32 & libc::O_NONBLOCK;
            call(
                libc::SYS_fcntl,
                &[file.number.into(), libc::F_SETFL.into(), flags.into()],
            )?;
        }
    }
    Ok(())
}

/// Gives a descriptor its number.
fn place(remote: &Remote, from: u64, file: &OpenFile, moved: bool) -> Result<()> {
    if from == file.number.into() {
        return Ok(());
    }
    let mut list = remote.list(remote.main);
    let flags = file.flags as i32 & libc::O_CLOEXEC;
    list.call(
        &format!("open descriptor {}", file.number),
        libc::SYS_dup3,
        &[from.into(), file.number.into(), flags.into()],
    )?;
    if moved {
        list.call("close a descriptor", libc::SYS_close, &[from.into()])?;
    }
    list.run()
}

fn wait_for(remote: &Remote, number: u32, targets: &[(u32, u32, u64)]) -> Result<()> {
    let mut list = remote.list(remote.main);
    for &(target, events, data) in targets {
        // `struct epoll_event` is packed on x86-64.
        let mut event = events.to_ne_bytes().to_vec();
        event.extend(data.to_ne_bytes());
        list.call(
            &format!("wait for descriptor {target} by {number}"),
            libc::SYS_epoll_ctl,
            &[
                number.into(),
                libc::EPOLL_CTL_ADD.into(),
                target.into(),
                event.as_slice().into(),
            ],
        )?;
    }
    list.run()
}
