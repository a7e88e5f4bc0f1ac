//! Runs guests of a few instructions on this machine's KVM, whatever that is.

// Guests are of x86-64.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

use pagetrail_vm::{Error, check};

/// Where KVM cannot run guests, prints the reason and tests nothing.
fn expect(tried: pagetrail_vm::Result<()>) {
    match tried {
        Ok(()) => {}
        Err(error @ (Error::NoKvm(_) | Error::Lacks(_))) => pagetrail_skips::not_here(&error),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn rings_have_the_pages_that_a_guest_dirties() {
    expect(check::try_guest_by(false));
}

#[test]
fn bitmaps_have_the_pages_that_a_guest_dirties() {
    expect(check::try_guest_by(true));
}

#[test]
fn merged_pages_are_logged_together_and_split_ones_apart() {
    expect(check::try_units());
}

#[test]
fn page_tables_have_the_pages_that_a_guest_accesses() {
    expect(check::try_accesses());
    expect(check::try_accesses_by_exceptions());
}
