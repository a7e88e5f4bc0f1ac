//! `userfaultfd(2)`, by [`PageRange`](crate::PageRange)s, on the crate `pagemap-scan`.

pub(crate) use pagemap_scan::{
    FAULTS_AT_ONCE, Fault, Faults, Features, Filled, Mode, Userfaultfd as Uffd, Zeros,
};
