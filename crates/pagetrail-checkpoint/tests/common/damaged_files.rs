//! Image files of a dump of a process 77 with a single page, damaged in ways of which each is
//! named.

use std::fs;
use std::path::Path;

/// A file of a dump, and what is wrong with it.
pub(crate) type Damage = (&'static str, fn(&Path));

pub(crate) const DAMAGES: &[Damage] = &[
    ("cannot read", |directory| {
        fs::remove_file(directory.join("pages-1.img")).unwrap();
    }),
    ("cannot read", |directory| {
        fs::write(directory.join("pages-1.img"), [1; 4095]).unwrap();
    }),
    ("more pages than their map says", |directory| {
        fs::write(directory.join("pages-1.img"), [1; 4097]).unwrap();
    }),
    ("a damaged pagemap", |directory| {
        fs::write(directory.join("pagemap-77.img"), [0; 64]).unwrap();
    }),
    ("a damaged pagemap", |directory| {
        let path = directory.join("pagemap-77.img");
        let mut image = fs::read(&path).unwrap();
        image.truncate(image.len() - 1);
        fs::write(&path, image).unwrap();
    }),
    ("twice", |directory| {
        let path = directory.join("pagemap-77.img");
        let mut image = fs::read(&path).unwrap();
        let entry = image[8 + 4 + 2..].to_vec();
        image.extend(entry);
        fs::write(&path, image).unwrap();
        let path = directory.join("pages-1.img");
        fs::write(&path, fs::read(&path).unwrap().repeat(2)).unwrap();
    }),
    ("in a parent that does not have them", |directory| {
        let name = directory.join("pagemap-77.img");
        let mut image = fs::read(&name).unwrap();
        let flags = image.len() - 3;
        assert_eq!(image[flags - 1..], [4 << 3, 4, 5 << 3, 1]);
        image[flags] = 1;
        fs::write(name, image).unwrap();
        fs::write(directory.join("pages-1.img"), []).unwrap();
    }),
];
