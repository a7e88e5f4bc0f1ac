//! Bands: the rows of a heat grid grouped by mapping, which is what a picture labels.
//!
//! A band is a run of rows of one mapping, or of neighbouring mappings of one file. How tall a band
//! is drawn is each picture's business; [`heights`] is what they share.

use std::ops::Range;

use pagetrail_trail::{Heatmap, Trail};

use super::words;

/// Rows that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// Short name of the mapping.
    pub label: String,
    /// The mapping of its first row, as an index into the trail's mappings.
    pub mapping: Option<usize>,
    /// Its rows as indices into [`Heatmap::rows`], without separators.
    pub rows: Vec<usize>,
    /// Pages that its rows stand for.
    pub pages: u64,
}

/// All bands of a grid in ascending order of addresses; every row but the separators is in one.
pub fn bands(trail: &Trail, heat: &Heatmap) -> Vec<Band> {
    let mut bands: Vec<Band> = Vec::new();
    let mut separated = false;
    for (index, row) in heat.rows.iter().enumerate() {
        if row.separator {
            separated = true;
            continue;
        }
        let mapping = row.mapping.and_then(|i| trail.mappings.get(i));
        let joins = |last: &Band| {
            let before = last.mapping.and_then(|i| trail.mappings.get(i));
            match (before, mapping) {
                (None, None) => true,
                (Some(before), Some(now)) if now.name.is_empty() => {
                    before.name.is_empty() && (!separated || last.mapping == row.mapping)
                }
                (Some(before), Some(now)) => before.name == now.name,
                _ => false,
            }
        };
        match bands.last_mut().filter(|last| joins(last)) {
            Some(last) => {
                last.rows.push(index);
                last.pages += row.pages;
            }
            None => bands.push(Band {
                label: mapping.map_or("outside all mappings".into(), words::mapping_short),
                mapping: row.mapping,
                rows: vec![index],
                pages: row.pages,
            }),
        }
        separated = false;
    }
    tell_apart(&mut bands, trail);
    bands
}

/// Adds its address to a label that several bands have.
fn tell_apart(bands: &mut [Band], trail: &Trail) {
    let mut labels: Vec<String> = bands.iter().map(|band| band.label.clone()).collect();
    labels.sort_unstable();
    for band in bands {
        let first = labels.partition_point(|label| *label < band.label);
        let is_shared = labels.get(first + 1) == Some(&band.label);
        let mapping = band.mapping.and_then(|index| trail.mappings.get(index));
        if let (true, Some(mapping)) = (is_shared, mapping) {
            let name = match mapping.name.is_empty() {
                true => "anon",
                false => &band.label,
            };
            band.label = format!("{name} {:x}", mapping.range.start());
        }
    }
}

/// Where each band lies when all share `total` units with a `gap` between two: `least` units for
/// each while they leave half of the room, the rest by the square root of its pages, so that a heap
/// does not hide a stack.
pub fn heights(bands: &[Band], total: usize, least: usize, gap: usize) -> Vec<Range<usize>> {
    if bands.is_empty() {
        return Vec::new();
    }
    let crowded = bands.len() * (gap + least / 2) > total;
    let gap = if crowded { 0 } else { gap };
    let room = total.saturating_sub(gap * (bands.len() - 1)) as f64;
    // Half of the room is always spread by size, however many bands there are.
    let least = (least as f64).min(room / 2.0 / bands.len() as f64);
    let spare = room - least * bands.len() as f64;
    let weight = |band: &Band| (band.pages.max(1) as f64).sqrt();
    let weights: f64 = bands.iter().map(weight).sum();
    let mut top = 0.0;
    bands
        .iter()
        .map(|band| {
            let start = top;
            let end = start + least + spare * weight(band) / weights;
            top = end + gap as f64;
            start.round() as usize..end.round() as usize
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn neighbours_of_one_file_are_one_band() {
        let base = 0x7f00_0000_0000;
        let mut trail = testing::program(1);
        trail.mappings = vec![
            testing::mapping(testing::pages(base, 0, 2), "/lib/a.so", 0),
            testing::mapping(testing::pages(base, 2, 2), "/lib/a.so", 0),
            testing::mapping(testing::pages(base, 4, 2), "", 0),
            testing::mapping(testing::pages(base, 100, 2), "", 0),
        ];
        trail.rounds[0].written = [(0, 6), (100, 2)]
            .map(|(first, pages)| testing::pages(base, first, pages))
            .into_iter()
            .collect();
        let heat = Heatmap::of(&trail, 100, 100);
        let bands = bands(&trail, &heat);
        let labels: Vec<_> = bands
            .iter()
            .map(|band| (band.label.as_str(), band.pages))
            .collect();
        let expected = [
            ("a.so", 4),
            ("anon 7f0000004000", 2),
            ("anon 7f0000064000", 2),
        ];
        assert_eq!(labels, expected);
        let rows: usize = bands.iter().map(|band| band.rows.len()).sum();
        assert_eq!(rows, heat.rows.iter().filter(|row| !row.separator).count());
    }

    #[test]
    fn heights_share_the_room_in_order() {
        let band = |pages| Band {
            label: String::new(),
            mapping: None,
            rows: vec![],
            pages,
        };
        for sizes in [vec![1], vec![1, 100_000, 3], vec![5; 400]] {
            let bands: Vec<Band> = sizes.into_iter().map(band).collect();
            let places = heights(&bands, 900, 38, 6);
            assert_eq!(places[0].start, 0);
            assert_eq!(places[places.len() - 1].end, 900);
            assert!(places.windows(2).all(|two| two[0].end <= two[1].start));
            assert!(places.iter().all(|place| !place.is_empty()));
        }
        let places = heights(&[band(1), band(10_000)], 900, 38, 6);
        assert!(places[0].len() >= 38 && places[1].len() > 10 * places[0].len());
        assert!(heights(&[], 900, 38, 6).is_empty());
    }
}
