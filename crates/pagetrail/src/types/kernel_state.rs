//! [`KernelState`]: what the kernel keeps for a process and tells nobody else.

/// Where a thread has its `struct rseq` (`rseq(2)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RseqArea {
    /// Its address.
    pub address: u64,
    /// How long it is, in bytes.
    pub bytes: u32,
    /// What stands before each place at which a sequence is aborted.
    pub signature: u32,
}

/// A signal that waits for its delivery, as `siginfo_t` (`sigaction(2)`).
pub type PendingSignal = [u8; 128];

/// What a process does at a signal: `struct sigaction` of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalAction {
    /// The signal's number.
    pub signal: u32,
    /// The address of the handler; 0 is the default, 1 that it is ignored.
    pub handler: u64,
    /// `SA_*`.
    pub flags: u64,
    /// The address of the code that returns from the handler.
    pub restorer: u64,
    /// The signals that are blocked meanwhile, one bit each, signal 1 the lowest.
    pub blocked: u64,
}

/// What the kernel keeps for a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadState {
    /// Its thread ID.
    pub tid: u32,
    /// The alternate stack for signals: its address, flags (`SS_*`) and length in bytes.
    pub alternate_stack: [u64; 3],
    /// Where the kernel writes 0 when the thread ends (`set_tid_address(2)`).
    pub clear_tid: u64,
    /// The list of robust futexes: its head, and the head's length in bytes.
    pub robust_list: [u64; 2],
    /// Its restartable sequences (`rseq(2)`); none before Linux 5.13, which does not say.
    pub rseq: Option<RseqArea>,
    /// The signals that wait for this thread.
    pub pending: Vec<PendingSignal>,
}

/// What the kernel keeps for a process, beyond what `/proc` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelState {
    /// What it does at signals, where that is not the default.
    pub actions: Vec<SignalAction>,
    /// Its timers of `setitimer(2)`, real, virtual and profiling: seconds and microseconds of the
    /// interval, then those that are left.
    pub timers: [[u64; 4]; 3],
    /// The end of its heap (`brk(2)`).
    pub heap_end: u64,
    /// Its threads, in the order of [`Hold::threads`](crate::Hold::threads).
    pub threads: Vec<ThreadState>,
    /// The signals that wait for any of its threads.
    pub pending: Vec<PendingSignal>,
}
