//! A guest of a few instructions on this machine's KVM, whatever that is.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

use pagetrail_vm::{Error, check};

/// Where there is no KVM that runs guests, the reason is printed, and nothing is tested.
fn expect(tried: pagetrail_vm::Result<()>) {
    match tried {
        Ok(()) => {}
        Err(error @ (Error::NoKvm(_) | Error::Lacks(_))) => eprintln!("not here: {error}"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn what_a_guest_writes_is_told_by_rings() {
    expect(check::try_guest_by(false));
}

#[test]
fn what_a_guest_writes_is_told_by_bitmaps() {
    expect(check::try_guest_by(true));
}

#[test]
fn what_a_guest_touches_is_told_by_page_tables() {
    expect(check::try_accesses());
    expect(check::try_accesses_by_exceptions());
}
