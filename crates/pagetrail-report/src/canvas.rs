//! A picture to draw on: rectangles, text, and its encoding as PNG.
//!
//! Colours are red, green and blue; coordinates are pixels from the upper left corner, and what
//! lies outside is cut off.

use std::io::{self, Write};
use std::ops::Range;

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};

/// Red, green, blue.
pub(super) type Colour = [u8; 3];

const FONT: RasterHeight = RasterHeight::Size32;

/// Height of a line of text in pixels.
pub(super) const TEXT_HEIGHT: usize = FONT.val();

/// Which edge of a text lies at its coordinate.
#[derive(Clone, Copy)]
pub(super) enum Align {
    Left,
    Right,
    Centre,
}

/// How a text looks.
#[derive(Clone, Copy)]
pub(super) struct Ink {
    pub(super) colour: Colour,
    pub(super) bold: bool,
}

/// The picture.
pub(super) struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<Colour>,
}

impl Canvas {
    /// A picture of one colour.
    pub(super) fn new(width: usize, height: usize, ground: Colour) -> Self {
        Self {
            width,
            height,
            pixels: vec![ground; width * height],
        }
    }

    /// Fills a rectangle.
    pub(super) fn fill(&mut self, x: Range<usize>, y: Range<usize>, colour: Colour) {
        let x = x.start.min(self.width)..x.end.min(self.width);
        for y in y.start..y.end.min(self.height) {
            if x.start < x.end {
                self.pixels[y * self.width..][x.clone()].fill(colour);
            }
        }
    }

    /// Width of a text in pixels.
    pub(super) fn text_width(text: &str) -> usize {
        text.chars().count() * get_raster_width(FontWeight::Regular, FONT)
    }

    /// Writes one line of text with its upper edge at `y`. The font has ASCII; other characters
    /// appear as `?`.
    pub(super) fn text(&mut self, text: &str, x: usize, y: usize, align: Align, ink: Ink) {
        let width = Self::text_width(text);
        let mut left = match align {
            Align::Left => x,
            Align::Right => x.saturating_sub(width),
            Align::Centre => x.saturating_sub(width / 2),
        };
        let weight = if ink.bold {
            FontWeight::Bold
        } else {
            FontWeight::Regular
        };
        for c in text.chars() {
            let glyph = get_raster(c, weight, FONT).or_else(|| get_raster('?', weight, FONT));
            let Some(glyph) = glyph else { continue };
            for (row, line) in glyph.rows().enumerate() {
                for (column, &cover) in line.iter().enumerate() {
                    self.blend(left + column, y + row, ink.colour, cover);
                }
            }
            left += glyph.width();
        }
    }

    fn blend(&mut self, x: usize, y: usize, colour: Colour, cover: u8) {
        if cover == 0 || x >= self.width || y >= self.height {
            return;
        }
        let under = &mut self.pixels[y * self.width + x];
        for (under, over) in under.iter_mut().zip(colour) {
            let (cover, rest) = (u16::from(cover), 255 - u16::from(cover));
            *under = ((u16::from(over) * cover + u16::from(*under) * rest) / 255) as u8;
        }
    }

    /// Writes the picture as PNG.
    pub(super) fn encode(&self, out: &mut dyn Write) -> io::Result<()> {
        let size = |n: usize| u32::try_from(n).map_err(io::Error::other);
        let mut encoder = png::Encoder::new(out, size(self.width)?, size(self.height)?);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_compression(png::Compression::High);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(self.pixels.as_flattened())?;
        Ok(writer.finish()?)
    }
}
