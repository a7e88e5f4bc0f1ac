//! [`Published`]: a value that is read without a lock, at any moment.

use std::sync::atomic::{AtomicPtr, Ordering};

/// A place for a value that lives as long as the process, and its forked children.
#[derive(Debug)]
pub(crate) struct Published<T>(AtomicPtr<T>);

impl<T: Sync> Published<T> {
    /// Begins without a value.
    pub(crate) const fn none() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Puts a value there, or takes it away. Who has got the one before may go on using it.
    pub(crate) fn set(&self, value: Option<&'static T>) {
        let value = value.map_or(std::ptr::null_mut(), |value| {
            std::ptr::from_ref(value).cast_mut()
        });
        self.0.store(value, Ordering::Release);
    }

    /// The value, if there is one.
    #[inline]
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: it is null, or comes from a shared reference that is valid for good, which `set`
        // has taken.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_there_until_it_is_taken_away() {
        static ONE: u32 = 1;
        let published = Published::none();
        assert_eq!(published.get(), None);
        published.set(Some(&ONE));
        assert_eq!(published.get(), Some(&1));
        published.set(None);
        assert_eq!(published.get(), None);
    }
}
