//! Guests whose writes are known, and everything that must follow from them.

mod guest_log;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod kvm_logs;
#[cfg(all(target_arch = "x86_64", feature = "store"))]
mod linux;
#[cfg(all(target_arch = "x86_64", feature = "store"))]
mod linux_log;
#[cfg(all(target_arch = "x86_64", feature = "store"))]
mod linux_tables;
#[cfg(feature = "store")]
mod over_a_socket;
mod rounds;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod several_guests;
#[cfg(all(target_arch = "x86_64", feature = "store"))]
#[path = "../../examples/small_vmm/machine/mod.rs"]
mod small_vmm;
#[cfg(feature = "store")]
mod store;
mod sys;
#[cfg(target_arch = "x86_64")]
mod tables;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod together;
mod vhost;
mod vhost_devices;
#[cfg(all(
    any(target_arch = "aarch64", target_arch = "x86_64"),
    feature = "store"
))]
mod whole_guests;
mod write_protection;

/// How often a test does something: an eighth of it with `PAGETRAIL_SHORT=1`, where an emulated
/// processor is slow, but at least twice.
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
fn times(most: u32) -> u32 {
    match std::env::var_os("PAGETRAIL_SHORT") {
        Some(_) => (most / 8).max(2),
        None => most,
    }
}
