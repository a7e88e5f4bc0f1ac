//! Guests whose writes are known, and everything that must follow from them.

#[cfg(target_arch = "x86_64")]
mod kvm_logs;
mod rounds;
mod store;
mod sys;
#[cfg(target_arch = "x86_64")]
mod whole_guests;
mod write_protection;
