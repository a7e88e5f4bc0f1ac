//! The check that comes before every time: is what was reported a superset of what was written?

use pagetrail::{PageRange, PageSet};

/// Pages that were written and not reported.
#[derive(Debug, thiserror::Error)]
#[error(
    "{technique} missed {missed} of {written} written pages, the first at {first:#x}: its times mean nothing"
)]
pub struct Missed {
    technique: String,
    missed: u64,
    written: u64,
    first: u64,
}

impl Missed {
    /// An error where not all of `written` is in `reported`.
    pub(crate) fn in_sets(
        technique: &str,
        written: &PageSet,
        reported: &PageSet,
    ) -> Result<(), Self> {
        let missed = written.difference(reported);
        match missed.ranges().first() {
            None => Ok(()),
            Some(first) => Err(Self {
                technique: technique.into(),
                missed: missed.page_count(),
                written: written.page_count(),
                first: first.start(),
            }),
        }
    }
}

/// Compares a round with what the writer wrote, all of `written`; returns the pages reported in it.
pub(crate) fn check(
    technique: &str,
    written: PageRange,
    reported: &PageSet,
) -> Result<u64, Missed> {
    let written = PageSet::from_iter([written]);
    Missed::in_sets(technique, &written, reported)?;
    Ok(written.intersection(reported).page_count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail::page_size;

    #[test]
    fn one_missing_page_is_found() {
        let page = page_size();
        let range = |first, end| PageRange::new(first * page, end * page).unwrap();
        let written = range(10, 20);
        let whole = PageSet::from_iter([range(5, 30)]);
        assert_eq!(check("x", written, &whole).unwrap(), 10);
        for missing in [10, 15, 19] {
            let mut reported = whole.clone();
            reported.remove(range(missing, missing + 1));
            let error = check("x", written, &reported).unwrap_err();
            assert_eq!((error.missed, error.first), (1, missing * page));
        }
        let error = check("x", written, &PageSet::new()).unwrap_err();
        assert!(
            error.to_string().starts_with("x missed 10 of 10"),
            "{error}"
        );
    }
}
