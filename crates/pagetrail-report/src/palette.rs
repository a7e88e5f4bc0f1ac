//! The colour scale of every picture: how much of a cell was written, on a dark ground.
//!
//! The scale is logarithmic over three decades, because a program that writes one page in a hundred
//! is as interesting as one that writes all; whatever was written at all gets the lowest colour at
//! least. The colours are *inferno* (S. van der Walt, N. Smith, 2015: perceptually uniform,
//! readable by the colour-blind), as a polynomial of degree 6, without its darkest fifth, which
//! would be lost on the ground.

/// Where nothing was written.
pub const GROUND: [u8; 3] = [0x0a, 0x0a, 0x10];

/// The lowest share of pages that the scale tells apart.
const LOWEST_SHARE: f32 = 1e-3;

const DARKEST: f32 = 0.2;
const BRIGHTEST: f32 = 0.98;

/// From the constant to the sixth power of inferno's red, green and blue.
const INFERNO: [[f32; 3]; 7] = [
    [0.000_219, 0.001_651, -0.019_481],
    [0.106_513, 0.563_956, 3.932_712],
    [11.602_493, -3.972_854, -15.942_394],
    [-41.703_996, 17.436_4, 44.354_145],
    [77.162_93, -33.402_36, -81.807_31],
    [-71.319_43, 32.626_064, 73.209_52],
    [25.131_126, -12.242_669, -23.070_325],
];

/// The place of a share of written pages (0 to 1) on the scale: 0 where nothing was written,
/// otherwise 1 (the lowest share or less) to 255 (all).
pub fn level(share: f32) -> u8 {
    if share <= 0.0 {
        return 0;
    }
    let decades = -LOWEST_SHARE.log10();
    (255.0 * (1.0 + share.log10() / decades))
        .round()
        .clamp(1.0, 255.0) as u8
}

/// The colour of a level, red, green and blue.
pub fn colour(level: u8) -> [u8; 3] {
    if level == 0 {
        return GROUND;
    }
    let t = DARKEST + (BRIGHTEST - DARKEST) * f32::from(level) / 255.0;
    std::array::from_fn(|channel| {
        let value = INFERNO
            .iter()
            .rev()
            .fold(0.0, |sum, power| sum * t + power[channel]);
        (255.0 * value.clamp(0.0, 1.0)).round() as u8
    })
}

/// The level as one character, for where there may be no colour; a space where nothing was written.
pub fn shade(level: u8) -> &'static str {
    const SHADES: [&str; 5] = ["·", "░", "▒", "▓", "█"];
    match level {
        0 => " ",
        _ => SHADES[usize::from(level) * SHADES.len() / 256],
    }
}

/// The characters of [`shade`] in ascending order: the highest level and the highest share that
/// each stands for.
pub fn steps() -> [(u8, f64); 5] {
    [51_u8, 102, 153, 204, 255].map(|level| {
        let decades = -f64::from(LOWEST_SHARE.log10());
        (
            level,
            10_f64.powf(decades * (f64::from(level) / 255.0 - 1.0)),
        )
    })
}

/// The nearest of the 256 colours that terminals agree on: the 6x6x6 cube from 16 on.
pub fn ansi_256(level: u8) -> u8 {
    // The cube's steps are 0, 95, 135, 175, 215, 255.
    let step = |value: u8| match value {
        0..48 => 0,
        48..115 => 1,
        _ => (value - 35) / 40,
    };
    let [r, g, b] = colour(level).map(step);
    16 + 36 * r + 6 * g + b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_is_logarithmic_and_never_hides_a_write() {
        assert_eq!(level(0.0), 0);
        assert_eq!(level(1e-9), 1);
        assert_eq!(level(1.0), 255);
        assert_eq!(level(0.1), 170);
        assert_eq!(level(0.01), 85);
        let steps = steps();
        for (step, next) in steps.iter().zip(steps.iter().skip(1)) {
            assert_eq!(level(step.1 as f32), step.0);
            assert_ne!(shade(step.0), shade(next.0));
            assert_eq!(
                shade(step.0 + 1),
                shade(next.0),
                "each step ends where the next begins"
            );
        }
    }

    #[test]
    fn colours_grow_lighter_with_the_level() {
        let luma = |level| {
            let [r, g, b] = colour(level).map(f32::from);
            0.2126 * r + 0.7152 * g + 0.0722 * b
        };
        for low in 0..255 {
            assert!(luma(low) <= luma(low + 1) + 0.6, "at level {low}");
        }
        assert!(luma(255) > 200.0);
    }
}
