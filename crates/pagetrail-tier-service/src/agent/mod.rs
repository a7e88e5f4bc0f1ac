//! A guest's half of tiering: an agent in the guest says which of its memory is used.
//!
//! HMM-V (Sha et al., section 4.1) has a scanner of the guest's page tables in the hypervisor's
//! hands. Here the same program runs in the guest ([`Agent`]), samples its processes by what its
//! kernel offers, and knows what the host cannot: which memory is free. It says all by
//! guest-physical addresses, over vsock or another stream (`wire`). On the host `Guest` is a
//! source like any other: it finds where these addresses lie in the monitor (`layout`), which the
//! agent's own pages prove.
//!
//! A guest is not trusted: what it says concerns its own memory alone, has bounds, and must come in
//! time.

mod address;
mod guest;
mod layout;
mod physical;
mod processes;
mod serve;
mod stream;
#[cfg(test)]
mod tests;
mod wire;

pub use address::{AgentAddress, ListenAddress};
pub use processes::Which;
pub use serve::Agent;

pub(crate) use guest::{Guest, timeout};
