//! [`Metric`]: the things that have a cost.

use std::fmt;

macro_rules! metrics {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:literal $paper:expr,)+) => {
        /// What a cost is the cost of. M1 to M18 are those of the OoH paper's table IV.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Metric {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Metric {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Its name in a cost table.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }

            /// Its number in the OoH paper's table IV.
            pub const fn in_ooh_paper(self) -> Option<u8> {
                match self {
                    $(Self::$variant => $paper),+
                }
            }
        }
    };
}

metrics! {
    /// From user to kernel space.
    ContextSwitch "context-switch" Some(1),
    /// userfaultfd: write-protecting all of a program's memory by ioctl.
    UfdWriteProtect "ufd-write-protect" Some(2),
    /// The ioctl that starts SPML or EPML; contains the hypercall.
    StartIoctl "start-ioctl" Some(3),
    /// The ioctl that ends them; contains the hypercall.
    StopIoctl "stop-ioctl" Some(4),
    /// A fault on each page of a program, handled in the kernel.
    FaultKernel "fault-kernel" Some(5),
    /// A fault on each page, handled by the tracker.
    FaultUser "fault-user" Some(6),
    /// `vmread` in the guest.
    Vmread "vmread" Some(7),
    /// `vmwrite` in the guest.
    Vmwrite "vmwrite" Some(8),
    /// Hypercall that starts SPML.
    InitPml "init-pml" Some(9),
    /// Hypercall that starts EPML.
    InitShadowing "init-shadowing" Some(10),
    /// Hypercall that ends SPML.
    StopPml "stop-pml" Some(11),
    /// Hypercall that ends EPML.
    StopShadowing "stop-shadowing" Some(12),
    /// Hypercall at schedule-in.
    EnableLogging "enable-logging" Some(13),
    /// Hypercall at schedule-out, which empties the log.
    DisableLogging "disable-logging" Some(14),
    /// `clear_refs` over all of a program's memory.
    ClearRefs "clear-refs" Some(15),
    /// Reading all of a program's pagemap.
    PagemapWalk "pagemap-walk" Some(16),
    /// Finding the virtual address of each page of a program by linear search.
    ReverseMapping "reverse-mapping" Some(17),
    /// Copying the address of each page of a program out of the ring buffer.
    RingCopy "ring-copy" Some(18),
    /// The exit for a full log, which empties it.
    LogFullExit "log-full-exit" None,
    /// The hypercall that clears the dirty flags of a round's pages.
    ClearDirty "clear-dirty" None,
    /// An exit for a write-protected page of the extended page tables.
    EptWriteFault "ept-write-fault" None,
    /// A shadow page fault that was fixed; what the emulator does for it comes on top.
    ShadowFixed "shadow-fixed" None,
    /// One that was not a shadow fault.
    ShadowNotShadow "shadow-not-shadow" None,
    /// One for a device.
    ShadowMmio "shadow-mmio" None,
    /// An emulated write to a page table.
    ShadowEmulateWrite "shadow-emulate-write" None,
    /// An emulated exchange on a page table.
    ShadowEmulateCmpxchg "shadow-emulate-cmpxchg" None,
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
