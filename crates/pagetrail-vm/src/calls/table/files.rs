//! Calls on files and directories, by path or by descriptor.

use super::super::identity;
use super::super::reads::Input as In;
use super::super::written::Output as Out;
use super::{Path, Row, writes_nothing};

const STAT_BYTES: u64 = 144;
const TIMESPEC_BYTES: u64 = 16;
const NO_FOLLOW: i32 = libc::AT_SYMLINK_NOFOLLOW;

pub(super) const CALLS: &[Row] = &[
    Row::forward(libc::SYS_getcwd).writes(&[Out::Filled(0, 1, 1)]),
    Row::forward(libc::SYS_getdents64).writes(&[Out::Filled(1, 2, 1)]),
    Row::forward(libc::SYS_getdents).writes(&[Out::Filled(1, 2, 1)]),
    Row::perform(libc::SYS_readlink, |guest, call| {
        Ok(identity::read_link(guest, call))
    })
    .writes(&[Out::Filled(1, 2, 1)])
    .reads(&[In::Text(0)]),
    Row::perform(libc::SYS_readlinkat, |guest, call| {
        Ok(identity::read_link_at(guest, call))
    })
    .writes(&[Out::Filled(2, 3, 1)])
    .reads(&[In::Text(1)]),
    Row::forward(libc::SYS_listxattr)
        .writes(&[Out::Filled(1, 2, 1)])
        .reads(&[In::Text(0)]),
    Row::forward(libc::SYS_flistxattr).writes(&[Out::Filled(1, 2, 1)]),
    Row::forward(libc::SYS_llistxattr)
        .writes(&[Out::Filled(1, 2, 1)])
        .reads(&[In::Text(0)]),
    Row::forward(libc::SYS_getxattr)
        .writes(&[Out::Filled(2, 3, 1)])
        .reads(&[In::Text(0), In::Text(1)]),
    Row::forward(libc::SYS_fgetxattr)
        .writes(&[Out::Filled(2, 3, 1)])
        .reads(&[In::Text(1)]),
    Row::forward(libc::SYS_lgetxattr)
        .writes(&[Out::Filled(2, 3, 1)])
        .reads(&[In::Text(0), In::Text(1)]),
    writes_nothing(libc::SYS_setxattr).reads(&[In::Text(0), In::Text(1), In::Sized(2, 3)]),
    writes_nothing(libc::SYS_fsetxattr).reads(&[In::Text(1), In::Sized(2, 3)]),
    writes_nothing(libc::SYS_lsetxattr).reads(&[In::Text(0), In::Text(1), In::Sized(2, 3)]),
    Row::forward(libc::SYS_stat)
        .writes(&[Out::Bytes(1, STAT_BYTES)])
        .reads(&[In::Text(0)])
        .path(Path::names(0)),
    Row::forward(libc::SYS_fstat).writes(&[Out::Bytes(1, STAT_BYTES)]),
    Row::forward(libc::SYS_lstat)
        .writes(&[Out::Bytes(1, STAT_BYTES)])
        .reads(&[In::Text(0)]),
    Row::forward(libc::SYS_newfstatat)
        .writes(&[Out::Bytes(2, STAT_BYTES)])
        .reads(&[In::Text(1)])
        .path(Path::names(1).below(0).unless(3, NO_FOLLOW)),
    Row::forward(libc::SYS_statx)
        .writes(&[Out::Bytes(4, 256)])
        .reads(&[In::Text(1)])
        .path(Path::names(1).below(0).unless(2, NO_FOLLOW)),
    Row::forward(libc::SYS_statfs)
        .writes(&[Out::Bytes(1, 120)])
        .reads(&[In::Text(0)]),
    Row::forward(libc::SYS_fstatfs).writes(&[Out::Bytes(1, 120)]),
    writes_nothing(libc::SYS_open)
        .reads(&[In::Text(0)])
        .path(Path::opens(0).unless(1, libc::O_NOFOLLOW)),
    writes_nothing(libc::SYS_openat)
        .reads(&[In::Text(1)])
        .path(Path::opens(1).below(0).unless(2, libc::O_NOFOLLOW)),
    writes_nothing(libc::SYS_openat2)
        .reads(&[In::Text(1), In::Sized(2, 3)])
        .path(Path::opens(1).below(0)),
    writes_nothing(libc::SYS_creat).reads(&[In::Text(0)]),
    writes_nothing(libc::SYS_access)
        .reads(&[In::Text(0)])
        .path(Path::names(0)),
    writes_nothing(libc::SYS_faccessat)
        .reads(&[In::Text(1)])
        .path(Path::names(1).below(0)),
    writes_nothing(libc::SYS_faccessat2)
        .reads(&[In::Text(1)])
        .path(Path::names(1).below(0).unless(3, NO_FOLLOW)),
    writes_nothing(libc::SYS_truncate).reads(&[In::Text(0)]),
    writes_nothing(libc::SYS_ftruncate),
    writes_nothing(libc::SYS_fallocate),
    writes_nothing(libc::SYS_chdir).reads(&[In::Text(0)]),
    writes_nothing(libc::SYS_fchdir),
    writes_nothing(libc::SYS_chroot),
    writes_nothing(libc::SYS_mkdir).reads(&[In::Text(0)]),
    writes_nothing(libc::SYS_mkdirat).reads(&[In::Text(1)]),
    writes_nothing(libc::SYS_rmdir).reads(&[In::Text(0)]),
    writes_nothing(libc::SYS_rename).reads(&[In::Text(0), In::Text(1)]),
    writes_nothing(libc::SYS_renameat).reads(&[In::Text(1), In::Text(3)]),
    writes_nothing(libc::SYS_renameat2).reads(&[In::Text(1), In::Text(3)]),
    writes_nothing(libc::SYS_link).reads(&[In::Text(0), In::Text(1)]),
    writes_nothing(libc::SYS_linkat).reads(&[In::Text(1), In::Text(3)]),
    writes_nothing(libc::SYS_symlink).reads(&[In::Text(0), In::Text(1)]),
    writes_nothing(libc::SYS_symlinkat).reads(&[In::Text(0), In::Text(2)]),
    writes_nothing(libc::SYS_unlink).reads(&[In::Text(0)]),
    writes_nothing(libc::SYS_unlinkat).reads(&[In::Text(1)]),
    writes_nothing(libc::SYS_chmod).reads(&[In::Text(0)]),
    writes_nothing(libc::SYS_fchmod),
    writes_nothing(libc::SYS_fchmodat).reads(&[In::Text(1)]),
    writes_nothing(libc::SYS_chown).reads(&[In::Text(0)]),
    writes_nothing(libc::SYS_fchown),
    writes_nothing(libc::SYS_lchown).reads(&[In::Text(0)]),
    writes_nothing(libc::SYS_fchownat).reads(&[In::Text(1)]),
    writes_nothing(libc::SYS_umask),
    writes_nothing(libc::SYS_utimensat).reads(&[In::Text(1), In::Bytes(2, 2 * TIMESPEC_BYTES)]),
    writes_nothing(libc::SYS_utimes).reads(&[In::Text(0), In::Bytes(1, 2 * TIMESPEC_BYTES)]),
    writes_nothing(libc::SYS_mknod).reads(&[In::Text(0)]),
    writes_nothing(libc::SYS_mknodat).reads(&[In::Text(1)]),
];
