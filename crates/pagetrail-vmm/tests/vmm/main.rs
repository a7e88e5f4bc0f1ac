//! Guests whose writes are known, and everything that must follow from them.

mod guest_log;
#[cfg(target_arch = "x86_64")]
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
#[cfg(target_arch = "x86_64")]
mod several_guests;
#[cfg(all(target_arch = "x86_64", feature = "store"))]
#[path = "../../examples/small_vmm/machine/mod.rs"]
mod small_vmm;
#[cfg(feature = "store")]
mod store;
mod sys;
#[cfg(target_arch = "x86_64")]
mod tables;
mod vhost;
mod vhost_devices;
#[cfg(all(target_arch = "x86_64", feature = "store"))]
mod whole_guests;
mod write_protection;
