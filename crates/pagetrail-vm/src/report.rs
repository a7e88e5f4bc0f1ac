//! [`Report`]: what KVM and the processor offer.

/// What KVM and the processor offer. A fact that could not be determined is `None`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The processor's virtualization: `VMX` (Intel) or `SVM` (AMD).
    pub virtualization: Option<&'static str>,
    /// Whether the processor translates guest-physical addresses (EPT on Intel, NPT on AMD).
    pub nested_paging: Option<bool>,
    /// Whether the processor logs dirty pages itself (PML).
    pub page_modification_logging: Option<bool>,
    /// The entries of the largest dirty ring; 0 where KVM has none.
    pub ring_pages: usize,
    /// The most memslots that a virtual machine may have.
    pub memslots: u32,
    /// The width of a guest-physical address in bits.
    pub physical_bits: u8,
}
