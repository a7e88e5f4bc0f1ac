//! Guests whose writes are known, and everything that must follow from them.

#[cfg(target_arch = "x86_64")]
mod kvm_logs;
mod rounds;
#[cfg(target_arch = "x86_64")]
mod several_guests;
#[cfg(feature = "store")]
mod store;
mod sys;
#[cfg(all(target_arch = "x86_64", feature = "store"))]
mod whole_guests;
mod write_protection;
